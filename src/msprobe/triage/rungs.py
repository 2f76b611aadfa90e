# SPDX-License-Identifier: Apache-2.0
"""The questions of the ladder, the kinds of answers, and the result of a climb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from msprobe.compare.verdicts.verdict import Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.plain_text import WordedEnum


class Rung(WordedEnum):
    """A question of the ladder, in the order in which they are asked."""

    SETTINGS = "settings", "settings, versions"
    DATA = "data", "data"
    START = "start", "start state, modes"
    RANDOM = "random", "random numbers"
    ITSELF = "itself", "reference by itself"
    STEP = "step", "first step that parts"
    FORWARD = "forward", "forward"
    BACKWARD = "backward", "backward"
    REDUCE = "reduce", "reduced gradients"
    CLIP = "clip", "clipping"
    OPTIMIZER = "optimizer", "optimizer"
    MODULE = "module", "module"
    CALL = "call", "call"
    OWN_ERROR = "own_error", "own error of the call"


class Answer(StrEnum):
    """Answer of a rung."""

    AGREES = "agrees"
    DIFFERS = "differs"
    """The sides differ, and that alone does not explain why they part."""
    EXPLAINS = "explains"
    UNKNOWN = "cannot_be_judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """Result of a rung.

    Attributes:
        rung: the question.
        answer: the kind of answer.
        words: the answer in words.
        record: what to record so that it can be judged; None where it could be.
        elapsed_s: how long it took.
    """

    rung: Rung
    answer: Answer
    words: str
    record: str | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    """Why two runs part.

    Attributes:
        verdict: as in ``summary.json`` of a comparison.
        step: the first step that parts; None if none does, or if it was not needed.
        rungs: the rungs that were asked, in order.
        notes: what else one must know.
        elapsed_s: how long it took.
    """

    verdict: Mapping[str, Any]
    step: int | None
    rungs: Sequence[RungResult]
    notes: Sequence[str]
    elapsed_s: float

    @property
    def verdict_class(self) -> VerdictClass:
        """Class of the cause."""
        return VerdictClass(self.verdict["class"])


class FoundStep(NamedTuple):
    """The step in which two runs part.

    Attributes:
        step: its number; None if the runs do not part.
        words: how they part there.
        is_known: whether they are known to; else nothing of the step can be compared.
        confidence: how well it is founded that they do not part.
    """

    step: int | None
    words: str
    is_known: bool = True
    confidence: Confidence = Confidence.PROVED


def make_verdict(
    kind: VerdictClass,
    words: str,
    confidence: Confidence,
    *,
    where: Where | None = None,
    next_steps: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return a verdict as it is in ``summary.json``."""
    return Verdict(
        verdict=kind, words=words, confidence=confidence, where=where, next=next_steps
    ).as_json()


def class_of(verdict: Mapping[str, Any]) -> VerdictClass:
    """Return the class of a verdict of ``summary.json``."""
    return VerdictClass(verdict["class"])


def agrees(rung: Rung, words: str) -> RungResult:
    """Return that both sides agree."""
    return RungResult(rung=rung, answer=Answer.AGREES, words=words)


def unknown(rung: Rung, words: str, record: str) -> RungResult:
    """Return that a question cannot be judged, and what to record so that it can be."""
    return RungResult(rung=rung, answer=Answer.UNKNOWN, words=words, record=record)
