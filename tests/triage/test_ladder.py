# SPDX-License-Identifier: Apache-2.0
"""`msprobe triage`: every rung answers, explains, or says what to record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from compare.cause_corpus.causes import (  # noqa: E402
    CAUSES,
    changed,
    corrupted_sample,
    interrupted,
    not_cleared,
    option,
    other_seed,
)
from compare.cause_corpus.training import Plant, Training, planted, record  # noqa: E402
from msprobe.cli import main  # noqa: E402
from msprobe.compare.verdicts.verdict_classes import VerdictClass  # noqa: E402
from msprobe.triage.ladder import climb  # noqa: E402
from msprobe.triage.ladder_lines import EXIT_CODES, exit_code  # noqa: E402
from msprobe.triage.rungs import Answer, Rung, RungResult, Triage  # noqa: E402

pytestmark = [pytest.mark.torch]

Record = Callable[..., Path]
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Records a program; the same one only once, unless `number` differs."""

    @cache
    def make(
        plant: Plant | None = None,
        *,
        family: str = "conv",
        level: str = "mix",
        task: str = "statistics",
        steps: int = 3,
        number: int = 0,
    ) -> Path:
        training = planted(family, [] if plant is None else [plant], steps)
        folder = tmp_path_factory.mktemp(f"run{number}")
        return record(folder / "dump", training, level=level, task=task)

    return make


def without_facts(run: Path) -> Path:
    """Copy a recording as a program without facts would have written it."""
    from shutil import copytree, ignore_patterns

    copy = run.parent / "without_facts"
    if not copy.exists():
        copytree(run, copy, ignore=ignore_patterns("facts.json"))
    return copy


def answers(found: Triage) -> dict[Rung, RungResult]:
    return {result.rung: result for result in found.rungs}


def other_eps(training: Training) -> None:
    training.model.bn2.eps = 1e-2  # type: ignore[assignment]


def noisy(size: float) -> Plant:
    """Disturb gradients by random numbers that no seed controls."""

    def plant(training: Training) -> None:
        random = np.random.default_rng()

        def disturb(_step: int) -> None:
            for p in training.model.parameters():
                if p.grad is not None:
                    grad = p.grad.numpy()
                    grad[...] *= 1 + size * random.standard_normal(grad.shape)

        training.after_backward = disturb

    return plant


def hidden_code(training: Training) -> None:
    """Change the output of a module by code of which no call is recorded."""
    conv = training.model.conv2
    forward = conv.forward  # type: ignore[union-attr]

    def disturbed(x: torch.Tensor) -> torch.Tensor:
        output = forward(x)  # type: ignore[operator]
        output.detach().numpy()[:, 0, :3] += 0.5
        return output

    conv.forward = disturbed  # type: ignore[union-attr, assignment]


NOISE = noisy(1e-3)
FAR_NOISE = noisy(0.5)
WRONG_LR = option("lr", 0.06)
CORRUPTED = corrupted_sample(1)
PARAMETER = changed("conv2.weight")


def test_equal_runs_need_their_facts_only(recorded: Record) -> None:
    found = climb(recorded(), recorded(number=1))

    assert found.verdict_class is VerdictClass.EQUAL
    assert found.verdict["sentence"].endswith("of 3 steps are equal to the bit")
    assert found.step is None
    assert exit_code(found) == 0
    assert [result.rung for result in found.rungs] == list(Rung)[:6]
    assert {r.answer for r in found.rungs if r.rung is not Rung.ITSELF} == {Answer.AGREES}
    assert found.elapsed_s >= sum(result.elapsed_s for result in found.rungs) > 0


@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("corrupted sample", Rung.DATA),
        ("batches swapped", Rung.DATA),
        ("buffer", Rung.START),
        ("frozen bias", Rung.START),
        ("average not applied", Rung.START),
        ("stale gradients", Rung.REDUCE),
        ("no clipping", Rung.CLIP),
        ("momentum", Rung.OPTIMIZER),
        ("momentum lost", Rung.OPTIMIZER),
        ("not in the optimizer", Rung.OPTIMIZER),
        ("wrong rule", Rung.OPTIMIZER),
    ],
)
def test_facts_explain_without_the_calls(
    recorded: Record, tmp_path: Path, name: str, rung: Rung
) -> None:
    (case,) = [each for each in CAUSES if each.name == name]
    # Facts are enough: the records are empty.
    runs = [
        emptied(recorded(plant, family=case.family), tmp_path / side)
        for plant, side in ((case.plant, "target"), (case.reference, "reference"))
    ]

    found = climb(*runs)

    assert found.rungs[-1].rung is rung
    assert found.rungs[-1].answer is Answer.EXPLAINS
    assert found.verdict_class in case.classes
    assert re.search(case.words, found.verdict["sentence"])
    assert found.verdict["next"]
    assert found.verdict["where"]["phase"]


