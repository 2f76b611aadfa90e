# SPDX-License-Identifier: Apache-2.0
"""Build ``dump.json``, ``stack.json``, ``construct.json`` and ``facts.json`` from a journal.

Values are copied as bytes, never parsed: time is linear in the journal's size, and memory stays
small. Each file appears at once under its name (temporary name, then rename), so that a reader
never meets half of one. Each record is one line.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msprobe.dump import layout
from msprobe.dump.facts import Ended, Ending, encode_fact, facts_lines
from msprobe.dump.journal import DumpHead, JournalContents, JournalIndex
from msprobe.dump.lines import NATIVE, OUTSIDE_CONSTRUCT, Span, encode_text
from msprobe.dump.records import JsonTree, encode
from msprobe.files import write_whole

_BLOCK_BYTES: Final = 1 << 20
_CACHED_BLOCKS: Final = 16  # 16 MiB: records come nearly in the order in which they were written
_CHUNK_BYTES: Final = 1 << 20
# Records that lie in so many times their size are read one by one.
_SCATTERED: Final = 8
_LAST: Final = 1 << 62  # order of records that come behind all calls


def build_from_journal(
    contents: JournalContents,
    directory: Path,
    more: Mapping[str, JsonTree] = MappingProxyType({}),
) -> int:
    """Build the JSON files of a journal found on disk; replaces existing ones.

    Args:
        contents: the result of `read_journal`.
        directory: the rank folder to write to.
        more: further records.

    Returns:
        The number of bytes written.

    Raises:
        OSError: the journal cannot be read or the folder cannot be written.
    """
    descriptor = os.open(contents.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        facts = build_facts(contents.index, descriptor, directory, is_left_over=True)
        return facts + build_json_files(contents.index, descriptor, directory, more)
    finally:
        os.close(descriptor)


def build_json_files(
    index: JournalIndex,
    descriptor: int,
    directory: Path,
    more: Mapping[str, JsonTree] = MappingProxyType({}),
) -> int:
    """Build the JSON files of an index whose journal is open as `descriptor`, but for the facts.

    The file of records comes last: where it is new, the others are too.

    Args:
        index: of the journal.
        descriptor: the journal.
        directory: the rank folder to write to.
        more: further records; each comes where its call is, or at the end.

    Returns:
        The number of bytes written.

    Raises:
        OSError: the journal cannot be read or the folder cannot be written.
    """
    source = _BlockReader(descriptor)
    written = 0
    if index.head.extra_info:
        construct, users = _placed_calls(index)
        stacks = _stack_lines(users, index, source)
        written += _write_lines(directory / layout.STACK_JSON, b"{", stacks, b"}")
        written += _write_lines(directory / layout.CONSTRUCT_JSON, b"{", construct, b"}")
    return written + _write_lines(
        directory / layout.records_file(index.head.level),
        _opening(index.head),
        _record_lines(index, source, more),
        b"}}",
    )


def build_facts(
    index: JournalIndex, descriptor: int, directory: Path, *, is_left_over: bool = False
) -> int:
    """Build ``facts.json`` of an index whose journal is open as `descriptor`, if it has any.

    Args:
        index: of the journal.
        descriptor: the journal.
        directory: the rank folder to write to.
        is_left_over: whether the process that wrote the journal is gone.

    Returns:
        The number of bytes written.

    Raises:
        OSError: the journal cannot be read or the folder cannot be written.
    """
    if not index.facts:
        return 0
    parts = fact_parts(index, _BlockReader(descriptor).read, is_left_over=is_left_over)
    return _write_lines(directory / layout.FACTS_JSON, b"{", facts_lines(parts), b"}")


def fact_parts(
    index: JournalIndex, read: Callable[[Span], bytes], *, is_left_over: bool
) -> dict[str, list[bytes]]:
    """Return the encoded parts of the facts in a journal.

    Args:
        index: of the journal.
        read: returns the bytes of a span.
        is_left_over: whether the process that wrote the journal is gone: the step was then killed
            unless it says how it ended.
    """
    parts = {part: [read(span) for span in spans] for part, spans in index.facts.items()}
    if is_left_over:
        parts.setdefault("ended", [encode_fact(Ended(how=Ending.KILLED))])
    return parts


class _BlockReader:
    """Reads spans of a file through a small cache of blocks.

    Not one read a span, because each read hands the GIL to the training thread and waits up to
    5 ms to get it back; not mmap: a file that another process cuts short would kill this one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._last = b""  # the block that was read last, and where it begins
        self._begin = 0

    def read(self, span: Span) -> bytes:
        start = span.offset - self._begin
        value = self._last[start : start + span.length] if start >= 0 else b""
        return value if len(value) == span.length else self._read_elsewhere(span)

    def read_range(self, begin: int, end: int) -> bytes:
        """Return the bytes between two places."""
        whole = os.pread(self._descriptor, end - begin, begin)
        while len(whole) < end - begin:
            more = os.pread(self._descriptor, end - begin - len(whole), begin + len(whole))
            if not more:
                raise _too_short(end)
            whole += more
        return whole

    def _read_elsewhere(self, span: Span) -> bytes:
        first, start = divmod(span.offset, _BLOCK_BYTES)
        end = start + span.length
        if end <= _BLOCK_BYTES:
            value = self._block(first)[start:end]
        else:
            last = (span.offset + span.length - 1) // _BLOCK_BYTES
            blocks = b"".join(self._block(number) for number in range(first, last + 1))
            value = blocks[start:end]
        if len(value) != span.length:
            raise _too_short(span.offset + span.length)
        return value

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            block = os.pread(self._descriptor, _BLOCK_BYTES, number * _BLOCK_BYTES)
            self._blocks[number] = block
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        self._last, self._begin = block, number * _BLOCK_BYTES
        return block


