# SPDX-License-Identifier: Apache-2.0
"""Whether the planted operator was named first, and the table of all scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from msprobe.dump.reader import open_dump

from .dumping import Summary
from .faults import Fault


@dataclass(frozen=True)
class Score:
    """What became of one fault.

    Attributes:
        fault: the fault.
        task: how both runs were dumped.
        first: the culprit that was named first, None if none was.
        is_hit: whether that is the planted operator, or the verdict names the part of the training
            that was changed.
    """

    fault: Fault
    task: str
    first: str | None
    is_hit: bool


def score(fault: Fault, task: str, summary: Summary, dumps: Sequence[Path]) -> Score:
    """Hold the first culprit of a comparison, and its verdict, against the fault."""
    if summary["verdict"]["class"] in fault.classes:
        return Score(fault, task, summary["verdict"]["sentence"], True)
    if not summary["introduced"]:
        return Score(fault, task, None, False)
    first = summary["introduced"][0]
    name = first["name"]
    return Score(fault, task, name, any(_fits(p, first, dumps) for p in fault.planted))


def _fits(pattern: str, entry: Summary, dumps: Sequence[Path]) -> bool:
    if pattern.startswith("in:"):
        _, module, record = pattern.split(":")
        return entry["module"] == module and fnmatchcase(entry["name"], record)
    if not pattern.startswith("module:"):
        return fnmatchcase(entry["name"], pattern)
    module = pattern.removeprefix("module:")
    return entry["module"] == module or module in _parents(entry, dumps)


def _parents(entry: Summary, dumps: Sequence[Path]) -> set[str]:
    """Return the records around an operation: ``optimizer`` and ``clip_grad`` are no modules."""
    found = set()
    for dump in dumps:
        for step in open_dump(dump).steps.values():
            for view in step.ranks.values():
                found.add(view.parents.get(entry["name"]) or "")
    return found


def table(scores: Sequence[Score], clean: Sequence[tuple[str, str, Summary]]) -> str:
    """Return all scores as text."""
    lines = []
    for task in dict.fromkeys(each.task for each in scores):
        mine = [each for each in scores if each.task == task]
        hits = sum(each.is_hit for each in mine)
        lines.append(f"{task}: {hits} of {len(mine)} planted operators named first")
        lines += [
            f"  missed {each.fault.family}/{each.fault.name}: {each.first}"
            for each in mine
            if not each.is_hit
        ]
    quiet = sum(not summary["introduced"] for _, _, summary in clean)
    lines.append(f"clean pairs: {quiet} of {len(clean)} without a culprit")
    lines += [
        f"  {task} {name}: {summary['introduced'][0]['row']}"
        for name, task, summary in clean
        if summary["introduced"]
    ]
    return "\n".join(lines)
