# SPDX-License-Identifier: Apache-2.0
"""Who is to blame, where the answer is easily wrong: masks, views, gradients, random data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from judging import Verdicts, compare

from builders.dumps import DumpBuilder, value
from builders.networks import write_dump

# NaN that came in with the data: "no anomaly".


def test_nan_in_the_input_of_the_model_came_in_from_outside(tmp_path):
    nan = float("nan")

    def write(name: str, first: float) -> Path:
        x, y = value([first, 2.0], 1), value([first, 3.0], 2)
        dump = DumpBuilder(tmp_path / name)
        dump.call("Torch.exp.0.forward", [x], [y], parent="Module.Net.forward.0")
        dump.call("Module.Net.forward.0", [x], [y])
        return dump.write()

    found = compare(write("new", nan), write("old", 1.0))
    assert found.culprits == []
    assert found.origin("Module.Net.forward.0.input.0") == "input"
    assert found.status("Torch.exp.0.forward.output.0") == "nonfinite"
    assert found.origin("Torch.exp.0.forward.output.0") == "inherited"
    assert found.summary["first_difference"]["origin"] == "input"


def test_nan_from_a_call_that_only_the_target_makes_is_its_fault_through_views_too(tmp_path):
    def write(name: str, *, spoils: bool) -> Path:
        x, last = np.array([[1.0, 2.0]], np.float32), np.array([3.0, 4.0], np.float32)
        net = "Module.Net.forward.0"
        dump = DumpBuilder(tmp_path / name)
        dump.call("Torch.exp.0.forward", [value(last, 1)], [value(x, 2)], parent=net)
        if spoils:
            x = x.copy()
            x[0, 0] = np.nan
            made = value(x, 3, nan_count=1, finite_max=2.0, finite_min=2.0)
            dump.call("Tensor.index_fill.0.forward", [value([[1.0, 2.0]], 2)], [made], parent=net)
            last = np.array([np.nan, np.nan], np.float32)
        # The transposed view in between is not recorded: nothing else leads to the maker.
        about = {"nan_count": 1, "finite_max": 2.0, "finite_min": 2.0} if spoils else {}
        inputs = [value(x.T.copy(), 4, **about)]
        dump.call("Torch.cos.0.forward", inputs, [value(last, 5)], parent=net)
        return dump.call(net, [value([0.5, 0.25])], [value(last, 5)]).write()

    found = compare(write("new", spoils=True), write("old", spoils=False))
    assert found.culprits == ["Tensor.index_fill.0.forward"]
    assert found.origin("Torch.cos.0.forward.input.0") == "inherited"


def test_a_result_that_one_side_casts_back_inherits_from_the_call_that_made_it(tmp_path):
    def write(name: str, *, casts: bool) -> Path:
        net, x = "Module.Net.forward.0", np.array([[1.0, 2.0, 3.0]], np.float32)
        y, z = np.exp(x), np.exp(x) / 7
        dump = DumpBuilder(tmp_path / name)
        made = [value(y.astype(np.float16) if casts else y, 2)]
        dump.call("Torch.exp.0.forward", [value(x, 1)], made, parent=net)
        last = z.astype(np.float16).astype(np.float32) if casts else z
        half = last.astype(np.float16) if casts else last
        dump.call("Torch.div.0.forward", [*made, 7], [value(half, 3)], parent=net)
        if casts:
            dump.call("Tensor.float.0.forward", [value(half, 3)], [value(last, 4)], parent=net)
        return dump.call(net, [value(x, 1)], [value(last, 4 if casts else 3)]).write()

    found = compare(write("new", casts=True), write("old", casts=False))
    assert found.culprits == []


# Masks that differ and look the same by their largest and least element.


def masked(folder: Path, length: int, *, plants: bool = False) -> Path:
    """Write a run that lets only the first `length` positions through."""
    positions = np.arange(4)
    mask = positions < length
    scores = np.array([1.0, 2.0, 3.0, 5.0], np.float32)
    dump = DumpBuilder(folder)
    net = "Module.Net.forward.0"
    given = value(np.array([length, 0]), 3)
    dump.call("Tensor.__lt__.0.forward", [value(positions, 4), given], [value(mask, 5)], parent=net)
    dump.call("Tensor.__invert__.0.forward", [value(mask, 5)], [value(~mask, 6)], parent=net)
    dump.call("Tensor.__invert__.1.forward", [value(~mask, 6)], [value(mask, 7)], parent=net)
    made = scores * mask * (2 if plants else 1)
    inputs = [value(scores, 8), value(mask, 7)]
    dump.call("Tensor.__mul__.0.forward", inputs, [value(made, 9)], parent=net)
    dump.call(net, [given], [value(made, 9)])
    return dump.write()


def test_a_mask_made_from_other_values_is_inherited_though_it_looks_the_same(tmp_path):
    found = compare(masked(tmp_path / "new", 2), masked(tmp_path / "old", 3))
    assert found.status("Tensor.__mul__.0.forward.input.1") == "equal"
    assert found.culprits == []
    assert found.origin("Tensor.__mul__.0.forward.output.0") == "inherited"
    assert "mask" in found.reason("Tensor.__mul__.0.forward.output.0")


def test_a_mask_made_with_another_argument_is_inherited_too(tmp_path):
    def write(name: str, diagonal: int) -> Path:
        ones, scores = np.ones((3, 3), bool), np.arange(9, dtype=np.float32).reshape(3, 3)
        mask = np.tril(ones, diagonal)
        dump = DumpBuilder(tmp_path / name)
        dump.call("Tensor.tril.0.forward", [value(ones), diagonal], [value(mask, 1)])
        inputs, made = [value(scores, 2), value(mask, 1)], [value(scores * mask, 3)]
        return dump.call("Tensor.__mul__.0.forward", inputs, made).write()

    found = compare(write("new", 1), write("old", 0))
    assert found.culprits == ["Tensor.tril.0.forward"]
    assert found.origin("Tensor.__mul__.0.forward.output.0") == "inherited"


def test_a_mask_made_from_the_same_values_excuses_nobody(tmp_path):
    found = compare(masked(tmp_path / "new", 3, plants=True), masked(tmp_path / "old", 3))
    assert found.culprits == ["Tensor.__mul__.0.forward"]


@pytest.mark.parametrize("least", [(0.0, 10.0), (10.0, 0.0)])
def test_a_divisor_that_reaches_zero_since_it_differs_is_not_introduced(tmp_path, least):
    def write(name: str, least: float) -> Verdicts | Path:
        x = value([least, 900.0, 1000.0], 1)
        y = value([float("nan") if least == 0 else 1.0, 1.0, 1.0], 2)
        dump = DumpBuilder(tmp_path / name)
        dump.call("Tensor.__truediv__.0.forward", [x, x], [y], parent="Module.Net.forward.0")
        return dump.call("Module.Net.forward.0", [x], [y]).write()

    found = compare(write("new", least[0]), write("old", least[1]))
    assert found.culprits == []
    assert found.origin("Tensor.__truediv__.0.forward.output.0") == "amplified"


# Gradients that the optimizer or a clipping reads are no data from outside.


def test_a_gradient_that_is_read_again_is_inherited(tmp_path):
    def write(name: str, weight: float) -> Path:
        x, w, y = value([1.0, 2.0]), value([weight, 4.0]), value([weight, 8.0], 1)
        gradient = value([2 * weight, 16.0])
        fc = "Module.fc.Scale.forward.0"
        dump = DumpBuilder(tmp_path / name)
        dump.call("Tensor.__mul__.0.forward", [x, w], [y], parent=fc)
        dump.call(fc, [x], [y], parameters={"weight": w})
        dump.gradients("Module.fc.Scale.parameters_grad", weight=gradient)
        dump.call("Torch.norm.0.forward", [gradient], [value([weight + 3], 2)])
        return dump.write()

    found = compare(write("new", 3.0), write("old", 2.0))
    assert found.culprits == ["Module.fc.Scale.forward.0"]
    assert found.origin("Torch.norm.0.forward.input.0") == "inherited"
    assert "parameters_grad.weight" in found.reason("Torch.norm.0.forward.input.0")


# Data that one side makes while it is recorded are data all the same.


def test_data_made_inside_the_recording_are_no_fault_of_the_first_call(tmp_path):
    def write(name: str, data: float, *, is_recorded: bool) -> Path:
        number = 1 if is_recorded else 0
        x, y = value([data, 2.0], number), value([data * 3, 6.0], 2)
        dump = DumpBuilder(tmp_path / name)
        if is_recorded:
            dump.call("Torch.randn.0.forward", [2], [x])
        net = "Module.Net.forward.0"
        dump.call("Tensor.__mul__.0.forward", [x, 3.0], [y], parent=net)
        return dump.call(net, [x], [y]).write()

    found = compare(write("new", 5.0, is_recorded=True), write("old", 4.0, is_recorded=False))
    assert found.culprits == []
    assert found.origin("Tensor.__mul__.0.forward.input.0") == "input"
    assert found.origin("Module.Net.forward.0.input.0") == "input"


def test_one_culprit_in_several_steps_is_one(tmp_path):
    new = write_dump(tmp_path / "new", scale=1.5, steps=(0, 1))
    summary = compare(new, write_dump(tmp_path / "old", steps=(0, 1))).summary
    assert {entry["name"] for entry in summary["introduced"]} == {"Functional.linear.1.forward"}
    assert summary["introduced_total"] == 2
    assert not any("this one first" in step for step in summary["next_steps"])
