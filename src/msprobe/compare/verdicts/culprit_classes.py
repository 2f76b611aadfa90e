# SPDX-License-Identifier: Apache-2.0
"""Culprits among the calls as causes: their class, the moment they act, their words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msprobe.api_prefixes import COMPILED
from msprobe.collectives.calls import is_communication
from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Missing, OperationPair, Origin, Status
from msprobe.compare.training.data_pairing import key_of
from msprobe.compare.training.differences import Moment
from msprobe.compare.training.module_settings import (
    draws_nothing,
)
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlines import (
    difference_around,
    difference_before,
    difference_inside,
    difference_of_cuts,
    difference_of_gradients,
    difference_of_labels,
    difference_of_module,
)
from msprobe.compare.verdicts.carried import LOADER_FILE
from msprobe.compare.verdicts.communication import is_of_group, lone_communication
from msprobe.compare.verdicts.computed_numbers import (
    call_behind_number,
    computes_alone,
    gives_computed,
)
from msprobe.compare.verdicts.culprit_words import (
    culprit_place,
    culprit_words,
    is_lone_cast,
    lone_run,
    named_slot,
    other_call,
    parsed_name,
)
from msprobe.compare.verdicts.custom_functions import (
    MAY_BE_INSIDE,
    is_custom_function,
    lone_call_inside,
)
from msprobe.compare.verdicts.left_out_inputs import left_out_input
from msprobe.compare.verdicts.made_data import makes_data, orders_samples, other_samples
from msprobe.compare.verdicts.other_parts import other_parts
from msprobe.compare.verdicts.places import Place, crossed_lines, lone_words, moved_call
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.scaled_gradients import extra_pass, loss_of, scaled_words
from msprobe.compare.verdicts.told_settings import by_settings
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.compare.verdicts.written_parameters import belongs_to_update
from msprobe.dump.facts import Facts
from msprobe.dump.record_names import RecordKind, forward_name
from msprobe.dump.stack_frames import Frame, parse_frame
from msprobe.dump.values import Role
from msprobe.operators.lookup import operator_named, suggests
from msprobe.operators.operator import Family, Hint

_CLIP_FILE: Final = re.compile(r"clip_grad")
# Functions that run the model's code, in an optimizer's step, too.
_USERS_CODE: Final = ("_call_impl", "_inner_call", "closure", "training_step")

_BY_CAUSE: Final = {
    Cause.PARAMETER: VerdictClass.PARAMETERS,
    Cause.OTHER_UPDATE: VerdictClass.UPDATE,
    Cause.OTHER_PARAMETER: VerdictClass.ARGUMENT,
    Cause.ARGUMENT: VerdictClass.ARGUMENT,
    Cause.OTHER_VALUE: VerdictClass.ARGUMENT,
    Cause.OTHER_ORDER: VerdictClass.ORDER,
    Cause.OTHER_RETURN: VerdictClass.ORDER,
    Cause.OTHER_DRAW: VerdictClass.RANDOM,
    Cause.UNRECORDED_VALUE: VerdictClass.ARGUMENT,
    Cause.CHANGED_BETWEEN: VerdictClass.CALL,
    Cause.CHANGED_STATE: VerdictClass.CALL,
    Cause.OTHER_RANKS_STATE: VerdictClass.COMMUNICATION,
    Cause.RANDOM_NUMBERS: VerdictClass.RANDOM,
    Cause.RANDOM_STATE: VerdictClass.RANDOM,
    Cause.LONE_PRECISION: VerdictClass.PRECISION,
    Cause.BEYOND_TYPE: VerdictClass.PRECISION,
    Cause.USED_CALL: VerdictClass.CALL,
    Cause.GRADIENT_CALL: VerdictClass.CALL,
    Cause.CUTTING_CALL: VerdictClass.CALL,
    Cause.NAN_CALL: VerdictClass.CALL,
    Cause.REORDERED: VerdictClass.CALL,
    Cause.REORDERING_CALL: VerdictClass.CALL,
    Cause.UNEXPLAINED_GRADIENT: VerdictClass.GRADIENT,
    Cause.OTHER_START: VerdictClass.GRADIENT,
    Cause.CHANGED_GRADIENT: VerdictClass.GRADIENT,
    Cause.WRITTEN_GRADIENT: VerdictClass.GRADIENT,
    Cause.ACCUMULATED: VerdictClass.GRADIENT,
    Cause.NO_PARAMETER_GRADIENT: VerdictClass.GRADIENT,
    Cause.FIRST_SAVED: VerdictClass.UNEXPLAINED,
}
_OF_CALLS: Final = (VerdictClass.CALL, VerdictClass.ARGUMENT)
_BETWEEN_PARTS: Final = (Cause.CHANGED_BETWEEN, Cause.SURROUNDING_CODE, Cause.OWN_CODE)
_OF_OWN_CODE: Final = (VerdictClass.UNEXPLAINED, VerdictClass.RANDOM)


def class_of(culprit: Culprit) -> VerdictClass:
    """Return the class of the cause that a culprit is."""
    row = culprit.row
    if is_communication(parsed_name(culprit)) or is_of_group(row):
        return VerdictClass.COMMUNICATION
    if is_lone_cast(culprit):
        return VerdictClass.PRECISION
    known = None if row.cause is None else _BY_CAUSE.get(row.cause)
    if known is not None and not (row.cause is Cause.ARGUMENT and other_call(culprit)):
        return _called(culprit, known)
    if not row.pair.is_matched:
        return VerdictClass.GRADIENT if culprit.kind == "backward" else VerdictClass.CALL
    if other_call(culprit):
        return VerdictClass.CALL
    types = row.precisions if isinstance(row, Matched) else None
    if row.status is Status.DTYPE or (types and row.origin is Origin.INTRODUCED):
        return VerdictClass.PRECISION
    if culprit.kind in ("backward", "parameter_grad"):
        return VerdictClass.GRADIENT
    if row.value.role is Role.INPUT:
        return VerdictClass.ARGUMENT
    if row.status in (Status.SHAPE, Status.ADDED, Status.MISSING):
        return VerdictClass.CALL
    # Modules, custom functions of autograd and compiled ones hold code of their own, an API is one
    # kernel.
    parsed = parsed_name(culprit)
    holds_code = parsed.is_module or is_custom_function(parsed) or parsed.prefix == COMPILED
    if not holds_code:
        is_proved = row.cause is not Cause.UNPROVED_INPUT
        return VerdictClass.KERNEL if is_proved else VerdictClass.UNEXPLAINED
    draws = operator_named(parsed.class_name or "").draws_random and not any(
        facts is not None and draws_nothing(facts.settings, parsed.path)
        for facts in culprit.comparison.facts
    )
    return VerdictClass.RANDOM if draws else VerdictClass.UNEXPLAINED


def _called(culprit: Culprit, known: VerdictClass) -> VerdictClass:
    """Return the class that a cause has of its call."""
    row = culprit.row
    if known is VerdictClass.ARGUMENT and culprit.kind == "backward" and row.holds_tensor:
        return VerdictClass.GRADIENT
    is_limit = known in _OF_CALLS and suggests(row.pair.name, Hint.LIMITS_GRADIENTS)
    return VerdictClass.CLIPPING if is_limit else known


def class_and_words(culprit: Culprit) -> tuple[VerdictClass, str]:
    """Return the class of the cause that a culprit is, and the cause in words.

    A module that computes another result of the same is told by what it was made with.
    """
    row, found = culprit.row, class_of(culprit)
    words = culprit_words(culprit)
    if found in MAY_BE_INSIDE:
        inside = lone_call_inside(culprit)
        if inside is not None:
            pair, lone = inside
            is_sent = is_communication(culprit.comparison.parsed(pair))
            return (
                VerdictClass.COMMUNICATION if is_sent else VerdictClass.CALL
            ), f"{lone}: {words}"
    if found in (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED):
        # The result of one side may be a share that is still to be summed.
        sent = lone_communication(culprit)
        if sent is not None:
            lone = lone_words(culprit.comparison, sent)
            return VerdictClass.COMMUNICATION, f"{lone}: {words}"
    scaled = scaled_words(culprit)
    if scaled:
        return VerdictClass.GRADIENT, f"{scaled}; {words}"
    extra = extra_pass(culprit.comparison) if found is VerdictClass.GRADIENT else None
    if extra is not None:
        return VerdictClass.CALL, f"{extra}; {words}"
    if row.cause is Cause.USED_CALL and found is VerdictClass.CALL:
        moved = moved_call(culprit.comparison, row.pair) or _left_out(culprit)
        if moved is not None:
            return moved
    is_fed = row.cause is Cause.OTHER_VALUE
    again = _called_again(culprit) if found is VerdictClass.ARGUMENT and not is_fed else None
    if again is not None:
        lone = lone_words(culprit.comparison, again)
        return VerdictClass.CALL, f"{lone}, step {culprit.comparison.step}; {words}"
    is_called = found in _OF_CALLS
    if is_called and any(belongs_to_update(culprit.comparison, p) for p in _together(culprit)):
        step = culprit.comparison.step
        return (
            VerdictClass.UPDATE,
            f"written otherwise after the backward pass of step {step}: {words}",
        )
    made = _made_batch(culprit, found)
    if made:
        return VerdictClass.DATA, f"{made}: {words}"
    return (
        _crossed(culprit, found, words)
        or _computed(culprit, found)
        or by_settings(culprit, found, words)
    )


def _crossed(culprit: Culprit, found: VerdictClass, words: str) -> tuple[VerdictClass, str] | None:
    """Return that an argument is that of another line's call, which comes first on one side."""
    row = culprit.row
    is_open = found is VerdictClass.ARGUMENT and row.is_argument and row.pair.is_matched
    crossed = crossed_lines(culprit.comparison, row.pair) if is_open else ""
    return (VerdictClass.ORDER, f"{crossed}; {words}") if crossed else None


