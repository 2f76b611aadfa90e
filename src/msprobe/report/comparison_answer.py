# SPDX-License-Identifier: Apache-2.0
"""The answer of a comparison as all reports give it: one sentence, its proof, the culprits, next.

The verdict comes from ``summary.json``. Summaries without one (of older versions, of replicas) are
answered by their counts and their first culprit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from msprobe.dump.record_names import parse_record_name
from msprobe.dump.stack_frames import called_at, parse_frame
from msprobe.plain_text import count_text, place_text
from msprobe.report.comparison_words import count_different, operation_label
from msprobe.report.value_text import number_text

Tree = Mapping[str, Any]  # JSON of a summary, described in docs/reference/summary.md

TIMES: Final = "\N{MULTIPLICATION SIGN}"

_EQUAL_CLASS: Final = "equal"


class Outcome(StrEnum):
    """Whether the two sides agree, as the first word of an answer."""

    EQUAL = "equal"
    EQUAL_BUT = "equal, but"
    """All values and updates agree, and the verdict names something else that is different."""
    EQUAL_RESULTS = "equal results"
    """Calls differ, and perhaps values between them, and what the modules return agrees."""
    DIFFERENT = "different"
    UNREAD = "unread"
    NOTHING = "nothing to compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a comparison.

    Attributes:
        outcome: whether the sides agree.
        kind: class of the verdict; empty where the summary has none.
        sentence: the cause in words, or the counts; the outcome is not repeated.
        confidence: ``proved``, ``likely`` or ``possible``; empty without a verdict.
        evidence: facts that support the sentence.
        where: the place of the cause in words; empty if unknown.
        steps: what to do next, commands among them.
    """

    outcome: Outcome
    kind: str
    sentence: str
    confidence: str
    evidence: Sequence[str]
    where: str
    steps: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritGroup:
    """Calls that introduce a difference of one kind, for one reason, at one source line.

    Attributes:
        count: calls.
        first: the best one, as ``introduced`` in the summary has it.
        reason: why they are listed; empty if the status says it all.
        places: steps and ranks in which they were found.
    """

    count: int
    first: Tree
    reason: str
    places: int


def answer_of(summary: Tree) -> Answer:
    """Return the answer that a summary holds."""
    verdict: Tree = summary.get("verdict") or {}
    outcome = _outcome(summary, verdict)
    sentence: str = verdict.get("sentence") or _counted(summary, outcome)
    is_equal = verdict.get("class") == _EQUAL_CLASS  # the outcome says so before the sentence
    return Answer(
        outcome=outcome,
        kind=verdict.get("class", ""),
        sentence=sentence.replace(f"{_EQUAL_CLASS}: ", "", 1) if is_equal else sentence,
        confidence=verdict.get("confidence", ""),
        evidence=verdict.get("evidence") or (),
        where=_where(verdict.get("where") or {}, summary),
        steps=verdict.get("next") or summary["next_steps"],
    )


def _outcome(summary: Tree, verdict: Tree) -> Outcome:
    if not summary["rows"]:
        return Outcome.NOTHING
    if summary["equal"]:
        is_plain = verdict.get("class", _EQUAL_CLASS) == _EQUAL_CLASS
        return Outcome.EQUAL if is_plain else Outcome.EQUAL_BUT
    if not count_different(summary["counts"]):
        if summary["counts"]["unread"]:
            return Outcome.UNREAD
        # No value shows what the last update left; facts do.
        is_changed = summary.get("changed_steps") and verdict.get("class") != _EQUAL_CLASS
        return Outcome.DIFFERENT if is_changed else Outcome.EQUAL_BUT
    return Outcome.EQUAL_RESULTS if verdict.get("class") == _EQUAL_CLASS else Outcome.DIFFERENT


def _counted(summary: Tree, outcome: Outcome) -> str:
    if outcome is Outcome.NOTHING:
        return "the two have no value in common or apart"
    if outcome is Outcome.EQUAL:
        return f"all {count_text(summary['rows'], 'value')} agree"
    text = counts_text(summary)
    if culprits := summary["introduced"]:
        return f"{text}; introduced by {culprits[0]['name']}{_at(source_text(culprits[0]))}"
    first = summary["first_difference"]
    return f"{text}; first in {first['name']}{_at(source_text(first))}" if first else text


def _at(source: str) -> str:
    return f" ({source})" if source else ""


