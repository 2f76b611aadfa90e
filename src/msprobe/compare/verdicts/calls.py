# SPDX-License-Identifier: Apache-2.0
"""The operations of a comparison with their rows, and how they lie inside one another."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec

from msprobe.compare.model import Matched, OperationPair, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.dump.record_names import (
    PARAMETER_GRADIENTS,
    RecordKind,
    RecordName,
    backward_name,
    forward_name,
)
from msprobe.dump.values import Role
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Operator

_TAKEN_IN: Final = (Role.INPUT, Role.PARAMETER)
# Most calls are asked for again soon, by calls nearby.
_MOST_KEPT: Final = 1 << 16


class Call(msgspec.Struct, frozen=True, gc=False):
    """One operation with its rows.

    Attributes:
        pair: the operation.
        parsed: its name taken apart.
        operator: facts about the API, or the module's class.
        start: index of its first row.
        rows: its rows.
        inputs: arguments and parameters; for backward records the incoming gradients.
        outputs: results.
    """

    pair: OperationPair
    parsed: RecordName
    operator: Operator
    start: int
    rows: Sequence[Row]
    inputs: Sequence[Row]
    outputs: Sequence[Row]

    @property
    def is_matched(self) -> bool:
        """Whether both sides have it."""
        return self.pair.is_matched

    @property
    def is_backward(self) -> bool:
        """Whether it is a call's backward record."""
        return self.parsed.kind is RecordKind.BACKWARD


