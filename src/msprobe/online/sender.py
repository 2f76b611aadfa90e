# SPDX-License-Identifier: Apache-2.0
"""`python -m msprobe.online.sender SETTINGS`: send one rank's recording while it is made.

It runs beside the training, and ends when its standard input does and everything is sent: a
training that was killed is sent up to its end. Its progress is in a small file that the
training reads. Tensors are removed here once their step was sent.
"""

from __future__ import annotations

import os
import select
import sys
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from msprobe import __version__
from msprobe.errors import MsprobeError
from msprobe.files import replacing
from msprobe.online.keys import read_keys
from msprobe.online.links import FolderLink, Link, LinkError, SocketLink
from msprobe.online.messages import PIECE_BYTES, PROTOCOL, Head
from msprobe.online.spool import Part, Spool

_LOOK_S: Final = 0.1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a sender.

    Attributes:
        dump_path: the folder that is recorded into.
        rank: name of the rank folder.
        status: the file that says how far it is.
        nfs_path: a folder that the receiver sees, or None.
        address: ``tcp://host:port`` of the receiver, or None.
        tls_path: folder of the keys; None for none.
        drops: whether calls are left out while too many bytes wait, instead of waiting.
        queue_bytes: how many bytes may wait.
    """

    dump_path: str
    rank: str
    status: str
    nfs_path: str | None = None
    address: str | None = None
    tls_path: str | None = None
    drops: bool = False
    queue_bytes: int = 1 << 30


class Status(msgspec.Struct, kw_only=True):
    """How far a sender is.

    Attributes:
        waiting_bytes: bytes that are recorded and not sent.
        sent_bytes: bytes that arrived.
        dropped_calls: calls that were left out, at least in part.
        last_step: the last step that ended and was seen; -1 for none.
        error: why nothing is sent any more; empty while it is.
        is_over: whether the sender has ended.
    """

    waiting_bytes: int = 0
    sent_bytes: int = 0
    dropped_calls: int = 0
    last_step: int = -1
    error: str = ""
    is_over: bool = False


@dataclass(slots=True)
class Sender:
    """Sends the parts of files in order.

    Attributes:
        settings: what, where.
        link: the way.
        spool: the recording.
        status: how far it is.
    """

    settings: Settings
    link: Link
    spool: Spool
    status: Status = field(default_factory=Status)
    _waiting: deque[Part] = field(default_factory=deque)
    _dropped: set[str] = field(default_factory=set)

    def run(self, training_is_over: Training) -> None:
        """Send until the training is over and everything is sent.

        Raises:
            LinkError: the other side is gone, or refuses.
        """
        self.link.hello(
            Head(
                kind="hello",
                protocol=PROTOCOL,
                version=__version__,
                rank=self.settings.rank,
                run=uuid.uuid4().hex,
            )
        )
        while True:
            is_over = training_is_over()  # asked before looking: it writes nothing afterwards
            self._look()
            if self._waiting:
                self._send_for(_LOOK_S)
            elif is_over:
                break
            else:
                time.sleep(_LOOK_S)
        self.link.end()

    def _look(self) -> None:
        """Take over what is new, or leave it out."""
        for part in self.spool.news():
            call = part.call
            is_full = self.status.waiting_bytes + part.size > self.settings.queue_bytes
            if call is not None and self.settings.drops and (is_full or call in self._dropped):
                self._dropped.add(call)
                continue
            self._waiting.append(part)
            self.status.waiting_bytes += part.size
        self.status.last_step = self.spool.last_ended
        self.status.dropped_calls = len(self._dropped)
        self.write_status()

    def _send_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._waiting and time.monotonic() < until:
            self._send(self._waiting.popleft())

    def _send(self, part: Part) -> None:
        path = PurePosixPath(part.path.relative_to(self.settings.dump_path))
        if part.is_gone:
            self.link.remove(path)
            self.spool.remove_tensors(path.parts[0])
            return
        try:
            with part.path.open("rb") as file:
                file.seek(part.offset)
                sent = 0
                while True:
                    piece = file.read(min(PIECE_BYTES, part.size - sent))
                    is_last = sent + len(piece) >= part.size or not piece
                    self.link.put(path, part.offset + sent, piece, is_last=part.is_last and is_last)
                    sent += len(piece)
                    if is_last:
                        break
        except OSError:
            return  # removed meanwhile, as by a run that replaces this one
        finally:
            self.status.waiting_bytes -= part.size
        self.status.sent_bytes += part.size

    def write_status(self) -> None:
        """Write how far it is; a full disk is the recording's to tell."""
        try:
            with replacing(Path(self.settings.status)) as temporary:
                temporary.write_bytes(msgspec.json.encode(self.status))
        except OSError:
            return


class Training:
    """Tells whether the training has ended: it holds the other end of this process's input."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def __call__(self) -> bool:
        """Return whether the training has ended, or closed its end."""
        if os.getppid() != self._parent:
            return True
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return bool(ready)


def link_of(settings: Settings) -> Link:
    """Return the way to the receiver.

    Raises:
        MsprobeError: keys or the package `zmq` are missing.
        LinkError: the address cannot be used.
    """
    if settings.nfs_path is not None:
        return FolderLink(Path(settings.nfs_path))
    keys = None if settings.tls_path is None else read_keys(Path(settings.tls_path), "client")
    return SocketLink(str(settings.address), keys)


def main(text: str) -> None:
    """Send a recording.

    Args:
        text: the settings in JSON.
    """
    settings = msgspec.json.decode(text, type=Settings)
    status = Status()
    try:
        link = link_of(settings)
        try:
            spool = Spool(Path(settings.dump_path), settings.rank)
            sender = Sender(settings, link, spool, status)
            sender.run(Training())
        finally:
            link.close()
    except (LinkError, MsprobeError) as exc:
        status.error = str(exc)
    except Exception as exc:  # noqa: BLE001 - told to the training, which goes on
        status.error = f"{type(exc).__name__}: {exc}"
    status.is_over = True
    Sender(settings, FolderLink(Path()), Spool(Path(), ""), status).write_status()


if __name__ == "__main__":
    main(sys.argv[1])
