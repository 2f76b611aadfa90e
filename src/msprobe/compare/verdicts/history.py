# SPDX-License-Identifier: Apache-2.0
"""Differences of earlier steps of a rank, which explain differences at the start of later ones."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.rounding import is_far_apart, resolution_of
from msprobe.compare.verdicts.calls import names_of
from msprobe.compare.verdicts.computed_before import ComputedBefore, is_of_structure
from msprobe.compare.verdicts.data_flow import fingerprint, fingerprints
from msprobe.compare.verdicts.places import Clue, Place, lone_words
from msprobe.dump.values import Role, Value
from msprobe.operators.lookup import is_in_place

UPDATE_GROWTH: Final = 50.0
"""How far an update may enlarge the relative error of a gradient: where terms of it cancel."""

_HARMLESS: Final = (Cause.HARMLESS, Cause.ABSORBED, Cause.SAME_GRADIENTS)
# Of values that no call of the step explains: what a step has no use for, a later one may use.
_UNEXPLAINED: Final = (Cause.UNTRACED, Cause.HARMLESS)
_OF_WIRING: Final = (Cause.OTHER_VALUE, Cause.OTHER_ORDER, Cause.OTHER_DRAW)
# Results of calls without a partner that are remembered.
_MOST_ALONE: Final = 10_000

Parameter = tuple[str, str]
"""A module, and the name of one of its parameters."""


@dataclass(slots=True)
class History:
    """Earlier steps of one rank.

    Attributes:
        inexact: whether any value of them was not exactly equal.
        worst_close: largest relative error of a result that is close.
        parameters: whether each was exactly equal when last seen.
        gradients: parameter → whether its gradient was exactly equal, in all steps.
        errors: parameter → largest relative error of it and of its gradient.
        worst_error: the largest of them.
        results: pairs of values that calls outside the model made: what an optimizer keeps.
        unused: pairs of results, further apart than rounding gets, of a step that came to the same
            gradients all the same.
        harmless: (whether it is the target's, what one side alone has without consequence, or in
            another form) → the first such step.
        reshaped: the same of (what is found of it, an argument) of calls whose results have other
            shapes.
        rewritten: code of a value (see `_code_of`) that differed, in a step in which nothing did
            with consequence → the first such step.
        summed_alike: gradient of a parameter, by name → the first step in which it agreed, or was
            without consequence, by whichever calls.
        same_inside: the first step in which nothing differed with consequence, and the modules that
            compute the same by other calls in it.
        alone: (whether the target has it, a value) → the call without a partner that made it, or
            that changes it in place on the other side.
        last: step, and for the target and the reference value → the first result of that step that
            holds it, of those that agree.
    """

    inexact: bool = False
    worst_close: float = 0.0
    parameters: dict[Parameter, bool] = field(default_factory=dict)
    gradients: dict[Parameter, bool] = field(default_factory=dict)
    errors: dict[Parameter, float] = field(default_factory=dict)
    worst_error: float = 0.0
    results: set[Hashable] = field(default_factory=set)
    unused: set[Hashable] = field(default_factory=set)
    harmless: dict[tuple[bool, str], int] = field(default_factory=dict)
    reshaped: dict[tuple[str, str], int] = field(default_factory=dict)
    rewritten: dict[Hashable, int] = field(default_factory=dict)
    summed_alike: dict[str, int] = field(default_factory=dict)
    same_inside: tuple[int, set[str]] | None = None
    alone: dict[tuple[bool, Hashable], Clue] = field(default_factory=dict)
    last: tuple[int, dict[Hashable, str], dict[Hashable, str]] = (0, {}, {})

    def add(self, comparison: RankComparison) -> None:
        """Take in a step that was judged."""
        made: tuple[dict[Hashable, str], dict[Hashable, str]] = ({}, {})
        for row in comparison.rows:
            is_equal = row.status is Status.EQUAL
            if not is_equal and row.cause is not Cause.HARMLESS:
                self.inexact = True
            role = row.value.role
            if role is Role.PARAMETER:
                key = parameter_of(comparison, row)
                self.parameters[key] = is_equal
            elif role is Role.PARAMETER_GRAD:
                key = parameter_of(comparison, row)
                self.gradients[key] = self.gradients.get(key, True) and is_equal
            else:
                if role is Role.OUTPUT and row.status is Status.CLOSE and row.error:
                    self.worst_close = max(self.worst_close, row.error)
                # What differs in a later step differs here, unless a reason was found against it.
                may_differ = row.status.is_difference or row.cause is not None
                if role is Role.OUTPUT and may_differ and _is_explained(comparison, row):
                    self.results.add(fingerprints(row))
                if not row.pair.is_matched:
                    self._add_alone(comparison, row)
                elif role is Role.OUTPUT and not row.status.is_difference:
                    made[0].setdefault(fingerprint(row.target), row.name)
                    made[1].setdefault(fingerprint(row.reference), row.name)
                continue
            if row.error:
                self.errors[key] = max(self.errors.get(key, 0.0), row.error)
                self.worst_error = max(self.worst_error, row.error)
        for results in made:
            results.pop(None, None)
        self.last = (comparison.step, *made)

    def _add_alone(self, comparison: RankComparison, row: Row) -> None:
        """Take in the result of a call, or what the side without the call is left with."""
        key = _elements_of(row.value)
        if key is None or len(self.alone) >= _MOST_ALONE:
            return
        parsed, is_result = comparison.parsed(row.pair), row.value.role is Role.OUTPUT
        is_changed = row.value.slot == "input.0" and not parsed.is_module
        if not is_result and not (is_changed and is_in_place(parsed.path)):
            return
        words = f"{lone_words(comparison, row.pair)}, in step {comparison.step}"
        clue = Clue(words, Place.of(comparison, row.pair))
        self.alone[(row.pair.target is not None) is is_result, key] = clue

    def add_harmless(self, comparison: RankComparison) -> None:
        """Take in what one side alone had without consequence, once all of it was cleared.

        Calls whose results have other shapes are one side's alone, too: they only have one name.
        Where no difference of a step begins in it, nothing of one side alone has any that hands
        back gradients: what changes values without them may have its effect later.
        """
        begins = any(
            row.origin not in (None, Origin.INHERITED) or row.cause is Cause.UNTRACED
            for row in comparison.rows
        )
        reshaped = {
            row.pair.position
            for row in comparison.rows
            if row.status is Status.SHAPE and row.value.role is Role.OUTPUT
        }
        for row in comparison.rows:
            if row.value.role is Role.PARAMETER_GRAD and row.origin is None:
                self.summed_alike.setdefault(row.name, comparison.step)
            if row.cause is Cause.SAME_GRADIENTS and _is_no_rounding(row):
                self.unused |= {fingerprints(row)} - {(None, None)}
            is_flowing = row.value.requires_grad or comparison.is_of_backward(row.pair)
            is_idle = row.origin is None and not begins and is_flowing
            is_lone = is_of_structure(row)
            if not begins and (row.cause in _HARMLESS or (is_lone and is_idle)):
                self.rewritten.setdefault(_code_of(comparison, row), comparison.step)
            if not (is_lone or row.pair.position in reshaped):
                continue
            if row.cause in _HARMLESS or is_idle:
                if is_lone:
                    for name in (*_own_names(row), *_call_names(row)):
                        self.harmless.setdefault(name, comparison.step)
                else:
                    self.reshaped.setdefault((row.finding, row.name), comparison.step)
        if self.same_inside is not None or all(pair.is_matched for pair in comparison.pairs):
            return
        if all(row.origin is None for row in comparison.rows):
            self.same_inside = comparison.step, ComputedBefore(comparison).modules()

    def harmless_step(
        self, comparison: RankComparison, row: Row, *, is_result: bool = False
    ) -> int | None:
        """Return a step in which one side alone had the same, without consequence.

        A step that calls the same code more often (an optimizer asks for the loss again) gives
        other names to it.

        Args:
            comparison: the step.
            row: the value.
            is_result: whether it is of a call whose other argument such a step explains.
        """
        follows = row.origin is Origin.INHERITED and row.cause is None
        is_fed = is_result or row.cause in _OF_WIRING or is_other_argument(row)
        if self.rewritten and (follows or is_fed or is_of_structure(row)):
            step = self.rewritten.get(_code_of(comparison, row))
            if step is not None:
                return step
        if not is_of_structure(row):  # an argument of a call whose result has another shape
            return self.reshaped.get((row.finding, row.name))
        is_given = row.value.role is Role.INPUT and not row.pair.is_matched
        names = _call_names(row) if is_given else _own_names(row)
        found = [self.harmless.get(name) for name in names]
        return None if None in found else max(found, default=None)  # type: ignore[type-var]

    def maker_of(self, row: Row, step: int) -> Clue | None:
        """Return the call of an earlier step, without a partner, that tells two values apart."""
        for is_target, value in ((True, row.target), (False, row.reference)):
            found = self.alone.get((is_target, _elements_of(value)))
            if found is not None:
                return Clue(f"{found.words}, and step {step} uses its result", found.place)
        return None

    def handed_on(self, row: Row) -> bool:
        """Return whether a row holds the two values that a call of an earlier step made.

        Only calls count whose own differences are explained.
        """
        both = fingerprints(row)
        return both != (None, None) and both in self.results

    def left_unused(self, row: Row) -> bool:
        """Return whether a row holds what a step made otherwise and had no use for.

        That it came to the same gradients excuses nothing that a later step makes of it.
        """
        return fingerprints(row) in self.unused

    def exchanged(self, row: Row) -> str | None:
        """Return which results of the step before a row's two values are, if not the same one."""
        step, targets, references = self.last
        target = targets.get(fingerprint(row.target))
        reference = references.get(fingerprint(row.reference))
        if target is None or reference is None or target == reference:
            return None
        return f"{target} of step {step} instead of {reference}"

    def likely_error(self, key: Parameter, *, is_frozen: bool) -> float:
        """Return the relative error of a parameter that earlier steps make likely, at most.

        No optimizer moves a frozen one; it may be an average of others.
        """
        if is_frozen:
            return UPDATE_GROWTH * self.worst_error
        if key not in self.gradients:
            return math.inf
        return UPDATE_GROWTH * self.errors.get(key, 0.0)

    def explains(self, key: Parameter) -> bool:
        """Return whether earlier steps explain that a parameter differs now.

        Returns:
            True if it or its gradient was not exactly equal before, or nothing is known of its
            gradient and something else was not.
        """
        if not self.parameters.get(key, True):
            return True
        if key in self.gradients:
            return not self.gradients[key]
        return self.inexact


