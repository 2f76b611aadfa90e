# SPDX-License-Identifier: Apache-2.0
"""How far two tensors are apart, by their checksums, norms and projections."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from msprobe.compare.distances import Distance
from msprobe.dump.facts import Data, Fingerprints, Parameters
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import coarser, epsilon_of

_Item = TypeVar("_Item")

ROUNDINGS: Final = 16.0
"""Roundings that the elements of one value may differ by and still be called the same value."""

_SAME_NUMBER: Final = 1e-6

EQUAL: Final = Distance(0.0, is_exact=True)
"""Of two tensors that are equal to the bit."""


class Fingerprint(NamedTuple):
    """A tensor in a few numbers.

    Attributes:
        dtype: its element type, as the framework spells it.
        checksum: of its bytes; None where unknown, as the following.
        norm: L2 norm.
        projections: two sums of its elements with fixed random signs.
    """

    dtype: str
    checksum: str | None = None
    norm: float | None = None
    projections: Sequence[float | None] | None = None

    def scaled(self, factor: float) -> Fingerprint:
        """Return that of a multiple of the tensor; its checksum is that of no other multiple."""
        projections = [each and each * factor for each in self.projections or ()]
        return self._replace(
            checksum=self.checksum and f"{factor} {self.checksum}",
            norm=self.norm and self.norm * abs(factor),
            projections=projections or None,
        )


class Change(NamedTuple):
    """How far two tensors are apart.

    Attributes:
        is_equal: they are equal to the bit, or nothing is known of either.
        distance: of their elements, relative to the reference's norm; None where nothing but the
            checksums tells, infinite where one of them alone is not finite.
        epsilon: that of the coarser of the two types.
        is_bound: the elements may be further apart than that, as norms alone do not tell.
        not_finite: which of them alone holds NaN or an infinity, in words; empty if neither.
    """

    is_equal: bool
    distance: Distance | None
    epsilon: float
    is_bound: bool = False
    not_finite: str = ""

    @property
    def relative(self) -> float:
        """The distance as a number to decide by; 0 where it is not known."""
        return 0.0 if self.distance is None else self.distance.value

    @property
    def is_rounding(self) -> bool:
        """Whether a few roundings of the coarser type explain the difference."""
        return self.is_equal or (
            self.distance is not None and not self.is_bound and self.may_be_rounding
        )

    @property
    def may_be_rounding(self) -> bool:
        """Whether nothing that is known of the difference is beyond a few roundings."""
        return self.relative <= ROUNDINGS * self.epsilon

    def largest_of(self, count: int) -> Change:
        """Return the same as the largest of so many, which is too large an estimate."""
        distance = self.distance
        return self if distance is None else self._replace(distance=distance.largest_of(count))

    @property
    def words(self) -> str:
        """The size in words."""
        if self.not_finite or self.distance is None:
            return self.not_finite
        return f"by {self.distance} of its norm"

    @property
    def ending(self) -> str:
        """The size as the end of a sentence."""
        return f"{', ' if self.not_finite else ' '}{self.words}".rstrip()


def change_of(target: Fingerprint, reference: Fingerprint) -> Change:
    """Return how far two tensors are apart.

    From one projection s·x of each, (s·x - s·y)² has the mean ‖x - y‖²; with two of them the
    estimate of the norm is off by more than a factor of 2 in a quarter of all cases.
    """
    types = normal_dtype(target.dtype), normal_dtype(reference.dtype)
    epsilon = epsilon_of(coarser(*types))
    found = _relative(target, reference)
    # What is zero on one side is as far away as the other one is large, and not just at least.
    is_known = target.norm and reference.norm and math.isfinite(found or math.inf)
    least = _least(target, reference) / reference.norm if is_known and reference.norm else 0.0
    distance = None if found is None else _distance(found, least, target, reference)
    not_finite = _not_finite(target, reference)
    if target.checksum is None or reference.checksum is None or types[0] != types[1]:
        return Change(not found, distance, epsilon, False, not_finite)
    if target.checksum == reference.checksum:
        return Change(True, EQUAL, epsilon)
    if not epsilon and not found:
        distance = None  # integers are not rounded: the same ones come in another order
    is_bound = target.projections is None or reference.projections is None
    return Change(False, distance, epsilon, is_bound, not_finite)


def _not_finite(target: Fingerprint, reference: Fingerprint) -> str:
    """Return which of two tensors alone holds NaN or an infinity, in words; empty if neither."""
    is_finite = [math.isfinite(one.norm or 0.0) for one in (target, reference)]
    if is_finite[0] == is_finite[1]:
        return ""
    norm, side = (reference.norm, "reference") if is_finite[0] else (target.norm, "target")
    return f"{'NaN' if norm != norm else 'infinite'} in the {side}"


def _relative(target: Fingerprint, reference: Fingerprint) -> float | None:
    if _not_finite(target, reference):
        return math.inf
    size = reference.norm or target.norm
    if size and 0.0 in (target.norm, reference.norm):
        return 1.0  # a tensor of zeros is as far away as the other one is large
    moved = [
        a - b
        for a, b in zip(target.projections or (), reference.projections or (), strict=False)
        if a is not None and b is not None
    ]
    least = _least(target, reference)
    if not moved and not least:
        return None
    estimate = math.sqrt(sum(each * each for each in moved) / len(moved)) if moved else 0.0
    if target.norm is not None and reference.norm is not None:
        estimate = min(estimate, target.norm + reference.norm)  # nor are they further apart
    distance = max(least, estimate)
    if not distance:
        return 0.0 if moved else None
    found = distance / size if size else math.inf
    return found if math.isfinite(found) else None


def _least(target: Fingerprint, reference: Fingerprint) -> float:
    """Return how far apart two tensors are at least: no norm moves further than the elements do."""
    if target.norm is None or reference.norm is None:
        return 0.0
    return abs(target.norm - reference.norm)


def apart_together(changes: Iterable[tuple[Change, float | None]]) -> str:
    """Return how far several tensors are apart, relative to their norm, as the end of a sentence.

    Empty if that is not known: a few of them have too few projections. Two tensors with the same
    numbers are copies of one.

    Args:
        changes: of each tensor, with the norm of the reference's.
    """
    known = [(each.distance, norm) for each, norm in changes if each.distance is not None and norm]
    size = math.hypot(*(norm for _, norm in known))
    if not size:
        return ""
    is_exact = all(each.is_exact for each, _ in known)
    value, least, most = (
        math.hypot(*(getattr(each, end) * norm for each, norm in known)) / size
        for end in ("value", "least", "most")
    )
    squares = {(each.value * norm) ** 2 for each, norm in known if each.draws}
    # One that is much further apart than the others alone tells how far all of them are.
    number = sum(squares) ** 2 / sum(each * each for each in squares) if any(squares) else 0.0
    distance = Distance(value, least, is_exact, most, draws=2 * number)
    return f" by {distance} of {'the' if len(known) == 1 else 'their common'} norm"


def is_number(tensor: Fingerprint) -> bool:
    """Return whether a tensor has a single element, as far as its projections tell."""
    norm, projections = tensor.norm, tensor.projections or (None,)
    return norm is not None and all(
        each is not None and math.isclose(abs(each), norm, rel_tol=_SAME_NUMBER)
        for each in projections
    )


def _distance(
    relative: float, least: float, target: Fingerprint, reference: Fingerprint
) -> Distance:
    if not math.isfinite(relative):
        return Distance(relative, least)
    is_zero = 0.0 in (target.norm, reference.norm)
    if is_zero or all(map(is_number, (target, reference))):
        return Distance(relative, relative, is_exact=True, most=relative)
    if not (target.norm and reference.norm):
        return Distance(relative, least)
    both = zip(target.projections or (), reference.projections or (), strict=False)
    draws = sum(None not in pair for pair in both)
    return Distance(relative, least, most=target.norm / reference.norm + 1, draws=draws)


def is_part(target: Sequence[int], reference: Sequence[int]) -> bool:
    """Return whether one shape is that of a share of the other one, divided along one dimension."""
    apart = [both for both in zip(target, reference, strict=False) if both[0] != both[1]]
    return (
        len(target) == len(reference)
        and len(apart) == 1
        and min(apart[0]) <= -(-max(apart[0]) // 2)
    )


def of_parameter(columns: Parameters, place: int) -> Fingerprint:
    """Return the fingerprint of a parameter when a step starts."""
    return Fingerprint(
        at(columns.dtype, place) or "",
        at(columns.checksum, place),
        at(columns.norm, place),
        at(columns.projections, place),
    )


def of_parameters(columns: Parameters | None) -> dict[str, Fingerprint]:
    """Return parameter or buffer → its fingerprint when a step starts; empty if it is unknown."""
    if columns is None:
        return {}
    return {name: of_parameter(columns, place) for place, name in enumerate(columns.name)}


def of_data(data: Data) -> Fingerprint:
    """Return the fingerprint of a tensor that comes in."""
    return Fingerprint(data.dtype, data.checksum, data.norm, data.projections)


def in_column(columns: Fingerprints | None, place: int, dtype: str) -> Fingerprint:
    """Return one fingerprint of columns."""
    if columns is None:
        return Fingerprint(dtype)
    return Fingerprint(
        dtype,
        at(columns.checksum, place),
        at(columns.norm, place),
        at(columns.projections, place),
    )


def at(column: Sequence[_Item], place: int) -> _Item | None:
    """Return an entry of a column; None where the column is not there."""
    return column[place] if 0 <= place < len(column) else None
