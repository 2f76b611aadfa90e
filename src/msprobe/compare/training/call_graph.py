# SPDX-License-Identifier: Apache-2.0
"""`CallGraph`: the calls of one side of a step, and what each of them is fed with.

Calls that only pass a tensor on are seen through: casts, copies, reshapes, idle sums and products.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from msprobe.compare.training.outlined_calls import (
    CASTS,
    COPIES,
    CUTS,
    RESHAPES,
    calls_in,
    content_of,
    number_of,
    operator_in,
    operator_name,
    shown,
    words_of,
)
from msprobe.dump.facts import (
    OUTLINED_ITEM,
    OUTLINED_TENSOR,
    OUTLINED_TURNED,
    Outline,
    OutlinedCall,
    transposed,
)
from msprobe.operators.lookup import is_in_place

_PASSING: Final = CUTS | COPIES | RESHAPES | CASTS
_PAIR: Final = (OUTLINED_TENSOR, OUTLINED_TENSOR)
# Their results are the same for both orders of their first two tensors.
_SYMMETRIC: Final = frozenset(
    ("cosine_similarity", "eq", "huber_loss", "l1_loss", "mse_loss", "ne", "smooth_l1_loss")
)
_CHAINS: Final = {"add": 0.0, "mul": 1.0}  # and the number that changes nothing
_EVEN: Final = frozenset(("abs", "cos", "cosh", "norm", "square"))

Origin = tuple[int, int] | str | float | None
"""The call that returned a tensor and the place among its results, a name, or unknown.

