# SPDX-License-Identifier: Apache-2.0
"""The tree of calls: one line each, with the statistics of the call's first output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rich.text import Text

from msprobe.dump.call_forest import CallNode, Section, call_forest
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, RecordName
from msprobe.dump.values import Value
from msprobe.errors import DumpFormatError
from msprobe.plain_text import count_text, plain
from msprobe.report.grid import Cell, Column, guides, heading, plain_row, row, text_width
from msprobe.report.nonfinite import BORN, PRESENT, Nonfinite
from msprobe.report.value_text import is_nonfinite, number_text, tensor_text, value_text

_WIDE_FROM: Final = 110
_STATISTICS: Final = ("min", "max", "mean", "norm")
_NO_NUMBERS: Final = [""] * len(_STATISTICS)
_NO_VALUES: Final = [None] * len(_STATISTICS)
# Deeper calls are drawn no further to the right: no terminal is that wide.
_MAX_INDENT: Final = 100
_MIN_NAME_WIDTH: Final = 16
_MIN_KIND_WIDTH: Final = 16
_ALARM: Final = "bold red"
_DAMAGED: Final = "?"
_RAISED: Final = "raised"
_UNREADABLE: Final = "damaged record"
_LEGEND: Final = {
    BORN: "!! NaN or Inf appear here first: the arguments are finite",
    PRESENT: "!  NaN or Inf present",
    _DAMAGED: "?  the record is damaged; look at it by name to see how",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions:
    """Options of the tree: the part that is shown, and its form.

    Attributes:
        width: of the terminal, in columns.
        depth: levels to show; 0 shows all.
        limit: lines to show; 0 shows all.
        selected: only these records and the calls around them; None for all.
        unicode: whether line-drawing characters may be used.
        styled: whether colours will be shown.
    """

    width: int = 80
    depth: int = 0
    limit: int = 0
    selected: set[str] | None = None
    unicode: bool = True
    styled: bool = True


# Not frozen, as `_Line`: every call makes one of each, and frozen ones take three times as long.
@dataclass(slots=True)
class _Label:
    """The name of a call in the tree.

    Attributes:
        text: its name.
        tail: less important, such as a module's class.
        short: used in place of the name where room is short.
    """

    text: str
    tail: str = ""
    short: str = ""


@dataclass(slots=True, kw_only=True)
class _Line:
    lead: str
    label: _Label
    hidden: int = 0
    mark: str = ""
    tensor: Value | None = None
    more: int = 0
    is_argument: bool = False
    remark: str = ""
    kind: str = ""


@dataclass(slots=True)
class _Budget:
    """Budget of lines: those left to show, and those not shown."""

    left: int
    skipped: int = field(default=0)

    def take(self) -> bool:
        if self.left > 0:
            self.left -= 1
            return True
        self.skipped += 1
        return False


def tree_lines(view: RankView, nonfinite: Nonfinite, options: TreeOptions) -> Iterator[Text | str]:
    """Yield the lines of the tree of one rank.

    Raises:
        DumpFormatError: the dump's files are damaged (one damaged record is only marked).
    """
    budget = _Budget(options.limit or 1 << 62)
    forest = call_forest(view, options.selected)
    sections = {
        title: list(_section(view, nonfinite, roots, options, budget))
        for title, roots in forest.items()
    }
    everything = [line for lines in sections.values() for line in lines]
    layout = _Layout.fit(everything, options.width, styled=options.styled)
    for position, (title, lines) in enumerate(sections.items()):
        if lines:
            if position:
                yield Text()
            yield layout.heading(title, "value" if title is Section.SAVED_VALUES else "output")
            yield from (layout.line(line) for line in lines)
    marks = {line.mark for line in everything}
    if any(marks):
        yield Text()
        yield from (Text(text, "dim") for mark, text in _LEGEND.items() if mark in marks)
    if budget.skipped:
        yield Text()
        hidden = count_text(budget.skipped, "more call")
        yield Text(f"{hidden}: use --filter, --depth or --limit 0", "italic")


def _section(
    view: RankView,
    nonfinite: Nonfinite,
    roots: list[CallNode],
    options: TreeOptions,
    budget: _Budget,
) -> Iterator[_Line]:
    lines = guides(unicode=options.unicode, wide=options.width >= _WIDE_FROM)
    # An explicit stack: hostile files nest deeper than Python's own.
    waiting = [(root, "", "", 1, "") for root in reversed(roots)]
    while waiting:
        node, lead, below, depth, parent_path = waiting.pop()
        is_closed = options.depth and depth >= options.depth
        children = [] if is_closed else node.children
        if budget.take():
            hidden = node.count() if is_closed else 0
            mark = nonfinite.marks.get(node.name.full, "")
            yield _line(view, node, mark, lead, _label(node.name, parent_path), hidden)
        path = node.name.path if node.name.is_module else parent_path
        if depth > _MAX_INDENT:
            below = below[: -len(lines.bar)]
        last = len(children) - 1
        waiting += [
            (
                child,
                below + (lines.last if position == last else lines.branch),
                below + (lines.blank if position == last else lines.bar),
                depth + 1,
                path,
            )
            for position, child in reversed(list(enumerate(children)))
        ]


def _label(name: RecordName, parent_path: str) -> _Label:
    number = f" #{name.index}" if name.index else ""
    if name.kind in PARAMETER_GRADIENTS:
        if name.path == parent_path:
            return _Label(f"{name.kind}{number}")
        return _Label(plain(name.path), f" {name.kind}{number}")
    number += f" pass {name.backward_pass}" if name.backward_pass else ""
    number += " (recompute)" if name.recompute else ""
    if name.is_module:
        path = name.path.removeprefix(parent_path + ".") if parent_path else name.path
        text, tail = (path, f" {name.class_name}") if path else (str(name.class_name), "")
        return _Label(plain(text), plain(tail + number))
    # The number belongs to an API's name: without it, no call can be told from the next.
    index = "" if name.index is None else f".{name.index}"
    extra = number.removeprefix(f" #{name.index}")
    short = plain(f"{name.path}{index}")
    return _Label(plain(f"{name.prefix}.") + short if name.prefix else short, extra, short)


def _line(
    view: RankView, node: CallNode, mark: str, lead: str, label: _Label, hidden: int
) -> _Line:
    if not node.is_recorded:
        is_call = node.name.kind is not RecordKind.OTHER
        remark = "not recorded" if is_call and len(view.records) else ""
        return _Line(lead=lead, label=label, hidden=hidden, remark=remark)
    try:
        name, records = node.name.full, view.records
        may_have_raised = records.may_hold_any(name, (b'"raised"',))
        has_raised = may_have_raised and "raised" in records[name].notes
        values = records.values_of(name)
        tensor, more, is_argument = _main_tensor(values, has_raised=has_raised)
        has_output = tensor is None and records.may_hold_any(name, (b'"output"',))
        remark = _RAISED if has_raised else _remark(values, tensor, has_output=has_output)
    except DumpFormatError:
        return _Line(lead=lead, label=label, hidden=hidden, remark=_UNREADABLE, mark=_DAMAGED)
    return _Line(
        lead=lead,
        label=label,
        hidden=hidden,
        mark=mark,
        tensor=tensor,
        more=more,
        is_argument=is_argument,
        remark=remark,
    )


def _remark(values: Sequence[Value], tensor: Value | None, *, has_output: bool) -> str:
    if tensor is not None:
        return ""
    outputs = [value for value in values if value.path[0] == "output" or not has_output]
    return next((value_text(value) for value in outputs if not value.is_null), "None")


def _main_tensor(values: Sequence[Value], *, has_raised: bool) -> tuple[Value | None, int, bool]:
    """Return a call's main tensor, the number of its other tensors, and whether it is an input.

    The main tensor is the first output; without outputs, the first input.
    """
    tensors = [value for value in values if value.is_tensor]
    outputs = [value for value in tensors if value.path[0] == "output"]
    found = outputs if outputs or has_raised else tensors
    if not found:
        return None, 0, False
    return found[0], len(found) - 1, str(found[0].path[0]).startswith("input")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    columns: Sequence[Column]
    gap: int
    is_styled: bool

    @classmethod
    def fit(cls, lines: Sequence[_Line], width: int, *, styled: bool) -> _Layout:
        """Return the layout for these lines, which learn their text of the third column."""
        is_wide = width >= _WIDE_FROM
        gap, number = (2, 9) if is_wide else (1, 8)
        room = width - 2 - gap - len(_STATISTICS) * (number + gap)
        for line in lines:
            line.kind = _kind(line, is_wide)
        kinds = max((text_width(line.kind) for line in lines), default=0)
        names = max((text_width(_full_name(line)) for line in lines), default=0)
        names = max(names, len(Section.SAVED_VALUES), _MIN_NAME_WIDTH)
        kinds = max(kinds, len("output"))
        # Names first: a cut shape is easier to bear than a cut name.
        names = min(names, max(room - min(kinds, _MIN_KIND_WIDTH) - gap, _MIN_NAME_WIDTH))
        kinds = min(kinds, max(room - names - gap, len("output")))
        numbers = [Column(title=title, width=number, right=True) for title in _STATISTICS]
        mark, name, kind = (
            Column(title="", width=2),
            Column(title="", width=names),
            Column(title="output", width=kinds),
        )
        return cls(columns=(mark, name, kind, *numbers), gap=gap, is_styled=styled)

    def heading(self, title: str, kind: str) -> Text:
        kinds = replace(self.columns[2], title=kind)
        text = heading((*self.columns[:2], kinds, *self.columns[3:]), self.gap)
        start = 2 + self.gap
        return Text.assemble(" " * start, (title, "bold cyan"), text[start + len(title) :], end="")

    def line(self, line: _Line) -> Text | str:
        tensor = line.tensor
        values = [getattr(tensor, title) for title in _STATISTICS] if tensor else []
        width = self.columns[3].width
        numbers = [number_text(value, width) for value in values] or _NO_NUMBERS
        lead = _shortened(line.lead, self.columns[1].width)
        if not self.is_styled and lead == line.lead:
            texts = (line.mark, _full_name(line), line.kind, *numbers)
            found = plain_row(self.columns, texts, self.gap)
            if found is not None:
                return found
        alarm = _ALARM if line.mark else ""
        name_style = alarm if line.mark == BORN else ("dim" if line.tensor is None else "")
        cells = [
            Cell(line.mark, alarm),
            Cell(self._name(line, lead), name_style, lead, _tail(line)),
            Cell(line.kind, _kind_style(line)),
        ]
        cells += [
            Cell(text, _ALARM if is_nonfinite(value) else "")
            for text, value in zip(numbers, values or _NO_VALUES, strict=True)
        ]
        return row(self.columns, cells, self.gap)

    def _name(self, line: _Line, lead: str) -> str:
        fits = text_width(lead + line.label.text) <= self.columns[1].width
        return line.label.text if fits else line.label.short or line.label.text


def _full_name(line: _Line) -> str:
    return line.lead + line.label.text + _tail(line)


def _tail(line: _Line) -> str:
    return f"{line.label.tail}  +{line.hidden:,} inside" if line.hidden else line.label.tail


def _kind(line: _Line, is_wide: bool) -> str:
    if line.tensor is None:
        return line.remark
    arrow = "<- " if line.is_argument else ""
    more = f" +{line.more}" if line.more else ""
    return arrow + tensor_text(line.tensor, short=not is_wide) + more


def _kind_style(line: _Line) -> str:
    if line.tensor is not None:
        return "green"
    return "bold yellow" if line.remark in (_RAISED, _UNREADABLE) else "dim"


def _shortened(lead: str, width: int) -> str:
    room = max(width // 2, 3)
    return lead if len(lead) <= room else "…" + lead[-(room - 1) :]
