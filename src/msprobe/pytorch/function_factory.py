# SPDX-License-Identifier: Apache-2.0
"""`npu_custom_functions` and `npu_custom_grad_functions`, as scripts for mindstudio-probe use them.

Both are views of `msprobe.replay.references`. New code registers with `msprobe.golden`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msprobe.pytorch.references  # noqa: F401 - registers the references that come with msprobe
from msprobe.replay.references import all_goldens, register

Function = TypeVar("Function", bound=Callable[..., Any])
_BACKWARD: Final = ("_backward", "_grad")


class FunctionRegistry(Mapping[str, Callable[..., Any]]):
    """Reference functions by the names of operators: those of forward or of backward passes."""

    def __init__(self, *, backward: bool) -> None:
        self._backward = backward

    def __call__(self, functions: Iterable[Callable[..., Any]]) -> None:
        """Register functions under their own names."""
        for function in functions:
            self.register(function)

    def register(self, function: Function) -> Function:
        """Register a function under its own name; also as a decorator."""
        register(function.__name__, function)
        return function

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return the reference of an operator."""
        return self._functions()[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over names of operators."""
        return iter(self._functions())

    def __len__(self) -> int:
        """Return how many operators have a reference."""
        return len(self._functions())

    def _functions(self) -> dict[str, Callable[..., Any]]:
        return {
            one.name: one.function
            for one in all_goldens()
            if one.name.endswith(_BACKWARD) == self._backward
        }


npu_custom_functions: Final = FunctionRegistry(backward=False)
"""References of operators."""
npu_custom_grad_functions: Final = FunctionRegistry(backward=True)
"""References of operators that are a backward pass."""
