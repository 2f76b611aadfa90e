# SPDX-License-Identifier: Apache-2.0
"""`msprobe triage` of runs that hold signatures, alone and beside recorded steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from signature_runs import NAMES, write_run  # noqa: E402
from training_runs import PLANTED, Change, Training, nothing, train  # noqa: E402

from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.cli import main  # noqa: E402
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass  # noqa: E402
from msprobe.dump.signature_file import (  # noqa: E402
    ENTRY,
    FOLDER,
    HEAD,
    SAMPLED,
    SignatureFile,
    SignatureWriter,
)
from msprobe.errors import DumpFormatError  # noqa: E402
from msprobe.triage.bisect import bisect_runs  # noqa: E402
from msprobe.triage.bisect_lines import sentence  # noqa: E402
from msprobe.triage.ladder import climb  # noqa: E402
from msprobe.triage.ladder_lines import exit_code  # noqa: E402
from msprobe.triage.rungs import Answer, Rung, RungResult, Triage  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    reset_session()


def answers(found: Triage) -> dict[Rung, RungResult]:
    return {result.rung: result for result in found.rungs}


def faulty(step: int, key: str, value: float) -> Any:
    def change(now: int, state: dict[str, Any]) -> None:
        if now == step:
            state[key] = value
            if key in ("data", "random"):
                state["gradients"] *= 1.5

    return change


def other_gradient(step: int, state: dict[str, Any]) -> None:
    if step == 17:
        state["gradients"][3] *= 2


@pytest.mark.parametrize(
    ("change", "kind", "rung", "confidence"),
    [
        (faulty(17, "data", 1), VerdictClass.DATA, Rung.DATA, Confidence.PROVED),
        (faulty(17, "random", 1), VerdictClass.RANDOM, Rung.RANDOM, Confidence.LIKELY),
        (faulty(17, "lr", 0.02), VerdictClass.SCHEDULE, Rung.OPTIMIZER, Confidence.PROVED),
        (faulty(0, "lr", 0.02), VerdictClass.OPTIMIZER_SETTING, Rung.OPTIMIZER, Confidence.PROVED),
        (other_gradient, VerdictClass.UNEXPLAINED, Rung.BACKWARD, Confidence.POSSIBLE),
        (faulty(17, "loss", 3.0), VerdictClass.UNEXPLAINED, Rung.FORWARD, Confidence.POSSIBLE),
    ],
    ids=["data", "random", "lr later", "lr", "gradient", "loss"],
)
def test_signatures_alone(
    tmp_path: Path, change: Any, kind: VerdictClass, rung: Rung, confidence: Confidence
) -> None:
    reference = write_run(tmp_path / "reference")
    target = write_run(tmp_path / "target", change=change)

    found = climb(target, reference)

    step = found.step
    assert step in (0, 17)
    assert (found.verdict_class, found.verdict["confidence"]) == (kind, confidence)
    last = found.rungs[-1]
    is_cause = kind is not VerdictClass.UNEXPLAINED
    assert (last.rung, last.answer) == (rung, Answer.EXPLAINS if is_cause else Answer.DIFFERS)
    settings = answers(found)[Rung.SETTINGS]
    assert settings.answer is Answer.UNKNOWN
    # The way on: the configuration that records just that step.
    advice = found.verdict["next"][-1]
    assert advice == settings.record
    config = json.loads(advice[advice.index("{") :])
    assert (config["step"], config["dump_path"]) == ([step], str(target))


def test_equal_signatures(tmp_path: Path) -> None:
    reference, target = write_run(tmp_path / "reference"), write_run(tmp_path / "target", steps=20)

    found = climb(target, reference)

    assert found.verdict_class is VerdictClass.EQUAL
    assert exit_code(found) == 0
    assert (
        found.verdict["sentence"] == "equal: the runs hold the same bits in their 20 common steps"
    )
    assert any("the target ends after step 19" in note for note in found.notes)


def test_a_drift_is_noise_if_the_reference_has_it_too(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(number), noise=number) for number in range(3)]

    drifting = climb(runs[0], runs[1])
    known = climb(*runs)

    assert drifting.verdict_class is VerdictClass.UNEXPLAINED
    assert drifting.rungs[-1].rung is Rung.STEP
    assert known.verdict_class is VerdictClass.NONDETERMINISTIC
    assert (known.rungs[-1].rung, known.rungs[-1].answer) == (Rung.ITSELF, Answer.EXPLAINS)


def test_noise_of_the_reference_does_not_hide_a_jump(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(number), noise=number, change=change)
        for number, change in enumerate([other_gradient, *[lambda step, state: None] * 2])
    ]

    found = climb(*runs)

    assert found.step == 17
    assert answers(found)[Rung.ITSELF].answer is Answer.DIFFERS
    assert answers(found)[Rung.BACKWARD].answer is Answer.DIFFERS


def test_one_side_without_signatures(tmp_path: Path) -> None:
    target, reference = write_run(tmp_path / "target"), tmp_path / "reference"
    reference.mkdir()
    with pytest.raises(DumpFormatError, match="target"):
        climb(target, reference)


# --- beside recorded steps


def other_rate(run: Training) -> None:
    run.optimizer.param_groups[0]["lr"] = 2e-2


def other_eps(run: Training) -> None:
    run.model[1].eps = 1e-2


def signed_and_recorded(folder: Path, recorded: list[int], before: Change = nothing) -> Path:
    """Train with signatures, and once more to record some steps in the same dump path."""
    train(folder, before=before)
    train(folder, before=before, task="statistics", level="mix", step=recorded)
    return folder


def test_the_step_that_parts_is_recorded_beside_the_signatures(tmp_path: Path) -> None:
    target = signed_and_recorded(tmp_path / "target", [PLANTED], other_eps)
    reference = signed_and_recorded(tmp_path / "reference", [PLANTED])

    found = climb(target, reference)

    assert found.step == PLANTED
    assert answers(found)[Rung.SETTINGS].answer is Answer.AGREES
    assert "the loss is 0.0" in answers(found)[Rung.STEP].words
    assert found.verdict_class is VerdictClass.ARGUMENT
    assert found.verdict["where"]["module"] == "1"


def test_a_recorded_step_after_the_parting_is_no_cause(tmp_path: Path) -> None:
    target = signed_and_recorded(tmp_path / "target", [PLANTED + 2], other_eps)
    reference = signed_and_recorded(tmp_path / "reference", [PLANTED + 2])

    found = climb(target, reference)

    assert found.step == PLANTED
    assert found.verdict_class is VerdictClass.UNEXPLAINED
    assert f'"step": [{PLANTED}]' in found.verdict["next"][-1]


def test_a_recorded_step_before_the_parting_tells_versions(tmp_path: Path) -> None:
    target = signed_and_recorded(tmp_path / "target", [1], other_rate)
    reference = signed_and_recorded(tmp_path / "reference", [1])

    found = climb(target, reference)

    assert answers(found)[Rung.SETTINGS].answer is Answer.AGREES
    assert found.verdict_class is VerdictClass.SCHEDULE
    assert found.step == PLANTED


def test_equal_signatures_of_fewer_steps_than_were_recorded(tmp_path: Path) -> None:
    for name, before in (("target", other_eps), ("reference", nothing)):
        train(tmp_path / name, steps=range(PLANTED))
        train(tmp_path / name, before=before, task="statistics", level="mix", step=[PLANTED])

    found = climb(tmp_path / "target", tmp_path / "reference")

    assert found.verdict_class is VerdictClass.ARGUMENT


def test_damaged_signatures_leave_the_recorded_steps(tmp_path: Path) -> None:
    target = signed_and_recorded(tmp_path / "target", [PLANTED], other_eps)
    reference = signed_and_recorded(tmp_path / "reference", [PLANTED])
    with (target / FOLDER / "rank.msig").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 100)

    found = climb(target, reference)

    assert found.verdict_class is VerdictClass.ARGUMENT
    assert any(note.startswith("signatures are not compared: ") for note in found.notes)


def test_damaged_signatures_alone_are_refused(tmp_path: Path) -> None:
    target, reference = write_run(tmp_path / "target"), write_run(tmp_path / "reference")
    (target / FOLDER / "rank.msig").write_bytes(b"no signatures")
    with pytest.raises(DumpFormatError, match=r"rank\.msig"):
        climb(target, reference)


# --- accelerators, whose checksums cover the norm and some elements


def sampled(path: Path, folder: Path) -> Path:
    """Copy the signatures of a run as an accelerator would have made them."""
    (folder / FOLDER).mkdir(parents=True)
    writer = SignatureWriter(folder / FOLDER / "rank.msig")
    with SignatureFile(path / FOLDER / "rank.msig") as file:
        for number in map(int, file.heads["step"]):
            step = file.step(number)
            entries: Any = step.entries.astype(ENTRY)
            entries["checksum"] |= SAMPLED
            entries["projections"] = entries["norm"][..., None]
            writer.append(step.head.astype(HEAD), step.names, entries, step.settings)
    writer.close()
    return folder


def test_words_are_exact_for_sampled_elements(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    one, two = (sampled(run, tmp_path / name) for name in ("one", "two"))

    result = bisect_runs(one, two)

    assert result.is_sampled
    assert (
        sentence(result) == "the runs agree in norms and sampled elements in their 40 common steps"
    )
    assert climb(one, two).verdict["confidence"] == Confidence.LIKELY


def test_an_accelerator_and_a_host_are_compared_by_norms(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    other = write_run(tmp_path / "other", change=other_gradient)

    equal = bisect_runs(sampled(run, tmp_path / "device"), run)
    apart = bisect_runs(sampled(other, tmp_path / "faulty"), run).first

    assert equal.first is None
    assert "only norms are compared" in equal.notes[0]
    assert apart is not None
    assert (apart.step, apart.changed, apart.changes[0].name) == (17, 1, NAMES[3])


# --- the command


def test_the_commands_lead_to_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(write_run(tmp_path / "target", change=other_gradient))]
    paths.append(str(write_run(tmp_path / "reference")))

    assert main(["bisect", *paths]) == 0
    printed = capsys.readouterr().out
    assert f"then: msprobe triage {paths[0]} {paths[1]}" in " ".join(printed.split())

    assert main(["triage", *paths, "--json", "--exit-code"]) == 1
    tree = json.loads(capsys.readouterr().out)
    assert (tree["step"], tree["rungs"][-1]["name"]) == (17, "backward")
    assert np.isfinite(tree["elapsed_s"])
