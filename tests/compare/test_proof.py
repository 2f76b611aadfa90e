# SPDX-License-Identifier: Apache-2.0
"""Is a difference rounding, and where does it jump if not; which arguments and limits matter."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from judging import compare
from test_origin import X, chain

from builders.dumps import DumpBuilder, value
from msprobe.compare.distances import Distance
from msprobe.compare.model import Status
from msprobe.compare.verdicts.find_verdict import find_verdict
from msprobe.compare.verdicts.observations import StepObservations
from msprobe.compare.verdicts.places import Clue, Place
from msprobe.compare.verdicts.proof import Jump, JumpKind, Proof
from msprobe.compare.verdicts.verdict import Findings
from msprobe.compare.verdicts.verdict_classes import VerdictClass

MODEL = "Module.Net.forward.0"
BOTH = pytest.mark.parametrize("task", ["statistics", "tensor"])


@BOTH
def test_a_difference_of_rounding_is_proved(tmp_path: Path, task: str) -> None:
    found = compare(chain(tmp_path / "t", task, noise=2e-6), chain(tmp_path / "r", task))

    proof = found.summary["comparisons"][0]["proof"]
    assert found.culprits == []
    assert proof["is_rounding"]
    assert proof["jumps"] == []
    assert proof["worst"] is None


@BOTH
def test_a_fault_is_the_worst_jump(tmp_path: Path, task: str) -> None:
    found = compare(chain(tmp_path / "t", task, noise=0.01), chain(tmp_path / "r", task))

    proof = found.summary["comparisons"][0]["proof"]
    assert not proof["is_rounding"]
    assert proof["worst"]["kind"] == "call"
    assert proof["worst"]["name"] == "Functional.linear.0.forward"
    assert proof["worst"]["source"] == "train.py:3"


def test_data_that_differ_are_no_rounding(tmp_path: Path) -> None:
    found = compare(chain(tmp_path / "t", x=X + 1), chain(tmp_path / "r"))

    proof = found.summary["comparisons"][0]["proof"]
    assert not proof["is_rounding"]
    assert proof["jumps"][0]["kind"] == "data"


@BOTH
def test_an_argument_without_effect_is_not_blamed(tmp_path: Path, task: str) -> None:
    def write(side: str, rate: float) -> Path:
        dump = DumpBuilder(tmp_path / side, task)
        dump.call("Functional.dropout.0.forward", [value(X), rate], [value(X, 1)], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(X, 1)], parameters={})
        return dump.write()

    found = compare(write("t", 0.5), write("r", 0.1))

    assert found.culprits == []
    assert "without consequence" in found.reason("Functional.dropout.0.forward.input.1")


@BOTH
@pytest.mark.parametrize("limit", [-math.inf, -3.4e38, float(np.finfo(np.float16).min)])
def test_limits_of_types_mean_the_same(tmp_path: Path, task: str, limit: float) -> None:
    def write(side: str, number: float) -> Path:
        mask = np.triu(np.full((6, 6), np.float32(number), np.float32), 1)
        scores = (X[:6, :6] + mask).astype(np.float32)
        dump = DumpBuilder(tmp_path / side, task)
        dump.call("Torch.full.0.forward", [number], [value(mask, 1)], parent=MODEL)
        inputs = [value(X[:6, :6]), value(mask, 1)]
        dump.call("Tensor.__add__.0.forward", inputs, [value(scores, 2)], parent=MODEL)
        dump.call(MODEL, [value(X[:6, :6])], [value(X)], parameters={})
        return dump.write()

    found = compare(write("t", limit), write("r", float(np.finfo(np.float32).min)))

    assert found.culprits == []
    assert found.summary["origins"]["inherited"] == 0


@BOTH
def test_a_mask_of_limits_alone_means_the_same(tmp_path: Path, task: str) -> None:
    def write(side: str, number: float) -> Path:
        mask = np.full((6, 6), np.float32(number), np.float32)
        dump = DumpBuilder(tmp_path / side, task)
        dump.call("Torch.full.0.forward", [number], [value(mask, 1)], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(X)], parameters={})
        return dump.write()

    found = compare(write("t", -math.inf), write("r", float(np.finfo(np.float32).min)))

    assert found.summary["verdict"]["class"] == "equal"


@BOTH
def test_a_result_without_a_reason_is_not_equal_because_nothing_follows(
    tmp_path: Path, task: str
) -> None:
    def write(side: str, factor: float) -> Path:
        dump = DumpBuilder(tmp_path / side, task)
        made = value(X * np.float32(factor), 1)
        dump.call("Functional.softplus.0.forward", [value(X)], [made], parent=MODEL, line=7)
        dump.call("Tensor.sign.0.forward", [made], [value(np.sign(X), 2)], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(np.sign(X), 2)], parameters={})
        return dump.write()

    found = compare(write("t", 1.1), write("r", 1.0))

    assert found.culprits == []
    assert found.summary["verdict"]["class"] == "unexplained"
    assert found.summary["verdict"]["where"]["record"] == "Functional.softplus.0.forward"
    assert found.summary["comparisons"][0]["proof"]["absorbed"]["source"] == "train.py:7"


@BOTH
@pytest.mark.parametrize("apis", [True, False])
def test_a_value_that_changes_on_its_way_is_named_though_a_norm_takes_it_back(
    tmp_path: Path, task: str, apis: bool
) -> None:
    def write(side: str, factor: float) -> Path:
        dump = DumpBuilder(tmp_path / side, task)
        made = value(X + 1, 1)
        given = made if factor == 1 else value((X + 1) * np.float32(factor), 2)
        for name, before, after in (("conv", value(X), made), ("bn", given, value(X, 3))):
            inner = f"Module.{name}.{name}.forward.0"
            if apis:
                dump.call(f"Functional.{name}.0.forward", [before], [after], parent=inner)
            dump.call(inner, [before], [after], parameters={}, parent=MODEL)
        dump.call(MODEL, [value(X)], [value(X, 3)], parameters={})
        return dump.write()

    found = compare(write("t", 1.5), write("r", 1.0))

    first = "Functional.{}.0.forward" if apis else "Module.{0}.{0}.forward.0"
    assert found.culprits == [first.format("bn")]
    assert found.summary["verdict"]["class"] == "call"
    assert (
        f"changed between {first.format('conv')} and here, in the target alone, by code"
        in (found.summary["verdict"]["sentence"])
    )


def test_culprits_of_one_line_are_a_group(tmp_path: Path) -> None:
    def write(side: str, factor: float) -> Path:
        dump = DumpBuilder(tmp_path / side)
        for number in range(4):
            given, made = value(X + number), value((X + number) * np.float32(factor))
            name = f"Tensor.mul_.{number}.forward"
            dump.call(name, [given, factor], [made], line=41)
        return dump.write()

    (group,) = compare(write("t", 0.9), write("r", 0.8)).summary["culprit_groups"]

    assert (group["count"], group["call"], group["kind"]) == (4, "Tensor.mul_", "forward")
    assert (group["argument"], group["source"]) == ("input.1", "train.py:41")
    assert "0.9 instead of 0.8" in group["reason"]


def test_an_argument_with_an_effect_within_the_tolerance_is_no_proved_rounding() -> None:
    place = Place(0, "Functional.gelu.0.forward", "", "net.py:3")
    small = Clue("approximate is 'tanh'", place, VerdictClass.ARGUMENT)
    proof = Proof(jumps=(), total=0, worst=None, differing=1, has_two_precisions=False)
    step = StepObservations(
        step=0, rank=0, is_exact=False, forward_differs=True, proof=proof, small=small
    )

    verdict = find_verdict(Findings(counts=dict.fromkeys(Status, 0), steps=[step]))

    assert "; approximate is 'tanh', step 0, with as small an effect" in verdict.sentence
    assert (str(verdict.verdict), str(verdict.confidence)) == ("rounding", "likely")


@pytest.mark.parametrize(("step", "found"), [(0, "call"), (2, "unexplained")])
def test_a_cause_as_small_as_rounding_is_named_where_nothing_else_explains(
    step: int, found: str
) -> None:
    made = Place(step, "Torch.randn_like.0.forward", "gate", "net.py:3")
    seen = Place(1, "Functional.linear.0.forward", "out", "net.py:9")
    jump = Jump(
        kind=JumpKind.UNTRACED,
        row="linear.output.0",
        place=seen,
        order=9,
        distance=Distance(0.1),
        growth=None,
    )
    proof = Proof(jumps=(jump,), total=1, worst=jump, differing=1, has_two_precisions=False)
    steps = [
        StepObservations(step=step, rank=0, is_exact=False, small=Clue("only one draws", made)),
        StepObservations(step=1, rank=0, is_exact=False, forward_differs=True, proof=proof),
    ]

    verdict = find_verdict(Findings(counts=dict.fromkeys(Status, 0), steps=steps))

    assert (str(verdict.verdict), str(verdict.confidence)) == (found, "possible")
    assert ("only one draws" in verdict.sentence) is (found == "call")
    assert ("its relative error is about 0.1" in verdict.sentence) is (found == "unexplained")


def test_a_limit_of_float64_is_infinite_in_float32(tmp_path: Path) -> None:
    """A softmax in float32 of scores in float64: rows without a word become NaN."""

    def write(side: str, dtype: type) -> Path:
        dump = DumpBuilder(tmp_path / side)
        mask = np.zeros((4, 4), dtype)
        mask[0, 0] = np.finfo(dtype).min  # the one element rules both projections
        shares = np.full((4, 4), np.float32(0.25))
        if dtype is np.float64:
            shares[0] = np.nan
        dump.call("Tensor.__add__.0.forward", [value(mask)], [value(mask, 1)], parent=MODEL)
        dump.call("Functional.softmax.0.forward", [value(mask, 1)], [value(shares, 2)], line=5)
        dump.call(MODEL, [value(mask)], [value(shares, 2)], parameters={})
        return dump.write()

    with np.errstate(over="ignore"):  # of its norm
        sides = write("t", np.float64), write("r", np.float32)
    verdict = compare(*sides).summary["verdict"]

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "its inputs are finite, but beyond the range of its type" in verdict["sentence"]
