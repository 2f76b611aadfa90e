# SPDX-License-Identifier: Apache-2.0
"""Is the planted cause the first line, at every level, by statistics and by elements?"""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

from .causes import CAUSES, Case  # noqa: E402
from .training import Plant, planted, record  # noqa: E402

pytestmark = [pytest.mark.torch]

SETTINGS = [("L0", "statistics"), ("L1", "statistics"), ("mix", "statistics"), ("mix", "tensor")]


class Corpus:
    """Makes recordings, each program only once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.recorded = cache(self._record)

    def _record(
        self, family: str, plant: Plant | None, steps: int, skip: int, level: str, task: str
    ) -> Path:
        self._count += 1
        training = planted(family, [] if plant is None else [plant], steps)
        folder = self._folder / str(self._count)
        return record(folder, training, level=level, task=task, skip=skip)

    def verdict(self, case: Case, level: str, task: str) -> dict[str, Any]:
        """Return the verdict on a cause."""
        common = case.steps, case.skip, level, task
        target = self.recorded(case.family, case.plant, *common)
        reference = self.recorded(case.family, case.reference, *common)
        summary = run_comparison(target, reference, CompareOptions()).summary
        assert summary["next_steps"] == summary["verdict"]["next"]
        found: dict[str, Any] = summary["verdict"]
        return found


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    logger = logging.getLogger("msprobe")
    before = logger.level
    logger.setLevel(logging.ERROR)  # hundreds of recordings have little to say
    yield Corpus(tmp_path_factory.mktemp("causes"))
    logger.setLevel(before)


@dataclass(frozen=True)
class Score:
    """What became of one cause."""

    case: Case
    setting: str
    verdict: dict[str, Any]

    @property
    def has_class(self) -> bool:
        return self.verdict["class"] in self.case.classes

    @property
    def is_true(self) -> bool:
        return re.search(self.case.words, self.verdict["sentence"]) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("level", "task"), SETTINGS)
def test_the_planted_cause_is_the_first_line(
    corpus: Corpus, capsys: pytest.CaptureFixture[str], level: str, task: str
) -> None:
    scores = [Score(case, f"{level} {task}", corpus.verdict(case, level, task)) for case in CAUSES]

    with capsys.disabled():
        print("\n" + table(scores))  # noqa: T201
    assert sum(score.has_class for score in scores) >= 0.95 * len(scores)
    assert sum(score.is_true for score in scores) >= 0.95 * len(scores)


@pytest.mark.parametrize(
    "name", ["beta2", "no clipping", "state lost", "batches swapped", "frozen bias", "wrong rule"]
)
def test_causes_outside_the_calls(corpus: Corpus, name: str) -> None:
    (case,) = [each for each in CAUSES if each.name == name]
    score = Score(case, "mix statistics", corpus.verdict(case, "mix", "statistics"))

    assert score.has_class, score.verdict["sentence"]
    assert score.is_true, score.verdict["sentence"]
    assert score.verdict["confidence"] == "proved"
    assert score.verdict["next"]


def table(scores: list[Score]) -> str:
    """Return the scores as text."""
    total = len(scores)
    classes, sentences = (
        sum(flags) for flags in zip(*((s.has_class, s.is_true) for s in scores), strict=True)
    )
    lines = [f"{scores[0].setting}: class right {classes}, first line true {sentences} of {total}"]
    lines += [
        f"  {score.case.name}: {score.verdict['sentence']}"
        for score in scores
        if not (score.has_class and score.is_true)
    ]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("cause", "classes", "words"),
    [
        ("nothing", ("gradient", "communication"), "not averaged over its 2 ranks|all_reduce"),
        ("total", ("gradient", "call"), "world size, 2|2 times|div"),
        ("alone", ("gradient", "communication"), "not averaged over its 2 ranks|group"),
    ],
)
def test_reductions_over_ranks(
    tmp_path: Path, cause: str, classes: tuple[str, ...], words: str, level: str
) -> None:
    target = record_ranks(tmp_path / "target", cause, level)
    reference = record_ranks(tmp_path / "reference", "mean", level)

    verdict = run_comparison(target, reference, CompareOptions()).summary["verdict"]

    assert verdict["class"] in classes, verdict["sentence"]
    assert re.search(words, verdict["sentence"]), verdict["sentence"]


def record_ranks(folder: Path, cause: str, level: str) -> Path:
    """Train in two processes, and record both."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = Path(__file__).with_name("ranks.py")
    processes = [
        subprocess.Popen([sys.executable, program, folder, str(rank), port, cause, level])
        for rank in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    return folder / "dump"
