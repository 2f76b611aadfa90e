# SPDX-License-Identifier: Apache-2.0
"""Differences that statistics hide: masks, and masked values, that look the same and are not.

Of true and false values statistics keep only the largest and the least. Two masks with both kinds
of element look equal, wherever these are. Projections of zeros and ones are small whole numbers,
often the same. Beside elements of -3.4e38 or -1e9 no other counts in a norm
or a mean. Elements in another order are told by projections, which not every value has. The inputs
of the call that made such a value tell more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msprobe.compare.model import Matched, Row, Status
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.limits import is_limit
from msprobe.compare.verdicts.origin_state import OriginState
from msprobe.dump.values import Value

# How many calls upstream the origin of a mask is looked for.
_FARTHEST: Final = 60
# Beside larger elements, smaller ones with this share of the whole are lost in a tolerance.
_NOTHING: Final = 1e-3


class Hidden(NamedTuple):
    """A difference that the statistics of a call's inputs do not show.

    Attributes:
        error: largest relative error of what the hidden values were made from; infinite for masks.
        differs: it is beyond its tolerance.
    """

    error: float
    differs: bool


def hidden_difference(state: OriginState, call: Call) -> Hidden | None:
    """Return how far apart the inputs are of calls that made masked values; None if not at all."""
    for row, maker in state.upstream(call, lambda each: _hidden_sources(state, each), _FARTHEST):
        is_hidden = _hides(row)
        # Of an argument that differs statistics of the mask show nothing.
        if is_hidden and state.convict(maker.start):
            return Hidden(math.inf, differs=True)
        inputs = [each for each in maker.inputs if is_hidden or _holds_the_same(each, row)]
        found = _largest(inputs, is_mask=_is_mask(row.value))
        if found is not None:
            return found
    return None


def _hidden_sources(state: OriginState, call: Call) -> Iterator[tuple[Row, int]]:
    """Yield the inputs whose statistics may hide a difference, and what made them."""
    for row in _taken_in(state, call):
        if _hides(row) or _may_be_reordered(row):
            source = state.flow.makers(row).common
            if source is not None:
                yield row, source


def _taken_in(state: OriginState, call: Call) -> Iterator[Row]:
    """Yield the inputs of a call; for a backward record, those of its forward call as well."""
    yield from call.inputs
    if call.is_backward and (forward := state.calls.forward_of(call)) is not None:
        yield from forward.inputs


def _largest(inputs: Iterable[Row], *, is_mask: bool) -> Hidden | None:
    inexact = [row for row in inputs if _matters(row) or (row.error and not is_mask)]
    if not inexact:
        return None
    sizes = (math.inf if is_mask or row.error is None else row.error for row in inexact)
    return Hidden(max(sizes), differs=any(map(_matters, inexact)))


def _hides(row: Row) -> bool:
    return isinstance(row, Matched) and all(map(hides_its_elements, row.values))


def hides_its_elements(value: Value) -> bool:
    """Return whether neither statistics nor projections tell where a tensor's elements are."""
    if not value.is_tensor or value.md5 is not None:
        return False
    is_ruled = _is_mask(value) or is_limit(value.min) or is_limit(value.max)
    return is_ruled or _is_ruled_by_extreme(value)


def _is_ruled_by_extreme(value: Value) -> bool:
    """Return whether next to the largest elements, all of them equal, no other one counts.

    Scores masked with -1e9 agree within any tolerance, whatever the scores are.
    """
    if value.norm is None or value.mean is None or value.max is None or value.min is None:
        return False
    extreme = max(value.max, value.min, key=abs)
    total = value.mean * math.prod(value.shape or ())
    is_constant = value.max == value.min
    return not is_constant and math.isclose(
        value.norm * value.norm, total * extreme, rel_tol=_NOTHING
    )


def _is_mask(value: Value) -> bool:
    """Return whether all elements are true or false, or zeros and ones."""
    if value.norm is None or value.mean is None:
        return value.dtype == "bool" and value.norm is None
    ones = value.mean * math.prod(value.shape or ())
    return (value.min, value.max) == (0, 1) and math.isclose(value.norm**2, ones, rel_tol=1e-6)


def _may_be_reordered(row: Row) -> bool:
    """Return whether two tensors agree, and only their order of elements is not known."""
    if row.status is not Status.EQUAL or not isinstance(row, Matched):
        return False
    if row.target.md5 is not None or row.target.pairs_with(row.reference) is not None:
        return False
    return row.target.norm is not None and math.prod(row.target.shape or ()) > 1


def _holds_the_same(row: Row, other: Row) -> bool:
    """Return whether two rows hold the same elements on each side, as far as statistics tell."""
    return isinstance(row, Matched) and all(map(_has_same_statistics, row.values, other.values))


def _has_same_statistics(value: Value, other: Value) -> bool:
    numbers = [(each.max, each.min, each.mean, each.norm) for each in (value, other)]
    return value.norm is not None and numbers[0] == numbers[1]


def _matters(row: Row) -> bool:
    """Return whether a difference is one of values: of a tensor, or an argument at fault."""
    if not row.status.is_difference:
        return False
    return row.holds_tensor or row.origin is not None
