# SPDX-License-Identifier: Apache-2.0
"""Retract origins in calls that change no result.

A module may be written in another way: other calls inside, other values between them, and yet the
same result and the same gradients. What differs inside is another way to compute the same.
Parameters that differ stay blamed, as do arguments whose effect is not in the result of their call
(a momentum): it may show elsewhere or later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msprobe.collectives.calls import is_communication
from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Origin, Row, Status
from msprobe.compare.rounding import IN_OTHER_CALLS, NEAR, is_other_gradient, resolution_of
from msprobe.compare.verdicts.agreement import Agreements
from msprobe.compare.verdicts.calls import Call, Calls, names_of
from msprobe.compare.verdicts.consequences import (
    Consequences,
    Effect,
    is_constant,
    needs_no_gradient,
)
from msprobe.compare.verdicts.data_flow import DataFlow
from msprobe.compare.verdicts.origin_state import is_shard
from msprobe.compare.verdicts.same_inputs import shows_elements
from msprobe.dump.record_names import (
    PARAMETER_GRADIENTS,
    RecordKind,
    parameters_grad_name,
    parse_record_name,
)
from msprobe.dump.values import Role
from msprobe.operators.operator import Family

# Causes of results that nothing recorded explains.
_WITHOUT_REASON: Final = (None, Cause.RANDOM_NUMBERS, Cause.OTHER_RESULT, Cause.OWN_CODE)
# Causes of values that were changed between two calls.
_CHANGED: Final = (Cause.CHANGED_BETWEEN, Cause.WRITTEN_GRADIENT)
# Causes that concern gradients, though the forward call is blamed.
_OF_GRADIENTS: Final = (Cause.CUTTING_CALL, Cause.GRADIENT_CALL)
# What shows that a result is without consequence.
USERS: Final = "what uses it"


def retract_inconsequential(
    calls: Calls, flow: DataFlow, read: Mapping[int, Sequence[Call]]
) -> None:
    """Clear the origins in calls inside a module whose results agree, and whose gradients do.

    For most forward calls the results of the innermost module that both sides have are enough:
    what its gradients do is judged by itself.

    Args:
        calls: those of the step.
        flow: where their values come from.
        read: see `Consequences`.
    """
    agreements = Agreements(calls, flow)
    consequences = Consequences(calls, flow, read)
    replaced: dict[str, str] = {}
    hidden: list[Row] = []
    cleared: list[tuple[Row, Origin | None, Cause | None]] = []
    for call in calls:
        taken_in = [row for row in call.inputs if row.origin is Origin.INPUT and row.holds_tensor]
        found = _found(call)
        if not (found or taken_in) or calls.is_kept(call):
            continue
        begun = [row for row in (*taken_in, *found) if row.origin is not Origin.INHERITED]
        effect = Effect.SHOWN
        if _is_of_constants(call, calls, begun):
            cleared += [(row, row.origin, row.cause) for row in call.rows if call.is_matched]
            effect = _retract_constants(call, begun, calls, consequences)
        if effect is Effect.NONE:
            continue
        if effect is Effect.HIDDEN and not any(isinstance(row, Matched) for row in begun):
            hidden += found
        vouching = agreements.around(call, taken_in, needs_gradients=True) if taken_in else None
        if vouching is not None and not call.is_backward:
            _clear(call, taken_in, Cause.HARMLESS, vouching.pair.name, is_same=False)
        if not found:
            continue
        if call.parsed.kind in PARAMETER_GRADIENTS:
            _retract_parameter_gradients(call, found, calls, replaced)
            continue
        has_own = calls.is_in_backward(call) or _has_gradients_of_its_own(call, found)
        module = agreements.around(call, found, needs_gradients=has_own)
        if module is not None and _is_inside(module, found, call, calls):
            is_same = agreements.exact.has_same_calls(module)
            _clear(call, found, Cause.HARMLESS, module.pair.name, is_same=is_same)
            if any(map(_is_replaced, found)):
                replaced |= dict.fromkeys(_bases(call), module.pair.name)
    _leave_to_others(hidden, calls.rows)
    _restore(cleared, calls.rows)
    if not calls.has_backward:
        _clear_followers(calls.rows)


def _restore(
    cleared: Sequence[tuple[Row, Origin | None, Cause | None]], rows: Sequence[Row]
) -> None:
    """Blame constants again where gradients are far apart, and nothing left in the step says why.

    Two calls of a model that are given each other's inputs come to the same loss, but each draws
    what the other one draws.

    Args:
        cleared: the rows of calls of both sides that are given them, with origins and causes.
        rows: those of the step.
    """
    if not cleared or any(row.origin not in (None, Origin.INHERITED) for row in rows):
        return
    if any(
        row.value.role is Role.PARAMETER_GRAD
        and row.origin is Origin.INHERITED
        and row.status is Status.DIFFERS
        and is_other_gradient(row.error, resolution_of(row.values))
        for row in rows
    ):
        for row, origin, cause in cleared:
            row.origin, row.cause = origin, cause


def _gives_its_shape(module: Call, call: Call) -> bool:
    """Return whether a call inside a module may be why its result has another shape.

    A call behind the module that broadcasts it makes something else of the same numbers.
    """
    is_reshaped = any(len({value.shape for value in row.values}) > 1 for row in module.outputs)
    return is_reshaped and call.operator.family is Family.MOVING and not call.is_matched


def _clear_followers(rows: Sequence[Row]) -> None:
    """Clear what follows from other differences, where all of these are without consequence."""
    left = [row for row in rows if row.origin is not None]
    if all(
        row.origin is Origin.INHERITED
        and row.cause in (None, Cause.LIKELY)
        and row.value.role is not Role.PARAMETER
        for row in left
    ):
        for row in left:
            row.origin, row.cause = None, Cause.HARMLESS


def _retract_constants(
    call: Call, begun: Sequence[Row], calls: Calls, consequences: Consequences
) -> Effect:
    """Clear what a call takes in or makes of constants, and what follows, if it has no effect.

    Where no gradient flows, the results of all calls tell.
    """
    effect = consequences.effect(call, begun)
    reached = [call] if effect is Effect.NONE else []
    if effect is not Effect.NONE and not calls.has_backward:
        reached = consequences.unseen(call)
    for each in reached:
        rows = [row for row in each.rows if row.origin is Origin.INHERITED]
        if each is call:
            rows += begun
        _clear(each, rows, Cause.HARMLESS, USERS, is_same=each is call)
    return Effect.NONE if reached else effect


def _leave_to_others(hidden: Sequence[Row], rows: Sequence[Row]) -> None:
    """Clear what may be without consequence where something else is blamed with a reason.

    The same function that is called again has the same effect. Numbers of which a call makes a
    tensor, and nothing else, may be those that the program made of earlier values.
    """
    if not hidden:
        return
    own = set(map(id, hidden))
    first = min(row.pair.position for row in hidden)
    given = {row.pair.position for row in rows if row.value.role is Role.INPUT and row.holds_tensor}
    agreeing = {_slot(row) for row in rows if row.status is Status.EQUAL and row.holds_tensor}
    blamed = [
        row
        for row in rows
        if row.origin is Origin.INTRODUCED
        and id(row) not in own
        # A parameter that agreed when it was used first was updated since.
        and not (row.cause is Cause.PARAMETER and _slot(row) in agreeing)
        and (row.pair.position in given or row.pair.position < first or not row.is_argument)
    ]
    if any(row.cause not in _WITHOUT_REASON for row in blamed):
        blamed_functions = {parse_record_name(row.pair.name).base for row in blamed}
        for row in hidden:
            is_again = parse_record_name(row.pair.name).base in blamed_functions
            if row.origin is not None and not is_again:
                row.origin, row.cause = None, Cause.HIDDEN_EFFECT


def _slot(row: Row) -> tuple[str, str, Sequence[int] | None]:
    """Return what tells the uses of one tensor by one kind of call, as far as records do."""
    return parse_record_name(row.pair.name).base, row.value.argument, row.value.shape


def retract_without_effect(
    calls: Calls,
    flow: Callable[[], DataFlow],
    updated: float,
    apart: Mapping[tuple[int, ...], float],
) -> None:
    """Clear the origins in a step that comes to the same loss and the same gradients.

    A call after the optimizer is cleared if no result that differs is the last of what it leads to,
    or if both sides come to the same by all of these calls.

    Args:
        calls: those of the step.
        flow: returns where their values come from.
        updated: place of the last optimizer; without one, of the end of the backward pass.
        apart: shape → how far apart it leaves a parameter, relative to its norm.
    """
    is_same = not any(map(calls.makes_other_call, calls.pairs))
    late = [each for each in calls if _is_late(each, calls, updated)]
    ends_alike = bool(late) and Consequences(calls, flow()).end_alike(late, apart)
    for call in calls:
        if calls.is_kept(call):
            continue
        # Another API takes its arguments in another order; a log is reset at another time.
        taken_in = [row for row in call.inputs if row.origin is Origin.INPUT]
        _clear(call, taken_in, Cause.SAME_GRADIENTS, "", is_same=False)
        found = _found(call, has_same_gradients=True)
        is_blamed = any(row.origin is not Origin.INHERITED for row in found)
        is_open = is_blamed and not ends_alike and _is_late(call, calls, updated)
        if is_open and not Consequences(calls, flow()).unseen(call):
            continue
        if found:
            _clear(call, found, Cause.SAME_GRADIENTS, "", is_same=is_same)


def _is_late(call: Call, calls: Calls, updated: float) -> bool:
    """Return whether a call comes after the optimizer's, so that its gradients tell nothing."""
    return call.pair.position > updated and calls.is_after_backward(call)


