# SPDX-License-Identifier: Apache-2.0
"""Names of records, of every generation, are taken apart correctly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.dump.record_names import (
    RecordKind,
    backward_name,
    forward_name,
    parse_record_name,
)

F, B, P = RecordKind.FORWARD, RecordKind.BACKWARD, RecordKind.PARAMETERS_GRAD


@pytest.mark.parametrize(
    ("name", "kind", "prefix", "path", "class_name", "index"),
    [
        ("Functional.linear.0.forward", F, "Functional", "linear", None, 0),
        ("Tensor.__add__.13.backward", B, "Tensor", "__add__", None, 13),
        ("Primitive.matmul.MatMul.0.forward", F, "Primitive", "matmul.MatMul", None, 0),
        ("my.pkg.ops.fused.2.forward", F, "my.pkg.ops", "fused", None, 2),
        ("Functional.forward.0.forward", F, "Functional", "forward", None, 0),
        ("Module.blk.0.Linear.forward.2", F, "Module", "blk.0", "Linear", 2),
        ("Module.forward.backward.1.Net.backward.0", B, "Module", "forward.backward.1", "Net", 0),
        ("Module.a.forward.0.Linear.forward.1", F, "Module", "a.forward.0", "Linear", 1),
        ("Module.GPT.forward.0", F, "Module", "", "GPT", 0),
        ("Cell.fc.Dense.backward.0", B, "Cell", "fc", "Dense", 0),
        ("Module.conv1.Conv2d.0.forward", F, "Module", "conv1", "Conv2d", 0),
        ("Module.fc.Linear.parameters_grad", P, "Module", "fc", "Linear", None),
        ("Cell.fc1.Dense.parameters_grad.1", P, "Cell", "fc1", "Dense", 1),
        (
            "Module.fc.Linear.parameters_grad_reduced",
            RecordKind.PARAMETERS_GRAD_REDUCED,
            "Module",
            "fc",
            "Linear",
            None,
        ),
        ("loss.0.debug", RecordKind.DEBUG, "", "loss", None, 0),
        ("a.b_grad.3.debug", RecordKind.DEBUG, "", "a.b_grad", None, 3),
        ("optimizer", RecordKind.OTHER, "", "optimizer", None, None),
        ("", RecordKind.OTHER, "", "", None, None),
        ("...", RecordKind.OTHER, "", "...", None, None),
    ],
)
def test_name_is_taken_apart(name, kind, prefix, path, class_name, index):
    found = parse_record_name(name)
    assert (found.kind, found.prefix, found.path) == (kind, prefix, path)
    assert (found.class_name, found.index) == (class_name, index)
    assert found.full == name


def test_oldest_debug_names_end_with_their_number():
    assert parse_record_name("loss_grad.4", level="debug").index == 4
    assert parse_record_name("loss_grad.4", level="L1").kind is RecordKind.OTHER


def test_recomputation_and_later_backward_passes_are_marked():
    again = parse_record_name("Module.fc.Linear.forward.0.recompute")
    assert (again.recompute, again.path, again.index) == (True, "fc", 0)
    second = parse_record_name("Functional.relu.0.backward.pass1")
    assert (second.backward_pass, second.kind, second.index) == (1, B, 0)


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("Functional.linear.0.forward", "Functional.linear.0.backward"),
        ("Functional.forward.3.forward", "Functional.forward.3.backward"),
        ("Module.forward_proj.Linear.forward.1", "Module.forward_proj.Linear.backward.1"),
        ("Module.a.forward.0.Linear.forward.1", "Module.a.forward.0.Linear.backward.1"),
        ("Module.GPT.forward.0", "Module.GPT.backward.0"),
        ("Module.conv1.Conv2d.0.forward", "Module.conv1.Conv2d.0.backward"),
    ],
)
def test_forward_and_backward_records_of_a_call_know_each_other(forward, backward):
    assert backward_name(parse_record_name(forward)) == backward
    assert forward_name(parse_record_name(backward)) == forward
    assert forward_name(parse_record_name(forward)) is None
    assert backward_name(parse_record_name(backward)) is None


def test_a_later_backward_pass_belongs_to_the_same_forward_record():
    again = parse_record_name("Module.forward.Linear.backward.1.pass2")
    assert forward_name(again) == "Module.forward.Linear.forward.1"
    assert backward_name(parse_record_name("Module.forward.Linear.forward.1"), 2) == again.full


def test_records_that_are_no_calls_have_no_other_direction():
    for name in ("optimizer", "loss.0.debug", "Module.fc.Linear.parameters_grad"):
        assert forward_name(parse_record_name(name)) is None
        assert backward_name(parse_record_name(name)) is None


def test_a_number_too_long_for_a_call_is_part_of_the_name():
    assert parse_record_name("Tensor.add." + "9" * 5000 + ".forward").kind is RecordKind.OTHER


@given(
    st.lists(st.sampled_from(["a", "0", "forward", "backward", "debug", "x1"]), max_size=5),
    st.sampled_from(["forward", "backward"]),
    st.integers(0, 10**6),
)
def test_any_module_path_is_recovered(path, direction, index):
    name = ".".join(["Module", *path, "Linear", direction, str(index)])
    found = parse_record_name(name)
    assert (found.path, found.class_name) == (".".join(path), "Linear")
    assert (found.kind, found.index) == (direction, index)


@given(st.text(max_size=60))
def test_no_name_is_refused(name):
    assert parse_record_name(name, level="debug").full == name
