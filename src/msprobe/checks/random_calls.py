# SPDX-License-Identifier: Apache-2.0
"""References of functions that draw random numbers, from the numbers that a result shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.tensor_files import StoredTensor
from msprobe.replay.recorded_calls import RecordedCall

# Share of kept elements: six standard deviations happen once in 500 million calls.
_DEVIATIONS: Final = 6.0
_ELEMENTWISE: Final = ("dropout", "native_dropout")


def keep_probability(call: RecordedCall) -> float | None:
    """Return the probability with which a call of dropout keeps an element; None for others."""
    if call.operator.name not in _ELEMENTWISE:
        return None
    form: Any = call.kwargs.get("p")
    if call.module is not None:
        form = {"value": call.module.kwargs.get("p")}
    elif form is None:
        form = call.args[1] if len(call.args) > 1 else {"value": 0.5}
    found = form.get("value") if isinstance(form, Mapping) else None
    if not isinstance(found, (int, float)) or not 0 <= found < 1:
        return None
    return 1.0 - float(found)


def dropout_reference(
    source: StoredTensor, kept: NDArray[np.bool_], keep: float
) -> tuple[StoredTensor, str]:
    """Return what a dropout should have made of its input, given what it dropped.

    Args:
        source: its input, or the gradient of its output.
        kept: which elements it kept.
        keep: probability of keeping one.

    Returns:
        The reference, and what is wrong with the share of kept elements; empty if nothing is.
    """
    values = source.values().astype(np.float64)
    reference = np.where(kept, values / keep, 0.0)
    return StoredTensor(array=reference, dtype="float64"), _wrong_share(values, kept, keep)


def _wrong_share(values: NDArray[Any], kept: NDArray[np.bool_], keep: float) -> str:
    drawn = values != 0
    count = int(drawn.sum())
    found = int((kept & drawn).sum())
    deviation = math.sqrt(count * keep * (1 - keep))
    if abs(found - count * keep) <= _DEVIATIONS * deviation + 1:
        return ""
    return f"keeps {found / count:.3g} of the elements instead of {keep:.3g}"
