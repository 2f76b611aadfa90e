# SPDX-License-Identifier: Apache-2.0
"""Partners for the records of two sides, from certain to likely.

1. Calls of an API or module that ran equally often, in the same modules, on both sides: by number.
2. The same for operators: one under two names.
3. What is left, by order and values (`aligning`).
4. Backward and recomputed records follow their forward calls.
5. Gradients of parameters, by module; those left, as the forward calls of their modules.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Literal

from msprobe.compare.matching.aligning import Aligner, Call
from msprobe.compare.matching.call_signature import CallSignatureReader
from msprobe.compare.matching.identities import Identity, Names, SharedNames
from msprobe.compare.model import Match
from msprobe.compare.sides import Side
from msprobe.dump.record_names import (
    PARAMETER_GRADIENTS,
    RecordKind,
    RecordName,
    backward_name,
    forward_name,
    recompute_name,
    repeated_name,
)
from msprobe.dump.values import Role

Align = Literal["auto", "always", "never"]
Ground = tuple[Match, float]

_EXACT: Final[Ground] = (Match.EXACT, 1.0)
MAPPED: Final[Ground] = (Match.MAPPED, 1.0)
_ALIAS_CONFIDENCE: Final = 0.95
_OTHER_CLASS_CONFIDENCE: Final = 0.8
_MOVED_CONFIDENCE: Final = 0.9
_REORDERED_CONFIDENCE: Final = 0.6
_NONE: Final = -1
_CALLS: Final = (RecordKind.FORWARD, RecordKind.BACKWARD)


class Records:
    """The records of one side as the matcher sees them: by place in the order of execution."""

    def __init__(self, side: Side, words: Names) -> None:
        self.names = side.names
        self.parsed: list[RecordName] = [side.parsed(name) for name in side.names]
        self.bases: list[str] = [parsed.base for parsed in self.parsed]
        self.place = {name: place for place, name in enumerate(side.names)}
        self.signature_of = CallSignatureReader(side)
        self._side = side
        self._words = words
        self._identities: dict[tuple[str, str], Identity] = {}
        self._scopes: list[str | None] = [None] * len(self.parsed)

    def identity(self, place: int) -> Identity:
        """Return the identity of a record."""
        parsed = self.parsed[place]
        if parsed.full in self._side.joined:
            return self._words.joined_identity(self._side.operator(parsed.full))
        path = self._side.module(parsed.full) if self._words.depends_on_layer else ""
        key = (self.bases[place], path)
        found = self._identities.get(key)
        if found is None:
            found = self._identities[key] = self._words.identity(parsed, path)
        return found

    def scope(self, place: int) -> str:
        """Return the module around a record, as both sides know it; around a module: its own."""
        found = self._scopes[place]
        if found is None:
            found = self._words.scope(self.parsed[place], self._side.module(self.names[place]))
            self._scopes[place] = found
        return found

    def cast(self, place: int) -> tuple[str, str] | None:
        """Return the types between which a forward call casts; None for other calls."""
        parsed = self.parsed[place]
        if parsed.kind is not RecordKind.FORWARD or not self._side.operator(parsed.full).casts:
            return None
        values = self._side.values(parsed.full)
        types = [
            next((each.dtype for each in values if each.role is role and each.is_tensor), "")
            for role in (Role.INPUT, Role.OUTPUT)
        ]
        return types[0], types[1]

    def call(self, place: int) -> Call:
        """Return a record in the form in which calls are aligned."""
        identity = self.identity(place)
        return Call(
            place=place,
            name=self.names[place],
            family=identity.family,
            scope=self.scope(place),
            fallback=identity.fallback,
        )

    def follower(self, place: int, kind: RecordName) -> int | None:
        """Return the backward or recomputed record of a forward call; None if there is none.

        Args:
            place: of the forward call.
            kind: a record of the kind that is looked for.
        """
        forward = self.parsed[place]
        if kind.recompute:
            return self.place.get(recompute_name(forward.full))
        name = backward_name(forward, kind.backward_pass)
        return None if name is None else self.place.get(name)


class Matcher:
    """Pairs the records of two sides.

    Attributes:
        target: the target's records.
        reference: the reference's records.
        partners: for each record of the target the place of its partner, -1 for none.
        grounds: for each record of the target how its partner was found, and how sure that is.
    """

    def __init__(
        self,
        target: Side,
        reference: Side,
        names: SharedNames,
        align: Align,
    ) -> None:
        self.target = Records(target, names.target)
        self.reference = Records(reference, names.reference)
        self._align = align
        sides = names.target, names.reference
        self._has_layer_mapping = any(side.layers is not None for side in sides)
        self._aligner = Aligner(self.target.signature_of, self.reference.signature_of)
        self.partners: list[int] = [_NONE] * len(target.names)
        self.grounds: list[Ground] = [(Match.UNMATCHED, 0.0)] * len(target.names)
        self._is_taken = bytearray(len(reference.names))

    def match(self) -> None:
        """Find all partners."""
        if self._has_layer_mapping:
            # Numbers count the calls of all layers, and the other side may have further layers.
            self._pair_groups(_is_main, _same_module, MAPPED)
        self._match_calls(_is_main)
        self._match_followers()
        self._match_calls(_is_backward)
        self._match_parameter_gradients()
        self._match_equal_names()

    def pair(self, target: int, reference: int, ground: Ground) -> None:
        """Make two records partners; equal names are exact, whatever led to them."""
        if self.partners[target] != _NONE or self._is_taken[reference]:
            return
        if ground is not MAPPED and (
            self._are_of_strangers(target, reference) or self._are_opposed(target, reference)
        ):
            return
        if self.target.names[target] == self.reference.names[reference]:
            ground = _EXACT
        elif ground[0] is Match.ALIAS and self._is_mapped(target, reference):
            ground = Match.MAPPED, ground[1]
        self.partners[target] = reference
        self.grounds[target] = ground
        self._is_taken[reference] = 1

    def _are_of_strangers(self, target: int, reference: int) -> bool:
        """Return whether two backward records are of calls that were recorded, and have no partner.

        Where one has a partner, the other record is of its repetition, say.
        """
        own, other = self.target.parsed[target], self.reference.parsed[reference]
        if not (_is_backward(own) and _is_backward(other)):
            return False
        forward = self.target.place.get(forward_name(own) or "")
        partner = self.reference.place.get(forward_name(other) or "")
        if forward is None or partner is None:
            return False
        return self.partners[forward] == _NONE and not self._is_taken[partner]

    def _are_opposed(self, target: int, reference: int) -> bool:
        """Return whether one call casts from the type that the other one casts to, and back."""
        there = self.target.cast(target)
        back = None if there is None else self.reference.cast(reference)
        return there is not None and back == there[::-1] != there

    def pair_mapped(self, target: int, reference: int) -> bool:
        """Make two records partners because a file says so, unless they have others; say if so."""
        self.pair(target, reference, MAPPED)
        if self.partners[target] != reference:
            return False
        if self.grounds[target] != _EXACT:
            self.grounds[target] = MAPPED
        return True

    def _is_mapped(self, target: int, reference: int) -> bool:
        return (
            self.target.identity(target).is_mapped or self.reference.identity(reference).is_mapped
        )

    def _match_calls(self, belongs: Callable[[RecordName], bool]) -> None:
        if self._align != "always":
            self._match_by_number(belongs)
        if self._align == "never":
            return
        target = [self.target.call(place) for place in self._free_target(belongs)]
        reference = [self.reference.call(place) for place in self._free_reference(belongs)]
        if not target or not reference:
            return
        known = [
            (place, partner)
            for place, partner in enumerate(self.partners)
            if partner != _NONE and belongs(self.target.parsed[place])
        ]
        for found in self._aligner.align(target, reference, known):
            self.pair(
                found.target,
                found.reference,
                (self._match_kind(found.target, found.reference), found.confidence),
            )
        self._match_reordered(belongs)

    def _match_by_number(self, belongs: Callable[[RecordName], bool]) -> None:
        """Pair calls of functions that ran equally often on both sides: by name, then by family."""
        self._match_equal_bases(belongs)
        target = _group(
            self._free_target(belongs), lambda place: self.target.identity(place).family
        )
        reference = _group(
            self._free_reference(belongs), lambda place: self.reference.identity(place).family
        )
        for family, places in target.items():
            partners = reference.get(family, [])
            if len(places) == len(partners) and (
                self._align == "never" or self._is_certain(places, partners)
            ):
                for place, partner in zip(places, partners, strict=True):
                    self.pair(place, partner, self._alias_ground(place, partner))

    def _match_equal_bases(self, belongs: Callable[[RecordName], bool]) -> None:
        target = _group(self._free_target(belongs), self.target.bases.__getitem__)
        reference = _group(self._free_reference(belongs), self.reference.bases.__getitem__)
        for base, places in target.items():
            partners = reference.get(base, [])
            if self._align != "never" and not self._is_certain(places, partners):
                continue
            by_name = {self.reference.names[place]: place for place in partners}
            for place in places:
                partner = by_name.get(self.target.names[place])
                if partner is not None:
                    self.pair(place, partner, _EXACT)

    def _is_certain(self, target: list[int], reference: list[int]) -> bool:
        """Return whether the numbers of calls can be trusted.

        One call more here and one less there leave the count as it was; only the modules tell.
        """
        return self._agree(target, reference) and (
            len(target) == 1 or any(map(self.target.scope, target))
        )

    def _agree(self, target: list[int], reference: list[int]) -> bool:
        """Return whether calls are as many on both sides, and each in the same module."""
        return len(target) == len(reference) and all(
            self.target.scope(t) == self.reference.scope(r)
            for t, r in zip(target, reference, strict=True)
        )

    def _alias_ground(self, target: int, reference: int) -> Ground:
        target_identity, reference_identity = (
            self.target.identity(target),
            self.reference.identity(reference),
        )
        if self.target.bases[target] == self.reference.bases[reference]:
            return Match.ALIGNED, _ALIAS_CONFIDENCE
        if self._is_mapped(target, reference):
            return MAPPED
        same_class = target_identity.fallback == reference_identity.fallback
        return Match.ALIAS, _ALIAS_CONFIDENCE if same_class else _OTHER_CLASS_CONFIDENCE

    def _match_kind(self, target: int, reference: int) -> Match:
        a, b = self.target.parsed[target], self.reference.parsed[reference]
        is_alias = a.base != b.base and a.index == b.index
        return Match.ALIAS if is_alias else Match.ALIGNED

    def _match_reordered(self, belongs: Callable[[RecordName], bool]) -> None:
        """Pair calls that run in another order: by values, by modules, by what runs around them."""
        self._pair_groups(belongs, _same_values, (Match.ALIGNED, _MOVED_CONFIDENCE))
        self._pair_groups(belongs, _same_module, (Match.ALIGNED, _REORDERED_CONFIDENCE))
        parts = self._parts(belongs)

        def same_part(records: Records, place: int) -> Hashable:
            part = bisect_left(parts[records is self.reference], place)
            structure = records.signature_of(records.names[place]).structure
            return records.identity(place).family, records.scope(place), structure, part

        self._pair_groups(belongs, same_part, (Match.ALIGNED, _REORDERED_CONFIDENCE))

    def _parts(self, belongs: Callable[[RecordName], bool]) -> tuple[list[int], list[int]]:
        """Return, on each side, the last places of parts between which no partners are exchanged.

        All partners of what runs in a part on one side run in the same part on the other.
        """
        places = [
            place
            for place, partner in enumerate(self.partners)
            if partner != _NONE and belongs(self.target.parsed[place])
        ]
        partners = [self.partners[place] for place in places]
        last = list(itertools.accumulate(partners, max))
        first = list(itertools.accumulate(reversed(partners), min))[::-1]
        ends = [at for at in range(len(places) - 1) if last[at] < first[at + 1]]
        return [places[at] for at in ends], [last[at] for at in ends]

    def _pair_groups(
        self,
        belongs: Callable[[RecordName], bool],
        key: Callable[[Records, int], Hashable],
        ground: Ground,
    ) -> None:
        """Pair records of equal keys in order, where both sides have as many of them."""
        target = _group(self._free_target(belongs), functools.partial(key, self.target))
        reference = _group(self._free_reference(belongs), functools.partial(key, self.reference))
        for what, places in target.items():
            partners = reference.get(what, [])
            if what is not None and len(places) == len(partners):
                for place, partner in zip(places, partners, strict=True):
                    self.pair(place, partner, ground)

    def _match_followers(self) -> None:
        """Pair backward and recomputed records whose forward calls are partners."""
        for place in self._free_target(_is_follower):
            parsed = self.target.parsed[place]
            forward = self._forward_of(parsed)
            if forward is None or self.partners[forward] == _NONE:
                continue
            partner = self.reference.follower(self.partners[forward], parsed)
            if partner is not None:
                self.pair(place, partner, self.grounds[forward])

    def _forward_of(self, parsed: RecordName) -> int | None:
        name = repeated_name(parsed) or forward_name(parsed)
        return None if name is None else self.target.place.get(name)

    def _match_parameter_gradients(self) -> None:
        def key(records: Records, place: int) -> Hashable:
            return records.identity(place).family, records.parsed[place].kind

        target = _group(self._free_target(_is_gradient), lambda at: key(self.target, at))
        reference = _group(self._free_reference(_is_gradient), lambda at: key(self.reference, at))
        for module, places in target.items():
            partners = reference.get(module, [])
            for place, partner in zip(places, partners, strict=False):
                # Older dumps number these records; the module says it all.
                ground = self._alias_ground(place, partner)
                is_same_module = len(places) == len(partners) and ground[1] == _ALIAS_CONFIDENCE
                self.pair(place, partner, (Match.ALIAS, 1.0) if is_same_module else ground)
        self._match_gradients_of_partners()

    def _match_gradients_of_partners(self) -> None:
        """Pair gradients of modules with other names, all of whose calls are partners."""
        modules: defaultdict[str, dict[str, Ground]] = defaultdict(dict)
        for place, partner in enumerate(self.partners):
            if partner != _NONE and self.target.parsed[place].kind is RecordKind.FORWARD:
                partners = modules[self.target.bases[place]]
                partners[self.reference.bases[partner]] = self.grounds[place]
        for place in self._free_target(_is_gradient):
            base = self.target.bases[place]
            if len(modules[base]) == 1:
                [(other, ground)] = modules[base].items()
                name = other + self.target.names[place].removeprefix(base)
                if name in self.reference.place:
                    self.pair(place, self.reference.place[name], ground)

    def _match_equal_names(self) -> None:
        """Pair the remaining records of equal names, unless their numbers are shifted."""
        for place in self._free_target(lambda name: True):
            partner = self.reference.place.get(self.target.names[place])
            if partner is None or self._is_taken[partner]:
                continue
            kind = self.target.parsed[place].kind
            if kind not in _CALLS or self._align == "never":
                self.pair(place, partner, _EXACT)

    def _free_target(self, belongs: Callable[[RecordName], bool]) -> list[int]:
        return [
            place
            for place, parsed in enumerate(self.target.parsed)
            if self.partners[place] == _NONE and belongs(parsed)
        ]

    def _free_reference(self, belongs: Callable[[RecordName], bool]) -> list[int]:
        return [
            place
            for place, parsed in enumerate(self.reference.parsed)
            if not self._is_taken[place] and belongs(parsed)
        ]


def _same_values(records: Records, place: int) -> Hashable:
    signature = records.signature_of(records.names[place])
    family = records.identity(place).family
    return None if signature.values is None else (family, signature)


def _same_module(records: Records, place: int) -> Hashable:
    scope = records.scope(place)
    return (records.identity(place).family, scope) if scope else None


def _is_main(name: RecordName) -> bool:
    """Whether a record is matched by itself: forward calls and saved values."""
    return not _is_follower(name) and not _is_gradient(name)


def _is_follower(name: RecordName) -> bool:
    return name.kind is RecordKind.BACKWARD or name.recompute


def _is_backward(name: RecordName) -> bool:
    return name.kind is RecordKind.BACKWARD and not name.backward_pass


def _is_gradient(name: RecordName) -> bool:
    return name.kind in PARAMETER_GRADIENTS


def _group(
    places: Iterable[int], key: Callable[[int], Hashable]
) -> defaultdict[Hashable, list[int]]:
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place in places:
        groups[key(place)].append(place)
    return groups