Among what is added or multiplied also a number."""

# A tensor among arguments, which may be lists; or a text, which may hold the word.
_TOKEN: Final = re.compile(rf"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\b{OUTLINED_TENSOR}\b")


def tensors_of(call: OutlinedCall) -> list[int]:
    """Return for each tensor that a call is given in which of its arguments it is."""
    return [
        place
        for place, word in enumerate(words_of(call))
        if OUTLINED_TENSOR in word
        for token in _TOKEN.findall(word)
        if token == OUTLINED_TENSOR
    ]


def is_told(outline: Outline) -> bool:
    """Return whether an outline tells what its calls are fed with."""
    counts = [len(tensors_of(call)) for call in outline.calls]
    times = Counter(number for run in outline.runs for number in outline.bodies[run.body])
    return bool(outline.fed) and len(outline.fed) == sum(counts[n] * times[n] for n in times)


def origins_in(outline: Outline) -> list[list[Origin]]:
    """Return the origins of the tensors of each call of a step."""
    counts = [len(tensors_of(call)) for call in outline.calls]
    numbers = [n for run in outline.runs for n in outline.bodies[run.body]]
    found: list[list[Origin]] = []
    rest = iter(outline.fed)
    for place, number in enumerate(numbers):
        fed: list[Origin] = []
        for _ in range(counts[number]):
            written = next(rest)
            if written > 0:
                item, back = divmod(written, OUTLINED_ITEM)
                fed.append((place - back, item))
            else:
                fed.append(outline.given[-1 - written] if written else None)
        found.append(fed)
    return found


def _before(origin: Origin, passed: Mapping[Origin, Origin], shared: frozenset[str]) -> Origin:
    """Return where a tensor comes from, before calls that only pass it on."""
    if isinstance(origin, tuple) and origin[1] >= OUTLINED_TURNED:
        return _turned(_before(_turned(origin), passed, shared))
    found = passed.get(origin, origin)
    is_lone = isinstance(found, str) and not {found, transposed(found)} & shared
    return None if is_lone else found


def _turned(origin: Origin) -> Origin:
    """Return the transpose of a tensor."""
    if isinstance(origin, str):
        return transposed(origin)
    return (origin[0], origin[1] ^ OUTLINED_TURNED) if isinstance(origin, tuple) else origin


def is_idle(call: OutlinedCall) -> bool:
    """Return whether a call adds nothing, or multiplies by one."""
    idle = _CHAINS.get(operator_name(call))
    numbers = [*map(number_of, call.arguments[1:])]
    return idle is not None and numbers == [idle] and not call.named


def _parents(outline: Outline) -> list[str | None]:
    """Return of each call of a step the module that makes it."""
    return [run.parent for run in outline.runs for _ in outline.bodies[run.body]]


def renumbered_kinds(outlines: Sequence[Outline], ends: Sequence[int]) -> set[Hashable]:
    """Return kinds of which both sides make as many calls, and not as many that are idle.

    One of these is given the number 1 on one side: to leave it out would pair the others wrongly.
    """
    counts: list[tuple[Counter[Hashable], Counter[Hashable]]] = []
    for outline, end in zip(outlines, ends, strict=True):
        made, idle = Counter[Hashable](), Counter[Hashable]()
        for call, parent in zip(calls_in(outline)[:end], _parents(outline), strict=False):
            made[operator_name(call), parent] += 1
            idle[operator_name(call), parent] += is_idle(call)
        counts.append((made, idle))
    (made, idle), (others, idle_others) = counts
    return {each for each in made if made[each] == others[each] and idle[each] != idle_others[each]}


@dataclass(slots=True)
class CallGraph:
    """The calls of one side, from the first one to the last that matters.

    Attributes:
        calls: all of them.
        keys: of each its content and its module; None for calls that only pass a tensor on.
        fed: of each the origins of its tensors, those before calls that only pass them on.
        written: of each the tensor that it changes in place.
        users: of each those that are fed with a result of it.
        parents: of each the module that makes it.
        repeated: those that compute once more what was computed before.
        written_by_hand: modules with a call in the user's code.
    """

    calls: Sequence[OutlinedCall]
    keys: list[tuple[Hashable, str | None] | None] = field(default_factory=list)
    fed: list[list[Origin]] = field(default_factory=list)
    written: dict[int, Origin] = field(default_factory=dict)
    users: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    parents: list[str | None] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)
    written_by_hand: set[str | None] = field(default_factory=set)

    @classmethod
    def of(
        cls, outline: Outline, end: int, shared: frozenset[str], renumbered: Set[Hashable]
    ) -> CallGraph:
        """Return the graph of the calls before a place.

        Args:
            outline: the calls of a step.
            end: the place.
            shared: names of tensors that are on both sides; others tell nothing.
            renumbered: kinds of calls that are given other numbers, which may be idle ones.
        """
        graph = cls(calls_in(outline)[:end], parents=_parents(outline))
        for run in outline.runs:
            if any(outline.calls[number].source for number in outline.bodies[run.body]):
                graph.written_by_hand.add(run.parent)
        passed: dict[Origin, Origin] = {}
        first: dict[Hashable, int] = {}
        for place, origins in enumerate(origins_in(outline)[:end]):
            call = graph.calls[place]
            fed = [_before(origin, passed, shared) for origin in origins]
            graph.fed.append(fed)
            has_no_effect = is_idle(call) and graph.kind(place) not in renumbered
            if operator_name(call) in _PASSING or has_no_effect:
                graph.keys.append(None)
                if fed:
                    passed[place, 0] = fed[0]
                continue
            content = graph.chain(place) or content_of(call)
            graph.keys.append((content, graph.parents[place]))
            for origin in fed:
                if isinstance(origin, tuple):
                    graph.users[origin[0]].append(place)
            if is_in_place(call.name):
                first.clear()  # the same tensors may hold something else from now on
                if fed:
                    graph.written[place] = fed[0]
            elif None not in fed and not operator_in(call).draws_random:
                earlier = first.setdefault((graph.keys[place], *fed), place)
                if earlier != place:
                    graph.repeated.add(place)
                    passed |= {(place, i): (earlier, i) for i in range(OUTLINED_TURNED)}
        return graph

    def chain(self, place: int) -> str:
        """Return whether a call adds or multiplies tensors or numbers, by its name; else empty."""
        call = self.calls[place]
        name = operator_name(call)
        if name not in _CHAINS or call.named or is_in_place(call.name):
            return ""
        is_plain = all(w == OUTLINED_TENSOR or number_of(w) is not None for w in call.arguments)
        return name * is_plain

    def numbers(self, place: int) -> list[Origin]:
        """Return the numbers that a call adds or multiplies."""
        found = map(number_of, self.calls[place].arguments)
        return [number for number in found if number is not None]

    def is_link(self, place: int) -> bool:
        """Return whether all that uses the result of a sum are further sums, likewise products."""
        return bool(self.chain(place) and self.users[place]) and all(
            self.keys[user] == self.keys[place] for user in self.users[place]
        )

    def has_several(self, place: int) -> bool:
        """Return whether others than the first result of a call are known to be used."""
        return any((place, 1) in self.fed[user] for user in self.users[place])

    def kind(self, place: int) -> Hashable:
        """Return what a call computes, and in which module."""
        return operator_name(self.calls[place]), self.parents[place]

    def is_state_write(self, place: int) -> bool:
        """Return whether a call changes a buffer or a parameter of the model in place."""
        return isinstance(self.written.get(place), str)

    def repeated_key(self, place: int) -> Hashable:
        """Return the key of a call that computes something once more; None for others."""
        return self.keys[place] if place in self.repeated else None

    def is_of_framework(self, place: int) -> bool:
        """Return whether a call is the framework's own, in a module of its own."""
        parent = self.parents[place]
        return parent is not None and parent not in self.written_by_hand

    def shown(self, place: int) -> str:
        """Return a call in words: by its line, or by the framework's module that makes it."""
        parent = self.parents[place]
        return parent if parent and self.is_of_framework(place) else shown(self.calls[place])

    def is_unordered(self, place: int) -> bool:
        """Return whether the first two tensors of a call may change places."""
        call = self.calls[place]
        operator = operator_in(call)
        is_even = operator.name == "sub" and all(map(self._is_even, self.users[place] or [place]))
        is_symmetric = operator.name in _SYMMETRIC or (operator.is_commutative and not call.named)
        return call.arguments[:2] == _PAIR and (is_symmetric or is_even)

    def _is_even(self, place: int) -> bool:
        call = self.calls[place]
        power = number_of(call.arguments[1]) if len(call.arguments) > 1 else None
        is_even_power = operator_name(call) == "pow" and power is not None and power % 2 == 0
        return is_even_power or operator_name(call) in _EVEN
