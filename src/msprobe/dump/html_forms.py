# SPDX-License-Identifier: Apache-2.0
"""Dumps, ranks and records as a few lines of HTML, for notebooks.

Names come from files and are shown as they are: nothing in them becomes markup. A damaged file is
a line of text, since a notebook shows a traceback in place of an object that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msprobe.dump.values import Value
from msprobe.errors import MsprobeError
from msprobe.plain_text import html_small, html_table, html_text

if TYPE_CHECKING:
    from msprobe.dump.dump_steps import Dump
    from msprobe.dump.rank_view import RankView
    from msprobe.dump.record_views import Record

_MOST: Final = 20
_MOST_CHARACTERS: Final = 200
_STATISTICS: Final = ("max", "min", "mean", "norm")

Cell = tuple[str, str]


def dump_html(dump: Dump) -> str:
    """Return the path of a dump and its steps; only the first rank's file of records is read."""
    steps = [*dump.steps.items()]
    rows = [
        [(str(number), ""), (_listed([str(key) for key in step.ranks]), "")]
        for number, step in steps[:_MOST]
    ]
    view = next(dump.rank_views(), None)
    parts = [_title(f"dump {dump.path}"), "" if view is None else _guarded(_head, view)]
    return "".join([*parts, html_table(("step", "ranks"), rows), _more(len(steps), "steps")])


def rank_html(view: RankView) -> str:
    """Return what one rank recorded: its task, counts, what may be missing, the first records."""
    where = f"{view.directory}" if view.step is None else f"step {view.step}, {view.directory}"
    return _title(where) + _guarded(_head, view) + _guarded(_records, view)


def record_html(record: Record) -> str:
    """Return the values of a record as a table."""
    try:
        values = record.values()
    except MsprobeError as exc:
        return _title(record.name.full) + html_small(html_text(str(exc)))
    rows = [_value(value) for value in values[:_MOST]]
    table = html_table(("value", "type", "shape", *_STATISTICS), rows)
    return _title(record.name.full) + table + _more(len(values), "values")


def _title(text: str) -> str:
    return f"<div><b>{html_text(text)}</b></div>"


def _guarded(make: Callable[[RankView], Iterator[str]], view: RankView) -> str:
    try:
        return "".join(make(view))
    except MsprobeError as exc:
        return html_small(html_text(str(exc)))


def _head(view: RankView) -> Iterator[str]:
    head = view.head
    words = [
        head.framework,
        head.task and f"task {head.task}",
        head.level and f"level {head.level}",
    ]
    yield html_small(html_text(", ".join(word for word in words if word)))


def _records(view: RankView) -> Iterator[str]:
    names = [*view.records]
    kinds = Counter(str(view.records.parsed(name).kind) for name in names)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    yield html_small(html_text(f"{len(names):,} records{f': {counts}' if counts else ''}"))
    if view.incomplete_reason is not None:
        yield html_small(f"<b>{html_text(f'may lack records: {view.incomplete_reason}')}</b>")
    yield html_table(("record",), [[(_cut(name), "")] for name in names[:_MOST]])
    yield _more(len(names), "records")


def _value(value: Value) -> list[Cell]:
    if not value.is_tensor:
        text = "" if value.is_null else _cut(str(value.value))
        return [(value.slot, ""), (value.type or "None", ""), (text, ""), *[("", "")] * 4]
    numbers = [(_number(getattr(value, name)), "") for name in _STATISTICS]
    shape = "[{}]".format(", ".join(map(str, value.shape or ())))
    return [(value.slot, ""), (value.raw_dtype or "", ""), (shape, ""), *numbers]


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) + (f" … ({len(names):,})" if len(names) > _MOST else "")


def _more(count: int, noun: str) -> str:
    return html_small(f"and {count - _MOST:,} more {noun}") if count > _MOST else ""