def _together(culprit: Culprit) -> list[OperationPair]:
    """Return a culprit's call, and what one side alone calls behind it: a write, say."""
    pair, comparison = culprit.row.pair, culprit.comparison
    if pair.is_matched or culprit.kind != "forward" or pair.position < comparison.end_of_backward:
        return [pair]
    return [pair, *lone_run(comparison, pair.position, is_target=pair.reference is None)]


def _made_batch(culprit: Culprit, found: VerdictClass) -> str:
    """Return how a call makes other data of what the program loads, in words; empty if not."""
    if found in _OF_CALLS and (makes_data(culprit) or _is_of_loader(culprit)):
        return other_samples(culprit) or "the batch is made otherwise"
    is_order = found is VerdictClass.RANDOM and orders_samples(culprit)
    return "the samples come in another order" if is_order else ""


def _computed(culprit: Culprit, found: VerdictClass) -> tuple[VerdictClass, str] | None:
    """Return the call of one side alone from which another number may follow; None if none does."""
    before = call_behind_number(culprit) if found is VerdictClass.ARGUMENT else None
    if before is None:
        return None
    where = f"{named_slot(culprit)} of {culprit_place(culprit)}"
    number = f"{where}: {culprit.row.finding}, which the program computes"
    verdict = VerdictClass.CALL if computes_alone(culprit) else found
    return verdict, f"{culprit_words(before)}; {number}"


