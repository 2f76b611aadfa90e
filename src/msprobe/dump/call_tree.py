# SPDX-License-Identifier: Apache-2.0
"""`CallTree`: which recorded call ran inside which, as ``construct.json`` has it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msprobe.dump.record_index import read_json_object
from msprobe.errors import DumpFormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTree:
    """Content of ``construct.json``.

    Attributes:
        parents: record name → the record it ran inside, or None; in call order, without cycles.
        micro_steps: record name → micro step (Megatron only).
        micro_step_count: number of micro steps (Megatron only).
    """

    parents: Mapping[str, str | None]
    micro_steps: Mapping[str, int]
    micro_step_count: int | None


def read_call_tree(path: Path) -> CallTree:
    """Return the content of a ``construct.json``.

    Raises:
        DumpFormatError: the file is damaged.
    """
    parents: dict[str, str | None] = {}
    micro_steps: dict[str, int] = {}
    micro_step_count = None
    for key, entry in read_json_object(path).items():
        name = sys.intern(key)
        match entry:
            case int() if name == "megatron_micro_step_number":
                micro_step_count = entry
            case None | str():
                parents[name] = entry and sys.intern(entry)
            case [None | str() as parent, int() as micro_step]:
                parents[name] = parent
                micro_steps[name] = micro_step
            case _:
                raise DumpFormatError(path, f"the entry of {name!r} is neither a name nor null")
    cut_cycles(parents)
    return CallTree(parents=parents, micro_steps=micro_steps, micro_step_count=micro_step_count)


def cut_cycles(parents: dict[str, str | None]) -> None:
    """Take parents out of cycles, as a damaged file may have them: each call is below a root."""
    safe: set[str] = set()
    for name in parents:
        seen: dict[str, None] = {}
        current: str | None = name
        while current is not None and current not in safe:
            seen[current] = None
            parent = parents.get(current)
            if parent in seen:
                parents[current] = parent = None
            current = parent
        safe.update(seen)
