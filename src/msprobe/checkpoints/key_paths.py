# SPDX-License-Identifier: Apache-2.0
"""Key paths: the keys that lead to an entry of a checkpoint, and the names made of them.

A path is a tuple of the keys as the file has them, so ``("a.b",)`` differs from ``("a", "b")`` and
``(1,)`` from ``("1",)``. Names are made for people: keys joined by dots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

KeyPath = tuple[Any, ...]
"""Keys from the outermost container inwards: text, numbers, or tuples of them."""


def path_name(path: KeyPath) -> str:
    """Return the keys of a path joined by dots; different paths may share it."""
    return path[0] if len(path) == 1 and type(path[0]) is str else ".".join(map(str, path))


def spelled_names(paths: Iterable[KeyPath]) -> dict[KeyPath, str]:
    """Return names for those paths whose keys joined by dots are not their own alone.

    ``["a.b"]`` and ``a.b`` for ``("a.b",)`` and ``("a", "b")``; ``[1]`` and ``1`` for ``(1,)`` and
    ``("1",)``.

    Args:
        paths: some paths, each different from all others.
    """
    paths = list(paths)
    counts = Counter(map(path_name, paths))
    if len(counts) == len(paths):
        return {}
    found: dict[KeyPath, str] = {}
    for path in paths:
        if counts[path_name(path)] > 1:
            name = base = _written_out(path)
            number = 1
            while name != path_name(path) and name in counts:
                number += 1
                name = f"{base} #{number}"
            counts[name] += 1
            found[path] = name
    return found


def _written_out(path: KeyPath) -> str:
    """Return a path with those keys in brackets that joining by dots would blur."""
    text = ""
    for key in path:
        if isinstance(key, str) and key and "." not in key and "[" not in key:
            text += f".{key}" if text else key
        else:
            text += f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"
    return text
