# SPDX-License-Identifier: Apache-2.0
"""Finished runs: the step, phase and parameter where they part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from signature_runs import NAMES, write_run

from msprobe.cli import main
from msprobe.dump.signature_file import FOLDER, SignatureFile, SignatureWriter, random_checksum
from msprobe.errors import DumpFormatError
from msprobe.triage.bisect import Bisection, bisect_runs
from msprobe.triage.bisect_lines import recording, sentence, to_record
from msprobe.triage.parting import Phase


def found(tmp_path: Path, change: Any, noise: int | None = None, **options: Any) -> Bisection:
    reference = write_run(tmp_path / "reference", noise=None if noise is None else 1)
    target = write_run(tmp_path / "target", change=change, noise=noise, **options)
    again = None if noise is None else write_run(tmp_path / "again", noise=3)
    return bisect_runs(target, reference, again)


def test_equal_runs(tmp_path: Path) -> None:
    result = found(tmp_path, lambda step, state: None)
    assert result.first is None
    assert (result.steps, result.ranks, result.notes) == (40, 1, ())


def test_one_gradient(tmp_path: Path) -> None:
    def double(step: int, state: dict[str, Any]) -> None:
        if step == 17:
            state["gradients"][3] *= 2

    first = found(tmp_path, double).first
    assert first is not None
    assert (first.parting.step, first.parting.phase) == (17, Phase.GRADIENT)
    assert not first.parting.drifts
    assert [change.name for change in first.changes] == [NAMES[3]]
    assert (first.changed, first.parameters) == (1, 8)


@pytest.mark.parametrize(
    ("key", "value", "phase"),
    [("data", 1, Phase.DATA), ("random", 1, Phase.RANDOM), ("lr", 0.02, Phase.UPDATE)],
)
def test_cause_of_the_step(tmp_path: Path, key: str, value: float, phase: Phase) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        if step == 5:
            state[key] = value
            state["gradients"] *= 1.5 if key != "lr" else 1

    first = found(tmp_path, change).first
    assert first is not None
    expected = Phase.SETTINGS if key == "lr" else phase
    assert (first.parting.step, first.parting.phase) == (5, expected)
    settings = (("0.SGD.0.lr", 0.02, 0.01),) if key == "lr" else ()
    assert first.settings == settings


def test_what_has_no_effect_is_only_told(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        if step >= 3:
            state["random"] = 1
        if step == 20:
            state["gradients"][0] += 1

    first = found(tmp_path, change).first
    assert first is not None
    assert first.parting.step == 20
    assert first.parting.idle == ((3, Phase.RANDOM),)


def test_generators_that_differed_without_consequence_are_no_later_cause(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        state["random"] += 1000
        if step == 17:
            state["lr"] = 0.02

    found = bisect_runs(write_run(tmp_path / "a", change=change), write_run(tmp_path / "b"))

    assert found.first is not None
    assert (found.first.step, found.first.phase) == (17, Phase.SETTINGS)
    assert found.first.parting.idle == ((0, Phase.RANDOM),)


@pytest.mark.parametrize(("key", "phase"), [("data", Phase.DATA), ("random", Phase.RANDOM)])
def test_what_changes_results_by_rounding_alone_is_no_jump(
    tmp_path: Path, key: str, phase: Phase
) -> None:
    """The same samples in other micro batches; a generator that nothing draws from."""

    def change(step: int, state: dict[str, Any]) -> None:
        state[key] += 1000
        state["gradients"] = state["gradients"] * (1 + 1e-7)

    result = found(tmp_path, change)
    assert result.first is not None
    assert (result.first.parting.phase, result.first.parting.jump) == (phase, None)
    assert "drift" in sentence(result)


def test_settings_that_compute_the_same_are_no_cause(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        state["foreach"] = True
        state["gradients"] = state["gradients"] * (1 + 1e-7)

    first = found(tmp_path, change).first
    assert first is not None
    assert (first.parting.phase, first.parting.jump) == (Phase.GRADIENT, None)


def test_rounding_drifts(tmp_path: Path) -> None:
    def disturb(step: int, state: dict[str, Any]) -> None:
        state["gradients"] = state["gradients"] * (1 + 1e-7 * (step == 2))

    first = found(tmp_path, disturb).first
    assert first is not None
    assert (first.parting.step, first.parting.drifts, first.parting.jump) == (2, True, None)


@pytest.mark.parametrize("noise", [None, 2])
def test_a_jump_after_a_drift(tmp_path: Path, noise: int | None) -> None:
    def disturb(step: int, state: dict[str, Any]) -> None:
        if step == 2:
            state["gradients"] = state["gradients"] * (1 + 1e-7)
        if step == 31:
            state["gradients"][6] *= 0.5

    first = found(tmp_path, disturb, noise).first
    assert first is not None
    assert first.parting.drifts
    assert (first.parting.jump, first.parting.jump_phase) == (31, Phase.GRADIENT)
    assert first.changes[0].name == NAMES[6]


@pytest.mark.parametrize("begin", [0, 17])
@pytest.mark.parametrize("rate", [0.01001, 0.02])
def test_a_setting_that_changes_after_a_drift_is_named(
    tmp_path: Path, begin: int, rate: float
) -> None:
    """However little it changes, and though generators differ all along."""

    def change(step: int, state: dict[str, Any]) -> None:
        state["random"] += 1000
        state["gradients"] = state["gradients"] * (1 + 1e-7)
        state["lr"] = rate if step >= begin else 0.01

    result = found(tmp_path, change)
    assert result.first is not None
    assert (result.first.step, result.first.phase) == (begin, Phase.SETTINGS)
    assert f"lr is {rate} in the target, 0.01 in the reference" in sentence(result)


def test_what_parts_runs_before_their_first_common_step_is_to_be_recorded(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        state["parameters"] = state["parameters"] * (1.5 if step >= 9 else 1.0)

    reference = write_run(tmp_path / "reference", first=9)
    result = bisect_runs(write_run(tmp_path / "target", change=change, first=9), reference)
    first = result.first
    assert first is not None
    assert (first.step, first.phase) == (9, Phase.PARAMETER)
    assert "an earlier step" in sentence(result)
    assert to_record(result, first).startswith("record the signatures of the steps before step 9")
    assert (recording(result, first)["task"], recording(result, first)["step"]) == ("signature", [])


def test_a_setting_that_follows_the_drift_is_no_cause(tmp_path: Path) -> None:
    """Prodigy and schedules of the loss keep measured numbers in the settings."""

    def change(step: int, state: dict[str, Any]) -> None:
        state["gradients"] = state["gradients"] * (1 + 1e-7)
        state["lr"] = 0.01 * (1 + 1e-7 * (step > 3))

    first = found(tmp_path, change).first
    assert first is not None
    assert (first.parting.drifts, first.parting.jump) == (True, None)


def test_generators_of_which_nothing_is_drawn_are_no_cause(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        state["random"] += 1000
        state["unfelt"] = 1e-2

    first = found(tmp_path, change).first
    assert first is not None
    assert (first.step, first.phase) == (0, Phase.UPDATE)


def test_noise_of_the_updates_hides_no_jump_of_the_gradients(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        state["gradients"] = state["gradients"] * (1 + 1e-7)
        state["unfelt"] = 1e-3
        if step == 20:
            state["gradients"][3] *= 1.02

    first = found(tmp_path, change).first
    assert first is not None
    assert (first.parting.jump, first.parting.jump_phase) == (20, Phase.GRADIENT)
    assert first.changes[0].name == NAMES[3]


def test_a_step_without_optimizer_is_said(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        state["skipped"] = step == 9

    result = found(tmp_path, change)
    assert result.first is not None
    assert (result.first.step, result.first.phase) == (9, Phase.GRADIENT)
    assert sentence(result) == "the runs part in step 9: no optimizer of the target makes a step"


@pytest.mark.parametrize("scales_loss", [False, True])
def test_the_factor_of_all_gradients_is_told(tmp_path: Path, scales_loss: bool) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        if step == 9:
            state["gradients"] = state["gradients"] * 0.3
            state["loss"] *= 0.3 if scales_loss else 1

    result = found(tmp_path, change)
    assert result.first is not None
    assert result.first.factor == pytest.approx(0.3, rel=1e-6)
    what = "the loss and all gradients are 0.3 times" if scales_loss else "all gradients are 0.3"
    assert what in sentence(result)


@pytest.mark.parametrize("change_one", [lambda one: 1.02 * one, lambda one: one[::-1], np.negative])
def test_gradients_with_different_factors_have_none(tmp_path: Path, change_one: Any) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        if step == 9:
            state["gradients"] = state["gradients"] * 0.3
            state["gradients"][3] = change_one(state["gradients"][3])

    result = found(tmp_path, change)
    assert result.first is not None
    assert result.first.factor is None
    assert "the gradients differ, with equal losses" in sentence(result)


def test_a_loss_alone_is_told_with_its_numbers(tmp_path: Path) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        state["loss"] = 3.0 if step == 9 else state["loss"]

    assert "step 9: the loss is 3 instead of" in sentence(found(tmp_path, change))


def test_other_optimizers_and_groups_are_told_as_such(tmp_path: Path) -> None:
    def settings(step: int, kind: str, groups: int) -> dict[str, Any]:
        return {f"0.{kind}": [{"lr": 0.1}] * groups} if step == 9 else {"0.SGD": [{"lr": 0.1}]}

    reference = write_run(tmp_path / "reference", settings_of=lambda step: settings(step, "SGD", 1))
    for kind, groups, words in (
        ("SGD", 2, "SGD has 2 groups in the target, 1 in the reference"),
        ("Lion", 1, "the optimizer is Lion in the target, SGD in the reference"),
    ):

        def of(step: int, kind: str = kind, groups: int = groups) -> dict[str, Any]:
            return settings(step, kind, groups)

        def change(step: int, state: dict[str, Any]) -> None:
            state["unfelt"] = float(step == 9)

        target = write_run(tmp_path / kind / str(groups), change=change, settings_of=of)
        assert words in sentence(bisect_runs(target, reference))


@pytest.mark.parametrize("begin", [0, 9])
def test_updates_of_rounding_that_nothing_feels_are_no_jump(tmp_path: Path, begin: int) -> None:
    """The gradient of a bias of keys is zero, but Adam moves it as far as any other."""

    def change(step: int, state: dict[str, Any]) -> None:
        state["gradients"] = state["gradients"] * (1 + 1e-7)
        state["unfelt"] = 1e-3 * (step >= begin)

    first = found(tmp_path, change).first
    assert first is not None
    assert (first.parting.drifts, first.parting.jump) == (True, None)
    assert first.parting.idle == ((begin, Phase.UPDATE),)


@pytest.mark.parametrize("sides", [("target",), ("target", "reference")])
@pytest.mark.parametrize("size", [1e-7, 1e-2])
def test_values_without_projections_are_told_apart_by_their_norms(
    tmp_path: Path, sides: tuple[str, ...], size: float
) -> None:
    """Weights in channels_last have none; an update's norm is made of them."""

    def change(step: int, state: dict[str, Any]) -> None:
        state["lacks_projections"] = side in sides
        if side == "target":
            state["gradients"] = state["gradients"] * (1 + size)

    for side in ("target", "reference"):
        write_run(tmp_path / side, change=change)
    first = bisect_runs(tmp_path / "target", tmp_path / "reference").first
    assert first is not None
    assert (first.parting.step, first.parting.phase) == (0, Phase.GRADIENT)
    assert first.parting.error == pytest.approx(size, rel=0.1)
    assert first.parting.jump == (None if size < 1e-4 else 0)


