# SPDX-License-Identifier: Apache-2.0
"""The append-only journal of a dump that is being captured: one JSON array a line.

    ["head", {"version", "task", "level", "framework", "dump_data_dir", "extra_info", "began",
             "noise_seed"}]
    ["r", order, name, data]              a record
    ["c", call order, name, parent, stack]  a call; parent and stack may be null
    ["s", stack, [frames]]                the frames of a stack
    ["f", part, value]                    a part of the facts, or an entry of it

A later line of the same kind and name replaces the earlier one; facts are all kept, in order. The
process may be killed at any byte: a last line without its line break is dropped by `read_journal`.
Floats may be the bare ``NaN`` and ``Infinity`` of Python's `json`, except in facts.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import tempfile
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from msprobe.dump.lines import END, Call, Span, new_lines
from msprobe.dump.records import JsonTree
from msprobe.errors import DumpFormatError
from msprobe.files import temporary_name
from msprobe.json_text import parse_json

logger = logging.getLogger(__name__)

JOURNAL_VERSION: Final = 1

# Lines that wait in memory for the next flush; beyond it the calling thread writes them itself.
BUFFER_BYTES: Final = 8 << 20

_RECORD_LINE: Final = re.compile(rb'\["r",(-?\d+),("(?:[^"\\]|\\.)*"),')
_FACT_LINE: Final = re.compile(rb'\["f","([a-z_]+)",')

_CHECK: Final = msgspec.json.Decoder(msgspec.Raw)  # syntax only, a quarter of the time

_Key = TypeVar("_Key", int, str)


@dataclass(frozen=True, slots=True)
class DumpHead:
    """Facts at the top of ``dump.json``: task, level, framework.

    Attributes:
        task: ``statistics``, ``tensor``, …
        level: ``L0``, ``L1``, ``mix``, ``L2``, ``debug``.
        framework: ``pytorch``, ``mindspore``.
        dump_data_dir: the folder of the tensor files; None while there are none. Filled in by the
            writer.
        extra_info: whether ``stack.json`` and ``construct.json`` belong to the dump. Filled in by
            the writer.
        began: when the process loaded msprobe, in seconds since 1970; only journals hold it.
        noise_seed: of the moves of operators in the task ``noise_floor``; None for all others.
    """

    task: str
    level: str
    framework: str
    dump_data_dir: str | None = None
    extra_info: bool = True
    began: float | None = None
    noise_seed: int | None = None


@dataclass(slots=True)
class JournalIndex:
    """Index of a journal; the values of records and the frames stay in the file.

    Attributes:
        head: the newest head line.
        records: record name → position of its value.
        calls: record name → its call.
        stacks: stack number → position of its list of frames.
        facts: part of the facts → positions of its values.
        fact_bytes: size of the lines of facts.
        size_bytes: end of the last line that counts.
    """

    head: DumpHead
    records: dict[str, Span] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    stacks: dict[int, Span] = field(default_factory=dict)
    facts: dict[str, list[Span]] = field(default_factory=dict)
    fact_bytes: int = 0
    size_bytes: int = 0

    def copy(self) -> JournalIndex:
        """Return an index with the same entries."""
        return JournalIndex(
            self.head,
            dict(self.records),
            dict(self.calls),
            dict(self.stacks),
            {part: list(spans) for part, spans in self.facts.items()},
            self.fact_bytes,
            self.size_bytes,
        )

    def cut_off(self, size_bytes: int) -> None:
        """Forget entries beyond `size_bytes`, which never reached the disk."""
        if size_bytes < self.size_bytes:
            self.size_bytes = size_bytes
            self.records = _within(self.records, size_bytes)
            self.stacks = _within(self.stacks, size_bytes)
            self.facts = {
                part: [span for span in spans if span.is_within(size_bytes)]
                for part, spans in self.facts.items()
            }


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """A journal as it was found on disk.

    Attributes:
        path: the journal.
        index: its records, calls and stacks.
        damaged_lines: complete lines that are no valid entry; they are left out.
        is_torn: whether the last line was cut off, as by a kill; it is left out.
    """

    path: Path
    index: JournalIndex
    damaged_lines: int
    is_torn: bool


class Journal:
    """The writing side. Lines may come from any thread; `flush` brings them to the file.

    Args:
        path: the journal's file; an existing one is replaced.
        head: the head of the dump.
        in_memory: whether the lines stay in memory, and no file is made.

    Attributes:
        lines: those that wait; `flush` is due when they are longer than `BUFFER_BYTES`.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, head: DumpHead, *, in_memory: bool = False) -> None:
        self.path = path
        self._is_in_memory = in_memory
        self.index = JournalIndex(head)
        self.lines = new_lines(0, self.index.records, self.index.calls)
        self._lock = threading.Lock()  # guards the rest of the index
        self._file_lock = threading.Lock()  # guards the file; taken before _lock
        self._written = 0  # bytes that reached the file
        self._failure: OSError | None = None
        if in_memory:
            self.descriptor = memory_file()
            self.put_head(head)
            return
        # Named only once its head is in it, so that a reader never meets an empty journal.
        temporary = path.with_name(temporary_name(path.suffix))
        self.descriptor = os.open(
            temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        try:
            self.put_head(head)
            self.flush()
            temporary.replace(path)
        except OSError:
            os.close(self.descriptor)
            temporary.unlink(missing_ok=True)
            raise

    @property
    def size_bytes(self) -> int:
        """Length of all lines so far, written or not: grows with every line."""
        return self.lines.size_bytes

    def put_head(self, head: DumpHead) -> None:
        """Append a head line, which replaces the one before."""
        # Not msgspec: the folder's name may hold lone surrogates.
        fields = json.dumps({"version": JOURNAL_VERSION, **asdict(head)}, separators=(",", ":"))
        with self._lock:
            self.index.head = head
            self.lines.line(b'["head",%b]\n' % fields.encode())

    def put_data_dir(self, dump_data_dir: str) -> None:
        """Append a head line that names the folder of the tensor files."""
        self.put_head(replace(self.index.head, dump_data_dir=dump_data_dir))

    def put_record(self, name: str, order: int, data: JsonTree) -> None:
        """Append a record.

        Raises:
            OSError: the file cannot be written (only when this call had to flush).
            Exception: the data has no form in JSON.
        """
        if self.lines.record(name, order, data) > BUFFER_BYTES:
            self.flush()

    def put_call(self, name: str, order: int, parent: str | None, stack: int | None) -> None:
        """Append a call, see `Call`; raises OSError like `put_record`."""
        if self.lines.call(name, order, parent, stack) > BUFFER_BYTES:
            self.flush()

    def put_frames(self, stack: int, encoded: bytes) -> None:
        """Append the frames of a stack, a JSON list of strings; raises like `put_record`."""
        with self._lock:
            end = self.lines.line(b'["s",%d,%b]\n' % (stack, encoded))
            self.index.stacks[stack] = Span(stack, end - len(encoded) - 2, len(encoded))
        if end - self._written > BUFFER_BYTES:
            self.flush()

    def put_fact(self, part: str, encoded: bytes) -> None:
        """Append a part of the facts, or an entry of it; raises like `put_record`."""
        line = b'["f","%b",%b]\n' % (part.encode(), encoded)
        with self._lock:
            end = self.lines.line(line)
            self.index.fact_bytes += len(line)
            span = Span(0, end - len(encoded) - len(END), len(encoded))
            self.index.facts.setdefault(part, []).append(span)
        if end - self._written > BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting lines; does nothing once the journal is closed.

        Raises:
            OSError: the file cannot be written; nothing more will be.
        """
        with self._file_lock:
            self._flush()

    def _flush(self) -> None:
        waiting = memoryview(self.lines.take())
        if not waiting or self.descriptor < 0:
            return
        if self._failure is not None:
            raise self._failure
        try:
            if not (self._is_in_memory or os.fstat(self.descriptor).st_nlink):
                raise FileNotFoundError(errno.ENOENT, "the journal was removed", str(self.path))
            while waiting:
                written = os.write(self.descriptor, waiting)
                self._written += written
                waiting = waiting[written:]
        except OSError as exc:
            self._failure = exc
            raise

    def snapshot(self) -> JournalIndex:
        """Flush, and return a copy of the index without entries that did not reach the file."""
        with self._file_lock:
            try:
                self._flush()
            except OSError as exc:
                logger.debug("journal ends at byte %d: %s", self._written, exc)
            with self._lock:
                copy = self.index.copy()
            copy.size_bytes = self.lines.size_bytes  # after the copy: lines may come meanwhile
            copy.cut_off(self._written)
            return copy

    def close(self) -> None:
        """Close the file and forget the index. Lines that wait are lost: `flush` first."""
        with self._file_lock:
            self.abandon()
            with self._lock:
                size_bytes = self.lines.size_bytes
                self.index = JournalIndex(self.index.head, size_bytes=size_bytes)
                self.lines = new_lines(size_bytes, self.index.records, self.index.calls)

    def abandon(self) -> None:
        """Close the file without any lock: in a forked child, a held lock is never released."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def memory_file() -> int:
    """Return the descriptor of a new file in memory, or of one without a name where none can be.

    Raises:
        OSError: it cannot be made.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("msprobe", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read_journal(path: Path) -> JournalContents:
    """Return the contents of a journal, also of one whose process was killed while writing.

    Lines that are no valid entry are counted and left out.

    Raises:
        DumpFormatError: there is no head line, or a newer msprobe wrote the journal.
        OSError: the file cannot be read.
    """
    parser = _JournalParser(path)
    offset = 0
    is_torn = False
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                is_torn = True
                break
            parser.read_line(line, offset)
            offset += len(line)
    if parser.head is None:
        raise DumpFormatError(path, "the journal has no head line; it cannot be recovered")
    parser.index.head = parser.head
    parser.index.size_bytes = offset
    return JournalContents(
        path=path, index=parser.index, damaged_lines=parser.damaged_lines, is_torn=is_torn
    )


class _JournalParser:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: DumpHead | None = None
        self.index = JournalIndex(DumpHead("", "", ""))
        self.damaged_lines = 0

    def read_line(self, line: bytes, offset: int) -> None:
        try:
            if not (self._read_record(line, offset) or self._read_fact(line, offset)):
                self._read_other(line, offset)
        except (ValueError, TypeError, KeyError, RecursionError):
            self.damaged_lines += 1

    def _read_record(self, line: bytes, offset: int) -> bool:
        start = _RECORD_LINE.match(line)
        if start is None:
            return False
        value = _value_in(line, start.end())
        order, name = int(start[1]), parse_json(start[2])
        self.index.records[name] = Span(order, offset + start.end(), len(value))
        return True

    def _read_fact(self, line: bytes, offset: int) -> bool:
        start = _FACT_LINE.match(line)
        if start is None:
            return False
        value = _value_in(line, start.end())
        span = Span(0, offset + start.end(), len(value))
        self.index.facts.setdefault(start[1].decode(), []).append(span)
        return True

    def _read_other(self, line: bytes, offset: int) -> None:
        match parse_json(line):
            case ["head", dict() as fields]:
                self._read_head(fields)
            case ["c", int(order), str(name), None | str() as parent, None | int() as stack]:
                self.index.calls[name] = Call(order, parent, stack)
            case ["s", int() as stack, list() as frames] if _all_text(frames):
                start = line.index(b"[", 1)
                self.index.stacks[stack] = Span(stack, offset + start, len(line) - start - 2)
            case _:
                raise ValueError("unknown entry")

    def _read_head(self, fields: dict[str, Any]) -> None:
        if fields["version"] > JOURNAL_VERSION:
            raise DumpFormatError(
                self.path,
                f"journal of version {fields['version']}, newer than this msprobe can read"
                f" ({JOURNAL_VERSION})",
            )
        self.head = msgspec.convert(
            {key: value for key, value in fields.items() if key != "version"}, DumpHead
        )


def _value_in(line: bytes, start: int) -> bytes:
    """Return the value at the end of a line, checked to be JSON."""
    if not line.endswith(END):
        raise ValueError("cut off")
    value = line[start : -len(END)]
    _check(value)
    return value


def _check(text: bytes) -> None:
    try:
        _CHECK.decode(text)
    except msgspec.DecodeError:
        json.loads(text)
    if not text.isascii():
        text.decode()  # the syntax check does not look into strings


def _all_text(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _within(spans: dict[_Key, Span], size_bytes: int) -> dict[_Key, Span]:
    return {name: span for name, span in spans.items() if span.is_within(size_bytes)}