def _left_out(culprit: Culprit) -> tuple[VerdictClass, str] | None:
    """Return that a call of both sides is not given what one side alone makes."""
    row = left_out_input(culprit.comparison, culprit.row.pair)
    if row is None or culprit.kind != "forward":
        return None
    place = Place.of(culprit.comparison, row.pair)
    own, other = ("target", "reference") if row.status is Status.ADDED else ("reference", "target")
    words = (
        f"{row.value.slot} of {place.words}, step {place.step}, is given in the {own}, and left "
        f"out in the {other}"
    )
    return VerdictClass.ARGUMENT, words


def unrecorded_call(culprit: Culprit, found: VerdictClass) -> OutlineDifference | None:
    """Return the call without a record by which a result or a gradient of a module differs.

    The training flag chooses calls, too: whether it does is told before.

    Args:
        culprit: shows the difference.
        found: its class.
    """
    comparison, row = culprit.comparison, culprit.row
    is_extra = bool(comparison.parsed(row.pair).backward_pass)
    if found is VerdictClass.GRADIENT and (row.pair.is_matched or is_extra):
        facts = comparison.facts
        made = difference_of_gradients(*facts)
        if made is None and not _feeds_back(*facts):
            made = difference_of_labels(*facts)
        return made or (_call_around(culprit) if row.pair.is_matched else None)
    if not row.pair.is_matched:
        return difference_of_cuts(*comparison.facts) if culprit.kind == "backward" else None
    names = row.pair.target, row.pair.reference
    # A module's own code is blamed for the input of a part where nothing tells what it returns.
    if row.cause in (Cause.CHANGED_BETWEEN, Cause.CHANGED_STATE, Cause.SURROUNDING_CODE):
        return difference_before(comparison.sides, names)
    is_result = culprit.kind == "forward" and row.value.role is Role.OUTPUT
    if not is_result or found not in _OF_OWN_CODE:
        return None
    inside = difference_inside(comparison.sides, names)
    if row.cause is Cause.OWN_CODE:  # it makes the input of a part
        pairs = (p for p in comparison.pairs if row.subject.startswith(f"{p.name}."))
        part = next(pairs, row.pair)
        if inside is None or not inside.is_of_flow:
            inside = difference_before(comparison.sides, (part.target, part.reference))
        parts = other_parts(comparison, row.pair, part)
        is_order = parts is not None and parts.verdict is VerdictClass.ORDER
        is_open = inside is None or (is_order and inside.verdict is VerdictClass.ORDER)
        return parts or inside if is_open else inside
    if inside is not None and inside.source is None and inside.verdict is VerdictClass.CALL:
        inside = other_parts(comparison, row.pair) or inside  # it is made in a part
    # What a part returns is no loss: nothing that it multiplies by is a factor of one.
    is_number = math.prod(row.value.shape or ()) == 1
    loss = loss_of(comparison) if inside is not None and is_number else None
    if inside is not None and loss is not None and loss.is_scaled_by(inside.ratio):
        words = f"{loss.multiple(is_divided=inside.is_division)}; {inside.words}"
        return replace(inside, verdict=VerdictClass.GRADIENT, words=words)
    return inside


