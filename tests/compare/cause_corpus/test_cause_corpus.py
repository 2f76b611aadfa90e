# SPDX-License-Identifier: Apache-2.0
"""Is the planted cause the first line, at every level, by statistics and by elements?

By default every cause is tried at one level in turn, the half of them at mix, and those across
ranks likewise; with MSPROBE_TEST_WHOLE_CORPUS=1 every cause at every level.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from builders.extent import WHOLE  # noqa: E402

from .causes import CAUSES, Case  # noqa: E402
from .last_causes import LAST_CAUSES  # noqa: E402
from .later_causes import LATER_CAUSES  # noqa: E402
from .later_training import LATER_FAMILIES  # noqa: E402
from .scoring import Score, judge, verdict_on  # noqa: E402
from .training import FAMILIES, Plant, record  # noqa: E402
from .unseen_causes import UNSEEN_CAUSES  # noqa: E402
from .unseen_training import UNSEEN_FAMILIES  # noqa: E402

pytestmark = [pytest.mark.torch]

LEVELS = ("L0", "L1", "mix")
PARTS = {"tuned": CAUSES, "later": LATER_CAUSES, "last": LAST_CAUSES, "unseen": UNSEEN_CAUSES}
IN_TURN = "one level"
TURNS = ("mix", "L0", "mix", "L1")
SCORED = [(part, level) for part in PARTS for level in (LEVELS if WHOLE else (IN_TURN,))]
# By elements a part of them is enough: causes outside of the calls are told by the same facts.
BY_ELEMENTS = CAUSES[:: 3 if WHOLE else 6]
PROGRAMS = FAMILIES | LATER_FAMILIES | UNSEEN_FAMILIES


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
        training = PROGRAMS[family](steps)
        if plant is not None:
            plant(training)
        folder = self._folder / str(self._count)
        return record(folder, training, level=level, task=task, skip=skip)

    def verdict(self, case: Case, level: str, task: str) -> dict[str, Any]:
        """Return the verdict on a cause."""
        common = case.steps, case.skip, level, task
        target = self.recorded(case.family, case.plant, *common)
        reference = self.recorded(case.family, case.reference, *common)
        return verdict_on(target, reference)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    logger = logging.getLogger("msprobe")
    before = logger.level
    logger.setLevel(logging.ERROR)  # hundreds of recordings have little to say
    yield Corpus(tmp_path_factory.mktemp("causes"))
    logger.setLevel(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "level", "task"),
    [(part, level, "statistics") for part, level in SCORED] + [("tuned", "mix", "tensor")],
)
def test_the_planted_cause_is_the_first_line(
    corpus: Corpus, capsys: pytest.CaptureFixture[str], part: str, level: str, task: str
) -> None:
    cases = PARTS[part] if task == "statistics" else BY_ELEMENTS
    levels = [TURNS[number % 4] if level == IN_TURN else level for number in range(len(cases))]
    scores = [
        Score(case, each, corpus.verdict(case, each, task))
        for case, each in zip(cases, levels, strict=True)
    ]

    judge(f"{len(cases)} causes, {level} {task}", scores, capsys)


@pytest.mark.parametrize(
    "name", ["beta2", "no clipping", "state lost", "batches swapped", "frozen bias", "wrong rule"]
)
def test_causes_outside_the_calls(corpus: Corpus, name: str) -> None:
    (case,) = [each for each in CAUSES if each.name == name]
    score = Score(case, "mix", corpus.verdict(case, "mix", "statistics"))

    assert score.has_class, score.verdict["sentence"]
    assert score.is_true, score.verdict["sentence"]
    assert score.verdict["confidence"] == "proved"
    assert score.verdict["next"]


@dataclass(frozen=True)
class RankCase:
    """A cause in a training of several processes.

    Attributes:
        name: name of its plan in `ranks.py`.
        world: the number of processes.
        classes: classes that are right.
        words: regular expression that the verdict's sentence matches.
        reference: plan of the reference.
    """

    name: str
    world: int
    classes: tuple[str, ...]
    words: str
    reference: str = "mean"


REDUCED = ("gradient", "communication", "call")
RANK_CAUSES = [
    RankCase("nothing", 2, REDUCED, r"not averaged over its 2 ranks|all_reduce"),
    RankCase("total", 2, REDUCED, r"world size, 2|2 times|div"),
    RankCase("alone", 2, REDUCED, r"not averaged over its 2 ranks|group"),
]
LATER_RANK_CAUSES = [
    RankCase("nothing", 3, REDUCED, r"not averaged over its 3 ranks|all_reduce"),
    RankCase("halved", 3, ("gradient", "argument"), r"1\.5|3/2|div"),
    RankCase("halved", 4, ("gradient", "argument"), r"\b2\b.*|doubled|div"),
    RankCase("pairs", 4, REDUCED, r"not averaged over its 4 ranks|group"),
    RankCase("one parameter", 2, REDUCED, r"0\.bias|all_reduce"),
    RankCase("maximum", 3, (*REDUCED, "argument"), r"MAX|\bop\b|all_reduce|not averaged|reduc"),
    RankCase("same data", 2, ("data", "random"), r"rank 1|generator"),
    RankCase("other data", 3, ("data", "random"), r"rank 2|generator"),
    RankCase("other start", 2, ("parameters",), r"rank 1"),
    RankCase("no_sync", 2, REDUCED, r"not averaged over its 2 ranks|all_reduce", "parallel"),
    RankCase("killed", 1, ("incomplete",), r"killed.*step 1|step 1.*killed"),
]


def at_levels(cases: Sequence[RankCase]) -> Iterator[tuple[RankCase, str]]:
    """Yield the cases with the levels at which they are recorded."""
    for number, case in enumerate(cases):
        for level in LEVELS if WHOLE else (LEVELS[number % 3],):
            yield case, level


@pytest.fixture(scope="module")
def rank_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record all trainings of several processes, and return their folder."""
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {
        f"{plan}:{case.world}:{level}": None
        for cases in (RANK_CAUSES, LATER_RANK_CAUSES)
        for case, level in at_levels(cases)
        for plan in (case.name, case.reference)
    }
    program = Path(__file__).with_name("ranks.py")
    subprocess.run([sys.executable, program, folder, *jobs], check=True, timeout=250)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("cases", [RANK_CAUSES, LATER_RANK_CAUSES], ids=["tuned", "later"])
def test_causes_across_ranks(
    rank_recordings: Path, capsys: pytest.CaptureFixture[str], cases: Sequence[RankCase]
) -> None:
    scores = []
    for case, level in at_levels(cases):
        folders = [
            rank_recordings / f"{plan}:{case.world}:{level}" / "dump"
            for plan in (case.name, case.reference)
        ]
        scores.append(Score(case, level, verdict_on(*folders)))

    judge(f"{len(cases)} causes across ranks", scores, capsys)
