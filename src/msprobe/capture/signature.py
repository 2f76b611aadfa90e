# SPDX-License-Identifier: Apache-2.0
"""Make the signature of each step, and append it to the file of the rank.

The task `signature` records no calls: facts come as for a dump, the numbers of the parameters as
arrays.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe.dump.facts import Clip, Data, Loss
from msprobe.dump.signature_file import (
    CLIPPING,
    FOLDER,
    HEAD,
    PRINT,
    SUFFIX,
    SignatureWriter,
    entries_of,
    random_checksum,
)

Prints = NDArray[Any]
"""One element of type `PRINT` for each tensor."""


class StepSignatures:
    """Takes what is observed of a step, and writes it when the step ends.

    Attributes:
        is_continued: whether the run goes on from an earlier one, whose file it keeps.
    """

    def __init__(self) -> None:
        """Create it; no file is touched before the first step."""
        self.is_continued = False
        self._writers: dict[tuple[Path, str], SignatureWriter] = {}
        self._writer: SignatureWriter | None = None
        self._head: NDArray[Any] = _EMPTY.copy()
        self._settings: dict[str, Any] = {}
        self._names: Sequence[str] = ()
        self._types: Sequence[str] = ()
        self._prints = no_prints(3, 0)

    def begin(self, dump_path: Path, rank_name: str) -> StepSignatures:
        """Begin a step; return what takes its facts: this.

        Args:
            dump_path: the dump path of the run.
            rank_name: name of the rank folder.

        Raises:
            OSError: the file cannot be written.
            DumpFormatError: the run goes on from one whose file is damaged.
        """
        place = (dump_path, rank_name)
        writer = self._writers.get(place)
        if writer is None:
            path = dump_path / FOLDER / f"{rank_name}{SUFFIX}"
            if not self.is_continued:
                path.unlink(missing_ok=True)
            writer = self._writers[place] = SignatureWriter(path)
        self._writer = writer
        self._head = _EMPTY.copy()
        self._settings = {}
        self._names, self._types, self._prints = (), (), no_prints(3, 0)
        return self

    def continue_at(self, step: int) -> None:
        """Note that the run begins with this step; one that has begun is dropped."""
        self.is_continued = step > 0
        self._writer = None

    def put_fact(self, part: str, value: Any) -> None:
        """Take a part of the facts, or an entry; those that a signature has no place for go."""
        head = self._head
        match value:
            case Data():
                content = value.checksum or [value.max, value.min, value.mean, value.norm]
                text = repr((value.where, value.shape, value.dtype, content))
                head["data"] = zlib.crc32(text.encode(), int(head["data"])) or 1
            case Loss():
                number = np.nan if value.value is None else value.value
                known = head["loss"]
                head["loss"] = number if np.isnan(known) else known + number
            case Clip():
                limit = msgspec.structs.replace(value, total_norm=None)
                self._settings.setdefault(CLIPPING, []).append(msgspec.to_builtins(limit))
            case int() if part == "step":
                head["step"] = value
            case dict() if part == "random":
                head["random"] = random_checksum(value)

    def put_settings(self, name: str, values: Sequence[Mapping[str, Any] | str]) -> None:
        """Take the settings of an optimizer, or one of `NO_OPTIMIZERS`.

        Args:
            name: of the optimizer, or of the entry.
            values: settings of each of its groups, or what the entry holds.
        """
        self._settings[name] = values

    def put_parameters(self, names: Sequence[str], types: Sequence[str], prints: Prints) -> None:
        """Take the parameters.

        Args:
            names: of the parameters.
            types: of the parameters.
            prints: shape (3, number of names): of the parameters when the step began, of their
                gradients, and of the parameters when it ended.
        """
        self._names, self._types, self._prints = names, types, prints

    def write(self) -> None:
        """Write the step that has begun; nothing if there is none.

        Raises:
            OSError: the disk refuses.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        entries = entries_of(self._prints)
        writer.append(self._head, self._names, entries, self._settings, self._types)

    def close(self) -> None:
        """Close the files."""
        self._writer = None
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def no_prints(*shape: int) -> Prints:
    """Return the prints of values that are not there."""
    return np.repeat(_NONE, math.prod(shape)).reshape(shape)


_NONE: Final = np.array((0, np.nan, (np.nan, np.nan)), PRINT)
_EMPTY: Final = np.zeros((), HEAD)
_EMPTY["loss"] = np.nan
