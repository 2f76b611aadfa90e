# SPDX-License-Identifier: Apache-2.0
"""`Receiver`: writes the recordings that senders send, as a dump that grows."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Final

from msprobe import __version__
from msprobe.errors import UsageError
from msprobe.online.keys import Keys, zeromq
from msprobe.online.links import write_piece
from msprobe.online.messages import (
    PIECE_BYTES,
    PROTOCOL,
    Head,
    MessageError,
    checked_path,
    checksum,
    decode,
    encode,
)
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

_POLL_MS: Final = 100
_MOST_RANKS: Final = 4096


class Receiver:
    """Receives in a thread of its own.

    Attributes:
        folder: the dump that grows.
        address: where it listens, with the port that was chosen.
    """

    def __init__(self, address: str, keys: Keys | None, folder: Path) -> None:
        """Listen.

        Args:
            address: ``tcp://host:port``; port 0 chooses a free one.
            keys: only senders with the other key are heard; None for no encryption.
            folder: where the dump is written.

        Raises:
            UnsupportedError: the package `zmq` is missing.
            UsageError: the address cannot be listened at.
        """
        self.folder = folder
        zmq = zeromq()
        self._context = zmq.Context()
        self._authenticator = None if keys is None else _authenticator(self._context, keys.other)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        # A message is a piece of a file; larger ones are cut off with their connection.
        self._socket.maxmsgsize = 2 * PIECE_BYTES
        if keys is not None:
            self._socket.curve_secretkey = keys.secret
            self._socket.curve_publickey = keys.public
            self._socket.curve_server = True
        try:
            self._socket.bind(address)
        except zmq.ZMQError as exc:
            self._close()
            raise UsageError(f"cannot listen at {address}: {exc}") from exc
        self.address: str = self._socket.last_endpoint.decode()
        self._ranks: dict[bytes, str] = {}
        self._runs: dict[str, str] = {}
        self._ended: set[str] = set()
        self._refused: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="msprobe-receiver", daemon=True)
        self._thread.start()

    @property
    def begun(self) -> frozenset[str]:
        """Rank folders that senders began with."""
        return frozenset(self._runs)

    @property
    def ended(self) -> frozenset[str]:
        """Rank folders of which everything has arrived."""
        return frozenset(self._ended)

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                if self._socket.poll(_POLL_MS):
                    self._answer(self._socket.recv_multipart())
        finally:
            self._close()

    def _close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)

    def _answer(self, parts: list[bytes]) -> None:
        sender, *_ = parts
        try:
            self._take(sender, decode(parts[1]), b"".join(parts[2:]))
            answer = Head(kind="ok")
        except MessageError as exc:
            answer = Head(kind="error", problem=str(exc))
        except OSError as exc:
            problem = f"the receiver cannot write to {self.folder}: {reason(exc)}"
            answer = Head(kind="error", problem=problem)
        # A sender has many pieces on the way when the first is refused.
        if answer.kind != "ok" and sender not in self._refused:
            self._refused.add(sender)
            logger.warning("a sender is refused: %s", answer.problem)
        self._socket.send_multipart([sender, encode(answer)])

    def _take(self, sender: bytes, head: Head, piece: bytes) -> None:
        if head.kind == "hello":
            self._greet(sender, head)
            return
        rank = self._ranks.get(sender)
        if rank is None:
            raise MessageError("a sender that did not begin, or of before a restart")
        if head.kind == "end":
            self._ended.add(rank)
            return
        path = self.folder / checked_path(head.path, rank)
        if head.kind == "gone":
            path.unlink(missing_ok=True)
        elif head.kind == "data":
            if checksum(piece) != head.checksum:
                raise MessageError(f"{head.path}: damaged on the way")
            write_piece(path, head.offset, piece, is_last=head.is_last)
        else:
            raise MessageError(f"a message of kind {head.kind!r}")

    def _greet(self, sender: bytes, head: Head) -> None:
        if head.protocol != PROTOCOL:
            raise MessageError(
                f"the receiver (msprobe {__version__}) speaks protocol {PROTOCOL}, the sender "
                f"(msprobe {head.version}) {head.protocol}; use one version of msprobe"
            )
        checked_path(f"step0/{head.rank}/dump.json", head.rank)
        if self._runs.setdefault(head.rank, head.run) != head.run:
            raise MessageError(f"{head.rank} is received from another run already")
        if len(self._ranks) >= _MOST_RANKS:
            raise MessageError(f"more than {_MOST_RANKS} ranks")
        self._ranks[sender] = head.rank


def _authenticator(context: Any, allowed: bytes) -> Any:
    """Return a started authenticator that knows one key of senders."""
    from zmq.auth.thread import ThreadAuthenticator

    class OneKey:
        def callback(self, _domain: str, key: bytes) -> bool:
            return key == allowed

    logging.getLogger("zmq.auth").setLevel(logging.CRITICAL)
    found = ThreadAuthenticator(context)
    found.start()
    found.configure_curve_callback(domain="*", credentials_provider=OneKey())
    return found
