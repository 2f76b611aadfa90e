# SPDX-License-Identifier: Apache-2.0
"""The public face of capture in MindSpore: three lines in a training script.

debugger = PrecisionDebugger(dump_path="./dump", level="mix")
for batch in loader:
    debugger.start(net)
    loss, gradients = forward_and_backward(*batch)
    debugger.stop()
    optimizer(gradients)
    debugger.step()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspore import nn
from msprobe.capture.front import DebuggerFront, Place, lock
from msprobe.capture.saving import Arrival, save_value
from msprobe.capture.session import Session, use_session
from msprobe.config import Config, GradProbeSection, Level
from msprobe.errors import UnsupportedError
from msprobe.mindspore.compiled.cells import refuse_static_graph
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.jit_calls import is_compiling
from msprobe.mindspore.kernel_dump import KernelRun
from msprobe.mindspore.run import Run, as_models
from msprobe.mindspore.script_steps import ScriptFollower


def _save(session: Session, variable: Any, name: Any, save_backward: Any) -> None:
    """Record `variable`, see `save_value`.

    Raises:
        UnsupportedError: MindSpore is in graph mode.
    """
    if session.config.level is Level.DEBUG:
        refuse_static_graph("save()", Level.DEBUG)
    save_value(session, variable, name, save_backward, quietly=quietly, watch=_watch)


def _watch(tensor: Any, arrival: Arrival) -> Callable[[], None] | None:
    if not tensor._requires_grad:
        return None
    remove: Callable[[], None] = tensor.register_hook(arrival).remove
    return remove


class PrecisionDebugger(DebuggerFront):
    """Records inputs, outputs and gradients of cells and APIs; one for each process.

    A second construction returns the first object. All methods may be called on the class itself.
    """

    _place = Place(_save, is_compiling, dumps_kernels=True)

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        step: int | list[int | str] | None = None,
    ) -> None:
        """Read the configuration; nothing is installed before `start`.

        Args:
            config_path: a ``config.json``; None for that of the installed package, which records
                statistics at L1 into ``./dump_path``.
            task: overrides the file: ``statistics``, ``tensor``, ``structure``, ``overflow_check``,
                ``nan_check``, ``diff_check``, ``free_benchmark``, ``exception_dump``.
            dump_path: overrides the file: folder of the dump, made when needed.
            level: overrides the file: ``L0``, ``L1``, ``mix``, ``debug``; ``L2`` for kernels, by
                MindSpore's own Dump: construct the debugger before anything is compiled.
            step: overrides the file: numbers and ranges (``"3-5"``) of the steps to record.

        Raises:
            ConfigError: a value cannot be used; the message names file, key, value and rule.
            UsageError: level L2, and a graph was compiled already.
            UnsupportedError: level debug, and MindSpore is in graph mode.
        """
        self._construct(
            _make_run, config_path, task=task, dump_path=dump_path, level=level, step=step
        )

    @classmethod
    def start(
        cls,
        model: nn.Cell | Sequence[nn.Cell] | None = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
    ) -> None:
        """Begin to record. A step or rank that is not wanted records nothing.

        Args:
            model: the model, or a list of models; needed once at L0 and mix. At L1 it adds the
                primitives that its cells hold.
            token_range: first and last call of the model to record, both included.
            rank_id: writes to ``rank{rank_id}`` whatever the communication group says.

        Raises:
            UsageError: no debugger was constructed.
            ConfigError: `model` or `token_range` cannot be used.
            UnsupportedError: this MindSpore is too old for the dynamic graph, or the level cannot
                be recorded in graph mode.
        """
        with lock:
            run: Run | KernelRun = cls._running()
            if isinstance(run, Run) and run.gradient_probe is not None:
                run.gradient_probe.resume()
            elif run.config.level is Level.DEBUG:
                refuse_static_graph("start()", Level.DEBUG)
            else:
                cls._start(model, as_models, token_range, rank_id)

    @classmethod
    def forward_backward_dump_end(cls) -> None:
        """End the recorded part of a step, as `stop` does.

        At level L1 calls of compiled code (``Jit``) are still recorded, until `stop` or `step`.
        """
        with lock:
            cls._running().end_forward_backward()


def follow_script(config: Config, *, has_step_function: bool = False) -> ScriptFollower:
    """Construct the debugger for a program that calls none of its methods.

    Args:
        config: the settings.
        has_step_function: see `ScriptFollower`.

    Raises:
        UnsupportedError: kernels are to be recorded.
    """
    if config.level in (Level.L2, Level.DEBUG):
        raise UnsupportedError(
            f"level {config.level}: an unedited script of MindSpore is recorded at L0, "
            "L1 or mix; construct msprobe.mindspore.PrecisionDebugger in it"
        )

    def at_level(level: Level) -> Run:
        place = PrecisionDebugger._place
        run = Run(replace(config, level=level))
        run.session.is_off = place.run.session.is_off
        run.loop = place.run.loop
        place.run = run
        use_session(run.session)
        return run

    with lock:
        debugger = PrecisionDebugger.__new__(PrecisionDebugger)
        debugger._construct(Run, None, config=config)
        run: Run = PrecisionDebugger._running()
        run.loop = ScriptFollower(run, at_level, has_step_function=has_step_function)
        return run.loop


def _make_run(config: Config) -> Run | KernelRun:
    if config.level is Level.DEBUG and not isinstance(config.section, GradProbeSection):
        refuse_static_graph("PrecisionDebugger()", Level.DEBUG)
    return KernelRun(config) if config.level is Level.L2 else Run(config)
