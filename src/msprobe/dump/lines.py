# SPDX-License-Identifier: Apache-2.0
"""Lines of a journal that are not in its file yet, and where in it each record lies."""

from __future__ import annotations

import json
import os
import threading
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec

from msprobe.dump.records import JsonTree, encode

# The same variable switches off all C extensions of the recording.
_NATIVE_VARIABLE: Final = "MSPROBE_NATIVE"
_ENCODE_TEXT: Final = msgspec.json.Encoder().encode

END: Final = b"]\n"
"""The end of every line."""


class Span(msgspec.Struct, gc=False, frozen=True):
    """Position of the bytes of one value in the journal, and its place in the order.

    Like `Call` no tuple: each record has one, and Python's garbage collector walks tuples.
    """

    order: int
    offset: int
    length: int

    def is_within(self, size_bytes: int) -> bool:
        """Return whether its whole line lies in the first `size_bytes` of the journal."""
        return self.offset + self.length + len(END) <= size_bytes


OUTSIDE_CONSTRUCT: Final = -1


class Call(msgspec.Struct, gc=False, frozen=True):
    """One line of ``construct.json`` and the stack of the call.

    An order of `OUTSIDE_CONSTRUCT` keeps the call out of ``construct.json``: at L1 there is no
    tree, only stacks.
    """

    order: int
    parent: str | None
    stack: int | None


def encode_text(text: str) -> bytes:
    """Return a str as JSON."""
    try:
        return _ENCODE_TEXT(text)
    except UnicodeEncodeError:  # a lone surrogate, as in undecodable file names
        return json.dumps(text).encode()


class Lines(Protocol):
    """Lines in the making; they may come from any thread.

    Attributes:
        size_bytes: of all lines so far, waiting or taken.
    """

    @property
    def size_bytes(self) -> int:
        """Size of all lines so far, waiting or taken."""

    def record(self, name: str, order: int, data: JsonTree) -> int:
        """Add a record, and its `Span` to the index; return the size of what waits.

        Raises:
            Exception: from `encode`, for data that has no form in JSON; nothing is added then.
        """

    def call(self, name: str, order: int, parent: str | None, stack: int | None) -> int:
        """Add a call, and its `Call` to the index; return the size of what waits."""

    def line(self, line: bytes) -> int:
        """Add any other line; return where in the journal it ends."""

    def take(self) -> bytes:
        """Return the lines that wait, which then no longer do."""


class PythonLines:
    """The lines without the C extension."""

    def __init__(self, size_bytes: int, records: dict[str, Span], calls: dict[str, Call]) -> None:
        """Create it; see `new_lines`."""
        self.size_bytes = size_bytes
        self._records = records
        self._calls = calls
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def record(self, name: str, order: int, data: JsonTree) -> int:
        """Add a record; see `Lines`."""
        encoded = encode(data)
        size = len(encoded)
        line = b'["r",%d,%b,%b]\n' % (order, encode_text(name), encoded)
        with self._lock:
            end = self._add(line)
            self._records[name] = Span(order, end - size - len(END), size)
            return self._waiting_bytes

    def call(self, name: str, order: int, parent: str | None, stack: int | None) -> int:
        """Add a call; see `Lines`."""
        around = b"null" if parent is None else encode_text(parent)
        number = b"null" if stack is None else b"%d" % stack
        line = b'["c",%d,%b,%b,%b]\n' % (order, encode_text(name), around, number)
        with self._lock:
            self._add(line)
            self._calls[name] = Call(order, parent, stack)
            return self._waiting_bytes

    def line(self, line: bytes) -> int:
        """Add any other line; see `Lines`."""
        with self._lock:
            return self._add(line)

    def _add(self, line: bytes) -> int:
        self._lines.append(line)
        self._waiting_bytes += len(line)
        self.size_bytes += len(line)
        return self.size_bytes

    def take(self) -> bytes:
        """Return the lines that wait; see `Lines`."""
        with self._lock:
            lines, self._lines = self._lines, []
            self._waiting_bytes = 0
        return b"".join(lines)


def _load() -> Any:
    if os.environ.get(_NATIVE_VARIABLE) == "0":
        return None
    try:
        module = import_module("msprobe.dump._lines")
    except ImportError:
        return None
    astuple = msgspec.structs.astuple
    module.setup(msgspec.Raw, Span, Call, _ENCODE_TEXT, encode_text, msgspec.Struct, astuple)
    return module


NATIVE: Final = _load()
"""The C extension; None where it was not built, or is switched off."""

_Lines: Final = PythonLines if NATIVE is None else NATIVE.Lines


def new_lines(size_bytes: int, records: dict[str, Span], calls: dict[str, Call]) -> Lines:
    """Return the lines of a journal.

    Args:
        size_bytes: of the lines that were taken before.
        records: the index of records, to which each new one is added.
        calls: that of calls.
    """
    lines: Lines = _Lines(size_bytes, records, calls)
    return lines
