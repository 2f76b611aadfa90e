# SPDX-License-Identifier: Apache-2.0
"""`compare_packs`: differences in how two runs were started, and in their inputs and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from msprobe.dump.records import JsonTree
from msprobe.run_config.arguments import COLUMNS, compare_arguments
from msprobe.run_config.conclusion import Conclusion, conclude
from msprobe.run_config.environment import classify_variable, compare_environments
from msprobe.run_config.levels import Aspect, Difference, Item, ItemResult, Level, highest
from msprobe.run_config.pack import (
    DYNAMIC_FILE,
    LATER_PARTS,
    STATIC_FILE,
    TRAINING_PARTS,
    Pack,
    read_pack,
)
from msprobe.run_config.packages import compare_packages
from msprobe.run_config.random_calls import compare_random_calls
from msprobe.run_config.settings_tables import compare_later, compare_settings, settings_row
from msprobe.run_config.system import compare_systems
from msprobe.run_config.value_tables import (
    compare_buffers,
    compare_datasets,
    compare_generators,
    compare_weights,
)

_THREADS: Final = "torch.cpu_threads"
_Row = tuple[int, str, str]
"""Line, kind and text of a statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs compared.

    Attributes:
        bench: the trusted run.
        cmp: the run under test.
        items: one result an item that a pack holds.
    """

    bench: Pack
    cmp: Pack
    items: Mapping[Item, ItemResult]

    @property
    def level(self) -> Level:
        """The highest level of all items; packs of which nothing was compared do not pass."""
        if not any(item.compared for item in self.items.values()):
            return Level.WARNING
        return highest(item.level for item in self.items.values())

    @property
    def conclusion(self) -> Conclusion:
        """The earliest cause of the differences."""
        return conclude(self.items)

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
    parts: tuple[tuple[Item, Any, Any, Callable[[Any, Any], ItemResult]], ...] = (
        (Item.ENV, one.env, other.env, compare_environments),
        (Item.PACKAGES, one.packages, other.packages, compare_packages),
        (Item.SYSTEM, one.system, other.system, compare_systems),
        (Item.ARGUMENTS, one.arguments, other.arguments, _compare_all_arguments),
        *(
            (
                part,
                _part(one, part, other),
                _part(other, part, one),
                partial(compare_settings, part),
            )
            for part in TRAINING_PARTS
        ),
        (Item.DATASET, one.dataset, other.dataset, compare_datasets),
        (Item.WEIGHTS, one.weights, other.weights, compare_weights),
        (Item.BUFFERS, one.buffers, other.buffers, compare_buffers),
        (Item.RANDOM, one.random, other.random, compare_random_calls),
        (Item.GENERATORS, one.generators, other.generators, compare_generators),
    )
    items = {
        item: _note_if_empty(compare(bench, cmp))
        if bench and cmp
        else _held_by_one(item, bool(bench), bool(cmp))
        for item, bench, cmp, compare in parts
        if bench or cmp
    }
    if one.missing_ranks or other.missing_ranks:
        items[Item.PACK] = _incomplete(one, other)
    if Item.ARGUMENTS in items:
        items[Item.ARGUMENTS] = _with_statements(items[Item.ARGUMENTS], one, other)
        items[Item.ARGUMENTS] = _with_doubts(items[Item.ARGUMENTS], one, other)
    items |= _with_later_changes(items, one, other)
    items |= _with_variables_that_acted(items)
    return RunComparison(bench=one, cmp=other, items=items)


def _with_variables_that_acted(items: Mapping[Item, ItemResult]) -> dict[Item, ItemResult]:
    """Return the environment with a note of variables that have changed settings of torch."""
    env, system = items.get(Item.ENV), items.get(Item.SYSTEM)
    if env is None or system is None:
        return {}
    changed = {each.name for each in system.differences}
    categories = set()
    if _THREADS in changed:
        categories.add("threads")
    if any(name.startswith("torch.") for name in changed - {_THREADS}):
        categories.add("framework")
    differences = [
        replace(each, aspect=Aspect.CAUSE)
        if classify_variable(each.name).category in categories
        else each
        for each in env.differences
    ]
    return {Item.ENV: replace(env, differences=differences)}


def _with_later_changes(
    items: Mapping[Item, ItemResult], one: Pack, other: Pack
) -> dict[Item, ItemResult]:
    """Return the parts with differences that began at a later step."""
    last_step = min(max((step for step, _ in pack.weights), default=0) for pack in (one, other))
    found: dict[Item, ItemResult] = {}
    for part in LATER_PARTS:
        settings = _part(one, part, other), _part(other, part, one)
        differences = compare_later(part, settings, (one.later, other.later), last_step)
        if differences and part in items:
            known = items[part]
            rows = [*known.rows, *map(settings_row, differences)]
            differences = [*known.differences, *differences]
            found[part] = replace(known, rows=rows, differences=differences)
    return found


def _part(pack: Pack, part: Item, other: Pack) -> dict[int, dict[str, str]]:
    """Return a part by rank: of a pack that was asked, none is as good as an empty one."""
    if not any(part in parts for parts in (*pack.training.values(), *other.training.values())):
        return {}
    return {rank: parts.get(part, {}) for rank, parts in pack.training.items()}


def _compare_all_arguments(
    bench: Mapping[str, dict[str, JsonTree]], cmp: Mapping[str, dict[str, JsonTree]]
) -> ItemResult:
    results = [
        compare_arguments(name, bench[name], cmp[name])
        if name in bench and name in cmp
        else _held_by_one(Item.ARGUMENTS, name in bench, name in cmp, name)
        for name in dict.fromkeys((*bench, *cmp))
    ]
    return ItemResult(
        item=Item.ARGUMENTS,
        columns=COLUMNS,
        rows=[row for result in results for row in result.rows],
        differences=[each for result in results for each in result.differences],
        compared=sum(result.compared for result in results),
    )


def _held_by_one(item: Item, in_bench: bool, in_cmp: bool, name: str = "") -> ItemResult:
    """Return the result of an item, or a file of one, that only one pack holds."""
    held = ("held" if in_bench else None, "held" if in_cmp else None)
    difference = _not_compared(item, name or item, *held, "not compared")
    return ItemResult(item=item, columns=("name",), rows=[], differences=[difference], compared=0)


def _not_compared(
    item: Item, name: str, bench: str | None, cmp: str | None, note: str
) -> Difference:
    return Difference(
        item=item,
        name=name,
        bench=bench,
        cmp=cmp,
        level=Level.WARNING,
        note=note,
        aspect=Aspect.NOT_COMPARED,
    )


def _with_statements(result: ItemResult, bench: Pack, cmp: Pack) -> ItemResult:
    """Return the result with what the launch scripts hold beside arguments, compared as text."""
    sides = [[row for rows in pack.statements.values() for row in rows] for pack in (bench, cmp)]
    texts = [[row[1:] for row in side] for side in sides]
    differences = []
    for change, *ends in SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
        pairs = zip_longest(sides[0][slice(*ends[:2])], sides[1][slice(*ends[2:])])
        for one, other in pairs if change != "equal" else ():
            is_changed = one and other and one[1] == other[1]
            rows = [(one, other)] if is_changed else [(one, None), (None, other)]
            differences += [_text_difference(*row) for row in rows if any(row)]
    table = [
        (STATIC_FILE, each.name, each.name, each.bench or "None", each.cmp or "None", each.note,
         each.level.value)
        for each in differences
    ]  # fmt: skip
    return replace(
        result,
        rows=[*result.rows, *table],
        differences=[*result.differences, *differences],
        compared=result.compared + len(sides[0]) + len(sides[1]),
    )


def _text_difference(one: _Row | None, other: _Row | None) -> Difference:
    rows = [row for row in (one, other) if row]
    lines = " and ".join(dict.fromkeys(str(row[0]) for row in rows))
    return Difference(
        item=Item.ARGUMENTS,
        name=rows[0][1],
        bench=one and one[2],
        cmp=other and other[2],
        level=Level.TEXT,
        note=f"text differs at line {lines}, not explained",
        aspect=Aspect.TEXT,
    )


def _with_doubts(result: ItemResult, bench: Pack, cmp: Pack) -> ItemResult:
    """Return the result with a difference for each argument that a script leaves open.

    What the program has parsed itself is known for sure, and leaves nothing open.
    """
    if DYNAMIC_FILE in bench.arguments and DYNAMIC_FILE in cmp.arguments:
        return result
    known = {each.name for each in result.differences}
    reasons = cmp.unresolved | bench.unresolved
    differences = [
        _not_compared(Item.ARGUMENTS, name, _shown(bench, name), _shown(cmp, name), reasons[name])
        for name in dict.fromkeys((*bench.unresolved, *cmp.unresolved))
        if name not in known
    ]
    return replace(result, differences=[*result.differences, *differences])


def _shown(pack: Pack, name: str) -> str:
    value = pack.arguments.get(STATIC_FILE, {}).get(name)
    return "not resolved" if value is None else str(value)


def _note_if_empty(result: ItemResult) -> ItemResult:
    """Return the result, with a difference if both sides hold nothing that can be compared."""
    if result.compared or result.differences:
        return result
    item = result.item
    difference = _not_compared(item, item, "nothing", "nothing", "nothing to compare")
    return replace(result, differences=[difference])


def _incomplete(bench: Pack, cmp: Pack) -> ItemResult:
    """Return the ranks whose files are missing on a side."""
    gone = set(bench.missing_ranks), set(cmp.missing_ranks)
    differences = [
        _not_compared(
            Item.PACK,
            f"rank {rank}",
            None if rank in gone[0] else "held",
            None if rank in gone[1] else "held",
            "its file is not beside that of rank 0",
        )
        for rank in sorted(gone[0] | gone[1])
    ]
    columns = ("name", "bench", "cmp")
    rows = [(each.name, each.bench or "None", each.cmp or "None") for each in differences]
    return ItemResult(
        item=Item.PACK, columns=columns, rows=list(rows), differences=differences, compared=0
    )
