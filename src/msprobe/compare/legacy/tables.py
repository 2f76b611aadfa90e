# SPDX-License-Identifier: Apache-2.0
"""A comparison as a table of mindstudio-probe."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Final

from msprobe.compare.legacy.cells import (
    MISSING_SIDE,
    NO_FILE,
    NOTHING,
    CellMaker,
    checksum,
)
from msprobe.compare.legacy.columns import (
    ERR_MESSAGE,
    OWN,
    Generation,
    legacy_columns,
    neutral_title,
)
from msprobe.compare.legacy.kernel_tables import kernel_table
from msprobe.compare.legacy.levels import JudgedRow, Level, judge_operation
from msprobe.compare.legacy.reached import old_verdict
from msprobe.compare.legacy.real_data import metric_cells
from msprobe.compare.legacy.statistics import statistic_cells
from msprobe.compare.model import Missing, Mode, Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump import layout
from msprobe.dump.kernel_views import KernelView
from msprobe.dump.values import Value
from msprobe.report.tables import Cell, Colour, Table, TableRow

_COLOURS: Final = {Level.PASS: None, Level.WARNING: Colour.YELLOW, Level.ERROR: Colour.RED}

# Plain text is written faster than members of an enumeration.
_WORDS: Final[dict[Status | Origin | None, str | None]] = {
    None: None,
    **{status: status.value for status in Status},
    **{origin: origin.value for origin in Origin},
}


def legacy_table(
    comparison: RankComparison,
    generation: Generation | str = Generation.V26_2_0,
    *,
    highlight: bool = True,
    stack: bool = True,
) -> Table:
    """Return the table of a comparison whose rows have been judged.

    The target's values come first, in order of execution; values that only the reference has come
    after them. Our own columns are to the right of the documented ones. Kernel dumps have columns
    of their own, the same in both generations.

    Args:
        comparison: the comparison to show.
        generation: whose columns and verdicts.
        highlight: whether rows have colours: those of 26.2.0 by their results, those of 8.3.3 by
            its rules, which its messages name in any case.
        stack: whether call stacks have a column, where the target has any.
    """
    generation = Generation(generation)
    if is_kernel_comparison(comparison):
        return kernel_table(comparison, highlight=highlight)
    has_stack = stack and has_stacks(comparison)
    maker = _RowMaker(comparison, generation, has_stack=has_stack, highlight=highlight)
    columns = legacy_columns(comparison.mode, generation, has_stack=maker.has_stack)
    return Table(columns=(*columns, *OWN), count=len(comparison.rows), rows=maker.rows)


def neutral_table(table: Table) -> Table:
    """Return a table of `legacy_table` under neutral titles, without its messages."""
    return _without(table, {ERR_MESSAGE}, neutral_title)


def documented_table(table: Table) -> Table:
    """Return a table of `legacy_table` without our own columns, as other programs want it."""
    return _without(table, set(OWN), str)


def _without(table: Table, left_out: Container[str], title_of: Callable[[str], str]) -> Table:
    kept = [place for place, title in enumerate(table.columns) if title not in left_out]

    def rows() -> Iterator[TableRow]:
        for cells, colour in table.rows():
            yield [cells[place] for place in kept], colour

    columns = tuple(title_of(table.columns[place]) for place in kept)
    return Table(columns=columns, count=table.count, rows=rows)


def legacy_operations(
    comparison: RankComparison, generation: Generation
) -> tuple[tuple[str, ...], Iterator[tuple[list[Row], list[TableRow]]]]:
    """Return a table's columns, and its lines by operation with the rows they were made from."""
    has_stack = has_stacks(comparison)
    maker = _RowMaker(comparison, generation, has_stack=has_stack, highlight=False)
    columns = legacy_columns(comparison.mode, generation, has_stack=has_stack)
    return (*columns, *OWN), maker.operations()


def rows_in_order(comparison: RankComparison) -> Iterable[Row]:
    """Return the rows of a comparison in the order of its table."""
    rows = comparison.rows
    if is_kernel_comparison(comparison):
        return rows
    return chain(
        (row for row in rows if not isinstance(row, Missing)),
        (row for row in rows if isinstance(row, Missing)),
    )


def is_kernel_comparison(comparison: RankComparison) -> bool:
    """Return whether a comparison has the table of kernel dumps."""
    return isinstance(comparison.target.view, KernelView) and comparison.mode is not Mode.MD5


