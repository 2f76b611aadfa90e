# SPDX-License-Identifier: Apache-2.0
"""`check_mappings`: names in mapping files that no dump has are errors.

They are found before anything is compared. A name is known if any step or rank of its side has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.compare.matching.api_mapping import read_api_mapping
from msprobe.compare.matching.call_pairs import read_call_pairs
from msprobe.compare.matching.cell_mapping import read_cell_mapping
from msprobe.compare.matching.data_mapping import DataMapping, Rows, read_data_mapping
from msprobe.compare.matching.identities import is_swapped
from msprobe.compare.matching.layer_mapping import TOP_LAYER, read_layer_mapping
from msprobe.compare.matching.signatures import known_functions
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.errors import ConfigError
from msprobe.operators.lookup import operator_of, operators
from msprobe.yaml_nodes import nearest

_CANDIDATES: Final = 5000


class _Unknown(NamedTuple):
    """A name that no dump has.

    Attributes:
        line: its line, 0 without a file.
        key: its place in the file.
        found: the name, or the text about a key.
        wanted: the kind of name it should be.
        name: the name itself.
        candidates: names that it could have been.
    """

    line: int
    key: str
    found: str
    wanted: str
    name: str
    candidates: Iterable[str]


def check_mappings(options: CompareOptions, sides: Sequence[tuple[Side, Side]]) -> None:
    """Refuse mapping files with names that no dump has.

    Args:
        options: the mapping files.
        sides: target and reference of every step and rank.

    Raises:
        ConfigError: there is such a name; it tells file, line and key.
    """
    if not sides:
        return
    if options.data_mapping is not None:
        mapping = read_data_mapping(options.data_mapping)
        _refuse(mapping.path, _unknown_rows(mapping, sides))
    if options.call_pairs is not None:
        _refuse(options.call_pairs, _unknown_calls(options.call_pairs, sides))
    order = (1, 0) if is_swapped(*sides[0]) else (0, 1)
    own, other = (_Names([pair[place] for pair in sides]) for place in order)
    if isinstance(options.cell_mapping, Path):
        _refuse(options.cell_mapping, _unknown_cells(options.cell_mapping, own, other))
    if isinstance(options.api_mapping, Path):
        _refuse(options.api_mapping, _unknown_apis(options.api_mapping, own, other))
    if options.layer_mapping is not None:
        _refuse(options.layer_mapping, _unknown_layers(options.layer_mapping, own, other))


def _refuse(path: Path | None, unknown: Iterator[_Unknown]) -> None:
    first = next(unknown, None)
    if first is None:
        return
    candidates = [word for _, word in zip(range(_CANDIDATES), first.candidates, strict=False)]
    more = sum(1 for _ in unknown)
    hints = [nearest(first.name, candidates), f"{more} more names are unknown" if more else ""]
    raise ConfigError(
        first.key,
        first.found,
        first.wanted,
        source="data mapping" if path is None else f"{path}, line {first.line}",
        hint="; ".join(filter(None, hints)),
    )


def _key(line: int, key: str, wanted: str, name: str, candidates: Iterable[str]) -> _Unknown:
    return _Unknown(line, key, "unknown", wanted, name, candidates)


class _Names:
    """The modules and functions of one side, in all steps and ranks."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        self.source = sides[0].source

    @cached_property
    def modules(self) -> set[tuple[str, str, str]]:
        """Path, class and whole name of every module, also of those that made no record."""
        found = set()
        for side in self._sides:
            around = {parent for parent in side.view.parents.values() if parent is not None}
            for name in map(side.parsed, around.union(side.names)):
                if name.is_module:
                    found.add((name.path, name.class_name or "", name.base))
        return found

    @cached_property
    def functions(self) -> set[str]:
        """Every function, with its prefix."""
        parsed = [side.parsed(name) for side in self._sides for name in side.names]
        calls = [name for name in parsed if name.prefix and not name.is_module]
        return {f"{call.prefix}.{name}" for call in calls for name in (call.path, _last(call.path))}

    @cached_property
    def paths(self) -> set[str]:
        """Path of every module and call, and of the modules above it."""
        whole = {path for path, _, _ in self.modules}
        for side in self._sides:
            for name in side.names:
                parsed = side.parsed(name)
                if not parsed.is_module:
                    module = side.module(name)
                    whole |= {
                        f"{module}.{call}".lstrip(".") for call in (parsed.path, _last(parsed.path))
                    }
        return {
            ".".join(steps[:end])
            for steps in (path.split(".") for path in whole)
            for end in range(1, len(steps) + 1)
        }

    @cached_property
    def text(self) -> str:
        """All paths, to look for a part of one."""
        return "\n".join(f".{path}." for path in self.paths)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _unknown_rows(mapping: DataMapping, sides: Sequence[tuple[Side, Side]]) -> Iterator[_Unknown]:
    targets, references = ([Rows(side) for side in each] for each in zip(*sides, strict=True))
    for row, partner in mapping.rows.items():
        line = mapping.lines.get(row, 0)
        if not any(rows.find(row) for rows in targets):
            yield _key(line, row, "a row of the target", row, targets[0].near(row))
        if partner is not None and not any(rows.find(partner) for rows in references):
            wanted = "a row of the reference, or N/A"
            yield _Unknown(line, row, partner, wanted, partner, references[0].near(partner))


