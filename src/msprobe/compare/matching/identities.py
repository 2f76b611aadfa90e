# SPDX-License-Identifier: Apache-2.0
"""What a record is, in words that both sides share.

Names of modules and functions are translated, first as mapping files say, then by what is known of
frameworks and wrappers, so that the same thing has the same words on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.compare.matching.api_mapping import (
    ApiTable,
    Slots,
    built_in_table,
    read_api_mapping,
)
from msprobe.compare.matching.cell_mapping import CellMapping, class_family, read_cell_mapping
from msprobe.compare.matching.families import family, relatives
from msprobe.compare.matching.layer_mapping import (
    LayerMapping,
    numbered_from_zero,
    read_layer_mapping,
)
from msprobe.compare.matching.module_paths import shared_paths
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.dump.record_names import RecordName

MINDSPORE: Final = "mindspore"


class Identity(NamedTuple):
    """What a record is.

    Attributes:
        family: equal for all calls of one operation or module, whatever it is called.
        fallback: a wider family.
        is_mapped: whether a mapping that the user asked for decided it.
    """

    family: str
    fallback: str
    is_mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the records of one side are.

    Attributes:
        paths: module path → path by which both sides know the module.
        mapped_paths: those that a mapping file changed.
        classes: module path → class.
        apis: PyTorch's names of functions; None for a side that has these already.
        apis_are_asked_for: whether the user asked for that table.
        layers: renames of functions by the class of the layer around them.
    """

    paths: Mapping[str, str]
    classes: Mapping[str, str]
    mapped_paths: frozenset[str] = frozenset()
    apis: ApiTable | None = None
    apis_are_asked_for: bool = False
    layers: LayerMapping | None = None

    def identity(self, name: RecordName, path: str) -> Identity:
        """Return what a record is.

        Args:
            name: its name.
            path: of the module around it.
        """
        if name.is_module:
            return Identity(
                f"module {self.scope(name.path)}",
                f"class {class_family(name.class_name)}",
                name.path in self.mapped_paths,
            )
        if not name.prefix:
            return Identity(f"value {name.path}", f"value {name.path}")
        prefix, api = name.prefix, name.path
        is_mapped = False
        if self.layers is not None:
            api = self.layers.renamed_api(name.path, self.classes.get(path))
            is_mapped = api != name.path
        if self.apis is not None and not is_mapped:
            prefix, api = self.apis.pytorch_name(prefix, api)
            is_mapped = self.apis_are_asked_for and (prefix, api) != (name.prefix, name.path)
        operation = family(prefix, api)
        return Identity(operation, relatives(operation), is_mapped)

    def scope(self, path: str) -> str:
        """Return a module's path as both sides know it."""
        return self.paths.get(path, path)

    @property
    def depends_on_layer(self) -> bool:
        """Whether equal names in different layers may be different operations."""
        return self.layers is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNames:
    """What the records of both sides are, and which of their values belong together.

    Attributes:
        target: names of the target.
        reference: names of the reference.
        table: pairs of functions, if the frameworks differ or the user asked for it.
        is_swapped: whether PyTorch's functions are the target's.
    """

    target: Names
    reference: Names
    table: ApiTable | None = None
    is_swapped: bool = False
    _slots: dict[tuple[str, str, str], Slots] = field(default_factory=dict)

    def slots(self, target: RecordName, reference: RecordName) -> Slots:
        """Return target slot → reference slot where the table of functions says so."""
        if self.table is None or not self.table.pairs or target.is_module:
            return {}
        ms, pt = (reference, target) if self.is_swapped else (target, reference)
        key = (ms.base, pt.base, target.kind.value)
        found = self._slots.get(key)
        if found is None:
            pair = self.table.pair(ms.base, pt.base)
            found = {} if pair is None else pair.slots(target.kind)
            if self.is_swapped:
                found = _swapped(found)
            self._slots[key] = found
        return found


def shared_names(target: Side, reference: Side, options: CompareOptions) -> SharedNames:
    """Return the names of two sides.

    Raises:
        ConfigError: a mapping file cannot be used.
    """
    crosses = target.framework != reference.framework
    # Mapping files say MindSpore first; a dump of PyTorch may still be the target.
    is_swapped = crosses and reference.framework == MINDSPORE
    speaks_mindspore = [side.framework == MINDSPORE for side in (target, reference)]
    table = _table(options, has_mindspore=any(speaks_mindspore))
    layers = None if options.layer_mapping is None else read_layer_mapping(options.layer_mapping)
    cells = (
        read_cell_mapping(options.cell_mapping) if isinstance(options.cell_mapping, Path) else None
    )
    classes = [_classes(target), _classes(reference)]
    mapped: list[dict[str, str]] = [{path: path for path in known} for known in classes]
    mine = 1 if is_swapped else 0
    if layers is not None:
        layers.warn_unused(set(classes[mine].values()))
        mapped = [numbered_from_zero(known) for known in classes]
        mapped[mine] = layers.renamed_paths(classes[mine])
    elif cells is not None:
        mapped[mine] = _by_cells(cells, classes[mine])
    changed = frozenset(path for path, other in mapped[mine].items() if path != other)
    of_target, of_reference = shared_paths(set(mapped[0].values()), set(mapped[1].values()))
    paths = [
        {path: shared[other] for path, other in known.items()}
        for known, shared in zip(mapped, (of_target, of_reference), strict=True)
    ]
    translated = speaks_mindspore if any(speaks_mindspore) else [True, False]
    names = [
        Names(
            paths=paths[side],
            classes=classes[side],
            mapped_paths=changed if side == mine else frozenset(),
            apis=table if translated[side] else None,
            apis_are_asked_for=options.api_mapping is not None,
            layers=layers if side == mine else None,
        )
        for side in (0, 1)
    ]
    return SharedNames(target=names[0], reference=names[1], table=table, is_swapped=is_swapped)


def _table(options: CompareOptions, *, has_mindspore: bool) -> ApiTable | None:
    """Return the pairs of functions; the built-in ones are for MindSpore's dumps."""
    if isinstance(options.api_mapping, Path):
        return read_api_mapping(options.api_mapping, with_built_in=has_mindspore)
    return built_in_table() if has_mindspore else None


def _classes(side: Side) -> dict[str, str]:
    """Return module path → class, of every module that a side recorded."""
    parsed = map(side.parsed, side.names)
    return {name.path: name.class_name or "" for name in parsed if name.is_module}


def _by_cells(cells: CellMapping, classes: Mapping[str, str]) -> dict[str, str]:
    cells.warn_unused([f"{path}.{name}" if path else name for path, name in classes.items()])
    return {path: cells.renamed(path, name) for path, name in classes.items()}


def _swapped(slots: Slots) -> Slots:
    return {other: slot for slot, other in slots.items() if other is not None} | {
        slot: None for slot, other in slots.items() if other is None
    }
