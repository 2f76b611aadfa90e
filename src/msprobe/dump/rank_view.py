# SPDX-License-Identifier: Apache-2.0
"""`RankView`: everything that one rank recorded in one step, read when it is asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from msprobe.dump import layout
from msprobe.dump.call_tree import CallTree, cut_cycles, read_call_tree
from msprobe.dump.facts import Facts, facts_lines, parse_facts
from msprobe.dump.journal import DumpHead, JournalContents, read_journal
from msprobe.dump.json_files import fact_parts
from msprobe.dump.lines import OUTSIDE_CONSTRUCT
from msprobe.dump.locking import is_claimed
from msprobe.dump.lost_tensors import missing_tensor_files, unrecorded_tensor_files
from msprobe.dump.rank_records import Records, journal_index
from msprobe.dump.record_index import (
    RecordIndex,
    read_bytes,
    read_json_object,
    read_record_index,
)
from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import StoredTensor, locate_tensor_file, read_tensor
from msprobe.dump.values import Value
from msprobe.errors import DumpFormatError, RecordNotFoundError
from msprobe.plain_text import reason

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)

# The properties of a `RankView` that hold what was read.
_CACHED: Final = (
    "head",
    "records",
    "call_tree",
    "_calls_by_parent",
    "facts",
    "account",
    "missing_tensors",
    "unrecorded_tensors",
    "_journal",
    "_index",
    "_frames_by_name",
)


class RankView:
    """One rank's dump of one step.

    Nothing is read before it is asked for. If the process was killed while capturing, its journal
    takes the place of the JSON files by itself, and `incomplete_reason` says so.

    Attributes:
        directory: the rank folder.
        records_path: the file of records: ``dump.json``, ``debug.json`` or the journal.
        step: number of the step, None where the path does not tell.
        name: the folder's name: ``rank0``, ``rank``, ``proc4711``.
        mode: ``graph`` or ``pynative`` where a MindSpore dump has these two halves.
    """

    def __init__(
        self,
        directory: Path,
        *,
        records_file: str | None = None,
        step: int | None = None,
        mode: str | None = None,
    ) -> None:
        """Make a view of a rank folder; `records_file` names the file of records to read."""
        self.directory = directory
        self.records_path = directory / (records_file or find_records_file(directory))
        self.step = step
        self.name = directory.name
        self.mode = mode
        self._ignored: set[str] = set()

    def __repr__(self) -> str:
        """Return the folder, for debugging."""
        return f"RankView({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        """Return an overview, for notebooks."""
        from msprobe.dump.html_forms import rank_html

        return rank_html(self)

    @property
    def rank(self) -> int | None:
        """The rank's number, None for ``rank`` and ``proc{pid}``."""
        found = layout.RANK_FOLDER.fullmatch(self.name)
        return int(found[1]) if found and found[1] else None

    @cached_property
    def head(self) -> DumpHead:
        """Task, level and framework; empty strings where an old dump lacks them.

        Raises:
            DumpFormatError: the file of records is damaged.
        """
        if self._journal is not None:
            return self._journal.index.head
        fields = self._index.head
        for key in ("task", "level", "framework"):
            if not isinstance(fields.get(key, ""), str):
                raise DumpFormatError(self.records_path, f'"{key}" is not a string')
        data_dir = fields.get("dump_data_dir")
        return DumpHead(
            task=fields.get("task", ""),
            level=fields.get("level", ""),
            framework=fields.get("framework", "") or _guess_framework(self._index),
            dump_data_dir=data_dir if isinstance(data_dir, str) else None,
            noise_seed=seed if isinstance(seed := fields.get("noise_seed"), int) else None,
        )

    @cached_property
    def records(self) -> Records:
        """The records by name.

        Raises:
            DumpFormatError: the file of records is damaged.
        """
        return Records(self._index, self.head.level)

    @cached_property
    def call_tree(self) -> CallTree:
        """The calls and their parents, in call order; empty for dumps without them.

        Raises:
            DumpFormatError: ``construct.json`` is damaged.
        """
        if self._journal is not None:
            calls = sorted(self._journal.index.calls.items(), key=lambda item: item[1].order)
            parents = {name: call.parent for name, call in calls if call.order != OUTSIDE_CONSTRUCT}
            cut_cycles(parents)
            return CallTree(parents=parents, micro_steps={}, micro_step_count=None)
        path = self._optional_file(layout.CONSTRUCT_JSON)
        if path is None:
            return CallTree(parents={}, micro_steps={}, micro_step_count=None)
        return read_call_tree(path)

    @property
    def flow(self) -> Mapping[str, Mapping[str, tuple[str, str]]]:
        """Record → its input → the record that made it, and its output.

        Empty unless a compiled graph lies beside the dump; values that programs hand on are
        recognised by their `value_id`.
        """
        return {}

    @property
    def parents(self) -> Mapping[str, str | None]:
        """Record name → the record it ran inside, or None; in call order."""
        return self.call_tree.parents

    def directory_of(self, name: str) -> Path:
        """Return the folder that holds a record: another one where halves of a rank are joined."""
        return self.directory

    def ancestors(self, name: str) -> list[str]:
        """Return the records that `name` ran inside, innermost first."""
        chain: list[str] = []
        parent = self.parents.get(name)
        while parent is not None:
            chain.append(parent)
            parent = self.parents.get(parent)
        return chain

    def calls_inside(self, name: str) -> list[str]:
        """Return the records of the calls that ran inside `name`, at any depth."""
        found: list[str] = []
        waiting = [name]
        while waiting:
            inner = self._calls_by_parent.get(waiting.pop(), ())
            waiting += inner
            found += inner
        return found

    @cached_property
    def _calls_by_parent(self) -> Mapping[str, list[str]]:
        calls: dict[str, list[str]] = {}
        for name, parent in self.parents.items():
            if parent is not None:
                calls.setdefault(parent, []).append(name)
        return calls

    def frames(self, name: str) -> list[str]:
        """Return the call stack of a forward record, innermost frame first; empty if unknown.

        Raises:
            DumpFormatError: ``stack.json`` is damaged.
        """
        return list(self._frames_by_name.get(name, ()))

    @cached_property
    def account(self) -> Mapping[str, JsonTree] | None:
        """Content of ``account.json`` (kept, skipped, time); None without that file.

        Raises:
            DumpFormatError: the file is damaged.
        """
        path = self._optional_file(layout.ACCOUNT_JSON)
        return None if path is None else read_json_object(path)

    @cached_property
    def facts(self) -> Facts | None:
        """The training around the calls; None where the dump has none, as dumps of other programs.

        Raises:
            DumpFormatError: ``facts.json`` is damaged.
        """
        if self._journal is not None:
            return self._journal_facts(self._journal)
        path = self._optional_file(layout.FACTS_JSON)
        return None if path is None else parse_facts(path, read_bytes(path))

    def frame(self) -> pl.DataFrame:
        """Return a polars table with a row for each value of each record, in order of execution.

        Columns: ``record``, ``kind``, ``index``, ``module`` (whether a module made it), ``slot``,
        ``role``, ``type``, ``dtype``, ``shape``, ``max``, ``min``, ``mean``, ``norm``, counts of
        NaN and Inf, ``md5``, ``data_name``, ``value_id``. Single damaged records are left out.

        Raises:
            DumpFormatError: the file of records is damaged.
        """
        from msprobe.dump.record_frame import record_frame

        return record_frame(self)

    @property
    def incomplete_reason(self) -> str | None:
        """Why records may be missing; None for a dump that was closed in good order."""
        if self._journal is not None:
            lost = " (its last line was cut off)" if self._journal.is_torn else ""
            damaged = self._journal.damaged_lines
            lost += f" ({damaged} of its lines are damaged)" if damaged else ""
            why = "is still capturing" if is_claimed(self.directory) else "ended while capturing"
            return f"the process {why}; read from its journal{lost}"
        if self.account is not None and self.account.get("complete") is False:
            return "the capture lacks something; see account.json"
        return None

    def ignore_damaged(self) -> list[str]:
        """Treat damaged files beside the records (``construct.json`` …) as missing.

        Returns:
            What is wrong with each of them, naming the file.
        """
        problems = []
        for name, read in (
            (layout.CONSTRUCT_JSON, lambda: self.call_tree),
            (layout.STACK_JSON, lambda: self._frames_by_name),
            (layout.FACTS_JSON, lambda: self.facts),
            (layout.ACCOUNT_JSON, lambda: self.account),
        ):
            try:
                read()
            except DumpFormatError as exc:
                self._ignored.add(name)
                problems.append(str(exc))
        return problems

    @cached_property
    def missing_tensors(self) -> list[str]:
        """Tensor files that records name and that are not there, in the order of the records.

        A killed process leaves some: its records are on disk before their tensors are. Reads all
        records of a dump with tensors, once.

        Raises:
            DumpFormatError: the file of records is damaged.
        """
        if self.head.dump_data_dir is None and not self.tensor_directory.is_dir():
            return []
        return missing_tensor_files(self.records.values(), self.tensor_directory)

    @cached_property
    def unrecorded_tensors(self) -> list[str]:
        """Tensor files that no record names, sorted.

        A killed process leaves some: what was given to the calls that had not ended.
        `msprobe repair` makes records of them.

        Raises:
            DumpFormatError: the file of records is damaged.
        """
        return unrecorded_tensor_files(self.records.values(), self.tensor_directory)

    def release_text(self) -> None:
        """Free the text of the records; they stay readable, each by a look into the file."""
        if self._journal is None:  # which may grow at any time
            self._index.release_text()

    def unload(self) -> None:
        """Forget everything read so far, to free memory; it is read again when asked for."""
        for name in _CACHED:
            self.__dict__.pop(name, None)

    @property
    def tensor_directory(self) -> Path:
        """The folder of the tensor files, whether or not there is one.

        Always the one beside the records: the path in the head is that of the machine that wrote.
        """
        return self.directory / layout.TENSOR_FOLDER

    def tensor(self, which: Value | str) -> StoredTensor:
        """Return the saved values of a tensor as NumPy; needs no framework.

        Args:
            which: a tensor of a record, or its ``data_name``.

        Raises:
            RecordNotFoundError: the values were not saved, or their file is gone.
            DumpFormatError: the file is damaged or hostile.
            UnsupportedError: a special tensor (sparse, quantised …); see `tensor_path`.
        """
        return read_tensor(self.tensor_directory, self._data_name(which))

    def tensor_path(self, which: Value | str) -> Path:
        """Return the file of a tensor's saved values, certain to lie in `tensor_directory`.

        For other readers: ``torch.load(view.tensor_path(value), weights_only=True)``.

        Raises:
            RecordNotFoundError: the values were not saved, or their file is gone.
            DumpFormatError: the name points outside the folder.
        """
        return locate_tensor_file(self.tensor_directory, self._data_name(which))

    def _data_name(self, which: Value | str) -> str:
        name = which if isinstance(which, str) else which.data_name
        if name is None:
            raise RecordNotFoundError(self.records_path, "the values of this tensor were not saved")
        return name

    @cached_property
    def _journal(self) -> JournalContents | None:
        if self.records_path.name != layout.JOURNAL:
            return None
        try:
            contents = read_journal(self.records_path)
        except FileNotFoundError:
            # The step ended since it was found: its JSON files are there before the journal goes.
            self.records_path = self.directory / find_records_file(self.directory)
            return None
        except (OSError, TypeError, msgspec.ValidationError) as exc:
            raise DumpFormatError(self.records_path, f"cannot be read: {reason(exc)}") from exc
        logger.warning(
            "%s: read from the journal of a capture that was not closed; "
            "`msprobe repair` makes the JSON files",
            self.directory,
        )
        return contents

    @cached_property
    def _index(self) -> RecordIndex:
        if self._journal is None:
            return read_record_index(self.records_path)
        return journal_index(self._journal)

    @cached_property
    def _frames_by_name(self) -> Mapping[str, list[str]]:
        if self._journal is not None:
            return self._journal_frames(self._journal)
        path = self._optional_file(layout.STACK_JSON)
        return {} if path is None else _read_frames(path, read_json_object(path))

    def _optional_file(self, name: str) -> Path | None:
        path = self.directory / name
        return path if name not in self._ignored and path.exists() else None

    def _journal_frames(self, journal: JournalContents) -> dict[str, list[str]]:
        text = read_bytes(self.records_path)
        frames = {
            number: msgspec.json.decode(text[span.offset : span.offset + span.length])
            for number, span in journal.index.stacks.items()
        }
        return {
            name: frames[call.stack]
            for name, call in journal.index.calls.items()
            if call.stack in frames
        }

    def _journal_facts(self, journal: JournalContents) -> Facts | None:
        is_left_over = not is_claimed(self.directory)
        if not journal.index.facts and not is_left_over:
            return None
        text = read_bytes(self.records_path)
        parts = fact_parts(
            journal.index,
            lambda span: text[span.offset : span.offset + span.length],
            is_left_over=is_left_over,
        )
        return parse_facts(self.records_path, b"{%b}" % b",".join(facts_lines(parts)))


def find_records_file(directory: Path) -> str:
    """Return the name of the file that holds the records of a rank folder.

    A left-over journal comes first: it holds everything that the JSON files hold, and more.

    Raises:
        DumpFormatError: the folder holds none.
    """
    for name in (layout.JOURNAL, layout.DUMP_JSON, layout.DEBUG_JSON):
        if (directory / name).is_file():
            return name
    raise DumpFormatError(directory, f"holds neither {layout.DUMP_JSON} nor {layout.DEBUG_JSON}")


def _guess_framework(index: RecordIndex) -> str:
    # Dumps before 1.2 did not name it; only MindSpore has cells.
    return "mindspore" if any(name.startswith("Cell.") for name in index) else "pytorch"


def _read_frames(path: Path, entries: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, entry in entries.items():
        match entry:
            case [list() as names, list() as frames] if _are_texts(names) and _are_texts(frames):
                found.update(dict.fromkeys(map(sys.intern, names), frames))
            case list() if _are_texts(entry):
                found[key] = entry
            case _:
                raise DumpFormatError(path, f"entry {key!r} is no call stack")
    return found


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
