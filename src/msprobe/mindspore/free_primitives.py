# SPDX-License-Identifier: Apache-2.0
"""Observe the primitives that no cell holds: ``ops.ReLU()(x)`` makes ``Primitive.ReLU``.

While capturing, the ``__call__`` of every public class of primitives is one that records. Only
calls that a user's file or a layer makes count: those inside MindSpore's functions are part of
what these compute.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from mindspore.ops import Primitive

from mindspore import ops
from msprobe.capture.session import Session
from msprobe.mindspore.api_calls import ApiObserver
from msprobe.mindspore.primitive_calls import attributes_of, is_computation
from msprobe.mindspore.stack_traits import is_of_user_or_layer

_CALL: Final = "__call__"


class FreePrimitives:
    """Turns the calls of primitives outside cells into events of the session."""

    def __init__(
        self,
        session: Session,
        apis: ApiObserver,
        chooses: Callable[[Any], bool] = is_computation,
    ) -> None:
        """Create it; `apis` makes the records of the primitives that `chooses` accepts."""
        self._session = session
        self._apis = apis
        self._chooses = chooses
        self._replaced: list[tuple[type, Any, Any]] = []

    def install(self) -> None:
        """Watch the classes; the session's undo ends it."""
        if self._replaced:
            return
        for kind in _classes():
            before = kind.__dict__[_CALL]
            made = self._recording(before)
            setattr(kind, _CALL, made)
            self._replaced.append((kind, made, before))
        self._session.undo.callback(self.remove)

    def remove(self) -> None:
        """Restore each class's method, except where other code has replaced it since."""
        while self._replaced:
            kind, made, before = self._replaced.pop()
            if kind.__dict__.get(_CALL) is made:
                setattr(kind, _CALL, before)

    def _recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        apis, chooses = self._apis, self._chooses

        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                not apis.is_on()
                or not is_of_user_or_layer(sys._getframe(1).f_code)
                or not chooses(primitive)
            ):
                return original(primitive, *args, **kwargs)

            def run(*args: Any, **kwargs: Any) -> Any:
                return original(primitive, *args, **kwargs)

            name = f"Primitive.{primitive.name}"
            return apis.record(name, run, args, kwargs, attributes_of(primitive))

        return call


@cache
def _classes() -> tuple[type, ...]:
    return (Primitive, *dict.fromkeys(_public()))


def _public() -> Iterator[type]:
    for home in (ops, ops.operations):
        for name, kind in inspect.getmembers_static(home, inspect.isclass):
            if name.startswith("_") or kind is Primitive:
                continue
            if issubclass(kind, Primitive) and _CALL in kind.__dict__:
                yield kind
