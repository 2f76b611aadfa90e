# SPDX-License-Identifier: Apache-2.0
"""How a recorded call comes to NaN and infinities: the rule of `nan_check` and `overflow_check`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import UNSET

from msprobe.capture.call import Draft
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.records import JsonTree, TensorRecord
from msprobe.operators.lookup import operator_of
from msprobe.operators.nonfinite import has_overflowed, is_asked_for
from msprobe.operators.operator import Operator

# The parts that a call received. A call whose received values are all finite is a source. Gradients
# of parameters show no inputs: one is a source only where nothing overflowed before it in the step.
_RECEIVED: Final = frozenset({"input_args", "input_kwargs", "parameters", "input"})
# Updates that a scaler skips one after the other until the gradients' overflow is a finding: from
# its usual first scale, 65536, to one where nothing overflows, it takes fewer.
MOST_SKIPPED: Final = 8
_SHOWN_PARTS: Final = {"input_args": "input", "input_kwargs": "kwargs"}

Value = tuple[bool, str, TensorRecord]
"""Whether a tensor was given to the call, its path, and its record."""


class FindingKind(StrEnum):
    """How a call comes to a value that is not finite."""

    SOURCE = "source"
    """It received finite values."""
    INHERITED = "inherited"
    """A call before it in the step had such values."""
    CAME_IN = "came in"
    """It received them, and no call before it in the step had any: data or a parameter."""
    ONLY_MINUS_INF = "only -Inf"
    """It received finite values and gives -Inf, but no NaN and no +Inf: a mask or a logarithm."""
    NEAR = "near overflow"
    """All is finite; a result is near the largest number of its type, and no argument is."""
    UNDERFLOW = "underflow"
    """All is finite; much of a result is subnormal, or was turned to zero by a cast."""
    SCALED = "scaled gradient"
    """It is in the gradients of a scaled loss, and the gradient scaler skipped the update."""


BEGINNINGS: Final = (FindingKind.SOURCE, FindingKind.CAME_IN)
SPREADING: Final = (*BEGINNINGS, FindingKind.INHERITED)


def nonfinite_kind(
    draft: Draft, values: Sequence[Value], *, had_before: bool
) -> tuple[FindingKind | None, list[tuple[str, TensorRecord]]]:
    """Return how a call comes to NaN or infinities, and which of its values show them.

    Args:
        draft: the finished record.
        values: its tensors (`values_of`).
        had_before: whether a call before it in the step had such values.

    Returns: None and no value where all is finite, where the program asked for what is not, and
        where -Inf is only passed on.
    """
    given = [record for is_given, _, record in values if is_given]
    results = [(path, record) for is_given, path, record in values if not is_given]
    is_bad = _is_bad if "input_args" in draft.parts else is_nonfinite  # no gradient is a mask
    bad = [(path, record) for path, record in results if is_bad(record)]
    if any(map(is_bad, given)):
        kind = FindingKind.INHERITED if had_before else FindingKind.CAME_IN
        return kind, bad or [(path, one) for is_in, path, one in values if is_in and is_bad(one)]
    if bad:
        if _is_asked_for(draft, bad):
            return None, []
        has_inputs = any(part in _RECEIVED for part in draft.parts)
        is_later = had_before and not has_inputs  # gradients of parameters
        return FindingKind.INHERITED if is_later else FindingKind.SOURCE, bad
    bad = [(path, one) for path, one in results if is_nonfinite(one)]
    if not bad or any(map(is_nonfinite, given)) or _is_asked_for(draft, bad):
        return None, []
    lows = [one.min for one in given if isinstance(one.min, int | float)]
    lows += _numbers_given(draft.parts)
    overflowed = any(has_overflowed(_operator(draft), one.dtype, lows) for _, one in bad)
    return FindingKind.SOURCE if overflowed else FindingKind.ONLY_MINUS_INF, bad


def values_of(parts: Mapping[str, JsonTree]) -> Iterator[Value]:
    """Yield the tensors of a record: whether it was given, its path, and its record."""
    for part, tree in parts.items():
        for path, record in _tensors(tree, _SHOWN_PARTS.get(part, part)):
            yield part in _RECEIVED, path, record


def _tensors(tree: JsonTree, path: str) -> Iterator[tuple[str, TensorRecord]]:
    if isinstance(tree, TensorRecord):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _tensors(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _tensors(value, f"{path}.{index}")


def is_nonfinite(record: TensorRecord) -> bool:
    """Return whether a tensor holds NaN or infinities."""
    if record.nan_count is not UNSET:
        return True
    ends = (record.max, record.min)
    return any(isinstance(end, float) and not math.isfinite(end) for end in ends)


def _is_bad(record: TensorRecord) -> bool:
    """Return whether there is a NaN or +Inf; -Inf alone may be a mask."""
    if record.nan_count is not UNSET:
        return bool(record.nan_count or record.pos_inf_count)
    return isinstance(record.max, float) and not (record.max < math.inf)


def _operator(draft: Draft) -> Operator:
    """Return what a call of an API computes; of others nothing is known."""
    name = parse_record_name(draft.name)
    if name.is_module or name.path is None:
        return Operator(name="")
    return operator_of(name.prefix, name.path)


def _is_asked_for(draft: Draft, bad: list[tuple[str, TensorRecord]]) -> bool:
    """Return whether a call was told to make what is not finite among its results."""
    is_mask = not any(_is_bad(record) for _, record in bad)
    return is_asked_for(_operator(draft), _numbers_given(draft.parts), only_minus_inf=is_mask)


def _numbers_given(parts: Mapping[str, JsonTree]) -> Iterator[int | float]:
    return _numbers([parts.get(part) for part in ("input_args", "input_kwargs")])


def _numbers(tree: JsonTree) -> Iterator[int | float]:
    """Yield the numbers among arguments."""
    if isinstance(tree, Mapping):
        if set(tree) == {"type", "value"}:
            if isinstance(value := tree["value"], int | float):
                yield value
        else:
            for value in tree.values():
                yield from _numbers(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _numbers(value)
