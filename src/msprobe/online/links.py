# SPDX-License-Identifier: Apache-2.0
"""Ways to the other side: a socket, or a folder that both see.

ZeroMQ is taken rather than gRPC: it needs no generated code, its wheels exist for all Pythons and
architectures, it reconnects by itself, and CURVE needs two short keys instead of certificates.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from msprobe.files import TEMPORARY_PREFIX
from msprobe.online.keys import Keys, zeromq
from msprobe.online.messages import Head, MessageError, checksum, decode, encode
from msprobe.plain_text import reason

# Bytes that are under way: more keep the line no fuller, and would be lost with the other side.
_WINDOW_BYTES: Final = 32 << 20
HELLO_S: Final = 10.0
"""Seconds that the other side has for its first answer."""
_ANSWER_S: Final = 60.0


class LinkError(Exception):
    """The other side cannot be reached, or refuses."""


class Link(Protocol):
    """A way to the other side; all methods raise `LinkError`."""

    def hello(self, head: Head) -> None:
        """Begin."""

    def put(self, path: PurePosixPath, offset: int, piece: bytes, *, is_last: bool) -> None:
        """Send a piece of a file; blocks while too much is under way."""

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file."""

    def end(self) -> None:
        """Wait until everything has arrived, and say that nothing follows."""

    def close(self) -> None:
        """Give up everything."""


class SocketLink:
    """A connection to a receiver."""

    def __init__(self, address: str, keys: Keys | None, *, hello_s: float = HELLO_S) -> None:
        """Connect; without waiting for the other side.

        Args:
            address: ``tcp://host:port``.
            keys: of the encryption; None for none.
            hello_s: how long to wait for the first answer.

        Raises:
            UnsupportedError: the package `zmq` is missing.
            LinkError: the address cannot be used.
        """
        self._zmq = zmq = zeromq()
        self._address = address
        self._hello_s = hello_s
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._ends = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._has_begun = False
        self._is_encrypted = keys is not None
        if keys is not None:
            self._socket.curve_secretkey = keys.secret
            self._socket.curve_publickey = keys.public
            self._socket.curve_serverkey = keys.other
        try:
            self._socket.connect(address)
        except zmq.ZMQError as exc:
            self.close()
            raise LinkError(f"{address}: {exc}") from exc
        self._under_way: list[int] = []

    def hello(self, head: Head) -> None:
        """Begin."""
        self._send(head, b"")
        keys = ", and the keys fit" if self._is_encrypted else ", and that it uses no keys"
        hint = f"see that the receiver runs there{keys}"
        self._wait(0, self._hello_s, f"no answer within {self._hello_s:g} s; {hint}")
        self._has_begun = True

    def put(self, path: PurePosixPath, offset: int, piece: bytes, *, is_last: bool) -> None:
        """Send a piece of a file; blocks while too much is under way."""
        head = Head(
            kind="data",
            path=str(path),
            offset=offset,
            is_last=is_last,
            checksum=checksum(piece),
        )
        self._wait(_WINDOW_BYTES, _ANSWER_S, f"no answer for {_ANSWER_S:g} s")
        self._send(head, piece)

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file."""
        self._send(Head(kind="gone", path=str(path)), b"")

    def end(self) -> None:
        """Wait until everything has arrived, and say that nothing follows."""
        self._send(Head(kind="end"), b"")
        self._wait(0, _ANSWER_S, f"no answer for {_ANSWER_S:g} s")

    def close(self) -> None:
        """Give up everything."""
        self._context.destroy(linger=0)

    def _send(self, head: Head, piece: bytes) -> None:
        self._socket.send_multipart([encode(head), piece])
        self._under_way.append(len(piece))

    def _wait(self, most_bytes: int, seconds: float, problem: str) -> None:
        """Take answers until no more than so many bytes are under way."""
        while self._under_way:
            is_needed = sum(self._under_way) > most_bytes or most_bytes == 0
            if not self._answers(seconds if is_needed else 0):
                if is_needed:
                    raise LinkError(f"{self._address}: {problem}")
                return
            self._take()

    def _answers(self, seconds: float) -> bool:
        """Return whether an answer comes within a time.

        Raises:
            LinkError: the other side is gone. Another one there would know nothing of this run.
        """
        poller = self._zmq.Poller()
        poller.register(self._socket, self._zmq.POLLIN)
        if self._has_begun:  # before, attempts to connect end, too
            poller.register(self._ends, self._zmq.POLLIN)
        ready = dict(poller.poll(int(seconds * 1000)))
        if self._ends in ready and self._socket not in ready:
            raise LinkError(f"{self._address}: the receiver is gone")
        return self._socket in ready

    def _take(self) -> None:
        try:
            answer = decode(self._socket.recv_multipart()[-1])
        except MessageError as exc:
            raise LinkError(f"{self._address}: {exc}") from exc
        if answer.kind != "ok":
            raise LinkError(f"{self._address}: {answer.problem or answer.kind}")
        self._under_way.pop(0)


class FolderLink:
    """A folder that the receiver sees, too; files get their names once they are complete."""

    def __init__(self, folder: Path) -> None:
        """Copy files to `folder`."""
        self._folder = folder

    def hello(self, head: Head) -> None:
        """Begin: the folder must be there."""
        if not self._folder.is_dir():
            raise LinkError(f"{self._folder}: there is no such folder")

    def put(self, path: PurePosixPath, offset: int, piece: bytes, *, is_last: bool) -> None:
        """Write a piece of a file."""
        try:
            write_piece(self._folder / path, offset, piece, is_last=is_last)
        except OSError as exc:
            raise LinkError(f"{self._folder / path}: {reason(exc)}") from exc

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file."""
        (self._folder / path).unlink(missing_ok=True)

    def end(self) -> None:
        """Do nothing: everything is there."""

    def close(self) -> None:
        """Do nothing: a folder needs no closing."""


def write_piece(path: Path, offset: int, piece: bytes, *, is_last: bool) -> None:
    """Write a piece of a file; a growing one at once, others get their name when complete.

    Args:
        path: the file; its folders are made.
        offset: place of the piece: the end of what was written.
        piece: the bytes.
        is_last: whether the file is complete with it. A growing file is never complete.

    Raises:
        OSError: the disk refuses, or the piece does not fit what is there.
    """
    growing = path.suffix == ".jsonl"
    target = (
        path if growing else path.with_name(f"{TEMPORARY_PREFIX}{checksum(path.name.encode())}")
    )
    if offset == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb" if offset == 0 else "r+b") as file:
        if file.seek(0, os.SEEK_END) != offset:
            raise OSError(f"a piece for byte {offset} does not follow the one before")
        file.write(piece)
    if is_last and not growing:
        target.replace(path)
