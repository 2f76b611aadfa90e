# SPDX-License-Identifier: Apache-2.0
"""Layer mappings: how the children of a class of layers are called on the other side.

    TopLayer:                       # the model itself
      network: module
    ParallelAttention:
      qkv_proj: query_key_value     # in every ParallelAttention
      core.attn: core_attention     # a path of several steps is fine

Paths are rewritten from the top, child by child; what is not listed keeps its name. Layers of a
``ParallelTransformer`` are counted from 0 on both sides, because the stages of a pipeline may be
numbered on their own or all together.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.compare.matching.mapping_warnings import Complaints
from msprobe.yaml_nodes import read_yaml

logger = logging.getLogger(__name__)

TOP_LAYER: Final = "TopLayer"
_OLD_TOP_LAYER: Final = "Cell"
_STACK_CLASS: Final = "ParallelTransformer"
_STACK_CHILD: Final = "layers"

_Steps = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerMapping:
    """What a layer mapping file says.

    Attributes:
        children: class → renames of its children as steps, longest first.
        lines: line of each class.
        path: the file.
    """

    children: Mapping[str, tuple[tuple[_Steps, _Steps], ...]]
    lines: Mapping[str, int]
    path: Path

    def renamed_paths(self, classes: Mapping[str, str]) -> dict[str, str]:
        """Return module path → the path on the other side, layers counted from 0.

        Args:
            classes: module path → class, of every module.
        """
        counted = numbered_from_zero(classes)
        classes_by_counted = {counted[path]: name for path, name in classes.items()}
        return {path: self._renamed(counted[path], classes_by_counted) for path in classes}

    def renamed_api(self, api: str, class_name: str | None) -> str:
        """Return the name that an API inside a layer has on the other side."""
        for steps, other in self.children.get(class_name or TOP_LAYER, ()):
            if steps == (api,):
                return ".".join(other)
        return api

    def warn_unused(self, classes: Collection[str]) -> None:
        """Log the classes that no module of a dump has."""
        complaints = Complaints(self.path, logger.warning)
        for name, line in self.lines.items():
            if name != TOP_LAYER and name not in classes:
                complaints.unknown(name, line, "the target has no layer of class", classes)
        complaints.close()

    def _renamed(self, path: str, classes: Mapping[str, str]) -> str:
        steps = path.split(".") if path else []
        done = 0
        renamed: list[str] = []
        while done < len(steps):
            here = ".".join(steps[:done])
            class_name = classes.get(here, "") if here else TOP_LAYER
            taken, other = self._child(class_name, tuple(steps[done:]))
            if not here and taken == 1 and other == (steps[done],) and "" in classes:
                # The rules of the model's own class hold at the top as well.
                taken, other = self._child(classes[""], tuple(steps[done:]))
            renamed += other
            done += taken
        return ".".join(renamed)

    def _child(self, class_name: str, steps: _Steps) -> tuple[int, _Steps]:
        for old, new in self.children.get(class_name, ()):
            if steps[: len(old)] == old:
                return len(old), new
        return 1, steps[:1]


def read_layer_mapping(path: Path) -> LayerMapping:
    """Read a layer mapping file.

    Raises:
        ConfigError: it is not of the form above.
    """
    children: dict[str, tuple[tuple[_Steps, _Steps], ...]] = {}
    lines: dict[str, int] = {}
    for found, place, renames in read_yaml(path).items("classes of layers"):
        name = TOP_LAYER if found == _OLD_TOP_LAYER else found
        if name in children:
            place.refuse(found, f"{TOP_LAYER} once; {_OLD_TOP_LAYER} is its old name")
        rules = [
            (_steps(child), _steps(value.text("a child's name").partition("(")[0].strip()))
            for child, _, value in renames.items("lines of the form  child: its other name")
        ]
        rules.sort(key=lambda rule: -len(rule[0]))
        children[name] = tuple(rules)
        lines[name] = place.line
    return LayerMapping(children, lines, path)


def numbered_from_zero(classes: Mapping[str, str]) -> dict[str, str]:
    """Return module path → path in which the layers of a transformer are counted from 0.

    Args:
        classes: module path → class, of every module.
    """
    stacks = [
        f"{path}.{_STACK_CHILD}." if path else f"{_STACK_CHILD}."
        for path, name in classes.items()
        if name == _STACK_CLASS
    ]
    first: defaultdict[str, list[int]] = defaultdict(list)
    for path in classes:
        for stack in stacks:
            number = _number_after(path, stack)
            if number is not None:
                first[stack].append(number)
    renumbered = {}
    for path in classes:
        renumbered[path] = path
        for stack in stacks:
            number = _number_after(path, stack)
            if number is not None:
                rest = path[len(stack) + len(str(number)) :]
                renumbered[path] = f"{stack}{number - min(first[stack])}{rest}"
    return renumbered


def _number_after(path: str, stack: str) -> int | None:
    if not path.startswith(stack):
        return None
    text = path[len(stack) :].partition(".")[0]
    return int(text) if text.isascii() and text.isdigit() else None


def _steps(path: str) -> _Steps:
    return tuple(path.split(".")) if path else ()
