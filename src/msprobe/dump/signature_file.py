# SPDX-License-Identifier: Apache-2.0
"""Signatures of a whole run: for each step a few numbers, and 72 bytes a parameter.

One file a rank, ``{dump_path}/signatures/{rank folder}.msig``, to which blocks are only ever
appended: what a killed process has written stays readable, a torn end is left out.

    head     kind (4 bytes), CRC-32 of the payload, length of the payload
    payload  NAMES: names of the parameters, as JSON        SETS: settings of the run, as JSON
             STEP: two offsets, `HEAD`, rows of `ENTRY`     INDX: the `HEAD`s of the steps before
    tail     length of the block, kind, a mark: files are read from their end

An index follows every 256 steps, so the numbers of a million steps are read in some thousand
pieces. `docs/formats.md` describes the fields.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.crc import crc32
from msprobe.dump.facts import WITHOUT_MEANING
from msprobe.dump.lines import NATIVE
from msprobe.errors import DumpFormatError
from msprobe.files import reading

FOLDER: Final = "signatures"
SUFFIX: Final = ".msig"

_PAIR: Final = (2,)
ENTRY: Final = np.dtype([("checksum", "<u8"), ("norm", "<f8"), ("projections", "<f4", _PAIR)])
"""One value of one parameter: checksum 0 and NaN where there is none (no gradient)."""

PRINT: Final = np.dtype([("checksum", "<u8"), ("norm", "<f8"), ("projections", "<f8", _PAIR)])
"""The same before it is rounded, and all parameters summed."""
HEAD: Final = np.dtype(
    [
        ("step", "<i8"),
        ("data", "<u8"),
        ("random", "<u8"),
        ("settings", "<u8"),
        ("loss", "<f8"),
        ("parameter", PRINT),
        ("gradient", PRINT),
        ("update", PRINT),
    ]
)
"""One step: checksums (0 where unknown), numbers (NaN where unknown), and all parameters summed."""

_SAMPLED: Final = 1 << 63
SAMPLED: Final = np.uint64(_SAMPLED)
"""Set in a checksum that is not of all bytes: that of the norm and some elements, as accelerators
make it; the norm then takes the place of the projections."""

AUTOCAST: Final = "autocast"
"""The entry of the settings that is no optimizer: types in which the model computes, if other
than those of its parameters; earlier versions lack it."""
CLIPPING: Final = "clipping"
"""The entry of the settings with the calls that limit gradients, as `facts.Clip` without the norm;
earlier versions lack it."""
NO_OPTIMIZERS: Final = (AUTOCAST, CLIPPING)
"""The entries of the settings that are no optimizers."""
OPTIMIZER_STEPS: Final = "steps"
"""The setting of an optimizer's first group that counts its steps within one; only if several."""

_SPLIT: Final = 1 << 63
_RANDOM_BITS: Final = 21
_HOST_GENERATORS: Final = ("python", "numpy")

QUANTITIES: Final = ("parameter", "gradient", "update")
"""What there is for each parameter: before the step, as the optimizer got it, added by the step."""

_ENCODE: Final = json.JSONEncoder(sort_keys=True).encode
_BLOCK_HEAD: Final = struct.Struct("<4sIQ")
_BLOCK_TAIL: Final = struct.Struct("<Q4s4s")
_OFFSETS: Final = struct.Struct("<qq")
_MARK: Final = b"msig"
_NAMES: Final = b"NAME"
_SETTINGS: Final = b"SETS"
_STEP: Final = b"STEP"
_INDEX: Final = b"INDX"
_KINDS: Final = (_NAMES, _SETTINGS, _STEP, _INDEX)
_STEPS_OF_INDEX: Final = 256
_NOWHERE: Final = -1
# A torn tail is at most one block, and a block is not larger than this.
_MOST_TORN: Final = 64 << 20


