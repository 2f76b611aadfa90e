# SPDX-License-Identifier: Apache-2.0
"""Saved values of tensors that several ranks hold, as those of one tensor.

Parts are joined, and partial sums added up, as `merged_values` found them to be. Where sizes leave
open along which dimension parts were cut, the values of the whole model decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.array_statistics import array_statistics
from msprobe.dump.layout import TENSOR_FOLDER, safe_file_name
from msprobe.dump.rank_view import RankView
from msprobe.errors import MsprobeError

STORED: Final = "stored values"
"""Key of the values of a tensor in its record, until `write_tensors`."""


class Stored(Protocol):
    """Values of one tensor, read when they are asked for."""

    def candidates(self) -> list[NDArray[Any]]:
        """Return the arrays that the tensor may be; one where nothing is open."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The values that one rank saved."""

    view: RankView
    data_name: str

    def candidates(self) -> list[NDArray[Any]]:
        """Return the values."""
        return [self.view.tensor(self.data_name).values()]


@dataclass(frozen=True, slots=True)
class Joined:
    """Parts of a tensor, in order, and the dimensions along which it may have been cut."""

    parts: Sequence[Stored]
    dimensions: Sequence[int]

    @classmethod
    def along(cls, parts: Sequence[Stored], dimensions: Sequence[int]) -> Joined:
        """Return parts joined along one of some dimensions.

        Where parts are joined of parts themselves, and it is open along which dimension these were
        cut, the one that is left may be either.
        """
        inner = (part.dimensions for part in parts if isinstance(part, Joined))
        open_ones = {place for places in inner if len(places) > 1 for place in places}
        return cls(parts, sorted({*dimensions, *open_ones}))

    def candidates(self) -> list[NDArray[Any]]:
        """Return the parts joined along each dimension."""
        rows = [*zip(*(part.candidates() for part in self.parts), strict=True)]
        found = []
        for row in rows:
            for place in self.dimensions:
                sizes = {(*part.shape[:place], *part.shape[place + 1 :]) for part in row}
                if len(sizes) == 1:
                    found.append(np.concatenate(row, place))
        return found


@dataclass(frozen=True, slots=True)
class Summed:
    """Partial sums of a tensor."""

    parts: Sequence[Stored]

    def candidates(self) -> list[NDArray[Any]]:
        """Return the sum, added up in double precision."""
        rows = zip(*(part.candidates() for part in self.parts), strict=True)
        return [np.sum(row, axis=0, dtype=np.float64).astype(row[0].dtype) for row in rows]


@dataclass(frozen=True, slots=True)
class Filled:
    """A tensor whose elements are all the one number of a part."""

    part: Stored
    shape: Sequence[int]

    def candidates(self) -> list[NDArray[Any]]:
        """Return the whole tensor."""
        return [np.resize(array, tuple(self.shape)) for array in self.part.candidates()]


def all_stored(tensors: Sequence[Mapping[str, Any]]) -> list[Stored] | None:
    """Return the values of some tensors; None if one of them was not saved."""
    found = [tensor.get(STORED) for tensor in tensors]
    return None if None in found else [each for each in found if each is not None]


def with_stored(tree: Any, view: RankView, record: str) -> Any:
    """Put the saved values of a record's tensors into it; its file names lose the record's name."""
    for tensor in _tensors(tree):
        name = tensor.get("data_name")
        if isinstance(name, str):
            tensor[STORED] = Saved(view, name)
            tensor["data_name"] = name.removeprefix(record)
    return tree


def write_tensors(tree: Any, whole: Any, folder: Path, record: str) -> None:
    """Write the values of a merged record, and put their files and statistics into it.

    Args:
        tree: the record.
        whole: that of the whole model, with its values; None if unknown.
        folder: the folder of the rank.
        record: the name of the merged record.
    """
    for tensor, other in _pairs(tree, whole):
        stored, suffix = tensor.pop(STORED, None), tensor.pop("data_name", "")
        array = None if stored is None else _chosen(stored, tensor["shape"], other)
        if array is None:
            continue
        name = safe_file_name(f"{record}{Path(suffix).with_suffix('.npy')}")
        path = folder / TENSOR_FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
        tensor["data_name"] = name
        if not isinstance(stored, Saved):
            tensor.update(array_statistics(array))
        if isinstance(stored, Summed):
            tensor["note"] = f"sum over {len(stored.parts)} ranks"


def _chosen(
    stored: Stored, shape: Sequence[int], whole: Mapping[str, Any] | None
) -> NDArray[Any] | None:
    """Return the values of a tensor; None where they are not known."""
    try:
        found = [each for each in stored.candidates() if [*each.shape] == [*shape]]
        if len(found) < 2:
            return found[0] if found else None
        known = None if whole is None else whole.get(STORED)
        if known is None:
            return None
        (expected,) = known.candidates()
    except (MsprobeError, ValueError):  # a file that is gone or damaged
        return None
    return min(found, key=lambda each: float(np.abs(each - expected.astype(np.float64)).sum()))


def _tensors(tree: Any) -> Iterator[dict[str, Any]]:
    return (tensor for tensor, _ in _pairs(tree, None))


def _pairs(tree: Any, whole: Any) -> Iterator[tuple[dict[str, Any], Mapping[str, Any] | None]]:
    """Yield the tensors of a record, and those of the whole model in the same places."""
    if isinstance(tree, dict):
        wholes = whole if isinstance(whole, dict) else {}
        if "shape" in tree:
            yield tree, wholes if "shape" in wholes else None
            return
        for key, item in tree.items():
            yield from _pairs(item, wholes.get(key))
    elif isinstance(tree, list):
        is_alike = isinstance(whole, list) and len(whole) == len(tree)
        for place, item in enumerate(tree):
            yield from _pairs(item, whole[place] if is_alike else None)