@pytest.mark.parametrize(
    ("size", "loss", "rounding"), [(1e-3, 1.01, 1e-7), (1.0, 1.0, 1e-7), (1e-3, 1.0, 0.0)]
)
def test_updates_that_are_no_rounding_jump(
    tmp_path: Path, size: float, loss: float, rounding: float
) -> None:
    """The next loss feels them, they are large, or gradients are equal to the bit."""

    def change(step: int, state: dict[str, Any]) -> None:
        state["gradients"] = state["gradients"] * (1 + rounding)
        state["unfelt"] = size * (step >= 9)
        if step > 9:
            state["loss"] *= loss

    result = found(tmp_path, change)
    assert result.first is not None
    assert (result.first.step, result.first.phase) == (9, Phase.UPDATE)
    assert ("with equal gradients" in sentence(result)) == (rounding == 0)


def test_noise_tells_a_small_jump(tmp_path: Path) -> None:
    def disturb(step: int, state: dict[str, Any]) -> None:
        if step == 12:
            state["gradients"][1] *= 1 + 1e-5

    first = found(tmp_path, disturb, noise=2).first
    assert first is not None
    assert (first.parting.jump, first.parting.jump_phase) == (12, Phase.GRADIENT)
    assert first.changes[0].name == NAMES[1]


