# SPDX-License-Identifier: Apache-2.0
"""Weights, data and random generators of two runs, step by step and rank by rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from msprobe.dump.records import JsonTree
from msprobe.report.tables import Cell
from msprobe.run_config.levels import Aspect, Difference, Item, ItemResult, Level
from msprobe.run_config.pack import StepRank

CHECKSUM: Final = "crc32"
ROWS: Final = "rows"
_MOST_ROWS: Final = 0.5
STATISTICS: Final = ("max", "min", "mean", "norm")
_DIFFS: Final = tuple(f"{name}_relative_diff" for name in STATISTICS)
Leaf = Mapping[str, JsonTree]
"""The entry of a tensor."""

ONLY_BENCH: Final = "only bench have"
ONLY_CMP: Final = "only cmp have"
NOT_COMPARED: Final = "holds no values"


def compare_weights(
    bench: Mapping[StepRank, Mapping[str, JsonTree]],
    cmp: Mapping[StepRank, Mapping[str, JsonTree]],
) -> ItemResult:
    """Compare the parameters of two runs: by checksum where there is one, else by statistics."""
    return _compare(Item.WEIGHTS, "weight_name", bench, cmp)


def compare_buffers(
    bench: Mapping[StepRank, Mapping[str, JsonTree]],
    cmp: Mapping[StepRank, Mapping[str, JsonTree]],
) -> ItemResult:
    """Compare the buffers of two models: by checksum where there is one, else by statistics."""
    return _compare(Item.BUFFERS, "buffer_name", bench, cmp)


def compare_datasets(
    bench: Mapping[StepRank, Mapping[str, JsonTree]],
    cmp: Mapping[StepRank, Mapping[str, JsonTree]],
) -> ItemResult:
    """Compare the inputs of two models: by checksum where there is one, else by statistics."""
    found = _compare(Item.DATASET, "tag", bench, cmp)
    if not found.differences or not _holds_same_rows(bench, cmp):
        return found
    note = "the same rows in another order"
    differences = [replace(each, aspect=Aspect.ORDER, note=note) for each in found.differences]
    return replace(found, differences=differences)


def compare_generators(
    bench: Mapping[int, Mapping[str, JsonTree]], cmp: Mapping[int, Mapping[str, JsonTree]]
) -> ItemResult:
    """Compare the states of the random generators of two runs, by their checksums."""
    rows: list[tuple[Cell, ...]] = []
    differences: list[Difference] = []
    for rank in sorted({*bench, *cmp}):
        one, other = (dict(_flat(side.get(rank, {}))) for side in (bench, cmp))
        for name in dict.fromkeys((*one, *other)):
            step, _, generator = name.partition(".")
            values = [str(side[name]) if name in side else None for side in (one, other)]
            bench_value, cmp_value = values
            rows.append((step, rank, generator, *values, bench_value == cmp_value))
            if bench_value != cmp_value:
                differences.append(
                    Difference(
                        item=Item.GENERATORS,
                        name=f"{step} rank {rank} {generator}",
                        bench=bench_value,
                        cmp=cmp_value,
                        level=Level.ERROR,
                    )
                )
    return ItemResult(
        item=Item.GENERATORS,
        columns=("step", "rank", "generator", "bench_state", "cmp_state", "equal"),
        rows=rows,
        differences=differences,
        compared=len(rows),
    )


def relative_difference(bench: JsonTree, cmp: JsonTree) -> float | None:
    """Return |bench - cmp| / |bench|; None where it is undefined."""
    if not _is_number(bench) or not _is_number(cmp):
        return None
    if bench == cmp or (math.isnan(bench) and math.isnan(cmp)):
        return 0.0
    if bench == 0 or not math.isfinite(bench) or not math.isfinite(cmp):
        return None
    return float(abs(bench - cmp) / abs(bench))


def _compare(
    item: Item,
    title: str,
    bench: Mapping[StepRank, Mapping[str, JsonTree]],
    cmp: Mapping[StepRank, Mapping[str, JsonTree]],
) -> ItemResult:
    rows: list[tuple[Cell, ...]] = []
    differences: list[Difference] = []
    for step, rank in sorted({*bench, *cmp}):
        one = _leaves(bench.get((step, rank), {}))
        other = _leaves(cmp.get((step, rank), {}))
        for name in dict.fromkeys((*one, *other)):
            bench_value, cmp_value = one.get(name), other.get(name)
            verdict, diffs = _verdict(bench_value, cmp_value)
            rows.append((step, rank, name, verdict, *diffs))
            if verdict is not True:
                where = f"step {step} rank {rank} {name}"
                differences.append(
                    _difference(item, where, step, (bench_value, cmp_value), verdict)
                )
    return ItemResult(
        item=item,
        columns=("step", "rank", title, "equal", *_DIFFS),
        rows=rows,
        differences=differences,
        compared=len(rows),
    )


def _difference(
    item: Item, name: str, step: int, leaves: tuple[Leaf | None, Leaf | None], verdict: bool | str
) -> Difference:
    types = [leaf.get("dtype") if leaf else None for leaf in leaves]
    texts = [_text(leaf) for leaf in leaves]
    # Data do not depend on what the training has done before.
    aspect = Aspect.LATER if step and item is not Item.DATASET else Aspect.VALUE
    if verdict == NOT_COMPARED:
        aspect = Aspect.NOT_COMPARED
    elif None not in types and types[0] != types[1]:
        aspect, texts = Aspect.DTYPE, list(map(str, types))
    return Difference(
        item=item,
        name=name,
        bench=texts[0],
        cmp=texts[1],
        level=Level.WARNING if verdict == NOT_COMPARED else Level.ERROR,
        note="" if verdict is False else str(verdict),
        aspect=aspect,
        step=step if aspect is Aspect.LATER else 0,
    )


def _holds_same_rows(
    bench: Mapping[StepRank, Mapping[str, JsonTree]],
    cmp: Mapping[StepRank, Mapping[str, JsonTree]],
) -> bool:
    """Return whether one side was given the rows of the other, all or most at other places."""
    places = _rows(bench), _rows(cmp)
    counts = [{row: len(found) for row, found in side.items()} for side in places]
    if counts[0] == counts[1]:
        return places[0] != places[1]
    # What was given once is no padding and no mask.
    one, other = ({row: at for row, at in side.items() if len(at) == 1} for side in places)
    moved = sum(1 for row in one.keys() & other.keys() if one[row] != other[row])
    return moved > _MOST_ROWS * min(len(one), len(other))


def _rows(
    steps: Mapping[StepRank, Mapping[str, JsonTree]],
) -> dict[tuple[str, str], list[tuple[StepRank, int]]]:
    """Return the places of each row of each input."""
    places: dict[tuple[str, str], list[tuple[StepRank, int]]] = {}
    for step, tree in steps.items():
        for name, leaf in _leaves(tree).items():
            rows = leaf.get(ROWS)
            for number, row in enumerate(rows if isinstance(rows, list) else ()):
                places.setdefault((name, str(row)), []).append((step, number))
    return places


def _verdict(
    bench: Mapping[str, JsonTree] | None, cmp: Mapping[str, JsonTree] | None
) -> tuple[bool | str, list[float | None]]:
    if bench is None or cmp is None:
        return (ONLY_CMP if bench is None else ONLY_BENCH), [None] * len(STATISTICS)
    diffs = [relative_difference(bench.get(key), cmp.get(key)) for key in STATISTICS]
    if not _holds_values(bench) or not _holds_values(cmp):
        return NOT_COMPARED, diffs
    keys = [key for key in (CHECKSUM, "shape", "dtype") if key in bench and key in cmp]
    is_equal = all(bench[key] == cmp[key] for key in keys)
    is_equal &= all(
        _is_nan(bench[key]) is _is_nan(cmp[key])
        for key in STATISTICS
        if key in bench and key in cmp
    )
    if CHECKSUM not in keys:
        is_equal = is_equal and all(
            diff == 0.0 or bench.get(key) == cmp.get(key)
            for key, diff in zip(STATISTICS, diffs, strict=True)
        )
    return is_equal, diffs


def _holds_values(leaf: Mapping[str, JsonTree]) -> bool:
    return any(leaf.get(key) is not None for key in (CHECKSUM, *STATISTICS))


def _leaves(tree: Mapping[str, JsonTree]) -> dict[str, Mapping[str, JsonTree]]:
    """Return the descriptions of tensors in a nested tree, by their path."""
    found: dict[str, Mapping[str, JsonTree]] = {}
    waiting: list[tuple[str, JsonTree]] = [("", tree)]
    while waiting:
        name, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        if name and "norm" in node and not isinstance(node["norm"], dict):
            found[name] = node
            continue
        begin = f"{name}." if name else ""
        waiting += [(f"{begin}{key}", value) for key, value in reversed(node.items())]
    return found


def _flat(tree: Mapping[str, JsonTree]) -> Iterator[tuple[str, JsonTree]]:
    for step, states in tree.items():
        if isinstance(states, dict):
            for name, state in states.items():
                yield f"{step}.{name}", state


def _text(leaf: Mapping[str, JsonTree] | None) -> str | None:
    if leaf is None:
        return None
    keys = [key for key in ("shape", "norm", CHECKSUM) if key in leaf]
    return ", ".join(f"{key} {leaf[key]}" for key in keys)


def _is_nan(value: JsonTree) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _is_number(value: JsonTree) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
