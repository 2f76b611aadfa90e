# SPDX-License-Identifier: Apache-2.0
"""Parameters that one side has in another form: transposed, joined with others, split, or tied."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from msprobe.checkpoints.alike import SAMPLE, first_elements, is_near, number_pattern
from msprobe.checkpoints.parameters import PIECE_ELEMENTS, Parameter
from msprobe.checkpoints.spans import (
    ColumnsSpan,
    FileSpan,
    JoinedSpan,
    PartSpan,
    Span,
    by_columns,
)
from msprobe.dump.formats.dtypes import COMPLEX_PARTS, PACKED_TYPES

# Other spans than those of files are held in memory to be transposed: 64 MiB of float32.
_MOST_IN_MEMORY: Final = 1 << 24
_MOST_PARTS: Final = 64
_MOST_CANDIDATES: Final = 256


def transposed(parameter: Parameter) -> Parameter | None:
    """Return a matrix with its dimensions exchanged, None if it is none or is too large for it."""
    if len(parameter.shape) != 2:
        return None
    rows, columns = parameter.shape
    span: Span
    if isinstance(parameter.span, FileSpan):
        span = by_columns(parameter.span, (columns, rows))
    elif parameter.count <= _MOST_IN_MEMORY:
        span = _TransposedSpan(parameter.span, rows, columns)
    else:
        return None
    return replace(parameter, shape=(columns, rows), span=span)


@dataclass(frozen=True, slots=True)
class _TransposedSpan:
    """The elements of a matrix by columns; reads all of it."""

    inner: Span
    rows: int
    columns: int

    def read(self, start: int, stop: int) -> NDArray[Any]:
        whole = self.inner.read(0, self.rows * self.columns).reshape(self.rows, self.columns)
        return np.ascontiguousarray(whole.T).reshape(-1)[start:stop]


def is_transposed(target: Parameter, reference: Parameter) -> bool:
    """Return whether a matrix is the other one transposed, as far as a sample shows."""
    turned = transposed(reference)
    if turned is None or turned.shape != target.shape or not _is_real(target, reference):
        return False
    # Rows apart from the first one, too: a sample of it alone may be that of a tied matrix.
    count = min(target.count, SAMPLE)
    last = target.count - count
    return all(
        is_near(
            first_elements(target, start, start + count),
            first_elements(turned, start, start + count),
        )
        for start in {0, last}
    )


def pair_transposed(
    added: Sequence[Parameter], removed: Sequence[Parameter]
) -> list[tuple[Parameter, Parameter]]:
    """Return pairs of leftovers of which the second is the first, transposed."""
    waiting: dict[Any, list[Parameter]] = defaultdict(list)
    for item in removed:
        if len(item.shape) == 2 and item.count > 1:
            waiting[item.shape[::-1], number_pattern(item.name)[1]].append(item)
    pairs: list[tuple[Parameter, Parameter]] = []
    for item in added:
        others = waiting.get((item.shape, number_pattern(item.name)[1]), [])[:_MOST_PARTS]
        found = next((each for each in others if is_transposed(item, each)), None)
        if found is not None:
            key = (item.shape, number_pattern(item.name)[1])
            waiting[key] = [each for each in waiting[key] if each is not found]
            pairs.append((item, found))
    return pairs


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A parameter of one side, and the parts of the other side that make it up.

    Attributes:
        whole: the parameter.
        parts: those it consists of, in order.
        joined: the parts as one parameter.
    """

    whole: Parameter
    parts: tuple[Parameter, ...]
    joined: Parameter


def find_joined(wholes: Sequence[Parameter], parts: Sequence[Parameter]) -> list[Regrouped]:
    """Return the parameters that consist of several of the other side.

    Args:
        wholes: leftovers of one side.
        parts: leftovers of the other side; those with the same numbers in their names are tried.
    """
    by_numbers: dict[tuple[int, ...], list[Parameter]] = defaultdict(list)
    for item in parts:
        by_numbers[number_pattern(item.name)[1]].append(item)
    found: list[Regrouped] = []
    stacks = _stacks(parts)
    for whole in wholes:
        numbers = number_pattern(whole.name)[1]
        stack = _stacked(whole, stacks.get((numbers, whole.shape), ()))
        if stack is not None:
            found.append(stack)
            continue
        candidates = [item for item in by_numbers.get(numbers, ()) if _is_part(item, whole)]
        group = _joined_from(whole, candidates[:_MOST_CANDIDATES])
        if group is not None:
            found.append(group)
            taken = set(map(id, group.parts))
            by_numbers[numbers] = [x for x in by_numbers[numbers] if id(x) not in taken]
    return found


def _stacks(parts: Sequence[Parameter]) -> dict[Any, list[list[Parameter]]]:
    """Return parameters whose names differ in one number, by the rest and the shape of all.

    The experts of a layer are stored one by one, or as one tensor with a dimension more.
    """
    series: dict[Any, dict[int, Parameter]] = defaultdict(dict)
    for item in parts:
        pattern, numbers = number_pattern(item.name)
        for place, number in enumerate(numbers):
            rest = (*numbers[:place], *numbers[place + 1 :])
            series[pattern, place, rest, item.shape, item.dtype][number] = item
    found: dict[Any, list[list[Parameter]]] = defaultdict(list)
    for (_, _, rest, shape, _), members in series.items():
        if len(members) > 1:
            items = [members[number] for number in sorted(members)]
            found[rest, (len(items), *shape)].append(items)
    return found


