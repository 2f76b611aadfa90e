# SPDX-License-Identifier: Apache-2.0
"""Tensors made from recorded statistics.

Between the recorded ends, elements follow a normal distribution with the recorded mean and spread,
cut off at the ends, which both occur. Recorded numbers of NaN and infinities are reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.formats.dtypes import FLOATS, STORAGE_TYPES, normal_dtype
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import UnsupportedError
from msprobe.numerics.number_types import Kind, kind_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Rounds in which mean and spread are brought nearer to the recorded ones after the cut.
_ROUNDS: Final = 4


def generate(tree: Mapping[str, Any], seed: int) -> StoredTensor:
    """Return a tensor with the shape, type and statistics that a record has.

    Args:
        tree: the form of a tensor; ``ignored`` in it is the class that a loss leaves out, which
            may lie outside of the range of the others.
        seed: of its elements.

    Raises:
        UnsupportedError: a type without numbers.
    """
    import numpy as np

    dtype = normal_dtype(str(tree.get("dtype", "")))
    shape = tuple(int(size) for size in tree.get("shape") or ())
    generator = np.random.default_rng(seed)
    count = math.prod(shape)
    kind = kind_of(dtype)
    if dtype not in STORAGE_TYPES or kind is Kind.OTHER:
        raise UnsupportedError(f"elements of type {dtype or 'unknown'} cannot be generated")
    if kind is Kind.BOOL:
        values = _truths(tree, count, generator)
    elif kind is Kind.INTEGER:
        values = _integers(tree, count, generator, np.dtype(STORAGE_TYPES[dtype]))
    elif kind is Kind.COMPLEX:
        values = _complex(tree, count, generator, np.dtype(STORAGE_TYPES[dtype]))
    else:
        values = narrow(_floats(tree, count, generator), dtype)
    return StoredTensor(array=values.reshape(shape), dtype=dtype)


def narrow(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Return numbers as the elements of a floating-point type, rounded to nearest even.

    Args:
        values: finite or not.
        dtype: its name; bfloat16 and float8 come as bit patterns.
    """
    import numpy as np

    if dtype == "bfloat16":
        bits = np.asarray(values, np.float32).view(np.uint32)
        with np.errstate(over="ignore"):
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = np.where(np.isnan(values), 0x7FC0, rounded)
        return quiet.astype(np.uint16)
    if dtype.startswith("float8"):
        return _nearest_float8(values, dtype)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(STORAGE_TYPES[dtype])


