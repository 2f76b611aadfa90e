# SPDX-License-Identifier: Apache-2.0
"""Dumps of one program by two recorders: what only one of them records is no difference.

Those of mindstudio-probe are stored; msprobe's are made by each test.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pairing import both

from builders.records import backward, forward, tensor

torch = pytest.importorskip("torch")

from recorder_program import LEVELS, MODES, record  # noqa: E402

from msprobe import compare_dumps  # noqa: E402
from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.result import CompareResult  # noqa: E402

pytestmark = pytest.mark.torch

STORED = Path(__file__).parent / "data" / "mindstudio_26.2.0_dumps.zip"
Recorded = Callable[..., Path]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of mindstudio-probe 26.2.0: ``{level}-{mode}``."""
    folder = tmp_path_factory.mktemp("stored")
    with zipfile.ZipFile(STORED) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    def make(level: str, mode: str = "", fault: str = "") -> Path:
        reset_session()
        try:
            return record(tmp_path / f"{level}{mode}{fault}", level, mode, fault=fault)
        finally:
            reset_session()

    return make


def differences(result: CompareResult) -> list[tuple[str, str]]:
    frame = result.frame
    found = frame.filter(~frame["status"].is_in(["equal", "close"]))
    return list(zip(found["name"], found["status"], strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
def test_one_program_recorded_by_both_has_no_difference(
    stored: Path, recorded: Recorded, level: str, mode: str
) -> None:
    own = recorded(level, mode)
    for other in MODES:
        for pair in (
            (own, stored / f"{level}-{other}"),
            (stored / f"{level}-{other}", own),
        ):
            result = compare_dumps(*pair)
            if mode == other == "md5":
                # Another processor than that of the stored dumps computes other last bits.
                assert {status for _, status in differences(result)} <= {"differs"}
            else:
                assert differences(result) == []
            [note] = [note for note in result.summary["notes"] if "different programs" in note]
            assert "operations" in note
            assert "gradients" in note


@pytest.mark.parametrize("level", LEVELS)
def test_tensors_against_statistics_of_another_recorder(
    stored: Path, recorded: Recorded, level: str
) -> None:
    assert differences(compare_dumps(recorded(level), stored / f"{level}-statistics")) == []


@pytest.mark.parametrize("level", LEVELS)
def test_tensors_against_statistics_of_the_same_run(recorded: Recorded, level: str) -> None:
    result = compare_dumps(recorded(level), recorded(level, "statistics"))
    assert set(result.frame["status"]) == {"equal"}


@pytest.mark.parametrize(
    ("fault", "culprit"),
    [
        ("weight", "Module.down.Linear.forward.0.parameters.weight"),
        ("smoothing", "Functional.cross_entropy.0.forward.input.label_smoothing"),
        ("scale", "Tensor.__mul__.1.forward.output.0"),
    ],
)
def test_a_fault_is_found_in_a_dump_of_another_recorder(
    stored: Path, recorded: Recorded, fault: str, culprit: str
) -> None:
    summary = compare_dumps(recorded("mix", "statistics", fault), stored / "mix-statistics").summary
    assert summary["introduced"][0]["row"] == culprit


ADD, MUL = "Tensor.__add__", "Tensor.__mul__"


def written(
    folder: Path, target: object, reference: object, *, own: bool = False, **options: Any
) -> CompareResult:
    """Compare two dumps written by hand, the reference by msprobe and the target by it or not."""
    both(folder, target, reference, **options)
    for side in ("target", "reference") if own else ("reference",):
        (folder / side / "step0/rank/account.json").write_text("{}")
    return compare_dumps(folder / "target", folder / "reference")


def calls(*names: str, **about: bool) -> dict[str, object]:
    """Return records of the forward and backward calls of these names."""
    forwards = {f"{name}.forward": forward([tensor()], [tensor(**about)]) for name in names}
    return forwards | {f"{name}.backward": backward([tensor()], [tensor()]) for name in names}


def test_a_function_that_one_side_never_records_is_left_out(tmp_path: Path) -> None:
    target, reference = calls(f"{ADD}.0"), calls(f"{ADD}.0", f"{MUL}.0")

    assert differences(written(tmp_path / "other", target, reference)) == []
    assert differences(written(tmp_path / "own", target, reference, own=True)) != []


def test_a_missing_call_of_a_function_that_both_record_stays(tmp_path: Path) -> None:
    result = written(tmp_path, calls(f"{ADD}.0"), calls(f"{ADD}.0", f"{ADD}.1"))

    assert [status for _, status in differences(result)] == ["missing"] * 4
    assert not any("different programs" in note for note in result.summary["notes"])


@pytest.mark.parametrize("is_left_out", [True, False])
def test_calls_of_an_optimizer_are_facts_in_the_other_recorder(
    tmp_path: Path, is_left_out: bool
) -> None:
    target, reference = calls(f"{ADD}.0", f"{ADD}.1"), calls(f"{ADD}.0")
    del target[f"{ADD}.1.backward"]
    frames = [
        "File /venv/lib/python3.12/site-packages/torch/optim/adam.py, line 9, in adam, \n ...",
        "File /home/me/train.py, line 3, in main, \n optimizer.step()",
    ]
    stacks = {f"{ADD}.1.forward": frames if is_left_out else frames[::-1]}

    other = written(tmp_path / "other", target, reference, stacks=stacks)
    assert (differences(other) == []) is is_left_out
    own = written(tmp_path / "own", target, reference, own=True, stacks=stacks)
    assert differences(own) != []


def with_gradients(**numbers: float) -> dict[str, Any]:
    """Return forward calls of modules, and gradients of their weights with these numbers."""
    modules = [f"Module.{name}.Linear" for name in ("a", "b")]
    records: dict[str, Any] = {
        f"{name}.forward.0": forward([tensor()], [tensor()]) for name in modules
    }
    for name, number in numbers.items():
        weight = {"weight": [tensor(number=number, Min=0.0)]}
        records[f"Module.{name}.Linear.parameters_grad"] = weight
    return records


def test_the_gradient_of_a_shared_parameter_is_recorded_once_or_with_each_module(
    tmp_path: Path,
) -> None:
    shared, once = with_gradients(a=3.0, b=3.0), with_gradients(a=3.0)
    assert differences(written(tmp_path / "shared", shared, once)) == []
    assert differences(written(tmp_path / "own", shared, once, own=True)) != []
    assert differences(written(tmp_path / "other", with_gradients(a=3.0, b=4.0), once)) != []
    for records in (shared, once):
        records.setdefault("Module.b.Linear.parameters_grad", {})["bias"] = [tensor(number=5.0)]
    assert differences(written(tmp_path / "bias", shared, once)) == []


def test_a_backward_record_that_one_side_lacks_is_left_out_unless_the_graph_was_cut(
    tmp_path: Path,
) -> None:
    reference = calls(f"{ADD}.0", requires_grad=True)
    kept, cut = calls(f"{ADD}.0", requires_grad=True), calls(f"{ADD}.0", requires_grad=False)
    for records in (kept, cut):
        del records[f"{ADD}.0.backward"]

    assert differences(written(tmp_path / "kept", kept, reference)) == []
    assert differences(written(tmp_path / "cut", cut, reference)) != []


def test_a_gradient_that_comes_into_a_call_is_compared(tmp_path: Path) -> None:
    target, reference = calls(f"{ADD}.0"), calls(f"{ADD}.0")
    target[f"{ADD}.0.backward"] = backward([tensor(number=5.0)], [tensor((6,), number=3.0)])

    result = written(tmp_path, target, reference)

    assert differences(result) == [(f"{ADD}.0.backward.input.0", "differs")]


def test_a_gradient_that_a_call_hands_on_is_compared_where_it_was_made(tmp_path: Path) -> None:
    target, reference = calls(f"{MUL}.0", f"{ADD}.0"), calls(f"{MUL}.0", f"{ADD}.0")
    target[f"{MUL}.0.backward"] = backward([tensor()], [tensor(number=3.0)])
    target[f"{ADD}.0.backward"] = backward([tensor(number=3.0)], [tensor()])

    result = written(tmp_path, target, reference)

    made, arrived = f"{MUL}.0.backward.output.0", f"{ADD}.0.backward.input.0"
    assert differences(result) == [(made, "differs"), (arrived, "differs")]
    assert [each["row"] for each in result.summary["introduced"]] == [made]


def test_another_shape_of_a_gradient_that_agrees_where_it_arrives_is_left_out(
    tmp_path: Path,
) -> None:
    """``x.flatten(0, 1).float()``: the peer takes the gradient of `x` for that of the flat one."""
    target, reference = calls(f"{MUL}.0", f"{ADD}.0"), calls(f"{MUL}.0", f"{ADD}.0")
    target[f"{MUL}.0.backward"] = backward([tensor()], [tensor((3, 2))])
    reference[f"{MUL}.0.backward"] = backward([tensor()], [tensor((6,))])

    assert differences(written(tmp_path, target, reference)) == []


@pytest.mark.parametrize(
    ("other", "own", "expected"),
    [
        ({"Norm": 13.0 * (1 + 1.4e-5)}, False, []),
        ({"Norm": 13.0 * (1 + 1.4e-5)}, True, ["differs"]),
        ({"Norm": 13.0 * (1 + 1e-4)}, False, ["differs"]),
        ({"Norm": 13.0 * (1 + 1.4e-5), "Max": 2.001}, False, ["differs"]),
        ({"Norm": 13.0 * (1 + 1.4e-5), "Mean": 0.144}, False, ["differs"]),
    ],
)
def test_a_norm_that_one_recorder_adds_up_in_float32(
    tmp_path: Path, other: dict[str, float], own: bool, expected: list[str]
) -> None:
    def relu(**fields: float) -> dict[str, object]:
        return {"Functional.relu.0.forward": forward([], [tensor((512, 512), **fields)])}

    result = written(tmp_path, relu(), relu(**other), own=own)

    assert [status for _, status in differences(result)] == expected


def test_another_argument_is_no_matter_of_recorders(tmp_path: Path) -> None:
    def pad(made: float = 1.0, **kwargs: object) -> dict[str, object]:
        given = {key: {"type": "str", "value": value} for key, value in kwargs.items()}
        made_of = forward([tensor()], [tensor(number=made)], **given)
        return {"Functional.pad.0.forward": made_of}

    default = written(tmp_path / "default", pad(), pad(mode="constant"))
    other = written(tmp_path / "other", pad(), pad(2.0, mode="reflect"))

    argument = "Functional.pad.0.forward.input.mode"
    assert differences(default) == []
    assert (argument, "missing") in differences(other)
    assert other.summary["introduced"][0]["row"] == argument
    assert other.summary["introduced"][0]["cause"] == "argument"
