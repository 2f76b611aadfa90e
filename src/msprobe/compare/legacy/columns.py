# SPDX-License-Identifier: Apache-2.0
"""The columns of mindstudio-probe's tables, by mode and generation."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msprobe.compare.model import Mode


class Generation(StrEnum):
    """The releases whose columns and verdicts differ."""

    V8_3_3 = "8.3.3"
    V26_2_0 = "26.2.0"


STACK: Final = "NPU_Stack_Info"
ERR_MESSAGE: Final = "Err_message"
RESULT: Final = "Result"
REACHED: Final = "Accuracy Reached or Not"
CONSISTENT: Final = "Requires_grad Consistent"
DATA_NAME: Final = "Data_name"

IDENTITY: Final = (
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
)
COMMON: Final = (*IDENTITY, "NPU Requires_grad", "Bench Requires_grad")
STATISTICS: Final = (
    "NPU max",
    "NPU min",
    "NPU mean",
    "NPU l2norm",
    "Bench max",
    "Bench min",
    "Bench mean",
    "Bench l2norm",
)
REAL_METRICS: Final = (
    "Cosine",
    "EucDist",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
)
STATISTIC_METRICS: Final = (
    "Max diff",
    "Min diff",
    "Mean diff",
    "L2norm diff",
    "MaxRelativeErr",
    "MinRelativeErr",
    "MeanRelativeErr",
    "NormRelativeErr",
)
CHECKSUMS: Final = ("NPU MD5", "BENCH MD5")
METRICS: Final = {
    Mode.TENSOR: REAL_METRICS,
    Mode.STATISTICS: STATISTIC_METRICS,
    Mode.MD5: CHECKSUMS,
}

_NEUTRAL: Final = {
    STACK: "Call Stack",
    DATA_NAME: "Tensor Files",
    CHECKSUMS[0]: "Target Checksum",
    CHECKSUMS[1]: "Reference Checksum",
}
_SIDES: Final = {"NPU ": "Target ", "Bench ": "Reference "}

OWN: Final = ("Status", "Origin", "Error", "Reason")
"""Ours, to the right of all others."""


def legacy_columns(mode: Mode, generation: Generation, *, has_stack: bool) -> tuple[str, ...]:
    """Return the columns of mindstudio-probe, without ours.

    Args:
        mode: the data by which values were judged.
        generation: whose columns.
        has_stack: whether the target has call stacks.
    """
    stack = (STACK,) if has_stack else ()
    if mode is Mode.TENSOR:
        verdict = REACHED if generation is Generation.V8_3_3 else RESULT
        middle = (*REAL_METRICS, *STATISTICS, CONSISTENT, verdict, ERR_MESSAGE)
        return (*COMMON, *middle, *stack, DATA_NAME)
    if mode is Mode.STATISTICS:
        return (*COMMON, *STATISTIC_METRICS, *STATISTICS, CONSISTENT, RESULT, ERR_MESSAGE, *stack)
    message = () if generation is Generation.V8_3_3 else (ERR_MESSAGE,)
    return (*COMMON, *CHECKSUMS, CONSISTENT, RESULT, *message, *stack)


def neutral_title(title: str) -> str:
    """Return the neutral title of a column of mindstudio-probe."""
    return _NEUTRAL.get(title) or _with_other_beginning(title, _SIDES)


def documented_title(title: str) -> str:
    """Return the title that mindstudio-probe gives a column; a documented one stays as it is."""
    documented = {neutral: given for given, neutral in _NEUTRAL.items()}
    back = {neutral: given for given, neutral in _SIDES.items()}
    return documented.get(title) or _with_other_beginning(title, back)


def _with_other_beginning(title: str, beginnings: Mapping[str, str]) -> str:
    for old, new in beginnings.items():
        if title.startswith(old):
            return new + title.removeprefix(old)
    return title
