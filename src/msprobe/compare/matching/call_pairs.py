# SPDX-License-Identifier: Apache-2.0
"""Call pairs: calls that are the same by the user's word, as the page of graphs saves them.

    {"pairs": {"Module.encoder.Stack.forward.0": "Module.decoder.Stack.forward.0"}}

YAML of this form will do, too, and so do the pairs alone. The calls inside of two such modules are
paired as well: by their own names and classes, then those that are left, by class where both have
as many of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.compare.matching.matcher import MAPPED, Ground, Matcher, Records
from msprobe.compare.model import Match
from msprobe.compare.sides import Side
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, RecordName
from msprobe.yaml_nodes import Node, read_yaml

_PAIRS: Final = "pairs"
_SAME_CLASS: Final[Ground] = (Match.ALIGNED, 0.8)

_Calls = Mapping[str, list[RecordName]]
"""Module → the forward calls directly inside of it, in order."""


@dataclass(frozen=True, slots=True)
class CallPairs:
    """The content of a file.

    Attributes:
        names: the target's record → the reference's.
        lines: line of each.
        path: the file.
    """

    names: Mapping[str, str]
    lines: Mapping[str, int]
    path: Path


def read_call_pairs(path: Path) -> CallPairs:
    """Read a file of call pairs.

    Raises:
        ConfigError: it is not of the form above.
    """
    what = "pairs of calls, the target's first"
    names: dict[str, str] = {}
    lines: dict[str, int] = {}
    taken: set[str] = set()
    for name, place, partner in _entries(read_yaml(path), what):
        names[name] = partner.text("the name of a call of the reference")
        lines[name] = place.line
        if names[name] in taken:
            partner.refuse(names[name], "each call of the reference once")
        taken.add(names[name])
    return CallPairs(names, lines, path)


def _entries(tree: Node, what: str) -> list[tuple[str, Node, Node]]:
    entries = [*tree.items(what)]
    if len(entries) == 1 and entries[0][0] == _PAIRS:
        return [*entries[0][2].items(what)]
    return entries


def pair_calls(pairs: CallPairs, matcher: Matcher, target: Side, reference: Side) -> None:
    """Make the calls of a file partners, and then the calls inside of them."""
    work = _Pairing(
        matcher,
        _children(target, leave_out=frozenset(pairs.names)),
        _children(reference, leave_out=frozenset(pairs.names.values())),
    )
    for name, partner in pairs.names.items():
        work.join(name, partner, MAPPED)
    for name, partner in pairs.names.items():
        work.descend(name, partner)


class _Pairing:
    """Pairs calls, and the calls inside of them."""

    def __init__(self, matcher: Matcher, target: _Calls, reference: _Calls) -> None:
        self._matcher = matcher
        self._target, self._reference = target, reference
        self._gradients = _gradients(matcher.target), _gradients(matcher.reference)

    def join(self, name: str, partner: str, ground: Ground) -> None:
        """Pair two records, and the gradients of the parameters of two modules."""
        matcher = self._matcher
        self._pair(matcher.target.place.get(name), matcher.reference.place.get(partner), ground)
        own, other = (
            gradients.get(base, [])
            for gradients, base in zip(self._gradients, (_base(name), _base(partner)), strict=True)
        )
        for place, other_place in zip(own, other, strict=False):
            self._pair(place, other_place, ground)

    def _pair(self, place: int | None, partner: int | None, ground: Ground) -> None:
        if place is None or partner is None:
            return
        if ground is MAPPED:
            self._matcher.pair_mapped(place, partner)
        else:
            self._matcher.pair(place, partner, ground)

    def descend(self, name: str, partner: str) -> None:
        """Pair what is inside of two calls."""
        waiting = [(name, partner)]
        while waiting:
            own, other = waiting.pop()
            children, others = self._target.get(own, []), self._reference.get(other, [])
            for key, ground in ((_own_name, MAPPED), (_kind, _SAME_CLASS)):
                found = _same(children, others, key, is_whole=ground is not MAPPED)
                for child, match in found:
                    self.join(child.full, match.full, ground)
                waiting += [(child.full, match.full) for child, match in found]
                children = _without(children, (child for child, _ in found))
                others = _without(others, (match for _, match in found))


def _same(
    children: Iterable[RecordName],
    others: Iterable[RecordName],
    key: Callable[[RecordName], Hashable],
    *,
    is_whole: bool,
) -> list[tuple[RecordName, RecordName]]:
    """Return calls of equal keys, in order.

    Args:
        children: of one side.
        others: of the other side.
        key: the key of a call.
        is_whole: whether both sides must have as many of a key.
    """
    groups: defaultdict[Hashable, tuple[list[RecordName], list[RecordName]]] = defaultdict(
        lambda: ([], [])
    )
    for side, calls in enumerate((children, others)):
        for call in calls:
            groups[key(call)][side].append(call)
    return [
        pair
        for own, other in groups.values()
        if not is_whole or len(own) == len(other)
        for pair in zip(own, other, strict=False)
    ]


def _without(calls: list[RecordName], paired: Iterable[RecordName]) -> list[RecordName]:
    gone = {call.full for call in paired}
    return [call for call in calls if call.full not in gone]


def _own_name(call: RecordName) -> Hashable:
    return call.path.rpartition(".")[2] if call.is_module else call.path, _kind(call)


def _kind(call: RecordName) -> Hashable:
    return call.class_name if call.is_module else call.base


def _base(name: str) -> str:
    """Return the base of a forward record's name; API calls have no gradients of parameters."""
    return name.rpartition(f".{RecordKind.FORWARD}")[0]


def _gradients(records: Records) -> Mapping[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place, parsed in enumerate(records.parsed):
        if parsed.kind in PARAMETER_GRADIENTS:
            found[parsed.base].append(place)
    return found


def _children(side: Side, *, leave_out: Set[str]) -> _Calls:
    """Return the forward calls directly inside of each module.

    Args:
        side: the side.
        leave_out: calls that are paired by themselves; so are recomputations.
    """
    found: defaultdict[str, list[RecordName]] = defaultdict(list)
    for name, parent in side.view.parents.items():
        parsed = side.parsed(name)
        is_first_run = parsed.kind is RecordKind.FORWARD and not parsed.recompute
        if parent is not None and is_first_run and name not in leave_out:
            found[parent].append(parsed)
    return found
