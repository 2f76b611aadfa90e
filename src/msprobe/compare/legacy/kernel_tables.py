# SPDX-License-Identifier: Apache-2.0
"""The tables that mindstudio-probe makes of kernel dumps (its graph mode)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msprobe.compare.legacy.cells import MISSING_SIDE, NOTHING, CellMaker
from msprobe.compare.legacy.columns import (
    ERR_MESSAGE,
    IDENTITY,
    OWN,
    REACHED,
    REAL_METRICS,
    STATISTIC_METRICS,
    STATISTICS,
    Generation,
)
from msprobe.compare.legacy.levels import JudgedRow
from msprobe.compare.legacy.reached import BAD, NO, NONE, UNMATCHED, YES, old_verdict
from msprobe.compare.legacy.real_data import metric_cells
from msprobe.compare.legacy.statistics import statistic_cells
from msprobe.compare.model import Mode
from msprobe.compare.rank_comparison import RankComparison
from msprobe.report.tables import Cell, Colour, Table, TableRow

CSV_FILES: Final = ("NPU CSV File", "Bench CSV File")
_BASE: Final = (*IDENTITY, *STATISTICS, REACHED, ERR_MESSAGE)


def kernel_table(comparison: RankComparison, *, highlight: bool = True) -> Table:
    """Return the table of a comparison of two kernel dumps, judged by values or statistics.

    Kernels of one side are at the place where they ran, with an empty name on the other.

    Args:
        comparison: the comparison to show; its rows have been judged.
        highlight: whether rows that were not reached are red.
    """
    is_statistic = comparison.mode is Mode.STATISTICS
    metrics = (*STATISTIC_METRICS, *CSV_FILES) if is_statistic else REAL_METRICS
    return Table(
        columns=(*_BASE, *metrics, *OWN),
        count=len(comparison.rows),
        rows=lambda: _rows(comparison, highlight=highlight),
    )


def _rows(comparison: RankComparison, *, highlight: bool) -> Iterator[TableRow]:
    maker = CellMaker(Generation.V26_2_0)
    is_statistic = comparison.mode is Mode.STATISTICS
    files: tuple[Cell, ...] = tuple(
        str(side.view.records_path) for side in (comparison.target, comparison.reference)
    )
    for row in comparison.rows:
        target = MISSING_SIDE if row.target is None else maker.cells(row.target)
        reference = MISSING_SIDE if row.reference is None else maker.cells(row.reference)
        metrics: Sequence[Cell]
        if is_statistic:
            metrics = statistic_cells(target[3:], reference[3:], Generation.V26_2_0)
        else:
            metrics = metric_cells(row, Generation.V26_2_0)
        judged = JudgedRow(row, target, reference, metrics)
        verdict, message = _verdict(judged, comparison.mode)
        line: list[Cell] = [
            row.target_name or "",
            row.reference_name or "",
            target.dtype,
            reference.dtype,
            target.shape,
            reference.shape,
            *target[3:],
            *reference[3:],
            verdict,
            message,
            *metrics,
            *(files if is_statistic else ()),
            row.status,
            row.origin,
            row.error,
            row.reason,
        ]
        is_red = highlight and verdict in (*BAD, UNMATCHED)
        yield line, Colour.RED if is_red else None


def _verdict(judged: JudgedRow, mode: Mode) -> tuple[str, str]:
    verdict, message = old_verdict(judged, mode)
    if mode is not Mode.STATISTICS:
        return verdict, message
    if verdict == NOTHING:
        return NONE, message
    return (NO if verdict else YES), message
