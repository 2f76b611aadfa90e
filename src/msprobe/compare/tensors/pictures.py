# SPDX-License-Identifier: Apache-2.0
"""Histograms and error maps of the tensors that a reader looks at first, for the HTML page.

They are made of the culprits and of the first values that differ, where both sides kept their
elements. Their number and size is bounded: a page stays a page, whatever the tensors are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.errors import MsprobeError
from msprobe.json_text import strict

if TYPE_CHECKING:
    import polars as pl

    from msprobe.compare.rank_comparison import RankComparison

logger = logging.getLogger(__name__)

MOST_PICTURES: Final = 24
MOST_ELEMENTS: Final = 1 << 24
"""Elements of one tensor; larger ones have no picture, because making it would take seconds."""
_MOST_IN_ALL: Final = 1 << 25  # some four seconds of one core

_CULPRITS: Final = 12
_BINS: Final = 40
_MAP_ROWS: Final = 32
_MAP_COLUMNS: Final = 48
# Shades of a map, the faintest first; a decade has four of them.
_SHADES: Final = "0123456789abcdefghijklmn"
_SHADES_PER_DECADE: Final = 4
_EQUAL: Final = "."
_NONFINITE: Final = "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    step: int
    rank: str
    order: int
    slot: str
    target_file: str
    reference_file: str
    count: int | None


def make_pictures(
    frame: pl.DataFrame, summary: Mapping[str, Any], comparisons: Sequence[RankComparison]
) -> list[dict[str, Any]]:
    """Return a histogram of both sides' values and a map of their errors for a few tensors.

    Args:
        frame: the table with one row per pair of values.
        summary: content of ``summary.json``; its culprits come first.
        comparisons: the sides whose files are read.

    Returns:
        At most `MOST_PICTURES`, as strict JSON; pairs that cannot be read, are of different shapes,
        or larger than `MOST_ELEMENTS`, have none.
    """
    sides = {(each.step, str(each.rank)): (each.target, each.reference) for each in comparisons}
    pictures = []
    left = _MOST_IN_ALL
    for place in _places(frame, summary):
        if (place.step, place.rank) not in sides or (place.count or 0) > min(left, MOST_ELEMENTS):
            continue
        target, reference = sides[place.step, place.rank]
        try:
            values = [
                side.view.tensor(name).values()
                for side, name in ((target, place.target_file), (reference, place.reference_file))
            ]
        except (MsprobeError, OSError) as exc:  # the row says so; a picture is an extra
            logger.debug("no picture of %s: %s", place, exc)
            continue
        if (picture := picture_of(*values)) is not None:
            where = {"id": f"{place.step}/{place.rank}/{place.order}", "slot": place.slot}
            pictures.append({**where, **picture})
            left -= values[0].size
        if len(pictures) == MOST_PICTURES:
            break
    return pictures


def _places(frame: pl.DataFrame, summary: Mapping[str, Any]) -> Iterator[_Place]:
    """Yield values with files on both sides: those of the culprits, then the first that differ."""
    import polars as pl

    columns = ("step", "rank", "order", "slot", "target_file", "reference_file", "count")
    differ = frame.lazy().filter(
        pl.col("status").is_in(("differs", "nonfinite"))
        & pl.col("target_file").is_not_null()
        & pl.col("reference_file").is_not_null()
    )
    culprits = [(each["step"], str(each["rank"]), each["order"]) for each in summary["introduced"]]
    wanted = pl.DataFrame(
        culprits[:_CULPRITS],
        schema={"step": pl.Int64, "rank": pl.String, "order": pl.Int64},
        orient="row",
    ).with_row_index("place")
    best = differ.join(wanted.lazy(), on=("step", "rank", "order")).sort(
        "place", maintain_order=True
    )
    seen = set()
    for part in (best, differ.head(4 * MOST_PICTURES)):
        for row in part.select(columns).collect().iter_rows():
            if row not in seen:
                seen.add(row)
                yield _Place(**dict(zip(columns, row, strict=True)))


def picture_of(target: NDArray[Any], reference: NDArray[Any]) -> dict[str, Any] | None:
    """Return a histogram and an error map of two arrays; None if they have no common elements.

    The histogram counts finite values of both sides in `_BINS` equal intervals from the smallest
    to the largest. The map has the largest absolute error of blocks of elements: the last dimension
    runs to the right, all others downwards. Its shades are logarithmic, ``"."`` is a block of equal
    elements and ``"!"`` one where NaN or infinities are apart.
    """
    size = target.size
    if target.shape != reference.shape or not 0 < size <= MOST_ELEMENTS:
        return None
    if any(array.dtype.kind not in "biuf" for array in (target, reference)):
        return None
    # Half the memory: no picture shows more digits than float32 has.
    is_small = all(array.dtype.kind == "f" and array.itemsize <= 4 for array in (target, reference))
    dtype = np.float32 if is_small else np.float64
    sides = [np.atleast_1d(array).astype(dtype) for array in (target, reference)]
    return {"histogram": _histogram(sides), "map": _map(*sides)}


def _histogram(sides: Sequence[NDArray[Any]]) -> dict[str, Any] | None:
    finite = [side[np.isfinite(side)] for side in sides]
    if not all(side.size for side in finite):
        return None
    low = min(float(side.min()) for side in finite)
    high = max(float(side.max()) for side in finite)
    if not math.isfinite(high - low):
        return None
    counts = [np.histogram(side, bins=_BINS, range=(low, high))[0].tolist() for side in finite]
    return {"low": low, "high": high, "target": counts[0], "reference": counts[1]}


def _map(target: NDArray[Any], reference: NDArray[Any]) -> dict[str, Any]:
    columns = target.shape[-1]
    rows = target.size // columns
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.abs(target - reference)
    same = (target == reference) | (np.isnan(target) & np.isnan(reference))
    errors[same] = 0.0
    errors[~np.isfinite(errors)] = np.inf
    down, right = _edges(rows, _MAP_ROWS), _edges(columns, _MAP_COLUMNS)
    blocks = np.maximum.reduceat(errors.reshape(rows, columns), down, axis=0)
    blocks = np.maximum.reduceat(blocks, right, axis=1)
    finite = blocks[np.isfinite(blocks)]
    largest = float(finite.max()) if finite.size else 0.0
    return {
        "rows": rows,
        "columns": columns,
        "down": down.tolist(),
        "right": right.tolist(),
        "largest": strict(largest),
        "shades": ["".join(_shade(error, largest) for error in line) for line in blocks.tolist()],
    }


def _edges(count: int, most: int) -> NDArray[np.intp]:
    """Return where each of at most `most` blocks of nearly equal size begins."""
    blocks = min(count, most)
    return np.arange(blocks, dtype=np.intp) * count // blocks


def _shade(error: float, largest: float) -> str:
    if error == 0.0:
        return _EQUAL
    if not math.isfinite(error):
        return _NONFINITE
    below = math.floor(-math.log10(error / largest) * _SHADES_PER_DECADE) if error else 0
    return _SHADES[max(len(_SHADES) - 1 - below, 0)]