def emptied(run: Path, copy: Path) -> Path:
    """Copy the facts of a recording, and no record."""
    for facts in run.rglob("facts.json"):
        folder = copy / facts.parent.relative_to(run)
        folder.mkdir(parents=True)
        (folder / "facts.json").write_bytes(facts.read_bytes())
        dump = json.loads(facts.with_name("dump.json").read_bytes())
        (folder / "dump.json").write_text(json.dumps({**dump, "data": {}}))
    return copy


def test_a_later_difference_of_the_data_is_not_the_cause(recorded: Record) -> None:
    def both(training: Training) -> None:
        PARAMETER(training)
        CORRUPTED(training)

    found = climb(recorded(both), recorded())

    assert found.verdict_class is VerdictClass.PARAMETERS
    rungs = answers(found)
    assert rungs[Rung.DATA].answer is Answer.DIFFERS
    assert "it comes after another one" in rungs[Rung.DATA].words
    assert rungs[Rung.START].answer is Answer.EXPLAINS


def test_settings_without_effect_explain_nothing(
    recorded: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    target = recorded(number=2)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    found = climb(target, recorded(number=3))

    settings = answers(found)[Rung.SETTINGS]
    assert settings.answer is Answer.AGREES
    assert "without effect: env.NCCL_ALGO is Ring in the target, Tree in the ref" in settings.words
    assert found.verdict_class is VerdictClass.EQUAL


def test_random_numbers_explain_if_a_call_draws_them(recorded: Record) -> None:
    found = climb(recorded(other_seed), recorded())

    rungs = answers(found)
    assert rungs[Rung.RANDOM].answer is Answer.DIFFERS
    assert "the calls tell" in rungs[Rung.RANDOM].words
    assert rungs[Rung.FORWARD].answer is Answer.EXPLAINS
    assert found.verdict_class is VerdictClass.RANDOM


def test_an_interrupted_step_is_told_by_its_facts(recorded: Record) -> None:
    found = climb(recorded(interrupted, family="llama"), recorded(family="llama"))

    assert found.rungs[-1].rung is Rung.FORWARD
    assert found.verdict_class is VerdictClass.INCOMPLETE


def test_a_loss_of_another_size_is_looked_at_in_the_calls(recorded: Record) -> None:
    (case,) = [each for each in CAUSES if each.name == "loss halved"]

    found = climb(recorded(case.plant), recorded())

    assert found.rungs[-1].rung is Rung.CALL
    assert "only the target calls Tensor.__mul__.0.forward" in found.rungs[-1].words
    assert found.verdict_class is VerdictClass.GRADIENT


# --- is the reference equal to itself?


def test_a_reference_that_is_equal_to_itself(recorded: Record) -> None:
    found = climb(recorded(WRONG_LR), recorded(), recorded(number=1))

    itself = answers(found)[Rung.ITSELF]
    assert itself.answer is Answer.AGREES
    assert found.verdict_class is VerdictClass.OPTIMIZER_SETTING


def test_a_reference_that_is_not_equal_to_itself(recorded: Record) -> None:
    found = climb(recorded(NOISE), recorded(NOISE, number=1), recorded(NOISE, number=2))

    assert found.rungs[-1].rung is Rung.ITSELF
    assert found.verdict_class is VerdictClass.NONDETERMINISTIC
    assert "two recordings of the reference part" in found.verdict["sentence"]
    assert "seed_all" in found.verdict["next"][0]


def test_noise_is_not_proved_to_be_a_kernel(recorded: Record) -> None:
    found = climb(recorded(NOISE), recorded(NOISE, number=1))

    assert (found.verdict_class, found.verdict["confidence"]) != (VerdictClass.KERNEL, "proved")


def test_noise_of_the_reference_does_not_hide_a_larger_difference(recorded: Record) -> None:
    found = climb(recorded(FAR_NOISE), recorded(NOISE, number=1), recorded(NOISE, number=2))

    assert answers(found)[Rung.ITSELF].answer is Answer.DIFFERS
    assert found.verdict_class is not VerdictClass.NONDETERMINISTIC


def test_a_second_recording_with_another_seed_proves_nothing(recorded: Record) -> None:
    found = climb(recorded(WRONG_LR), recorded(), recorded(CORRUPTED))

    itself = answers(found)[Rung.ITSELF]
    assert itself.answer is Answer.UNKNOWN
    assert itself.words.startswith("the second recording was made otherwise: the batch of step 1")
    assert itself.record == "record the reference again with the same settings, data and seeds"


def test_without_facts_the_calls_tell_whether_the_reference_repeats_itself(
    recorded: Record,
) -> None:
    runs = [without_facts(recorded(NOISE, number=number)) for number in range(3)]

    found = climb(*runs)

    assert found.rungs[-1].rung is Rung.ITSELF
    assert found.verdict["confidence"] == "possible"


# --- the calls of the first step that parts


def test_module_and_call_of_the_first_step_that_parts(recorded: Record) -> None:
    found = climb(recorded(other_eps), recorded())

    rungs = answers(found)
    assert found.step == 0
    assert rungs[Rung.FORWARD].answer is Answer.DIFFERS
    assert "bn2" in rungs[Rung.MODULE].words
    assert rungs[Rung.CALL].answer is Answer.EXPLAINS
    assert found.verdict_class is VerdictClass.ARGUMENT
    assert "0.01 instead of 1e-05" in found.verdict["sentence"]


def test_own_errors_cannot_be_told_yet(recorded: Record) -> None:
    found = climb(recorded(hidden_code), recorded())

    assert found.verdict_class in (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED)
    assert answers(found)[Rung.CALL].answer is Answer.DIFFERS
    last = found.rungs[-1]
    assert (last.rung, last.answer) == (Rung.OWN_ERROR, Answer.UNKNOWN)
    assert "task tensor" in (last.record or "")


@pytest.mark.parametrize(
    ("level", "rung", "words"),
    [("L0", Rung.CALL, "L0 records no calls"), ("L1", Rung.MODULE, "L1 records no modules")],
)
def test_levels_that_lack_modules_or_calls(
    recorded: Record, level: str, rung: Rung, words: str
) -> None:
    found = climb(recorded(hidden_code, level=level), recorded(level=level))

    result = answers(found)[rung]
    assert result.answer is Answer.UNKNOWN
    assert words in result.words
    assert result.record == 'record step 0 of both runs with "level": "mix"'


def test_tensors(recorded: Record) -> None:
    found = climb(recorded(other_eps, task="tensor"), recorded(task="tensor"))

    assert found.verdict_class is VerdictClass.ARGUMENT


def test_proved_precision_is_harmless(recorded: Record) -> None:
    (case,) = [each for each in CAUSES if each.name == "autocast"]

    found = climb(recorded(case.plant, family="llama"), recorded(family="llama"))

    assert found.verdict_class is VerdictClass.PRECISION
    assert exit_code(found) == (0 if found.verdict["confidence"] == "proved" else 23)


# --- what cannot be judged


@pytest.mark.parametrize("sides", ["both", "reference"])
def test_recordings_without_facts(recorded: Record, sides: str) -> None:
    target, reference = recorded(other_eps), recorded()
    found = climb(without_facts(target) if sides == "both" else target, without_facts(reference))

    rungs = answers(found)
    named = "both runs" if sides == "both" else "the reference"
    for rung in (Rung.SETTINGS, Rung.DATA, Rung.START, Rung.RANDOM):
        assert rungs[rung].answer is Answer.UNKNOWN
        assert "no facts about the training" in rungs[rung].words
        assert rungs[rung].record == (
            f'record {named} with msprobe and "facts": true, which is the default'
        )
    assert rungs[Rung.ITSELF].answer is Answer.UNKNOWN
    assert "--again" in (rungs[Rung.ITSELF].record or "")
    assert rungs[Rung.CALL].answer is Answer.EXPLAINS
    assert found.verdict_class is VerdictClass.ARGUMENT


def test_without_facts_equal_calls_are_counted(recorded: Record) -> None:
    found = climb(without_facts(recorded()), without_facts(recorded(number=1)))

    assert found.verdict_class is VerdictClass.EQUAL
    assert re.search(r"[0-9]+ values of 3 steps agree", found.verdict["sentence"])


def test_without_facts_a_later_step_is_found(recorded: Record) -> None:
    found = climb(without_facts(recorded(CORRUPTED)), without_facts(recorded()))

    assert found.step == 1
    assert found.verdict_class is VerdictClass.DATA


def test_calls_that_were_not_recorded(recorded: Record, tmp_path: Path) -> None:
    runs = [
        emptied(recorded(plant), tmp_path / side)
        for plant, side in ((other_eps, "target"), (None, "reference"))
    ]

    found = climb(*runs)

    assert found.rungs[-1].rung is Rung.FORWARD
    assert found.rungs[-1].answer is Answer.UNKNOWN
    assert found.rungs[-1].record == 'record step 0 of both runs with "level": "mix"'
    assert found.verdict_class is VerdictClass.UNEXPLAINED
    assert "losses differ" in found.verdict["sentence"]


def test_nothing_recorded_is_not_equal(recorded: Record, tmp_path: Path) -> None:
    runs = [emptied(recorded(number=n), tmp_path / str(n)) for n in range(3)]
    for facts in tmp_path.rglob("facts.json"):
        facts.unlink()

    found = climb(*runs)

    rungs = answers(found)
    assert rungs[Rung.ITSELF].answer is rungs[Rung.STEP].answer is Answer.UNKNOWN
    assert rungs[Rung.STEP].record == 'record step 0 of both runs with "level": "mix"'
    assert found.verdict_class is VerdictClass.UNEXPLAINED
    assert exit_code(found) == 1


# --- the command


def test_the_command(recorded: Record, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(recorded(WRONG_LR)), str(recorded())]

    assert main(["triage", *paths]) == 0
    printed = capsys.readouterr().out
    assert printed.lstrip().startswith("verdict")
    assert "SGD lr is 0.06 in the target, 0.05 in the reference" in " ".join(printed.split())
    assert re.search(r"data +agrees +[0-9.]+ ms", printed)
    assert re.search(r"optimizer +explains", printed)
    assert "to judge it: record the reference twice" in " ".join(printed.split())

    assert main(["triage", *paths, "--json", "--exit-code"]) == 32
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema_version"] == 1
    assert tree["exit_code"] == 32
    assert tree["step"] == 0
    assert tree["verdict"]["class"] == "optimizer_setting"
    assert [rung["name"] for rung in tree["rungs"]] == [str(rung) for rung in Rung][:11]
    assert {"name", "answer", "words", "record", "elapsed_s"} == set(tree["rungs"][0])


def test_every_class_has_an_exit_code_of_its_own_in_the_documentation() -> None:
    table = (DOCS / "tasks" / "triage.md").read_text()

    assert EXIT_CODES.keys() == set(VerdictClass)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert 2 not in EXIT_CODES.values()
    for kind, code in EXIT_CODES.items():
        assert re.search(rf"\| {code} \| `{kind}`", table), kind


def test_a_setting_that_may_act_later_is_told_beside_equal_steps(
    recorded: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first step of SGD is the same with any momentum.
    sides = [str(recorded(option("momentum", 0.8), steps=1)), str(recorded(steps=1))]
    ladder = climb(Path(sides[0]), Path(sides[1]))
    assert ladder.verdict_class is VerdictClass.EQUAL
    told = next(result for result in ladder.rungs if result.rung is Rung.STEP)
    assert "without effect so far: SGD momentum is 0.8 in the target, 0.9" in told.words
    assert main(["compare", *sides, "-o", str(tmp_path)]) == 0
    assert "also differs: SGD momentum is 0.8 in the target, 0.9" in capsys.readouterr().out


def test_forward_agrees_where_the_losses_do(recorded: Record) -> None:
    found = answers(climb(recorded(not_cleared), recorded()))

    assert found[Rung.REDUCE].answer is Answer.EXPLAINS
    assert found[Rung.FORWARD].answer is Answer.AGREES
    assert found[Rung.FORWARD].words == "the losses are equal to the bit (step 1)"