def test_noise_alone_is_no_jump(tmp_path: Path) -> None:
    first = found(tmp_path, lambda step, state: None, noise=2).first
    assert first is not None
    assert first.parting.jump is None


def test_nan_on_one_side_is_infinitely_far(tmp_path: Path) -> None:
    def spoil(step: int, state: dict[str, Any]) -> None:
        if step == 4:
            state["gradients"][2, 0] = np.nan

    first = found(tmp_path, spoil).first
    assert first is not None
    assert (first.parting.step, first.parting.error) == (4, np.inf)
    assert first.changes[0].name == NAMES[2]


def test_norms_tell_what_projections_miss(tmp_path: Path) -> None:
    def balanced(step: int, state: dict[str, Any]) -> None:
        # Its projections are those of the reference, its norm is not.
        if step == 6:
            away = np.random.default_rng(5).normal(size=64)
            for sign in signs():
                away -= sign * (away @ sign) / 64
            state["gradients"][4] += 100 * away

    def signs() -> Any:
        first, second = np.where(np.random.default_rng(1).random((2, 64)) < 0.5, -1.0, 1.0)
        return first, second - first * (first @ second) / 64

    first = found(tmp_path, balanced).first
    assert first is not None
    assert (first.parting.step, first.parting.drifts) == (6, False)
    assert first.changes[0].error > 0.5


