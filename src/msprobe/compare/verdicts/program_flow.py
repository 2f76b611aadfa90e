# SPDX-License-Identifier: Apache-2.0
"""`ProgramFlow`: what calls of one side, outside of its models, make of each other's results."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator
from functools import cached_property
from typing import Final

from msprobe.compare.sides import Side
from msprobe.compare.verdicts.data_flow import Fingerprint, fingerprint
from msprobe.dump.facts import Data
from msprobe.dump.record_names import RecordKind
from msprobe.dump.stack_frames import parse_frame
from msprobe.dump.values import Role, Value

# Frames of torch's module calls, by which level L1 shows what a model calls.
_MODEL_FRAMES: Final = ("_call_impl", "_wrapped_call_impl", "forward", "construct")
_OF_LISTS: Final = ("tensor", "as_tensor", "from_numpy")

Content = Hashable
_Calls = dict[int | Fingerprint, list[tuple[str, Value]]]


class ProgramFlow:
    """Follows values of one side from call to call, by their identities."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._order = {name: place for place, name in enumerate(side.names)}

    def is_of_data(self, name: str) -> bool:
        """Return whether a call takes data, and data alone: drawn, made of lists, or loaded."""
        has_source = False
        for call in self._back_from(name):
            if self.is_result(call):
                return False
            taken = self.tensors(call)
            if any(self._is_detached(value, call) for value in taken):
                return False
            operator = self._side.operator(call)
            has_source |= not taken and (operator.draws_random or operator.name in _OF_LISTS)
            has_source |= any(self.maker(value, call) is None for value in taken)
        return has_source

    def _is_detached(self, value: Value, user: str) -> bool:
        """Return whether no call made a tensor, and a model before has made what it holds."""
        if value.max == value.min or self.maker(value, user) is not None:
            return False
        made = self._made.get(content_of(value), ())
        return any(self._order[each] < self._order[user] and self.is_result(each) for each in made)

    def given_to(self, name: str, besides: Container[str]) -> Iterator[str]:
        """Yield the calls of a model, and others with trained values, that take its results.

        Args:
            name: a call.
            besides: other calls, whose results are left out.
        """
        waiting, seen = [name], {name}
        while waiting:
            call = waiting.pop()
            for made in self.tensors(call, Role.OUTPUT):
                for user, value in self._users.get(_key(made), ()):
                    if self._order[user] <= self._order[call] or value.requires_grad:
                        continue
                    # A model takes it, or the loss.
                    if self.is_result(user):
                        yield user
                    elif user not in seen and user not in besides:
                        seen.add(user)
                        waiting.append(user)

    def users_of(self, name: str) -> Iterator[str]:
        """Yield the calls that take a call's results, behind it."""
        for made in self.tensors(name, Role.OUTPUT):
            for user, _ in self._users.get(_key(made), ()):
                if self._order[user] > self._order[name]:
                    yield user

    def makers_of(self, data: Data) -> Iterator[str]:
        """Yield the calls that an input of a model was made by, the last one first.

        The model's own are not among them, nor those that make nothing else of what they are given.
        """
        # The same values in another order may be another call's.
        for content in (_in_order(data), content_of(data)):
            taken = self._taken.get(content, len(self._order))
            for name in self._made.get(content, ()):
                is_own = data.record in (name, *self._side.around(name))
                if self._order[name] < taken and not is_own:
                    yield from self._back_from(name)
                    return

    def is_result(self, call: str) -> bool:
        """Return whether a call is a model's, or is given what models made or train."""
        given = (each for each in self._side.values(call) if each.role is not Role.OUTPUT)
        return not self._is_outside(call) or any(map(_is_trained, given))

    def entering(self, calls: Iterable[str]) -> dict[Content, Value]:
        """Return what enters from outside by way of some calls: tensors that no call made.

        A sample that is taken out of a data set enters, not the data set.
        """
        found: dict[Content, Value] = {}
        for call in calls:
            if self.is_result(call):
                continue
            taken = self.tensors(call)
            is_made = [self.maker(value, call) is not None for value in taken]
            if self._picks_sample(call) and not any(is_made):
                taken, is_made = self.tensors(call, Role.OUTPUT), [False]
            for value, made in zip(taken, is_made, strict=False):
                if not made and not _is_trained(value):
                    found[content_of(value)] = value
        return found

    def holds(self, content: Content) -> bool:
        """Return whether any call takes or makes such a tensor."""
        return content in self._taken or content in self._made

    def tensors(self, name: str, role: Role = Role.INPUT) -> list[Value]:
        """Return the tensors that a call takes, or makes."""
        return [each for each in self._side.values(name) if each.role is role and each.is_tensor]

    def _back_from(self, name: str) -> Iterator[str]:
        """Yield a call and those that made what it takes, as far as a model makes none of it."""
        waiting, seen = [name], {name}
        while waiting:
            call = waiting.pop()
            yield call
            taken = () if self.is_result(call) else self.tensors(call)
            makers = {maker for value in taken if (maker := self.maker(value, call)) is not None}
            waiting += makers - seen
            seen |= makers

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

    def _picks_sample(self, name: str) -> bool:
        values = self._side.values(name)
        is_numbered = any(each.slot == "input.1" and each.type == "int" for each in values)
        return is_numbered and self._side.parsed(name).path == "__getitem__"

    def maker(self, value: Value, user: str) -> str | None:
        """Return the last call before another one that makes what it is given, if any does."""
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
        for name, value in self._all(role):
            if (key := _key(value)) is not None:
                found.setdefault(key, []).append((name, value))
        return found

    @cached_property
    def _made(self) -> dict[Content, list[str]]:
        found: dict[Content, list[str]] = {}
        for name, value in self._all(Role.OUTPUT):
            for content in {content_of(value), _in_order(value)}:
                found.setdefault(content, []).append(name)
        return found

    @cached_property
    def _taken(self) -> dict[Content, int]:
        """Content → the place of the first call that is given it."""
        found: dict[Content, int] = {}
        for name, value in self._all(Role.INPUT):
            place = self._order[name]
            for content in {content_of(value), _in_order(value)}:
                found[content] = min(place, found.get(content, place))
        return found

    def _all(self, role: Role) -> Iterator[tuple[str, Value]]:
        for name in self._side.names:
            if self._side.parsed(name).kind is RecordKind.FORWARD:
                for value in self.tensors(name, role):
                    yield name, value


def content_of(value: Data | Value) -> Content:
    """Return what equal tensors share, as facts and records have it."""
    return tuple(value.shape or ()), value.max, value.min, value.mean, value.norm


def _in_order(value: Data | Value) -> Content:
    """Return the same of tensors that hold it in one order; of others where that is not known."""
    content = content_of(value)
    return (content, *value.projections) if value.projections else content


def _key(value: Value) -> int | Fingerprint:
    return fingerprint(value) if value.value_id is None else value.value_id


def _is_trained(value: Value) -> bool:
    return bool(value.requires_grad) or value.role is Role.PARAMETER
