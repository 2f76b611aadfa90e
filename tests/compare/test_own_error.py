# SPDX-License-Identifier: Apache-2.0
"""Which side errs: calls whose results differ without a reason are computed again in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.dumps import DumpBuilder, value
from msprobe.compare.run import compare_dumps
from msprobe.triage.ladder import climb
from msprobe.triage.rungs import Answer, Rung

torch = pytest.importorskip("torch")

_RNG = np.random.default_rng(5)
_SCORES = _RNG.normal(size=(4, 8)).astype(np.float32)
_RIGHT = np.exp(_SCORES.astype(np.float64))
_RIGHT = (_RIGHT / _RIGHT.sum(-1, keepdims=True)).astype(np.float32)
_WRONG = (_RIGHT * np.float32(1.03)).astype(np.float32)


def softmax(
    folder: Path, result: Any, *, task: str = "tensor", name: str = "Functional.softmax.0.forward"
) -> Path:
    """Write the dump of a step that calls softmax; return its path."""
    dump = DumpBuilder(folder, task)
    kwargs = {"dim": {"type": "int", "value": -1}}
    dump.call(name, [value(_SCORES, 1)], [value(result, 2)], kwargs=kwargs, line=7)
    return dump.write()


def verdict_of(target: Path, reference: Path, **options: Any) -> dict[str, Any]:
    """Return the verdict on two dumps."""
    verdict: dict[str, Any] = compare_dumps(target, reference, **options).summary["verdict"]
    return verdict


def test_the_side_that_errs_is_named(tmp_path: Path) -> None:
    wrong, right = softmax(tmp_path / "wrong", _WRONG), softmax(tmp_path / "right", _RIGHT)

    found = compare_dumps(right, wrong).summary

    verdict, (entry,) = found["verdict"], found["introduced"]
    assert (verdict["class"], verdict["confidence"]) == ("kernel", "proved")
    assert "the reference computes output.0 of Functional.softmax.0.forward" in verdict["sentence"]
    assert "factor 1.03" in verdict["sentence"]
    assert entry["own_error"]["at_fault"] == ["reference"]
    assert entry["own_error"]["target"]["ulps"] < 1


def test_without_tensors_or_on_request_nothing_is_computed_again(tmp_path: Path) -> None:
    dumps = softmax(tmp_path / "a", _WRONG), softmax(tmp_path / "b", _RIGHT)
    statistics = (
        softmax(tmp_path / "c", _WRONG, task="statistics"),
        softmax(tmp_path / "d", _RIGHT, task="statistics"),
    )

    for found, kind in (
        (verdict_of(*dumps, verify=False), "kernel"),
        (verdict_of(*statistics), "unexplained"),  # neither elements nor projections of its input
    ):
        assert (found["class"], found["confidence"]) == (kind, "possible")
        assert "computes" not in found["sentence"]


def test_two_right_results_are_rounding(tmp_path: Path) -> None:
    """The condition of a Hilbert matrix makes two right inverses differ in the second digit."""
    places = torch.arange(6)
    matrix = 1 / (places[:, None] + places + 1).float()
    order = torch.tensor([2, 5, 0, 4, 1, 3])
    turned = torch.linalg.inv(matrix[order][:, order])
    back = torch.argsort(order)
    paths = []
    for name, inverse in {"a": torch.linalg.inv(matrix), "b": turned[back][:, back]}.items():
        dump = DumpBuilder(tmp_path / name, "tensor")
        inputs, outputs = value(matrix.numpy(), 1), value(inverse.numpy(), 2)
        paths.append(dump.call("Torch.inverse.0.forward", [inputs], [outputs]).write())

    assert verdict_of(*paths, verify=False)["class"] == "kernel"
    found = compare_dumps(*paths).summary
    assert (found["verdict"]["class"], found["verdict"]["confidence"]) == ("rounding", "proved")
    assert found["introduced"] == []
    assert not found["equal"]


def test_a_small_bias_within_the_limit_is_no_rounding(tmp_path: Path) -> None:
    """The limit of verify is generous; of two right results neither is much nearer."""
    found = verdict_of(
        softmax(tmp_path / "a", (_RIGHT * np.float32(1 + 3e-6)).astype(np.float32)),
        softmax(tmp_path / "b", _RIGHT),
    )

    assert found["class"] != "rounding"


def test_what_cannot_be_computed_again_is_said(tmp_path: Path) -> None:
    name = "Functional.unheard_of.0.forward"
    target, reference = (
        softmax(tmp_path / "a", _WRONG, name=name),
        softmax(tmp_path / "b", _RIGHT, name=name),
    )

    found = verdict_of(target, reference)

    assert (found["class"], found["confidence"]) == ("kernel", "possible")
    assert "not judged (function not found)" in found["evidence"][0]


def test_triage_ends_with_the_side_that_errs(tmp_path: Path) -> None:
    found = climb(softmax(tmp_path / "a", _WRONG), softmax(tmp_path / "b", _RIGHT))

    assert "the target computes output.0 of" in found.verdict["sentence"]
    last = found.rungs[-1]
    assert (last.rung, last.answer) == (Rung.OWN_ERROR, Answer.EXPLAINS)
    assert "factor 1.03" in last.words
