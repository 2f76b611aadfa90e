# SPDX-License-Identifier: Apache-2.0
"""The values between calls: which call made what another one used.

msprobe numbers the values that it recognises (`value_id`), so most edges are recorded. The edges of
compiled graphs are those of the graph. Others are inferred: an output of a call that had ended,
with the same type, shape, checksum or statistics. Where several calls handed out the same value,
the last one before its use counts, as programs hardly ever keep a value and its unchanged copy
apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.dump.values import Role, Value
from msprobe.graph.model import Edge, Half, HalfKind, How, Node, NodeFlag, NodeKind

Values = Callable[[str], Sequence[Value]]
"""The values of a record by its name."""

Flow = Mapping[str, Mapping[str, tuple[str, str]]]
"""Record → its input → the record that made it, and its output."""
NO_FLOW: Final[Flow] = {}

# Confidence of an edge whose value is recognised by …
_BY_CHECKSUM: Final = 0.99
_BY_PROJECTIONS: Final = 0.98
_BY_STATISTICS: Final = 0.9
_BY_SHARED_STATISTICS: Final = 0.6  # other calls made a value like it, too
_BY_SHAPE: Final = 0.3  # all of its elements are the same number, as in a mask of zeros


class _Use(NamedTuple):
    """A value where a node makes or uses it."""

    node: int
    value: Value


@dataclass(frozen=True, slots=True)
class _Found:
    """The maker of a value."""

    maker: _Use
    how: How
    confidence: float


def find_edges(nodes: Sequence[Node], values: Values, flow: Flow = NO_FLOW) -> list[Edge]:
    """Return the values between the calls of a rank, in the order of their use.

    Args:
        nodes: all nodes; see `Graph`.
        values: reads the values of a record.
        flow: which output made which input, where a compiled graph tells.
    """
    ends = _Ends(nodes, values, flow)
    gradients = _Gradients(nodes, values)
    makers = _Makers(nodes, ends.made)
    makers_in_graph = _MakersInGraph(nodes, ends.made, flow)
    found: list[Edge] = []
    for node, used in ends.used.items():
        known = makers_in_graph.of_call(node, used)
        for maker, value in makers.of_call(node, used) if known is None else known:
            gradient = gradients.flows(maker.maker, _Use(node, value))
            found.append(_edge(maker, node, value, has_gradient=gradient))
    return found


def _edge(found: _Found, node: int, value: Value, *, has_gradient: bool) -> Edge:
    return Edge(
        source=found.maker.node,
        target=node,
        source_slot=found.maker.value.slot,
        target_slot=value.slot,
        shape=value.shape or (),
        dtype=value.dtype,
        how=found.how,
        confidence=found.confidence,
        has_gradient=has_gradient,
    )


class _Ends:
    """Where values are made, and where they are used.

    A box hands the values of the calls inside of it on: what one of these made or used is left out.

    Attributes:
        made: outputs of calls, in order.
        used: node → its inputs, in order.
    """

    def __init__(self, nodes: Sequence[Node], values: Values, flow: Flow) -> None:
        self.made: list[_Use] = []
        self.used: dict[int, list[Value]] = {}
        # Keys of values by the boxes that they were made or used in.
        self._made_inside: defaultdict[int, set[Hashable]] = defaultdict(set)
        self._used_inside: defaultdict[int, set[Hashable]] = defaultdict(set)
        for node in reversed(nodes):  # calls before the boxes that they are in
            half = _main_half(node, flow)
            if half is not None and half.is_recorded:
                self._add(node, values(half.record))
            elif node.kind is not NodeKind.API:
                self._hand_on(node, set(), set())
        self.made.reverse()
        self.used = dict(reversed(self.used.items()))

    def _add(self, node: Node, values: Sequence[Value]) -> None:
        made: set[Hashable] = set()
        used: set[Hashable] = set()
        inside_made, inside_used = self._made_inside[node.id], self._used_inside[node.id]
        is_box = node.size > 1
        inputs, outputs = [], []
        for value in values:
            if not value.is_tensor or value.is_unread:
                continue
            if value.role is Role.INPUT:
                used.add(_key(value))
                inputs.append(value)
            elif value.role is Role.OUTPUT:
                made.add(_key(value))
                outputs.append(value)
        kept = [value for value in inputs if not is_box or _key(value) not in inside_used]
        if kept:
            self.used[node.id] = kept
        handed_on = inside_made | used if is_box else frozenset()
        self.made += [
            _Use(node.id, value) for value in reversed(outputs) if _key(value) not in handed_on
        ]
        self._hand_on(node, made, used)

    def _hand_on(self, node: Node, made: set[Hashable], used: set[Hashable]) -> None:
        if node.parent >= 0:
            self._made_inside[node.parent] |= made | self._made_inside.pop(node.id, set())
            self._used_inside[node.parent] |= used | self._used_inside.pop(node.id, set())


def _main_half(node: Node, flow: Flow) -> Half | None:
    """Return the record whose values a node makes: the forward one, or that of a kernel."""
    half = node.half(HalfKind.FORWARD)
    if half is None and node.halves and node.halves[0].record in flow:
        return node.halves[0]
    return half


class _MakersInGraph:
    """Finds the kernels that made values, as a compiled graph tells."""

    def __init__(self, nodes: Sequence[Node], made: Sequence[_Use], flow: Flow) -> None:
        self._nodes, self._flow = nodes, flow
        self._made = {}
        for use in made if flow else ():
            half = _main_half(nodes[use.node], flow)
            if half is not None:
                self._made[half.record, use.value.slot] = use

    def of_call(self, node: int, used: Sequence[Value]) -> list[tuple[_Found, Value]] | None:
        """Return the makers of the inputs of a kernel; None where the graph does not know it."""
        half = _main_half(self._nodes[node], self._flow)
        known = None if half is None else self._flow.get(half.record)
        if known is None:
            return None
        makers = ((self._made.get(known.get(value.slot, ("", ""))), value) for value in used)
        return [
            (_Found(maker, How.GRAPH, 1.0), value) for maker, value in makers if maker is not None
        ]


def _key(value: Value) -> Hashable:
    """Return what tells a value from others: its number, or its statistics."""
    if value.value_id is not None:
        return value.value_id
    return fingerprint(value) or _shape_key(value)


def _shape_key(value: Value) -> Hashable:
    return (value.dtype, value.shape, value.max, value.min)


class _Makers:
    """Finds the call that made a value."""

    def __init__(self, nodes: Sequence[Node], made: Sequence[_Use]) -> None:
        self._nodes = nodes
        # Prints of values that no call had made when they were first used.
        self._outside: set[Hashable] = set()
        self._used_once: set[tuple[int, Hashable]] = set()
        self._by_id: defaultdict[Hashable, list[_Use]] = defaultdict(list)
        self._by_print: defaultdict[Hashable, list[_Use]] = defaultdict(list)
        self._by_shape: defaultdict[Hashable, list[_Use]] = defaultdict(list)
        for use in made:
            if use.value.value_id is not None:
                self._by_id[use.value.value_id].append(use)
            key = fingerprint(use.value)
            if key is not None:
                self._by_print[key].append(use)
            else:
                self._by_shape[_shape_key(use.value)].append(use)

    def of_call(self, node: int, used: Sequence[Value]) -> Iterator[tuple[_Found, Value]]:
        """Yield the makers of the inputs of a call, and the inputs.

        An input that comes twice is given two makers, where there are: ``x + dropout(x)`` with a
        dropout that hands on its input.
        """
        times: defaultdict[Hashable, int] = defaultdict(int)
        for value in used:
            key = _key(value)
            found = self._maker(node, value, times[key])
            times[key] += 1
            if found is not None:
                yield found, value

    def _maker(self, node: int, value: Value, time: int) -> _Found | None:
        if value.value_id is not None:
            ready = self._ready(self._by_id.get(value.value_id, ()), node, time + 1)
            if ready:
                self._used_once.add((ready[-1].node, fingerprint(value)))
                return _Found(ready[-1], How.RECORDED, 1.0)
        key = fingerprint(value)
        if key is None:
            ready = self._ready(self._by_shape.get(_shape_key(value), ()), node, 1)
            return _Found(ready[0], How.STATISTICS, _BY_SHAPE) if ready else None
        made = self._by_print.get(key, ())
        ready = self._ready(made, node, time + 2)
        if not ready:
            self._outside.add(key)
        elif key in self._outside and value.value_id is None:
            ready = self._ready(made, node, len(made))
            ready = [use for use in reversed(ready) if self._may_be_used(use.node, key)][::-1]
        if not ready:
            return None
        how = How.CHECKSUM if value.md5 is not None else How.STATISTICS
        maker = ready[min(time, len(ready) - 1)]
        return _Found(maker, how, _confidence(value, is_shared=len(ready) > 1))

    def _may_be_used(self, maker: int, key: Hashable) -> bool:
        """Return whether a call that repeats a value from outside is the source of this use.

        Of the values of a dropout that drops nothing, certainly; of a copy, as ``cat`` makes of one
        tensor, once, as programs go on to use the original.
        """
        node = self._nodes[maker]
        name = node.class_name or node.path
        if node.flags & NodeFlag.FOLDED or "drop" in name.lower() or name == "Identity":
            return True
        is_new = (maker, key) not in self._used_once
        self._used_once.add((maker, key))
        return is_new

    def _ready(self, made: Sequence[_Use], node: int, most: int) -> list[_Use]:
        """Return the last of some calls that had ended when a node began, the last one first."""
        end = bisect_left(made, node, key=attrgetter("node"))
        ended = (
            made[place]
            for place in range(end - 1, -1, -1)
            if made[place].node + self._nodes[made[place].node].size <= node
        )
        return [*islice(ended, most)]


def _confidence(value: Value, *, is_shared: bool) -> float:
    if value.md5 is not None:
        return _BY_CHECKSUM
    if value.projections is not None:
        return _BY_PROJECTIONS
    return _BY_SHARED_STATISTICS if is_shared else _BY_STATISTICS


class _Gradients:
    """Says along which values gradients flow back."""

    def __init__(self, nodes: Sequence[Node], values: Values) -> None:
        self._nodes = nodes
        self._values = values
        self._slots: dict[int, frozenset[str]] = {}

    def flows(self, maker: _Use, use: _Use) -> bool:
        """Return whether the user gave a gradient of a value and the maker was given one."""
        given = f"output{_without_part(use.value.slot, 'input')}"
        taken = f"input{_without_part(maker.value.slot, 'output')}"
        named = f"output_kwargs{_without_part(use.value.slot, 'input')}"
        slots = self._of(use.node)
        return (given in slots or named in slots) and taken in self._of(maker.node)

    def _of(self, node: int) -> frozenset[str]:
        if node not in self._slots:
            half = self._nodes[node].half(HalfKind.BACKWARD)
            found = self._values(half.record) if half is not None and half.is_recorded else ()
            self._slots[node] = frozenset(value.slot for value in found if value.is_tensor)
        return self._slots[node]


def _without_part(slot: str, part: str) -> str:
    return slot.removeprefix("kwargs").removeprefix(part)


def values_by_record(values: Mapping[str, Sequence[Value]]) -> Values:
    """Return a reader of values that have been read already; none for other records."""
    return lambda record: values.get(record, ())
