# SPDX-License-Identifier: Apache-2.0
"""`OwnErrors`: by how much the results of one call are wrong on either side, against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msprobe.compare.verdicts.ranking import Culprit

# Of two right results neither is this much further from the exact one, in units in the last place.
_OF_ONE_SIZE: Final = 4.0
_LEAST_ULPS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnError:
    """Error of the results of a call against float64.

    Attributes:
        is_fault: whether the error is larger than allowed.
        is_certain: whether it is so much larger that nothing else explains it.
        ulps: the largest error in units in the last place of the result's type.
        ratio: the largest error in parts of the allowed one.
        slot: the result that decided.
        remark: the error in a few words; empty where the number says it all.
        not_judged: why it was not judged; empty if it was.
    """

    is_fault: bool = False
    is_certain: bool = False
    ulps: float = 0.0
    ratio: float = 0.0
    slot: str = ""
    remark: str = ""
    not_judged: str = ""

    @property
    def words(self) -> str:
        """The error in words."""
        if self.not_judged:
            return f"not judged ({self.not_judged})"
        if self.remark:
            return f"{self.remark} ({self.ratio:.3g} times the allowed error)"
        return f"{self.ulps:.3g} ulp ({self.ratio:.2g} times the allowed error)"

    def as_json(self) -> dict[str, Any]:
        """Return it as it is in ``summary.json``."""
        if self.not_judged:
            return {"not_judged": self.not_judged}
        return {
            "is_fault": self.is_fault,
            "ulps": self.ulps,
            "ratio": self.ratio,
            "result": self.slot,
            "remark": self.remark,
        }


class OwnErrors(NamedTuple):
    """Errors of one call on both sides.

    Attributes:
        target: the error in the target.
        reference: the error in the reference.
    """

    target: OwnError
    reference: OwnError

    def as_json(self) -> dict[str, Any]:
        """Return them as they are in ``summary.json``."""
        return {
            "target": self.target.as_json(),
            "reference": self.reference.as_json(),
            "at_fault": self.at_fault,
            "is_judged": self.is_judged,
            "words": self.words,
        }

    @property
    def is_judged(self) -> bool:
        """Whether both sides were judged."""
        return not (self.target.not_judged or self.reference.not_judged)

    @property
    def at_fault(self) -> list[str]:
        """The sides whose own error is larger than allowed."""
        return [side for side, error in self._asdict().items() if error.is_fault]

    @property
    def is_rounding(self) -> bool:
        """Whether both results are right, and about as near to the exact one.

        Where one is much further from it, it may be within its generous limit and still be wrong.
        """
        near, far = sorted(error.ulps for error in self)
        is_even = far <= _OF_ONE_SIZE * max(near, _LEAST_ULPS)
        return self.is_judged and not self.at_fault and is_even

    @property
    def is_certain(self) -> bool:
        """Whether one side errs beyond doubt and the other does not."""
        return len(self.at_fault) == 1 and any(error.is_certain for error in self)

    def verdict_words(self, place: str) -> str:
        """Return which side errs, and by how much."""
        sides = self.at_fault
        if len(sides) > 1:
            return f"both sides compute {place} wrongly: {self.words}"
        is_target = sides[0] == "target"
        error, right = self if is_target else self[::-1]
        other = "reference" if is_target else "target"
        return (
            f"the {sides[0]} computes {error.slot} of {place} wrongly: {error.words}; the {other} "
            f"is right: {right.words}"
        )

    @property
    def words(self) -> str:
        """Both errors in words."""
        return f"own error: target {self.target.words}, reference {self.reference.words}"


class CulpritKey(NamedTuple):
    """A call of a comparison.

    Attributes:
        step: the target's step.
        rank: the target's rank.
        record: name of the target's record.
    """

    step: int
    rank: int | str
    record: str


def key_of(culprit: Culprit) -> CulpritKey:
    """Return the call that a culprit is."""
    comparison = culprit.comparison
    return CulpritKey(comparison.step, comparison.rank, culprit.row.pair.name)
