# SPDX-License-Identifier: Apache-2.0
"""Parameters of PyTorch's functions: their order and their defaults (``signatures.yaml``).

``F.softmax(x, -1)`` is recorded as it was written, or with every parameter by name and the defaults
of those that were left out.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from msprobe.dump.records import JsonTree
from msprobe.yaml_nodes import parse_yaml

_FILE: Final = "signatures.yaml"


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function.

    Attributes:
        names: in order.
        defaults: parameter → its value where a call leaves it out.
    """

    names: tuple[str, ...]
    defaults: Mapping[str, JsonTree]

    def name_of(self, argument: str) -> str:
        """Return an argument by name: ``dim`` for ``1``; others stay as they are.

        Args:
            argument: position or name, and the place inside a nested value: ``0.2``.
        """
        head, dot, rest = argument.partition(".")
        if head.isascii() and head.isdigit() and int(head) < len(self.names):
            head = self.names[int(head)]
        return f"{head}{dot}{rest}"

    def is_default(self, argument: str, value: JsonTree) -> bool:
        """Return whether an argument has the value that it has when a call leaves it out."""
        name = self.name_of(argument)
        return name in self.defaults and bool(self.defaults[name] == value)


@functools.cache
def signature_of(function: str) -> Signature:
    """Return the signature of a function, ``Functional.softmax``; an empty one if unknown."""
    text = _texts().get(function)
    if text is None:
        return Signature((), {})
    parsed = ast.parse(f"lambda {text}: 0", mode="eval").body
    assert isinstance(parsed, ast.Lambda)
    found = parsed.args
    names = [each.arg for each in found.args]
    optional = [
        *names[len(names) - len(found.defaults) :],
        *(each.arg for each in found.kwonlyargs),
    ]
    values = [each for each in (*found.defaults, *found.kw_defaults) if each is not None]
    defaults = {name: ast.literal_eval(value) for name, value in zip(optional, values, strict=True)}
    return Signature(tuple(names), defaults)


def known_functions() -> Collection[str]:
    """Return the functions whose signatures are known."""
    return _texts().keys()


@functools.cache
def _texts() -> dict[str, str]:
    text = resources.files(__package__).joinpath(_FILE).read_text("utf-8")
    items = parse_yaml(text, Path(_FILE)).items("functions")
    return {name: value.text("parameters") for name, _, value in items}
