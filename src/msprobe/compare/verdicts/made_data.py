# SPDX-License-Identifier: Apache-2.0
"""Calls by which the program itself takes the batch out of what it loads.

Samples that are cut out, shifted or overwritten are other data, whichever call did it. A call that
computes something of them, or brings them into another form, is told as what it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import OperationPair
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.training.data_words import samples_of, tensor_words
from msprobe.compare.training.outlined_calls import COPIES
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.program_flow import Content, ProgramFlow, content_of
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.dump.values import Role

_TAKES: Final = frozenset(
    {"getitem", "index_select", "narrow", "select", "slice", "masked_select", "take", "gather"}
)
_OVERWRITES: Final = "setitem"
_MAKES: Final = _TAKES | {_OVERWRITES}
_LOOKS_UP: Final = "embedding"
_PERMUTES: Final = "randperm"
# They make a tensor of lists of numbers: tokens, say.
_OF_LISTS: Final = frozenset(("tensor", "as_tensor", "asarray"))


def makes_data(culprit: Culprit) -> bool:
    """Return whether a culprit is a call that takes the batch out of what the program was given.

    Nothing it takes in comes from a model or is trained, and what it makes gets as it is into the
    model or its loss, to a call that both sides make, and not as another operand of it.
    """
    row = culprit.row
    side, name = culprit.comparison.side_of(row.pair), row.pair.name
    if culprit.kind != "forward" or side.parsed(name).is_module:
        return False
    operation = side.operator(name).name
    if row.cause is Cause.OTHER_VALUE:
        return _is_given_another_part(culprit)
    is_changed = row.cause is Cause.CHANGED_BETWEEN
    is_resized = not row.pair.is_matched and bool(other_samples(culprit))
    if operation in _OF_LISTS and row.cause is Cause.ARGUMENT:
        return _makes_input(culprit) or _fills_input(culprit)
    if not (is_changed or is_resized) and not (
        (operation in _TAKES and (row.cause is Cause.ARGUMENT or not row.pair.is_matched))
        or (operation == _OVERWRITES and not row.pair.is_matched)
    ):
        return False
    flow = ProgramFlow(side)
    # Of one side: where calls are left out, others have their names on the other.
    is_target = row.pair.target is not None
    names = ((p.target if is_target else p.reference, p) for p in culprit.comparison.pairs)
    pairs = {record: pair for record, pair in names if record is not None}
    # What computes something of its result by one side alone is a call too many.
    computing = {
        each
        for each, pair in pairs.items()
        if not pair.is_matched and side.operator(each).name not in _MAKES
    }
    if not row.pair.is_matched and _is_put_back(flow, side, name, computing):
        return True
    users = [pairs[user] for user in flow.given_to(name, computing)]
    if not flow.is_of_data(name):
        return False
    if not users and row.cause is Cause.ARGUMENT:
        return _gets_other_data(culprit.comparison)
    return any(
        user.is_matched and not _is_given_the_same(culprit.comparison, user) for user in users
    )


def orders_samples(culprit: Culprit) -> bool:
    """Return whether a culprit draws the order of all samples, of which each batch is a part."""
    comparison, row = culprit.comparison, culprit.row
    side, name = comparison.side_of(row.pair), row.pair.name
    if side.operator(name).name != _PERMUTES or any(side.around(name)):
        return False
    given = (each.shape for facts in comparison.facts if facts for each in facts.data)
    batch = max((shape[0] for shape in given if shape), default=math.inf)
    return (row.value.shape or (0,))[0] > batch and _gets_other_data(comparison)


def _is_put_back(flow: ProgramFlow, side: Side, name: str, computing: Container[str]) -> bool:
    """Return whether what one side alone computes of a call's result overwrites data."""
    waiting, seen = [name], {name}
    while waiting:
        call = waiting.pop()
        if _writes(side, call):
            return flow.is_of_data(call)
        found = {each for each in flow.users_of(call) if each in computing or _writes(side, each)}
        waiting += found - seen
        seen |= found
    return False


def _writes(side: Side, name: str) -> bool:
    return side.operator(name).name == _OVERWRITES


def _is_given_another_part(culprit: Culprit) -> bool:
    """Return whether a call is given another part of the data, where the model gets other data."""
    comparison, row = culprit.comparison, culprit.row
    names = row.pair.target, row.pair.reference
    flows = [ProgramFlow(side) for side in comparison.sides]
    for side, flow, name, value in zip(comparison.sides, flows, names, row.values, strict=True):
        maker = flow.maker(value, name or "")
        if maker is None or side.operator(maker).name not in _TAKES | COPIES:
            return False
    return flows[0].is_of_data(row.pair.name) and _gets_other_data(comparison)


def _gets_other_data(comparison: RankComparison) -> bool:
    """Return whether models are given other data in a step.

    No call needs to lead to them: a program may read from a tensor which samples it takes.
    """
    given = [
        Counter(content_of(each) for each in (facts.data if facts else ()))
        for facts in comparison.facts
    ]
    return given[0] != given[1]


def _makes_input(culprit: Culprit) -> bool:
    """Return whether what a call makes is given to a model, as it is."""
    comparison, pair = culprit.comparison, culprit.row.pair
    facts = comparison.facts[pair.target is None]
    given = set[Content]() if facts is None else {content_of(each) for each in facts.data}
    values = comparison.side_of(pair).values(pair.name)
    return any(
        each.role is Role.OUTPUT and each.is_tensor and content_of(each) in given for each in values
    )


def _fills_input(culprit: Culprit) -> bool:
    """Return whether a list of whole numbers is copied into what a model is given, as tokens are.

    A model takes it then, or no call is known to, and models get other data.
    """
    row, comparison = culprit.row, culprit.comparison
    is_token = type(row.value.value) is int and "." in row.value.argument
    if not is_token or not row.pair.is_matched or not _gets_other_data(comparison):
        return False
    side = comparison.target
    users = [*ProgramFlow(side).given_to(row.pair.name, ())]
    return not users or any(
        side.is_model_call(each) or side.operator(each).name == _LOOKS_UP for each in users
    )


def _is_given_the_same(comparison: RankComparison, pair: OperationPair) -> bool:
    """Return whether both sides give a call the same tensors, at other places perhaps."""
    given = [
        Counter(
            fingerprint(each)
            for each in side.values(name or "")
            if each.role is Role.INPUT and each.is_tensor
        )
        for side, name in zip(comparison.sides, (pair.target, pair.reference), strict=True)
    ]
    return given[0] == given[1] and None not in given[0]


def other_samples(culprit: Culprit) -> str:
    """Return that the batches of both sides hold other numbers of samples; empty if not."""
    target, reference = culprit.comparison.facts
    if target is None or reference is None:
        return ""
    others = {each.where: each for each in reference.data if not each.micro}
    both = [
        (each, others[each.where])
        for each in target.data
        if not each.micro and each.where in others
    ]
    samples = samples_of(both)
    for each, other in both:
        if each.shape[:1] != other.shape[:1]:
            words = tensor_words(each, other, samples=samples)
            return f"the batch of step {culprit.comparison.step} differs: {words}"
    return ""