def _call_around(culprit: Culprit) -> OutlineDifference | None:
    """Return the call without a record by which a module around gives another gradient back.

    Asked where nothing recorded says why the gradient that comes in, or a parameter's, differs.
    """
    comparison, pair = culprit.comparison, culprit.row.pair
    if culprit.kind == "parameter_grad":  # the module's own code makes something of it
        return difference_of_module(*comparison.facts, culprit.module)
    if culprit.row.cause is not Cause.UNEXPLAINED_GRADIENT or culprit.kind != "backward":
        return None
    names = (pair.target, pair.reference)
    forward = [
        forward_name(side.parsed(name or ""))
        for side, name in zip(comparison.sides, names, strict=True)
    ]
    return difference_around(comparison.sides, forward)


def is_without_reason(culprit: Culprit) -> bool:
    """Return whether a call computes another result from inputs and arguments that agree."""
    return class_of(culprit) in (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED)


def moment_of(culprit: Culprit) -> Moment:
    """Return the moment of a training step at which a culprit takes effect."""
    is_asked_again = culprit.row.pair.position >= culprit.comparison.asked_again
    return Moment.ASKED_AGAIN if is_asked_again else _moment_of(culprit)


def _moment_of(culprit: Culprit) -> Moment:
    if culprit.row.cause in (Cause.CHANGED_STATE, Cause.OTHER_RANKS_STATE):
        # An optimizer that calls the model, say, changed it.
        return Moment.UPDATE if culprit.kind == "parameter" else Moment.FORWARD
    if culprit.kind == "parameter" or culprit.row.cause is Cause.PARAMETER:
        return Moment.PARAMETERS
    parsed = parsed_name(culprit)
    if parsed.kind is RecordKind.PARAMETERS_GRAD_REDUCED:
        # It is read when an optimizer steps: on one side alone, perhaps.
        return Moment.REDUCE if culprit.row.pair.is_matched else Moment.UPDATE
    if culprit.row.cause in (Cause.WRITTEN_GRADIENT, Cause.ACCUMULATED):
        return Moment.REDUCE
    if culprit.kind in ("backward", "parameter_grad"):
        return Moment.BACKWARD
    if class_of(culprit) is VerdictClass.CLIPPING:
        return Moment.CLIP
    for frame in _frames(culprit):
        if _CLIP_FILE.search(frame.file):
            return Moment.CLIP
        if frame.is_of_scaler:
            return Moment.LOSS if frame.function == "scale" else Moment.REDUCE
        if frame.function in _USERS_CODE:
            break  # an optimizer was handed a closure
        if frame.function == "step" and frame.is_of_optimizer:
            return Moment.UPDATE
    return Moment.FORWARD


