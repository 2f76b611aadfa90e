# SPDX-License-Identifier: Apache-2.0
"""Origins that one step and rank alone cannot tell.

A step begins with what earlier ones left behind: parameters, running averages, states of the
optimizer. A collective hands out what other ranks put in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from msprobe.compare.model import Origin, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.verdicts.history import History, gradient_key
from msprobe.compare.verdicts.origin_state import UNRECORDED_VALUE, mark
from msprobe.dump.values import Role

_COLLECTIVE: Final = "Distributed."
_REDUCED: Final = ".parameters_grad_reduced"


def settle_across(comparisons: Sequence[RankComparison]) -> None:
    """Let rows inherit from earlier steps and from other ranks where these explain them.

    Args:
        comparisons: all steps and ranks; origins of single ones must be there.
    """
    by_rank: dict[int | str, list[RankComparison]] = defaultdict(list)
    by_step: dict[int, list[RankComparison]] = defaultdict(list)
    for comparison in comparisons:
        by_rank[comparison.rank].append(comparison)
        by_step[comparison.step].append(comparison)
    for steps in by_rank.values():
        if len(steps) > 1:
            _settle_steps(sorted(steps, key=lambda comparison: comparison.step))
    for ranks in by_step.values():
        if len(ranks) > 1:
            _settle_ranks(ranks)


def _settle_steps(comparisons: Iterable[RankComparison]) -> None:
    history: History | None = None
    for comparison in comparisons:
        if history is None:
            history = History()
        else:
            for row in comparison.rows:
                if row.origin is Origin.INTRODUCED:
                    _revise(row, history)
        history.add(comparison)


def _revise(row: Row, history: History) -> None:
    """Let a value that came from outside inherit from the step before."""
    role = row.value.role
    if role is Role.PARAMETER:
        if history.explains_parameter(row.name):
            _inherit(row, "an earlier step updated it with a gradient that was not the same")
        else:
            row.reason += "; its gradient agreed in the steps before: it was updated differently"
    elif history.inexact and role is Role.INPUT and UNRECORDED_VALUE in row.reason:
        _inherit(row, "perhaps left behind by an earlier step, which differs")


def _settle_ranks(comparisons: Sequence[RankComparison]) -> None:
    blamed = [
        (comparison, row)
        for comparison in comparisons
        for row in comparison.rows
        if row.origin is Origin.INTRODUCED and _is_shared(row.pair.name)
    ]
    if not blamed:
        return
    put_in = _put_in(comparisons)
    for comparison, row in blamed:
        name = row.pair.name
        key = gradient_key(row.name) if _REDUCED in name else name
        others = [rank for rank in put_in.get(key, ()) if rank != comparison.rank]
        if others:
            _inherit(row, f"rank {others[0]} put a difference in")


def _is_shared(name: str) -> bool:
    return name.startswith(_COLLECTIVE) or _REDUCED in name


def _put_in(comparisons: Iterable[RankComparison]) -> dict[str, list[int | str]]:
    """Return collective or parameter → the ranks whose own share differs."""
    found: dict[str, list[int | str]] = defaultdict(list)
    for comparison in comparisons:
        for row in comparison.rows:
            if not row.status.is_difference:
                continue
            name, role = row.pair.name, row.value.role
            if role is Role.PARAMETER_GRAD and _REDUCED not in name:
                found[gradient_key(row.name)].append(comparison.rank)
            elif role is Role.INPUT and name.startswith(_COLLECTIVE):
                found[name].append(comparison.rank)
    return found


def _inherit(row: Row, reason: str) -> None:
    row.origin = None
    mark(row, Origin.INHERITED, reason)
