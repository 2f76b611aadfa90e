# SPDX-License-Identifier: Apache-2.0
"""The public face of capture in PyTorch: three lines in a training script.

debugger = PrecisionDebugger(dump_path="./dump", level="mix")
for batch in loader:
    debugger.start(model)
    loss = model(batch)
    loss.backward()
    debugger.stop()
    optimizer.step()
    debugger.step()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from msprobe.capture.front import DebuggerFront, Place, lock
from msprobe.config import Config, Level
from msprobe.dump.estimates import ESTIMATED_LEVELS, ESTIMATED_TASKS, Estimate
from msprobe.errors import UsageError
from msprobe.log import warn_once
from msprobe.pytorch.run import Run, as_models
from msprobe.pytorch.saved_values import prepare_saving, save
from msprobe.pytorch.training.script_steps import ScriptFollower
from msprobe.report.estimate_lines import estimate_lines, refuse_small_disk

logger = logging.getLogger(__name__)

Step = TypeVar("Step", bound=Callable[..., Any])


class PrecisionDebugger(DebuggerFront):
    """Records inputs, outputs and gradients of modules and APIs; one for each process.

    A second construction returns the first object; arguments that differ from the first are
    ignored with a warning. All methods may be called on the class itself, also in another file than
    the one that constructs.
    """

    _place = Place(save, torch.compiler.is_compiling)

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        model: nn.Module | Sequence[nn.Module] | None = None,
        step: int | list[int | str] | None = None,
    ) -> None:
        """Read the configuration; nothing is installed before `start`.

        Args:
            config_path: a ``config.json``; None for that of the installed package, which records
                statistics at L1 into ``./dump_path``.
            task: overrides the file: ``statistics``, ``tensor``, ``structure``, ``overflow_check``,
                ``nan_check``, ``signature``, ``grad_probe``, ``free_benchmark``.
            dump_path: overrides the file: folder of the dump, made when needed.
            level: overrides the file: ``L0``, ``L1``, ``mix``, ``L2``, ``debug``.
            model: the model to record; may be given to `start` instead.
            step: overrides the file: a number, or numbers and ranges (``"3-5"``), of the steps to
                record.

        Raises:
            ConfigError: a value cannot be used; the message names file, key, value and rule.
        """

        def make_run(config: Config) -> Run:
            models = as_models(model)
            run = Run(config)
            run.models = models
            return run

        self._construct(
            make_run,
            config_path,
            task=task,
            dump_path=dump_path,
            level=level,
            model=None if model is None else id(model),
            step=step,
        )

    @classmethod
    def start(
        cls,
        model: nn.Module | Sequence[nn.Module] | None = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: object = None,
    ) -> None:
        """Begin to record. A step or rank that is not wanted records nothing.

        Args:
            model: the model, or a list of models; needed at L0 and mix unless given before.
            token_range: first and last forward call of the model to record, both included.
            rank_id: writes to ``rank{rank_id}`` whatever the process group says.
            scheduled_tokens: accepted for scripts written for `mindstudio-probe`; has no effect.

        Raises:
            UsageError: no debugger was constructed.
            ConfigError: `model` or `token_range` cannot be used.
        """
        with lock:
            run = running()
            if scheduled_tokens is not None:
                warn_once(logger, "scheduled_tokens", "start(): scheduled_tokens has no effect")
            if run.gradient_probe is not None:
                run.gradient_probe.resume()
                return
            if run.config.level is Level.DEBUG:
                prepare_saving(run.session)
                return
            cls._start(model, as_models, token_range, rank_id)

    @classmethod
    def replay_with(cls, function: Step, *parts: Any, backward: bool = False) -> Step:
        """Return a step function that the flight recorder can run again (``replay_step``).

        Call the result in place of `function`, between `start` and `stop`. Each call costs a copy
        of its arguments, the first one of a step also a copy of parameters, gradients, buffers,
        and of the states of `parts`.

        Args:
            function: makes a step, or one micro batch of it: forward and backward, from its
                arguments. Or the model: its calls are then made again, each with a backward pass.
            parts: optimizers, scalers, schedules, models: whose state it changes. In the replay an
                optimizer that is not among them ends the step before it changes anything.
            backward: whether a backward pass follows each call in the replay, from the ``loss`` in
                its result, or from all it returns; always for a model.

        Raises:
            UsageError: no debugger was constructed, or ``replay_step`` is not set.
            ConfigError: one of `parts` has no state that could be copied.
        """
        with lock:
            run, is_model = running(), isinstance(function, nn.Module)
            if run.session.is_off:
                return function
            models = (function,) if is_model else ()
            replay = run.step_replay(
                function, (*models, *parts), ends_backward=backward or is_model
            )
            if isinstance(function, nn.Module):
                replay.watch(function)
                return function
            return cast("Step", replay.wrapped())

    @classmethod
    def estimate(
        cls,
        model: nn.Module | Sequence[nn.Module],
        batch: Any,
        *,
        run_model: Callable[[nn.Module, Any], Any] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        levels: Sequence[str] = ESTIMATED_LEVELS,
        tasks: Sequence[str] = ESTIMATED_TASKS,
    ) -> list[Estimate]:
        """Return what recording one step costs, for each level and task, before it is recorded.

        Runs the batch forward and backward for each, six times or until the median time is known
        (13 times at most), and records it into a temporary folder with the filters of this
        debugger. Gradients, buffers, random states, and what the optimizer changes are put back;
        that takes a copy of them. Logs the result as a table.

        Args:
            model: the model, or a list of models, as for `start`; the first one is called.
            batch: the arguments of its call: a dict of keywords, a list or tuple, or one argument.
            run_model: called with model and batch in place of the model; returns the loss, or
                outputs whose sum is one.
            optimizer: makes a step in each pass; None leaves out what its step costs.
            levels: any of ``L0``, ``L1``, ``mix``.
            tasks: any of ``statistics``, ``tensor``, ``structure``.

        Raises:
            UsageError: no debugger was constructed, a step is being recorded, or the disk of
                `dump_path` does not suffice for all steps that this debugger is to record.
            ConfigError: an argument cannot be used.
        """
        with lock:
            run = running()
            if run.session.is_off:
                return []
            if run.session.dump is not None:
                raise UsageError("estimate(): a step is being recorded; call it before start()")
            from msprobe.pytorch.estimating import estimate

            models = cls._models(model, as_models)
            found = estimate(run.config, models, batch, run_model, optimizer, levels, tasks)
            logger.info("each recorded step costs\n%s", "\n".join(estimate_lines(found)))
            own = [each for each in found if each.is_for(run.config.level, run.config.task)]
            refuse_small_disk(own, run.config.dump_path, len(run.config.step) or 1)
            return found


def follow_script(config: Config, *, has_step_function: bool = False) -> ScriptFollower:
    """Construct the debugger for a program that calls none of its methods.

    Args:
        config: the settings.
        has_step_function: see `ScriptFollower`.
    """
    with lock:
        debugger = PrecisionDebugger.__new__(PrecisionDebugger)
        debugger._construct(Run, None, config=config)
        return follow_loop(has_step_function=has_step_function)


def follow_loop(*, has_step_function: bool = False) -> ScriptFollower:
    """Have the debugger find models and steps by itself from now on.

    Args:
        has_step_function: see `ScriptFollower`.

    Raises:
        UsageError: no debugger was constructed.
    """
    with lock:
        run = running()
        if not isinstance(run.loop, ScriptFollower):
            run.loop = ScriptFollower(run, has_step_function=has_step_function)
        run.loop.is_paused = False
        return run.loop


def running() -> Run:
    """Return the parts of the debugger.

    Raises:
        UsageError: none was constructed.
    """
    run: Run = PrecisionDebugger._running()
    return run