def test_ranks(tmp_path: Path) -> None:
    def spoil(step: int, state: dict[str, Any]) -> None:
        if step == 8:
            state["gradients"][2] *= 4

    for name, change in (("reference", lambda *_: None), ("target", spoil)):
        write_run(tmp_path / name, rank="rank0")
        write_run(tmp_path / name, rank="rank1", change=change)
    write_run(tmp_path / "target", rank="rank2")
    result = bisect_runs(tmp_path / "target", tmp_path / "reference")
    assert [(each.rank, each.parting.step) for each in result.partings] == [("rank1", 8)]
    assert result.ranks == 2
    assert "rank2" in result.notes[0]


def test_common_steps_only(tmp_path: Path) -> None:
    write_run(tmp_path / "reference", steps=30)
    write_run(tmp_path / "target", steps=20)
    result = bisect_runs(tmp_path / "target", tmp_path / "reference")
    assert (result.first, result.steps) == (None, 20)
    assert "20 steps are in both" in result.notes[0]


def test_many_steps_are_indexed(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=1000) / FOLDER / "rank.msig"
    with SignatureFile(path) as file:
        assert file.heads["step"].tolist() == list(range(1000))
        assert file.step(777).names == NAMES


@pytest.mark.parametrize("lost", [1, 50, 700, 5000])
def test_a_torn_end_is_left_out_and_written_on(tmp_path: Path, lost: int) -> None:
    path = write_run(tmp_path, steps=300) / FOLDER / "rank.msig"
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    with SignatureFile(path) as file:
        last = int(file.heads["step"][-1])
        entries = file.step(last).entries.copy()
        head = file.heads[-1].copy()
    assert 280 <= last < 299 or (lost == 1 and last == 298)
    head["step"] = 500
    writer = SignatureWriter(path)
    writer.append(head, NAMES, entries, {})
    writer.close()
    with SignatureFile(path) as file:
        assert file.heads["step"].tolist() == [*range(last + 1), 500]


