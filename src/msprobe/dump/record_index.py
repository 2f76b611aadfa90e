# SPDX-License-Identifier: Apache-2.0
"""The records of a ``dump.json``, found without parsing them.

msprobe writes one record a line, and mindstudio-probe indents by one space a level, so names and
positions come from a scan for line breaks (a JSON string cannot hold one): 100,000 records open in
well under a second, and become Python objects only when they are asked for. Any other formatting is
parsed whole.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msprobe.dump.records import JsonTree
from msprobe.errors import DumpFormatError
from msprobe.json_text import JSON_ERRORS, is_truncated, json_problem, parse_json
from msprobe.plain_text import reason

# The head is a few hundred bytes; the line break after "data":{ must come before this.
_MAX_HEAD_BYTES: Final = 64 << 10
_HEAD_END: Final = re.compile(rb'"data"\s*:\s*\{$')
# Begins with plain bytes, which are searched for many times as fast as a beginning of a line.
_LINE_KEY: Final = re.compile(rb'\n"([^"\\\n]*(?:\\.[^"\\\n]*)*)"[ \t\r]*:[ \t\r]*')
_TAIL: Final = re.compile(rb"\s*\}\s*\}\s*\Z")
_INDENTED_DATA: Final = re.compile(rb'\n "data": \{(?=\n)')
_INDENTED_KEY: Final = re.compile(rb'\n  "((?:[^"\\\n]|\\.)*)": ')
_INDENTED_TAIL: Final = re.compile(rb"\n \}\n\}\s*\Z")
_WINDOW_BYTES: Final = 256 << 10
_LENGTH_BITS: Final = 32
_LONGEST: Final = (1 << _LENGTH_BITS) - 1
_COMMA: Final = ord(",")
_NONFINITE_WORDS: Final = (b"NaN", b"nan", b"Infinity", b'"inf', b'"-inf')


class Span(int):
    """Position of the JSON text of a record's value.

    One number: two in a tuple take four times the memory, and a dump has 100,000.
    """

    __slots__ = ()

    def __new__(cls, start: int, end: int) -> Span:
        """Return the position of the text between two places of the file."""
        return super().__new__(cls, start << _LENGTH_BITS | end - start)

    @property
    def start(self) -> int:
        """The place of its first byte."""
        return self >> _LENGTH_BITS

    @property
    def end(self) -> int:
        """The place behind its last byte."""
        return self.start + (self & _LONGEST)


class RecordIndex(Mapping[str, JsonTree]):
    """The ``data`` of a dump file: names in file order, values parsed when asked for.

    Attributes:
        head: every other key of the file (``task``, ``level`` …).
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, JsonTree],
        entries: Mapping[str, Span | JsonTree],
        buffer: bytes,
    ) -> None:
        """Make an index; `entries` are spans in `buffer`, or values that are parsed already."""
        self.path = path
        self.head = head
        self._entries = entries
        self._buffer = buffer
        self._begin = 0  # where the buffer begins in the file
        self._stamp: tuple[int, int] | None = None
        self._nonfinite_words: tuple[bytes, ...] | None = None

    def release_text(self) -> None:
        """Free the text of the file: from now on, it is read again where it is asked for.

        Records that follow each other in the file are read together.
        """
        try:
            stamp = _stamp_of(self.path)
        except OSError:
            return
        if stamp[0] == len(self._buffer):
            self._stamp = stamp
            self._buffer = b""

    def _read(self, span: Span) -> bytes:
        begin, end = span.start - self._begin, span.end - self._begin
        if self._stamp is not None and not 0 <= begin <= end <= len(self._buffer):
            self._read_window(self._stamp, span)
            begin, end = 0, span.end - span.start
        return self._buffer[begin:end]

    def _read_window(self, stamp: tuple[int, int], span: Span) -> None:
        try:
            if _stamp_of(self.path) != stamp:
                raise DumpFormatError(self.path, "has changed while it was read")
            with self.path.open("rb", buffering=0) as file:
                file.seek(span.start)
                self._buffer = file.read(max(span.end - span.start, _WINDOW_BYTES)) or b""
                self._begin = span.start
        except OSError as exc:
            raise DumpFormatError(self.path, f"cannot be read: {reason(exc)}") from exc

    def __getitem__(self, name: str) -> JsonTree:
        """Return the value of one record, parsed.

        Raises:
            KeyError: there is none of that name.
            DumpFormatError: its text is not JSON.
        """
        entry = self._entries[name]
        if not isinstance(entry, Span):
            return entry
        try:
            return parse_json(self._read(entry))
        except JSON_ERRORS as exc:
            raise DumpFormatError(self.path, f"record {name!r}: {json_problem(exc)}") from exc

    def text(self, name: str) -> bytes | None:
        """Return the JSON text of a record's value; None if it is parsed already.

        Raises:
            KeyError: there is none of that name.
        """
        entry = self._entries[name]
        return self._read(entry) if isinstance(entry, Span) else None

    def has_same(self, other: RecordIndex, name: str) -> bool:
        """Return whether two files have the same JSON text of a record; False if unsure."""
        own, there = self._entries.get(name), other._entries.get(name)
        if not isinstance(own, Span) or not isinstance(there, Span):
            return False
        if own.end - own.start != there.end - there.start:
            return False
        return self._read(own) == other._read(there)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in file order."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a record of that name, without parsing it."""
        return name in self._entries

    def may_be_nonfinite(self, name: str) -> bool:
        """Return whether the record's text has a word for NaN or infinity; cheap, errs high."""
        if self._nonfinite_words is None:
            self._nonfinite_words = tuple(filter(self.any_may_hold, _NONFINITE_WORDS))
        return any(self.may_hold(name, word) for word in self._nonfinite_words)

    def may_hold(self, name: str, text: bytes) -> bool:
        """Return whether the record's JSON has some text in it; true where that is unknown."""
        entry = self._entries[name]
        if not isinstance(entry, Span) or self._stamp is not None:
            return True
        return self._buffer.find(text, entry.start, entry.end) >= 0

    def any_may_hold(self, text: bytes) -> bool:
        """Return whether the JSON of any record has some text in it; true where that is unknown."""
        return self._stamp is not None or not self._buffer or text in self._buffer


