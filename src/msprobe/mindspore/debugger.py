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

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindspore import nn
from msprobe.capture.front import DebuggerFront, Place, lock
from msprobe.config import Level, load_config, parse_token_range
from msprobe.errors import ConfigError
from msprobe.mindspore.kernel_dump import KernelRun
from msprobe.mindspore.run import Run, as_models
from msprobe.mindspore.saved_values import save


class PrecisionDebugger(DebuggerFront):
    """Records what cells and APIs see and produce; one for each process.

    A second construction returns the first object. All methods may be called on the class itself.
    """

    _place = Place()

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
    ) -> None:
        """Read the configuration; nothing is installed before `start`.

        Args:
            config_path: a ``config.json``; None for the default settings.
            task: overrides the file: ``statistics``, ``tensor``, ``structure``, ``overflow_check``,
                ``exception_dump``.
            dump_path: overrides the file: folder of the dump, made when needed.
            level: overrides the file: ``L0``, ``L1``, ``mix``, ``debug``; ``L2`` for kernels, by
                MindSpore's own Dump: construct the debugger before anything is compiled.
            step: overrides the file: numbers and ranges (``"3-5"``) of the steps to record.

        Raises:
            ConfigError: a value cannot be used; the message names file, key, value and rule.
            UsageError: level L2, and a graph was compiled already.
        """
        arguments = {
            "config_path": config_path,
            "task": task,
            "dump_path": dump_path,
            "level": level,
            "step": step,
        }
        with lock:
            if not self._is_second(arguments):
                config = load_config(
                    config_path,
                    task=task,
                    dump_path=dump_path,
                    level=level,
                    step=step,
                    dumps_kernels=True,
                )
                is_kernels = config.level is Level.L2
                self._begin(KernelRun(config) if is_kernels else Run(config), arguments)

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
            models, tokens = as_models(model), parse_token_range(token_range)
            if run.config.level is Level.DEBUG:
                return
            if tokens is not None and not (models or run.models):
                rule = "the model whose calls are counted"
                raise ConfigError("model", None, rule, source="start()", hint="token_range is set")
            run.start(models, tokens, rank_id)

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record a value under a name of your own; only at level ``debug``, else nothing happens.

        Needs no `start`. The file is complete after `step` or when the process ends.

        Args:
            variable: a tensor, number or text, or lists, tuples and dicts of these.
            name: counted from 0 in each step: ``{name}.{count}.debug``.
            save_backward: whether the gradients of the tensors are recorded too, as
                ``{name}_grad.{count}.debug``.

        Raises:
            UsageError: no debugger was constructed.
        """
        with lock:
            save(cls._running().session, variable, name, save_backward)