class Calls:
    """All operations of a comparison."""

    def __init__(self, comparison: RankComparison) -> None:
        self._comparison = comparison
        self.rows = comparison.rows
        self.pairs = comparison.pairs
        # By position: first row, and the one behind the last; both 0 for operations without rows.
        count = max((pair.position for pair in self.pairs), default=-1) + 1
        self._begins = array("q", bytes(8 * count))
        self._ends = array("q", self._begins)
        self._made: dict[int, Call] = {}
        begin = 0
        rows = comparison.rows
        while begin < len(rows):
            pair = rows[begin].pair
            end = begin + 1
            while end < len(rows) and rows[end].pair is pair:
                end += 1
            self._begins[pair.position], self._ends[pair.position] = begin, end
            begin = end

    @property
    def resolution_of_losses(self) -> float:
        """See `RankComparison`."""
        return self._comparison.resolution_of_losses

    def is_after_backward(self, call: Call) -> bool:
        """Return whether a call's effect is neither in the loss nor in the gradients."""
        is_forward = call.parsed.kind is RecordKind.FORWARD
        return is_forward and call.pair.position > self._end_of_backward

    def is_kept(self, call: Call) -> bool:
        """Return whether a buffer or a parameter has another value because of a call."""
        return call.pair.position in self._comparison.kept

    def is_in_backward(self, call: Call) -> bool:
        """Return whether a call is made by the backward code of another one."""
        side, parent = self._comparison.side_of(call.pair), self.parent(call.pair)
        return parent is not None and side.parsed(parent).kind is RecordKind.BACKWARD

    @cached_property
    def _end_of_backward(self) -> float:
        backward = (
            pair.position
            for pair in self.pairs
            if self.parse(pair).kind is RecordKind.BACKWARD and self._hands_back(pair)
        )
        return max(backward, default=math.inf)

    def _hands_back(self, pair: OperationPair) -> bool:
        """Return whether a backward record holds gradients of inputs.

        Those without are made when the step ends.
        """
        rows = self.rows[slice(*self._rows_of(pair))]
        return any(row.value.role is Role.OUTPUT and row.holds_tensor for row in rows)

    def __iter__(self) -> Iterator[Call]:
        """Iterate in order of execution over the operations that have a difference."""
        rows = self.rows
        for begin, end in self._all_rows():
            for index in range(begin, end):
                if rows[index].status.is_difference:
                    yield self._call(begin, end)
                    break

    def of(self, row: Row) -> Call:
        """Return the operation of a row."""
        return self._call(*self._rows_of(row.pair))

    def forward_of(self, call: Call) -> Call | None:
        """Return the forward call of a backward record, None if it was not recorded."""
        name = forward_name(call.parsed)
        return None if name is None else self.named(name, is_target=call.pair.target is not None)

    def forwards_of(self, call: Call) -> Iterator[Call]:
        """Yield the forward calls of both sides of a backward record, where they were recorded."""
        for own, is_target in names_of(call.pair):
            name = forward_name(self.parsed(own, is_target=is_target))
            forward = None if name is None else self.named(name, is_target=is_target)
            if forward is not None:
                yield forward

    def backward_of(self, call: Call, *, is_target: bool) -> Call | None:
        """Return the backward record of a forward call on one side, None if there is none."""
        name = call.pair.target if is_target else call.pair.reference
        backward = None if name is None else backward_name(self.parsed(name, is_target=is_target))
        return None if backward is None else self.named(backward, is_target=is_target)

    def losses(self, *, is_target: bool) -> Iterator[Call]:
        """Yield the calls that the backward passes of a side begin with."""
        was_backward = False
        for pair in self.pairs:
            if (pair.target if is_target else pair.reference) is None:
                continue
            is_backward = self.parse(pair).kind in (RecordKind.BACKWARD, *PARAMETER_GRADIENTS)
            begin, end = self._rows_of(pair)
            if is_backward and not was_backward and begin < end:
                loss = self.forward_of(self._call(begin, end))
                if loss is not None:
                    yield loss
            was_backward = is_backward

    def modules_around(self, parent: str | None, *, is_target: bool) -> Iterator[Call]:
        """Yield the modules that both sides recorded, from a record of one side outwards."""
        while parent is not None:
            found = self.named(parent, is_target=is_target)
            if found is not None and found.is_matched and found.parsed.is_module:
                yield found
            parent = self.parent_of(parent, is_target=is_target)

    def named(self, name: str, *, is_target: bool) -> Call | None:
        """Return the operation that one side calls `name`."""
        pair = self._by_name[is_target].get(name)
        return None if pair is None else self._call(*self._rows_of(pair))

    def parent(self, pair: OperationPair) -> str | None:
        """Return the record around an operation, by the name that its own side gives it."""
        return self._comparison.side_of(pair).parent(pair.name)

    def is_model_call(self, pair: OperationPair) -> bool:
        """Return whether an operation is the call of a model: of a module with no other around."""
        return self._comparison.side_of(pair).is_model_call(pair.name)

    def around(self, pair: OperationPair) -> Iterator[str]:
        """Yield the records around an operation, from the innermost, by the names of its side."""
        return self._comparison.side_of(pair).around(pair.name)

    def parsed(self, name: str, *, is_target: bool) -> RecordName:
        """Return the name of a record of one side taken apart."""
        return self._comparison.side(is_target=is_target).parsed(name)

    def parent_of(self, name: str, *, is_target: bool) -> str | None:
        """Return the record around the one that a side calls `name`."""
        return self._comparison.side(is_target=is_target).parent(name)

    def has_inner(self, call: Call) -> bool:
        """Return whether recorded calls ran inside this one, on either side."""
        return any(name in self._parents[is_target] for name, is_target in names_of(call.pair))

    def makes_other_call(self, pair: OperationPair) -> bool:
        """Return whether one side alone makes a call, or the other makes it by another API."""
        if pair.target is None or pair.reference is None:
            return True
        if pair.target == pair.reference:
            return False
        target = self._comparison.target.operator(pair.target)
        return target.name != self._comparison.reference.operator(pair.reference).name

    def parts(self, call: Call) -> Iterator[Call]:
        """Yield the recorded calls directly inside another one, of one side."""
        for begin, end in self._parts.get(call.pair.name, ()):
            yield self._call(begin, end)

    def parse(self, pair: OperationPair) -> RecordName:
        """Return an operation's name taken apart."""
        return self._comparison.parsed(pair)

    def module(self, pair: OperationPair) -> str:
        """Return the path of the innermost module around an operation."""
        return self._comparison.side_of(pair).module(pair.name)

    @cached_property
    def records_apis(self) -> bool:
        """Whether calls of APIs were recorded, not modules alone."""
        target = self._comparison.target
        parsed = map(target.parsed, target.names)
        return any(not name.is_module and name.kind is not RecordKind.DEBUG for name in parsed)

    @cached_property
    def has_backward(self) -> bool:
        """Whether backward passes of calls were recorded."""
        return any(self.parse(pair).kind is RecordKind.BACKWARD for pair in self.pairs)

    @cached_property
    def has_modules(self) -> bool:
        """Whether modules were recorded."""
        return any(
            self._comparison.target.parsed(name).is_module for name in self._comparison.target.names
        )

    @cached_property
    def split_batches(self) -> bool:
        """Whether the sides split one batch into different numbers of micro batches."""
        target, reference = self._batches
        return len(target) != len(reference) and 0 < sum(target) == sum(reference)

    def are_batch_sizes(self, row: Row) -> bool:
        """Return whether an argument is the number of samples, where the sides split a batch."""
        return (
            self.split_batches
            and isinstance(row, Matched)
            and row.target.value in self._batches[0]
            and row.reference.value in self._batches[1]
        )

    @cached_property
    def _batches(self) -> tuple[list[int], list[int]]:
        """Sizes of the first dimension of the data, for each call of the model, of both sides."""
        target, reference = map(self._batch_sizes, self._comparison.sides)
        return target, reference

    @staticmethod
    def _batch_sizes(side: Side) -> list[int]:
        """Return the size of the first dimension of the data, for each call of the model."""
        facts = side.view.facts
        if facts is not None and facts.data:
            firsts = {each.micro: each.shape for each in reversed(facts.data)}
            return [shape[0] for shape in firsts.values() if shape]
        sizes = []
        for name in side.names:
            if side.is_model_call(name):
                shapes = [value.shape for value in side.values(name) if value.role is Role.INPUT]
                sizes += [shape[0] for shape in shapes[:1] if shape]
        return sizes

    @cached_property
    def _parts(self) -> dict[str, list[tuple[int, int]]]:
        """Record, as the pair of operations is called → first and last row of each part."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for begin, end in self._all_rows():
            parent = self.parent(self.rows[begin].pair)
            if parent is not None:
                found[parent].append((begin, end))
        return found

    @cached_property
    def _parents(self) -> tuple[frozenset[str | None], ...]:
        """Records with others inside, by whether they are the target's."""
        sides = reversed(self._comparison.sides)
        return tuple(frozenset(side.view.parents.values()) - {None} for side in sides)

    @cached_property
    def _by_name(self) -> tuple[dict[str | None, OperationPair], ...]:
        """Name → operation with rows, by whether it is the target's."""
        made = [pair for pair in self.pairs if any(self._rows_of(pair))]
        return {pair.reference: pair for pair in made}, {pair.target: pair for pair in made}

    def _rows_of(self, pair: OperationPair) -> tuple[int, int]:
        return self._begins[pair.position], self._ends[pair.position]

    def _all_rows(self) -> Iterator[tuple[int, int]]:
        for begin, end in zip(self._begins, self._ends, strict=True):
            if begin < end:
                yield begin, end

    def _call(self, begin: int, end: int) -> Call:
        found = self._made.get(begin)
        if found is None:
            if len(self._made) == _MOST_KEPT:
                self._made.clear()
            rows = tuple(self.rows[begin:end])
            inputs = tuple([row for row in rows if row.value.role in _TAKEN_IN])
            outputs = tuple([row for row in rows if row.value.role not in _TAKEN_IN])
            pair = rows[0].pair
            operator = self._comparison.side_of(pair).operator(pair.name)
            found = Call(pair, self.parse(pair), operator, begin, rows, inputs, outputs)
            self._made[begin] = found
        return found


def names_of(pair: OperationPair) -> list[tuple[str, bool]]:
    """Return an operation's names, each with whether it is the target's."""
    both = (pair.target, True), (pair.reference, False)
    return [(name, is_target) for name, is_target in both if name is not None]


def is_cast(record: RecordName) -> bool:
    """Return whether a record is of a call that gives numbers another type."""
    is_method = record.prefix == "Tensor" and not record.path.startswith("_")  # not float(x)
    return is_method and operator_of(record.prefix, record.path).casts
