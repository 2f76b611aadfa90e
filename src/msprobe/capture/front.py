# SPDX-License-Identifier: Apache-2.0
"""The part of a `PrecisionDebugger` that is the same for every framework.

There is one debugger a process. All its methods may be called on the class, so the state of the
one debugger lies beside the class, in a `Place`.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

from msprobe.capture.nan_check import NanCheck, NanFinding
from msprobe.capture.session import Session, current_session, use_session
from msprobe.config import (
    Config,
    GradProbeSection,
    Level,
    load_config,
    parse_token_range,
    read_config_file,
)
from msprobe.dump.reuse import refuse_kept, warn_of_replacing
from msprobe.errors import ConfigError, UsageError
from msprobe.log import ensure_handler

logger = logging.getLogger(__name__)

CONFIG_VARIABLE: Final = "MSPROBE_CONFIG"
"""Environment variable: a ``config.json`` that wins over what the program gives."""

SWITCH_VARIABLE: Final = "MSPROBE"
"""Environment variable: ``off`` lets programs run as if they did not use msprobe."""

_OFF: Final = ("off", "0", "false")

lock: Final = threading.RLock()
"""Held by whatever changes the state of the debugger."""


class CustomApiRegistry(Protocol):
    """Replaces functions that the user registers."""

    def register(self, owner: Any, attribute: str, prefix: str | None) -> None:
        """Record calls of ``owner.attribute`` from now on."""

    def restore(self, owner: Any, attribute: str) -> None:
        """Put the original back."""


class RunParts(Protocol):
    """The parts of a constructed debugger that this module uses."""

    @property
    def session(self) -> Session:
        """The state of the run."""

    @property
    def config(self) -> Config:
        """The settings."""

    @property
    def custom_apis(self) -> CustomApiRegistry:
        """The functions that the user registered."""

    @property
    def models(self) -> Sequence[Any]:
        """The models given last."""

    @property
    def finds_steps(self) -> bool:
        """Whether steps are found without calls of `start` and `step`."""

    def start(
        self, models: Sequence[Any], token_range: tuple[int, int] | None, rank: int | None
    ) -> None:
        """Begin to observe, if the step is wanted."""

    def stop(self) -> None:
        """End observing."""

    def step(self) -> None:
        """End the step."""


class Place:
    """The debugger of the process, if one was constructed, and the functions of its framework."""

    __slots__ = (
        "arguments", "called", "debugger", "dumps_kernels", "is_compiling", "run", "save",
    )  # fmt: skip

    def __init__(
        self,
        save: Callable[[Session, Any, Any, Any], None],
        is_compiling: Callable[[], bool],
        *,
        dumps_kernels: bool = False,
    ) -> None:
        """Begin without a debugger.

        Args:
            save: records a value for a session, see `DebuggerFront.save`.
            is_compiling: whether the code that calls is being compiled, so that nothing has values.
            dumps_kernels: whether the framework writes kernels itself, see `load_config`.
        """
        self.save = save
        self.is_compiling = is_compiling
        self.dumps_kernels = dumps_kernels
        self.run: Any = None
        self.debugger: Any = None
        self.arguments: Mapping[str, Any] = {}
        # Names of the methods that the program has called.
        self.called: set[str] = set()


class DebuggerFront(ABC):
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

    def _construct(
        self,
        make_run: Callable[[Config], RunParts],
        config_path: str | Path | None,
        *,
        model: int | None = None,
        config: Config | None = None,
        **settings: Any,
    ) -> None:
        """Become the debugger of the process; if there is one, warn of the settings it ignores.

        Args:
            make_run: makes the parts.
            config_path: a ``config.json``; None for the default settings.
            model: the identity of a model, which is not kept alive.
            config: the settings, read already, in place of the file.
            settings: settings that override the file, as in `load_config`.
        """
        arguments = {"config_path": config_path, "model": model, **settings}
        from_outside = os.environ.get(CONFIG_VARIABLE)
        if from_outside and config is None:
            config_path = from_outside
            named = read_config_file(Path(from_outside))[0]
            settings = {key: value for key, value in settings.items() if key not in named}
        with lock:
            place = self._place
            if place.run is not None:
                _warn_of_ignored(arguments, place.arguments)
                return
            ensure_handler()
            if config is None:
                config = load_config(config_path, dumps_kernels=place.dumps_kernels, **settings)
            is_off = os.environ.get(SWITCH_VARIABLE, "").lower() in _OFF
            if not is_off:
                refuse_kept(config.dump_path, overwrite=config.overwrite)
            run = make_run(config)
            run.session.is_off = is_off
            if not is_off:
                warn_of_replacing(config.dump_path)
            use_session(run.session)
            place.run, place.debugger, place.arguments = run, self, arguments
            place.called = set()
            atexit.unregister(_warn_of_missing_calls)
            atexit.register(_warn_of_missing_calls, place)

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
    @abstractmethod
    def start(cls, model: Any = None) -> None:
        """Begin to record.

        Args:
            model: a model of the framework, or a list of models.
        """

    @classmethod
    def _start(
        cls,
        model: object,
        as_models: Callable[[Any], tuple[Any, ...]],
        token_range: object,
        rank: int | None,
    ) -> None:
        """Begin to record; see the `start` of each framework.

        Args:
            model: the user's argument.
            as_models: checks it for the framework, and returns the models.
            token_range: the user's argument.
            rank: overrides the rank of the process group.
        """
        run = cls._running()
        cls._place.called.add("start")
        models = cls._models(model, as_models)
        run.start(models, cls._tokens(token_range, models or run.models), rank)

    @classmethod
    def _models(cls, given: object, as_models: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the models given to `start`; none means those given before.

        Args:
            given: the user's argument.
            as_models: checks it for the framework.

        Raises:
            ConfigError: it is no model and no list of models, or an empty list.
        """
        models = as_models(given)
        if given is not None and not models:
            rule = "at least one model, or None for the model given before"
            raise ConfigError("model", given, rule, source="start()")
        run = cls._running()
        if models and run.session.capturing and list(map(id, models)) != list(map(id, run.models)):
            logger.warning(
                "start(): a recording has begun already, and goes on without the model given now; "
                "it is recorded from the next start() on: call stop() before start(), "
                "or pass all models in one list"
            )
        return models

    @staticmethod
    def _tokens(token_range: object, models: Sequence[object]) -> tuple[int, int] | None:
        """Return the checked `token_range` of `start`.

        Raises:
            ConfigError: it is no such range, or there is no model whose calls could be counted.
        """
        tokens = parse_token_range(token_range)
        if tokens is not None and not models:
            rule = "the model whose calls are counted"
            raise ConfigError("model", None, rule, source="start()", hint="token_range is set")
        return tokens

    @contextmanager
    def __call__(self, model: Any = None) -> Iterator[Self]:
        """Return what records the body of a ``with`` statement as one step.

        It calls `start`, `stop` and, unless the body does, `step`; ``as debugger`` names the
        debugger. As a decorator, ``@debugger(model)`` records each call of a function.

        Args:
            model: as for `start`.
        """
        session = self._running().session
        number = session.step_number
        self.start(model)
        try:
            yield self
        finally:
            self.stop()
            if session.step_number == number:
                self.step()

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record a value under a name of your own, at level ``debug`` only.

        Needs no `start`. The file is complete after `step` or when the process ends. Code that
        is compiled saves nothing; PyTorch runs such code eagerly between `start` and `stop`, and
        there it does. MindSpore cannot compile a call of `save`.

        Args:
            variable: a tensor, number or text, or lists, tuples and dicts of these; None and other
                objects inside are recorded as null.
            name: counted from 0 in each step: ``{name}.{count}.debug``.
            save_backward: whether the gradients of the tensors are recorded too, as
                ``{name}_grad.{count}.debug``.

        Raises:
            UsageError: no debugger was constructed.
        """
        if cls._place.is_compiling():
            return
        with lock:
            cls._place.save(cls._running().session, variable, name, save_backward)

    @classmethod
    def flush(cls, reason: str = "flush()") -> None:
        """Write the last steps, which ``keep_last`` keeps in memory.

        During a step they are written when it ends, with it.

        Args:
            reason: why, for the account of each step.

        Raises:
            UsageError: no debugger was constructed, or ``keep_last`` is not set.
        """
        with lock:
            session = cls._running().session
            if session.flight is None:
                raise UsageError('flush() needs "keep_last" in the section "statistics"')
            session.flush(reason)

    @classmethod
    def on_nan(cls, callback: Callable[[NanFinding], object] | None) -> None:
        """Call a function with the first source of each step that has one (task ``nan_check``).

        It is called as soon as the step has ended, from within `step`; an exception that it raises
        leaves `step`, and so ends the training if nothing catches it.

        Args:
            callback: the function; None for none.

        Raises:
            UsageError: no debugger was constructed, or its task is another one.
        """
        with lock:
            run = cls._running()
            check = run.session.checks.check
            if not isinstance(check, NanCheck):
                words = f'the task is "{run.config.task}"'
                raise UsageError(f"on_nan() belongs to the task nan_check; {words}")
            check.report = callback

    @classmethod
    def monitor(cls, watched: Any) -> None:
        """Record gradients at each optimizer step from now on (task ``grad_probe``).

        Args:
            watched: the model in PyTorch, the optimizer in MindSpore.

        Raises:
            UsageError: no debugger was constructed, or its task is another one.
            ConfigError: `watched` cannot be used.
        """
        with lock:
            run = cls._running()
            if not isinstance(run.config.section, GradProbeSection):
                words = f'the task is "{run.config.task}"'
                raise UsageError(f"monitor() belongs to the task grad_probe; {words}")
            run.probe_gradients(watched)

    @classmethod
    def stop(cls) -> None:
        """End recording and bring the JSON files up to date.

        Gradients of earlier calls are still recorded until `step`, so `stop` may come before or
        after the backward pass.
        """
        with lock:
            run = cls._running()
            run.session.current.ending.stopped()
            run.stop()

    @classmethod
    def forward_backward_dump_end(cls) -> None:
        """End the recorded part of a step, as `stop` does; may come before the backward pass."""
        cls.stop()

    @classmethod
    def step(cls) -> None:
        """End the step: write everything, log its account, and go on to the next."""
        with lock:
            cls._place.called.add("step")
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
            cls._running().session.begin_at(step)

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


def _warn_of_missing_calls(place: Place) -> None:
    """Warn at exit of a run that recorded nothing or never ended a step, not in forked children."""
    run: RunParts | None = place.run
    if run is None or run.session is not current_session() or run.session.is_forked:
        return
    session = run.session
    if session.is_off or run.config.level is Level.DEBUG:
        return
    is_explicit = not run.finds_steps
    if is_explicit and "start" not in place.called:
        logger.warning("start() was never called: nothing was recorded")
    elif is_explicit and session.totals.started is None:
        return  # each start() was refused with an error
    elif (reason := session.totals.why_nothing(run.config.step)) is not None:
        logger.warning("nothing was recorded: %s", reason)
    elif is_explicit and "step" not in place.called:
        logger.warning(
            "step() was never called: all that was recorded counts as step %d",
            session.step_number,
        )


def _warn_of_ignored(arguments: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    ignored = [
        f"{name}={value!r}" if name != "model" else name
        for name, value in arguments.items()
        if value is not None and value != first.get(name)
    ]
    if ignored:
        logger.warning(
            "there is one PrecisionDebugger for each process; the second construction ignores %s",
            ", ".join(ignored),
        )
