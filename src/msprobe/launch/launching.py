# SPDX-License-Identifier: Apache-2.0
"""Check what `msprobe run` was asked for, and run the program with observation installed."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from msprobe.capture.signals import EarlySignal
from msprobe.config import load_config
from msprobe.dump.reuse import refuse_kept
from msprobe.errors import UnsupportedError, UsageError
from msprobe.launch.program import hide_own_frames, module, run_program, script
from msprobe.launch.step_functions import DECORATOR, StepFunction
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

COMMAND: Final = "msprobe run"
DEFAULT_FOLDER: Final = "./msprobe_dump"
DEFAULT_STEPS: Final = ("0-1",)
_ALL_STEPS: Final = ["all"]
_EXIT_REFUSED: Final = 2
# Commands that start other processes, which would go unrecorded, and what has to stand before the
# name of a module.
_LAUNCHERS: Final = {
    "accelerate": "-m",
    "deepspeed": "--module",
    "mpirun": "python -m",
    "msrun": "python -m",
    "srun": "python -m",
    "torch.distributed.run": "-m",
    "torchrun": "-m",
}


class Follower(Protocol):
    """Finds the steps of the program."""

    def step_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, each call of which becomes a step."""

    def finish(self) -> None:
        """End the open step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the command; None is left to the file, or to the default.

    Attributes:
        config: a ``config.json``.
        level: as in the file, like the following.
        task: as in the file.
        dump_path: as in the file.
        step: numbers and ranges, or ``all``.
        rank: numbers and ranges.
        name_filters: the key ``list``.
        scope: first and last record.
        on_request: record nothing but what `msprobe attach` or SIGUSR1 ask for.
        seed: seeds Python, NumPy and PyTorch when the program imports the latter.
        deterministic: prefer deterministic kernels.
        random_log: folder that gets a row for each draw of random numbers.
    """

    config: Path | None = None
    level: str | None = None
    task: str | None = None
    dump_path: str | None = None
    step: list[str] | None = None
    rank: list[str] | None = None
    name_filters: list[str] | None = None
    scope: list[str] | None = None
    on_request: bool = False
    seed: int | None = None
    deterministic: bool = False
    random_log: Path | None = None

    def arguments(self) -> dict[str, Any]:
        """Return them as arguments of `load_config`."""
        steps = self.step
        if steps is None and self.config is None and not self.on_request:
            steps = list(DEFAULT_STEPS)
        section = {"list": self.name_filters, "scope": self.scope}
        alone = self.config is None
        return {
            "level": self.level or ("mix" if alone else None),
            "task": self.task,
            "dump_path": self.dump_path or (DEFAULT_FOLDER if alone else None),
            "default_dump_path": DEFAULT_FOLDER,
            "step": None if steps == _ALL_STEPS else steps,
            "rank": self.rank,
            "dump_enable": False if self.on_request else None,
            "section": {key: value for key, value in section.items() if value is not None},
            "given_by": COMMAND,
        }


