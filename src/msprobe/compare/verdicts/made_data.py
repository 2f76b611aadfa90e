# SPDX-License-Identifier: Apache-2.0
"""Calls by which the program itself makes the batch, between what it loads and its model.

Such a call is no part of what is trained: samples cut out, shifted, put in another order or given
other labels are other data, whichever call did it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from msprobe.compare.sides import Side
from msprobe.compare.verdicts.data_flow import Fingerprint, fingerprint
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import RecordKind
from msprobe.dump.stack_frames import parse_frame
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.operator import Family

_MAY_MAKE_DATA: Final = (VerdictClass.CALL, VerdictClass.ARGUMENT)
# Frames of torch's module calls, by which level L1 shows what a model calls.
_MODEL_FRAMES: Final = ("_call_impl", "_wrapped_call_impl", "forward", "construct")
_OF_HOST: Final = ("tensor", "as_tensor", "from_numpy")

Key = int | Fingerprint


def makes_data(culprit: Culprit, found: VerdictClass) -> bool:
    """Return whether a culprit is a call that makes the batch, of what the program was given.

    It moves elements, or reckons with whole numbers that are no mask; nothing it takes in comes
    from a model or is trained, and what it makes gets into the model or its loss.

    Args:
        culprit: the first culprit.
        found: its class.
    """
    if found not in _MAY_MAKE_DATA or culprit.kind != "forward":
        return False
    side, name = culprit.comparison.side_of(culprit.row.pair), culprit.row.pair.name
    if side.parsed(name).is_module:
        return False
    flow = _Flow(side)
    taken = flow.tensors(name)
    # Numbers that the program makes of nothing are samples where they are whole, and several.
    is_moved = bool(taken) and side.operator(name).family is Family.MOVING
    counted = taken or [each for each in flow.tensors(name, Role.OUTPUT) if each.shape]
    is_counted = bool(counted) and all(map(_is_whole, counted))
    if not (is_moved or is_counted) or not flow.is_of_data(name):
        return False
    return any(is_moved or not _is_mask(value) for value in flow.given_by(name))


class _Flow:
    """What the calls of one side outside of its model make of each other's results."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._order = {name: place for place, name in enumerate(side.names)}

    def tensors(self, name: str, role: Role = Role.INPUT) -> list[Value]:
        """Return the tensors that a call takes in, or returns."""
        return [each for each in self._side.values(name) if each.role is role and each.is_tensor]

    def is_of_data(self, name: str) -> bool:
        """Return whether a call takes data, and data alone: drawn, made of lists, or loaded."""
        waiting, seen = [name], {name}
        has_source = False
        while waiting:
            call = waiting.pop()
            if not self._is_outside(call) or any(map(_is_trained, self._side.values(call))):
                return False
            taken = self.tensors(call)
            operator = self._side.operator(call)
            has_source |= not taken and (operator.draws_random or operator.name in _OF_HOST)
            for value in taken:
                maker = self._maker(value, call)
                has_source |= maker is None
                if maker is not None and maker not in seen:
                    seen.add(maker)
                    waiting.append(maker)
        return has_source

    def given_by(self, name: str) -> Iterator[Value]:
        """Yield what a model, or a call with trained values, takes of a call's results."""
        waiting, seen = [name], {name}
        while waiting:
            call = waiting.pop()
            for made in self.tensors(call, Role.OUTPUT):
                for user, value in self._users.get(_key(made), ()):
                    if self._order[user] <= self._order[call] or value.requires_grad:
                        continue
                    # A model takes it, or the loss.
                    if not self._is_outside(user) or any(map(_is_trained, self.tensors(user))):
                        yield value
                    elif user not in seen:
                        seen.add(user)
                        waiting.append(user)

    def _is_outside(self, name: str) -> bool:
        """Return whether a call is made by the program's own code, not by that of a model."""
        side = self._side
        parsed = side.parsed(name)
        if parsed.is_module or parsed.kind is not RecordKind.FORWARD or side.module(name):
            return False
        if any(side.parsed(around).is_module for around in side.around(name)):
            return False
        frames = (parse_frame(text) for text in side.view.frames(name))
        return not any(frame is not None and frame.function in _MODEL_FRAMES for frame in frames)

    def _maker(self, value: Value, user: str) -> str | None:
        before = [name for name in self._makers.get(_key(value), ()) if name != user]
        end = self._order[user]
        return next((name for name in reversed(before) if self._order[name] < end), None)

    @cached_property
    def _makers(self) -> dict[Key, list[str]]:
        found: dict[Key, list[str]] = {}
        for name in self._forward:
            for value in self.tensors(name, Role.OUTPUT):
                if (key := _key(value)) is not None:
                    found.setdefault(key, []).append(name)
        return found

    @cached_property
    def _users(self) -> dict[Key, list[tuple[str, Value]]]:
        found: dict[Key, list[tuple[str, Value]]] = {}
        for name in self._forward:
            for value in self.tensors(name):
                if (key := _key(value)) is not None:
                    found.setdefault(key, []).append((name, value))
        return found

    @cached_property
    def _forward(self) -> Sequence[str]:
        side = self._side
        return [name for name in side.names if side.parsed(name).kind is RecordKind.FORWARD]


def _key(value: Value) -> Key:
    return fingerprint(value) if value.value_id is None else value.value_id


def _is_trained(value: Value) -> bool:
    return bool(value.requires_grad) or value.role is Role.PARAMETER


def _is_whole(value: Value) -> bool:
    return not epsilon_of(value.dtype)


def _is_mask(value: Value) -> bool:
    """Return whether a tensor holds truth values, of whatever type."""
    return {value.max, value.min} <= {0, 1}
