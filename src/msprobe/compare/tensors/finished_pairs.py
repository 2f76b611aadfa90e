# SPDX-License-Identifier: Apache-2.0
"""Outcomes that a comparison has already measured, kept in a file in case it is interrupted.

The file is in the output folder, begins with a line that names its format, and grows by one
record per pair of tensors: length and checksum of the record, then its content. Whatever a kill
leaves of the last record is cut off. A record counts only for the same two files in the same
state, the same tolerance and the same version of msprobe.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import msgspec

from msprobe.compare.tensors.tensor_pairs import TensorJob, TensorOutcome
from msprobe.dump.crc import crc32
from msprobe.dump.open_file import FileIdentity
from msprobe.numerics.element_metrics import ElementMetrics

logger = logging.getLogger(__name__)

FILE_NAME: Final = ".msprobe_unfinished_comparison"
_FORMAT: Final = 1
_RECORD: Final = struct.Struct("<II")
_MAX_RECORD_BYTES: Final = 1 << 20
# A comparison shorter than this leaves nothing to take over; it is spared the file.
_PATIENCE_S: Final = 3.0
_METRICS: Final = tuple(one.name for one in fields(ElementMetrics))
_values_of: Final = attrgetter(*_METRICS)


class FinishedPairs:
    """Outcomes on disk; a context manager around a whole comparison, all its ranks and steps.

    When the block ends in good order the file is removed; when it ends by an exception, or the
    process is killed, the next comparison into the same folder takes the outcomes over. A folder
    that cannot be written costs this, and a warning, but never the comparison.

    Args:
        folder: the output folder.
        patience_s: only a comparison that takes longer is kept.
    """

    def __init__(self, folder: Path, *, patience_s: float = _PATIENCE_S) -> None:
        self._path = folder / FILE_NAME
        self._patience_s = patience_s
        self._known: dict[bytes, TensorOutcome] = {}
        self._waiting: list[tuple[TensorJob, TensorOutcome]] = []
        self._file: BinaryIO | None = None
        self._is_usable = True
        self._begin = time.monotonic()

    def __enter__(self) -> Self:
        """Read the outcomes of an earlier comparison."""
        self._begin = time.monotonic()
        if self._path.exists():
            self._open()
        if self._known:
            logger.info("%s: %d pairs of tensors are taken over", self._path, len(self._known))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the file, or keep it for the next attempt."""
        if kind is not None:
            self._write()
        elif self._file is not None:
            with suppress(OSError):
                self._path.unlink()
        if self._file is not None:
            self._file.close()

    @property
    def count(self) -> int:
        """The number of outcomes that were found on disk."""
        return len(self._known)

    def find(self, job: TensorJob) -> TensorOutcome | None:
        """Return the outcome of a job if it is known and its files are as they were."""
        if not self._known:
            return None
        key = _key(job)
        known = None if key is None else self._known.get(key)
        if known is None:
            return None
        return TensorOutcome(job.index, known.metrics, known.problem, known.bytes_read)

    def add(self, jobs: Iterable[TensorJob], outcomes: Sequence[TensorOutcome]) -> None:
        """Keep the outcomes of jobs; those with a problem are tried anew next time."""
        if not self._is_usable:
            return
        self._waiting += zip(jobs, outcomes, strict=True)
        if time.monotonic() - self._begin >= self._patience_s:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        if self._file is None and self._is_usable:
            self._open()
        if self._file is not None:
            try:
                self._file.write(b"".join(_records(self._waiting)))
            except OSError as exc:
                self._give_up(exc)
        self._waiting.clear()

    def _open(self) -> None:
        try:
            file = self._path.open("a+b", buffering=0)
        except OSError as exc:
            self._give_up(exc)
            return
        try:
            if not _lock(file):
                self._is_usable = False  # another comparison into this folder is running
                file.close()
                return
            file.seek(0)
            text = file.readall()
            self._known, end = _read(text)
            if end < len(text) or not end:
                file.truncate(end)
            if not end:
                file.write(_first_line())
        except OSError as exc:
            file.close()
            self._give_up(exc)
            return
        self._file = file

    def _give_up(self, exc: OSError) -> None:
        self._is_usable = False
        logger.warning("%s: an interrupted comparison will not resume: %s", self._path, exc)


def _lock(file: BinaryIO) -> bool:
    """Lock the file; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _first_line() -> bytes:
    import msprobe

    return f"msprobe {msprobe.__version__} unfinished comparison {_FORMAT}\n".encode()


def _key(job: TensorJob) -> bytes | None:
    """Return a key of a job and the state of its files; None if one is not there."""
    try:
        states = [
            FileIdentity.of(os.stat(path))  # noqa: PTH116 - several times faster
            for path in _files(job)
        ]
    except (OSError, ValueError):
        return None
    facts = (
        os.fspath(job.target),
        os.fspath(job.reference),
        *map(tuple, states),
        job.tolerance.rtol,
        job.tolerance.atol,
        job.target_matrices,
        job.reference_matrices,
    )
    return hashlib.blake2b(repr(facts).encode("utf-8", "replace"), digest_size=16).digest()


def _files(job: TensorJob) -> list[str | Path]:
    products = (job.target_matrices, job.reference_matrices)
    matrices = [factor.path for product in products if product for factor in product.factors]
    return [job.target, job.reference, *matrices]


def _records(finished: Iterable[tuple[TensorJob, TensorOutcome]]) -> Iterator[bytes]:
    for job, outcome in finished:
        key = None if outcome.metrics is None or outcome.problem else _key(job)
        if key is not None:
            content = _packed((key, outcome.bytes_read, _values_of(outcome.metrics)))
            yield _RECORD.pack(len(content), crc32(content)) + content


def _packed(record: tuple[bytes, int, tuple[Any, ...]]) -> bytes:
    try:
        return msgspec.msgpack.encode(record, enc_hook=_plain)
    except OverflowError:  # an integer of more than 64 bits
        key, bytes_read, values = record
        return msgspec.msgpack.encode((key, bytes_read, [_plain(value) for value in values]))


def _plain(value: Any) -> Any:
    """Return a value that MessagePack can hold: no complex number, no huge integer."""
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, int) and value.bit_length() > 63:
        return ["int", str(value)]
    return value


def _value(plain: Any) -> Any:
    match plain:
        case ["complex", real, imaginary]:
            return complex(real, imaginary)
        case ["int", text]:
            return int(text)
        case _:
            return plain


def _read(text: bytes) -> tuple[dict[bytes, TensorOutcome], int]:
    """Return the outcomes in a file, and where its sound part ends."""
    first = _first_line()
    if not text.startswith(first):
        return {}, 0
    found: dict[bytes, TensorOutcome] = {}
    at = len(first)
    while at + _RECORD.size <= len(text):
        length, checksum = _RECORD.unpack_from(text, at)
        start, end = at + _RECORD.size, at + _RECORD.size + length
        if length > _MAX_RECORD_BYTES or end > len(text) or crc32(text[start:end]) != checksum:
            break
        key, bytes_read, values = msgspec.msgpack.decode(text[start:end])
        metrics = ElementMetrics(**dict(zip(_METRICS, map(_value, values), strict=True)))
        found[key] = TensorOutcome(-1, metrics, "", bytes_read)
        at = end
    return found, at
