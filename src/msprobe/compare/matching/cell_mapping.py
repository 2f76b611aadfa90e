# SPDX-License-Identifier: Apache-2.0
"""Cell mappings: modules of the target under the names that the reference has for them.

    fc2.Dense: fc2.Linear
    network.backbone.layer1: model.blocks.0

A key is a path and class, or whole segments of these. Without a file, MindSpore's ``Cell`` is
PyTorch's ``Module`` and the rest is equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.yaml_nodes import read_yaml

# MindSpore's classes and PyTorch's; equal names need no entry.
CLASS_NAMES: Final[Mapping[str, str]] = {
    "BatchNorm": "BatchNorm2d",
    "CellList": "ModuleList",
    "CellDict": "ModuleDict",
    "Conv1dTranspose": "ConvTranspose1d",
    "Conv2dTranspose": "ConvTranspose2d",
    "Conv3dTranspose": "ConvTranspose3d",
    "Dense": "Linear",
    "EmbeddingLookup": "Embedding",
    "FastGelu": "GELU",
    "HShrink": "Hardshrink",
    "HSigmoid": "Hardsigmoid",
    "HSwish": "Hardswish",
    "InstanceNorm": "InstanceNorm2d",
    "LRN": "LocalResponseNorm",
    "SequentialCell": "Sequential",
    "SoftShrink": "Softshrink",
    "SoftmaxCrossEntropyWithLogits": "CrossEntropyLoss",
}


@dataclass(frozen=True, slots=True)
class CellMapping:
    """The content of a cell mapping file.

    Attributes:
        names: ``{path}.{class}``, or segments of it → the same on the other side.
        lines: line of each.
        path: the file.
    """

    names: Mapping[str, str]
    lines: Mapping[str, int]
    path: Path

    def renamed(self, path: str, class_name: str) -> str:
        """Return the path that the other side has for a module."""
        full = f"{path}.{class_name}" if path else class_name
        whole = self.names.get(full)
        if whole is not None:
            return _without_class(whole, class_name)
        parts = [name for name in self.names if name in full]
        renamed = full
        for name in parts:
            renamed = _replace_segments(renamed, name, self.names[name])
        if renamed == full:
            # A key that is only a part of a segment, such as "layer" for "layer1" and "layer2".
            for name in parts:
                renamed = renamed.replace(name, self.names[name], 1)
        return renamed.rpartition(".")[0] if renamed != full else path


def read_cell_mapping(path: Path) -> CellMapping:
    """Read a cell mapping file.

    Raises:
        ConfigError: it is not of that form.
    """
    names: dict[str, str] = {}
    lines: dict[str, int] = {}
    for name, place, value in read_yaml(path).items("lines of the form  cell: module"):
        names[_without_kind(name)] = _without_kind(value.text("the name of a module"))
        lines[_without_kind(name)] = place.line
    return CellMapping(names, lines, path)


def class_family(class_name: str | None) -> str:
    """Return a class under the name that PyTorch has for it."""
    return CLASS_NAMES.get(class_name or "", class_name or "")


def _without_kind(name: str) -> str:
    for kind in ("Cell.", "Module."):
        name = name.removeprefix(kind)
    return name


def _without_class(name: str, class_name: str) -> str:
    """Return the path of ``{path}.{class}``; a lower-case last part was no class but a child."""
    path, _, last = name.rpartition(".")
    return path if last[:1].isupper() or last == class_name else name


def _replace_segments(name: str, old: str, new: str) -> str:
    """Replace whole segments of a dotted name, once."""
    return f".{name}.".replace(f".{old}.", f".{new}.", 1)[1:-1]
