# SPDX-License-Identifier: Apache-2.0
"""`Agreements`: which modules come to the same results and gradients on both sides.

They vouch for the calls inside, which compute the same in another way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final

from msprobe.compare.model import Matched, Origin, Row, Status
from msprobe.compare.rounding import (
    FINE,
    after_calls,
    in_other_module,
    is_near,
    is_of_sum,
    resolution_of,
)
from msprobe.compare.verdicts.calls import Call, Calls, names_of
from msprobe.compare.verdicts.conditioning import is_summed_noise, operand_of
from msprobe.compare.verdicts.data_flow import DataFlow
from msprobe.compare.verdicts.same_inputs import is_opaque
from msprobe.compare.verdicts.statistics_error import statistics_error
from msprobe.dump.record_names import RecordKind, forward_name, module_names
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of
from msprobe.numerics.tolerances import EXACT
from msprobe.operators.lookup import is_in_place

_FORWARD: Final = RecordKind.FORWARD
_OF_OTHER_PARAMETERS: Final = (Status.SHAPE, Status.MISSING, Status.ADDED)


class Agreements:
    """The modules whose results agree: as exactly as their values, or as other calls round.

    Attributes:
        exact: as exactly as their values.
    """

    def __init__(self, calls: Calls, flow: DataFlow) -> None:
        """Ask nothing yet.

        Args:
            calls: all calls.
            flow: where their values come from.
        """
        self.exact = _Agreement(calls, flow)
        self._rewritten = _Agreement(calls, flow, is_rewritten=True)

    def around(self, call: Call, begun: Sequence[Row], *, needs_gradients: bool) -> Call | None:
        """Return the innermost module around a call that agrees, though some rows differ.

        Other calls make other roundings; another argument of the same call has no excuse.
        """
        agreement = self.exact if any(map(_begins_alike, begun)) else self._rewritten
        return agreement.around(call, needs_gradients=needs_gradients)


class _Agreement:
    """The modules whose results and gradients agree."""

    def __init__(self, calls: Calls, flow: DataFlow, *, is_rewritten: bool = False) -> None:
        """Judge modules, by the types of what they are given, or that they compute in.

        Args:
            calls: all calls.
            flow: where their values come from.
            is_rewritten: results may be rounded to the coarsest type inside of a module.
        """
        self._calls = calls
        self._flow = flow
        self._is_rewritten = is_rewritten
        self._results: dict[int, bool] = {}
        self._gradients: dict[int, bool] = {}
        self._around: dict[tuple[tuple[str | None, bool], ...], list[Call]] = {}
        # Those that differ, by the path of each module around them.
        self._parameter_gradients: dict[str, list[Row]] = defaultdict(list)
        for row in calls.rows:
            if row.value.role is Role.PARAMETER_GRAD and row.status.is_difference:
                path = calls.parse(row.pair).path
                for around in {"", *accumulate(path.split("."), "{}.{}".format)}:
                    self._parameter_gradients[around].append(row)

    def has_same_calls(self, module: Call) -> bool:
        """Return whether both sides make the same calls inside a module.

        Without modules, whether they do anywhere.
        """
        if not self._calls.has_modules:
            return not self._rewritten
        return self._rewritten.isdisjoint((module.pair.target, module.pair.reference))

    @cached_property
    def _rewritten(self) -> set[str | None]:
        """Records around calls that only one side makes, or that the other makes by another API."""
        found: set[str | None] = set()
        calls = self._calls
        for pair in calls.pairs:
            for name, is_target in names_of(pair) if calls.makes_other_call(pair) else ():
                parent = calls.parent_of(name, is_target=is_target)
                while parent not in found:
                    found.add(parent)
                    if parent is not None:
                        parent = calls.parent_of(parent, is_target=is_target)
        return found

    def around(self, call: Call, *, needs_gradients: bool) -> Call | None:
        """Return the innermost module around a call that agrees; None if there is none.

        Outside of modules it is the loss; where modules are recorded, for calls of one side alone.
        """
        enclosing = self._enclosing(call)
        for number, module in enumerate(enclosing):
            if not self._have_equal_results(module):
                continue
            # A loss alone hides what is inside, as it does below.
            vouches = number == 0 and not needs_gradients and not _is_number(module)
            if vouches and self._calls.makes_other_call(call.pair):
                vouches = not self._makes_other_gradients(module)
            if vouches or self._have_equal_gradients(module):
                return module
        has_modules = self._calls.has_modules
        if enclosing or self._loss is None or (has_modules and call.is_matched):
            return None
        if self._calls.is_after_backward(call):
            return None
        # The loss alone hides the results of other calls: by a factor of 0, or in a mean. Where it
        # is of another precision, so are gradients: none is the same.
        losses = self._loss.outputs
        is_same = not any(isinstance(row, Matched) and row.precisions for row in losses)
        may_hide = is_same or all(row.status is Status.EQUAL for row in losses)
        needs_gradients |= has_modules or (may_hide and self._calls.makes_other_call(call.pair))
        return self._loss if not needs_gradients or self._has_equal_weight_gradients else None

    @cached_property
    def _loss(self) -> Call | None:
        """The call that the first backward pass begins with, if all losses agree.

        Of two calls, a mean and the quotient of a sum, say, it is the target's.
        """
        target, reference = (
            next(self._calls.losses(is_target=side), None) for side in (True, False)
        )
        if target is None or reference is None or self._has_other_loss:
            return None
        if target.start == reference.start:
            return target if _agree(target.rows, (), self._resolution_of_losses) else None
        made = [
            [row.target for row in target.outputs if row.target is not None],
            [row.reference for row in reference.outputs if row.reference is not None],
        ]
        resolution = self._resolution_of_losses
        return target if all(made) and are_same(*made, resolution=resolution) else None

    @cached_property
    def _has_other_loss(self) -> bool:
        """Whether a further backward pass begins with a number that differs."""
        return any(
            call.is_matched
            and not _agree(call.outputs, (), self._resolution_of_losses)
            and self._has_backward(call)
            and all(math.prod(row.value.shape or ()) == 1 for row in call.outputs)
            and not any(map(self._is_used, call.outputs))
            for call in self._calls
            if not call.is_backward
        )

    def _has_backward(self, call: Call) -> bool:
        return self._calls.backward_of(call, is_target=True) is not None

    def _is_used(self, row: Row) -> bool:
        """Return whether a call that has a backward pass takes a result in."""
        users = (self._calls.of(self._calls.rows[index]) for index in self._flow.target.users(row))
        return any(map(self._has_backward, users))

    @cached_property
    def _has_equal_weight_gradients(self) -> bool:
        """Whether all that no call made, such as parameters, gets the same gradients.

        One side may hand them back by other calls: by one for several joined weights, say.
        """
        left: tuple[list[Value], list[Value]] = ([], [])
        for call in self._calls:
            if not call.is_backward:
                continue
            for row in call.outputs:
                is_apart = row.status.is_difference and not _is_summed_noise(call, row)
                if is_apart and not _agree([row], call.inputs, self._resolution()):
                    for side, value in enumerate((row.target, row.reference)):
                        if value is not None and self._is_of_leaf(call, value, side):
                            left[side].append(value)
        return are_same(*left, resolution=self._resolution())

    def _is_of_leaf(self, call: Call, gradient: Value, side: int) -> bool:
        """Return whether a gradient is that of a value that no recorded call made.

        Or which one wrote in place, that hands back none: an update, or what initialises it by the
        result of another one.
        """
        forward = self._calls.forward_of(call)
        if forward is None or not gradient.is_tensor:
            return gradient.is_tensor
        flow = (self._flow.target, self._flow.reference)[side]
        own = (row for row in forward.inputs if row.value.argument == gradient.argument)
        makers = [self._calls.of(self._calls.rows[i]) for row in own for i in flow.makers(row)]
        # What a hook alone makes ask for a gradient is made by calls that write nothing.
        is_written = not makers or any(is_in_place(maker.parsed.path) for maker in makers)
        return is_written and not any(self._hands_back(m, is_target=not side) for m in makers)

    def _hands_back(self, maker: Call, *, is_target: bool) -> bool:
        """Return whether a call takes the gradient of its result, as far as records tell."""
        if maker.is_backward or self._calls.backward_of(maker, is_target=is_target) is not None:
            return True
        made = [row.target if is_target else row.reference for row in maker.outputs]
        needs_gradient = any(each is not None and each.requires_grad is not False for each in made)
        return needs_gradient and not is_in_place(maker.parsed.path)

    def _enclosing(self, call: Call) -> list[Call]:
        """Return the modules around a call that both sides recorded, from the innermost."""
        parents = tuple((self._parent(name, side), side) for name, side in names_of(call.pair))
        found = self._around.get(parents)
        if found is None:
            found = self._around[parents] = []
            inside = (self._calls.modules_around(name, is_target=side) for name, side in parents)
            for modules in zip(*inside, strict=False):
                # A call of another module on either side is no inner matter of one of them.
                if len({module.start for module in modules}) > 1:
                    break
                found.append(modules[0])
        return found

    def _parent(self, name: str, is_target: bool) -> str | None:
        """Return the record around another one; of a backward record that around its call.

        It lies inside backward records, if any: the forward call tells more.
        """
        calls = self._calls
        name = forward_name(calls.parsed(name, is_target=is_target)) or name
        return calls.parent_of(name, is_target=is_target)

    def _have_equal_results(self, module: Call) -> bool:
        if module.start not in self._results:
            # A cache by another name is no result, nor is one of another class.
            outputs = [
                row
                for row in module.rows
                if row.value.role is Role.OUTPUT
                and (row.holds_tensor or isinstance(row, Matched))
                and not any(map(is_opaque, row.values))
            ]
            self._results[module.start] = (
                bool(outputs)
                and all(map(_is_shown, outputs))
                and _agree(outputs, module.inputs, self._resolution(module))
            )
        return self._results[module.start]

    def _have_equal_gradients(self, module: Call) -> bool:
        if module.start not in self._gradients:
            self._gradients[module.start] = self._compare_gradients(module)
        return self._gradients[module.start]

    def _makes_other_gradients(self, module: Call) -> bool:
        """Return whether a module that is given the same gradients makes others of them.

        Its result may not show yet what a call inside does: an adapter begins with a factor of 0.
        """
        given = [row for backward in self._backward(module) for row in backward.inputs]
        is_same = bool(given) and not any(row.status.is_difference for row in given)
        return is_same and not self._have_equal_gradients(module)

    def _backward(self, module: Call) -> Iterator[Call]:
        sides = (self._calls.backward_of(module, is_target=side) for side in (True, False))
        return (backward for backward in sides if backward is not None)

    def _compare_gradients(self, module: Call) -> bool:
        taken_in = list(module.inputs)
        for backward in self._backward(module):
            taken_in += backward.inputs
            if not _agree(backward.outputs, taken_in, self._resolution(module)):
                return False
        gradients = self._parameter_gradients.get(module.parsed.path, ())
        shared = [row for row in gradients if row.pair.is_matched or self._is_of_both(row)]
        if any(row.status is Status.SHAPE for row in shared):
            # One parameter holds several of the other side: together they get the same.
            parts = [row for row in gradients if row.status in _OF_OTHER_PARAMETERS]
            shared = [row for row in shared if row.status is not Status.SHAPE]
            if not _have_same_norm(parts, self._resolution(module)):
                return False
        return _agree(shared, taken_in, self._resolution(module))

    def _is_of_both(self, gradient: Row) -> bool:
        """Return whether both sides call the module whose parameter has a gradient."""
        forward, _ = module_names(self._calls.parse(gradient.pair).base, 0)
        call = self._calls.named(forward, is_target=gradient.pair.target is not None)
        return call is not None and call.is_matched

    def _resolution(self, module: Call | None = None) -> float:
        """Return the resolution of the coarsest type in which both sides compute in a module.

        Its results may be of a finer type, as with autocast. Without a module it is that of all.
        """
        if not self._is_rewritten:
            return 0.0
        names = (None, None) if module is None else (module.pair.reference, module.pair.target)
        return min(made[name] for made, name in zip(self._coarsest, names, strict=True))

    @cached_property
    def _resolution_of_losses(self) -> float:
        return min(self._resolution(), self._calls.resolution_of_losses)

    @cached_property
    def _coarsest(self) -> tuple[Mapping[str | None, float], Mapping[str | None, float]]:
        """The resolution of the coarsest type of results inside a record, by side.

        Without a record it is that of all.
        """
        found: tuple[dict[str | None, float], ...] = (defaultdict(float), defaultdict(float))
        calls = self._calls
        for row in calls.rows:
            if row.value.role is not Role.OUTPUT or not row.holds_tensor:
                continue
            for name, is_target in names_of(row.pair):
                value = row.target if is_target else row.reference
                made = found[is_target]
                epsilon = 0.0 if value is None else epsilon_of(value.dtype)
                if epsilon <= FINE or calls.parsed(name, is_target=is_target).kind is not _FORWARD:
                    continue
                around: str | None = name
                while around is not None and made[around] < epsilon:
                    made[around] = epsilon
                    around = calls.parent_of(around, is_target=is_target)
                made[None] = max(made[None], epsilon)
        return found[0], found[1]


def _is_number(module: Call) -> bool:
    """Return whether all that a module returns is a single number, such as a loss."""
    made = [value for row in module.outputs for value in row.values if value.is_tensor]
    return bool(made) and all(math.prod(value.shape or ()) == 1 for value in made)


def _is_shown(row: Row) -> bool:
    """Return whether anything is known of what a row's tensors hold.

    Nothing is of what other ranks still send.
    """
    return row.metrics is not None or all(
        not each.is_tensor or each.md5 or each.max is not None or 0 in (each.shape or ())
        for each in row.values
    )


def _agree(results: Iterable[Row], taken_in: Iterable[Row], resolution: float) -> bool:
    """Return whether results agree, or differ hardly more than what they are made of.

    A module that is computed in another way makes other rounding errors of its inputs' type, or of
    the one in which it computes.
    """
    differing = [row for row in results if row.status.is_difference]
    if not differing:
        return True
    worst = max((row.error or 0.0 for row in taken_in if row.holds_tensor), default=0.0)
    return all(
        worst <= after_calls(max(resolution_of(row.values), resolution))
        and is_near(row, worst, resolution)
        for row in differing
    )


def _is_summed_noise(call: Call, gradient: Row) -> bool:
    """Return whether a gradient that a call hands back is zero up to rounding."""
    result = operand_of(gradient) if gradient.status is Status.DIFFERS else None
    gradients = [each for each in map(operand_of, call.inputs) if each is not None]
    return result is not None and is_summed_noise(call.operator.family, gradients, result)


def _have_same_norm(rows: Sequence[Row], resolution: float) -> bool:
    """Return whether the gradients of each side have the same norm, taken together."""
    values = [value for row in rows for value in row.values]
    if not all(isinstance(value.norm, (int, float)) for value in values):
        return False
    epsilon = resolution_of(values)
    target, reference = (
        math.hypot(*(float(value.norm) for value in side if value is not None))  # type: ignore[arg-type]
        for side in ([row.target for row in rows], [row.reference for row in rows])
    )
    return abs(target - reference) <= in_other_module(epsilon, resolution) * reference


def are_same(target: list[Value], reference: list[Value], *, resolution: float) -> bool:
    """Return whether two lists hold the same tensors, up to rounding and order."""
    if len(target) != len(reference):
        return False
    left = list(reference)
    for own in target:
        found = next((other for other in left if _is_same(own, other, resolution)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _is_same(target: Value, reference: Value, resolution: float) -> bool:
    if target.dtype != reference.dtype or target.squeezed_shape != reference.squeezed_shape:
        return False
    error = statistics_error(target, reference, EXACT).relative
    if error is None:
        return False
    if error <= in_other_module(epsilon_of(target.dtype), resolution):
        return True
    norms = float(target.norm or 0.0), float(reference.norm or 0.0)
    moved = abs(norms[0] - norms[1]) / norms[1] if norms[1] else math.inf
    return is_of_sum(error, moved, math.prod(target.shape or ()), resolution, error)


def _begins_alike(row: Row) -> bool:
    """Return whether a difference begins in a value that has the same form on both sides."""
    is_shared = row.pair.is_matched and row.status is not Status.SHAPE
    return is_shared and row.origin is not Origin.INHERITED
