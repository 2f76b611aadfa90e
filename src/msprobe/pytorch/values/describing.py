# SPDX-License-Identifier: Apache-2.0
"""The JSON form of torch values that are not tensors, and the type names of those that are."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._C import _functorch

from msprobe.dump.records import JsonTree

_TYPE_NAMES: Final = {
    "DTensor": "torch.distributed.tensor.DTensor",
    "FakeTensor": "torch._subclasses.fake_tensor.FakeTensor",
    "AsyncCollectiveTensor": "torch.distributed._functional_collectives.AsyncCollectiveTensor",
    "NestedTensor": "torch.nested._internal.nested_tensor.NestedTensor",
}


def tensor_type(tensor: torch.Tensor) -> str:
    """Return the ``type`` under which a tensor of any class is recorded."""
    if _functorch.is_functorch_wrapped_tensor(tensor):
        return "BatchedTensor" if _functorch.is_batchedtensor(tensor) else "GradTrackingTensor"
    kind = type(tensor)
    known = _TYPE_NAMES.get(kind.__name__)
    if known is not None:  # also of parameters: torch calls a marked DTensor a Parameter
        return known
    if kind is torch.Tensor or isinstance(tensor, torch.nn.Parameter):
        return "torch.Tensor"
    return f"{kind.__module__}.{kind.__qualname__}"


def group_description(group: Any) -> dict[str, JsonTree]:
    """Return the ranks of a process group and an id made of them (see `describe_group`)."""
    from msprobe.pytorch.distributed.process_groups import describe_group

    found = describe_group(group)
    ranks = list(found.ranks)
    return {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": found.group_id}


def placements_of(tensor: Any) -> tuple[JsonTree, JsonTree]:
    """Return the device mesh and the placements of a DTensor."""
    placements: list[JsonTree] = []
    for placement in tensor.placements:
        kind = type(placement).__name__.lstrip("_")
        details: dict[str, JsonTree] = {}
        if hasattr(placement, "dim"):
            details["dim"] = placement.dim
        if hasattr(placement, "reduce_op"):
            details["reduce_op"] = str(placement.reduce_op)
        placements.append({kind: details})
    return tensor.device_mesh.mesh.tolist(), placements


def describe(value: object) -> JsonTree:
    """Return the JSON form of a torch value, `NotImplemented` for anything else."""
    if isinstance(value, torch.dtype):
        return {"type": "torch.dtype", "value": str(value)}
    if isinstance(value, torch.device):
        return {"type": "torch.device", "value": str(value)}
    if isinstance(value, torch.Size):
        return {"type": "torch.Size", "value": [int(size) for size in value]}
    if isinstance(value, torch.memory_format):
        name = str(value).removeprefix("torch.")
        return {"type": "torch.memory_format", "format": name}
    if isinstance(value, torch.layout):
        return {"type": "torch.layout", "value": str(value)}
    if isinstance(value, torch.Generator):
        return {"type": "torch.Generator", "value": str(value.device)}
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {"type": type(value).__name__, "value": str(value)}
    if torch.distributed.is_available():
        return _describe_distributed(value)
    return NotImplemented


def _describe_distributed(value: object) -> JsonTree:
    distributed = torch.distributed
    if isinstance(value, distributed.ProcessGroup):
        return group_description(value)
    if isinstance(value, distributed.ReduceOp | distributed.ReduceOp.RedOpType):
        # A ReduceOp holds one of the named operations; torch calls each an instance of the other.
        name = getattr(value, "op", value)
        return {"type": "torch.distributed.ReduceOp", "value": str(name)}
    if type(value).__name__ == "DeviceMesh":
        return {"type": "torch.distributed.DeviceMesh", "value": value.mesh.tolist()}  # type: ignore[attr-defined]
    return NotImplemented
