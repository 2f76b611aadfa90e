# SPDX-License-Identifier: Apache-2.0
"""`analyze_overflow`: find where NaN and Inf begin in a finished dump."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from msprobe.dump.dump_steps import Dump, DumpStep, RankKey
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.dump.run_times import RunTimes, left_over_ranks
from msprobe.errors import DumpFormatError
from msprobe.overflow.across_ranks import connect_ranks
from msprobe.overflow.findings import StepFindings
from msprobe.overflow.one_rank import RankExamination, examine_rank
from msprobe.overflow.run_up import growth_before, loss_growth, near_overflow
from msprobe.overflow.scaling import scaler_skip
from msprobe.plain_text import rank_text

_TENSORS_TO_LOOK_AT: Final = 200


def analyze_overflow(
    dump: Dump | str | os.PathLike[str], *, steps: Iterable[int] | None = None
) -> list[StepFindings]:
    """Find where NaN and Inf begin in a finished dump.

    Works on the statistics alone, so on dumps of every task but ``structure``; tensor files are
    not opened. Costs the parsing of the records that hold NaN or Inf, and of their neighbours.

    Args:
        dump: a dump, or the path of one: a dump path, a step or rank folder, or a ``dump.json``.
        steps: only these; None for all.

    Returns:
        One answer a step, in ascending order.

    Raises:
        DumpFormatError: there is no dump, or no rank of a step can be read.
        RecordNotFoundError: there is no such step.
    """
    opened = dump if isinstance(dump, Dump) else open_dump(dump)
    wanted = opened.steps if steps is None else sorted(set(steps))
    left_over = left_over_ranks(opened)
    return [_analyze_step(opened, opened.step(number), left_over) for number in wanted]


def _analyze_step(
    dump: Dump, step: DumpStep, left_over: Mapping[RankKey, RunTimes]
) -> StepFindings:
    ranks: dict[RankKey, RankExamination] = {}
    notes: list[str] = []
    unseen: list[RankKey] = []
    problem: DumpFormatError | None = None
    for key, view in step.ranks.items():
        if key in left_over:
            ended = datetime.fromtimestamp(left_over[key].ended).isoformat(" ", "seconds")
            notes.append(f"{rank_text(key)} is left out: of an earlier run, which ended {ended}")
            continue
        notes += [
            f"{rank_text(key)} is seen without {problem}" for problem in view.ignore_damaged()
        ]
        try:
            ranks[key] = examine_rank(key, view)
        except DumpFormatError as exc:
            problem = exc
            unseen.append(key)
            notes.append(f"{rank_text(key)} is left out: {exc}")
            continue
        if note := _blind_spot(view):
            unseen.append(key)
            notes.append(f"{rank_text(key)} {note}")
    if problem is not None and not ranks:
        raise problem
    found = StepFindings(
        step=step.number,
        findings=tuple(connect_ranks(ranks)),
        affected={key: len(rank.examined) for key, rank in ranks.items()},
        records=sum(len(rank.positions) for rank in ranks.values()),
        notes=tuple(notes),
        unseen=tuple(unseen),
    )
    return _with_circumstances(found, dump, ranks)


def _near_alone(found: StepFindings, ranks: Mapping[RankKey, RankExamination]) -> StepFindings:
    near = (near_overflow(rank, None) for rank in ranks.values())
    return replace(found, near=next(filter(None, near), None))


def _with_circumstances(
    found: StepFindings, dump: Dump, ranks: Mapping[RankKey, RankExamination]
) -> StepFindings:
    """Add the signs of trouble before the first finding, and what a gradient scaler did."""
    first = next(iter((*found.first, *found.findings)), None)
    if first is None:
        return _near_alone(found, ranks)
    rank = ranks[first.place.rank]
    views = {
        number: step.ranks[rank.rank]
        for number, step in dump.steps.items()
        if rank.rank in step.ranks
    }
    skip = scaler_skip(ranks, found.findings, views, found.step)
    if not found.first and skip is None:  # masks alone
        return _near_alone(found, ranks)
    return replace(
        found,
        near=near_overflow(rank, first),
        growth=growth_before(rank, first, scale=None if skip is None else skip.scale),
        loss_growth=loss_growth(views, found.step),
        skip=skip,
    )


def _blind_spot(view: RankView) -> str:
    """Return why NaN and Inf cannot be seen in this rank's dump; empty if they can."""
    if not len(view.records):
        return "holds the structure of the calls, but no values" if view.parents else ""
    seen = 0
    for name in view.records:
        try:
            tensors = [tensor for _, tensor in view.records[name].tensors()]
        except DumpFormatError:
            continue
        if any(tensor.max is not None or tensor.norm is not None for tensor in tensors):
            return ""
        seen += len(tensors)
        if seen >= _TENSORS_TO_LOOK_AT:
            break
    return "holds no statistics (checksums only?): NaN and Inf cannot be seen" if seen else ""