def counts_text(summary: Tree) -> str:
    """Return how many values differ, and how many could not be read, in words."""
    rows, unread = summary["rows"], summary["counts"].get("unread")
    different = count_different(summary["counts"])
    values = count_text(rows, "value")
    if not different and not unread:
        return f"all {values} agree"
    if not different:
        return f"{unread:,} of {values} could not be read, the others agree"
    verb = "differs" if rows == different == 1 else "differ"
    return f"{different:,} of {values} {verb}" + (
        f", {unread:,} could not be read" if unread else ""
    )


def _where(where: Tree, summary: Tree) -> str:
    """Return the place of a cause; step and rank only where there are several."""
    parts = [where.get(key) for key in ("parameter", "module", "record", "source")]
    if len(summary["comparisons"]) > 1 and where.get("step") is not None:
        parts.append(place_text(where["step"], where.get("rank", "rank")))
    return ", ".join(str(part) for part in dict.fromkeys(parts) if part)


def culprit_groups(summary: Tree) -> list[CulpritGroup]:
    """Return the culprits in groups, the best first.

    Without ``culprit_groups`` in the summary, findings of one operation or of one reason at one
    source line are a group.
    """
    culprits: Sequence[Tree] = summary["introduced"]
    given: Sequence[Tree] | None = summary.get("culprit_groups")
    if given is None:
        return [_group(found, len(found)) for found in _by_key(culprits, _cause_key).values()]
    members = _by_key(culprits, _place_key)
    return [
        _group(
            [each["first"], *members.get(_place_key(each["first"]), ())],
            each["count"],
            reason=each.get("reason"),
        )
        for each in given
    ]


def _group(found: Sequence[Tree], count: int, reason: str | None = None) -> CulpritGroup:
    names = {each["name"] for each in found}
    places = {(each["step"], str(each["rank"])) for each in found}
    # Several steps and ranks find the same call; of those beyond the list no name is known.
    is_whole = len(names) * len(places) >= count
    return CulpritGroup(
        count=len(names) if is_whole else count,
        first=found[0],
        reason=reason or found[0].get("reason") or "",
        places=len(places),
    )


def _by_key(
    culprits: Iterable[Tree], key: Callable[[Tree], tuple[str, ...]]
) -> dict[tuple[str, ...], list[Tree]]:
    found: dict[tuple[str, ...], list[Tree]] = {}
    for each in culprits:
        found.setdefault(key(each), []).append(each)
    return found


def _place_key(culprit: Tree) -> tuple[str, ...]:
    """Return the line of code, kind and cause of a culprit, and the operator that it calls."""
    name = parse_record_name(culprit["name"])
    called = name.class_name or f"{name.prefix}.{name.path}"
    source = culprit.get("source")
    # Without a line of code there is no telling what belongs together.
    place = source if source else culprit["name"]
    return (*(str(culprit.get(key)) for key in ("kind", "status", "cause")), called, place)


def _cause_key(culprit: Tree) -> tuple[str, ...]:
    return (*_place_key(culprit), str(culprit.get("reason")))


def group_label(group: CulpritGroup, *, is_short: bool = False) -> str:
    """Return the name of a group: its operation, or how many there are of which operator."""
    label = operation_label(group.first["name"])
    text = label.without_prefix if is_short else label.text
    if group.count == 1:
        return text + label.tail
    bare, _, number = label.short.rpartition(".")
    return f"{group.count:,} {TIMES} {bare if number.isdigit() else label.short}{label.tail}"


def argument_of(culprit: Tree) -> str:
    """Return the argument of its call that shows a culprit best; empty if it is another value."""
    slot: str = (culprit.get("row") or "").removeprefix(f"{culprit['name']}.")
    return slot if slot.startswith(("input", "kwargs")) else ""


def error_text(place: Tree) -> str:
    """Return the relative error of a difference or culprit; its status if there is no number."""
    error = place["error"]
    return place["status"] if error is None else number_text(error)


def source_text(place: Tree) -> str:
    """Return the line of the user's own code that made a call, that of a library beside it.

    Args:
        place: a difference or culprit of a summary.
    """
    return called_at(place.get("stack") or (), place.get("source"))


def call_stack(place: Tree) -> list[tuple[str, bool]]:
    """Return the frames of a culprit's call, innermost first, and which are the user's own code."""
    parsed = ((text, parse_frame(text)) for text in place.get("stack") or ())
    return [(text, frame is not None and not frame.is_installed) for text, frame in parsed]
