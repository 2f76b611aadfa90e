# SPDX-License-Identifier: Apache-2.0
"""Data and optimizer steps of both sides as lanes of the timeline in the HTML page.

Each entry is a batch, or an event between backward pass and next step, with what it was on both
sides. Nothing is judged here: an entry says whether the two sides are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.dump.facts import (
    Clip,
    Data,
    Event,
    Facts,
    Fingerprints,
    OptimizerStep,
    Scaler,
    Schedule,
)
from msprobe.errors import DumpFormatError

MOST_FACTS: Final = 20_000
"""Facts in a page: some 3 MB. Steps and ranks beyond have no lanes."""
_MOST_ENTRIES: Final = 32
_MOST_FACTS_EACH: Final = 40


class _Fact(NamedTuple):
    """A fact of both sides in words; None where a side lacks it."""

    name: str
    target: str | None
    reference: str | None


def make_lanes(comparisons: Iterable[RankComparison]) -> list[dict[str, Any]]:
    """Return the data and events of each step and rank of which both sides hold facts.

    Returns:
        Strict JSON, a bounded number of entries; empty where no dump holds facts.
    """
    lanes: list[dict[str, Any]] = []
    left = MOST_FACTS
    for lane in _lanes(comparisons):
        left -= sum(len(entry["facts"]) for entry in (*lane["data"], *lane["events"]))
        if left < 0:
            break
        lanes.append(lane)
    return lanes


def _lanes(comparisons: Iterable[RankComparison]) -> Iterator[dict[str, Any]]:
    for each in comparisons:
        target, reference = _facts(each.target), _facts(each.reference)
        if target is None or reference is None:
            continue
        data = [_entry(name, facts) for name, facts in _data(target.data, reference.data)]
        events = [_entry(name, facts) for name, facts in _events(target.events, reference.events)]
        if data or events:
            yield {
                "step": each.step,
                "rank": str(each.rank),
                "data": data[:_MOST_ENTRIES],
                "events": events[:_MOST_ENTRIES],
            }


def _facts(side: Side) -> Facts | None:
    try:
        return side.view.facts
    except DumpFormatError:  # a damaged file is reported where the dump is read
        return None


def _entry(name: str, facts: Sequence[_Fact]) -> dict[str, Any]:
    same = all(fact.target == fact.reference for fact in facts)
    # What is different comes first, so that a limit cannot hide it.
    ordered = sorted(facts, key=lambda fact: fact.target == fact.reference)
    return {
        "name": name,
        "same": same,
        "facts": [list(fact) for fact in ordered[:_MOST_FACTS_EACH]],
    }


def _data(
    target: Sequence[Data], reference: Sequence[Data]
) -> Iterator[tuple[str, Sequence[_Fact]]]:
    """Yield the micro batches; the tensors of each are its facts."""
    sides = [_by_micro(target), _by_micro(reference)]
    for micro in sorted(sides[0].keys() | sides[1].keys()):
        tensors = [side.get(micro, {}) for side in sides]
        facts = [
            _Fact(where, *(_tensor(found.get(where)) for found in tensors))
            for where in dict.fromkeys([*tensors[0], *tensors[1]])
        ]
        yield f"micro batch {micro}", facts


def _by_micro(data: Sequence[Data]) -> dict[int, dict[str, Data]]:
    found: dict[int, dict[str, Data]] = {}
    for each in data:
        found.setdefault(each.micro, {})[each.where] = each
    return found


def _tensor(data: Data | None) -> str | None:
    if data is None:
        return None
    shape = ", ".join(map(str, data.shape))
    parts = [f"{data.dtype.rpartition('.')[2]}[{shape}]"]
    parts += [f"checksum {data.checksum}"] if data.checksum is not None else []
    statistics = {"max": data.max, "min": data.min, "mean": data.mean, "norm": data.norm}
    parts += [f"{name} {_shown(value)}" for name, value in statistics.items() if value is not None]
    parts += [f"batch {data.index} of the loader"] if data.index is not None else []
    return ", ".join(parts)


def _events(
    target: Sequence[Event], reference: Sequence[Event]
) -> Iterator[tuple[str, Sequence[_Fact]]]:
    """Yield the events, paired by kind and number, in the order of the target."""
    sides = _numbered(target), _numbered(reference)
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        pair = [side.get(key) for side in sides]
        facts = [_described(event) for event in pair]
        names = dict.fromkeys([*facts[0], *facts[1]])
        yield (
            _event_name(pair[0] or pair[1]),
            [_Fact(name, facts[0].get(name), facts[1].get(name)) for name in names],
        )


def _numbered(events: Sequence[Event]) -> dict[tuple[object, ...], Event]:
    found: dict[tuple[object, ...], Event] = {}
    counts: dict[tuple[object, ...], int] = {}
    for event in events:
        kind = (type(event), event.number if isinstance(event, OptimizerStep) else None)
        counts[kind] = counts.get(kind, -1) + 1
        found[(*kind, counts[kind])] = event
    return found


def _event_name(event: Event | None) -> str:
    match event:
        case OptimizerStep():
            return f"{event.class_name.rpartition('.')[2]} step"
        case Clip():
            return event.function
        case Schedule():
            return event.class_name.rpartition(".")[2]
        case _:
            return "gradient scaler"


def _described(event: Event | None) -> dict[str, str]:
    names: Sequence[str]
    match event:
        case OptimizerStep():
            return dict(_optimizer_facts(event))
        case Clip():
            names = "function", "max", "norm_type", "total_norm", "parameters"
        case Scaler():
            names = "scale", "skipped", "new_scale"
        case Schedule():
            names = "class_name", "last_epoch", "lr"
        case _:
            return {}
    return {name.replace("_", " "): _shown(getattr(event, name)) for name in names}


def _optimizer_facts(step: OptimizerStep) -> Iterator[tuple[str, str]]:
    yield "class", step.class_name
    several = len(step.groups) > 1
    for number, group in enumerate(step.groups):
        where = f" (group {number})" if several else ""
        for option, value in group.options.items():
            yield f"{option}{where}", _shown(value)
        yield f"parameters{where}", f"{len(group.parameters):,}"
    parameters = step.parameters
    yield "with a gradient", f"{sum(parameters.has_gradient):,}"
    columns: Mapping[str, Fingerprints] = {
        "gradient": parameters.gradient,
        "parameter before": parameters.before,
        **parameters.state,
        "parameter after": parameters.after,
    }
    for what, column in columns.items():
        rows = zip_longest(parameters.name, column.checksum, column.norm)
        for name, checksum, norm in rows:
            if checksum is not None or norm is not None:
                yield f"{what} of {name}", f"norm {_shown(norm)}, checksum {checksum}"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return f"({', '.join(map(_shown, value))})"
    return "none" if value is None else str(value)