def has_stacks(comparison: RankComparison) -> bool:
    """Return whether the target has call stacks."""
    view = comparison.target.view
    name = view.records_path.name
    return name == layout.JOURNAL or (view.directory / layout.STACK_JSON).is_file()


class _RowMaker:
    """Makes the rows of a table, one operation at a time."""

    def __init__(
        self,
        comparison: RankComparison,
        generation: Generation,
        *,
        has_stack: bool,
        highlight: bool,
    ) -> None:
        self.has_stack = has_stack
        self._comparison = comparison
        self._generation = generation
        self._mode = comparison.mode
        self._is_old = generation is Generation.V8_3_3
        self._highlight = highlight
        self._cells = CellMaker(generation)
        self._stacks: dict[tuple[str, ...], str] = {}

    def rows(self) -> Iterator[TableRow]:
        """Return all rows, those that only the reference has last."""
        for _, lines in self.operations():
            yield from lines

    def operations(self) -> Iterator[tuple[list[Row], list[TableRow]]]:
        """Return the rows of each operation, with the rows they were made from."""
        in_order = rows_in_order(self._comparison)
        for _, group in groupby(in_order, key=lambda row: id(row.pair)):
            members = list(group)
            yield members, list(self._operation(members))

    def _operation(self, rows: list[Row]) -> Iterator[TableRow]:
        judged = [self._judged(row) for row in rows]
        colours: Sequence[Colour | None]
        verdicts: list[tuple[str, str]]
        if self._is_old:
            verdicts = [old_verdict(one, self._mode) for one in judged]
            colours = [None] * len(rows)
            if self._mode is not Mode.MD5:
                from msprobe.compare.legacy.highlight import highlight_operation

                found = highlight_operation(judged, self._mode)
                if self._highlight:
                    colours = [colour for colour, _ in found]
                verdicts = [
                    (verdict, "\n".join(filter(None, (message, *reasons))))
                    for (verdict, message), (_, reasons) in zip(verdicts, found, strict=True)
                ]
        else:
            levels = judge_operation(judged, self._mode)
            verdicts = [(verdict.result, verdict.err_message) for verdict in levels]
            colours = [_COLOURS[verdict.level] if self._highlight else None for verdict in levels]
        stack = self._stack(rows[0]) if self.has_stack else ""
        for one, (verdict, message), colour in zip(judged, verdicts, colours, strict=True):
            yield self._line(one, verdict, message, stack), colour
            stack = NOTHING

    def _judged(self, row: Row) -> JudgedRow:
        cells, mode = self._cells, self._mode
        target = MISSING_SIDE if row.target is None else cells.cells(row.target)
        reference = MISSING_SIDE if row.reference is None else cells.cells(row.reference)
        metrics: Sequence[Cell]
        if mode is Mode.STATISTICS:
            metrics = statistic_cells(target[3:], reference[3:], self._generation)
        elif mode is Mode.TENSOR:
            metrics = metric_cells(row, self._generation)
        else:
            metrics = (checksum(row.target), checksum(row.reference))
        return JudgedRow(row, target, reference, metrics)

    def _line(self, judged: JudgedRow, verdict: str, message: str, stack: str) -> list[Cell]:
        row, target, reference = judged.row, judged.target, judged.reference
        line: list[Cell] = [
            row.target_name or NOTHING,
            row.reference_name or NOTHING,
            target.dtype,
            reference.dtype,
            target.shape,
            reference.shape,
            target.requires_grad,
            reference.requires_grad,
            *judged.metrics,
        ]
        if self._mode is not Mode.MD5:
            line += target[3:]
            line += reference[3:]
        line.append(str(target.requires_grad == reference.requires_grad))
        line.append(verdict)
        if self._mode is not Mode.MD5 or not self._is_old:
            line.append(message)
        if self.has_stack:
            line.append(stack)
        if self._mode is Mode.TENSOR:
            line.append(str([_file(row.target), _file(row.reference)]))
        line += (_WORDS[row.status], _WORDS[row.origin], row.error, row.reason)
        return line

    def _stack(self, row: Row) -> str:
        name = row.pair.target
        # Backward records have no stack of their own.
        frames = None if name is None else self._comparison.target.view.frames(name)
        if name is None or not frames:
            return NOTHING
        key = tuple(frames)  # few places make many calls
        text = self._stacks.get(key)
        if text is None:
            text = self._stacks[key] = str(self._comparison.target.frames(name))
        return text


def _file(value: Value | None) -> str:
    if value is None:
        return NOTHING
    return value.data_name or NO_FILE
