# SPDX-License-Identifier: Apache-2.0
"""MindSpore's own Dump, as far as a program can steer it: all uses of its private functions.

It reads the variable once, when the first graph is compiled. Afterwards it can only be told which
step it is, by functions that not every version has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mindspore
from msprobe.mindspore.immediate_operators import wait_for_launched

SETTINGS_VARIABLE: Final = "MINDSPORE_DUMP_CONFIG"
_OTHER_VARIABLE: Final = "MS_ACL_DUMP_CFG_PATH"
_CACHES: Final = ("cells_compile_cache", "ms_compile_cache")


def device_target() -> str:
    """Return ``CPU``, ``GPU`` or ``Ascend``."""
    return str(mindspore.get_context("device_target"))


def has_run_graphs() -> bool:
    """Return whether a graph was compiled in this process, so that the Dump has begun without us.

    False where this cannot be found out.
    """
    module: Any = import_module("mindspore.graph.api") if _has_graph_api() else mindspore.common.api
    return any(len(getattr(module, name, ())) > 0 for name in _CACHES)


def _has_graph_api() -> bool:
    return hasattr(mindspore, "graph")  # older versions have these functions in mindspore.common


def set_variable(path: Path) -> Callable[[], None]:
    """Point the Dump to a file of settings; return the undo, which puts the variables back."""
    before = {name: os.environ.get(name) for name in (SETTINGS_VARIABLE, _OTHER_VARIABLE)}
    os.environ[SETTINGS_VARIABLE] = str(path)
    os.environ.pop(_OTHER_VARIABLE, None)  # it would win

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return restore


class IterationCounter:
    """Makes the Dump number its iterations as the debugger numbers its steps.

    By itself it counts on with each execution of a graph that repeats an earlier one, and a step
    may run several graphs, or one several times.
    """

    def __init__(self) -> None:
        """Look for the functions; nothing is called."""
        native = import_module("mindspore._c_expression")
        names = ("_dump_set_dynamic", "_set_init_iter", "_dump_start", "_dump_stop", "_dump_step")
        self._functions = {name: getattr(native, name, None) for name in names}
        self._step: int | None = None

    @property
    def is_available(self) -> bool:
        """Return whether this MindSpore lets itself be told the step."""
        return all(self._functions.values())

    def take_over(self, step: int) -> None:
        """Count from this step on; before the first graph."""
        self._call("_dump_set_dynamic")
        self._call("_set_init_iter", step)
        self._step = step

    def begin(self, step: int) -> None:
        """Record from here on, as a part of this step."""
        if self._step != step:
            self._call("_set_init_iter", step)
            self._step = step
        self._call("_dump_start")

    def pause(self) -> None:
        """Record no more; CPUs do not heed this."""
        if self._step is not None:
            self._call("_dump_stop")

    def end_step(self) -> None:
        """End the step."""
        if self._step is not None:
            self._call("_dump_step", 1)
            self._step += 1

    def _call(self, name: str, *args: int) -> None:
        function = self._functions[name]
        if function is not None:
            function(*args)


def wait_for_device() -> None:
    """Return once everything that was started has run."""
    wait_for_launched()
    if device_target() != "CPU":
        mindspore.runtime.synchronize()
