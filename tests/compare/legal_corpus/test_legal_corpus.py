# SPDX-License-Identifier: Apache-2.0
"""Is nothing blamed where two programs compute the same, each in its own way?

Each pair is recorded with task tensor, and compared by its elements and by its statistics alone;
pairs written later are by default compared in one of the two ways in turn, in both with
MSPROBE_TEST_WHOLE_CORPUS=1. The scores are printed; docs/performance.md has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fault_corpus.dumping import Summary, as_statistics, compare, dump  # noqa: E402
from fault_corpus.models import Task  # noqa: E402

from builders.extent import WHOLE  # noqa: E402

from .later_pairs import LATER_PAIRS  # noqa: E402
from .latest_pairs import LATEST_PAIRS, PERMUTED_HEADS  # noqa: E402
from .models import LEGAL_FAMILIES  # noqa: E402
from .pairs import LEGAL_PAIRS, LegalPair  # noqa: E402
from .unseen_pairs import UNSEEN_PAIRS  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

WAYS = ("elements", "statistics")


class Recorder:
    """Records programs, each only once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.record = cache(self._record)

    def _record(
        self,
        family: str,
        change: Callable[[Task], object],
        around: Callable[[], Any],
        level: str,
        steps: int,
        task: str,
    ) -> Path:
        self._count += 1
        return dump(
            self._folder / str(self._count),
            LEGAL_FAMILIES[family],
            task=task,
            plant=change,
            level=level,
            steps=steps,
            around=around,
        )

    def compare(self, pair: LegalPair, ways: Sequence[str] = WAYS) -> Iterator[tuple[str, Summary]]:
        """Yield the words for a comparison of a pair in each of some ways, and its summary."""
        tasks = pair.tasks or ("tensor", "tensor")
        target = self.record(
            pair.family, pair.target, pair.around, pair.level, pair.steps, tasks[0]
        )
        plain = LegalPair(name="", family="").around
        reference = self.record(
            pair.family, pair.reference, plain, pair.level, pair.steps, tasks[1]
        )
        if pair.tasks is not None or "elements" in ways:
            words = f"{pair.title}, {' against '.join(dict.fromkeys(tasks))}"
            yield words, compare(target, reference)
        if pair.tasks is None and "statistics" in ways:
            self._count += 1
            folders = [self._folder / f"{self._count}-{side}" for side in ("target", "reference")]
            sides = (
                as_statistics(dump, folder)
                for dump, folder in zip((target, reference), folders, strict=True)
            )
            yield f"{pair.title}, statistics", compare(*sides)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    logger = logging.getLogger("msprobe")
    before = logger.level
    logger.setLevel(logging.ERROR)  # a hundred recordings have little to say
    yield Recorder(tmp_path_factory.mktemp("legal"))
    logger.setLevel(before)


def is_proved(summary: Summary) -> bool:
    """Return whether the verdict says, with proof, that both sides compute the same."""
    verdict = summary["verdict"]
    same = verdict["class"] in ("equal", "rounding", "precision")
    return same and verdict["confidence"] == "proved"


@pytest.mark.parametrize("pair", LEGAL_PAIRS, ids=lambda pair: pair.title)
def test_no_call_is_blamed(recorder: Recorder, pair: LegalPair) -> None:
    for words, summary in recorder.compare(pair):
        assert not [(each["row"], each["reason"]) for each in summary["introduced"]], words
        assert is_proved(summary) is pair.is_provable, (words, summary["verdict"])
        assert summary["verdict"]["class"] in ("equal", "rounding", "precision"), words


@pytest.mark.parametrize(
    "pairs", [(*LATER_PAIRS, *LATEST_PAIRS), UNSEEN_PAIRS], ids=["later", "unseen"]
)
def test_pairs_written_later(
    recorder: Recorder, capsys: pytest.CaptureFixture[str], pairs: tuple[LegalPair, ...]
) -> None:
    found = [
        each
        for number, pair in enumerate(pairs)
        for each in recorder.compare(pair, WAYS if WHOLE else (WAYS[number % 2],))
    ]
    blamed = [words for words, summary in found if summary["introduced"]]
    unproved = [words for words, summary in found if not is_proved(summary)]

    with capsys.disabled():
        print(f"\nblamed in {len(blamed)} of {len(found)}: {blamed}")  # noqa: T201
        print(f"not proved in {len(unproved)} of {len(found)}: {unproved}")  # noqa: T201
    assert len(LEGAL_PAIRS) + len(pairs) >= 60
    assert not blamed
    assert len(unproved) <= 0.05 * len(found)


def test_parameters_that_differ_are_named_though_the_results_agree(recorder: Recorder) -> None:
    for words, summary in recorder.compare(PERMUTED_HEADS):
        assert summary["verdict"]["class"] == "parameters", words
