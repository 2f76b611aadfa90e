# SPDX-License-Identifier: Apache-2.0
"""Calls by which the program itself takes the batch out of what it loads.

Samples that are cut out, shifted or overwritten are other data, whichever call did it. A call that
computes something of them, or brings them into another form, is told as what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.sides import Side
from msprobe.compare.training.data import tensor_words
from msprobe.compare.verdicts.data_flow import Fingerprint, fingerprint
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.dump.record_names import RecordKind
from msprobe.dump.stack_frames import parse_frame
from msprobe.dump.values import Role, Value

_TAKES: Final = frozenset(
    {"getitem", "index_select", "narrow", "select", "slice", "masked_select", "take", "gather"}
)
_OVERWRITES: Final = "setitem"
# Frames of torch's module calls, by which level L1 shows what a model calls.
_MODEL_FRAMES: Final = ("_call_impl", "_wrapped_call_impl", "forward", "construct")
_OF_LISTS: Final = ("tensor", "as_tensor", "from_numpy")

Key = int | Fingerprint
_Calls = dict[Key, list[tuple[str, Value]]]


def makes_data(culprit: Culprit) -> bool:
    """Return whether a culprit is a call that takes the batch out of what the program was given.

    Nothing it takes in comes from a model or is trained, and what it makes gets into the model or
    its loss, to a call that both sides make.
    """
    row = culprit.row
    side, name = culprit.comparison.side_of(row.pair), row.pair.name
    if culprit.kind != "forward" or side.parsed(name).is_module:
        return False
    operation = side.operator(name).name
    is_changed = row.cause is Cause.CHANGED_BETWEEN
    is_resized = not row.pair.is_matched and bool(other_samples(culprit))
    if not (is_changed or is_resized) and not (
        (operation in _TAKES and (row.cause is Cause.ARGUMENT or not row.pair.is_matched))
        or (operation == _OVERWRITES and not row.pair.is_matched)
    ):
        return False
    flow = _Flow(side)
    alone = {
        record
        for pair in culprit.comparison.pairs
        if not pair.is_matched
        for record in (pair.target, pair.reference)
    }
    return flow.is_of_data(name) and any(user not in alone for user in flow.given_to(name))


def other_samples(culprit: Culprit) -> str:
    """Return that the batches of both sides hold other numbers of samples; empty if not."""
    target, reference = culprit.comparison.facts
    if target is None or reference is None:
        return ""
    others = {each.where: each for each in reference.data if not each.micro}
    for each in target.data:
        other = others.get(each.where) if not each.micro else None
        if other is not None and each.shape[:1] != other.shape[:1]:
            return (
                f"the batch of step {culprit.comparison.step} differs: {tensor_words(each, other)}"
            )
    return ""


class _Flow:
    """What the calls of one side outside of its model make of each other's results."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._order = {name: place for place, name in enumerate(side.names)}

    def is_of_data(self, name: str) -> bool:
        """Return whether a call takes data, and data alone: drawn, made of lists, or loaded."""
        waiting, seen = [name], {name}
        has_source = False
        while waiting:
            call = waiting.pop()
            if not self._is_outside(call) or any(map(_is_trained, self._side.values(call))):
                return False
            taken = self._tensors(call)
            operator = self._side.operator(call)
            has_source |= not taken and (operator.draws_random or operator.name in _OF_LISTS)
            for value in taken:
                maker = self._maker(value, call)
                has_source |= maker is None
                if maker is not None and maker not in seen:
                    seen.add(maker)
                    waiting.append(maker)
        return has_source

    def given_to(self, name: str) -> Iterator[str]:
        """Yield the calls of a model, and others with trained values, that take its results."""
        waiting, seen = [name], {name}
        while waiting:
            call = waiting.pop()
            for made in self._tensors(call, Role.OUTPUT):
                for user, value in self._users.get(_key(made), ()):
                    if self._order[user] <= self._order[call] or value.requires_grad:
                        continue
                    # A model takes it, or the loss.
                    if not self._is_outside(user) or any(map(_is_trained, self._tensors(user))):
                        yield user
                    elif user not in seen:
                        seen.add(user)
                        waiting.append(user)

    def _tensors(self, name: str, role: Role = Role.INPUT) -> list[Value]:
        return [each for each in self._side.values(name) if each.role is role and each.is_tensor]

    def _is_outside(self, name: str) -> bool:
        """Return whether a call is made by the program's own code, not by that of a model."""
        side = self._side
        parsed = side.parsed(name)
        if parsed.is_module or parsed.kind is not RecordKind.FORWARD:
            return False
        if any(side.parsed(around).is_module for around in side.around(name)):
            return False
        frames = (parse_frame(text) for text in side.view.frames(name))
        return not any(frame is not None and frame.function in _MODEL_FRAMES for frame in frames)

    def _maker(self, value: Value, user: str) -> str | None:
        before = [name for name, _ in self._makers.get(_key(value), ()) if name != user]
        end = self._order[user]
        return next((name for name in reversed(before) if self._order[name] < end), None)

    @cached_property
    def _makers(self) -> _Calls:
        return self._calls(Role.OUTPUT)

    @cached_property
    def _users(self) -> _Calls:
        return self._calls(Role.INPUT)

    def _calls(self, role: Role) -> _Calls:
        found: _Calls = {}
        for name in self._side.names:
            if self._side.parsed(name).kind is RecordKind.FORWARD:
                for value in self._tensors(name, role):
                    if (key := _key(value)) is not None:
                        found.setdefault(key, []).append((name, value))
        return found


def _key(value: Value) -> Key:
    return fingerprint(value) if value.value_id is None else value.value_id


def _is_trained(value: Value) -> bool:
    return bool(value.requires_grad) or value.role is Role.PARAMETER
