# SPDX-License-Identifier: Apache-2.0
"""Arguments by position and by name, and the defaults of those that were left out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from judging import compare
from pairing import both, rows_of

from builders.dumps import DumpBuilder, value
from builders.records import backward, forward, tensor
from msprobe.compare.matching.signatures import Signature, known_functions, signature_of
from msprobe.compare.model import Matched


def number(found: float | str) -> dict[str, Any]:
    return {"type": type(found).__name__, "value": found}


def test_arguments_pair_by_the_order_of_parameters(tmp_path: Path) -> None:
    name = "Functional.dropout.0.forward"
    by_place = {name: forward([tensor(), number(0.0), number(False)], [tensor()])}
    by_name = {
        name: forward(
            [tensor()], [tensor()], p=number(0.0), training=number(False), inplace=number(False)
        )
    }

    rows = rows_of(*both(tmp_path, by_place, by_name))

    pairs = [(row.target.slot, row.reference.slot) for row in rows if isinstance(row, Matched)]
    assert pairs == [
        ("input.0", "input.0"),
        ("input.1", "input.p"),
        ("input.2", "input.training"),
        ("output.0", "output.0"),
    ]


def test_gradients_pair_like_the_arguments_that_they_belong_to(tmp_path: Path) -> None:
    name = "Functional.layer_norm.0.backward"
    weight, bias = tensor((4,), number=2.0), tensor((4,), number=3.0)
    by_place = {name: backward([tensor()], [tensor(), None, weight, bias])}
    by_name = {
        name: backward([tensor()], [tensor(), None])
        | {"output_kwargs": {"bias": bias, "weight": weight}}
    }

    rows = rows_of(*both(tmp_path, by_place, by_name))

    pairs = {row.target.slot: row.reference.slot for row in rows if isinstance(row, Matched)}
    assert pairs["output.2"] == "output_kwargs.weight"
    assert pairs["output.3"] == "output_kwargs.bias"


@pytest.mark.parametrize(
    ("function", "argument", "given", "status"),
    [
        ("Functional.silu", "inplace", False, "equal"),
        ("Functional.silu", "inplace", True, "added"),
        ("Functional.cross_entropy", "ignore_index", -100, "equal"),
        ("Functional.cross_entropy", "label_smoothing", 0.1, "added"),
        ("Functional.softmax", "_stacklevel", 3, "equal"),
        ("Torch.unknown", "inplace", False, "added"),
    ],
)
def test_an_argument_with_its_default_may_be_left_out(
    tmp_path: Path, function: str, argument: str, given: Any, status: str
) -> None:
    for side, kwargs in (("t", {argument: given}), ("r", {})):
        dump = DumpBuilder(tmp_path / side)
        dump.call(f"{function}.0.forward", [value([1.0, 2.0])], [value([1.0])], kwargs=kwargs)
        dump.write()

    found = compare(tmp_path / "t", tmp_path / "r")

    assert found.status(f"{function}.0.forward.input.{argument}") == status


def test_unknown_functions_have_no_parameters() -> None:
    assert signature_of("Torch.nothing") == Signature((), {})
    assert signature_of("Torch.nothing").name_of("1.2") == "1.2"
    assert signature_of("Functional.pad").name_of("1.2") == "pad.2"
    assert signature_of("Functional.pad").name_of("value") == "value"
    assert signature_of("Functional.conv2d").name_of("3.0") == "stride.0"


@pytest.mark.torch
def test_the_table_is_what_pytorch_says() -> None:
    torch = pytest.importorskip("torch")
    homes = {"Functional": torch.nn.functional, "Torch": torch.functional, "Tensor": torch.Tensor}
    for function in known_functions():
        prefix, _, name = function.partition(".")
        try:
            found = inspect.signature(getattr(homes[prefix], name)).parameters
        except (AttributeError, ValueError):
            continue  # of another version, or chosen at run time
        if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in found.values()):
            continue
        known = signature_of(function)
        shared = [each for each in known.names if each in found]
        assert shared == [each for each in found if each in known.names], function
        for parameter, default in known.defaults.items():
            if parameter in found:
                assert found[parameter].default == default, (function, parameter)
