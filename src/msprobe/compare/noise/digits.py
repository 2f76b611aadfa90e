# SPDX-License-Identifier: Apache-2.0
"""`trusted_digits`: how many digits of each value of a program can be trusted, and who loses them.

Each pair of recordings with noise is compared. Half the mean square of their relative differences
is the square of the spread s of one recording. The trusted digits are -log10(q s), where 95 of 100
recordings lie within q spreads: for three recordings of a single number q is 4.3, as in J. Vignes,
A stochastic arithmetic for reliable scientific computation, Math. Comput. Simul. 35, 1993.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from msprobe.compare.model import Matched, Row, Status
from msprobe.compare.noise.floor import check_recordings
from msprobe.compare.noise.spread import quantile, spread_of
from msprobe.compare.options import CompareOptions
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.run import measure_noise
from msprobe.dump.reader import open_dump
from msprobe.dump.record_names import forward_name
from msprobe.dump.values import Role
from msprobe.numerics.number_types import epsilon_of

SCHEMA_VERSION: Final = 1
_RISK: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDigits:
    """Trusted digits of a value.

    Attributes:
        name: record and slot.
        role: its role in the call.
        dtype: its type.
        spread: of one recording, relative to the value's size; infinite where recordings differ
            in NaN, for example.
        digits: decimal digits that can be trusted, between 0 and those of the type.
    """

    name: str
    role: Role
    dtype: str
    spread: float
    digits: float

    def as_json(self) -> dict[str, Any]:
        """Return it for a program."""
        spread = self.spread if math.isfinite(self.spread) else None
        return {"name": self.name, "dtype": self.dtype, "spread": spread, "digits": self.digits}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDigits:
    """Digits that go into a call, and that come out.

    Attributes:
        step: its step.
        rank: its rank.
        record: its record.
        order: place in the order of execution.
        module: path of the module around it.
        source: line of the user's code; None if not recorded.
        values: its floating tensors.
        saved: those of the forward call, for a backward record.
        loses_none: whether it is a module with other calls inside, which tell more, or only moves
            elements: one of its results may hold the worst of what went in.
    """

    step: int
    rank: int | str
    record: str
    order: int
    module: str
    source: str | None
    values: Sequence[ValueDigits]
    saved: Sequence[ValueDigits] = ()
    loses_none: bool = False

    @property
    def worst(self) -> ValueDigits | None:
        """The result with the fewest digits; None where no result is a floating tensor."""
        results = (value for value in self.values if value.role is Role.OUTPUT)
        return min(results, key=lambda value: value.digits, default=None)

    @property
    def digits_in(self) -> float | None:
        """Fewest digits of what goes in, and no more than the result's type has."""
        worst = self.worst
        given = [value.digits for value in self.values if value.role is not Role.OUTPUT]
        given += [value.digits for value in self.saved]
        if worst is None or not given:
            return None
        return min(*given, digits_of(worst.dtype))

    @property
    def lost(self) -> float | None:
        """Digits that the call loses."""
        worst, before = self.worst, self.digits_in
        return None if worst is None or before is None else before - worst.digits

    def as_json(self) -> dict[str, Any]:
        """Return it for a program."""
        worst = self.worst
        return {
            "step": self.step,
            "rank": self.rank,
            "order": self.order,
            "record": self.record,
            "module": self.module,
            "source": self.source,
            "digits_in": self.digits_in,
            "digits_out": None if worst is None else worst.digits,
            "lost": self.lost,
            "values": [value.as_json() for value in self.values],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseReport:
    """Trusted digits of a program.

    Attributes:
        recordings: paths of the recordings.
        calls: all calls with floating tensors, in order of execution.
    """

    recordings: Sequence[Path]
    calls: Sequence[CallDigits]

    @property
    def losing(self) -> list[CallDigits]:
        """Calls that lose digits, those that lose most first."""
        found = [call for call in self.calls if not call.loses_none and (call.lost or 0.0) > 0]
        return sorted(found, key=lambda call: (-(call.lost or 0.0), call.step, call.order))

    def below(self, least: float) -> list[CallDigits]:
        """Return the calls with a result of fewer digits, in order of execution."""
        return [call for call in self.calls if call.worst is not None and call.worst.digits < least]

    def as_json(self) -> dict[str, Any]:
        """Return it for a program."""
        return {
            "schema_version": SCHEMA_VERSION,
            "recordings": [str(path) for path in self.recordings],
            "losing": [
                {"step": call.step, "rank": call.rank, "record": call.record, "lost": call.lost}
                for call in self.losing
            ],
            "calls": [call.as_json() for call in self.calls],
        }


def digits_of(dtype: str) -> float:
    """Return the decimal digits of a type: 7.2 for float32, 2.4 for bfloat16."""
    return -math.log10(epsilon_of(dtype) / 2)


def trusted_digits(paths: Sequence[Path], options: CompareOptions) -> NoiseReport:
    """Return the digits of each value that recordings with noise agree about.

    Args:
        paths: two or more recordings of one program with task ``noise_floor``.
        options: which steps and ranks, and how to pair calls.

    Raises:
        UsageError: they are not what they should be.
    """
    dumps = [open_dump(path) for path in paths]
    check_recordings(dumps)
    errors: dict[tuple[int, int | str, str], list[float]] = {}
    first: list[RankComparison] = []
    for one, other in combinations(dumps, 2):
        for comparison in measure_noise(one, other, options):
            first += [comparison] if one is dumps[0] and other is dumps[1] else []
            for row, error in _errors(comparison):
                key = comparison.step, comparison.rank, row.reference_name or ""
                errors.setdefault(key, []).append(error)
    calls = [
        call for comparison in first for call in _calls(comparison, errors, degrees=len(dumps) - 1)
    ]
    return NoiseReport(recordings=paths, calls=calls)


def _errors(comparison: RankComparison) -> Iterator[tuple[Row, float]]:
    for row in comparison.rows:
        if isinstance(row, Matched) and row.holds_tensor and epsilon_of(row.reference.dtype):
            if row.status is Status.EQUAL:
                yield row, 0.0
            elif row.status in (Status.CLOSE, Status.DIFFERS) and row.error is not None:
                yield row, row.error
            else:
                yield row, math.inf


def _calls(
    comparison: RankComparison,
    errors: dict[tuple[int, int | str, str], list[float]],
    degrees: int,
) -> Iterator[CallDigits]:
    step, rank = comparison.step, comparison.rank
    found: dict[str, list[ValueDigits]] = {}
    orders: dict[str, int] = {}
    for row, _ in _errors(comparison):
        record, value = row.pair.reference or "", row.reference
        assert value is not None
        name = row.reference_name or ""
        # The difference of two recordings has twice the variance of either.
        spread = spread_of(errors[step, rank, name]) / math.sqrt(2)
        count = max(math.prod(value.shape or ()), 1)
        orders.setdefault(record, row.pair.position)
        found.setdefault(record, []).append(
            ValueDigits(
                name=name,
                role=value.role,
                dtype=value.dtype,
                spread=spread,
                digits=_digits(spread * quantile(degrees, count, _RISK), value.dtype),
            )
        )
    side = comparison.reference
    around = {side.parent(record) for record in found}
    for record, values in found.items():
        forward = forward_name(side.parsed(record))
        yield CallDigits(
            step=step,
            rank=rank,
            record=record,
            order=orders[record],
            module=side.module(record),
            source=side.source_line(record),
            values=values,
            saved=found.get(forward, ()) if forward else (),
            loses_none=(forward or record) in around
            or not (forward or side.operator(record).rounds),
        )


def _digits(error: float, dtype: str) -> float:
    most = digits_of(dtype)
    if not error:
        return most
    return 0.0 if math.isinf(error) else min(max(-math.log10(error), 0.0), most)
