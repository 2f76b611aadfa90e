# SPDX-License-Identifier: Apache-2.0
"""`compare_packs`: differences in how two runs were started, and in their inputs and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.dump.records import JsonTree
from msprobe.run_config.arguments import COLUMNS, compare_arguments
from msprobe.run_config.environment import compare_environments
from msprobe.run_config.levels import Difference, ItemResult, Level, highest
from msprobe.run_config.pack import Pack, read_pack
from msprobe.run_config.packages import compare_packages
from msprobe.run_config.random_calls import compare_random_calls
from msprobe.run_config.system import compare_systems
from msprobe.run_config.value_tables import (
    compare_datasets,
    compare_generators,
    compare_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs compared.

    Attributes:
        bench: the trusted run.
        cmp: the run under test.
        items: one result an item that both packs hold.
        notes: items that could not be compared.
    """

    bench: Pack
    cmp: Pack
    items: Mapping[str, ItemResult]
    notes: tuple[str, ...]

    @property
    def level(self) -> Level:
        """The highest level of all items."""
        return highest(item.level for item in self.items.values())

    def differences(self) -> list[Difference]:
        """Return all differences, the highest level first."""
        found = [each for item in self.items.values() for each in item.differences]
        return sorted(found, key=lambda each: -each.level.weight)


def compare_packs(bench: Path, cmp: Path) -> RunComparison:
    """Compare two packs, of msprobe or mindstudio-probe.

    Args:
        bench: that of the trusted run.
        cmp: that of the run under test.

    Raises:
        RunConfigFormatError: a file is no pack, or damaged or hostile.
    """
    one, other = read_pack(bench), read_pack(cmp)
    parts: tuple[tuple[Any, Any, Callable[[Any, Any], ItemResult]], ...] = (
        (one.env, other.env, compare_environments),
        (one.packages, other.packages, compare_packages),
        (one.system, other.system, compare_systems),
        (one.arguments, other.arguments, _compare_all_arguments),
        (one.dataset, other.dataset, compare_datasets),
        (one.weights, other.weights, compare_weights),
        (one.random, other.random, compare_random_calls),
        (one.generators, other.generators, compare_generators),
    )
    results = [compare(bench, cmp) for bench, cmp, compare in parts if bench and cmp]
    items = {result.item: result for result in results}
    notes = [*one.notes, *other.notes, *_unmatched_items(one, other)]
    return RunComparison(bench=one, cmp=other, items=items, notes=tuple(notes))


def _compare_all_arguments(
    bench: Mapping[str, dict[str, JsonTree]], cmp: Mapping[str, dict[str, JsonTree]]
) -> ItemResult:
    results = [compare_arguments(name, bench[name], cmp[name]) for name in bench if name in cmp]
    return ItemResult(
        item="hyperparameters",
        columns=COLUMNS,
        rows=[row for result in results for row in result.rows],
        differences=[each for result in results for each in result.differences],
        compared=sum(result.compared for result in results),
    )


def _unmatched_items(one: Pack, other: Pack) -> list[str]:
    notes = []
    for item in ("env", "packages", "system", "dataset", "weights", "random", "generators"):
        in_one, in_other = bool(getattr(one, item)), bool(getattr(other, item))
        if in_one != in_other:
            holder = one if in_one else other
            notes.append(f"{item} is left out: only {holder.path.name} holds it")
    for name in sorted(one.arguments.keys() ^ other.arguments.keys()):
        holder = one if name in one.arguments else other
        notes.append(f"{name} is left out: only {holder.path.name} holds it")
    return notes
