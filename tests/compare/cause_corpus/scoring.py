# SPDX-License-Identifier: Apache-2.0
"""Scores of verdicts on planted causes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison


class Expected(Protocol):
    """A cause, and the verdicts that are right."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def words(self) -> str: ...


def verdict_on(target: Path, reference: Path) -> dict[str, Any]:
    """Compare two recordings, and return the verdict."""
    summary = run_comparison(target, reference, CompareOptions()).summary
    assert summary["next_steps"] == summary["verdict"]["next"]
    found: dict[str, Any] = summary["verdict"]
    return found


@dataclass(frozen=True)
class Score:
    """What became of one cause."""

    case: Expected
    level: str
    verdict: dict[str, Any]

    @property
    def has_class(self) -> bool:
        return self.verdict["class"] in self.case.classes

    @property
    def is_true(self) -> bool:
        return re.search(self.case.words, self.verdict["sentence"]) is not None


def judge(title: str, scores: Sequence[Score], capsys: pytest.CaptureFixture[str]) -> None:
    """Print the scores, and fail if they are too low."""
    total = len(scores)
    classes = sum(score.has_class for score in scores)
    sentences = sum(score.is_true for score in scores)
    lines = [f"{title}: class right {classes}, first line true {sentences} of {total}"]
    lines += [
        f"  {score.level} {score.case.name}: {score.verdict['class']}: {score.verdict['sentence']}"
        for score in scores
        if not (score.has_class and score.is_true)
    ]
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201
    assert classes >= 0.95 * total
    assert sentences >= 0.98 * total
