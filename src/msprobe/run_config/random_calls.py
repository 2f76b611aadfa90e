# SPDX-License-Identifier: Apache-2.0
"""Compare the random functions that two runs called: places, counts, seeds and arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import PurePath
from typing import Final, NamedTuple

from msprobe.dump.records import JsonTree
from msprobe.run_config.levels import Aspect, Difference, Item, ItemResult, Level

NO_MATCH: Final = "no match stack"
_COLUMNS: Final = (
    "op",
    "rank",
    "bench_stack",
    "cmp_stack",
    "bench_count",
    "cmp_count",
    "check_result",
)
_SIMILAR: Final = 0.8
_FRAME: Final = re.compile(
    r"File (?P<file>.*), line \d+, in (?P<function>[^,]*),? ?(?P<code>.*)", re.S
)


class _Calls(NamedTuple):
    """Calls of one function from one place."""

    stack: tuple[str, ...]
    number: int
    seeds: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


_NONE: Final = _Calls((), 0)


def compare_random_calls(
    bench: Mapping[int, Mapping[str, JsonTree]], cmp: Mapping[int, Mapping[str, JsonTree]]
) -> ItemResult:
    """Compare by rank, function and place: how often, with which seeds, numbers and words.

    Two places are the same if their stacks are equally deep and every frame is alike: the mean
    similarity of file name, function and line of code is at least 0.8; line numbers do not count.
    Of those that remain, equally deep places whose innermost frames are alike are the same, too.
    """
    rows: list[tuple[str | int | bool, ...]] = []
    differences: list[Difference] = []
    for rank in sorted({*bench, *cmp}):
        one, other = bench.get(rank, {}), cmp.get(rank, {})
        for function in dict.fromkeys((*one, *other)):
            for pair in _pairs(_calls(one.get(function)), _calls(other.get(function))):
                difference = _difference(rank, function, *pair)
                stacks = [NO_MATCH if each is _NONE else "\n".join(each.stack) for each in pair]
                counts = [each.number for each in pair]
                rows.append((function, rank, *stacks, *counts, difference is None))
                differences += [difference] if difference is not None else []
    return ItemResult(
        item=Item.RANDOM,
        columns=_COLUMNS,
        rows=list(rows),
        differences=differences,
        compared=len(rows),
    )


def _difference(rank: int, function: str, bench: _Calls, cmp: _Calls) -> Difference | None:
    texts, aspect = [f"{bench.number} calls", f"{cmp.number} calls"], Aspect.VALUE
    if bench.number == cmp.number:
        # Packs of mindstudio-probe hold neither.
        if _part(bench.seeds, cmp.seeds):
            texts, aspect = [", ".join(bench.seeds), ", ".join(cmp.seeds)], Aspect.SEED
        elif _part(bench.arguments, cmp.arguments):
            pairs = zip(bench.arguments, cmp.arguments, strict=False)
            texts = list(next((pair for pair in pairs if pair[0] != pair[1]), texts))
        else:
            return None
    place = bench.stack or cmp.stack
    return Difference(
        item=Item.RANDOM,
        name=f"rank {rank} {function}",
        bench=texts[0],
        cmp=texts[1],
        level=Level.ERROR,
        note=place[-1] if place else "",
        aspect=aspect,
    )


def _part(bench: tuple[str, ...], cmp: tuple[str, ...]) -> bool:
    return bool(bench and cmp) and bench != cmp


def _calls(entries: JsonTree) -> list[_Calls]:
    found: list[_Calls] = []
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {"count": int() as count, "stack": list() as stack}:
                given = (entry.get(key) for key in ("seeds", "arguments"))
                texts = (tuple(map(str, each)) if isinstance(each, list) else () for each in given)
                found.append(_Calls(tuple(map(str, stack)), count, *texts))
    return found


def _pairs(bench: list[_Calls], cmp: list[_Calls]) -> list[tuple[_Calls, _Calls]]:
    left = list(cmp)
    found: dict[int, _Calls] = {}
    # An equal place first: similar ones may be several. Last, one that is reached in another way.
    for is_same in (_is_equal, _is_similar, _ends_alike):
        for place, calls in enumerate(bench):
            partner = next(
                (each for each in left if place not in found and is_same(calls, each)), None
            )
            if partner is not None:
                left.remove(partner)
                found[place] = partner
    pairs = [(calls, found.get(place, _NONE)) for place, calls in enumerate(bench)]
    return pairs + [(_NONE, calls) for calls in left]


def _is_equal(one: _Calls, other: _Calls) -> bool:
    return one.stack == other.stack


def _ends_alike(one: _Calls, other: _Calls) -> bool:
    is_as_deep = 0 < len(one.stack) == len(other.stack)
    return is_as_deep and _frames_alike(one.stack[-1], other.stack[-1])


def _is_similar(one: _Calls, other: _Calls) -> bool:
    return len(one.stack) == len(other.stack) and all(map(_frames_alike, one.stack, other.stack))


def _frames_alike(one: str, other: str) -> bool:
    parts = [_FRAME.match(frame) for frame in (one, other)]
    if parts[0] is None or parts[1] is None:
        return one == other
    files = [PurePath(part["file"]).name for part in parts if part is not None]
    ratios = [_ratio(*files)]
    ratios += [_ratio(parts[0][key], parts[1][key]) for key in ("function", "code")]
    return sum(ratios) / len(ratios) >= _SIMILAR


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