def _stacked(whole: Parameter, stacks: Sequence[list[Parameter]]) -> Regrouped | None:
    """Return the stack that a parameter is, as far as samples show."""
    for parts in stacks:
        size = parts[0].count
        if (
            size > 0
            and parts[0].dtype == whole.dtype
            and _is_real(whole)
            and all(_begins(whole, place * size, part, 0) for place, part in enumerate(parts))
        ):
            return _regrouped(whole, parts, JoinedSpan([(part.span, size) for part in parts]))
    return None


def _is_part(part: Parameter, whole: Parameter) -> bool:
    return (
        part.dtype == whole.dtype
        and _is_real(part, whole)
        and len(part.shape) == len(whole.shape) > 0
        and 0 < part.count < whole.count
    )


def _is_real(*parameters: Parameter) -> bool:
    return all(
        each.dtype not in PACKED_TYPES and each.dtype not in COMPLEX_PARTS for each in parameters
    )


def _joined_from(whole: Parameter, candidates: Sequence[Parameter]) -> Regrouped | None:
    rows = [item for item in candidates if item.shape[1:] == whole.shape[1:]]
    chain = _chain(whole, rows, 0) if len(rows) > 1 else None
    if chain is not None:
        span: Span = JoinedSpan([(part.span, part.count) for part in chain])
        return _regrouped(whole, chain, span)
    woven = _woven(whole, rows)
    if woven is not None:
        return woven
    if len(whole.shape) == 2:
        columns = [item for item in candidates if item.shape[0] == whole.shape[0]]
        chain = _chain(whole, columns, 1) if len(columns) > 1 else None
        if chain is not None:
            span = ColumnsSpan([(part.span, part.shape[1]) for part in chain])
            return _regrouped(whole, chain, span)
    return None


def _regrouped(whole: Parameter, parts: Sequence[Parameter], span: Span) -> Regrouped:
    name = " + ".join(part.name for part in parts)
    joined = replace(parts[0], name=name, shape=whole.shape, span=span)
    return Regrouped(whole, tuple(parts), joined)


def _chain(whole: Parameter, parts: Sequence[Parameter], axis: int) -> list[Parameter] | None:
    """Return parts that follow each other in the whole along an axis, None if there are none."""
    step = math.prod(whole.shape[1:]) if axis == 0 else 1
    left, place, chain = list(parts), 0, list[Parameter]()
    while place < whole.shape[axis] and len(chain) < _MOST_PARTS:
        part = next((item for item in left if _begins(whole, place * step, item, axis)), None)
        if part is None:
            return None
        left = [item for item in left if item is not part]
        chain.append(part)
        place += part.shape[axis]
    return chain if place == whole.shape[axis] and len(chain) > 1 else None


def _begins(whole: Parameter, start: int, part: Parameter, axis: int) -> bool:
    """Return whether a part begins at an element of the whole, as far as a sample shows."""
    length = part.count if axis == 0 else part.shape[1]
    count = min(length, SAMPLE)
    if start + count > whole.count:
        return False
    return is_near(first_elements(whole, start, start + count), first_elements(part, 0, count))


def _woven(whole: Parameter, parts: Sequence[Parameter]) -> Regrouped | None:
    """Return query, key and value that lie group by group in the whole, as Megatron has them."""
    if len(parts) != 3 or sum(part.shape[0] for part in parts) != whole.shape[0]:
        return None
    common = math.gcd(*(part.shape[0] for part in parts))
    for groups in (number for number in range(2, common + 1) if common % number == 0):
        sizes = [part.count // groups for part in parts]
        for order in _ORDERS:
            if _is_woven(whole, parts, sizes, order):
                pieces = [
                    (PartSpan(parts[each].span, group * sizes[each]), sizes[each])
                    for group in range(groups)
                    for each in order
                ]
                ordered = [parts[each] for each in order]
                return _regrouped(whole, ordered, JoinedSpan(list(pieces)))
    return None


def _is_woven(
    whole: Parameter, parts: Sequence[Parameter], sizes: Sequence[int], order: Sequence[int]
) -> bool:
    for group in (0, 1):
        start = group * sum(sizes)
        for each in order:
            count = min(sizes[each], SAMPLE)
            begin = group * sizes[each]
            one = first_elements(whole, start, start + count)
            if not is_near(one, first_elements(parts[each], begin, begin + count)):
                return False
            start += sizes[each]
    return True


_ORDERS: Final = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


def find_tied(
    leftovers: Sequence[Parameter],
    paired: Sequence[Parameter],
    digest: Callable[[Parameter], bytes],
) -> list[tuple[Parameter, Parameter]]:
    """Return leftovers with the values of another parameter of the same checkpoint.

    Args:
        leftovers: parameters of a checkpoint without a partner in the other one.
        paired: its parameters that have one.
        digest: checksum of all values.
    """
    wanted = {(item.dtype, item.shape) for item in leftovers}
    by_start: dict[Any, list[Parameter]] = defaultdict(list)
    for item in paired:
        if (item.dtype, item.shape) in wanted:
            by_start[_start(item)].append(item)
    found: list[tuple[Parameter, Parameter]] = []
    for item in leftovers:
        others = by_start.get(_start(item), [])[:_MOST_PARTS]
        # Many parameters are all 0 or all 1; only other values tell that two are one.
        if not others or not _varies(item):
            continue
        own = digest(item)
        twin = next((other for other in others if digest(other) == own), None)
        if twin is not None:
            found.append((item, twin))
    return found


def _start(item: Parameter) -> tuple[str, tuple[int, ...], bytes]:
    """Return type, shape and first bytes: equal for equal parameters, and cheap."""
    return item.dtype, item.shape, item.span.read(0, min(item.count, 64)).tobytes()


def _varies(item: Parameter) -> bool:
    if item.count < 2 or not _is_real(item):
        return False
    return bool(np.ptp(first_elements(item, 0, min(item.count, PIECE_ELEMENTS))) > 0)