def _stamp_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def read_record_index(path: Path) -> RecordIndex:
    """Open ``dump.json`` or ``debug.json``.

    Raises:
        DumpFormatError: it cannot be read, is truncated, or is no dump file.
    """
    buffer = read_bytes(path)
    index = _scan_lines(path, buffer)
    if index is None:
        index = _scan_indented(path, buffer)
    return _parse_whole(path, buffer) if index is None else index


def read_cut_records(path: Path, buffer: bytes) -> RecordIndex | None:
    """Return the whole records at the beginning of a file that ends too early.

    None if there are none, or if its form is neither msprobe's nor mindstudio-probe's.
    """
    # The last record may be cut; up to it, and with an end put to it, the file is in good order.
    for last_record, end, scan in (
        (b',\n"', b"\n}}", _scan_lines),
        (b',\n  "', b"\n }\n}", _scan_indented),
    ):
        index = scan(path, buffer[: max(buffer.rfind(last_record), 0)] + end)
        if index is not None:
            return index
    return None


def read_json_object(path: Path) -> dict[str, JsonTree]:
    """Return the JSON object in a file.

    Raises:
        DumpFormatError: it cannot be read or parsed, or holds no object.
    """
    tree = _parse_file(path, read_bytes(path))
    if not isinstance(tree, dict):
        raise DumpFormatError(path, f"holds a JSON {_json_kind(tree)} instead of an object")
    return tree


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Not mapped: a mapped file that is cut short meanwhile kills the process that reads it.

    Raises:
        DumpFormatError: it cannot be read.
    """
    try:
        if not path.is_file():
            raise DumpFormatError(path, "is not a plain file" if path.exists() else "is missing")
        return path.read_bytes()
    except (OSError, MemoryError) as exc:
        raise DumpFormatError(path, f"cannot be read: {reason(exc)}") from exc


def _scan_lines(path: Path, buffer: bytes) -> RecordIndex | None:
    """Index a file with one record a line; None if it is formatted in any other way."""
    head_end = buffer.find(b"\n", 0, _MAX_HEAD_BYTES)
    if head_end < 0 or not _HEAD_END.search(buffer[:head_end].rstrip(b"\r")):
        return None
    tail_start = max(head_end, len(buffer) - 64)
    tail = _TAIL.search(buffer[tail_start:])
    if tail is None:
        return None
    try:
        head = parse_json(buffer[:head_end] + b"}}")
    except JSON_ERRORS:
        return None
    if not isinstance(head, dict):
        return None
    entries = _scan_entries(buffer, head_end + 1, tail_start + tail.start())
    if entries is None:
        return None
    del head["data"]
    return RecordIndex(path, head, entries, buffer)


def _scan_entries(buffer: bytes, start: int, stop: int) -> dict[str, Span] | None:
    if start >= stop:
        return {}
    # The line break before the first line belongs to its match.
    keys = list(_LINE_KEY.finditer(buffer, start - 1, stop))
    # Every line begins with a key, and all but the last end with a comma; or it is not ours.
    if len(keys) != buffer.count(b"\n", start - 1, stop) or keys[0].start() != start - 1:
        return None
    ends = [key.start() - 1 for key in keys[1:]]
    if any(buffer[end] != _COMMA for end in ends):
        return None
    ends.append(stop - 1 if buffer[stop - 1] == _COMMA else stop)
    entries: dict[str, Span] = {}
    for key, end in zip(keys, ends, strict=True):
        name = _key_text(key[1])
        if name is None:
            return None
        entries[name] = Span(key.end(), end)
    return entries


def _scan_indented(path: Path, buffer: bytes) -> RecordIndex | None:
    """Index a file as ``json.dump(…, indent=1)`` writes it; None if it is formatted otherwise."""
    opening = _INDENTED_DATA.search(buffer, 0, _MAX_HEAD_BYTES)
    tail = _INDENTED_TAIL.search(buffer, max(len(buffer) - 64, 0))
    if opening is None or tail is None:
        return None
    try:
        head = parse_json(buffer[: opening.end()] + b"}}")
    except JSON_ERRORS:
        return None
    entries: dict[str, Span] = {}
    keys = list(_INDENTED_KEY.finditer(buffer, opening.end(), tail.start()))
    ends = [key.start() - 1 for key in keys[1:]]
    # Each record but the last is followed by a comma; the first follows the opening at once.
    if not keys or keys[0].start() != opening.end() or any(buffer[end] != _COMMA for end in ends):
        return None
    for key, end in zip(keys, [*ends, tail.start()], strict=True):
        name = _key_text(key[1])
        if name is None:
            return None
        entries[name] = Span(key.end(), end)
    del head["data"]
    return RecordIndex(path, head, entries, buffer)


def _key_text(raw: bytes) -> str | None:
    try:
        text = json.loads(b'"%b"' % raw) if b"\\" in raw else raw.decode()
    except ValueError:
        return None
    # One text for all files of both sides of a comparison: names are a third of what they hold.
    return sys.intern(str(text))


def _parse_whole(path: Path, buffer: bytes) -> RecordIndex:
    if bytes(buffer[:64]).strip() and not bytes(buffer[:64]).lstrip().startswith((b"{", b"[")):
        raise DumpFormatError(path, "is no dump: name the folder of one, or its dump.json")
    try:
        tree = parse_json(buffer)
    except JSON_ERRORS as exc:
        problem = json_problem(exc)
        if is_truncated(exc) and read_cut_records(path, buffer) is not None:
            problem += "; msprobe repair keeps the records before the cut"
        raise DumpFormatError(path, problem) from exc
    if not isinstance(tree, dict) or not isinstance(tree.get("data"), dict):
        raise DumpFormatError(path, 'is no dump: it has no object "data" with records')
    head = {key: value for key, value in tree.items() if key != "data"}
    return RecordIndex(path, head, tree["data"], b"")


def _parse_file(path: Path, buffer: bytes) -> Any:
    try:
        return parse_json(buffer)
    except JSON_ERRORS as exc:
        raise DumpFormatError(path, json_problem(exc)) from exc


def _json_kind(tree: JsonTree) -> str:
    return {list: "list", str: "string", bool: "boolean", type(None): "null"}.get(
        type(tree), "number"
    )