def _elements_of(value: Value | None) -> Hashable:
    """Return a key that a tensor and its transposed views have in common; None for others."""
    key = fingerprint(value) if value is not None and value.is_tensor else None
    if not isinstance(key, tuple):
        return None
    dtype, shape, *numbers = key
    return (dtype, *sorted(shape or ()), *numbers)


def _own_names(row: Row) -> list[tuple[bool, str]]:
    """Return the names of a value, by side: calls are paired otherwise from step to step."""
    names = (True, row.target_name), (False, row.reference_name)
    return [(is_target, name) for is_target, name in names if name is not None]


def _code_of(comparison: RankComparison, row: Row) -> Hashable:
    """Return by which lines both sides make a value, and by which functions.

    A call whose line is not known is one by itself. An argument that is no tensor is the same code
    only as long as it is the same.
    """
    code: list[Hashable] = [row.finding] if is_other_argument(row) else []
    for name, is_target in names_of(row.pair):
        side = comparison.side(is_target=is_target)
        parsed = side.parsed(name)
        line = side.source_line(name) or name
        code.append((is_target, line, parsed.base, parsed.kind, row.value.slot))
    return (*code,)


def _call_names(row: Row) -> list[tuple[bool, str]]:
    return [(is_target, name) for name, is_target in names_of(row.pair)]


