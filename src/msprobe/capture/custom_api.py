# SPDX-License-Identifier: Apache-2.0
"""Functions of any kind that the user registers to be recorded.

A registered function is replaced where it is looked up, by an object that looks and pickles like
it. It is recorded while capturing, as one call: calls inside it make no records.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from contextlib import ExitStack
from types import MethodType
from typing import Any, Final, Protocol

from msprobe.errors import ConfigError, UsageError

_REGISTER: Final = "register_custom_api()"
_RESTORE: Final = "restore_custom_api()"
_ABSENT: Final = object()


class HiddenCalls(Protocol):
    """Records calls that the framework has no hook for."""

    def is_on(self) -> bool:
        """Return whether a call made here and now, in this thread, is to be recorded."""

    def record(
        self,
        name: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return ``run(*args, **kwargs)``, recorded as one call; inner calls make no records."""


class RecordedApi:
    """Stands in for a registered function.

    It has the function's name, docstring and signature, and becomes a method where the function
    would. Pickle stores where it is found, so that unpickling gives whatever is found there.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, place: str, calls: HiddenCalls | None
    ) -> None:
        """Create it.

        Args:
            function: the original.
            name: of its records, without the number.
            place: where it is found, ``package.module:attribute``.
            calls: records them; None at levels that record no APIs.
        """
        functools.update_wrapper(self, function)
        self._function = function
        self._record_name = name
        self._place = place
        self._calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, recorded if capture is on."""
        calls = self._calls
        if calls is None or not calls.is_on():
            return self._function(*args, **kwargs)
        return calls.record(self._record_name, self._function, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind as a function in a class does."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        """Pickle by place."""
        return pkgutil.resolve_name, (self._place,)


class CustomApis:
    """The registered functions of a run."""

    __slots__ = ("_calls", "_registered")

    def __init__(self, calls: HiddenCalls | None, undo: ExitStack) -> None:
        """Create it with nothing registered.

        Args:
            calls: records them; None at levels that record no APIs.
            undo: closed when the run ends; everything still registered is restored then.
        """
        self._calls = calls
        # (owner, attribute, its value now, its value before or _ABSENT)
        self._registered: list[tuple[Any, str, Any, Any]] = []
        undo.callback(self.restore_all)

    def register(self, owner: Any, attribute: str, prefix: str | None) -> None:
        """Record calls of ``owner.attribute`` as ``{prefix}.{attribute}.{n}``.

        Raises:
            ConfigError: there is no such attribute, it cannot be called or replaced, or the prefix
                is no text.
        """
        function = _look_up(owner, attribute, _REGISTER)
        prefix = _prefix(owner, prefix)
        if any(known[0] is owner and known[1] == attribute for known in self._registered):
            self.restore(owner, attribute)
            function = getattr(owner, attribute)
        before = getattr(owner, "__dict__", {}).get(attribute, _ABSENT)
        raw = before.__func__ if isinstance(before, staticmethod | classmethod) else function
        place = f"{_place(owner)}{attribute}"
        recorded: Any = RecordedApi(raw, f"{prefix}.{attribute}", place, self._calls)
        if isinstance(before, staticmethod | classmethod):
            recorded = type(before)(recorded)
        try:
            setattr(owner, attribute, recorded)
        except (AttributeError, TypeError) as error:
            rule = "an attribute that can be replaced"
            raise ConfigError("api_name", attribute, rule, source=_REGISTER) from error
        self._registered.append((owner, attribute, recorded, before))

    def restore(self, owner: Any, attribute: str) -> None:
        """Put the original back.

        Raises:
            ConfigError: there is no such attribute.
            UsageError: it was not registered.
        """
        _look_up(owner, attribute, _RESTORE)
        for index, known in enumerate(self._registered):
            if known[0] is owner and known[1] == attribute:
                del self._registered[index]
                _put_back(*known)
                return
        raise UsageError(f"{_RESTORE}: {attribute!r} of {owner!r} was not registered")

    def restore_all(self) -> None:
        """Put every original back, the last registered first."""
        while self._registered:
            _put_back(*self._registered.pop())


def _put_back(owner: Any, attribute: str, recorded: Any, before: Any) -> None:
    if getattr(owner, "__dict__", {}).get(attribute) is not recorded:
        return  # other code has replaced it since
    if before is _ABSENT:
        delattr(owner, attribute)
    else:
        setattr(owner, attribute, before)


def _look_up(owner: Any, attribute: Any, source: str) -> Callable[..., Any]:
    if not isinstance(attribute, str) or not attribute:
        raise ConfigError("api_name", attribute, "the name of a function", source=source)
    found = getattr(owner, attribute, _ABSENT)
    if found is _ABSENT:
        rule = f"the name of a function of {getattr(owner, '__name__', owner)!r}"
        raise ConfigError("api_name", attribute, rule, source=source)
    if not callable(found):
        raise ConfigError("api_name", attribute, "the name of a function", source=source)
    return found


def _prefix(owner: Any, prefix: Any) -> str:
    if prefix is None:
        prefix = getattr(owner, "__name__", None)
        if not isinstance(prefix, str):
            rule = "a prefix for the records, as this object has no __name__"
            raise ConfigError("api_prefix", None, rule, source=_REGISTER)
        return prefix
    if not isinstance(prefix, str) or not prefix:
        raise ConfigError("api_prefix", prefix, "a text", source=_REGISTER)
    return prefix


def _place(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}:{owner.__qualname__}."
    return f"{getattr(owner, '__name__', type(owner).__name__)}:"
