# SPDX-License-Identifier: Apache-2.0
"""The rows of a pair of operations: their values, paired."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msprobe.compare.framework_rows import in_shared_terms, one_for_all_axes, parameter_of
from msprobe.compare.matching.signatures import Signature, signature_of
from msprobe.compare.model import Added, Matched, Missing, OperationPair, Row
from msprobe.compare.sides import MINDSPORE, Side
from msprobe.dump.record_names import RecordKind, RecordName
from msprobe.dump.values import Role, Value
from msprobe.operators.lookup import (
    keyword_name,
    operator_of,
)
from msprobe.operators.operator import Operator

_KEYWORDS: Final = "kwargs."
_OPERANDS: Final = 2
# Operands that are so many times further apart as they stand than exchanged were exchanged.
_OTHER: Final = 8.0
_PARAMETER_ROLES: Final = (Role.PARAMETER, Role.PARAMETER_GRAD)


def pair_values(target: Side, reference: Side, pair: OperationPair) -> list[Row]:
    """Return one row for each value of two operations, in the target's order.

    Values pair by their place in the record. Values that one side passed by position and the other
    by keyword pair by the function's signature, or where only one value on either side is left for
    it. A value without a partner has a row of its own; those of the reference come behind the last
    value of their kind.

    Raises:
        DumpFormatError: a record is damaged.
    """
    target_values, reference_values = _values_of_both(target, reference, pair)
    return pair_lists(
        pair,
        (target_values, reference_values),
        (target.parsed(pair.name), reference.parsed(pair.reference or "")),
        crosses=target.framework != reference.framework,
    )


def pair_lists(
    pair: OperationPair,
    values: tuple[list[Value], list[Value]],
    names: tuple[RecordName, RecordName],
    *,
    crosses: bool = False,
) -> list[Row]:
    """Return the rows of two operations whose values are known; see `pair_values`.

    Args:
        pair: the operations.
        values: of the target and of the reference.
        names: of both records, taken apart.
        crosses: whether the sides are of two frameworks.
    """
    target_values, reference_values = map(one_for_all_axes, values) if crosses else values
    if not reference_values:
        return [Added(pair=pair, target=value) for value in target_values]
    if not target_values:
        return [Missing(pair=pair, reference=value) for value in reference_values]
    is_simple = not pair.slots and not crosses and len(target_values) == len(reference_values)
    parsed, reference = names
    has_gradients = parsed.kind is RecordKind.BACKWARD and not parsed.is_module
    if is_simple:
        rows: list[Row] = [
            Matched(pair=pair, target=a, reference=b)
            for a, b in zip(target_values, reference_values, strict=True)
            if a.slot == b.slot and (not has_gradients or a.shape == b.shape)
        ]
        if len(rows) == len(target_values):
            _exchange_operands(rows, parsed)
            return rows
    matcher = _ValueMatcher(target_values, reference_values)
    matcher.pair_by_place(pair.slots)
    if crosses:
        matcher.part_other_kinds()
        matcher.pair_parameters()
        if not has_gradients and not parsed.is_module:
            matcher.pair_keyword_names(operator_of(reference.prefix, reference.path))
    elif not parsed.is_module:
        functions = parsed.base, reference.base
        matcher.pair_by_name(*map(signature_of, functions), in_output=has_gradients)
    roles = [Role.INPUT, Role.PARAMETER]
    if has_gradients:
        matcher.reorder_gradients()
        roles.append(Role.OUTPUT)
    matcher.pair_keywords(roles)
    rows = _rows(pair, target_values, reference_values, matcher.partners)
    return in_shared_terms(rows, reference) if crosses else rows


def _exchange_operands(rows: list[Row], parsed: RecordName) -> None:
    """Pair the operands of a sum or product, or their gradients, as their values say.

    One program may write ``a + b`` where the other has ``b + a``. Python calls the tensor's method
    for a number with a tensor, so that a weight that is a number comes second, and first as tensor.
    """
    if parsed.is_module or not operator_of(parsed.prefix, parsed.path).is_commutative:
        return
    role = Role.OUTPUT if parsed.kind is RecordKind.BACKWARD else Role.INPUT
    places = [place for place, row in enumerate(rows) if row.value.role is role]
    if len(places) != _OPERANDS:
        return
    first, second = (rows[place] for place in places)
    if not (isinstance(first, Matched) and isinstance(second, Matched)):
        return
    if not all(map(_is_operand, (*first.values, *second.values))):
        return
    pair, one, other = first.pair, first.reference, second.reference
    straight = max(_apart(first.target, one), _apart(second.target, other))
    if straight > _OTHER * max(_apart(first.target, other), _apart(second.target, one)):
        rows[places[0]] = Matched(pair=pair, target=first.target, reference=other)
        rows[places[1]] = Matched(pair=pair, target=second.target, reference=one)


def _is_operand(value: Value) -> bool:
    return value.is_tensor or isinstance(value.value, (int, float))


def _apart(value: Value, other: Value) -> float:
    """Return how far apart two operands are, by their statistics; relative to their size."""
    (shape, *extents), (other_shape, *other_extents) = map(_measures, (value, other))
    if shape != other_shape:
        return math.inf
    numbers = extents, other_extents
    both = [(a, b) for a, b in zip(*numbers, strict=True) if a is not None and b is not None]
    size = max((max(abs(a), abs(b)) for a, b in both), default=0.0)
    apart = max((abs(a - b) for a, b in both if a != b), default=0.0)
    return apart / size if apart and math.isfinite(size) else apart


def _measures(value: Value) -> tuple[Sequence[int] | None, *tuple[float | None, ...]]:
    """Return shape, maximum, minimum and norm; a number is a tensor without dimensions."""
    if isinstance(value.value, (int, float)) and not value.is_tensor:
        return (), value.value, value.value, abs(value.value)
    return value.shape, value.max, value.min, value.norm


def _values_of_both(
    target: Side, reference: Side, pair: OperationPair
) -> tuple[list[Value], list[Value]]:
    if pair.target is not None and pair.target == pair.reference:
        values, others = target.values_of_both(reference, pair.target)
    else:
        values = [] if pair.target is None else target.values(pair.target)
        others = [] if pair.reference is None else reference.values(pair.reference)
    return (
        _share(_written(target, pair.target, values), pair.target_slots),
        _share(_written(reference, pair.reference, others), pair.reference_slots),
    )


def _written(side: Side, name: str | None, values: list[Value]) -> list[Value]:
    """Return the values without outputs that MindSpore's kernel leaves as the memory was."""
    if name is None or side.framework != MINDSPORE:
        return values
    if side.parsed(name).kind is not RecordKind.FORWARD:
        return values  # the gradients of its inputs
    unwritten = {f"output.{place}" for place in side.operator(name).unwritten_outputs}
    return [value for value in values if value.slot not in unwritten] if unwritten else values