class SignatureWriter:
    """Appends to the file of one rank.

    Args:
        path: the file; made if missing, with its folder. What it holds stays.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        end = 0
        self._last_index = _NOWHERE
        self._heads: list[bytes] = []
        self._offsets: list[int] = []
        if path.exists():
            with SignatureFile(path) as old:
                end, self._last_index = old.end, old.last_index
                self._heads, self._offsets = old.unindexed
        self._file = path.open("r+b" if path.exists() else "wb", buffering=0)
        self._file.truncate(end)  # a torn block would hide what follows
        self._file.seek(end)
        self._end = end
        self._names: tuple[Sequence[str], Sequence[str], int] = ((), (), _NOWHERE)
        self._signs = _signs_of(())
        self._settings: tuple[dict[str, Any] | None, int] = (None, _NOWHERE)
        self._settings_checksum = 0

    def append(
        self,
        head: NDArray[Any],
        names: Sequence[str],
        entries: NDArray[Any],
        settings: dict[str, Any],
        types: Sequence[str] = (),
    ) -> None:
        """Write one step.

        Args:
            head: one element of type `HEAD`; its sums over all parameters are filled in here.
            names: of the parameters.
            entries: shape (3, number of names), type `ENTRY`; rows in the order of `QUANTITIES`.
            settings: of the optimizers, and `NO_OPTIMIZERS`; written when they change.
            types: of the parameters; empty if unknown.

        Raises:
            OSError: the disk refuses.
        """
        if self._names[0] != names or self._names[1] != types:
            payload = _json({"names": list(names), "types": list(types)})
            self._names = (list(names), list(types), self._put(_NAMES, payload))
            self._signs = _signs_of(names)
        if self._settings[0] != settings:
            self._settings = (settings, self._put(_SETTINGS, _json(settings)))
            self._settings_checksum = crc32(_json(_with_meaning(settings)))
        head = head.copy()
        head["settings"] = self._settings_checksum
        checksums, sums = np.empty(entries.shape, np.uint64), np.empty((len(QUANTITIES), 3))
        flags = _sum_entries(entries, self._signs, checksums, sums)
        rows = zip(QUANTITIES, checksums, flags, sums.tolist(), strict=True)
        for quantity, row, flag, (norm, *projections) in rows:
            head[quantity] = (crc32(row) | flag & _SAMPLED, norm, tuple(projections))
        content = head.tobytes()
        offsets = _OFFSETS.pack(self._names[2], self._settings[1])
        self._offsets.append(self._put(_STEP, offsets + content + entries.tobytes()))
        self._heads.append(content)
        if len(self._heads) >= _STEPS_OF_INDEX:
            self._put_index()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put_index(self) -> None:
        offsets = np.array(self._offsets, "<i8").tobytes()
        sizes = _OFFSETS.pack(self._last_index, len(self._heads))
        self._last_index = self._put(_INDEX, sizes + b"".join(self._heads) + offsets)
        self._heads.clear()
        self._offsets.clear()

    def _put(self, kind: bytes, payload: bytes) -> int:
        """Append a block in one write, and return where it begins."""
        head = _BLOCK_HEAD.pack(kind, crc32(payload), len(payload))
        length = _BLOCK_HEAD.size + len(payload) + _BLOCK_TAIL.size
        block = head + payload + _BLOCK_TAIL.pack(length, kind, _MARK)
        self._file.write(block)
        begin = self._end
        self._end += length
        return begin


def _with_meaning(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of optimizers that change what they compute."""
    return {
        optimizer: [
            {key: value for key, value in group.items() if key not in WITHOUT_MEANING}
            for group in groups
        ]
        for optimizer, groups in settings.items()
        if optimizer not in NO_OPTIMIZERS
    }


class StepSignature(NamedTuple):
    """Everything that is known of one step.

    Attributes:
        head: one element of type `HEAD`.
        names: of the parameters.
        entries: shape (3, number of names), type `ENTRY`; rows in the order of `QUANTITIES`.
        settings: of the optimizers, and `NO_OPTIMIZERS`.
        types: of the parameters; empty in files of earlier versions.
    """

    head: NDArray[Any]
    names: list[str]
    entries: NDArray[Any]
    settings: dict[str, Any]
    types: list[str]