def _is_of_constants(call: Call, calls: Calls, begun: Sequence[Row]) -> bool:
    """Return whether what begins to differ in a call are tensors that need no gradient."""
    if not begun or call.is_backward or any(row.cause in _OF_GRADIENTS for row in begun):
        return False
    return needs_no_gradient(call, calls) or all(map(is_constant, begun))


def _found(call: Call, *, has_same_gradients: bool = False) -> list[Row]:
    """Return the rows of a call that have an origin, if they may be cleared."""
    if call.parsed.kind in (RecordKind.DEBUG, RecordKind.OTHER):
        return []
    found = [row for row in call.rows if row.origin not in (None, Origin.INPUT)]
    if has_same_gradients and any(row.cause is Cause.REORDERING_CALL for row in found):
        return []
    if has_same_gradients and call.parsed.is_module:
        # Its arguments have no effect elsewhere, either: buffers are compared when a step starts.
        return [] if any(not row.is_argument and _stays(call, row) for row in found) else found
    # A gradient that a program writes has its effect in what the optimizer gets.
    begun = [
        row for row in found if not (has_same_gradients and row.cause is Cause.WRITTEN_GRADIENT)
    ]
    return [] if any(_stays(call, row) for row in begun) else found


def _clear(call: Call, found: Sequence[Row], cause: Cause, subject: str, *, is_same: bool) -> None:
    """Clear origins.

    Args:
        call: the call.
        found: its rows.
        cause: why they are without consequence.
        subject: the record that shows it.
        is_same: both sides make the same calls around it, so that nothing tells why it differs.
    """
    # What comes from another rank is explained there.
    is_same = is_same and not is_communication(call.parsed) and _has_equal_inputs(call)
    for row in found:
        if is_same and _is_without_reason(row):
            row.cause, row.subject = Cause.ABSORBED, subject or "what is made of it"
        else:
            row.cause, row.subject = cause, subject
        row.origin = None


