# SPDX-License-Identifier: Apache-2.0
"""How the two values of a row relate, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import Verdicts, compare

from builders.dumps import DumpBuilder, Value, value
from msprobe.capture.projections import project

ROW = "Functional.op.0.forward.output.0"
RNG = np.random.default_rng(5)
WAVE = RNG.standard_normal(1000).astype(np.float32)


def judge(folder: Path, target: Any, reference: Any, task: str = "statistics") -> Verdicts:
    """Compare two results of one call."""
    made = []
    for side, item in (("t", target), ("r", reference)):
        dump = DumpBuilder(folder / side, task).call(
            "Functional.op.0.forward", [value(WAVE)], [item]
        )
        made.append(dump.write())
    return compare(*made)


def plain(kind: str, value: Any) -> dict[str, Any]:
    """Return the entry of an argument that is no tensor."""
    return {"type": kind, "value": value}


BOTH = pytest.mark.parametrize("task", ["statistics", "tensor"])


@BOTH
@pytest.mark.parametrize(
    ("target", "reference", "status"),
    [
        (WAVE, WAVE, "equal"),
        (WAVE * np.float32(1 + 1e-6), WAVE, "close"),
        (WAVE * np.float32(1.001), WAVE, "differs"),
        (-WAVE, WAVE, "differs"),
        (WAVE + np.float32(1e-3), WAVE, "differs"),
        (WAVE * np.float32(1e-8), WAVE * np.float32(1.01e-8), "differs"),
        (WAVE * np.float32(1e-8), WAVE * np.float32(1e-8), "equal"),
        (WAVE * np.float32(1e8 * (1 + 1e-6)), WAVE * np.float32(1e8), "close"),
        (np.float32(1.5), np.float32(1.0), "differs"),
        (np.array([1.5], np.float32), np.array([1.0], np.float32), "differs"),
        (np.float32(0.0), np.float32(0.0), "equal"),
        (np.float32(1e-30), np.float32(0.0), "differs"),
        (WAVE.astype(np.float64), WAVE, "equal"),
        (WAVE.astype(np.float16), WAVE, "close"),
        ((WAVE * 1.01).astype(np.float16), WAVE, "differs"),
        (WAVE.reshape(1, 10, 100), WAVE.reshape(10, 100), "equal"),
        (WAVE.reshape(10, 100), WAVE.reshape(100, 10), "shape"),
        (np.array([2**53 + 1]), np.array([2**53]), "differs"),
        (np.array([3, 1]), np.array([3, 1]), "equal"),
        (np.array([3, 1]), np.array([3.0, 1.0], np.float32), "dtype"),
        (np.array([True, False]), np.array([True, True]), "differs"),
        (np.zeros(0, np.float32), np.zeros(0, np.float32), "equal"),
    ],
)
def test_status_of_two_tensors(
    tmp_path: Path, task: str, target: Any, reference: Any, status: str
) -> None:
    found = judge(tmp_path, Value(np.asarray(target)), Value(np.asarray(reference)), task)

    assert found.status(ROW) == status
    assert found.summary["equal"] is (status in ("equal", "close"))
    assert found.summary["counts"][status] >= 1


@BOTH
def test_the_error_is_relative_to_the_size_of_the_tensor(tmp_path: Path, task: str) -> None:
    found = judge(tmp_path, value(WAVE * np.float32(1.02)), value(WAVE), task)

    assert found.rows[ROW]["error"] == pytest.approx(0.02, rel=1e-3)


def nonfinite(number: float, **about: Any) -> Value:
    array = WAVE.copy()
    array[7] = number
    finite = np.delete(array, 7)
    ends = {"finite_max": float(finite.max()), "finite_min": float(finite.min())}
    counts = {"nan_count": 0, "pos_inf_count": 0, "neg_inf_count": 0}
    key = "nan_count" if number != number else "pos_inf_count" if number > 0 else "neg_inf_count"
    return Value(array, about={**ends, **counts, key: 1, **about})


@BOTH
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("target", "reference", "status"),
    [
        (nonfinite(np.nan), value(WAVE), "nonfinite"),
        (value(WAVE), nonfinite(np.nan), "nonfinite"),
        (nonfinite(np.inf), nonfinite(-np.inf), "nonfinite"),
        (nonfinite(np.inf), nonfinite(np.nan), "nonfinite"),
        (nonfinite(np.nan), nonfinite(np.nan), "equal"),
        (nonfinite(np.inf), nonfinite(np.inf), "equal"),
    ],
)
def test_nan_and_infinity(
    tmp_path: Path, task: str, target: Value, reference: Value, status: str
) -> None:
    assert judge(tmp_path, target, reference, task).status(ROW) == status


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_side_that_does_not_count_nan_and_infinity_is_compared_by_their_kind(
    tmp_path: Path, number: float
) -> None:
    counted = nonfinite(number)
    uncounted = Value(counted.array)

    same = judge(tmp_path / "same", counted, uncounted)
    other = judge(tmp_path / "other", counted, value(WAVE))

    assert same.status(ROW) != "nonfinite"
    assert other.status(ROW) == "nonfinite"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "equal"),
        ({"neg_inf_count": 13}, "nonfinite"),
        ({"nan_count": 1, "neg_inf_count": 11}, "nonfinite"),
        ({"finite_min": -2.5}, "differs"),
    ],
)
def test_what_is_known_beside_infinities_tells_values_apart(
    tmp_path: Path, change: dict[str, float], status: str
) -> None:
    scores = WAVE.copy()
    scores[:12] = -np.inf
    finite = {"finite_max": 3.0, "finite_min": -2.0}
    counts = {"nan_count": 0, "pos_inf_count": 0, "neg_inf_count": 12}
    masked, other = (Value(scores, about=finite | counts | about) for about in ({}, change))

    assert judge(tmp_path, other, masked).status(ROW) == status


def test_finite_values_beside_a_nan_are_judged(tmp_path: Path) -> None:
    found = judge(tmp_path, nonfinite(np.nan, finite_max=99.0), nonfinite(np.nan))

    assert found.status(ROW) == "differs"


@pytest.mark.parametrize(
    ("target", "reference", "status"),
    [
        (0.5, 0.5, "equal"),
        (0.1, 0.1 * (1 + 1e-9), "close"),
        (1e-5, 1e-6, "differs"),
        (1, 1.0, "equal"),
        (2, 3, "differs"),
        ("mean", "sum", "differs"),
        (True, False, "differs"),
        (float("nan"), float("nan"), "equal"),
        (None, None, "equal"),
        (None, 0.5, "differs"),
        (value(WAVE), None, "added"),
        (None, value(WAVE), "missing"),
        (value(np.float32(0.5)), 0.5, "equal"),
        (value(np.float32(0.5)), 0.25, "differs"),
        (
            {"type": "torch.device", "value": "cuda:0"},
            {"type": "torch.device", "value": "cpu"},
            "close",
        ),
        (
            {"type": "torch.dtype", "value": "torch.bfloat16"},
            {"type": "torch.dtype", "value": "torch.float32"},
            "close",
        ),
        (
            {"type": "torch.dtype", "value": "torch.int64"},
            {"type": "torch.dtype", "value": "torch.float32"},
            "differs",
        ),
        (
            {"type": "function", "value": "<function f at 0x7f3e>"},
            {"type": "function", "value": "<function f at 0x55aa>"},
            "equal",
        ),
        (
            {"type": "slice", "value": [0, 5, None]},
            {"type": "slice", "value": [1, 5, None]},
            "differs",
        ),
    ],
)
def test_status_of_arguments(tmp_path: Path, target: Any, reference: Any, status: str) -> None:
    row = "Functional.op.0.forward.input.1"
    dumps = [
        DumpBuilder(tmp_path / side)
        .call("Functional.op.0.forward", [value(WAVE), item], [value(WAVE)])
        .write()
        for side, item in (("t", target), ("r", reference))
    ]

    found = compare(*dumps)

    assert found.status(row) == status
    if status == "differs":
        assert "instead of" in found.reason(row)


def test_an_argument_that_was_left_out_equals_none(tmp_path: Path) -> None:
    name = "Functional.op.0.forward"
    with_none = DumpBuilder(tmp_path / "t").call(name, [value(WAVE), None], [value(WAVE)]).write()
    without = DumpBuilder(tmp_path / "r").call(name, [value(WAVE)], [value(WAVE)]).write()

    assert compare(with_none, without).summary["equal"]
    assert compare(without, with_none).summary["equal"]


def test_a_change_of_requires_grad_is_told(tmp_path: Path) -> None:
    found = judge(tmp_path, value(WAVE, requires_grad=True), value(WAVE))

    assert found.status(ROW) == "equal"
    assert found.reason(ROW) == "requires_grad is True instead of False"


def test_another_precision_is_told_and_no_difference(tmp_path: Path) -> None:
    found = judge(tmp_path, value(WAVE.astype(np.float16)), value(WAVE), "tensor")

    assert found.status(ROW) == "close"
    assert found.reason(ROW) == "float16 against float32, judged as float16"


def test_types_of_another_kind_say_whether_the_values_agree(tmp_path: Path) -> None:
    reference = value(np.array([1, 2]))
    same = judge(tmp_path / "1", value(np.array([1.0, 2.0], np.float32)), reference, "tensor")
    other = judge(tmp_path / "2", value(np.array([1.0, 3.0], np.float32)), reference, "tensor")

    assert same.reason(ROW) == "float32 instead of int64; the values are equal"
    assert other.reason(ROW) == "float32 instead of int64; the values are different"


def test_types_of_two_frameworks_are_the_same(tmp_path: Path) -> None:
    dumps = [
        DumpBuilder(tmp_path / framework, framework=framework)
        .call("Functional.op.0.forward", [], [value(WAVE, dtype=dtype)])
        .write()
        for framework, dtype in (("mindspore", "Float32"), ("pytorch", "torch.float32"))
    ]

    assert compare(*dumps).status(ROW) == "equal"


def test_values_that_could_not_be_looked_at_are_no_difference(tmp_path: Path) -> None:
    nothing = {"Max": None, "Min": None, "Mean": None, "Norm": None, "note": "meta"}

    found = judge(tmp_path, value(WAVE, **nothing), value(WAVE))

    assert found.status(ROW) == "equal"
    assert "no statistics" in found.reason(ROW)


@pytest.mark.parametrize(
    ("target", "status", "error"), [("aaaaaaaa", "equal", 0.0), ("bbbbbbbb", "differs", 0.01)]
)
def test_checksums(tmp_path: Path, target: str, status: str, error: float) -> None:
    scale = np.float32(1.0 if status == "equal" else 1.01)

    found = judge(tmp_path, value(WAVE * scale, md5=target), value(WAVE, md5="aaaaaaaa"))

    assert found.status(ROW) == status
    assert found.rows[ROW]["error"] == pytest.approx(error, rel=1e-3)


def test_checksums_see_what_statistics_do_not(tmp_path: Path) -> None:
    found = judge(tmp_path, value(WAVE[::-1].copy(), md5="b" * 8), value(WAVE, md5="a" * 8))

    assert found.status(ROW) == "differs"
    assert found.reason(ROW).startswith("the checksums differ")


@settings(max_examples=25, deadline=None)
@given(power=st.integers(-100, 100), change=st.sampled_from([0.0, 1e-7, 1e-6, 1e-3, 0.5]))
def test_status_does_not_depend_on_the_scale(
    tmp_path_factory: pytest.TempPathFactory, power: int, change: float
) -> None:
    wave = WAVE.astype(np.float64)
    float32 = {"dtype": "torch.float32"}

    def status(scale: float) -> str:
        folder = tmp_path_factory.mktemp("scaled")
        target = Value(wave * (1 + change) * scale, about=float32)
        return judge(folder, target, Value(wave * scale, about=float32)).status(ROW)

    assert status(2.0**power) == status(1.0)


NO_NUMBERS = {"Max": None, "Min": None, "Mean": None, "Norm": None}
GARBAGE = {"Max": float("nan"), "Min": float("nan"), "nan_count": 3, "Mean": float("nan")}


@BOTH
@pytest.mark.parametrize("fact", ["written", "undefined"])
@pytest.mark.parametrize("others", [None, {}, GARBAGE], ids=["both", "older", "older, with NaN"])
def test_memory_that_a_call_does_not_read_is_no_difference(
    fact: str, others: Any, task: str, tmp_path: Path
) -> None:
    about = NO_NUMBERS | {fact: True}
    target = value(WAVE, **about)
    reference = value(WAVE * 2, **(about if others is None else others))
    for first, second in ((target, reference), (reference, target)):
        verdicts = judge(tmp_path, first, second, task)
        assert verdicts.status(ROW) == "equal"
        assert ("does not read" in verdicts.reason(ROW)) is (others is not None)


def test_memory_that_a_call_does_not_read_has_a_shape_and_a_type(tmp_path: Path) -> None:
    about = NO_NUMBERS | {"written": True}
    first = value(WAVE, **about)
    assert judge(tmp_path, first, value(WAVE[:10], **about)).status(ROW) == "shape"
    assert judge(tmp_path, first, value(WAVE.astype(np.int32), **about)).status(ROW) == "dtype"


@BOTH
def test_a_gradient_of_an_input_that_is_handed_through_is_compared_with_its_like(
    task: str, tmp_path: Path
) -> None:
    through = value(WAVE, note="pass-through: all consumers of the input")
    doubled = value(WAVE * 2, note="pass-through: all consumers of the input")
    pairs = [(through, value(WAVE * 2)), (value(WAVE * 2), through), (doubled, through)]
    verdicts = []
    for number, sides in enumerate(pairs):
        dumps = []
        for side, gradient in zip("tr", sides, strict=True):
            dump = DumpBuilder(tmp_path / f"{number}{side}", task)
            dump.call("Tensor.to.0.forward", [value(WAVE)], [value(WAVE)])
            dumps.append(dump.call("Tensor.to.0.backward", [gradient], [gradient]).write())
        verdicts.append(compare(*dumps))
    inner = "Tensor.to.0.backward.input.0"
    assert [one.status(inner) for one in verdicts] == ["equal", "equal", "differs"]
    assert all("not compared" in one.reason(inner) for one in verdicts[:2])


def projected(array: Any) -> Value:
    """Return a tensor as msprobe records it: with projections."""
    array = np.asarray(array)
    return value(array, projections=list(project(array)))


PATCHES = RNG.standard_normal((64, 48)).astype(np.float32)
TOKENS = RNG.integers(0, 50_000, 4000)


@pytest.mark.parametrize(
    ("target", "reference", "status"),
    [
        (PATCHES.reshape(64, 16, 3).transpose(0, 2, 1).reshape(64, 48), PATCHES, "differs"),
        (PATCHES[::-1], PATCHES, "differs"),
        (PATCHES, PATCHES, "equal"),
        (PATCHES * np.float32(1 + 1e-6), PATCHES, "close"),
        (PATCHES.astype(np.float16), PATCHES, "close"),
        (PATCHES[::-1].astype(np.float16), PATCHES, "differs"),
        (TOKENS[::-1], TOKENS, "differs"),
        (TOKENS, TOKENS, "equal"),
        (TOKENS[::-1] > 25_000, TOKENS > 25_000, "differs"),
        (TOKENS > 25_000, TOKENS > 25_000, "equal"),
        (np.zeros(5, np.float32), np.zeros(5, np.float32), "equal"),
    ],
)
def test_projections_tell_the_order_of_elements(
    tmp_path: Path, target: Any, reference: Any, status: str
) -> None:
    found = judge(tmp_path, projected(target), projected(reference))

    assert found.status(ROW) == status


def test_the_error_of_permuted_values_is_estimated(tmp_path: Path) -> None:
    found = judge(tmp_path, projected(PATCHES[::-1]), projected(PATCHES))

    true = np.linalg.norm(PATCHES[::-1] - PATCHES) / np.linalg.norm(PATCHES)
    assert true / 3 < found.rows[ROW]["error"] < true * 3


def test_two_neighbouring_tokens_that_change_places_differ(tmp_path: Path) -> None:
    swapped = TOKENS.copy()
    swapped[[0, 1]] = swapped[[1, 0]]

    assert judge(tmp_path, projected(swapped), projected(TOKENS)).status(ROW) == "differs"


@pytest.mark.filterwarnings("ignore:invalid value")
def test_projections_judge_the_finite_elements_beside_infinities(tmp_path: Path) -> None:
    scores = PATCHES.copy()
    scores[:, ::3] = -np.inf
    finite = scores[np.isfinite(scores)]
    about = {"neg_inf_count": int((scores == -np.inf).sum()), "nan_count": 0, "pos_inf_count": 0}
    about |= {"finite_max": float(finite.max()), "finite_min": float(finite.min())}
    made = [
        Value(array, about={**about, "projections": list(project(array))})
        for array in (scores[::-1], scores)
    ]

    assert judge(tmp_path / "order", *made).status(ROW) == "differs"
    assert judge(tmp_path / "same", made[1], made[1]).status(ROW) == "equal"


def test_a_dump_without_projections_is_judged_by_the_statistics_alone(tmp_path: Path) -> None:
    assert judge(tmp_path, projected(PATCHES[::-1]), value(PATCHES)).status(ROW) == "equal"
