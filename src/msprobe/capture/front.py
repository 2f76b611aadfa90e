# SPDX-License-Identifier: Apache-2.0
"""The part of a `PrecisionDebugger` that is the same for every framework.

There is one debugger a process. All its methods may be called on the class, so the state of the
one debugger lies beside the class, in a `Place`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, Self

from msprobe.capture.session import Session, current_session, use_session
from msprobe.errors import ConfigError, UsageError
from msprobe.log import ensure_handler

logger = logging.getLogger(__name__)

lock: Final = threading.RLock()
"""Held by whatever changes the state of the debugger."""


class CustomApiRegistry(Protocol):
    """What replaces functions that the user registers."""

    def register(self, owner: Any, attribute: str, prefix: str | None) -> None:
        """Record calls of ``owner.attribute`` from now on."""

    def restore(self, owner: Any, attribute: str) -> None:
        """Put the original back."""


class RunParts(Protocol):
    """What a constructed debugger consists of, as far as this module is concerned."""

    @property
    def session(self) -> Session:
        """The state of the run."""

    @property
    def custom_apis(self) -> CustomApiRegistry:
        """The functions that the user registered."""

    def stop(self) -> None:
        """End observing."""

    def step(self) -> None:
        """End the step."""


class Place:
    """The debugger of the process, if one was constructed."""

    __slots__ = ("arguments", "debugger", "run")

    def __init__(self) -> None:
        self.run: Any = None
        self.debugger: Any = None
        self.arguments: Mapping[str, Any] = {}


class DebuggerFront:
    """The methods that every framework's debugger has. A subclass sets its own `_place`."""

    _place: ClassVar[Place]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return the one debugger of the process."""
        with lock:
            place = cls._place
            if place.run is not None and place.run.session is current_session():
                first: Self = place.debugger
                return first
            place.run = None
            return super().__new__(cls)

    def _is_second(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether there is a run already; what differs from its arguments is warned of."""
        if self._place.run is None:
            ensure_handler()
            return False
        _warn_of_ignored(arguments, self._place.arguments)
        return True

    def _begin(self, run: RunParts, arguments: Mapping[str, Any]) -> None:
        """Make this the debugger of the process."""
        use_session(run.session)
        place = self._place
        place.run, place.debugger, place.arguments = run, self, arguments

    @classmethod
    def _running(cls) -> Any:
        """Return the parts of the debugger.

        Raises:
            UsageError: none was constructed.
        """
        run = cls._place.run
        if run is None or run.session is not current_session():
            raise UsageError("no PrecisionDebugger was constructed; construct one before using it")
        return run

    @classmethod
    def stop(cls) -> None:
        """End recording and bring the JSON files up to date.

        Gradients of what ran before are still recorded until `step`, so `stop` may stand before or
        after the backward pass.
        """
        with lock:
            cls._running().stop()

    @classmethod
    def forward_backward_dump_end(cls) -> None:
        """End the recorded part of a step, as `stop` does; may stand before the backward pass."""
        cls.stop()

    @classmethod
    def step(cls) -> None:
        """End the step: write everything, log its account, count on."""
        with lock:
            cls._running().step()

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Make `step` the number of the next step.

        Raises:
            ConfigError: it is no whole number from 0 on.
        """
        with lock:
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                rule = "a whole number from 0 on"
                raise ConfigError("step", step, rule, source="set_init_step()")
            cls._running().session.set_step(step)

    @classmethod
    def register_custom_api(cls, module: Any, api_name: str, api_prefix: str | None = None) -> None:
        """Record the calls of ``module.api_name`` at levels L1 and mix.

        They are named ``{api_prefix}.{api_name}.{number}``. The function is replaced by one that
        records until `restore_custom_api`, or until the program ends; what it calls makes no
        records of its own. Names bound before (``from module import api_name``) are not reached.

        Args:
            module: a module, or a class.
            api_name: a function in it.
            api_prefix: first part of the records' names; None for the name of `module`.

        Raises:
            ConfigError: there is no such function, or the prefix is no text.
            UsageError: no debugger was constructed.
        """
        with lock:
            cls._running().custom_apis.register(module, api_name, api_prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api_name: str) -> None:
        """Put the function back that `register_custom_api` replaced.

        Raises:
            ConfigError: there is no such function.
            UsageError: it is not registered, or no debugger was constructed.
        """
        with lock:
            cls._running().custom_apis.restore(module, api_name)


def _warn_of_ignored(arguments: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    ignored = [
        f"{name}={value!r}" if name != "model" else name
        for name, value in arguments.items()
        if value is not None and value != first[name]
    ]
    if ignored:
        logger.warning(
            "there is one PrecisionDebugger for each process; the second construction ignores %s",
            ", ".join(ignored),
        )
