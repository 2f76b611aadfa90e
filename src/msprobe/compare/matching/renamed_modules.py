# SPDX-License-Identifier: Apache-2.0
"""Modules that have another name on the other side, found by the parameters that they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

from msprobe.compare.matching.module_paths import shared_paths
from msprobe.dump.facts import Facts

# Path of a module → shape and checksum of each of its own parameters → its name.
_Modules = dict[str, dict[tuple[tuple[int, ...], str], str]]


def renamed_modules(target: Facts | None, reference: Facts | None) -> dict[str, str]:
    """Return names of the target → names of the reference, where these are not the same.

    They are those of modules that hold the same parameters when a step starts, and of these
    parameters. Of several that hold the same (ones and zeros), those whose own names agree belong
    together in their order. What is left between two such modules belongs together in its order,
    if the shapes agree: one of them was changed. Of a module of both sides they are those of its
    parameters, where it holds the same ones by other names, as a cell does of a recurrent layer.
    """
    own, others = _parameters(target), _parameters(reference)
    if own == others:
        return {}
    of_target, of_reference = shared_paths(own, others)
    known = {*of_target.values()} & {*of_reference.values()}
    found = _renamed_parameters(own, others, (of_target, of_reference))
    if own.keys() == others.keys():
        return found
    own = {path: held for path, held in own.items() if of_target[path] not in known}
    others = {path: held for path, held in others.items() if of_reference[path] not in known}
    orders = list(own), list(others)
    for by_name in (False, True):
        partners = _by_content(others, by_name=by_name)
        for content, paths in _by_content(own, by_name=by_name).items():
            same = partners.get(content, [])
            if len(paths) != len(same) or (len(paths) > 1 and not by_name):
                continue
            for path, other in zip(paths, same, strict=True):
                found[path] = other
                held = others.pop(other)
                found |= {name: held[key] for key, name in own.pop(path).items()}
    for path, other in _between(*orders, found) if not found.keys().isdisjoint(orders[0]) else ():
        changed, into = own[path], others.get(other, {})
        if [shape for shape, _ in changed] == [shape for shape, _ in into]:
            found |= {path: other, **dict(zip(changed.values(), into.values(), strict=True))}
    return found


def _renamed_parameters(
    target: _Modules, reference: _Modules, paths: tuple[Mapping[str, str], Mapping[str, str]]
) -> dict[str, str]:
    """Return names of the target's parameters → those of the reference's, in modules of both."""
    others = {paths[1][path]: held for path, held in reference.items()}
    found: dict[str, str] = {}
    for path, held in target.items():
        same = others.get(paths[0][path], {})
        lasts = ({name.rpartition(".")[2] for name in each.values()} for each in (held, same))
        if held.keys() == same.keys() and len({*map(frozenset, lasts)}) > 1:
            found |= {name: same[content] for content, name in held.items()}
    return found


def _between(
    target: Sequence[str], reference: Sequence[str], found: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return pairs of the modules that are left, where as many are between the same neighbours."""
    places = {path: place for place, path in enumerate(reference)}
    anchors = [(-1, -1)]
    anchors += [(i, places[found[path]]) for i, path in enumerate(target) if path in found]
    anchors.append((len(target), len(reference)))
    pairs: list[tuple[str, str]] = []
    for (begin, other_begin), (end, other_end) in pairwise(anchors):
        left = target[begin + 1 : end], reference[other_begin + 1 : other_end]
        if len(left[0]) == len(left[1]):
            pairs += zip(*left, strict=True)
    return pairs


def _parameters(facts: Facts | None) -> _Modules:
    found: defaultdict[str, dict[tuple[tuple[int, ...], str], str]] = defaultdict(dict)
    columns = None if facts is None else facts.parameters
    if columns is None:
        return {}
    places = zip(columns.name, columns.kind, columns.shape, columns.checksum, strict=False)
    for name, kind, shape, checksum in places:
        if kind == "parameter":
            found[name.rpartition(".")[0]][tuple(shape), checksum or name] = name
    return found


def _by_content(modules: _Modules, *, by_name: bool) -> dict[Hashable, list[str]]:
    """Return what modules hold, and perhaps their own names → their paths, in order."""
    found: defaultdict[Hashable, list[str]] = defaultdict(list)
    for path, held in modules.items():
        last = path.rpartition(".")[2] if by_name else ""
        found[frozenset(held), last].append(path)
    return found
