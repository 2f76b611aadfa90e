# SPDX-License-Identifier: Apache-2.0
"""`apart`: one rank of several computes by itself, and waits for no other.

`DistributedDataParallel` has a way to run without its collectives, which gradient accumulation
uses. All other communication ends what runs here before it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

_COMMUNICATION: Final = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})


class CommunicationError(Exception):
    """Other ranks would be needed."""


class _Refusal(TorchDispatchMode):  # type: ignore[no-untyped-call]  # not annotated in torch
    """While it is on, collectives and messages raise before they begin."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one operator.

        Raises:
            CommunicationError: it talks to other ranks.
        """
        if func.namespace in _COMMUNICATION:
            raise CommunicationError(f"{func} needs the other ranks")
        return func(*args, **(kwargs or {}))


@contextmanager
def apart() -> Iterator[None]:
    """Context in which no rank is waited for; communication raises a `CommunicationError`."""
    from torch.nn.parallel import DistributedDataParallel

    silenced: dict[DistributedDataParallel, tuple[bool, bool]] = {}

    def silence(module: nn.Module, _: Any) -> None:
        if not isinstance(module, DistributedDataParallel) or module in silenced:
            return
        if module.static_graph or not _has_final_buckets(module):
            raise CommunicationError("DistributedDataParallel has not settled its buckets yet")
        silenced[module] = module.require_backward_grad_sync, module.require_forward_param_sync
        module.require_backward_grad_sync = module.require_forward_param_sync = False

    handle = register_module_forward_pre_hook(silence)
    try:
        with _Refusal():  # type: ignore[no-untyped-call]  # not annotated in torch
            yield
    finally:
        handle.remove()
        for module, (gradients, parameters) in silenced.items():
            module.require_backward_grad_sync = gradients
            module.require_forward_param_sync = parameters


def _has_final_buckets(module: Any) -> bool:
    """Return whether the next forward pass makes no collective to order its buckets anew."""
    if module.find_unused_parameters:
        return True
    data = module._get_ddp_logging_data()
    return bool(data.get("has_rebuilt_buckets"))


def has_other_ranks() -> bool:
    """Return whether this process is one of several that may wait for each other."""
    distributed = torch.distributed
    is_member = distributed.is_available() and distributed.is_initialized()
    return is_member and distributed.get_world_size() > 1
