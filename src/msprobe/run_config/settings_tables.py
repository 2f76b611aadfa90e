# SPDX-License-Identifier: Apache-2.0
"""Compare the settings and flags of two trainings: modules, optimizers, schedules, loaders …"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from msprobe.report.tables import Cell
from msprobe.run_config.levels import Aspect, Difference, Item, ItemResult, Level
from msprobe.run_config.live_objects import NOT_DESCRIBED
from msprobe.run_config.pack import NOT_SET, StepRank

_COLUMNS: Final = ("name", "ranks", "bench_value", "cmp_value", "level")
# The first that fits decides; everything else changes the computation.
_LEVELS: Final = (
    (re.compile(r"loader\.\d+\.(pin_memory|persistent_workers|timeout|prefetch.*)"), Level.INFO),
    (re.compile(r"loader\.\d+\.num_workers"), Level.WARNING),
    (re.compile(r"loader\.\d+\.dataset\..*(path|dir|root|file|folder|name)"), Level.WARNING),
    (re.compile(r"optimizer\.\d+\.group\.\d+\.(foreach|fused|capturable)"), Level.WARNING),
    (re.compile(r"object\..*"), Level.WARNING),
    (re.compile(r"module\..*\.(name_or_path|transformers_version)"), Level.INFO),
)

# Locks, files, streams and groups; what a framework's objects hold is read by name.
_WITHOUT_SETTINGS: Final = sys.stdlib_module_names | {"torch", "numpy", "mindspore"}
_ROWS: Final = re.compile(r"loader\.\d+\.dataset\.")  # compared as data

Settings = Mapping[int, Mapping[str, str]]
"""By rank, a flat table."""
Later = Mapping[StepRank, Mapping[str, Mapping[str, str]]]
"""By step and rank, tables of what changed before the step, by part."""


def compare_settings(item: Item, bench: Settings, cmp: Settings) -> ItemResult:
    """Compare the settings of one part; what several ranks have in common is said once."""
    ranks = sorted({*bench, *cmp})
    places: dict[tuple[str, str | None, str | None], list[int]] = {}
    names: dict[str, None] = {}
    for rank in ranks:
        one, other = bench.get(rank, {}), cmp.get(rank, {})
        for name in dict.fromkeys((*one, *other)):
            names[name] = None
            texts = one.get(name), other.get(name)
            is_unknown = all(text is not None and text.endswith(NOT_DESCRIBED) for text in texts)
            if texts[0] != texts[1] or is_unknown:
                places.setdefault((name, one.get(name), other.get(name)), []).append(rank)
    differences = [
        Difference(
            item=item,
            name=name,
            bench=one,
            cmp=other,
            level=_level(name) if one != other else _level_unseen(name, one or ""),
            note=_note(where if where != ranks else [], is_unseen=one == other),
            aspect=Aspect.VALUE if one != other else Aspect.NOT_COMPARED,
        )
        for (name, one, other), where in places.items()
    ]
    rows = list(map(settings_row, differences))
    return ItemResult(
        item=item, columns=_COLUMNS, rows=rows, differences=differences, compared=len(names)
    )


def settings_row(each: Difference) -> tuple[Cell, ...]:
    """Return the row of a difference in the table of its part."""
    return each.name, each.note or "all", each.bench or "None", each.cmp or "None", each.level.value


def compare_later(
    item: Item, settings: tuple[Settings, Settings], later: tuple[Later, Later], last_step: int
) -> list[Difference]:
    """Return settings that were alike, and no longer are at a later step; each the first time.

    Args:
        item: the part.
        settings: those at the beginning, of both runs.
        later: those that changed.
        last_step: the last one that both runs have.
    """
    found: dict[str, Difference] = {}
    ranks = {*settings[0], *settings[1]}
    places = sorted(
        (step, rank) for step, rank in {*later[0], *later[1]} if step <= last_step and rank in ranks
    )
    now = [{rank: dict(side.get(rank, {})) for rank in ranks} for side in settings]
    for step, rank in places:
        changes = [side.get((step, rank), {}).get(item, {}) for side in later]
        for name in dict.fromkeys((*changes[0], *changes[1])):
            before = [side[rank].get(name, NOT_SET) for side in now]
            after = [side.get(name, old) for side, old in zip(changes, before, strict=True)]
            if before[0] == before[1] and after[0] != after[1] and name not in found:
                found[name] = Difference(
                    item=item,
                    name=name,
                    bench=after[0],
                    cmp=after[1],
                    level=_level(name),
                    note=f"from step {step}",
                    aspect=Aspect.LATER,
                    step=step,
                )
        for side, changed in zip(now, changes, strict=True):
            side[rank] |= changed
    return list(found.values())


def _note(ranks: Sequence[int], *, is_unseen: bool) -> str:
    texts = ["no more than its class is known"] if is_unseen else []
    texts += [f"rank {', '.join(map(str, ranks))}"] if ranks else []
    return "; ".join(texts)


def _level_unseen(name: str, text: str) -> Level:
    """Return how much it matters that of an object no more than its class is known."""
    has_none = text.partition(".")[0] in _WITHOUT_SETTINGS
    return Level.INFO if has_none or _ROWS.match(name) else Level.WARNING


def _level(name: str) -> Level:
    return next((level for form, level in _LEVELS if form.fullmatch(name)), Level.ERROR)
