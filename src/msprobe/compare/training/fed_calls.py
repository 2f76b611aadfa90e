# SPDX-License-Identifier: Apache-2.0
"""Calls that are fed with other tensors, where both sides make the same calls.

An outline tells of each tensor which call returned it, so the calls of a step are a graph. Calls
of two steps belong together if they compute the same from the same; those that are left over, if
they are the same call of the same module, in order. The first of these that is fed otherwise is the
difference: all that it is fed with is made on both sides. What a program may write in another way
to the same effect is none: casts and reshapes between, operands of a sum that change places, sums
of sums, calls that do not depend on each other in another order, a result that is computed twice.
A tensor of unknown origin may be any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msprobe.compare.training.call_graph import (
    CallGraph,
    Origin,
    is_idle,
    is_told,
    renumbered_kinds,
    tensors_of,
)
from msprobe.compare.training.outlined_calls import (
    MadeCalls,
    content_of,
    operator_in,
    signature_in,
    slot_words,
    words_of,
)
from msprobe.dump.facts import OUTLINED_TENSOR, OUTLINED_TURNED, Outline, OutlinedCall

_WORK: Final = 1_000_000  # calls that are looked at, again for each difference that is found
_MOST_SUMMANDS: Final = 64
_DEPTH: Final = 4  # calls that are named to tell two tensors apart

_Value = tuple[Hashable, int] | str | float | None
"""What a tensor holds: that of a call and the place among its results; or a number."""
_Slots = tuple[int, _Value, _Value]
"""Which tensor of a call is another one, what it is, and what it is in the reference."""


@dataclass(frozen=True, slots=True)
class OtherFeed:
    """How a call is fed otherwise.

    Attributes:
        call: the target's.
        words: the difference in words.
        is_first: whether no call before it, among those asked for, is fed otherwise: with what only
            one side makes, which no words tell.
        is_order: whether calls, or what they are fed with, have changed places.
    """

    call: OutlinedCall
    words: str
    is_first: bool
    is_order: bool


class Wanted(NamedTuple):
    """Tensors that are the results of some calls, or of none of them.

    Attributes:
        places: of both sides, which calls of the step these are.
        are_results: whether both tensors are results of these calls, or neither is; None where one
            of them is at least.
    """

    places: Sequence[Sequence[int]]
    are_results: bool | None


def feeding_of(made: MadeCalls) -> Feeding | None:
    """Return how calls are fed; None if that is not told, or the same on both sides."""
    outlines = made.outlines
    if not outlines or not all(map(is_told, outlines)) or _is_one_outline(*outlines):
        return None
    return Feeding(made)


def _is_one_outline(target: Outline, reference: Outline) -> bool:
    contents = [[content_of(call) for call in each.calls] for each in (target, reference)]
    rest = [(each.fed, each.given, each.bodies, each.runs) for each in (target, reference)]
    return contents[0] == contents[1] and rest[0] == rest[1]


class Feeding:
    """Finds which calls of two graphs belong together, and which are fed otherwise."""

    def __init__(self, made: MadeCalls) -> None:
        """Find how the calls are fed.

        Args:
            made: those that are asked for.
        """
        self._made = made
        ends = [max(each, default=-1) + 1 for each in made.places]
        renumbered = renumbered_kinds(made.outlines, ends)
        self._graphs = [
            CallGraph.of(outline, end, made.shared, renumbered)
            for outline, end in zip(made.outlines, ends, strict=True)
        ]
        # Of each call with what it is fed, of a sum of sums all summands, and how many of these,
        # from the first, may change places.
        self._operands: list[list[list[Origin]]] = [[], []]
        self._loose: list[list[int]] = [[], []]
        # Calls that may belong together: of both sides.
        self._groups: dict[Hashable, tuple[list[int], list[int]]] = {}
        for side, graph in enumerate(self._graphs):
            for place, key in enumerate(graph.keys):
                self._add(side, place)
                if key is not None and not graph.is_link(place):
                    self._groups.setdefault(key, ([], []))[side].append(place)
        # Calls that belong together though they are fed otherwise: the value that both have.
        self._joined: tuple[dict[int, Hashable], dict[int, Hashable]] = ({}, {})
        self._values: list[list[Hashable]] = []
        self._fed: list[list[list[_Value]]] = []
        self._values_of: list[set[Hashable]] = []
        # Those of which it is not known of which tensor they are made.
        self._vague: set[Hashable] = set()

    def without_writes(self) -> MadeCalls:
        """Return the calls but for what a module writes in its buffers, as counters do."""
        own, other = (
            [graph.calls[place] for place in places if not graph.is_state_write(place)]
            for graph, places in zip(self._graphs, self._made.places, strict=True)
        )
        return MadeCalls(own, other)

    def apart(self, *, has_writes: bool) -> MadeCalls:
        """Return the calls but for those that certainly make no difference.

        They add nothing, or one side computes again by them what it has computed before.

        Args:
            has_writes: whether what a module writes in its buffers is among them.
        """
        graphs, all_places = self._graphs, self._made.places
        kinds, again = (
            [
                Counter(key for place in places if (key := key_of(graph, place)))
                for graph, places in zip(graphs, all_places, strict=True)
            ]
            for key_of in (CallGraph.kind, CallGraph.repeated_key)
        )
        kept: list[list[OutlinedCall]] = [[], []]
        for side, (graph, places) in enumerate(zip(graphs, all_places, strict=True)):
            more, more_again = (each[side] - each[not side] for each in (kinds, again))
            for place in places:
                kind, key = graph.kind(place), graph.repeated_key(place)
                is_again = more_again[key] > 0
                is_none = more[kind] > 0 and (is_again or is_idle(graph.calls[place]))
                more[kind] -= is_none
                more_again[key] -= is_none and is_again
                if not is_none and (has_writes or not graph.is_state_write(place)):
                    kept[side].append(graph.calls[place])
        return MadeCalls(kept[0], kept[1])

    def _add(self, side: int, place: int) -> None:
        graph = self._graphs[side]
        operands = graph.numbers(place) if graph.chain(place) else []
        for origin in graph.fed[place]:
            inner = origin[0] if isinstance(origin, tuple) else place
            is_inner = inner != place and graph.keys[inner] == graph.keys[place]
            is_summed = is_inner and graph.is_link(inner) and len(operands) < _MOST_SUMMANDS
            operands += self._operands[side][inner] if is_summed else [origin]
        self._operands[side].append(operands)
        pair = 2 * graph.is_unordered(place)
        self._loose[side].append(len(operands) if graph.chain(place) else pair)

    def difference(self, wanted: Wanted | None = None) -> OtherFeed | bool:
        """Return which of the calls, if both sides make it, is fed otherwise.

        Args:
            wanted: which tensors may differ; None for all.

        Returns: False if none is; True if some are, but with what only one side makes.
        """
        own, other = map(set, self._made.places)
        has_other = False
        self._joined = ({}, {})
        turns = max(_WORK // sum(len(graph.calls) + 1 for graph in self._graphs), 2)
        for turn in range(turns):
            self._follow()
            pair = min(self._pairs_apart(), default=None)
            if pair is None:
                return has_other
            if pair[0] in own and pair[1] in other:
                apart = self._apart(*pair)
                if apart and wanted is not None:
                    apart = [each for each in apart if self._is_wanted(each[1:], wanted)]
                words = self._words(*pair, apart) if apart else ""
                if words:
                    is_order = self._is_order(*pair, apart or ())
                    call = self._graphs[0].calls[pair[0]]
                    return OtherFeed(call, words, not has_other, is_order)
                has_other = has_other or apart is None or bool(apart)
            for place, joined in zip(pair, self._joined, strict=True):
                joined[place] = ("joined", turn)
        return True

    def _follow(self) -> None:
        """Find the value of each call: those that compute the same from the same have one."""
        table: dict[Hashable, Hashable] = {}
        self._values, self._fed = [], []
        self._vague.clear()
        for graph, joined, operands, loose in zip(
            self._graphs, self._joined, self._operands, self._loose, strict=True
        ):
            values: list[Hashable] = []
            all_fed: list[list[_Value]] = []
            changed: dict[Origin, _Value] = {}
            draws = 0
            lines: dict[Hashable, str | None] = {}
            for place, key in enumerate(graph.keys):
                fed: list[_Value] = []
                for origin in operands[place]:
                    known = (values[origin[0]], origin[1]) if isinstance(origin, tuple) else origin
                    fed.append(changed.get(origin, known))
                all_fed.append(fed)
                is_random = operator_in(graph.calls[place]).draws_random
                draws += is_random
                count = loose[place]
                ordered = (*sorted(fed[:count], key=repr), *fed[count:])
                whole = (key, ordered, is_random and draws)
                values.append(joined.get(place) or table.setdefault(whole, len(table) + 1))
                # The same of unknown tensors at two lines: these may be two tensors.
                if any(each is None or self._is_vague(each) for each in fed):
                    line = graph.calls[place].source
                    if lines.setdefault(values[place], line) != line:
                        self._vague.add(values[place])
                if place in graph.written:
                    changed[graph.written[place]] = (values[place], 0)
            self._values.append(values)
            self._fed.append(all_fed)
        self._values_of = [set(values) for values in self._values]

    def _pairs_apart(self) -> Iterator[tuple[int, int]]:
        """Yield calls that belong together and differ."""
        for group in self._groups.values():
            # Those at the same place first: a call that is changed may be like another one now.
            same = {
                i
                for i, places in enumerate(zip(*group, strict=False))
                if self._values[0][places[0]] == self._values[1][places[1]]
            }
            left = [[p for i, p in enumerate(places) if i not in same] for places in group]
            counts = [
                Counter(values[p] for p in places)
                for values, places in zip(self._values, left, strict=True)
            ]
            lone: list[list[int]] = []
            for values, places in zip(self._values, left, strict=True):
                shared = counts[0] & counts[1]
                lone.append([])
                for place in places:
                    if shared[values[place]] > 0:
                        shared[values[place]] -= 1
                    else:
                        lone[-1].append(place)
            yield from zip(*lone, strict=False)

    def _apart(self, own: int, other: int) -> list[_Slots] | None:
        """Return with which tensors two calls are fed otherwise, but for those that are unknown.

        Returns: None where they are fed with more or fewer.
        """
        fed = [[*enumerate(self._fed[side][place])] for side, place in enumerate((own, other))]
        if len(fed[0]) != len(fed[1]):
            return None
        loose = self._loose[0][own]
        lone: list[list[tuple[int, _Value]]] = []
        for one, another in (fed, fed[::-1]):
            rest = Counter(value for _, value in another[:loose])
            lone.append([])
            for index, value in one[:loose]:
                rest[value] -= 1
                if rest[value] < 0:
                    lone[-1].append((index, value))
        pairs = [*zip(*lone, strict=True), *zip(*(each[loose:] for each in fed), strict=True)]
        if any(None in (one[1], another[1]) for one, another in pairs[: len(lone[0])]):
            pairs = pairs[len(lone[0]) :]  # which of them is the unknown one is not known
        return [
            (one[0], one[1], another[1])
            for one, another in pairs
            if one[1] != another[1] and not (self._is_open(one[1]) or self._is_open(another[1]))
        ]

    def _is_vague(self, value: _Value) -> bool:
        return isinstance(value, tuple) and value[0] in self._vague

    def _is_open(self, value: _Value) -> bool:
        """Return whether a value is unknown, or no tensor."""
        return value is None or isinstance(value, float) or self._is_vague(value)

    def _words(self, own: int, other: int, apart: Sequence[_Slots]) -> str:
        """Return in words how two calls are fed otherwise; empty if with what one side makes."""
        if not all(self._makes(1, mine) and self._makes(0, due) for _, mine, due in apart):
            return ""
        graph = self._graphs[0]
        call, place = graph.calls[own], graph.shown(own)
        if _are_exchanged(apart):
            slots = " and ".join(_slot(call, index) for index, *_ in apart)
            slots = "its operands" if len(graph.fed[own]) == 2 else slots
            return f"{place} takes {slots} the other way round"
        index, value, expected = apart[0]
        if not graph.chain(own) and not (graph.is_of_framework(own) and index == 0):
            place = f"{_slot(call, index)} of {place}"
        return f"{place} is fed with {' instead of '.join(self._told_apart(value, expected))}"

    def _is_order(self, own: int, other: int, apart: Sequence[_Slots]) -> bool:
        """Return whether calls of both sides, or what they are fed with, have changed places."""
        turned = {(_untransposed(due), _untransposed(mine)) for _, mine, due in apart}
        if any(
            (_untransposed(mine), _untransposed(due)) in turned
            for pair in self._pairs_apart()
            for _, mine, due in self._apart(*pair) or ()
        ):
            return True
        return any(self._is_made_behind(1, mine, other) for _, mine, _ in apart) or any(
            self._is_made_behind(0, due, own) for *_, due in apart
        )

    def _is_made_behind(self, side: int, value: _Value, place: int) -> bool:
        return isinstance(value, tuple) and self._values[side].index(value[0]) > place

    def _makes(self, side: int, value: _Value) -> bool:
        return not isinstance(value, tuple) or value[0] in self._values_of[side]

    def _is_wanted(self, values: Sequence[_Value], wanted: Wanted) -> bool:
        made = [
            isinstance(value, tuple)
            and value[0] in {of_side[place] for place in places if place < len(of_side)}
            for value, of_side, places in zip(values, self._values, wanted.places, strict=True)
        ]
        if wanted.are_results is None:
            return any(made)
        return all(made) if wanted.are_results else not any(made)

    def _told_apart(self, *values: _Value) -> tuple[str, ...]:
        """Return what two values are, in words, by the calls of the target."""
        chains = [self._makers(each) for each in values]
        for depth in range(1, _DEPTH + 1):
            found = tuple(" of ".join(words[:depth]) for words in chains)
            if found[0] != found[1]:
                return found
        found = tuple(
            f"{words[0]}{self._given(v)}" for words, v in zip(chains, values, strict=True)
        )
        return found if found[0] != found[1] else (chains[0][0], "another one")

    def _makers(self, value: _Value) -> list[str]:
        """Return what makes a value, what makes that which this is fed with first, and so on."""
        graph, words = self._graphs[0], list[str]()
        while isinstance(value, tuple) and len(words) < _DEPTH:
            place, item = self._values[0].index(value[0]), value[1] % OUTLINED_TURNED
            several = f"result {item}" if item or graph.has_several(place) else "the result"
            made = f"{several} of {graph.shown(place)}"
            words.append(made if item == value[1] else f"the transpose of {made}")
            value = next(iter(self._fed[0][place]), None)
        if isinstance(value, str):
            words.append(f"{value} of the model" if value.startswith("input.") else value)
        return words

    def _given(self, value: _Value) -> str:
        """Return what the call that makes a value is given besides tensors, and its module."""
        if not isinstance(value, tuple):
            return ""
        place = self._values[0].index(value[0])
        graph = self._graphs[0]
        words = [word for word in words_of(graph.calls[place]) if word != OUTLINED_TENSOR]
        parent = f" in {graph.parents[place]}" * (graph.parents[place] is not None)
        return f", given {', '.join(words)}," * bool(words) + parent


def _are_exchanged(apart: Sequence[_Slots]) -> bool:
    """Return whether two tensors of a call have changed places."""
    plain = [(_untransposed(mine), _untransposed(due)) for _, mine, due in apart]
    return len(plain) == 2 and plain[0] == plain[1][::-1]


def _untransposed(value: _Value) -> _Value:
    return (value[0], value[1] % OUTLINED_TURNED) if isinstance(value, tuple) else value


def _slot(call: OutlinedCall, index: int) -> str:
    """Return in which argument a tensor is, in words."""
    arguments = tensors_of(call)
    place = arguments[index]
    count = len(call.arguments)
    name = (
        [*call.named][place - count] if place >= count else signature_in(call).name_of(str(place))
    )
    inside = f"element {index - arguments.index(place)} of " * (arguments.count(place) > 1)
    return f"{inside}{slot_words(name)}"
