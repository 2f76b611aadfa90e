# SPDX-License-Identifier: Apache-2.0
"""One record in detail: every value, the source line of the call, the modules around it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordKind, RecordName, forward_name
from msprobe.dump.record_views import Record
from msprobe.dump.stack_frames import parse_frame
from msprobe.dump.values import Value
from msprobe.plain_text import count_text, plain
from msprobe.report.grid import Cell, Column, cut_middle, heading, row
from msprobe.report.value_text import (
    is_nonfinite,
    nonfinite_text,
    number_text,
    scalar_text,
    value_text,
)

_STATISTICS: Final = ("min", "max", "mean", "norm")
_LABEL_WIDTH: Final = 14
_ALARM: Final = "bold red"


def record_lines(view: RankView, record: Record, *, width: int) -> Iterator[Text]:
    """Yield the lines of one record: values, call stack, enclosing modules.

    Raises:
        DumpFormatError: the record, the stacks or the structure are damaged.
    """
    name = record.name
    yield Text(plain(name.full), "bold")
    yield _fact("what", _description(name))
    chain = view.ancestors(name.full)
    for position, ancestor in enumerate(chain):
        yield _fact("inside" if position == 0 else "", plain(ancestor))
    # Stacks are kept of forward calls only.
    frames = view.frames(forward_name(name) or name.full)
    if frames:
        where, code = _frame_parts(_innermost_own(frames))
        yield _fact("source", where)
        if code:
            yield _fact("", code, "italic")
    for key, value in record.notes.items():
        yield from _note(key, value)
    yield Text()
    yield from _values(record, width)
    if frames and name.kind is RecordKind.FORWARD:
        yield Text()
        yield from _stack(frames, width)


def _stack(frames: list[str], width: int) -> Iterator[Text]:
    yield Text("  call stack, innermost first", "bold dim")
    for is_installed, group in groupby(frames, key=_is_installed):
        if is_installed:
            frames_text = count_text(len(list(group)), "frame")
            yield Text(f"  … {frames_text} of installed packages", "dim")
            continue
        for where, code in map(_frame_parts, group):
            yield Text(f"  {cut_middle(where, max(width - 2, 20))}")
            if code:
                yield Text(f"      {cut_middle(code, max(width - 6, 20))}", "italic")


def _fact(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"  {label}".ljust(_LABEL_WIDTH), "dim"), (text, style), end="")


def _note(key: str, value: object) -> Iterator[Text]:
    if isinstance(value, dict):
        for where, text in value.items():
            yield _fact(plain(key), f"{plain(where)}: {scalar_text(text, 200)}", "yellow")
    elif key == "recomputed":
        yield _fact("recomputed", f"{scalar_text(value)} x in the backward pass", "yellow")
    else:
        yield _fact(plain(key), scalar_text(value, 200), "yellow")


def _description(name: RecordName) -> str:
    number = "" if name.index is None else f" {name.index}"
    owner = f"module {name.path or '(root)'} ({name.class_name})"
    match name.kind:
        case RecordKind.FORWARD | RecordKind.BACKWARD:
            who = owner if name.is_module else f"{name.prefix}.{name.path}"
            extra = ", recomputed" if name.recompute else ""
            extra += f", backward pass {name.backward_pass}" if name.backward_pass else ""
            return plain(f"{name.kind} call{number} of {who}{extra}")
        case RecordKind.PARAMETERS_GRAD | RecordKind.PARAMETERS_GRAD_REDUCED:
            reduced = " after reduction" if name.kind != RecordKind.PARAMETERS_GRAD else ""
            arrival = f", arrival{number}" if number else ""
            return plain(f"parameter gradients of {owner}{reduced}{arrival}")
        case RecordKind.DEBUG:
            return plain(f"value {name.path}, save(){number}")
    return "a record of no known kind"


def _is_installed(text: str) -> bool:
    frame = parse_frame(text)
    return frame is not None and frame.is_installed


def _innermost_own(frames: list[str]) -> str:
    """Return the innermost frame outside installed packages, else the innermost one."""
    return next((frame for frame in frames if not _is_installed(frame)), frames[0])


def _frame_parts(text: str) -> tuple[str, str]:
    """Return where a frame is, and its code."""
    frame = parse_frame(text)
    if frame is None:
        where, _, code = text.partition("\n")
        return plain(where.strip()), plain(code.strip())
    return plain(f"{frame.file}:{frame.line} in {frame.function}"), plain(frame.code)


def _values(record: Record, width: int) -> Iterator[Text]:
    values = record.values()
    if not values:
        yield Text("  no values", "dim")
        return
    columns, gap = _columns(values, width)
    yield heading(columns, gap)
    for value in values:
        yield _value_row(columns, gap, value)
        if details := _details(value):
            yield Text.assemble("      ", (cut_middle(details, max(width - 6, 20)), "dim"), end="")


def _columns(values: list[Value], width: int) -> tuple[list[Column], int]:
    gap, number = (2, 9) if width >= 100 else (1, 8)
    room = width - 2 - gap - len(_STATISTICS) * (number + gap)
    labels = max(cell_len(plain(value.label)) for value in values)
    labels = min(max(labels, len("value")), max(room * 3 // 5, room - 20))
    kinds = max(cell_len(value_text(value, short=width < 100)) for value in values)
    kinds = min(max(kinds, len("type")), max(room - labels - gap, 4))
    numbers = [Column(title=title, width=number, right=True) for title in _STATISTICS]
    fixed = [
        Column(title="", width=2),
        Column(title="value", width=labels),
        Column(title="type", width=kinds),
    ]
    return [*fixed, *numbers], gap


def _value_row(columns: list[Column], gap: int, value: Value) -> Text:
    short = gap == 1
    label = plain(value.label)
    if not value.is_tensor:
        # No statistics follow, so the value may run on over their columns.
        used = sum(column.width for column in columns[:2]) + 2 * gap
        room = sum(column.width + gap for column in columns[2:]) - gap
        line = row(columns[:2], [Cell(""), Cell(label)], gap)
        line.pad_right(max(used - cell_len(line.plain), 0))
        style = "dim" if value.is_null else "cyan"
        return line.append(cut_middle(value_text(value), room), style)
    mark = "!" if value.has_nan or value.has_inf else ""
    alarm = _ALARM if mark else ""
    cells = [
        Cell(mark, alarm),
        Cell(label, alarm),
        Cell(value_text(value, short=short), "green"),
    ]
    for column in columns[3:]:
        number = getattr(value, column.title)
        style = _ALARM if is_nonfinite(number) else ""
        cells.append(Cell(number_text(number, column.width), style))
    return row(columns, cells, gap)


def _details(value: Value) -> str:
    """Return the facts that have no column, in one line."""
    said = []
    if value.is_tensor and (nonfinite := nonfinite_text(value)):
        said.append(nonfinite)
        if value.finite_min is not None and value.finite_max is not None:
            low, high = number_text(value.finite_min), number_text(value.finite_max)
            said.append(f"finite from {low} to {high}")
    if value.is_unread:
        said.append("overwritten, not read" if value.written else "nothing filled it yet")
    if value.requires_grad:
        said.append("requires grad")
    if value.value_id is not None:
        said.append(f"value #{value.value_id}")
    if value.is_tensor and not value.type.endswith((".Tensor", "ndarray")):
        said.append(value.type)
    if value.md5:
        said.append(f"md5 {value.md5}")
    if value.data_name:
        said.append(value.data_name)
    stride = None if value.stride is None else list(value.stride)
    facts = {"device": value.device, "stride": stride, "note": value.note}
    facts |= {} if value.message is None else value.message._asdict()
    known = {key: fact for key, fact in facts.items() if fact is not None} | dict(value.extra)
    said += [f"{key} {scalar_text(fact)}" for key, fact in known.items()]
    return plain(" · ".join(said))