def _unknown_calls(path: Path, sides: Sequence[tuple[Side, Side]]) -> Iterator[_Unknown]:
    calls = [
        {name: None for side in each for name in (*side.view.parents, *side.names)}
        for each in zip(*sides, strict=True)
    ]
    pairs = read_call_pairs(path)
    for name, partner in pairs.names.items():
        line = pairs.lines[name]
        if name not in calls[0]:
            yield _key(line, name, "a call of the target", name, calls[0])
        if partner not in calls[1]:
            wanted = "a call of the reference"
            yield _Unknown(line, name, partner, wanted, partner, calls[1])
        elif sides[0][0].parsed(name).kind is not sides[0][1].parsed(partner).kind:
            wanted = "forward and forward, or backward and backward"
            yield _Unknown(line, name, partner, wanted, partner, ())


def _unknown_cells(path: Path, own: _Names, other: _Names) -> Iterator[_Unknown]:
    mapping = read_cell_mapping(path)
    own_modules, other_modules = (
        sorted(whole for _, _, whole in names.modules) for names in (own, other)
    )
    own_text, other_text = "\n".join(own_modules), "\n".join(other_modules)
    for name, partner in mapping.names.items():
        line = mapping.lines[name]
        if name not in own_text:
            yield _key(line, name, f"a part of a module of the {own.source}", name, own_modules)
        path_alone = partner.rpartition(".")[0] or partner
        if partner not in other_text and path_alone not in other_text:
            wanted = f"a part of a module of the {other.source}"
            yield _Unknown(line, name, partner, wanted, partner, other_modules)


def _unknown_apis(path: Path, own: _Names, other: _Names) -> Iterator[_Unknown]:
    # Functions that the frameworks have may be in a mapping for several models.
    operator_names = {operator.name for operator in operators()}
    other_functions = other.functions | set(known_functions())
    for pair in read_api_mapping(path).pairs.values():
        for key, name, known, names, is_mindspore in (
            ("ms_api", pair.ms_api, own.functions, own, True),
            ("pt_api", pair.pt_api, other_functions, other, False),
        ):
            prefix, _, api = name.partition(".")
            operator = operator_of(prefix, api, is_mindspore=is_mindspore)
            if name not in known and operator.name not in operator_names:
                wanted = f"a function that the {names.source} calls"
                yield _Unknown(pair.line, key, name, wanted, name, known)


def _unknown_layers(path: Path, own: _Names, other: _Names) -> Iterator[_Unknown]:
    mapping = read_layer_mapping(path)
    classes = {name for _, name, _ in own.modules}
    for layer, children in mapping.children.items():
        if layer != TOP_LAYER and layer not in classes:
            wanted = f"a class of layers of the {own.source}"
            yield _key(mapping.lines[layer, ""], layer, wanted, layer, classes)
            continue
        above = [""] if layer == TOP_LAYER else []
        above += [f"{place}.".lstrip(".") for place, name, _ in own.modules if name == layer]
        for old, new in children:
            child, partner = ".".join(old), ".".join(new)
            line, key = mapping.lines[layer, child], f"{layer}.{child}"
            # Without calls in a dump nothing tells a misspelt child from one that is a call.
            if own.functions and not any(f"{place}{child}" in own.paths for place in above):
                wanted = f"a child of these layers of the {own.source}"
                below = _below(own, above)
                yield _key(line, key, wanted, child, below)
            if partner and other.functions and f".{partner}." not in other.text:
                wanted = f"a child of a layer of the {other.source}"
                steps = {step for place in other.paths for step in place.split(".")}
                yield _Unknown(line, key, partner, wanted, partner, steps)


def _below(names: _Names, above: Sequence[str]) -> set[str]:
    """Return the modules and calls below some layers, one or several steps down."""
    return {path[len(place) :] for path in names.paths for place in above if path.startswith(place)}
