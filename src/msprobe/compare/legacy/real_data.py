# SPDX-License-Identifier: Apache-2.0
"""The six columns that compare values: cosine, distance, errors, shares of good elements."""

from __future__ import annotations

import math
from typing import Final

from msprobe.compare.legacy.cells import NAN, NOTHING, UNSUPPORTED
from msprobe.compare.legacy.columns import Generation
from msprobe.compare.model import Matched, Row
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.report.tables import Cell

SHAPE_UNMATCHED: Final = "shape unmatched"
_DECIMALS: Final = 12
_NEARLY_ONE: Final = 0.9999
_EPSILON: Final = 2.220446049250313e-16
_ALL_UNSUPPORTED: Final[list[Cell]] = [UNSUPPORTED] * 6
_ALL_SHAPE: Final[list[Cell]] = [SHAPE_UNMATCHED] * 6
_ALL_NOTHING: Final[list[Cell]] = [NOTHING] * 6
_EQUAL: Final[list[Cell]] = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]


def metric_cells(row: Row, generation: Generation) -> list[Cell]:
    """Return the six cells of a row."""
    if not isinstance(row, Matched) or not all(value.data_name for value in row.values):
        return _ALL_UNSUPPORTED
    target, reference, metrics = row.target, row.reference, row.metrics
    if row.problem and metrics is None and target.has_shape_of(reference):
        return _ALL_UNSUPPORTED
    if target.shape is not None and 0 in target.shape:
        return _ALL_UNSUPPORTED
    if not target.has_shape_of(reference):
        return _ALL_SHAPE
    if metrics is None:
        return _ALL_UNSUPPORTED
    # The older release knows of scalars only by their shape.
    if not (target.squeezed_shape if generation is Generation.V26_2_0 else target.shape):
        return _single(metrics)
    if metrics.first_nonfinite_mismatch is not None:
        return _ALL_NOTHING
    if metrics.is_equal:
        return _EQUAL if target.squeezed_shape else [UNSUPPORTED, *_EQUAL[1:]]
    return [
        _cosine(metrics) if target.squeezed_shape else UNSUPPORTED,
        metrics.euclidean,
        _rounded(metrics.max_abs_err),
        _rounded(metrics.legacy_max_rel_err),
        _rounded(metrics.ratio_1e3),
        _rounded(metrics.ratio_5e3),
    ]


def _single(metrics: ElementMetrics) -> list[Cell]:
    """Return the cells of tensors with one element, which have no direction."""
    largest, relative = _single_errors(metrics)
    return [UNSUPPORTED, UNSUPPORTED, largest, relative, UNSUPPORTED, UNSUPPORTED]


def _single_errors(metrics: ElementMetrics) -> tuple[Cell, Cell]:
    # Infinite and NaN elements have no error in our metrics; here they have the one that
    # subtraction gives them.
    target, reference = _nonfinite(metrics, "target"), _nonfinite(metrics, "reference")
    if target is None and reference is None:
        return _rounded(metrics.max_abs_err), _rounded(metrics.legacy_max_rel_err)
    error = abs((0.0 if target is None else target) - (0.0 if reference is None else reference))
    if math.isnan(error):
        return NAN, NAN
    # Finite against infinite: inf / inf is no number.
    return math.inf, math.inf if reference is None else NAN


def _nonfinite(metrics: ElementMetrics, side: str) -> float | None:
    """Return the value of a single element that is not finite."""
    if getattr(metrics, f"{side}_nan"):
        return math.nan
    if getattr(metrics, f"{side}_pos_inf"):
        return math.inf
    return -math.inf if getattr(metrics, f"{side}_neg_inf") else None


def _cosine(metrics: ElementMetrics) -> Cell:
    norms = (metrics.target_norm or 0.0, metrics.reference_norm or 0.0)
    zero = [norm <= _EPSILON for norm in norms]
    if all(zero):
        return 1.0
    if any(zero) or metrics.cosine is None or math.isnan(metrics.cosine):
        return NAN
    return round(metrics.cosine, 6 if metrics.cosine > _NEARLY_ONE else _DECIMALS)


def _rounded(value: float | int | None) -> Cell:
    if value is None or math.isnan(value):
        return NAN
    return round(float(value), _DECIMALS)
