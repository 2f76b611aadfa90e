# SPDX-License-Identifier: Apache-2.0
"""`Identity`: names of modules, functions and scopes in the spelling that both sides share.

Names of modules and functions are translated, first by the mapping files, then by the tables of
frameworks and wrappers, so that the same thing has the same name on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msprobe.compare.matching.api_mapping import ApiMapping, Slots, read_api_mapping
from msprobe.compare.matching.cell_mapping import CellMapping, class_family, read_cell_mapping
from msprobe.compare.matching.layer_mapping import (
    RenamedLayers,
    numbered_from_zero,
    read_layer_mapping,
)
from msprobe.compare.matching.module_paths import shared_paths
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import MINDSPORE, Side
from msprobe.dump.record_names import RecordKind, RecordName
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Operator


class Identity(NamedTuple):
    """Module or function, and scope, of a record.

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
    """The identities of the records of one side.

    Attributes:
        paths: module path → path by which both sides know the module.
        mapped_paths: those that a mapping file changed.
        is_mindspore: whether functions go by MindSpore's names.
        apis: the user's API mapping of this side's functions; None without one.
        apis_are_asked_for: whether the user asked for pairs of functions.
        layers: where a layer mapping holds, the other names of calls and layers.
        shared: path on the other side → path by which both sides know the module.
        prefixes: function of the other side → its prefix.
    """

    paths: Mapping[str, str]
    mapped_paths: frozenset[str] = frozenset()
    is_mindspore: bool = False
    apis: ApiMapping | None = None
    apis_are_asked_for: bool = False
    layers: RenamedLayers | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def identity(self, name: RecordName, path: str) -> Identity:
        """Return the identity of a record.

        Args:
            name: its name.
            path: of the module around it.
        """
        if name.is_module:
            return Identity(
                f"module {self.scope(name, name.path)}",
                f"class {class_family(name.class_name)}",
                name.path in self.mapped_paths,
            )
        if not name.prefix:
            return Identity(f"value {name.path}", f"value {name.path}")
        renamed = None if self.layers is None else self.layers.call(path, name.path)
        if renamed is None:
            operator = self.operator(name)
        else:
            operator = operator_of(self.prefixes.get(renamed[1], name.prefix), renamed[1])
        is_mapped = renamed is not None or (self.apis_are_asked_for and self._is_translated(name))
        return self._identity_of(operator, is_mapped=is_mapped)

    def joined_identity(self, operator: Operator) -> Identity:
        """Return the identity of calls that are compared as one."""
        return self._identity_of(operator, is_mapped=self.apis_are_asked_for)

    def _identity_of(self, operator: Operator, *, is_mapped: bool) -> Identity:
        return Identity(operator.name, f"relatives of {operator.kin or operator.name}", is_mapped)

    def operator(self, name: RecordName) -> Operator:
        """Return the operator that a function's record is of."""
        chosen = None if self.apis is None else self.apis.pytorch_name(name.base)
        if chosen is not None:
            prefix, _, api = chosen.partition(".")
            return operator_of(prefix, api)
        return operator_of(name.prefix, name.path, is_mindspore=self.is_mindspore)

    def _is_translated(self, name: RecordName) -> bool:
        """Return whether a function goes by another name in PyTorch."""
        if self.apis is not None and self.apis.pytorch_name(name.base) is not None:
            return True
        if not self.is_mindspore:
            return False
        in_pytorch = operator_of(name.prefix, name.path)
        return name.prefix.startswith("Mint") or in_pytorch != self.operator(name)

    def scope(self, name: RecordName, path: str) -> str:
        """Return the module around a record, as both sides know it; around a module: its own.

        Args:
            name: the record's name.
            path: of the module around it.
        """
        if self.layers is not None and not name.is_module:
            renamed = self.layers.call(path, name.path)
            if renamed is not None:
                return self.shared.get(renamed[0], renamed[0])
        return self.paths.get(path, path)

    @property
    def depends_on_layer(self) -> bool:
        """Whether equal names in different layers may be different operations."""
        return self.layers is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNames:
    """The identities of the records of both sides, and which of their values belong together.

    Attributes:
        target: names of the target.
        reference: names of the reference.
        apis: pairs of functions in a file of the user's; None without one.
        is_swapped: whether PyTorch's functions are the target's.
    """

    target: Names
    reference: Names
    apis: ApiMapping | None = None
    is_swapped: bool = False
    _slots: dict[tuple[str, str, str], Slots] = field(default_factory=dict)

    def slots(self, target: RecordName, reference: RecordName) -> Slots:
        """Return target slot → reference slot where arguments have other positions."""
        if target.is_module:
            return {}
        key = (target.base, reference.base, target.kind.value)
        found = self._slots.get(key)
        if found is None:
            found = self._chosen_slots(target, reference)
            if found is None:
                found = self._known_slots(target, reference)
            self._slots[key] = found
        return found

    def _chosen_slots(self, target: RecordName, reference: RecordName) -> Slots | None:
        """Return the slots that the user's file gives for two functions; None if it has none."""
        ms, pt = (reference, target) if self.is_swapped else (target, reference)
        pair = None if self.apis is None else self.apis.pair(ms.base, pt.base)
        if pair is None:
            return None
        slots = pair.slots(target.kind)
        return _swapped(slots) if self.is_swapped else slots

    def _known_slots(self, target: RecordName, reference: RecordName) -> Slots:
        """Return the arguments of an operator that two functions take at different positions."""
        first, second = self.target.operator(target), self.reference.operator(reference)
        if first.name != second.name or first.arguments == second.arguments:
            return {}
        part = "output" if target.kind is RecordKind.BACKWARD else "input"
        places = {name: place for place, name in enumerate(second.arguments)}
        return {
            f"{part}.{place}": f"{part}.{places[name]}"
            for place, name in enumerate(first.arguments)
            if name in places
        }


