# SPDX-License-Identifier: Apache-2.0
"""Find the function of a program whose calls are its steps, and wrap it when it is defined."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from msprobe.errors import UsageError
from msprobe.launch.program import Program

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
DECORATOR: Final = "__msprobe_step__"
"""The name under which the program finds the decorator of its step function."""


@dataclass(frozen=True, slots=True)
class StepFunction:
    """Where a function is defined.

    Attributes:
        module: its module; empty for the program itself.
        path: its name there, such as ``train_step`` or ``Trainer.train_step``.
    """

    module: str
    path: str

    @classmethod
    def parse(cls, text: str) -> StepFunction:
        """Return the function in ``pkg.mod:name``; in ``name`` alone it is the program's.

        Raises:
            UsageError: it is no such text.
        """
        module, _, path = text.rpartition(":")
        parts = [*path.split("."), *(module.split(".") if module else ())]
        if not all(part.isidentifier() for part in parts):
            raise UsageError(
                f"--step-function {text}: needs a name such as train_step, Trainer.train_step or "
                "package.module:train_step"
            )
        return cls("" if module == "__main__" else module, path)

    def check(self, program: Program) -> None:
        """Look for the function in the program.

        Raises:
            UsageError: it is not there.
        """
        try:
            tree = program.tree()
        except SyntaxError:  # which the program shows when it is run
            return
        if next(_definitions(tree.body, self.path.split(".")), None) is None:
            raise UsageError(f"--step-function: {program.name} defines no function {self.path}")

    def decorate(self, tree: ast.Module) -> None:
        """Add the decorator `DECORATOR` to the function, innermost."""
        for node in _definitions(tree.body, self.path.split(".")):
            place = {"lineno": node.lineno, "col_offset": node.col_offset}
            node.decorator_list.append(ast.Name(DECORATOR, ast.Load(), **place))
        ast.fix_missing_locations(tree)

    def wrap_in(self, module: ModuleType, wrap: Wrap) -> None:
        """Exchange the function, of a module or of a class in it, for ``wrap(function)``.

        Raises:
            UsageError: there is no such function.
        """
        *around, name = self.path.split(".")
        owner: Any = module
        for part in around:
            owner = getattr(owner, part, None)
        found = inspect.getattr_static(owner, name, None)
        if isinstance(found, staticmethod | classmethod):
            setattr(owner, name, type(found)(wrap(found.__func__)))
        elif callable(found):
            setattr(owner, name, wrap(found))
        else:
            raise UsageError(
                f"--step-function: there is no function {self.path} in {module.__name__}"
            )


def _definitions(body: list[ast.stmt], parts: list[str]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.ClassDef) and len(parts) > 1 and node.name == parts[0]:
            yield from _definitions(node.body, parts[1:])
        elif isinstance(node, ast.FunctionDef) and [node.name] == parts:
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions(node.body, parts)
