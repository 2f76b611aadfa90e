# SPDX-License-Identifier: Apache-2.0
"""Run code right after a module is imported, whenever a program does that."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


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
