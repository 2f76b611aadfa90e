# SPDX-License-Identifier: Apache-2.0
"""Compare the settings and flags of two trainings: modules, optimizers, schedules, loaders …"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msprobe.run_config.levels import Difference, Item, ItemResult, Level

_COLUMNS: Final = ("name", "ranks", "bench_value", "cmp_value", "level")
# The first that fits decides; everything else changes the computation.
_LEVELS: Final = (
    (re.compile(r"loader\.\d+\.(pin_memory|persistent_workers|timeout|prefetch.*)"), Level.INFO),
    (re.compile(r"loader\.\d+\.num_workers"), Level.WARNING),
    (re.compile(r"loader\.\d+\.dataset\..*(path|dir|root|file|folder|name)"), Level.WARNING),
    (re.compile(r"optimizer\.\d+\.group\.\d+\.(foreach|fused|capturable)"), Level.WARNING),
    (re.compile(r"module\..*\.(name_or_path|transformers_version)"), Level.INFO),
)

Settings = Mapping[int, Mapping[str, str]]
"""By rank, a flat table."""


def compare_settings(item: Item, bench: Settings, cmp: Settings) -> ItemResult:
    """Compare the settings of one part; what several ranks have in common is said once."""
    ranks = sorted({*bench, *cmp})
    places: dict[tuple[str, str | None, str | None], list[int]] = {}
    names: dict[str, None] = {}
    for rank in ranks:
        one, other = bench.get(rank, {}), cmp.get(rank, {})
        for name in dict.fromkeys((*one, *other)):
            names[name] = None
            if one.get(name) != other.get(name):
                places.setdefault((name, one.get(name), other.get(name)), []).append(rank)
    differences = [
        Difference(
            item=item,
            name=name,
            bench=one,
            cmp=other,
            level=_level(name),
            note="" if where == ranks else f"rank {', '.join(map(str, where))}",
        )
        for (name, one, other), where in places.items()
    ]
    rows = [
        (each.name, each.note or "all", each.bench or "None", each.cmp or "None", each.level.value)
        for each in differences
    ]
    return ItemResult(
        item=item, columns=_COLUMNS, rows=list(rows), differences=differences, compared=len(names)
    )


def _level(name: str) -> Level:
    return next((level for form, level in _LEVELS if form.fullmatch(name)), Level.ERROR)