def _is_inside(module: Call, found: Sequence[Row], call: Call, calls: Calls) -> bool:
    """Return whether an effect ends inside of a module.

    That of a value that was changed between two calls does where it was changed inside; that of
    another order of elements where the results of the module show their elements.
    """
    if _is_another_function(call, calls, module) or _gives_its_shape(module, call):
        return False
    causes = {row.cause for row in found}
    if Cause.REORDERING_CALL in causes:
        made = [row for row in module.outputs if row.holds_tensor]
        if not all(isinstance(row, Matched) and shows_elements(row) for row in made):
            return False
    return causes.isdisjoint(_CHANGED) or (
        module.parsed.is_module and not any(row.status.is_difference for row in module.inputs)
    )


def _is_another_function(call: Call, calls: Calls, module: Call) -> bool:
    """Return whether a module of another class makes something else, given the same.

    That is further apart than other calls round, and the module around, though its results agree
    within their tolerance, shows it by more than the rounding of another way to compute the same.
    """
    is_other = call.is_matched and call.parsed.is_module and calls.makes_other_call(call.pair)
    if not is_other or calls.has_inner(call) or not _has_equal_inputs(call):
        return False
    return _worst(call) > IN_OTHER_CALLS and _worst(module) > NEAR


def _worst(call: Call) -> float:
    """Return how far a result of a call is apart at most, in units of its type."""
    made = [row for row in call.outputs if row.error and resolution_of(row.values)]
    return max((row.error or 0.0) / resolution_of(row.values) for row in made) if made else 0.0


