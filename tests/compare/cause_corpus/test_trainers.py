# SPDX-License-Identifier: Apache-2.0
"""Is the planted cause the first line, where a library runs the loop?

By default each cause is tried in one of the three trainers in turn, at one level; in all three, in
each at another level, with MSPROBE_TEST_WHOLE_CORPUS=1.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

for library in ("torch", "transformers", "accelerate", "lightning"):
    pytest.importorskip(library)

from builders.extent import WHOLE  # noqa: E402

from .scoring import Score, judge, verdict_on  # noqa: E402
from .trainer_causes import TRAINER_CAUSES  # noqa: E402
from .trainers import Plan, record  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
LEVELS = ("L0", "L1", "mix")


@pytest.mark.parametrize(("trainer", "turn"), [("trainer", 0), ("accelerate", 1), ("lightning", 2)])
def test_the_planted_cause_is_the_first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: str, turn: int
) -> None:
    count = iter(range(1000))

    @cache
    def recorded(plan: Plan, level: str) -> Path:
        return record(tmp_path / str(next(count)), trainer, plan, level)

    scores = []
    for number, case in enumerate(TRAINER_CAUSES):
        if trainer in case.trainers and (WHOLE or number % 3 == turn):
            level = LEVELS[(number + turn) % 3]
            sides = (recorded(plan, level) for plan in (case.target, case.reference))
            scores.append(Score(case, level, verdict_on(*sides)))

    judge(f"{len(scores)} causes, {trainer}", scores, capsys)