class Launch:
    """A program that is ready to run."""

    def __init__(
        self,
        settings: Settings,
        words: Sequence[str],
        *,
        is_module: bool,
        step_function: str | None,
        command: str = COMMAND,
    ) -> None:
        """Check everything that can be known before the program runs.

        Args:
            settings: how to record it.
            words: the script or module, and its arguments.
            is_module: whether the first word names a module.
            step_function: the function whose calls are steps; None for the usual rules.
            command: the user's, for messages.

        Raises:
            ConfigError: a setting cannot be used.
            UsageError: there is no such program or function, or the program is a launcher.
        """
        if not words:
            raise UsageError(f"{command}: name the script to run, as in {command} train.py")
        name, *self._arguments = words
        _refuse_other_commands(name if is_module else Path(name).name, command)
        self._settings = settings
        if settings.random_log is not None:
            try:
                settings.random_log.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise UsageError(f"--random-log {settings.random_log}: {reason(exc)}") from exc
        self._config = load_config(settings.config, **settings.arguments())
        refuse_kept(self._config.dump_path, overwrite=self._config.overwrite)
        self._program = module(name) if is_module else script(Path(name))
        self._steps = None if step_function is None else StepFunction.parse(step_function)
        self._followers: list[Follower] = []
        self._undo = ExitStack()
        self._refusal: UsageError | None = None
        if self._steps is not None and not self._steps.module:
            self._steps.check(self._program)

    def run(self) -> int:
        """Run the program; return the exit code of one that came to its end.

        Its exceptions, `SystemExit` among them, leave this function.
        """
        end: SystemExit | None = None
        try:
            with EarlySignal() if self._config.takes_signals else nullcontext():
                after_import("torch", self._observe_torch)
                after_import("mindspore", self._observe_mindspore)
                self._run_program()
        except SystemExit as error:
            end = error
        except BaseException as error:
            if error is self._refusal:
                logger.error("%s", error)  # noqa: TRY400  (a wrong option, no error of the program)
                return _EXIT_REFUSED
            hide_own_frames()
            raise
        self._finish()  # here, where no exception is being handled
        if end is not None:
            raise end
        return 0

    def _run_program(self) -> None:
        steps = self._steps
        if steps is None:
            run_program(self._program, self._arguments)
        elif steps.module:
            after_import(steps.module, self._wrap_steps_of)
            run_program(self._program, self._arguments)
        else:
            names = {DECORATOR: self._step}
            run_program(self._program, self._arguments, change=steps.decorate, names=names)

    def _wrap_steps_of(self, imported: ModuleType) -> None:
        try:
            if self._steps is not None:
                self._steps.wrap_in(imported, self._step)
        except UsageError as error:
            self._refusal = error
            raise

    def _observe_torch(self, _: ModuleType) -> None:
        from msprobe.pytorch.debugger import follow_script
        from msprobe.pytorch.training.seed import fix_chance

        fix_chance(self._settings.seed, deterministic=self._settings.deterministic)
        if self._settings.random_log is not None:
            from msprobe.pytorch.reproducibility import record_random

            self._undo.enter_context(record_random(self._settings.random_log))
        has_function = self._steps is not None
        self._followers.append(follow_script(self._config, has_step_function=has_function))

    def _observe_mindspore(self, _: ModuleType) -> None:
        from msprobe.mindspore.debugger import follow_script
        from msprobe.mindspore.seed import fix_chance

        fix_chance(self._settings.seed, deterministic=self._settings.deterministic)
        if self._settings.random_log is not None:
            logger.warning("--random-log: draws of MindSpore's random numbers are not written")
        has_function = self._steps is not None
        try:
            self._followers.append(follow_script(self._config, has_step_function=has_function))
        except UnsupportedError as error:
            logger.warning("nothing is recorded: %s", error)

    def _step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            # None as long as no framework was imported.
            inner = function
            for follower in self._followers:
                inner = follower.step_function(inner)
            return inner(*args, **kwargs)

        return step

    def _finish(self) -> None:
        self._undo.close()
        for follower in self._followers:
            follower.finish()
        steps = self._steps
        if steps is not None and steps.module and steps.module not in sys.modules:
            logger.warning(
                "--step-function %s:%s: the program never imported %s, so that no step began",
                *(steps.module, steps.path, steps.module),
            )
        if not sys.modules.keys() & {"torch", "mindspore"}:
            logger.warning("nothing was recorded: the program imported neither torch nor mindspore")


def _refuse_other_commands(name: str, command: str) -> None:
    module = _LAUNCHERS.get(name)
    if module is not None:
        advice = f"put it in front: {name} … {module} msprobe run SCRIPT"
        if command != COMMAND:
            advice = (
                f"name the script itself, or record twice ({name} … {module} {COMMAND} SCRIPT) "
                "and compare both recordings by msprobe compare"
            )
        raise UsageError(
            f"{command}: {name} starts other processes, which would not be recorded; {advice}"
        )
    if name.startswith("-"):
        raise UsageError(f"{command}: unknown option {name} (see {command} --help)")


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call ``action(module)`` when the module called `name` has been imported; at once if it is.

    An exception of `action` leaves the program's import statement.
    """
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Lets the usual finders find one module, and adds an action to its loader."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module; `sys.meta_path` calls this.

        Programs also ask for a module without importing it, as `importlib.util.find_spec` does. So
        the action comes with the first module that is executed, whichever spec that has.
        """
        if name != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._action(module)

        # The loader stays the object that it is: modules keep it, and are read through it.
        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
