# SPDX-License-Identifier: Apache-2.0
"""How the monitor reads tensors of MindSpore: on the host, one pass over each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.capture.array_statistics import summarise_array
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.describing import dtype_name
from msprobe.monitor.ops import BINS, MEASURES
from msprobe.monitor.rows import Values

_LOWEST, _WIDTH = -40, 2


class HostMeasures:
    """A table of measures that grows by tensors; see `MeasureTable`.

    Attributes:
        reasons: row → why a tensor could not be read.
    """

    def __init__(self, threshold: float, *, with_bins: bool) -> None:
        """Create an empty table."""
        self._threshold = threshold
        self._rows: list[tuple[float, ...]] = []
        self._bins: list[NDArray[Any]] | None = [] if with_bins else None
        self.reasons: dict[int, str] = {}

    def add(self, tensors: list[Any], known: Any = None) -> None:
        """Read tensors, or arrays; each gets the next row."""
        for tensor in tensors:
            try:
                values = values_of(tensor)
                reason = "not initialised" if values is None else self._add(values)
            except Exception as error:  # noqa: BLE001 - one odd tensor must not cost the others
                reason = f"unreadable: {type(error).__name__}"
            if reason is not None:
                self.reasons[len(self._rows)] = reason
                self._put((np.nan,) * MEASURES, None)

    def start_copy(self) -> None:
        """Do nothing: the numbers are here."""

    def wait(self) -> tuple[Values, Values | None]:
        """Return measures and bins of all tensors so far."""
        measures = np.array(self._rows, np.float64).reshape(-1, MEASURES)
        if self._bins is None:
            return measures, None
        return measures, np.array(self._bins, np.float64).reshape(-1, BINS)

    def _add(self, values: NDArray[Any]) -> str | None:
        summary = summarise_array(values)
        has_none = summary.norm is None and summary.max is None
        if summary.note is not None and has_none and values.size:
            return summary.note
        found = summary.nonfinite
        nans = found.nan_count if found else 0
        infs = found.pos_inf_count + found.neg_inf_count if found else 0
        numbers = (summary.max, summary.min, summary.mean, summary.norm)
        known = [np.nan if one is None else float(one) for one in numbers]
        below, bins = np.nan, None
        if self._threshold >= 0 or self._bins is not None:
            sizes = _sizes(values)
            if self._threshold >= 0:
                below = int(np.count_nonzero(sizes < self._threshold))
            if self._bins is not None:
                bins = _counted(sizes)
        self._put((*known, below, nans, infs, values.size), bins)
        return None

    def _put(self, row: tuple[float, ...], bins: NDArray[Any] | None) -> None:
        self._rows.append(row)
        if self._bins is not None:
            self._bins.append(np.zeros(BINS) if bins is None else bins)


class MindSporeReading:
    """How tensors of MindSpore are read."""

    def table(self, threshold: float, *, with_bins: bool = False) -> HostMeasures:
        """Return an empty table of measures."""
        return HostMeasures(threshold, with_bins=with_bins)

    def shape(self, tensor: Any) -> str:
        """Return a shape, ``[4, 16]``."""
        return str(list(tensor.shape))

    def dtype(self, tensor: Any) -> str:
        """Return a type, ``Float32``."""
        return dtype_name(tensor)


READING: Final = MindSporeReading()


def _sizes(values: NDArray[Any]) -> NDArray[Any]:
    """Return magnitudes, without overflow of the type's least number."""
    if values.dtype.kind == "f":
        found: NDArray[Any] = np.abs(values)
        return found
    if values.dtype.kind == "c":
        return np.abs(values.astype(np.complex128))
    return np.abs(values.astype(np.float64))


def _counted(sizes: NDArray[Any]) -> NDArray[Any]:
    """Return how many magnitudes are in each bin of `Op.LOG2_HIST`; NaN and Inf are in none."""
    finite = sizes[np.isfinite(sizes)].astype(np.float64, copy=False)
    positive = finite[finite > 0]
    exponents = np.frexp(positive)[1] - 1
    places = np.clip((exponents - _LOWEST) // _WIDTH + 2, 1, BINS - 1)
    counted: NDArray[Any] = np.bincount(places, minlength=BINS)
    counted[0] = finite.size - positive.size
    return counted
