# SPDX-License-Identifier: Apache-2.0
"""The facts of the terminal views for programs: plain data for strict JSON.

NaN and infinities become the strings ``NaN``, ``Infinity``, ``-Infinity``, as JSON has no word for
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msprobe.dump.dump_steps import Dump
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_views import Record
from msprobe.dump.records import JsonTree
from msprobe.dump.values import Value
from msprobe.json_text import strict
from msprobe.report.nonfinite import find_nonfinite

_FIELDS: Final = (
    *("shape", "max", "min", "mean", "norm", "requires_grad", "data_name", "md5"),
    *("value_id", "nan_count", "pos_inf_count", "neg_inf_count", "finite_max", "finite_min"),
    *("projections", "note", "remark", "written", "undefined", "device", "stride"),
)


def overview_json(dump: Dump, view: RankView) -> dict[str, JsonTree]:
    """Return the facts of the overview.

    Raises:
        DumpFormatError: the rank's files are damaged.
    """
    nonfinite = find_nonfinite(view)
    step = dump.steps[view.step or 0]
    return {
        "path": str(view.directory),
        "framework": view.head.framework,
        "task": view.head.task,
        "level": view.head.level,
        "steps": list(dump.steps),
        "step": step.number,
        "ranks": list(step.ranks),
        "rank": view.name,
        "records": len(view.records),
        "incomplete": view.incomplete_reason,
        "missing_tensors": view.missing_tensors if view.incomplete_reason else [],
        "unrecorded_tensors": view.unrecorded_tensors if view.incomplete_reason else [],
        "account": strict(view.account),
        "nonfinite_records": len(nonfinite.marks),
        "first_nonfinite": nonfinite.first,
    }


def record_json(view: RankView, record: Record) -> dict[str, JsonTree]:
    """Return all facts of one record.

    Raises:
        DumpFormatError: the record, the stacks or the structure are damaged.
    """
    name = record.name
    return {
        "name": name.full,
        "kind": name.kind.value,
        "prefix": name.prefix,
        "path": name.path,
        "class": name.class_name,
        "index": name.index,
        "recompute": name.recompute,
        "inside": view.ancestors(name.full),
        "frames": view.frames(name.full),
        "notes": strict(dict(record.notes)),
        "values": [_value_json(value) for value in record.values()],
    }


def records_json(view: RankView, names: list[str]) -> Iterator[dict[str, JsonTree]]:
    """Yield `record_json` of each name, without the call stacks."""
    for name in names:
        found = record_json(view, view.records[name])
        del found["frames"]
        yield found


def _value_json(value: Value) -> dict[str, JsonTree]:
    found = {"part": value.label, "type": None if value.is_null else value.type}
    if value.is_tensor:
        found["dtype"] = value.raw_dtype
    elif not value.is_null:
        found["value"] = strict(value.value)
    facts = {name: getattr(value, name) for name in _FIELDS}
    facts |= value.message._asdict() if value.message is not None else {}
    known = {key: fact for key, fact in facts.items() if fact is not None} | dict(value.extra)
    return found | {key: strict(fact) for key, fact in known.items()}
