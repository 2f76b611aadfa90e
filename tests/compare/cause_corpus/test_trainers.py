# SPDX-License-Identifier: Apache-2.0
"""Is the planted cause the first line, where a library runs the loop?"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

for library in ("torch", "transformers", "accelerate", "lightning"):
    pytest.importorskip(library)

from .scoring import Score, judge, verdict_on  # noqa: E402
from .trainer_causes import TRAINER_CAUSES  # noqa: E402
from .trainers import Plan, record  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
LEVELS = ("L0", "L1", "mix")


# Of the three trainers each records a cause at another level.
@pytest.mark.parametrize(("trainer", "turn"), [("trainer", 0), ("accelerate", 1), ("lightning", 2)])
def test_the_planted_cause_is_the_first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: str, turn: int
) -> None:
    count = iter(range(1000))
    levels = itertools.cycle([*LEVELS[turn:], *LEVELS[:turn]])

    @cache
    def recorded(plan: Plan, level: str) -> Path:
        return record(tmp_path / str(next(count)), trainer, plan, level)

    scores = [
        Score(
            case, level, verdict_on(recorded(case.target, level), recorded(case.reference, level))
        )
        for case, level in zip(TRAINER_CAUSES, levels, strict=False)
        if trainer in case.trainers
    ]

    judge(f"{len(scores)} causes, {trainer}", scores, capsys)
