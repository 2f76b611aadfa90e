# SPDX-License-Identifier: Apache-2.0
"""Layer mappings: the other side's names for the children of a class of layers.

    TopLayer:                       # the model itself
      network: module
    ParallelAttention:
      qkv_proj: query_key_value     # in every ParallelAttention
      core.attn: core_attention     # a path of several steps is fine

Paths are rewritten from the top, child by child; unlisted children keep their names. A call is a
child of the layer around it: ``norm.RmsNorm: npu_rms_norm``. Layers of a ``ParallelTransformer``
are counted from 0 on both sides, because the stages of a pipeline may be numbered on their own or
all together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.yaml_nodes import read_yaml

TOP_LAYER: Final = "TopLayer"
_OLD_TOP_LAYER: Final = "Cell"
_STACK_CLASS: Final = "ParallelTransformer"
_STACK_CHILD: Final = "layers"

_Steps = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerMapping:
    """The content of a layer mapping file.

    Attributes:
        children: class → renames of its children as steps, longest first.
        lines: line of each class and child, and of each class with an empty child.
        path: the file.
    """

    children: Mapping[str, tuple[tuple[_Steps, _Steps], ...]]
    lines: Mapping[tuple[str, str], int]
    path: Path


class RenamedLayers:
    """The modules and calls of one dump under the names that a layer mapping gives them.

    Args:
        mapping: the mapping.
        classes: module path → class, of every module of the dump.
    """

    def __init__(self, mapping: LayerMapping, classes: Mapping[str, str]) -> None:
        self._children = mapping.children
        self._counted = numbered_from_zero(classes)
        self._classes = {self._counted[path]: name for path, name in classes.items()}
        self._calls: dict[tuple[str, str], tuple[str, str] | None] = {}

    def paths(self) -> dict[str, str]:
        """Return module path → the path on the other side, layers counted from 0."""
        return {
            path: ".".join(self._renamed(_steps(own))[0]) for path, own in self._counted.items()
        }

    def call(self, path: str, api: str) -> tuple[str, str] | None:
        """Return module and name that a call has on the other side; None if no rule names it.

        Args:
            path: of the module around it.
            api: its name; of a primitive that a cell holds, the last part alone may be meant.
        """
        key = (path, api)
        if key not in self._calls:
            self._calls[key] = self._renamed_call(_steps(self._counted.get(path, path)), api)
        return self._calls[key]

    def _renamed_call(self, module: _Steps, api: str) -> tuple[str, str] | None:
        parts = _steps(api)
        for name in dict.fromkeys((parts, parts[-1:])):
            steps = module + name
            renamed, named_up_to = self._renamed(steps)
            if named_up_to == len(steps):
                return ".".join(renamed[:-1]), renamed[-1]
        return None

    def _renamed(self, steps: _Steps) -> tuple[list[str], int]:
        """Return the steps on the other side, and up to which of the steps a rule named them."""
        renamed: list[str] = []
        done = named_up_to = 0
        while done < len(steps):
            rule = self._rule(".".join(steps[:done]), steps[done:])
            old, new = rule or (steps[done : done + 1],) * 2
            renamed += new
            done += len(old)
            named_up_to = named_up_to if rule is None else done
        return renamed, named_up_to

    def _rule(self, layer: str, steps: _Steps) -> tuple[_Steps, _Steps] | None:
        # The rules of the model's own class hold at the top as well.
        names = [self._classes.get(layer, "")]
        for name in names if layer else [TOP_LAYER, *names]:
            for old, new in self._children.get(name, ()):
                if steps[: len(old)] == old:
                    return old, new
        return None


def read_layer_mapping(path: Path) -> LayerMapping:
    """Read a layer mapping file.

    Raises:
        ConfigError: it is not of the form above.
    """
    children: dict[str, tuple[tuple[_Steps, _Steps], ...]] = {}
    lines: dict[tuple[str, str], int] = {}
    for found, place, renames in read_yaml(path).items("classes of layers"):
        name = TOP_LAYER if found == _OLD_TOP_LAYER else found
        if name in children:
            place.refuse(found, f"{TOP_LAYER} once; {_OLD_TOP_LAYER} is its old name")
        rules = []
        for child, line, value in renames.items("lines of the form  child: its other name"):
            other = value.text("a child's name").partition("(")[0].strip()
            rules.append((_steps(child), _steps(other)))
            lines[name, child] = line.line
        rules.sort(key=lambda rule: -len(rule[0]))
        children[name] = tuple(rules)
        lines[name, ""] = place.line
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
