# SPDX-License-Identifier: Apache-2.0
"""Texts of the column ``Err_message`` of release 8.3.3, beside the rules of colours."""

from __future__ import annotations

from collections.abc import Iterator

from msprobe.compare.legacy.levels import JudgedRow, is_gradient_inconsistent
from msprobe.compare.model import Match, Matched, Missing, Mode, Row


def old_message(judged: JudgedRow, mode: Mode, *, is_bad: bool, is_off: bool) -> str:
    """Return the message of one row.

    Args:
        judged: the row.
        mode: the data by which it was judged.
        is_bad: whether its verdict asks for attention.
        is_off: whether a statistic is off by more than half.
    """
    return " ".join(_sentences(judged.row, mode, is_bad=is_bad, is_off=is_off))


def _sentences(row: Row, mode: Mode, *, is_bad: bool, is_off: bool) -> Iterator[str]:
    if not isinstance(row, Matched):
        yield f"No counterpart in {'NPU' if isinstance(row, Missing) else 'Bench'}."
        return
    target, reference = row.target, row.reference
    if is_off:
        yield "Check this value: a statistic is off by more than half."
    if is_bad and row.reason:
        yield row.reason
    if row.problem:
        yield row.problem
    if row.pair.match is Match.ALIGNED:
        yield "Paired by order and likeness instead of names: these may be two different calls."
    if is_gradient_inconsistent(row):
        yield "requires_grad differs."
    if target.is_tensor and target.dtype != reference.dtype:
        yield "The dtypes of NPU and Bench differ."
    if mode is Mode.TENSOR and target.is_tensor:
        yield from _about_elements(row)


def _about_elements(row: Matched) -> Iterator[str]:
    """Return why elements, or some of their metrics, could not be compared."""
    target, reference = row.target, row.reference
    if target.shape is not None and 0 in target.shape:
        yield "The tensor is empty: there is nothing to compare."
        return
    for side, value in (("NPU", target), ("Bench", reference)):
        if not value.data_name:
            yield f"{side} has no file of the values."
    if not target.has_shape_of(reference):
        yield "The shapes of NPU and Bench differ: elements were not compared."
    elif target.shape == ():
        yield "A tensor without dimensions has no cosine, distance or shares of good elements."
    if row.metrics is not None and row.metrics.first_nonfinite_mismatch is not None:
        yield "NaN or infinite values of NPU and Bench differ in place or sign."
