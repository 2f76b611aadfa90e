# SPDX-License-Identifier: Apache-2.0
"""Numbers, shapes and other values of a dump as short text."""

from __future__ import annotations

import math
from typing import Final

from msprobe.dump.records import JsonTree, Statistic
from msprobe.dump.values import Value
from msprobe.plain_text import plain

NUMBER_WIDTH: Final = 9
"""Columns that `number_text` fills at most by default."""

_SHORT_DTYPES: Final = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "complex64": "c64",
    "complex128": "c128",
}


def number_text(value: Statistic, width: int = NUMBER_WIDTH) -> str:
    """Return a statistic in `width` (7 or more) columns: ``1.235e-05``, ``0.2608``, ``nan``, ``-``.

    Four significant digits or more, or as many as fit.
    """
    if type(value) is not float:  # seldom
        if value is None:
            return "-"
        if isinstance(value, bool) or len(str(value)) <= width - 1:
            return str(value)
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    if 1e3 <= abs(number) < 10 ** (width - 2):
        return f"{number:.0f}"
    for digits in (4, 3, 2):
        text = f"{number:.{digits}g}"
        if len(text) <= width:
            return text
    return f"{number:.0e}"


def dtype_text(dtype: str, *, short: bool) -> str:
    """Return a dtype without its framework: ``float32``, or ``f32`` when `short`."""
    name = dtype.rpartition(".")[2]
    return plain(_SHORT_DTYPES.get(name.lower(), name) if short else name) or "?"


def tensor_text(tensor: Value, *, short: bool) -> str:
    """Return type and shape: ``float32[8,64]``, or ``f32[8,64]`` when `short`."""
    sizes = ",".join(map(str, tensor.shape or ()))
    return f"{dtype_text(tensor.raw_dtype, short=short)}[{sizes}]"


def scalar_text(value: JsonTree, limit: int = 60) -> str:
    """Return a value that is no tensor, cut at `limit` characters."""
    text = plain(value if isinstance(value, str) else _json_text(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def value_text(value: Value, *, short: bool = False) -> str:
    """Return the kind of a value, and the value itself if it is no tensor."""
    if value.is_null:
        return "None"
    if value.is_tensor:
        return tensor_text(value, short=short)
    return f"{plain(value.type)} {scalar_text(value.value)}"


def nonfinite_text(tensor: Value) -> str:
    """Return the NaN and infinities of a tensor: ``3 NaN, 1 +Inf``; empty when there are none."""
    counts = (
        (tensor.nan_count, "NaN"),
        (tensor.pos_inf_count, "+Inf"),
        (tensor.neg_inf_count, "-Inf"),
    )
    if counted := [f"{count} {word}" for count, word in counts if count]:
        return ", ".join(counted)
    words = ["NaN"] * tensor.has_nan + ["Inf"] * tensor.has_inf
    return ", ".join(words)


def is_nonfinite(value: Statistic) -> bool:
    """Return whether a statistic is NaN or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


def _json_text(value: JsonTree) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"integer of {value.bit_length()} bits"
    if isinstance(value, (list, dict)) and len(value) > 30:
        return f"{type(value).__name__} of {len(value)}"
    return str(value)
