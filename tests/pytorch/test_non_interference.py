# SPDX-License-Identifier: Apache-2.0
"""A training that is recorded is the same training, to the last bit.

By default each family of models is recorded in a part of the settings, at two levels or more, and
each setting tries many families (level L2 each with one of two tasks); with
MSPROBE_TEST_WHOLE_CORPUS=1 all of them.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from families import FAMILIES, REFERENCES, Fingerprint, TrainCase, differences, train

from builders.extent import covering
from builders.recordings import Recording, Setting, observed

pytestmark = pytest.mark.torch

STEPS = 5
SEED = 7
# Families with masks of -Inf, which are an overflow by the rule of the documented task.
MASKED = ("encoder_decoder", "evaluation_in_the_loop")

QUICK = [Setting("L0", "statistics"), Setting("L1", "md5"), Setting("mix", "tensor")]
FURTHER = [
    Setting(level, task)
    for level in ("L0", "L1", "mix")
    for task in ("statistics", "md5", "tensor", "structure", "overflow_check", "nan_check")
    if (level, task) != ("L1", "structure") and Setting(level, task) not in QUICK
]
OBSERVED = [
    *covering(3, QUICK, FAMILIES, keep=2),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in covering(4, FURTHER, FAMILIES)),
]


@functools.cache
def reference(family: str) -> Fingerprint:
    """The run without the tool."""
    return train(REFERENCES[family](SEED), STEPS)


def assert_recorded_something(run: Recording) -> None:
    """A test of a tool that recorded nothing would prove nothing."""
    assert run.failures(STEPS) == []
    for step in range(STEPS):
        assert run.account(step)["complete"]
        if run.setting.task not in ("overflow_check", "nan_check", "structure"):
            assert len(run.records(step)) >= 3


@pytest.mark.parametrize(("setting", "family"), OBSERVED, ids=str)
def test_an_observed_training_is_bit_identical(
    setting: Setting, family: str, tmp_path: Path
) -> None:
    with observed(tmp_path, setting) as run:
        found = train(FAMILIES[family](SEED), STEPS, run.around)
    assert differences(reference(family), found) == []
    assert_recorded_something(run)
    is_masked = setting.task == "overflow_check" and family in MASKED
    if setting.task in ("overflow_check", "nan_check") and not is_masked:
        # A finding would be a record: 28 healthy runs of one task, 26 of the other.
        assert [run.records(step) for step in range(STEPS)] == [{}] * STEPS


@pytest.mark.parametrize("family", FAMILIES)
def test_observing_only_some_steps_is_bit_identical(family: str, tmp_path: Path) -> None:
    setting = Setting("mix", "statistics")
    with observed(tmp_path, setting) as run:
        case = FAMILIES[family](SEED)
        for step in range(STEPS):
            if step in (1, 3):
                with run.step_of(case.model):
                    loss = case.run_step(step)
            else:
                loss = case.run_step(step)
                run.debugger.step()
            case.snapshot(loss)
    assert differences(reference(family), case.state()) == []
    assert len(run.records(1)) >= 3
    assert not (tmp_path / "step0").exists()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["statistics", pytest.param("tensor", marks=pytest.mark.slow)])
def test_saving_every_module_output_is_bit_identical(
    family: str, task: str, tmp_path: Path
) -> None:
    with observed(tmp_path, Setting("debug", task)) as run:

        def around(_case: TrainCase, step: int) -> object:
            return run.step_of(None) if step >= 0 else None

        expected = train(_with_output_hooks(REFERENCES[family](SEED), lambda *_: None), STEPS)
        case = _with_output_hooks(FAMILIES[family](SEED), run.debugger.save)
        found = train(case, STEPS, around)
    assert differences(expected, found) == []
    assert len(run.records()) >= 2


def _with_output_hooks(case: TrainCase, save: object) -> TrainCase:
    """The family with the user's own hooks that hand every module's output to `save`."""
    for model in case.modules:
        for name, module in model.named_modules():
            label = name or "model"
            module.register_forward_hook(lambda _m, _args, out, label=label: save(out, label))
    return case


@pytest.mark.parametrize(
    ("task", "family"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case[0] == "tensor"))
        for case in covering(2, ("statistics", "tensor"), FAMILIES)
    ],
)
def test_kernel_level_runs_every_family(task: str, family: str, tmp_path: Path) -> None:
    # A dispatch mode makes torch take other kernels here and there: no promise of identical bits.
    with observed(tmp_path, Setting("L2", task)) as run:
        case = FAMILIES[family](SEED)
        losses = []
        for step in range(2):
            with run.step_of(case.model):
                losses.append(case.run_step(step).item())
    again = FAMILIES[family](SEED)
    expected = [again.run_step(step).item() for step in range(2)]
    assert losses == pytest.approx(expected, rel=1e-3)
    assert len(run.records()) >= 3
    assert run.failures(2) == []