def test_a_run_that_goes_on_keeps_all_steps(tmp_path: Path) -> None:
    """Indices follow every 256 steps, wherever a process ended."""
    for first in range(0, 900, 300):
        write_run(tmp_path, steps=300, first=first)
    with SignatureFile(tmp_path / FOLDER / "rank.msig") as file:
        assert file.heads["step"].tolist() == list(range(900))
        assert file.step(299).head["step"] == 299


def test_a_repeated_step_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path, steps=10)
    write_run(tmp_path, steps=10, first=8)
    with SignatureFile(tmp_path / FOLDER / "rank.msig") as file:
        assert file.heads["step"].tolist() == list(range(18))


def test_what_is_no_signature(tmp_path: Path) -> None:
    with pytest.raises(DumpFormatError, match="no signatures"):
        bisect_runs(tmp_path, tmp_path)
    (tmp_path / "x.msig").write_bytes(b"something else" * 10)
    with pytest.raises(DumpFormatError, match="no signatures"):
        bisect_runs(tmp_path / "x.msig", tmp_path / "x.msig")


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=20) / FOLDER / "rank.msig"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(DumpFormatError, match="damaged"):
        bisect_runs(path, path)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1 + 1e-7, 3), (2.0, 1)])
def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, code: int
) -> None:
    def change(step: int, state: dict[str, Any]) -> None:
        if step == 6:
            state["gradients"][5] *= factor

    found(tmp_path, change)
    words = ["bisect", str(tmp_path / "target"), str(tmp_path / "reference"), "--exit-code"]
    assert main(words) == code
    text = capsys.readouterr().out
    assert main([*words, "--json"]) == code
    facts = json.loads(capsys.readouterr().out)
    assert text.startswith(facts["sentence"])
    assert facts["equal"] == (code == 0)
    if code:
        assert f"{NAMES[5]} (relative difference" in text
        assert facts["recording"]["step"] == [6]
        assert f'"step": {facts["recording"]["step"]}' in text


def test_gradients_that_jump_for_a_step_unfelt_are_no_jump(tmp_path: Path) -> None:
    """A ReLU whose input is zero but for rounding."""

    def change(step: int, state: dict[str, Any]) -> None:
        state["gradients"] = state["gradients"] * (1 + 1e-7)
        if step in (15, 25):
            state["gradients"][3] *= 1.001

    first = found(tmp_path, change).first
    assert first is not None
    assert (first.parting.drifts, first.parting.jump) == (True, None)


def test_generators_are_told_apart(tmp_path: Path) -> None:
    """Nothing draws from Python's generator, which is not seeded."""
    states = {"cpu": "1", "python": "2", "numpy": "3"}

    def change(step: int, state: dict[str, Any]) -> None:
        state["random"] = random_checksum({**states, "cpu": str(step)})

    def unseeded(step: int, state: dict[str, Any]) -> None:
        state["random"] = random_checksum({**states, "cpu": str(step), "python": "4"})
        state["gradients"] *= 1.5

    reference = write_run(tmp_path / "reference", change=change)
    first = bisect_runs(write_run(tmp_path / "target", change=unseeded), reference).first
    assert first is not None
    assert (first.step, first.phase) == (0, Phase.GRADIENT)
    assert first.parting.idle == ((0, Phase.RANDOM),)
