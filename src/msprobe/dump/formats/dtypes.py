# SPDX-License-Identifier: Apache-2.0
"""Element types: their names, how NumPy holds them, and how it widens those that it lacks.

The names are those of the frameworks without prefix: ``float32``, ``bfloat16``, ``float8_e4m3fn``.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msprobe.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

STORAGE_TYPES: Final = {
    "float32": "f4",
    "float64": "f8",
    "float16": "f2",
    "bfloat16": "u2",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "bool": "b1",
    "complex64": "c8",
    "complex128": "c16",
    "float8_e4m3fn": "u1",
    "float8_e4m3fnuz": "u1",
    "float8_e5m2": "u1",
    "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
    "float4_e2m1fn_x2": "u1",
}
"""NumPy's type of the bytes of an element, without byte order; bit patterns where it has none."""
PACKED_TYPES: Final = frozenset({"float4_e2m1fn_x2"})
"""Types of which several values share a byte, so that there are no elements to compute with."""

TORCH_STORAGES: Final = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
"""torch's storage classes that tell the type of their elements."""

_WORDS: Final = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


class FloatFormat(NamedTuple):
    """Bit layout of a floating-point type.

    Attributes:
        exponent_bits: bits of the exponent.
        fraction_bits: stored bits of the significand.
        bias: difference between the stored exponent and the exponent.
    """

    exponent_bits: int
    fraction_bits: int
    bias: int

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.fraction_bits

    @property
    def min_exponent(self) -> int:
        """The smallest normal number is two to this power."""
        return 1 - self.bias


# IEEE 754-2019; bfloat16; the OCP 8-bit formats and AMD's "fnuz" variants, as
# https://docs.pytorch.org/docs/stable/tensor_attributes.html lists them. float8_e8m0fnu reaches
# down to 2**-127: for counting units it takes the place of subnormals.
FLOATS: Final = {
    "float64": FloatFormat(11, 52, 1023),
    "float32": FloatFormat(8, 23, 127),
    "float16": FloatFormat(5, 10, 15),
    "bfloat16": FloatFormat(8, 7, 127),
    "float8_e4m3fn": FloatFormat(4, 3, 7),
    "float8_e4m3fnuz": FloatFormat(4, 3, 8),
    "float8_e5m2": FloatFormat(5, 2, 15),
    "float8_e5m2fnuz": FloatFormat(5, 2, 16),
    "float8_e8m0fnu": FloatFormat(8, 0, 127),
}
"""Types whose elements are single floating-point numbers."""
COMPLEX_PARTS: Final = {"complex64": "float32", "complex128": "float64"}
"""Complex types, and the type of their parts."""

_FLOAT8: Final = frozenset(name for name in FLOATS if name.startswith("float8_"))


def normal_dtype(raw: str) -> str:
    """Return a dtype's name in the spelling that all frameworks share.

    Args:
        raw: as a dump spells it: ``torch.float32``, ``Float32``, ``mindspore.Float32``.

    Returns:
        ``float32``, ``bfloat16``, ``bool`` …
    """
    word = raw.rpartition(".")[2].lower()
    return _WORDS.get(word, word)


def item_size(dtype: str) -> int:
    """Return the bytes of an element; raises `KeyError` for an unknown type."""
    return int(STORAGE_TYPES[dtype][1:])


def widen(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return numbers to compute with: bfloat16 and float8 widened to float32, exactly.

    Args:
        stored: elements as NumPy holds them.
        dtype: their true type.

    Raises:
        UnsupportedError: a packed type that has no element-wise values.
    """
    import numpy as np

    if dtype == "bfloat16":  # the upper half of a float32
        wide = np.ascontiguousarray(stored).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(stored.shape)
    if dtype in _FLOAT8:
        found: NDArray[Any] = _float8_table(dtype)[stored]
        return found
    if dtype in PACKED_TYPES:
        raise UnsupportedError(f"{dtype}: two values share a byte; use .array")
    return stored


@cache
def _float8_table(dtype: str) -> NDArray[Any]:
    import numpy as np

    return np.array([_float8_value(dtype, bits) for bits in range(256)], dtype=np.float32)


def _float8_value(dtype: str, bits: int) -> float:
    exponent_bits, fraction_bits, bias = FLOATS[dtype]
    if dtype == "float8_e8m0fnu":
        return math.nan if bits == 0xFF else math.ldexp(1.0, bits - bias)
    sign = -1.0 if bits & 0x80 else 1.0
    exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    if dtype.endswith("fnuz") and bits == 0x80:
        return math.nan
    if dtype == "float8_e4m3fn" and bits & 0x7F == 0x7F:
        return math.nan
    if dtype == "float8_e5m2" and exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - fraction_bits)
    return sign * math.ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits)
