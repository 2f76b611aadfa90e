# SPDX-License-Identifier: Apache-2.0
"""`ElementMetrics`: how two tensors differ, element by element."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ElementMetrics:
    """How two tensors of one shape differ, element by element; definitions in docs/metrics.md.

    Errors are |target - reference|. Elements where either side is NaN or infinite take part in the
    counts only. Indices are positions in the flattened tensor, None where there is no such element.

    Attributes:
        count: number of elements.
        is_equal: whether all elements are equal (bit for bit; NaN equals NaN).
        mismatches: elements outside the tolerance that was asked for.
        unequal: elements that are not exactly equal.
        max_abs_err: largest error, with its index and both values.
        max_rel_err: largest error relative to |reference|, over elements whose reference is not
            below the floor, with its index and both values.
        mean_abs_err: arithmetic mean of the errors.
        p999_abs_err: 99.9 % quantile of the errors.
        rmse: root of the mean squared error.
        euclidean: L2 norm of the difference.
        relative_l2: `euclidean` divided by the L2 norm of the reference (inf if only that is 0).
        target_norm, reference_norm: L2 norms over the elements that are finite on both sides.
        max_ulp: largest distance in units in the last place of the coarser type; None for types
            without (bool, complex count their parts).
        sign_flips: elements whose signs are opposite, both nonzero.
        cosine: cosine of the angle between the two; None where it is undefined.
        ratio_1e3, ratio_5e3: shares of elements with relative error below 0.001 and 0.005.
        legacy_max_rel_err: the MaxRelativeErr of the documented format (zero references shifted).
        target_nan … reference_neg_inf: counts per side.
        first_nonfinite_mismatch: first position where the sides disagree about NaN, Inf or its
            sign.
    """

    count: int
    is_equal: bool
    mismatches: int = 0
    unequal: int = 0
    max_abs_err: float | int | None = 0.0
    max_abs_index: int | None = None
    max_abs_target: float | int | complex | None = None
    max_abs_reference: float | int | complex | None = None
    max_rel_err: float | None = 0.0
    max_rel_index: int | None = None
    max_rel_target: float | int | complex | None = None
    max_rel_reference: float | int | complex | None = None
    mean_abs_err: float | None = 0.0
    p999_abs_err: float | None = 0.0
    rmse: float | None = 0.0
    euclidean: float | None = 0.0
    relative_l2: float | None = 0.0
    target_norm: float | None = None
    reference_norm: float | None = None
    max_ulp: int | None = 0
    sign_flips: int = 0
    cosine: float | None = None
    ratio_1e3: float | None = None
    ratio_5e3: float | None = None
    legacy_max_rel_err: float | None = None
    target_nan: int = 0
    target_pos_inf: int = 0
    target_neg_inf: int = 0
    reference_nan: int = 0
    reference_pos_inf: int = 0
    reference_neg_inf: int = 0
    first_nonfinite_mismatch: int | None = None
