# SPDX-License-Identifier: Apache-2.0
"""Keys of the CURVE encryption (CurveZMQ, https://rfc.zeromq.org/spec/26/) as files.

``server.key`` and ``client.key`` are secret; ``server.crt`` and ``client.crt`` are what the other
side must have. Each is one line: ``msprobe-curve-secret`` or ``-public``, and 40 characters.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from msprobe.errors import UnsupportedError, UsageError
from msprobe.files import replacing
from msprobe.plain_text import reason

_SECRET: Final = "msprobe-curve-secret"
_PUBLIC: Final = "msprobe-curve-public"
_CHARACTERS: Final = 40
_MOST_BYTES: Final = 4096


class Keys(NamedTuple):
    """The keys that one side needs.

    Attributes:
        secret: its own.
        public: the same pair's other half.
        other: the public key of the other side.
    """

    secret: bytes
    public: bytes
    other: bytes


def zeromq() -> ModuleType:
    """Return the package `zmq`.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import zmq
    except ImportError as exc:
        raise UnsupportedError(
            'sending calls needs the package "pyzmq"; pip install "msprobe[online]"'
        ) from exc
    found: ModuleType = zmq
    return found


def write_keys(folder: Path) -> list[Path]:
    """Make new keys for both sides; return the files. Existing ones are not replaced.

    Raises:
        UnsupportedError: the package `zmq` is missing, or was built without CURVE.
        UsageError: a file is there already, or cannot be written.
    """
    zmq = zeromq()
    if not zmq.has("curve"):
        raise UnsupportedError("this build of ZeroMQ has no CURVE encryption")
    files: dict[Path, tuple[str, int]] = {}
    for side in ("server", "client"):
        public, secret = zmq.curve_keypair()
        files[folder / f"{side}.key"] = (f"{_SECRET} {secret.decode()}\n", 0o600)
        files[folder / f"{side}.crt"] = (f"{_PUBLIC} {public.decode()}\n", 0o644)
    taken = next((path for path in files if path.exists()), None)
    if taken is not None:
        raise UsageError(f"{taken}: is there already, and keys are never replaced")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, (text, mode) in files.items():
            with replacing(path) as temporary:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
    except OSError as exc:
        raise UsageError(f"{folder}: cannot be written: {reason(exc)}") from exc
    return list(files)


def read_keys(folder: Path, side: str) -> Keys:
    """Return the keys of one side.

    Args:
        folder: holds ``{side}.key``, ``{side}.crt`` and the other side's ``.crt``.
        side: ``server``, which receives, or ``client``.

    Raises:
        UsageError: a file is missing, or holds no such key.
    """
    other = "client" if side == "server" else "server"
    return Keys(
        _read(folder / f"{side}.key", _SECRET),
        _read(folder / f"{side}.crt", _PUBLIC),
        _read(folder / f"{other}.crt", _PUBLIC),
    )


def _read(path: Path, kind: str) -> bytes:
    try:
        with path.open("rb") as file:
            words = file.read(_MOST_BYTES).split()
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read: {reason(exc)}") from exc
    if len(words) != 2 or words[0] != kind.encode() or len(words[1]) != _CHARACTERS:
        raise UsageError(f"{path}: is no {kind} key; make keys with: msprobe online-keys DIR")
    return words[1]