def shared_names(target: Side, reference: Side, options: CompareOptions) -> SharedNames:
    """Return the names of two sides.

    Raises:
        ConfigError: a mapping file cannot be used.
    """
    swapped = is_swapped(target, reference)
    speaks_mindspore = [side.framework == MINDSPORE for side in (target, reference)]
    apis = read_api_mapping(options.api_mapping) if isinstance(options.api_mapping, Path) else None
    layers = None
    cells = (
        read_cell_mapping(options.cell_mapping) if isinstance(options.cell_mapping, Path) else None
    )
    classes = [_classes(target), _classes(reference)]
    mapped: list[dict[str, str]] = [{path: path for path in known} for known in classes]
    renamed_side = 1 if swapped else 0
    if options.layer_mapping is not None:
        layers = RenamedLayers(read_layer_mapping(options.layer_mapping), classes[renamed_side])
        mapped = [numbered_from_zero(known) for known in classes]
        mapped[renamed_side] = layers.paths()
    elif cells is not None:
        mapped[renamed_side] = _by_cells(cells, classes[renamed_side])
    changed = frozenset(path for path, other in mapped[renamed_side].items() if path != other)
    of_target, of_reference = shared_paths(set(mapped[0].values()), set(mapped[1].values()))
    paths = [
        {path: shared[other] for path, other in known.items()}
        for known, shared in zip(mapped, (of_target, of_reference), strict=True)
    ]
    is_mapped = layers is not None or cells is not None  # what the user says counts
    for path, other in () if is_mapped else target.renamed_modules.items():
        if path in paths[0] and other in paths[1]:
            paths[0][path] = paths[1][other]
    translated = speaks_mindspore if any(speaks_mindspore) else [True, False]
    names = [
        Names(
            paths=paths[side],
            mapped_paths=changed if side == renamed_side else frozenset(),
            is_mindspore=speaks_mindspore[side],
            apis=apis if translated[side] else None,
            apis_are_asked_for=options.api_mapping is not None,
            layers=layers if side == renamed_side else None,
            shared=of_target if renamed_side == 0 else of_reference,
            prefixes=_prefixes((target, reference)[1 - renamed_side]),
        )
        for side in (0, 1)
    ]
    return SharedNames(target=names[0], reference=names[1], apis=apis, is_swapped=swapped)


def is_swapped(target: Side, reference: Side) -> bool:
    """Return whether the names that mapping files give first are the reference's.

    They say MindSpore first; a dump of PyTorch may still be the target.
    """
    return target.framework != reference.framework and reference.framework == MINDSPORE


def _classes(side: Side) -> dict[str, str]:
    """Return module path → class, of every module that a side recorded or that ran around it."""
    parents = {parent for parent in side.view.parents.values() if parent is not None}
    parsed = map(side.parsed, (*side.names, *parents.difference(side.names)))
    return {name.path: name.class_name or "" for name in parsed if name.is_module}


def _prefixes(side: Side) -> dict[str, str]:
    """Return function → prefix, of every call that a side recorded."""
    parsed = map(side.parsed, side.names)
    return {name.path: name.prefix for name in parsed if not name.is_module}


def _by_cells(cells: CellMapping, classes: Mapping[str, str]) -> dict[str, str]:
    return {path: cells.renamed(path, name) for path, name in classes.items()}


def _swapped(slots: Slots) -> Slots:
    return {other: slot for slot, other in slots.items() if other is not None} | {
        slot: None for slot, other in slots.items() if other is None
    }
