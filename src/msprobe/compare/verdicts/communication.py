# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks as a cause: which call, which group, which ranks.

A culprit belongs to one rank; the same call of the other ranks tells how far the cause reaches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeGuard

from msprobe.collectives.calls import is_communication
from msprobe.compare.model import Matched, OperationPair, Row
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.values import Role

_SHOWN_GROUPS: Final = 4


def is_of_group(row: Row) -> TypeGuard[Matched]:
    """Return whether a row holds a process group that is not the same on both sides."""
    return isinstance(row, Matched) and row.target.group_ranks != row.reference.group_ranks


def collective_of(culprit: Culprit, culprits: Iterable[Culprit]) -> Culprit:
    """Return the communication that was given another group, for a call that hands it on."""
    if not is_of_group(culprit.row):
        return culprit
    same = (
        each
        for each in culprits
        if each.comparison is culprit.comparison
        and is_of_group(each.row)
        and is_communication(parse_record_name(each.row.pair.name))
    )
    return next(same, culprit)


def lone_communication(culprit: Culprit) -> OperationPair | None:
    """Return the communication that one side alone makes of a call's result; None if none."""
    comparison, row = culprit.comparison, culprit.row
    marks = [*map(fingerprint, row.values)]
    for pair in comparison.pairs if len(marks) > 1 else ():
        is_later = pair.position > row.pair.position and not pair.is_matched
        if is_later and is_communication(comparison.parsed(pair)):
            side = comparison.side_of(pair)
            given = (v for v in side.values(pair.name) if v.role is Role.INPUT and v.is_tensor)
            mark = marks[pair.target is None]
            if mark is not None and mark in map(fingerprint, given):
                return pair
    return None


def group_words(rows: Sequence[Matched], place: str) -> str:
    """Return how the group of a call differs, in words.

    Args:
        rows: of the call, one of each rank that is concerned.
        place: the call in words.
    """
    both = zip(*((row.target.group_ranks, row.reference.group_ranks) for row in rows), strict=True)
    groups = [_groups(side) for side in both]
    return f"the group of {place}: {groups[0]} instead of {groups[1]}"


def _groups(of_ranks: Iterable[Sequence[int] | None]) -> str:
    """Return the groups in which several ranks make a call, in words."""
    groups = sorted({tuple(each or ()) for each in of_ranks})
    if len(groups) == 1:
        return members(groups[0])
    if all(len(each) == 1 for each in groups):
        return "each rank alone"
    more = ["…"] * (len(groups) > _SHOWN_GROUPS)
    return f"groups of ranks ({' | '.join([*map(_numbers, groups[:_SHOWN_GROUPS]), *more])})"


def of_all_ranks(culprit: Culprit, culprits: Iterable[Culprit]) -> dict[int | str, Culprit]:
    """Return rank → the culprit that is the same call there."""
    names = {culprit.row.pair.target, culprit.row.pair.reference} - {None}
    return {
        each.comparison.rank: each
        for each in culprits
        if each.comparison.step == culprit.comparison.step
        and names & {each.row.pair.target, each.row.pair.reference}
    }


def ranks_words(
    concerned: Collection[int | str], ranks: Collection[int | str], *, is_group: bool
) -> str:
    """Return on which ranks the same call is a culprit, in words; empty for a single rank.

    Args:
        concerned: those on which it is one.
        ranks: those that were compared.
        is_group: whether it is of a group of ranks; others are told only where not all have it, in
            a part of their own, as the words before may end in a sentence.
    """
    if len(ranks) < 2:
        return ""
    if {*concerned} != {*ranks}:
        return on_ranks(concerned, before=", " if is_group else "; ")
    return f", on all {len(ranks)} ranks" if is_group else ""


def on_ranks(ranks: Collection[int | str], *, before: str = ", ") -> str:
    """Return ranks in words, as the end of a sentence; `before` parts them from what it says."""
    several = "s" * (len(ranks) > 1)
    return before + f"on rank{several} {', '.join(map(str, sorted(ranks, key=str)))}"


def members(ranks: Sequence[int] | None) -> str:
    """Return the ranks of a group in words."""
    return f"rank{'s' * (len(ranks) > 1)} {_numbers(ranks)}" if ranks else _numbers(ranks)


def _numbers(ranks: Sequence[int] | None) -> str:
    return ", ".join(map(str, ranks)) if ranks else "all ranks"