def _share(values: list[Value], slots: frozenset[str] | None) -> list[Value]:
    return values if slots is None else [value for value in values if value.slot in slots]


class _ValueMatcher:
    """Finds partners for the values of two records.

    Attributes:
        partners: place among the target's values → place among the reference's.
    """

    def __init__(self, target: list[Value], reference: list[Value]) -> None:
        self._target = target
        self._reference = reference
        self.partners: dict[int, int] = {}
        self._taken: set[int] = set()
        self._excluded: set[int] = set()

    def pair_by_place(self, slots: Mapping[str, str | None]) -> None:
        """Pair equal slots, and those that a mapping says are the same."""
        by_key: dict[str, int] = {}
        for place, value in enumerate(self._reference):
            by_key.setdefault(_key(value.slot), place)
        rules = {_key(slot): other for slot, other in slots.items()}
        claimed = {_key(other) for other in rules.values() if other is not None}
        for place, value in enumerate(self._target):
            key = _key(value.slot)
            rule = _longest_prefix(key, rules)
            if rule is not None:
                other = rules[rule]
                if other is None:
                    self._excluded.add(place)
                    continue
                key = _key(other) + key[len(rule) :]
            elif _longest_prefix(key, claimed) is not None:
                continue
            partner = by_key.get(key)
            if partner is not None:
                self._pair(place, partner)

    def part_other_kinds(self) -> None:
        """Part tensors from arguments that are none: another API has another argument there."""
        for place, partner in list(self.partners.items()):
            values = self._target[place], self._reference[partner]
            tensors = [value for value in values if value.is_tensor]
            if len(tensors) == 1 and tensors[0].squeezed_shape:
                del self.partners[place]
                self._taken.discard(partner)

    def pair_by_name(
        self, target: Signature, reference: Signature, *, in_output: bool = False
    ) -> None:
        """Pair arguments that are the same parameter of a function, by position or by keyword.

        Args:
            target: of the target's function.
            reference: of the reference's function.
            in_output: whether the outputs belong to the arguments, as their gradients.
        """
        self._pair_names(
            (Role.OUTPUT if in_output else Role.INPUT,),
            lambda value: target.name_of(value.argument),
            lambda value: reference.name_of(value.argument),
        )

    def pair_parameters(self) -> None:
        """Pair parameters that the frameworks call differently."""
        self._pair_names(_PARAMETER_ROLES, parameter_of, parameter_of)

    def pair_keyword_names(self, operator: Operator) -> None:
        """Pair keyword arguments that the frameworks call differently."""

        def own_name(value: Value) -> str:
            return keyword_name(operator, value.argument)

        def keyword(value: Value) -> str:
            name = own_name(value)
            return "" if name[:1].isdigit() else name  # one by its place pairs by that

        self._pair_names((Role.INPUT,), own_name, keyword)

    def _pair_names(
        self, roles: Sequence[Role], name: Callable[[Value], str], other: Callable[[Value], str]
    ) -> None:
        right = {
            other(value): place
            for place, value in enumerate(self._reference)
            if value.role in roles and place not in self._taken
        }
        for place, value in enumerate(self._target):
            if value.role in roles and self._is_free(place):
                partner = right.get(name(value))
                if partner is not None and self._reference[partner].role is value.role:
                    self._pair(place, partner)

    def pair_keywords(self, roles: Sequence[Role]) -> None:
        """Pair an argument passed by position with the same one passed by keyword."""
        for role in roles:
            left = [
                place
                for place, value in enumerate(self._target)
                if value.role is role and self._is_free(place)
            ]
            right = [
                place
                for place, value in enumerate(self._reference)
                if value.role is role and place not in self._taken
            ]
            lefts, rights = _by_looks(self._target, left), _by_looks(self._reference, right)
            for looks, places in lefts.items():
                self._pair_group(places, rights.get(looks, []))

    def reorder_gradients(self) -> None:
        """Pair the gradients of an API's inputs by shape, where that fits better than by place.

        Their order is that of the arguments, or that in which the framework's graph has them.
        """
        left = [place for place, value in enumerate(self._target) if value.role is Role.OUTPUT]
        right = [place for place, value in enumerate(self._reference) if value.role is Role.OUTPUT]
        fitting = sum(
            self._target[place].shape == self._reference[self.partners[place]].shape
            for place in left
            if place in self.partners
        )
        lefts, rights = _by_looks(self._target, left), _by_looks(self._reference, right)
        shared = [looks for looks in lefts if len(lefts[looks]) == len(rights.get(looks, ()))]
        if sum(len(lefts[looks]) for looks in shared) <= fitting:
            return
        for place in left:
            partner = self.partners.pop(place, None)
            if partner is not None:
                self._taken.discard(partner)
        for looks in shared:
            self._pair_group(lefts[looks], rights[looks])
        rest = [place for place in left if self._is_free(place)]
        others = [place for place in right if place not in self._taken]
        if len(rest) == 1 and len(others) == 1:  # such as a weight's gradient, transposed
            self._pair(rest[0], others[0])

    def _pair_group(self, places: list[int], partners: list[int]) -> None:
        """Pair values that look alike: equal ones first, the others in order if as many."""
        waiting = list(partners)
        for place in places:
            fact = _fact(self._target[place])
            equal = [other for other in waiting if _fact(self._reference[other]) == fact]
            rivals = [other for other in places if _fact(self._target[other]) == fact]
            if len(equal) == 1 and len(rivals) == 1:
                self._pair(place, equal[0])
                waiting.remove(equal[0])
        rest = [place for place in places if place not in self.partners]
        if len(rest) == len(waiting):
            for place, partner in zip(rest, waiting, strict=True):
                self._pair(place, partner)

    def _is_free(self, place: int) -> bool:
        return place not in self.partners and place not in self._excluded

    def _pair(self, place: int, partner: int) -> None:
        if partner not in self._taken:
            self.partners[place] = partner
            self._taken.add(partner)


