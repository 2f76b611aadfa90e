# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that Megatron-LM saves as ``torch_dist``: a distributed checkpoint of PyTorch.

    {folder}/iter_0000100/.metadata, *.distcp   tensors; equal layers are stacked into one
    {folder}/iter_0000100/common.pt             everything that is no tensor: arguments, iteration …

Stacked layers are taken apart again, and names get the spelling of megatron.core.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from msprobe.checkpoints.distributed import METADATA, read_distributed
from msprobe.checkpoints.key_paths import path_name
from msprobe.checkpoints.megatron_names import is_layout, layer_of
from msprobe.checkpoints.parameters import Checkpoint, Format, Parameter, make_checkpoint
from msprobe.checkpoints.spans import PartSpan
from msprobe.checkpoints.torch_file import read_torch_file

_COMMON: Final = "common.pt"
_STACKED: Final = re.compile(r"(?<=\.layers\.)(?=[^\d])|(?<=^layers\.)(?=[^\d])")
_MAX_LAYERS: Final = 100_000


def is_megatron_distributed(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of Megatron in PyTorch's distributed format."""
    return (folder / METADATA).is_file() and (folder / _COMMON).is_file()


def read_megatron_distributed(folder: Path) -> Checkpoint:
    """Return the checkpoint in such a folder.

    Raises:
        CheckpointFormatError: a file is missing, damaged or hostile.
    """
    content = read_distributed(folder)
    content.parameters = [layer for parameter in content.parameters for layer in _layers(parameter)]
    common = read_torch_file(folder / _COMMON).content
    common.values = [value for value in common.values if not is_layout(value.path)]
    taken = {entry.path for entry in content.entries()}
    shared = any(entry.path in taken for entry in common.entries())
    content.add(common, ("common",) if shared else ())
    content.formats = {Format.MEGATRON}
    return make_checkpoint(folder, "Megatron, torch_dist", content)


def _layers(parameter: Parameter) -> list[Parameter]:
    """Return the layers of a stacked parameter; one that is not stacked as it is."""
    name = path_name(parameter.path)
    if layer_of(name) is not None or not _STACKED.search(name) or not parameter.shape:
        return [parameter]
    count, shape = parameter.shape[0], parameter.shape[1:]
    if count > _MAX_LAYERS:
        return [parameter]
    size = math.prod(shape)
    return [
        replace(
            parameter,
            name=(full := _STACKED.sub(f"{number}.", name, count=1)),
            path=(full,),
            shape=shape,
            span=PartSpan(parameter.span, number * size),
        )
        for number in range(count)
    ]