def _is_replaced(row: Row) -> bool:
    """Return whether a module has a parameter that the other side has not, or not in its shape."""
    is_shared = isinstance(row, Matched) and row.status is not Status.SHAPE
    return row.value.role is Role.PARAMETER and not is_shared


def _has_equal_sum(calls: Calls, call: Call) -> bool:
    """Return whether both sides add up the same gradient, one of them in fewer parts."""
    name = parameters_grad_name(call.parsed.base, 0, RecordKind.PARAMETERS_GRAD_REDUCED)
    whole = calls.named(name, is_target=call.pair.target is not None)
    return (
        whole is not None
        and whole.is_matched
        and all(is_shard(row) or not row.status.is_difference for row in whole.rows)
    )


def _retract_parameter_gradients(
    call: Call, found: Sequence[Row], calls: Calls, replaced: Mapping[str, str]
) -> None:
    """Clear parts of gradients, sums of other parts, and those of parameters that were replaced."""
    module = replaced.get(call.parsed.base)
    is_other = not call.is_matched or all(row.status is Status.SHAPE for row in found)
    is_reduced = call.parsed.kind is RecordKind.PARAMETERS_GRAD_REDUCED
    if is_reduced and all(map(is_shard, found)):
        _clear(call, found, Cause.SHARD, "", is_same=False)
    elif not call.is_matched and _has_equal_sum(calls, call):
        _clear(call, found, Cause.SAME_GRADIENTS, "", is_same=False)
    elif module is not None and is_other:
        _clear(call, found, Cause.HARMLESS, module, is_same=False)


def _bases(call: Call) -> Iterator[str]:
    """Yield a module's name in records, as each side calls it."""
    for name, _ in names_of(call.pair):
        yield parse_record_name(name).base


def _has_gradients_of_its_own(call: Call, found: Sequence[Row]) -> bool:
    """Return whether the results of the module around do not vouch for a call's gradients.

    What another argument or tensor makes of a result may hide in the sum with a larger value. A
    module's own code may make a tensor in another way to the same effect.
    """
    is_given = any(
        row.origin is Origin.INTRODUCED
        and row.value.role is Role.INPUT
        and row.cause is not Cause.SURROUNDING_CODE
        for row in found
    )
    return (
        call.is_backward
        or is_given
        or any(row.cause in _OF_GRADIENTS or _is_replaced(row) for row in found)
    )


def _stays(call: Call, row: Row) -> bool:
    """Return whether a row is blamed for something that takes effect elsewhere."""
    if row.origin is not Origin.INTRODUCED:
        return False
    is_parameter = row.cause is Cause.CHANGED_STATE or (
        row.value.role is Role.PARAMETER and not _is_replaced(row)
    )
    # Of another shape, it is another part of the same: the module may only go another way.
    is_changed = row.cause in _CHANGED and row.status is not Status.SHAPE
    if is_parameter or is_changed:
        return True
    # One that makes up for an input that differs (`norm` of an inverse FFT) has its effect there.
    tensors = (*call.outputs, *(each for each in call.inputs if each.holds_tensor))
    return row.is_argument and not any(map(_shows_effect, tensors))


def _shows_effect(row: Row) -> bool:
    """Return whether a tensor differs, be it in dimensions of size 1 alone."""
    return row.status.is_difference or len({value.shape for value in row.values}) > 1


def _has_equal_inputs(call: Call) -> bool:
    """Return whether a call was given the same, to the bit."""
    return all(row.status is Status.EQUAL for row in call.inputs)


def _is_without_reason(row: Row) -> bool:
    """Return whether a call computed another result though nothing tells why."""
    is_result = row.origin is Origin.INTRODUCED and row.value.role is Role.OUTPUT
    # A further result, such as the weights of an attention, does not change the others.
    is_shared = row.status not in (Status.ADDED, Status.MISSING)
    return is_result and is_shared and row.cause in _WITHOUT_REASON
