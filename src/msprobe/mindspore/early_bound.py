# SPDX-License-Identifier: Apache-2.0
"""Find the modules that imported an API by name: ``from mindspore.ops import relu``.

Such a name leads to the function itself, past the place of the wrapper; so it is
replaced, too. MindSpore's own modules call each other and stay as they are, except its layers and
the modules that layers and scripts reach into, such as `mindspore.ops.functional` (``F``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Final

_MINDSPORE: Final = "mindspore"
_SEARCHED: Final = (
    "mindspore.nn.layer",
    "mindspore.nn.loss",
    "mindspore.mint.nn.layer",
)
_REACHED_INTO: Final = frozenset(
    {"mindspore.ops.functional", "mindspore.ops.function", "mindspore.ops.function.nn_func"}
)
_OWN: Final = "msprobe"
_MAIN: Final = "__main__"


class EarlyBound:
    """Finds names of functions in modules that are no API; each module is searched once.

    The main module is searched every time: a notebook imports as it goes.
    """

    def __init__(self) -> None:
        """Create it; nothing is searched yet."""
        self._searched: set[str] = set()
        self._known: dict[str, list[str]] = {}

    def find(self, originals: Mapping[int, Any]) -> Iterator[tuple[ModuleType, str]]:
        """Yield modules and the names in them that mean one of these functions.

        Args:
            originals: the functions by `id`; must hold them alive.
        """
        for key in (sys.modules.keys() - self._searched) | {_MAIN}:
            self._searched.add(key)
            names = _names_in(key, sys.modules.get(key), originals)
            if names:
                self._known[key] = names
        for key, names in self._known.items():
            module = sys.modules.get(key)
            for name in names:
                if module is not None and id(module.__dict__.get(name)) in originals:
                    yield module, name


def _names_in(key: str, module: object, originals: Mapping[int, Any]) -> list[str]:
    home = key.partition(".")[0]
    is_searched = home not in (_MINDSPORE, _OWN) or key.startswith(_SEARCHED)
    is_searched = is_searched or key in _REACHED_INTO
    if home in sys.stdlib_module_names and key != _MAIN:
        is_searched = False
    if not is_searched or not isinstance(module, ModuleType):
        return []
    return [name for name, value in list(vars(module).items()) if id(value) in originals]