def is_other_argument(row: Row) -> bool:
    """Return whether a row is an argument that is no tensor, and differs."""
    return row.is_argument and not row.holds_tensor and row.status is Status.DIFFERS


def _is_no_rounding(row: Row) -> bool:
    """Return whether a call of both sides has results that are further apart than rounding gets.

    Integers, as labels that are fetched ahead, are no result of rounding anyway.
    """
    is_result = row.value.role is Role.OUTPUT and row.pair.is_matched
    resolution = resolution_of(row.values) if is_result else 0.0
    return resolution > 0 and is_far_apart(row.error, resolution)


def _is_explained(comparison: RankComparison, row: Row) -> bool:
    """Return whether a call outside the model made the two values of a row, and not by a fault."""
    if row.origin not in (None, Origin.INHERITED) or row.cause in _UNEXPLAINED:
        return False
    side = comparison.side_of(row.pair)
    parent = side.parent(row.pair.name)
    return row.pair.is_matched and (parent is None or not side.parsed(parent).is_module)


def parameter_of(comparison: RankComparison, row: Row) -> Parameter:
    """Return the parameter that a row holds, or whose gradient it holds."""
    module = comparison.parsed(row.pair).base
    value = row.value
    return module, value.argument if value.role is Role.PARAMETER else value.slot
