# SPDX-License-Identifier: Apache-2.0
"""`FactDifference`: one difference between the training of two runs, and when it takes effect."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final, TypeVar

from msprobe.compare.verdicts.verdict_classes import VerdictClass

_Known = TypeVar("_Known")

_FARTHEST_SHIFT: Final = 100
_SHOWN_NAMES: Final = 3
_NAMED: Final = 2  # all of so many are named


class Phase(StrEnum):
    """Parts of a training step."""

    START = "start"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCE = "reduce"
    CLIP = "clip"
    OPTIMIZER = "optimizer"


class Moment(IntEnum):
    """Moments of a training step in the order in which causes take effect.

    Attributes:
        phase: the part of the step that a moment belongs to.
    """

    phase: Phase

    def __new__(cls, value: int, phase: Phase) -> Moment:
        """Make a member out of its place and its phase."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.phase = phase
        return member

    SETTINGS = 0, Phase.START
    DATA = 1, Phase.DATA
    PARAMETERS = 2, Phase.START
    RANDOM = 3, Phase.START
    MODES = 4, Phase.START
    FORWARD = 5, Phase.FORWARD
    LOSS = 6, Phase.BACKWARD
    FROZEN = 7, Phase.BACKWARD
    BACKWARD = 8, Phase.BACKWARD
    COMMUNICATION = 9, Phase.REDUCE
    REDUCE = 10, Phase.REDUCE
    CLIP = 11, Phase.CLIP
    LOST_STATE = 12, Phase.OPTIMIZER
    OPTIMIZER_SETTING = 13, Phase.OPTIMIZER
    SCHEDULE = 14, Phase.OPTIMIZER
    OPTIMIZER_STATE = 15, Phase.OPTIMIZER
    UPDATE = 16, Phase.OPTIMIZER
    ASKED_AGAIN = 17, Phase.OPTIMIZER


SET_FOR_LATER: Final = frozenset((Moment.OPTIMIZER_SETTING, Moment.SCHEDULE))
"""Moments of settings that may act in later steps only, as a ``beta2`` does from the second on."""


class Effect(Enum):
    """Whether a difference changes values that come after it."""

    CERTAIN = "the recordings show its effect"
    POSSIBLE = "other values tell"
    IF_READ = "the step overwrites it, and any value that differs tells that it was read before"
    NONE = "it has none"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """A difference between the facts of two runs.

    Attributes:
        verdict: class of the cause that it is, if it is one.
        moment: when in the step it takes effect.
        step: number of the step.
        rank: the rank's number, or its folder's name.
        words: the difference in words, with its numbers.
        effect: whether it changes values that come after it.
        parameter: a parameter that shows it.
        gradients: the parameters whose gradients alone differ, by no factor.
        is_far: these are further apart than rounding gets within a step.
        record: a record that shows it.
        modules: paths of the modules that it concerns; empty for all.
        setting: the optimizer's number and the name of its setting, where it is one.
        next: what to do about it.
        micro: backward pass of the step that it belongs to, counted from 0, for losses; call of the
            model, for data.
        is_partial: of several batches of its step, others agree.
        is_unknown: the batches of a side are not those of the other in any order.
        is_drawn: the program draws random numbers in the step before it calls the model.
        may_be_drawn: batches of the same sizes may be made of numbers that the program itself
            draws: no call tells where they come from, but by another number that is computed.
        is_reordered: the batches hold the same values in another order.
        is_drawn_by_host: the program draws from Python's or NumPy's generator, which differs: code
            may branch by it.
        is_unread: the gradients before it were not read, so that the calls must agree.
        multiple: of the reference's that some gradients are, while the others are none.
        is_scaled: a number whose meaning is known is between all gradients: each side reduced them.
        is_passed_on: it may come from another rank, with which this one communicates.
        takes_back: gradients lose the scale of the loss after they were clipped, which explains the
            calls that scale it.
        turn: how many optimizer steps of its training step come before the one that it is of.
        is_written: the program writes parameters behind their update, which is no other start.
        if_exact: what it is in words where all calls of its step agree to the bit, and gradients
            of parameters are the same behind backward.
    """

    verdict: VerdictClass
    moment: Moment
    step: int
    rank: int | str
    words: str
    effect: Effect = Effect.CERTAIN
    parameter: str | None = None
    gradients: tuple[str, ...] = ()
    is_far: bool = False
    record: str | None = None
    modules: tuple[str, ...] = ()
    setting: tuple[int, str] | None = None
    next: tuple[str, ...] = ()
    micro: int = 0
    is_partial: bool = False
    is_unknown: bool = False
    is_drawn: bool = False
    may_be_drawn: bool = False
    is_reordered: bool = False
    is_drawn_by_host: bool = False
    is_unread: bool = False
    multiple: float | None = None
    is_scaled: bool = False
    is_passed_on: bool = False
    takes_back: bool = False
    turn: int = 0
    is_written: bool = False
    if_exact: str = ""

    @property
    def told_verdict(self) -> VerdictClass:
        """Its class where it is told: what the program writes behind an update is no start."""
        is_update = self.is_written and self.verdict is VerdictClass.PARAMETERS
        return VerdictClass.UPDATE if is_update else self.verdict

    @property
    def when(self) -> tuple[int, int, Moment]:
        """Step, optimizer step in it, and moment: in this order causes take effect."""
        return self.step, self.turn, self.moment


def of_sides(target: _Known, reference: _Known) -> Iterator[tuple[str, str, _Known, _Known]]:
    """Yield a side's name, the other's, and what each of them has: for the target, then again."""
    yield "target", "reference", target, reference
    yield "reference", "target", reference, target


def are(names: Sized, one: str = "is", several: str = "are") -> str:
    """Return the verb that goes with so many names."""
    return one if len(names) == 1 else several


def steps_ahead(
    target: Sequence[Any],
    reference: Sequence[Any],
    same: Callable[[Any, Any], bool] = operator.eq,
) -> int:
    """Return k if the target has at each step what the reference has k steps later; else 0.

    That must explain a step in which they differ, and more than one: one is the same by chance.
    """
    orders = (1, target, reference), (-1, reference, target)
    differs = [not same(*pair) for pair in zip(target, reference, strict=False)]
    for distance in range(1, min(len(target) - 1, _FARTHEST_SHIFT)):
        if not any(differs[:-distance]):
            return 0
        for sign, early, late in orders:
            if all(map(same, early[:-distance], late[distance:])):
                return sign * distance
    return 0


def some_of(names: Sequence[str], total: int, what: str = "parameters") -> str:
    """Return how many and which of all names: ``all 38 parameters``, ``2 of 38 parameters (…)``."""
    shown = shown_names(names)
    if len(names) == total > 1:
        return f"all {total} {what}" + (f" ({shown})" if total == _NAMED else "")
    return shown if len(names) == 1 else f"{len(names)} of {total} {what} ({shown})"


def shown_names(names: Collection[str]) -> str:
    """Return the first few names."""
    shown = ", ".join(list(names)[:_SHOWN_NAMES])
    return shown + (" …" if len(names) > _SHOWN_NAMES else "")


def shown_apart(target: float, reference: float) -> tuple[str, str]:
    """Return two numbers as texts of as many digits as tell them apart."""
    for digits in (6, 9, 12):
        texts = f"{target:.{digits}g}", f"{reference:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(target), repr(reference)


def shown(value: Any) -> str:
    """Return a setting or a number as text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "(" + ", ".join(map(shown, value)) + ")"
    return str(value)
