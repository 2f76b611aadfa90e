# SPDX-License-Identifier: Apache-2.0
"""Warnings ahead of NaN and Inf: values near the end of their type, and norms that grew."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

from msprobe.dump.rank_records import Records
from msprobe.dump.rank_view import RankView
from msprobe.dump.values import Value
from msprobe.errors import DumpFormatError
from msprobe.overflow.examined import Examined, examine
from msprobe.overflow.findings import Finding, Growth, LossGrowth, NearOverflow, Place, Source
from msprobe.overflow.one_rank import RankExamination

_LARGEST: Final[Mapping[str, float]] = MappingProxyType(
    {
        "float64": 1.7976931348623157e308,
        "float32": 3.4028234663852886e38,
        "bfloat16": 3.3895313892515355e38,
        "float16": 65504.0,
        "float8_e5m2": 57344.0,
        "float8_e4m3fn": 448.0,
    }
)
_NEAR: Final = 0.9
# Masks are filled with the least number of a type; scores added to it change its last bits.
_FILLED: Final = 0.998
# One of these is in the text of every record with a value near the end of its type.
_NEAR_WORDS: Final = (b'.float16"', b'"Float16"', b"loat8_", b"e+38", b"e38", b"e+308", b"e308")

_GROWTH: Final = 100.0
_JUMP: Final = 10.0
_CALLS_BEFORE: Final = 2000  # records before a finding in which its arguments are looked for
_MAX_CHAIN: Final = 64
_STEPS_BEFORE: Final = 20


def near_overflow(rank: RankExamination, finding: Finding | None) -> NearOverflow | None:
    """Return the first finite result near the end of its type; with a finding, only before that."""
    records = rank.view.records
    words = records.words_present(_NEAR_WORDS)
    last = len(rank.positions) if finding is None else finding.position
    for name in islice(rank.positions, last):
        if not records.may_hold_any(name, words):
            continue
        examined = _examined(records, name)
        if examined is None or examined.name.recompute:
            continue
        for value in examined.results:
            share = _share(value)
            if _NEAR <= share < _FILLED:
                place = Place(rank.rank, name)
                return NearOverflow(place=place, slot=value.label, dtype=value.dtype, share=share)
    return None


def _share(value: Value) -> float:
    """Return the largest element over the largest number of its type; 0 for other types."""
    largest = _LARGEST.get(value.dtype)
    ends = [abs(end) for end in (value.max, value.min) if isinstance(end, (int, float))]
    share = max(ends, default=0.0) / largest if largest else 0.0
    return share if math.isfinite(share) else 0.0


def growth_before(
    rank: RankExamination, finding: Finding, *, scale: float | None = None
) -> Growth | None:
    """Return how the norm grew over the calls that led to a finding; None if it hardly did.

    Follows the largest argument of the call that another call made back through these calls. A
    value is known again by its id, or by its statistics where the dump has no ids.

    Args:
        rank: the rank.
        finding: where NaN or Inf begin.
        scale: what a gradient scaler multiplied the loss with, which is no growth.
    """
    if finding.source is not Source.OPERATION:
        return None
    makers = _makers(rank, finding.position)
    found = rank.examined.get(finding.place.name)
    value = _followed(found.arguments, makers) if found is not None else None
    if value is None:
        return None
    chain = [(finding.place.name, _norm(value))]  # a call, and the norm of what it was given
    while len(chain) < _MAX_CHAIN and (maker := makers.pop(_key(value), None)) is not None:
        value = _followed(maker.arguments, makers)
        if value is None or (scale and math.isclose(chain[-1][1], scale * _norm(value))):
            break
        chain.append((maker.name.full, _norm(value)))
    return _growth_in(rank, chain)


def _growth_in(rank: RankExamination, chain: list[tuple[str, float]]) -> Growth | None:
    """Return the growth up to the first entry of a chain, which goes backwards."""
    norms = [norm for _, norm in chain]
    low = min(range(len(norms)), key=lambda place: (norms[place], place))
    if not norms[low] or norms[0] < _GROWTH * norms[low]:
        return None
    # The call of entry n + 1 was given its norm and made that of entry n.
    steps = range(low, 0, -1)
    first = next(
        (step for step in steps if norms[step - 1] >= _JUMP * norms[step]),
        max(steps, key=lambda step: norms[step - 1] / norms[step]),
    )
    name = chain[first][0]
    around = [rank.ancestors(call) for call, _ in chain[1 : low + 1]]
    outer = {module for modules in around for module in modules[1:]}
    return Growth(
        place=Place(rank.rank, name),
        module=next(iter(rank.ancestors(name)), None),
        calls=low,
        modules=len({modules[0] for modules in around if modules} - outer),
        norm_before=norms[low],
        norm=norms[0],
    )


def _makers(rank: RankExamination, end: int) -> dict[Hashable, Examined]:
    """Return the calls before a position by their results; of nested calls the innermost."""
    makers: dict[Hashable, Examined] = {}
    for name in islice(rank.positions, max(end - _CALLS_BEFORE, 0), end):
        if (examined := _examined(rank.view.records, name)) is not None:
            for value in examined.results:
                makers.setdefault(_key(value), examined)
    return makers


def _examined(records: Records, name: str) -> Examined | None:
    try:
        return examine(records[name])
    except DumpFormatError:
        return None


def _followed(values: tuple[Value, ...], makers: Mapping[Hashable, Examined]) -> Value | None:
    """Return the largest value that a call made; the first where none did: others are weights."""
    known = [value for value in values if value.dtype in _LARGEST and _norm(value) > 0]
    made = (value for value in known if _key(value) in makers)
    return max(made, key=_norm, default=next(iter(known), None))


def _norm(value: Value) -> float:
    norm = value.norm
    return float(norm) if norm is not None and math.isfinite(norm) else 0.0


def _key(value: Value) -> Hashable:
    if value.value_id is not None:
        return value.value_id
    return (value.shape, value.max, value.min, value.mean, value.norm)


def loss_growth(views: Mapping[int, RankView], step: int) -> LossGrowth | None:
    """Return how the loss grew over the steps up to one; None if it hardly did.

    Args:
        views: one rank's dump of each step.
        step: the step with NaN or Inf.
    """
    before = [number for number in views if number <= step][-_STEPS_BEFORE:]
    losses = dict(_losses({number: views[number] for number in before}))
    if len(losses) < 2:
        return None
    low = min(losses, key=lambda number: (losses[number], -number))
    last = max(losses)
    if not losses[low] or losses[last] < _GROWTH * losses[low]:
        return None
    return LossGrowth(step=low, last_step=last, loss_before=losses[low], loss=losses[last])


def _losses(views: Mapping[int, RankView]) -> Iterator[tuple[int, float]]:
    for number, view in views.items():
        try:
            losses = [loss.value for loss in view.facts.loss] if view.facts else []
        except DumpFormatError:
            continue
        known = [abs(loss) for loss in losses if loss is not None and math.isfinite(loss)]
        if known:
            yield number, max(known)