def _nearest_float8(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    import numpy as np

    from msprobe.dump.formats.dtypes import widen

    table = widen(np.arange(256, dtype=np.uint8), dtype).astype(np.float64)
    codes = np.flatnonzero(np.isfinite(table))
    order = codes[np.argsort(table[codes], kind="stable")]
    levels = table[order]
    middles = (levels[1:] + levels[:-1]) / 2
    return order[np.searchsorted(middles, np.nan_to_num(values))].astype(np.uint8)


def _floats(
    tree: Mapping[str, Any], count: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    import numpy as np

    lowest, highest = _ends(tree)
    values = _between(lowest, highest, tree, count, generator)
    _add_nonfinite(values, tree, generator)
    return np.asarray(values, np.float64)


def _ends(tree: Mapping[str, Any]) -> tuple[float, float]:
    """Return the smallest and the largest finite element."""
    dtype = normal_dtype(str(tree.get("dtype", "")))
    largest = _largest(dtype)
    ends = []
    for finite, plain in (("finite_min", "Min"), ("finite_max", "Max")):
        end = tree.get(finite)
        if end is None:
            end = tree.get(f"{plain}_except_inf_nan")
        if end is None:
            end = tree.get(plain)
        end = float(end) if isinstance(end, (int, float)) else math.nan
        ends.append(max(-largest, min(largest, end)) if not math.isnan(end) else math.nan)
    lowest, highest = ends
    if math.isnan(lowest) or math.isnan(highest):
        return (-1.0, 1.0) if math.isnan(lowest) and math.isnan(highest) else (lowest, lowest)
    return min(lowest, highest), max(lowest, highest)


def _largest(dtype: str) -> float:
    layout = FLOATS.get(dtype)
    if layout is None:
        return 3e38
    top = (1 << layout.exponent_bits) - 2 - layout.bias
    return math.ldexp(2.0 - layout.epsilon, min(top, 1022))


def _between(
    lowest: float,
    highest: float,
    tree: Mapping[str, Any],
    count: int,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Return elements in a range, with the recorded mean and norm as far as these are possible."""
    import numpy as np

    if count == 0:
        return np.empty(0)
    mean, spread = _moments(tree, lowest, highest, count)
    values = generator.standard_normal(count)
    center, width = mean, spread
    found = np.clip(center + width * values, lowest, highest)
    for _ in range(_ROUNDS):
        deviation = float(found.std())
        center += mean - float(found.mean())
        if deviation > 0 and spread > 0:
            width *= min(spread / deviation, 4.0)
        found = np.clip(center + width * values, lowest, highest)
    found[0] = lowest
    found[-1] = highest
    return found


def _moments(
    tree: Mapping[str, Any], lowest: float, highest: float, count: int
) -> tuple[float, float]:
    mean, norm = tree.get("Mean"), tree.get("Norm")
    if not isinstance(mean, (int, float)) or not math.isfinite(mean):
        return (lowest + highest) / 2, (highest - lowest) / math.sqrt(12)
    center = max(lowest, min(highest, float(mean)))
    if not isinstance(norm, (int, float)) or not math.isfinite(norm):
        return center, (highest - lowest) / math.sqrt(12)
    return center, math.sqrt(max(norm * norm / count - center * center, 0.0))


def _add_nonfinite(
    values: NDArray[np.float64], tree: Mapping[str, Any], generator: np.random.Generator
) -> None:
    import numpy as np

    counts = {
        math.nan: tree.get("nan_count") or (1 if _is(tree, math.isnan) else 0),
        math.inf: tree.get("pos_inf_count") or (1 if tree.get("Max") == math.inf else 0),
        -math.inf: tree.get("neg_inf_count") or (1 if tree.get("Min") == -math.inf else 0),
    }
    total = min(sum(counts.values()), values.size)
    if not total:
        return
    places = generator.permutation(values.size)[:total]
    filled = np.repeat(list(counts), list(counts.values()))[:total]
    values[places] = filled


def _is(tree: Mapping[str, Any], test: Any) -> bool:
    return any(isinstance(tree.get(key), float) and test(tree[key]) for key in ("Max", "Min"))


def _truths(tree: Mapping[str, Any], count: int, generator: np.random.Generator) -> NDArray[Any]:
    import numpy as np

    largest, least = tree.get("Max"), tree.get("Min")
    if largest is None or bool(largest) == bool(least):
        return np.full(count, bool(largest))
    values = generator.random(count) < 0.5
    if count:
        values[0], values[-1] = False, True
    return np.asarray(values)


def _integers(
    tree: Mapping[str, Any], count: int, generator: np.random.Generator, dtype: np.dtype[Any]
) -> NDArray[Any]:
    import numpy as np

    limits = np.iinfo(dtype)
    lowest, highest = (
        min(max(int(end), int(limits.min)), int(limits.max)) if isinstance(end, (int, float)) else 0
        for end in (tree.get("Min"), tree.get("Max"))
    )
    ignored = tree.get("ignored")
    is_ignored = isinstance(ignored, int) and lowest == ignored < 0
    if is_ignored and highest >= 0:
        lowest = 0  # between the ignored class and the others there is none
    values = generator.integers(lowest, max(lowest, highest), count, dtype=dtype, endpoint=True)
    if is_ignored and lowest == 0:
        values[generator.random(count) < _ignored_share(tree, highest)] = ignored
        lowest = int(ignored)  # type: ignore[arg-type]  # `is_ignored` says so
    if count:
        values[0], values[-1] = lowest, highest
    return values


def _ignored_share(tree: Mapping[str, Any], highest: int) -> float:
    """Return the share of ignored targets by the mean, if all classes are equally frequent."""
    mean, middle = tree.get("Mean"), highest / 2
    if not isinstance(mean, (int, float)):
        return 0.5
    return min(max((middle - mean) / (middle - int(tree["ignored"])), 0.0), 1.0)


def _complex(
    tree: Mapping[str, Any], count: int, generator: np.random.Generator, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return complex elements whose sizes have the recorded statistics, at random angles."""
    import numpy as np

    lowest, highest = _ends(tree)
    sizes = _between(max(lowest, 0.0), max(highest, 0.0), tree, count, generator)
    angles = generator.uniform(-math.pi, math.pi, count)
    return np.asarray(sizes * np.exp(1j * angles)).astype(dtype)
