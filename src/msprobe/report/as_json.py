# SPDX-License-Identifier: Apache-2.0
"""The facts of the terminal views for programs: plain data for strict JSON.

NaN and infinities become the strings ``NaN``, ``Infinity``, ``-Infinity``, as JSON has no word for
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from msprobe.dump.dump_steps import Dump
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_views import Leaf, Record, TensorValue, part_label
from msprobe.dump.records import JsonTree
from msprobe.report.nonfinite import find_nonfinite


def overview_json(dump: Dump, view: RankView) -> dict[str, JsonTree]:
    """Return what the overview shows.

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
        "account": strict(view.account),
        "nonfinite_records": len(nonfinite.marks),
        "first_nonfinite": nonfinite.first,
    }


def record_json(view: RankView, record: Record) -> dict[str, JsonTree]:
    """Return everything that is known of one record.

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
        "values": [_value_json(part_label(path), leaf) for path, leaf in record.leaves()],
    }


def records_json(view: RankView, names: list[str]) -> Iterator[dict[str, JsonTree]]:
    """Yield `record_json` of each name, without the call stacks."""
    for name in names:
        found = record_json(view, view.records[name])
        del found["frames"]
        yield found


def strict(tree: Any) -> JsonTree:
    """Return the tree with words in place of NaN and infinities."""
    if isinstance(tree, float) and not math.isfinite(tree):
        if math.isnan(tree):
            return "NaN"
        return "Infinity" if tree > 0 else "-Infinity"
    if isinstance(tree, dict):
        return {str(key): strict(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [strict(value) for value in tree]
    return tree


def _value_json(label: str, leaf: Leaf) -> dict[str, JsonTree]:
    if leaf is None:
        return {"part": label, "type": None}
    if not isinstance(leaf, TensorValue):
        return {"part": label, "type": leaf.type, "value": strict(leaf.value)}
    found = {
        "part": label,
        "type": leaf.type,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "max": strict(leaf.max),
        "min": strict(leaf.min),
        "mean": strict(leaf.mean),
        "norm": strict(leaf.norm),
        "requires_grad": leaf.requires_grad,
        "data_name": leaf.data_name,
        "md5": leaf.md5,
        **strict(leaf.extra),
    }
    return {key: value for key, value in found.items() if value is not None}
