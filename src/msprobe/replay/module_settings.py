# SPDX-License-Identifier: Apache-2.0
"""`ModuleSettings`: how a module was made, by the settings that ``facts.json`` has of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from msprobe.dump.facts import Facts

# Settings of modules begin with it; those of several models with `module.0.`.
_ROOT: Final = "module"
# Of an argument that is no value of Python.
_NO_VALUE: Final = object()
_MODULE: Final = re.compile(r"\w+\(.*\)", re.DOTALL)
# No model is nested deeper; a damaged file may be.
_DEEPEST: Final = 64
OWN_CLASS: Final = "class"
"""Setting of a module whose class has a name of `torch.nn` and is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSettings:
    """How a module was made.

    Attributes:
        class_name: of its class, without its module.
        args: positional arguments of its class, as ``extra_repr`` shows them.
        kwargs: keyword arguments, shown or among its plain attributes.
        children: the modules in it, by name.
        training: whether it was training when the step began.
        is_of_framework: whether its class is the framework's of that name.
    """

    class_name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    children: Mapping[str, ModuleSettings] = field(default_factory=dict)
    training: bool = True
    is_of_framework: bool = True

    @property
    def changes_inputs(self) -> bool:
        """Whether it, or a module in it, writes into its argument."""
        inner = (child.changes_inputs for child in self.children.values())
        return bool(self.kwargs.get("inplace")) or any(inner)


def module_settings(facts: Facts | None, path: str) -> ModuleSettings | None:
    """Return the settings of a module; None where they were not recorded.

    Args:
        facts: of the step.
        path: of the module in its model; empty for the model.
    """
    if facts is None:
        return None
    name = f"{_ROOT}.{path}" if path else _ROOT
    shown = facts.settings.get(name)
    if not isinstance(shown, str):
        return None
    below = {
        key.removeprefix(f"{name}."): str(text)
        for key, text in facts.settings.items()
        if key.startswith(f"{name}.")
    }
    return _settings(shown, below, path, facts.modes.training if facts.modes else {})


def _settings(
    shown: str, below: Mapping[str, str], path: str, modes: Mapping[str, bool]
) -> ModuleSettings:
    """Return the settings of a module from its text, and those of everything in it by path."""
    args, kwargs = _arguments(shown)
    own = {key: text for key, text in below.items() if "." not in key}
    children: dict[str, ModuleSettings] = {}
    for name, text in own.items():
        if _MODULE.fullmatch(text) and path.count(".") < _DEEPEST:
            start = f"{name}."
            inner = {k.removeprefix(start): v for k, v in below.items() if k.startswith(start)}
            children[name] = _settings(text, inner, f"{path}.{name}" if path else name, modes)
    attributes = {key: _value(text) for key, text in own.items() if key not in children}
    return ModuleSettings(
        class_name=shown.partition("(")[0],
        args=args,
        kwargs={**attributes, **kwargs},
        children=children,
        training=_is_training(modes, path),
        is_of_framework=OWN_CLASS not in own,
    )


def _arguments(shown: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in ``RNNCell(4, 8, nonlinearity=relu)``; none where it is no such text.

    Those that are no values of Python are left out, and positional ones behind them.
    """
    try:
        call = ast.parse(shown, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return (), {}
    if not isinstance(call, ast.Call):
        return (), {}
    args = tuple(takewhile(lambda one: one is not _NO_VALUE, map(_literal, call.args)))
    kwargs = {one.arg: _literal(one.value) for one in call.keywords if one.arg}
    return args, {name: value for name, value in kwargs.items() if value is not _NO_VALUE}


def _literal(node: ast.expr) -> Any:
    """Return the value of an argument; modules show some texts as bare words."""
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _NO_VALUE


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text


def _is_training(modes: Mapping[str, bool], path: str) -> bool:
    """Return the mode of a module: its own, else that of the nearest one around it."""
    return next((modes[one] for one in _paths(path) if one in modes), True)


def _paths(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""