def _by_looks(values: list[Value], places: list[int]) -> dict[tuple[bool, object], list[int]]:
    groups: defaultdict[tuple[bool, object], list[int]] = defaultdict(list)
    for place in places:
        value = values[place]
        groups[value.is_tensor, value.shape if value.is_tensor else value.type].append(place)
    return groups


def _fact(value: Value) -> tuple[object, ...]:
    return (value.md5, value.max, value.min, value.mean, value.norm, str(value.value))


def _rows(
    pair: OperationPair,
    target_values: list[Value],
    reference_values: list[Value],
    partners: Mapping[int, int],
) -> list[Row]:
    taken = set(partners.values())
    unmatched = [
        Missing(pair=pair, reference=value)
        for place, value in enumerate(reference_values)
        if place not in taken
    ]
    last_of_role = {value.role: place for place, value in enumerate(target_values)}
    rows: list[Row] = []
    for place, value in enumerate(target_values):
        partner = partners.get(place)
        rows.append(
            Added(pair=pair, target=value)
            if partner is None
            else Matched(pair=pair, target=value, reference=reference_values[partner])
        )
        if last_of_role[value.role] == place:
            rows += [row for row in unmatched if row.value.role is value.role]
    return rows + [row for row in unmatched if row.value.role not in last_of_role]


def _longest_prefix(key: str, rules: Mapping[str, object] | set[str]) -> str | None:
    """Return the slot among `rules` that is `key` or above it."""
    while key:
        if key in rules:
            return key
        key = key.rpartition(".")[0]
    return None


def _key(slot: str) -> str:
    """Return a slot in the one form that dumps with and without tensor files share."""
    return f"input.{slot[len(_KEYWORDS) :]}" if slot.startswith(_KEYWORDS) else slot
