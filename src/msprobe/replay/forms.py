# SPDX-License-Identifier: Apache-2.0
"""The forms of tensors and numbers in a part of a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msprobe.dump.records import JsonTree
from msprobe.dump.values import PartPath

if TYPE_CHECKING:  # they use these functions
    from msprobe.replay.recorded_calls import BackwardPass, RecordedCall


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


def argument_forms(call: RecordedCall) -> Iterator[tuple[PartPath, Mapping[str, Any]]]:
    """Yield the form of each tensor among the arguments, with the place that `TensorSource` takes.

    Elements that are generated depend on the place, so all readers must name the same.
    """
    yield from tensor_forms(call.args, ("input",))
    yield from tensor_forms(call.kwargs, ())


def gradient_forms(one: BackwardPass) -> Iterator[tuple[PartPath, Mapping[str, Any]]]:
    """Yield the form of each gradient of an output, with the place that `TensorSource` takes."""
    yield from tensor_forms(one.incoming, ("gradient", one.name))