class SignatureFile:
    """Reads the file of one rank, also while another process appends to it.

    Args:
        path: the file.

    Attributes:
        heads: one `HEAD` a step, in the order of steps; of a step that ran twice, the last one.
        end: where the last whole block ends.
        last_index: where the last index begins.
        unindexed: heads and offsets of the steps after it.

    Raises:
        DumpFormatError: it is no such file, or damaged in the middle.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_index = _NOWHERE
        with reading(path, DumpFormatError), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._bytes: mmap.mmap | bytes = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            )
        self.end = self._whole_end()
        if size and not self.end:
            raise DumpFormatError(path, "holds no signatures of msprobe")
        self.heads, self._offsets = self._read_heads()
        if (np.diff(self.heads["step"]) <= 0).any():  # steps that ran again
            _, places = np.unique(self.heads["step"][::-1], return_index=True)
            kept = len(self.heads) - 1 - places
            self.heads, self._offsets = self.heads[kept], self._offsets[kept]

    def __enter__(self) -> SignatureFile:
        """Return the file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the file; what was read stays."""
        if isinstance(self._bytes, mmap.mmap):
            self._bytes.close()

    def step(self, number: int) -> StepSignature:
        """Return all of one step.

        Raises:
            KeyError: there is no such step.
            DumpFormatError: its block is damaged.
        """
        place = int(np.searchsorted(self.heads["step"], number))
        if place == len(self.heads) or self.heads["step"][place] != number:
            raise KeyError(number)
        payload = self._payload(int(self._offsets[place]), _STEP)
        names_at, settings_at = _OFFSETS.unpack_from(payload)
        found = json.loads(self._payload(names_at, _NAMES))
        names, types = (found, []) if isinstance(found, list) else (found["names"], found["types"])
        expected = _OFFSETS.size + HEAD.itemsize + len(QUANTITIES) * len(names) * ENTRY.itemsize
        if len(payload) != expected:
            raise DumpFormatError(self.path, f"step {number} does not fit its list of parameters")
        entries = np.frombuffer(payload, ENTRY, offset=_OFFSETS.size + HEAD.itemsize)
        return StepSignature(
            head=self.heads[place],
            names=names,
            entries=entries.reshape(len(QUANTITIES), len(names)),
            settings=json.loads(self._payload(settings_at, _SETTINGS)),
            types=types,
        )

    # -- inside --------------------------------------------------------------------------------

    def _whole_end(self) -> int:
        """Return the end of the last whole block."""
        data = self._bytes
        end = len(data)
        lowest = max(0, end - _MOST_TORN)
        while end > lowest:
            if self._begin_of(end) is not None:
                return end
            found = data.rfind(_MARK, lowest, end - 1)
            if found < 0:
                return 0
            end = found + len(_MARK)
        return 0

    def _begin_of(self, end: int) -> int | None:
        """Return where the whole and undamaged block begins that ends at `end`."""
        if end < _BLOCK_HEAD.size + _BLOCK_TAIL.size:
            return None
        length, kind, mark = _BLOCK_TAIL.unpack_from(self._bytes, end - _BLOCK_TAIL.size)
        begin = end - length
        if mark != _MARK or kind not in _KINDS or begin < 0:
            return None
        try:
            self._payload(begin, kind)
        except DumpFormatError:
            return None
        return int(begin)

    def _payload(self, begin: int, kind: bytes) -> bytes:
        head_size = _BLOCK_HEAD.size
        if 0 <= begin <= len(self._bytes) - head_size:
            found, checksum, length = _BLOCK_HEAD.unpack_from(self._bytes, begin)
            payload = self._bytes[begin + head_size : begin + head_size + length]
            if found == kind and len(payload) == length and crc32(payload) == checksum:
                return payload
        raise DumpFormatError(self.path, f"is damaged at byte {begin}")

    def _read_heads(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the heads and the offsets of all steps, in the order in which they were written.

        They are joined as bytes: NumPy joins structures field by field.
        """
        heads, offsets = self.unindexed = self._tail()
        tail = b"".join(heads), np.array(offsets, "<i8").tobytes()
        pieces = [tail, *self._indexed()][::-1]
        all_heads = np.frombuffer(b"".join(head for head, _ in pieces), HEAD)
        return all_heads, np.frombuffer(b"".join(offset for _, offset in pieces), "<i8")

    def _tail(self) -> tuple[list[bytes], list[int]]:
        """Return heads and offsets of the steps after the last index, which is found on the way."""
        end = self.end
        heads: list[bytes] = []
        offsets: list[int] = []
        while end:
            begin = self._begin_of(end)
            if begin is None:
                raise DumpFormatError(self.path, f"is damaged before byte {end}")
            kind = self._bytes[begin : begin + 4]
            if kind == _INDEX:
                self.last_index = begin
                break
            if kind == _STEP:
                payload = self._payload(begin, _STEP)
                heads.append(payload[_OFFSETS.size : _OFFSETS.size + HEAD.itemsize])
                offsets.append(begin)
            end = begin
        return heads[::-1], offsets[::-1]

    def _indexed(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield heads and offsets of each index, from the last one back to the first."""
        index = self.last_index
        while index != _NOWHERE:
            payload = self._payload(index, _INDEX)
            before, count = _OFFSETS.unpack_from(payload)
            if before >= index or len(payload) != _OFFSETS.size + count * (HEAD.itemsize + 8):
                raise DumpFormatError(self.path, f"is damaged at byte {index}")
            middle = _OFFSETS.size + count * HEAD.itemsize
            yield payload[_OFFSETS.size : middle], payload[middle:]
            index = before


def random_checksum(states: Mapping[str, str]) -> int:
    """Return one number for the states of all generators: see `random_parts`.

    Args:
        states: name of a generator → checksum of its state.
    """
    devices = {name: state for name, state in states.items() if name not in _HOST_GENERATORS}
    found = _SPLIT
    for place, part in enumerate([devices, *map(states.get, _HOST_GENERATORS)]):
        checksum = crc32(_json(part)) % (1 << _RANDOM_BITS)
        found |= (checksum or 1) << place * _RANDOM_BITS
    return found


def random_parts(checksums: NDArray[Any]) -> NDArray[np.uint64]:
    """Return checksums of the generators of the framework, of Python and of NumPy.

    Args:
        checksums: ``random`` of some steps; earlier versions made one checksum of all states.

    Returns: shape (steps, 4); the last column is a checksum made by earlier versions. 0 is unknown.
    """
    is_split = checksums & np.uint64(_SPLIT) != 0
    shifts = np.arange(3, dtype=np.uint64) * np.uint64(_RANDOM_BITS)
    parts = checksums[:, None] >> shifts & np.uint64((1 << _RANDOM_BITS) - 1)
    return np.where(
        is_split[:, None],
        np.column_stack([parts, np.zeros_like(checksums)]),
        np.column_stack([np.zeros_like(parts), checksums]),
    )


def signature_files(path: Path) -> dict[str, Path]:
    """Return the files of a run by rank folder, such as ``rank0``.

    Args:
        path: a dump path, its folder of signatures, or one file.

    Raises:
        DumpFormatError: there are none.
    """
    if not path.exists():
        raise DumpFormatError(path, "does not exist; check the path")
    found = {path.stem: path} if path.is_file() else find_signatures(path)
    if not found:
        advice = 'record them with "task": "signature"'
        raise DumpFormatError(path, f"holds no signatures (no {FOLDER}/*{SUFFIX}); {advice}")
    return found


def find_signatures(path: Path) -> dict[str, Path]:
    """Return the files of a run by rank folder; empty where it has none.

    Args:
        path: a dump path, its folder of signatures, or one file.
    """
    if path.is_file():
        return {path.stem: path} if path.suffix == SUFFIX else {}
    for folder in (path / FOLDER, path):
        found = {file.stem: file for file in sorted(folder.glob(f"*{SUFFIX}"))}
        if found:
            return found
    return {}


def _signs_of(names: Sequence[str]) -> NDArray[np.float64]:
    """Return two signs for each parameter, shape (number of names, 2).

    The projections of all parameters share one pattern of signs. Signs of their own make the sum
    of them a projection of all parameters together.
    """
    bits = np.array([crc32(name.encode("utf-8", "surrogatepass")) for name in names], np.int64)
    return 1.0 - 2.0 * np.stack([bits & 1, bits >> 1 & 1], axis=1)


_without_warnings: Final = np.errstate(invalid="ignore", over="ignore")  # of infinities


@_without_warnings
def _fill_in_python(prints: NDArray[Any], entries: NDArray[Any]) -> None:
    numbers = prints.view(np.float64).reshape(*prints.shape, 4)  # each field has eight bytes
    entries["checksum"] = prints["checksum"]
    entries["norm"] = numbers[:, :, 1]
    entries["projections"] = numbers[:, :, 2:]
    update = numbers[2, :, 2:] - numbers[0, :, 2:]
    entries["norm"][2] = np.sqrt(np.square(update).sum(axis=1) / 2)
    entries["projections"][2] = update


@_without_warnings
def _sum_in_python(
    entries: NDArray[Any],
    signs: NDArray[np.float64],
    checksums: NDArray[np.uint64],
    sums: NDArray[np.float64],
) -> list[int]:
    """Sum each quantity over all parameters.

    Args:
        entries: as in `SignatureWriter.append`.
        signs: see `_signs_of`.
        checksums: those of the entries are copied there.
        sums: shape (3, 3), gets norm and projections of each quantity.

    Returns: for each quantity the bits that are set in any of its checksums.
    """
    checksums[:] = entries["checksum"]
    known = checksums != 0
    squares = np.square(entries["norm"]).sum(axis=1, where=known)
    sums[:, 0] = np.where(known.any(axis=1), np.sqrt(squares), np.nan)
    signed = entries["projections"] * signs
    sums[:, 1:] = signed.sum(axis=1, where=known[:, :, None])
    bits: list[int] = np.bitwise_or.reduce(checksums, axis=1, initial=0).tolist()
    return bits


_fill_entries: Final = _fill_in_python if NATIVE is None else NATIVE.fill_entries
_sum_entries: Final = _sum_in_python if NATIVE is None else NATIVE.sum_entries


def entries_of(prints: NDArray[Any]) -> NDArray[Any]:
    """Return the entries of a step; the norm of an update is estimated from its projections.

    Args:
        prints: shape (3, number of parameters), type `PRINT`: of the parameters when the step
            began, of their gradients, and of the parameters when it ended.

    Returns: the same shape, type `ENTRY`, in place of the last row the update.
    """
    entries = np.empty(prints.shape, ENTRY)
    _fill_entries(prints, entries)
    return entries


def _json(value: Any) -> bytes:
    return _ENCODE(value).encode()