def _too_short(end: int) -> OSError:
    return OSError(f"the journal ends before byte {end}")


def _write_lines(path: Path, opening: bytes, lines: Iterable[bytes], closing: bytes) -> int:
    return write_whole(path, _chunks(opening, lines, closing))


def _chunks(opening: bytes, lines: Iterable[bytes], closing: bytes) -> Iterator[bytes]:
    waiting: list[bytes] = []
    start, size = opening + b"\n", 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield start + b",\n".join(waiting)
            waiting.clear()
            start, size = b",\n", 0
    if waiting:
        yield start + b",\n".join(waiting) + b"\n" + closing
    else:
        yield b"\n" + closing if start == b",\n" else opening + closing


def _opening(head: DumpHead) -> bytes:
    fields: dict[str, str | int | None] = {
        "task": head.task,
        "level": head.level,
        "framework": head.framework,
        "dump_data_dir": head.dump_data_dir,
    }
    if head.noise_seed is not None:
        fields["noise_seed"] = head.noise_seed
    return json.dumps(fields, separators=(",", ":")).encode()[:-1] + b',"data":{'


def _record_lines(
    index: JournalIndex, source: _BlockReader, more: Mapping[str, JsonTree]
) -> Iterator[bytes]:
    records = index.records
    orders = {name: span.order for name, span in records.items()}
    if NATIVE is not None and not more:
        yield from _joined_records(records, sorted(orders, key=orders.__getitem__), source)
        return
    orders |= {name: index.calls[name].order if name in index.calls else _LAST for name in more}
    for name in sorted(orders, key=orders.__getitem__):
        span = records.get(name)
        text = encode(more[name], nonfinite=True) if span is None else source.read(span)
        yield b"%b: %b" % (encode_text(name), text)


def _joined_records(
    records: dict[str, Span], names: list[str], source: _BlockReader
) -> Iterator[bytes]:
    """Yield lines of records, many at once, with commas between: one call in C for each chunk."""
    first = 0
    while first < len(names):
        last, begin, end = NATIVE.extent(records, names, first, _CHUNK_BYTES)
        if end - begin <= _SCATTERED * _CHUNK_BYTES:
            whole = source.read_range(begin, end)
            yield NATIVE.join_records(records, names, first, last, whole, begin)
        else:
            for name in names[first:last]:
                yield b"%b: %b" % (encode_text(name), source.read(records[name]))
        first = last


def _placed_calls(index: JournalIndex) -> tuple[list[bytes], Mapping[int, bytes]]:
    """Return the lines of ``construct.json``, and for each stack the encoded names of its calls."""
    if NATIVE is not None:
        joined, names = NATIVE.join_calls(index.calls, OUTSIDE_CONSTRUCT)
        return [joined] if joined else [], names
    lines: list[bytes] = []
    users: defaultdict[int, list[bytes]] = defaultdict(list)
    for name, call in sorted(index.calls.items(), key=lambda item: item[1].order):
        encoded = encode_text(name)
        if call.order != OUTSIDE_CONSTRUCT:
            parent = b"null" if call.parent is None else encode_text(call.parent)
            lines.append(b"%b: %b" % (encoded, parent))
        if call.stack is not None:
            users[call.stack].append(encoded)
    return lines, {stack: b",".join(names) for stack, names in users.items()}


def _stack_lines(
    users: Mapping[int, bytes], index: JournalIndex, source: _BlockReader
) -> Iterator[bytes]:
    for number, names in sorted(users.items()):
        span = index.stacks.get(number)
        frames = b"[]" if span is None else source.read(span)
        yield b'"%d": [[%b],%b]' % (number, names, frames)