def may_be_random(culprit: Culprit) -> bool:
    """Return whether random numbers explain a culprit."""
    if class_of(culprit) is VerdictClass.RANDOM:
        return True
    return is_without_reason(culprit) and (
        parsed_name(culprit).is_module or suggests(culprit.row.pair.name, Hint.DRAWS_RANDOM)
    )


def _feeds_back(target: Facts | None, reference: Facts | None) -> bool:
    """Return whether batches differ after the first: what is made of gradients is no label."""
    data = zip(target.data if target else (), reference.data if reference else (), strict=False)
    apart = [own.micro for own, other in data if key_of(own) != key_of(other)]
    return min(apart, default=0) > 0


def may_follow_host(culprit: Culprit) -> bool:
    """Return whether numbers that the program draws by itself explain a culprit.

    Which calls are made may hang on them, what a call makes a tensor of (`torch.tensor`), a number
    that no person writes, and where it takes or puts elements: a crop, a mask. Where calls have no
    records, what a module does between its parts.
    """
    row = culprit.row
    if row.cause in _BETWEEN_PARTS and culprit.comparison.has_modules_only:
        return True
    if not row.pair.is_matched or row.cause is Cause.UNPROVED_INPUT or gives_computed(culprit):
        return True
    operator = culprit.comparison.side_of(row.pair).operator(row.pair.name)
    is_place = row.cause is Cause.ARGUMENT and operator.family is Family.MOVING
    return is_place and all(value.type in ("int", "slice") for value in row.values)


def is_within(module: str, modules: Sequence[str]) -> bool:
    """Return whether a module is within one of some, or not known, as at level L1; none are all."""
    found = (module == path or module.startswith(f"{path}.") for path in modules)
    return not (modules and module) or any(found)


def is_ruled_by_mode(culprit: Culprit, modules: Sequence[str]) -> bool:
    """Return whether training flags of modules explain a culprit.

    Args:
        culprit: the first culprit.
        modules: paths of the modules whose flag differs; empty for all.
    """
    if not is_within(culprit.module, modules) or moment_of(culprit) is not Moment.FORWARD:
        return False
    row = culprit.row
    if not row.pair.is_matched or any(isinstance(value.value, bool) for value in row.values):
        return True
    # Which calls are made between modules may hang on the flag.
    if row.cause is Cause.CHANGED_BETWEEN and culprit.comparison.has_modules_only:
        return True
    is_named = suggests(row.pair.name, Hint.FOLLOWS_MODE)
    if is_named or not parsed_name(culprit).is_module:
        return is_named
    # Its own code may ask for the flag, unless what it was made with tells the difference.
    return is_without_reason(culprit) and class_and_words(culprit)[0] is not VerdictClass.ARGUMENT


def _called_again(culprit: Culprit) -> OperationPair | None:
    """Return the first further call by which one side makes what the other makes at once.

    An argument that it alone has, an index say, is that of one of several calls then, which a line
    makes in a loop.
    """
    comparison, row = culprit.comparison, culprit.row
    if isinstance(row, Matched):
        return None
    is_target = not isinstance(row, Missing)
    own = row.pair.target if is_target else row.pair.reference
    side = comparison.side(is_target=is_target)
    line = side.source_line(own or "")
    run = lone_run(comparison, row.pair.position + 1, is_target=is_target) if line else []
    run = [each for each in run if side.source_line(each.name) == line]
    api = comparison.parsed(row.pair).base
    return run[0] if any(comparison.parsed(each).base == api for each in run) else None


def _is_of_loader(culprit: Culprit) -> bool:
    """Return whether a lone call puts a batch together, which the other side's program has not to.

    That is a call of the framework's own code which loads data.
    """
    is_lone = not culprit.row.pair.is_matched and culprit.kind == "forward"
    return is_lone and any(LOADER_FILE.search(frame.file) for frame in _frames(culprit))


def _frames(culprit: Culprit) -> list[Frame]:
    side, record = culprit.comparison.side_of(culprit.row.pair), culprit.row.pair.name
    return [frame for text in side.view.frames(record) if (frame := parse_frame(text)) is not None]
