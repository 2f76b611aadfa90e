# SPDX-License-Identifier: Apache-2.0
"""The modules of a comparison as a tree for the terminal: folded to where the differences are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.text import Text

from msprobe.plain_text import plain
from msprobe.report.comparison_facts import ModuleNode, Tally, module_tree, ranked
from msprobe.report.comparison_words import (
    DIFFERENCES,
    ORIGIN_STYLES,
    STATUS_STYLES,
    TELLING,
    operation_label,
)
from msprobe.report.grid import Cell, Column, cut_middle, guides, heading, row
from msprobe.report.nonfinite import BORN, PRESENT
from msprobe.report.value_text import (
    number_text,
)

if TYPE_CHECKING:
    import polars as pl

_LEGEND: Final = {
    BORN: "!! a difference begins here",
    PRESENT: "!  any other difference",
}
_ROOT: Final = "outside of modules"
_MAX_INDENT: Final = 8
# Among neighbours that only hand a difference on, so many are shown: the rest is alike.
_MAX_CARRIERS: Final = 3
_MAX_OPERATIONS: Final = 3
_WIDE_FROM: Final = 110
_MIN_NAME_WIDTH: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    lead: str
    name: str
    short: str = ""
    direction: str = ""
    style: str = ""
    tail: str = ""
    mark: str = ""
    differ: str = ""
    status: str = ""
    error: str = ""
    origin: str = ""
    source: str = ""


def comparison_tree_lines(
    frame: pl.DataFrame | pl.LazyFrame,
    *,
    best: Sequence[str],
    width: int,
    unicode: bool,
    limit: int,
) -> Iterator[Text]:
    """Yield the tree of modules with their worst values.

    Args:
        frame: the table.
        best: modules of the first difference and of the best culprits. They are shown open; where
            there is no room for all in which differences begin, they alone are.
        width: of the terminal, in columns.
        unicode: whether line-drawing characters may be used.
        limit: lines to show; 0 shows all.
    """
    operations, root = _worst_operations(frame), module_tree(frame)
    lines: list[_Line] = []
    for only_best in (False, True):
        tree = _Tree(operations, best=best, only_best=only_best, unicode=unicode)
        lines = list(tree.lines(root))
        if not limit or len(lines) <= limit:
            break
    shown = lines[:limit] if limit else lines
    columns, gap = _columns(shown, width)
    yield heading(columns, gap)
    yield from (_text(line, columns, gap) for line in shown)
    marks = {line.mark for line in shown}
    if len(lines) > len(shown):
        more = f"{len(lines) - len(shown):,} more lines of this tree; the files hold everything"
        yield Text(f"  {more}", "italic")
    yield from (Text(f"  {text}", "dim") for mark, text in _LEGEND.items() if mark in marks)


def _worst_operations(frame: pl.DataFrame | pl.LazyFrame) -> dict[str, list[dict[str, Any]]]:
    """Return module → the worst value of its worst operations, in order of execution.

    Where differences begin in a module, those that came from elsewhere are left out.
    """
    import polars as pl

    wanted = ("module", "step", "rank", "order", "operation", "slot")
    values = ("status", "origin", "error", "source")
    # Of a million rows, sorting all columns would take a gigabyte.
    differs = pl.col("status").is_in(DIFFERENCES)
    different = frame.lazy().select(*wanted, *values).filter(differs).collect()
    tells = pl.col("origin").is_null() | pl.col("origin").is_in(TELLING)
    worst = (
        ranked(different)
        .unique(["module", "operation"], keep="first", maintain_order=True)
        .filter(tells | ~tells.any().over("module"))
        .filter(pl.int_range(pl.len()).over("module") < _MAX_OPERATIONS)
        .sort("step", "rank", "order", maintain_order=True)
    )
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in worst.iter_rows(named=True):
        found[record["module"] or ""].append(record)
    return found


class _Tree:
    """The lines of a tree, before they are fitted into columns."""

    def __init__(
        self,
        operations: dict[str, list[dict[str, Any]]],
        *,
        best: Sequence[str],
        only_best: bool,
        unicode: bool,
    ) -> None:
        self._operations = operations
        self._only_best = only_best
        self._named = set(best)
        self._best = {""}
        for path in best:
            parts = path.split(".")
            self._best |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        self._guides = guides(unicode=unicode)
        self._dots = "…" if unicode else "..."

    def lines(self, root: ModuleNode) -> Iterator[_Line]:
        """Yield all lines; modules without differences of note are folded."""
        top = ModuleNode(path="", label=_ROOT, own=root.own, total=root.own)
        start: list[ModuleNode | _Line] = [top] if root.own.rows else []
        waiting = [(part, "", "", 0) for part in reversed(start + self._modules(root))]
        while waiting:
            part, lead, below, depth = waiting.pop()
            if isinstance(part, _Line):
                yield replace(part, lead=lead)
                continue
            yield _module(part, lead)
            if not self._is_open(part):
                continue
            parts = [*self._own(part), *self._modules(part)]
            branch, last, bar, blank = self._guides if depth < _MAX_INDENT else ("", "", "", "")
            end = len(parts) - 1
            waiting += [
                (
                    each,
                    below + (last if place == end else branch),
                    below + (blank if place == end else bar),
                    depth + 1,
                )
                for place, each in reversed(list(enumerate(parts)))
            ]

    def _is_open(self, node: ModuleNode) -> bool:
        """Return whether the inside is shown: differences begin there, or the first is there.

        Where differences only pass through, the inside adds nothing.
        """
        is_best = node.path in self._best
        return bool(node.total.differ and (is_best or (node.total.telling and not self._only_best)))

    def _own(self, node: ModuleNode) -> list[ModuleNode | _Line]:
        if not node.own.telling and node.path not in self._named:
            return []
        return [_operation(each) for each in self._operations.get(node.path, [])]

    def _modules(self, node: ModuleNode) -> list[ModuleNode | _Line]:
        """Return the modules inside that are worth a line, and one line about the others."""
        carriers = [each for each in node.children if each.total.differ and not self._is_open(each)]
        # The first that hands a difference on is where it goes next; then the worst.
        worst = sorted(carriers[1:], key=lambda each: (each.total.severity, -_weight(each)))
        kept = {id(each) for each in carriers[:1] + worst[: _MAX_CARRIERS - 1]}
        if len(carriers) <= _MAX_CARRIERS + 1:
            kept = {id(each) for each in carriers}
        shown = [each for each in node.children if self._is_open(each) or id(each) in kept]
        seen = {id(each) for each in shown}
        return [*shown, *self._others([each for each in node.children if id(each) not in seen])]

    def _others(self, rest: list[ModuleNode]) -> list[_Line]:
        if not rest:
            return []
        differ = sum(1 for each in rest if each.total.differ)
        words = [f"{differ:,} more differ"] if differ else []
        if unread := sum(1 for each in rest if each.total.status == "unread"):
            words.append(f"{unread:,} could not be read")
        if agree := len(rest) - differ - unread:
            words.append(f"{plain(rest[0].label)} agrees" if len(rest) == 1 else f"{agree:,} agree")
        total = Tally()
        for each in rest:
            total.add(each.total)
        return [
            _Line(
                lead="",
                name=f"{self._dots} {', '.join(words)}",
                style="dim",
                mark=PRESENT if differ else "",
                differ=_share(total),
            )
        ]


def _operation(record: dict[str, Any]) -> _Line:
    origin = record["origin"] or ""
    is_born = origin == "introduced"
    label = operation_label(record["operation"])
    # Its module is above it in the tree.
    text = label.short if label.is_module else label.text
    return _Line(
        lead="",
        name=text,
        short=label.short,
        style=ORIGIN_STYLES["introduced"] if is_born else "",
        direction=label.tail,
        tail=f" {plain(record['slot'])}",
        mark=BORN if is_born else PRESENT,
        status=record["status"],
        error=_error(record["error"]),
        origin=origin,
        source=plain(record["source"] or ""),
    )


def _module(node: ModuleNode, lead: str) -> _Line:
    total = node.total
    return _Line(
        lead=lead,
        name=plain(node.label),
        style="bold",
        mark=BORN if total.introduced else PRESENT if total.differ else "",
        differ=_share(total),
        status=total.status if total.differ else "",
        error=_error(total.error) if total.differ and total.error else "",
    )


def _weight(node: ModuleNode) -> float:
    return node.total.error or 0.0


def _share(total: Tally) -> str:
    return f"{total.differ:,} of {total.rows:,}"


def _error(error: float | None) -> str:
    return "" if error is None else number_text(error)


def _columns(lines: list[_Line], width: int) -> tuple[list[Column], int]:
    gap = 2 if width >= _WIDE_FROM else 1
    differ = _widest((line.differ for line in lines), "differ")
    status = _widest((line.status for line in lines), "worst")
    error = _widest((line.error for line in lines), "error")
    origin = _widest((line.origin for line in lines), "origin")
    sources = _widest((line.source for line in lines), "source") if width >= _WIDE_FROM else 0
    fixed = 2 + differ + status + error + origin + 5 * gap
    sources = min(sources, max((width - fixed) // 3, 0))
    names = _widest(
        (line.lead + line.name + line.direction + line.tail for line in lines), "module"
    )
    names = max(min(names, width - fixed - (sources + gap if sources else 0)), _MIN_NAME_WIDTH)
    columns = [
        Column(title="", width=2),
        Column(title="module", width=names),
        Column(title="differ", width=differ, right=True),
        Column(title="worst", width=status),
        Column(title="error", width=error, right=True),
        Column(title="origin", width=origin),
    ]
    return [*columns, *([Column(title="source", width=sources)] if sources else [])], gap


def _widest(texts: Iterator[str], title: str) -> int:
    return max(max(map(cell_len, texts), default=0), len(title))


def _text(line: _Line, columns: list[Column], gap: int) -> Text:
    room = columns[1].width - cell_len(line.lead)
    name = line.name + line.direction
    if cell_len(name + line.tail) > room and line.short:
        # The end of the name may be cut, the direction may not: calls are told apart by it.
        short = cut_middle(line.short, max(room - cell_len(line.direction), _MIN_NAME_WIDTH))
        name = short + line.direction
    cells = [
        Cell(line.mark, ORIGIN_STYLES["introduced"] if line.mark == BORN else "yellow"),
        Cell(name, line.style, line.lead, line.tail),
        Cell(line.differ, "" if line.mark else "dim"),
        Cell(line.status, STATUS_STYLES.get(line.status, "")),
        Cell(line.error),
        Cell(line.origin, ORIGIN_STYLES.get(line.origin, "")),
        Cell(line.source, "dim"),
    ]
    return row(columns, cells[: len(columns)], gap)
