# SPDX-License-Identifier: Apache-2.0
"""The forms of tensors and numbers in a part of a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msprobe.dump.records import JsonTree
from msprobe.dump.values import PartPath


def tensor_forms(tree: JsonTree, place: PartPath) -> Iterator[tuple[PartPath, Mapping[str, Any]]]:
    """Yield the form of each tensor and number in a part of a record, with its place."""
    if isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from tensor_forms(item, (*place, index))
    elif isinstance(tree, dict):
        kind = tree.get("type")
        if not isinstance(kind, str):
            for key, item in tree.items():
                yield from tensor_forms(item, (*place, key))
        elif "shape" in tree or kind in ("bool", "int"):
            yield place, tree
