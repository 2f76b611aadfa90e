# SPDX-License-Identifier: Apache-2.0
"""Differences of the calls between ranks that have no records: those of level L0.

Another group, another reduction or a missing call is a cause only if losses or gradients differ
afterwards; `verdicts/find_verdict.py` asks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msprobe.compare.training.aligned import aligned
from msprobe.compare.training.differences import Effect, FactDifference, Moment
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.verdicts.communication import members
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Communication

_NUMBERS: Final = ("op", "peer", "dtype", "elements")


class OtherCollective(NamedTuple):
    """The first call between ranks that differs.

    Attributes:
        words: the difference in words.
        more: how many others differ, in words.
        source: its line; empty where that is not known.
        passes: how many backward passes of the step come before it.
        moment: of the step.
    """

    words: str
    more: str
    source: str
    passes: int
    moment: Moment


def collective_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield the first call of a step that differs, and how many others do."""
    found = other_collective(pair)
    if found is not None:
        yield pair.difference(
            VerdictClass.COMMUNICATION,
            found.moment,
            f"{found.words}, step {pair.step}{found.more}",
            effect=Effect.POSSIBLE,
            next=(f"look at {found.source}",) if found.source else (),
        )


def other_collective(pair: FactsPair) -> OtherCollective | None:
    """Return the first call of a step that differs; None without one."""
    target, reference = pair.target.communication, pair.reference.communication
    found: list[tuple[Communication, str]] = []
    for _, here, there in aligned(target, reference, _key, _line):
        if [call.api for call in here] == [call.api for call in there]:
            both = zip(here, there, strict=True)
            found += [(a, words) for a, b in both if (words := _words(a, b))]
        else:
            found += _alone(here, "target")
            found += _alone(there, "reference")
    if not found:
        return None
    call, words = found[0]
    such = sum(each == words for _, each in found) - 1
    rest = len(found) - 1 - such
    more = f", and {such} more such call{'s' * (such > 1)}" if such else ""
    more += f"; {rest} other call{'s differ' if rest > 1 else ' differs'}" if rest else ""
    source = _line(call)
    line = f" ({source})" if source else ""
    moment = Moment.COMMUNICATION if call.passes else Moment.FORWARD
    if call.passes and call.op is None and call.peer is None:
        moment = Moment.BACKWARD  # all ranks get what is theirs: that reduces no gradients
    return OtherCollective(words + line, more, source, call.passes, moment)


def _key(call: Communication) -> tuple[object, ...]:
    """Return what tells one call from the next: a call that one side lacks shifts no other."""
    return call.api, *(getattr(call, name) for name in _NUMBERS)


def _line(call: Communication) -> str:
    return (call.source or "").replace("\\", "/").rpartition("/")[2]


def _words(target: Communication, reference: Communication) -> str:
    """Return how a call of both sides differs, in words; empty if it does not."""
    if target.ranks != reference.ranks:
        groups = [members(each.ranks) for each in (target, reference)]
        return f"the group of {target.api}: {groups[0]} instead of {groups[1]}"
    for name in _NUMBERS:
        values = getattr(target, name), getattr(reference, name)
        if values[0] != values[1]:
            return f"{name} of {target.api} is {values[0]} instead of {values[1]}"
    return ""


def _alone(calls: Sequence[Communication], side: str) -> list[tuple[Communication, str]]:
    return [(call, f"only the {side} calls {call.api}{_size_words(call)}") for call in calls]


def _size_words(call: Communication) -> str:
    return f" of {call.elements} elements of {call.dtype}" if call.dtype else ""
