# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks as a cause: which call, which group, which ranks.

A culprit belongs to one rank; the same call of the other ranks tells how far the cause reaches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msprobe.collectives.calls import is_communication
from msprobe.compare.model import Matched, Row
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.dump.record_names import parse_record_name


def is_of_group(row: Row) -> bool:
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


def group_words(row: Row, place: str) -> str:
    """Return how the group of a call differs, in words; empty where it does not."""
    if not isinstance(row, Matched) or not is_of_group(row):
        return ""
    groups = members(row.target.group_ranks), members(row.reference.group_ranks)
    return f"the group of {place}: {groups[0]} instead of {groups[1]}"


def ranks_words(culprit: Culprit, culprits: Iterable[Culprit], ranks: Sequence[int | str]) -> str:
    """Return on which ranks the same call is a culprit, in words; empty for a single rank."""
    names = {culprit.row.pair.target, culprit.row.pair.reference} - {None}
    concerned = {
        each.comparison.rank
        for each in culprits
        if each.comparison.step == culprit.comparison.step
        and names & {each.row.pair.target, each.row.pair.reference}
    }
    if len(ranks) < 2:
        return ""
    return f", on all {len(ranks)} ranks" if concerned == set(ranks) else on_ranks(concerned)


def on_ranks(ranks: Collection[int | str]) -> str:
    """Return ranks in words, as the end of a sentence."""
    several = "s" * (len(ranks) > 1)
    return f", on rank{several} {', '.join(map(str, sorted(ranks, key=str)))}"


def members(ranks: Sequence[int] | None) -> str:
    """Return the ranks of a group in words."""
    if not ranks:
        return "all ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
