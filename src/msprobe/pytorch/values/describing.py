# SPDX-License-Identifier: Apache-2.0
"""The JSON form of torch values that are not tensors, and the type names of those that are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch._C import _functorch

from msprobe.dump.records import JsonTree
from msprobe.dump.value_types import Maker, NotRebuildableError

_TYPE_NAMES: Final = {
    "DTensor": "torch.distributed.tensor.DTensor",
    "FakeTensor": "torch._subclasses.fake_tensor.FakeTensor",
    "AsyncCollectiveTensor": "torch.distributed._functional_collectives.AsyncCollectiveTensor",
    "NestedTensor": "torch.nested._internal.nested_tensor.NestedTensor",
}
# Whose text says all of it.
_SHOWN: Final[Mapping[type, str]] = {
    torch.dtype: "torch.dtype",
    torch.device: "torch.device",
    torch.layout: "torch.layout",
    torch.SymInt: "SymInt",
    torch.SymFloat: "SymFloat",
    torch.SymBool: "SymBool",
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


def describe(value: Any) -> JsonTree:
    """Return the JSON form of a torch value, `NotImplemented` for anything else.

    It goes by the type alone: `isinstance` would ask the value for its class.
    """
    kind = type(value)
    if kind in _SHOWN:
        return {"type": _SHOWN[kind], "value": str(value)}
    if kind is torch.Size:
        return {"type": "torch.Size", "value": [int(size) for size in value]}
    if kind is torch.memory_format:
        name = str(value).removeprefix("torch.")
        return {"type": "torch.memory_format", "format": name}
    if issubclass(kind, torch.Generator):
        return {"type": "torch.Generator", "value": str(value.device)}
    if torch.distributed.is_available():
        return _describe_distributed(value, kind)
    return NotImplemented


def _describe_distributed(value: Any, kind: type) -> JsonTree:
    distributed = torch.distributed
    if issubclass(kind, distributed.ProcessGroup):
        return group_description(value)
    if kind in (distributed.ReduceOp, distributed.ReduceOp.RedOpType):
        # A ReduceOp holds one of the named operations.
        name = getattr(value, "op", value)
        return {"type": "torch.distributed.ReduceOp", "value": str(name)}
    if kind.__name__ == "DeviceMesh" and kind.__module__.startswith("torch."):
        return {"type": "torch.distributed.DeviceMesh", "value": value.mesh.tolist()}
    return NotImplemented


def _named(tree: dict[str, Any]) -> Any:
    """Return the attribute of torch that a form names: a dtype, a layout, a memory format."""
    name = str(tree.get("value", tree.get("format"))).removeprefix("torch.")
    found = getattr(torch, name)
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        raise NotRebuildableError(f"torch.{name} is no {tree['type']}")
    return found


MAKERS: Final[Mapping[str, Maker]] = {
    "torch.dtype": _named,
    "torch.layout": _named,
    "torch.memory_format": _named,
    "torch.device": lambda tree: torch.device(tree["value"]),
    "torch.Size": lambda tree: torch.Size(tree["value"]),
}
"""For `rebuild_value`: how values of torch's are made of their JSON forms."""
