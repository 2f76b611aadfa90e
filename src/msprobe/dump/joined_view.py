# SPDX-License-Identifier: Apache-2.0
"""The two halves of a rank, what ran in compiled code and what did not, as one rank."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from msprobe.api_prefixes import COMPILED
from msprobe.dump.call_tree import CallTree
from msprobe.dump.facts import Facts
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_index import RecordIndex
from msprobe.dump.record_names import RecordKind


def joined(plain: RankView, compiled: RankView) -> RankView | None:
    """Return both halves of a rank as one.

    None where both hold records of the same names, or the compiled one holds tensors of its own.
    """
    if plain.records.keys() & compiled.records.keys() or compiled.tensor_directory.is_dir():
        return None
    return _JoinedView(plain, compiled)


class _JoinedView(RankView):
    """Records of both halves; the facts and the name are those of the half that is not compiled."""

    def __init__(self, plain: RankView, compiled: RankView) -> None:
        super().__init__(plain.directory, records_file=plain.records_path.name, step=plain.step)
        self._halves = plain, compiled

    @cached_property
    def facts(self) -> Facts | None:
        """The training around the calls."""
        return self._halves[0].facts

    @cached_property
    def call_tree(self) -> CallTree:
        """The calls and their parents in each half."""
        plain, compiled = (half.call_tree for half in self._halves)
        return CallTree(
            parents={name: half.parents.get(name) for name, half in self._homes.items()},
            micro_steps={**compiled.micro_steps, **plain.micro_steps},
            micro_step_count=plain.micro_step_count,
        )

    @property
    def incomplete_reason(self) -> str | None:
        """Why records may be missing in either half."""
        return next(filter(None, (half.incomplete_reason for half in self._halves)), None)

    def directory_of(self, name: str) -> Path:
        """Return the folder of the half that holds a record."""
        return self._homes[name].directory

    @cached_property
    def _homes(self) -> Mapping[str, RankView]:
        """Record → its half, in order: compiled forward calls come before what calls their code."""
        plain, compiled = self._halves
        inside = [
            name
            for name in compiled.records
            if compiled.records.parsed(name).kind is RecordKind.FORWARD
        ]
        before = takewhile(
            lambda name: (
                plain.records.parsed(name).kind is RecordKind.FORWARD
                and not name.startswith(f"{COMPILED}.")
            ),
            plain.records,
        )
        homes = dict.fromkeys(before, plain) | dict.fromkeys(inside, compiled)
        return (
            homes | dict.fromkeys(plain.records, plain) | dict.fromkeys(compiled.records, compiled)
        )

    @cached_property
    def _index(self) -> RecordIndex:
        records = {name: half.records.data(name) for name, half in self._homes.items()}
        plain = self._halves[0]
        head = {key: getattr(plain.head, key) for key in ("task", "level", "framework")}
        return RecordIndex(self.records_path, head, records, b"")

    @cached_property
    def _journal(self) -> None:
        return None

    @cached_property
    def _frames_by_name(self) -> Mapping[str, list[str]]:
        return {name: half.frames(name) for name, half in self._homes.items()}
