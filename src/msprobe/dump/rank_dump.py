# SPDX-License-Identifier: Apache-2.0
"""Write the dump of one step and rank: journal, JSON files, tensor files, account.

Nothing here raises for a problem of the disk. The first one is logged as an error, the dump is
marked incomplete, and the calls that follow do nothing: the training goes on.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from msgspec import Raw

from msprobe.dump import layout
from msprobe.dump.background import BackgroundQueue
from msprobe.dump.facts import encode_fact
from msprobe.dump.journal import Journal, JournalIndex
from msprobe.dump.json_files import build_facts, build_json_files
from msprobe.dump.records import JsonTree, encode
from msprobe.dump.tensor_store import MAX_LINKS, TensorPayload, TensorStore
from msprobe.errors import DumpWriteError, UsageError
from msprobe.files import remove_quietly, write_whole

logger = logging.getLogger(__name__)

# Building the JSON again and again (a start/stop pair for each micro-batch) must not cost quadratic
# time: a build that took longer than the first figure is followed by at least so many times its
# own duration without another. What is new meanwhile is safe in the journal.
_CHEAP_BUILD_S: Final = 0.005
_PAUSE_FACTOR: Final = 20.0

_MAX_KINDS: Final = 1000  # of errors listed for one dump

_ADVICE: Final = {
    errno.ENOSPC: "the disk is full; free some space or choose another dump_path",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another dump_path",
    errno.EFBIG: "the file would be larger than this system allows",
    errno.EROFS: "the file system is read-only; choose another dump_path",
    errno.EACCES: "no permission to write here; choose another dump_path",
    errno.EPERM: "no permission to write here; choose another dump_path",
    errno.ENOENT: "the folder vanished while capturing",
    errno.ENOTDIR: "a file is in the place of the folder",
    errno.EEXIST: "a file is in the place of the folder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAccount:
    """Summary of the files written for one step and rank.

    Attributes:
        records: records in the JSON file.
        tensors: tensor files written, copies included.
        linked: tensor files that are only further names of written ones.
        bytes_written: size of the tensor files written and of the JSON files.
        errors: messages of what failed, each kind once.
        complete: whether everything that was put is on disk.
    """

    records: int = 0
    tensors: int = 0
    linked: int = 0
    bytes_written: int = 0
    errors: list[str] = field(default_factory=list)
    complete: bool = True


class RankDump:
    """The dump of one step and rank, being written. Made by `DumpWriter.open`.

    Every ``put`` may be called from any thread. On the writer's own thread (inside a submitted
    task) nothing waits in the queue: every tensor is written at once.

    Args:
        directory: the rank folder.
        journal: its journal; None makes a dump that takes everything and writes nothing.
        queue: the background thread that all dumps of a process share.
        report: logs the first problem of a kind as an error.
        max_links: see `TensorStore`.
        prepare: makes and clears the folder of a dump that is held in memory; None for one that is
            written as it grows. A held one has no tensor files.

    Attributes:
        lines: of the journal, while records are taken; then None.
        extra_info: whether calls and stacks are written, too.
    """

    def __init__(
        self,
        directory: Path,
        journal: Journal | None,
        *,
        queue: BackgroundQueue,
        report: Callable[[DumpWriteError, int], None],
        max_links: int = MAX_LINKS,
        prepare: Callable[[Path], None] | None = None,
    ) -> None:
        self._prepare = prepare
        self._is_parked = False
        self.directory = directory
        self._journal = journal
        self.extra_info = journal is not None and journal.index.head.extra_info
        self._queue = queue
        self._report = report
        self._store = TensorStore(directory / layout.TENSOR_FOLDER, max_links=max_links)
        self._is_closed = False
        self._is_forked = False
        self._has_tensors = False
        self._tensors_failed = False
        self._lost_files: set[str] = set()
        self._built_size = -1
        self._built_records = -1  # the part of it that is no facts
        self._built_bytes = {"facts": 0, "records": 0}
        self._build_s = 0.0
        self._built_at = 0.0
        self._account = WriteAccount()
        self._problems: dict[str, None] = {}
        self._is_reported = False
        self._error_lock = threading.Lock()
        self._error_kinds: set[str] = set()
        # The two questions of every put, each one attribute: may records, may tensors still come?
        self.lines = None if journal is None else journal.lines
        self._takes_tensors = journal is not None and prepare is None

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is put: `close` or `park` was called."""
        return self._is_closed or self._is_parked

    @property
    def is_held(self) -> bool:
        """Whether it is in memory alone."""
        return self._prepare is not None

    @property
    def size_bytes(self) -> int:
        """Length of the journal."""
        return 0 if self._journal is None else self._journal.size_bytes

    def park(self) -> None:
        """End a dump that is held; `release` or `discard` comes later."""
        self._queue.run(self.flush)
        self._is_parked = True
        self.lines = None

    def release(self) -> WriteAccount:
        """Write a dump that is held, as `close` does for any other."""
        prepare, self._prepare = self._prepare, None
        if prepare is not None and not self._is_forked:
            try:
                prepare(self.directory)
            except OSError as exc:
                self.fail(exc, self.directory)
        return self.close()

    def discard(self) -> None:
        """Forget a dump that is held."""
        self._is_closed = True
        if self._journal is not None:
            self._journal.abandon()

    def put_record(self, name: str, order: int, data: JsonTree, *, nonfinite: bool = False) -> None:
        """Write a record; a later one of the same name replaces it.

        Args:
            name: the record's name.
            order: its place in the JSON file, any integer.
            data: the parts; turned into bytes before the call returns.
            nonfinite: whether a float in it is NaN or infinite.

        Raises:
            UsageError: the dump was closed.
        """
        if self.lines is None or self._journal is None:
            self._refuse_if_closed()
            return
        journal = self._journal
        try:
            if nonfinite:
                data = Raw(encode(data, nonfinite=True))
            journal.put_record(name, order, data)
        except OSError as exc:
            self.fail(exc, journal.path)
        except Exception as exc:  # noqa: BLE001  the user's arguments may hold anything
            self.put_record(name, order, Raw(self._encode_leniently(name, data, exc)))

    def put_call(self, name: str, call_order: int, parent: str | None, stack: int | None) -> None:
        """Write a call for ``construct.json``, and for ``stack.json`` if it has a stack.

        Raises:
            UsageError: the dump was closed.
        """
        if self.lines is None or self._journal is None:
            self._refuse_if_closed()
            return
        if not self.extra_info:
            return
        try:
            self._journal.put_call(name, call_order, parent, stack)
        except OSError as exc:
            self.fail(exc, self._journal.path)

    def put_frames(self, stack: int, frames: Sequence[str]) -> None:
        """Write the frames of a stack, innermost first.

        Raises:
            UsageError: the dump was closed.
        """
        if self.lines is None or self._journal is None:
            self._refuse_if_closed()
            return
        if not self.extra_info:
            return
        try:
            self._journal.put_frames(stack, _encode_frames(tuple(frames)))
        except OSError as exc:
            self.fail(exc, self._journal.path)

    def put_fact(self, part: str, value: object) -> None:
        """Write a part of the facts, or an entry of it (see `msprobe.dump.facts.Facts`).

        Raises:
            UsageError: the dump was closed.
        """
        if self.lines is None or self._journal is None:
            self._refuse_if_closed()
            return
        try:
            self._journal.put_fact(part, encode_fact(value))
        except OSError as exc:
            self.fail(exc, self._journal.path)

    def tensor_file_name(self, wanted: str) -> str:
        """Return the ``data_name`` of a tensor whose file is to have this name."""
        return self._store.file_name(wanted)

    def put_tensor(self, file_name: str, payload: TensorPayload) -> None:
        """Queue a tensor file; waits while the queue is full.

        Args:
            file_name: its name in ``dump_tensor_data``, passed through `layout.safe_file_name`;
                the record's ``data_name`` must be that function's result (`tensor_file_name`).
            payload: serialises itself on the writer's thread. It must not change after the call.

        Raises:
            UsageError: the dump was closed.
        """
        if not self._takes_tensors:
            self._refuse_if_closed()
            return
        self._announce_tensors()
        name = layout.safe_file_name(file_name)
        self._queue.put(partial(self._write_tensor, name, payload), payload.size_bytes)

    def link_tensor(self, file_name: str, existing: str) -> None:
        """Give a tensor file that was put before a second name: its value is the same.

        Raises:
            UsageError: the dump was closed.
        """
        if not self._takes_tensors:
            self._refuse_if_closed()
            return
        self._announce_tensors()
        name, source = layout.safe_file_name(file_name), layout.safe_file_name(existing)
        self._queue.put(partial(self._link_tensor, name, source))

    def build_json(self) -> None:
        """Write everything queued so far and build the JSON files; waits for both.

        Costs nothing when nothing is new. If building takes long and is asked for again soon, the
        call returns at once and the files are built after a pause of 20 times the last duration,
        or at `close`, whichever is earlier: many ``stop()`` calls in one step stay cheap.

        Raises:
            UsageError: the dump was closed.
        """
        self._refuse_if_closed()
        journal = self._journal
        if self.is_held:
            return
        if self._is_forked or journal is None or journal.size_bytes == self._built_size:
            return
        pause_s = _PAUSE_FACTOR * self._build_s if self._build_s > _CHEAP_BUILD_S else 0.0
        due = self._built_at + pause_s
        if due > time.monotonic():
            self._queue.put_later(self, self._build, due)
        else:
            self._queue.run(self._build)

    def close(self) -> WriteAccount:
        """Write everything, build the JSON files, remove the journal, and return a summary.

        The journal stays where the JSON files could not be built: `open_dump` reads it. A second
        call returns the same account.
        """
        if self._is_forked:
            self._is_closed = True
        if self.is_held and not self._is_closed:
            self.discard()
        if not self._is_closed:
            self._queue.run(self._finish)
        return self._account

    def write_account(self, fields: dict[str, JsonTree]) -> None:
        """Write ``account.json``, also after `close`."""
        if self._is_forked:
            return
        text = json.dumps(fields, indent=1, default=str)
        try:
            write_whole(self.directory / layout.ACCOUNT_JSON, [text.encode()])
        except OSError as exc:
            self._note(exc, self.directory / layout.ACCOUNT_JSON)

    def log_error(self, kind: str, text: str) -> None:
        """Add an entry to ``dump_error_info.log``; only the first one of its kind is kept."""
        if self._is_forked:
            return
        with self._error_lock:
            if kind in self._error_kinds or len(self._error_kinds) >= _MAX_KINDS:
                return
            self._error_kinds.add(kind)
            moment = time.strftime("%Y-%m-%d %H:%M:%S %z")
            entry = f"[{moment}] {kind}: {text.rstrip()}\n"
            try:
                with (self.directory / layout.ERROR_LOG).open(
                    "a", encoding="utf-8", errors="backslashreplace"
                ) as file:
                    file.write(entry)
            except OSError as exc:
                logger.debug("cannot write %s: %s", layout.ERROR_LOG, exc)

    def flush(self) -> None:
        """Bring the journal's waiting lines to the file; called every interval by the writer."""
        if self._journal is None or self._is_forked or self._is_closed:
            return
        try:
            self._journal.flush()
        except OSError as exc:
            self.fail(exc, self._journal.path)

    def fail(self, exc: OSError, path: Path) -> None:
        """Mark the dump as failed; nothing is accepted from now on."""
        self.lines = None
        self._takes_tensors = False
        self._tensors_failed = True
        self._note(exc, path)

    def abandon(self) -> None:
        """Stop all work without taking a lock: for a forked child."""
        self._is_forked = True
        self.lines = None
        self._takes_tensors = False
        self._account = replace(self._account, complete=False, errors=["forked child"])
        if self._journal is not None:
            self._journal.abandon()

    # From here on: the writer's thread.

    def _write_tensor(self, name: str, payload: TensorPayload) -> None:
        if self._tensors_failed:
            self._lost_files.add(name)
            return
        path = self._store.folder / name
        try:
            written = self._store.write(name, payload)
        except Exception as exc:  # noqa: BLE001  torch reports disk problems as RuntimeError
            self._lost_files.add(name)
            problem = self._disk_problem(exc, payload.size_bytes)
            if problem is not None:
                self._fail_tensors(problem, path)
            else:
                self._note_text("tensor files", f"{path}: {type(exc).__name__}: {exc}")
            return
        self._lost_files.discard(name)
        self._add(tensors=1, bytes_written=written)

    def _link_tensor(self, name: str, existing: str) -> None:
        if self._tensors_failed or existing in self._lost_files:
            self._lost_files.add(name)
            return
        try:
            copied = self._store.link(name, existing)
        except FileNotFoundError:
            self._lost_files.add(name)
            if self._store.folder.is_dir():
                self._note_text("links", f"{name}: no file {existing} to share")
            else:
                self._fail_tensors(_error(errno.ENOENT), self._store.folder)
        except OSError as exc:
            self._lost_files.add(name)
            self._fail_tensors(exc, self._store.folder / name)
        else:
            self._lost_files.discard(name)
            if copied:
                self._add(tensors=1, bytes_written=copied)
            else:
                self._add(linked=1)

    def _disk_problem(self, exc: Exception, size_bytes: int) -> OSError | None:
        """Return the disk's error in words, or None if the value itself is the problem."""
        if isinstance(exc, OSError):
            return exc
        if not self._store.folder.is_dir():
            return _error(errno.ENOENT)
        try:
            free = shutil.disk_usage(self._store.folder).free
        except OSError as usage_error:
            return usage_error
        return _error(errno.ENOSPC) if free <= size_bytes else None

    def _build(self) -> None:
        self._try_build()

    def _try_build(self) -> bool:
        """Build the JSON files; return whether they are on disk."""
        journal = self._journal
        if journal is None:
            return False
        started = time.monotonic()
        try:
            journal.flush()
        except OSError as exc:
            self.fail(exc, journal.path)
        index = journal.snapshot()
        if index.size_bytes == self._built_size:
            return True
        try:
            self._build_files(index, journal.descriptor)
        except OSError as exc:
            self.fail(exc, self.directory)
            return False
        self._built_size = index.size_bytes
        self._account = replace(self._account, records=len(index.records))
        self._built_at = time.monotonic()
        self._build_s = self._built_at - started
        return True

    def _build_files(self, index: JournalIndex, descriptor: int) -> None:
        """Build the files; those of the records only when there are new ones since the last time.

        A step of an optimizer comes behind ``stop``, which has built them all.
        """
        self._built_bytes["facts"] = build_facts(index, descriptor, self.directory)
        records_size = index.size_bytes - index.fact_bytes
        if records_size != self._built_records:
            size = build_json_files(index, descriptor, self.directory)
            self._built_bytes["records"] = size
            self._built_records = records_size

    def _finish(self) -> None:
        # Only here, behind all submitted tasks: they may still put something.
        if self._is_closed:
            return
        self._is_closed = True
        self.lines = None
        self._takes_tensors = False
        self._queue.cancel_later(self)
        is_built = self._try_build()
        if self._journal is not None:
            self._journal.close()
            if is_built:
                remove_quietly(self._journal.path)
        self._add(bytes_written=sum(self._built_bytes.values()))
        self._account = replace(
            self._account, errors=list(self._problems), complete=not self._problems
        )

    def _add(self, *, tensors: int = 0, linked: int = 0, bytes_written: int = 0) -> None:
        account = self._account
        self._account = replace(
            account,
            tensors=account.tensors + tensors,
            linked=account.linked + linked,
            bytes_written=account.bytes_written + bytes_written,
        )

    # Problems.

    def _refuse_if_closed(self) -> None:
        if self._is_closed and not self._is_forked:
            raise UsageError(f"{self.directory}: the dump is closed; nothing more can be put")

    def _announce_tensors(self) -> None:
        """Make the folder of tensor files and name it in the head; called before the first one."""
        if self._has_tensors or self._journal is None:
            return
        self._has_tensors = True
        try:
            self._store.make_folder()
        except OSError as exc:
            self._fail_tensors(exc, self._store.folder)
            return
        self._journal.put_data_dir(str(self._store.folder))

    def _fail_tensors(self, exc: OSError, path: Path) -> None:
        """Give up on tensor files. Records go on: they are small, and may still find room."""
        self._takes_tensors = False
        self._tensors_failed = True
        self._note(exc, path)

    def _note(self, exc: OSError, path: Path) -> None:
        code = exc.errno or 0
        advice = _ADVICE.get(code, "the dump is incomplete from here on")
        if code == errno.ENOENT and self._journal is None:
            advice = "the folder cannot be made; choose another dump_path"
        problem = DumpWriteError(path, f"cannot be written: {exc.strerror or exc}: {advice}")
        self._problems.setdefault(str(problem))
        if self._is_reported:  # follow-up errors would only confuse
            logger.debug("%s", problem)
            return
        self._is_reported = True
        self._report(problem, code)

    def _note_text(self, kind: str, text: str) -> None:
        if len(self._problems) < _MAX_KINDS:
            self._problems.setdefault(text)
        self.log_error(kind, text)

    def _encode_leniently(self, name: str, data: JsonTree, exc: Exception) -> bytes:
        """Encode a refused record without the parts that cannot be encoded, and note them."""
        text = f"{name} holds something that JSON has no form for: {exc}"
        self.log_error(f"record {type(exc).__name__}", text)
        return json.dumps(_plain(data), separators=(",", ":")).encode()


@lru_cache(maxsize=1024)  # the stacks of one step are those of the next
def _encode_frames(frames: tuple[str, ...]) -> bytes:
    # Not msgspec: source lines and paths may hold lone surrogates.
    return json.dumps(frames, separators=(",", ":")).encode()


def _plain(tree: JsonTree) -> JsonTree:
    if tree is None or isinstance(tree, str | int | float | bool):
        return tree
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    try:
        return json.loads(encode(tree, nonfinite=True))
    except Exception:  # noqa: BLE001  anything may come
        return {"type": type(tree).__name__, "value": None}


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
