# SPDX-License-Identifier: Apache-2.0
"""Features of attention, linear layers and routers that can be interpreted, of each call.

Nothing here draws random numbers: the spectral norm begins with the row sums of the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from msprobe.monitor.collecting.step_rows import Key, StepRows
from msprobe.monitor.rows import Stream

_POWER_ITERATIONS: Final = 3
_LEAST_INPUTS: Final = 2  # query and key
_MATRIX: Final = 2
_HEADS: Final = 4


class Features:
    """Computes the features that `l2_targets` asks for.

    Args:
        modules: by stream, modules by their names.
        sa_order: order of dimensions of query and key, ``s,b,h,d`` or ``b,s,h,d``.
    """

    def __init__(self, modules: Mapping[Stream, Mapping[str, nn.Module]], sa_order: str) -> None:
        self._modules = modules
        self._sa_order = sa_order

    def streams_of(self, name: str) -> list[Stream]:
        """Return the streams for which a module is measured."""
        return [stream for stream, modules in self._modules.items() if name in modules]

    def put(
        self, rows: StepRows, path: str, key: Key, micro_step: int, args: Sequence[Any]
    ) -> None:
        """Compute the features of a call that begins.

        Args:
            rows: of the step.
            path: name of the module in its model.
            key: its name as shown, chunk and number of the call.
            micro_step: of the call.
            args: its positional arguments.
        """
        for stream in self.streams_of(path):
            if stream in rows.streams:
                module = self._modules[stream][path]
                kept = micro_step if stream in (Stream.ATTENTION, Stream.ROUTER_LOGIT) else 0
                suffix, found = self._features(stream, module, args)
                shown = key._replace(name=f"{key.name}.{suffix}")
                for op, value in found.items():
                    rows.put_number(shown, value, kept, stream=stream, op=op)

    def _features(
        self, stream: Stream, module: nn.Module, args: Sequence[Any]
    ) -> tuple[str, dict[str, float]]:
        if stream is Stream.ATTENTION:
            return "attention", attention_features(args, self._sa_order)
        if stream is Stream.LINEAR:
            return "linear", linear_features(weight_of(module))
        if stream is Stream.ROUTER_WEIGHT:
            return "moe_router", router_weight_features(weight_of(module))
        logits = next((one for one in args if isinstance(one, Tensor)), None)
        return "moe_router", router_logit_features(logits)


def weight_of(module: nn.Module) -> Tensor | None:
    """Return the matrix of a module, None without one."""
    for name in ("weight", "wg"):
        found = getattr(module, name, None)
        found = getattr(found, "weight", found)  # `wg` may be a linear layer
        if isinstance(found, Tensor) and found.dim() == _MATRIX:
            return found
    return None


def attention_features(args: Sequence[Any], order: str) -> dict[str, float]:
    """Return entropy and mean of the largest weights of causal attention, first batch and head.

    Args:
        args: query and key first, of four dimensions.
        order: of their dimensions, ``s,b,h,d`` or ``b,s,h,d``.
    """
    if len(args) < _LEAST_INPUTS:
        return {}
    query, key = args[:2]
    if not (isinstance(query, Tensor) and isinstance(key, Tensor)):
        return {}
    if query.dim() != _HEADS or key.dim() != _HEADS:
        return {}
    first = (slice(None), 0, 0) if order == "s,b,h,d" else (0, slice(None), 0)
    q, k = query[first].float(), key[first].float()
    scores = q @ k.T / math.sqrt(q.shape[-1])
    hidden = torch.ones_like(scores, dtype=torch.bool).tril().logical_not()
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1)
    entropy = -(weights * torch.log(weights.clamp_min(1e-30))).sum(-1).mean()
    return {"entropy": entropy.item(), "softmax_max": weights.amax(-1).mean().item()}


def linear_features(weight: Tensor | None) -> dict[str, float]:
    """Return the spectral norm of a matrix, and the root of its stable rank.

    The spectral norm is estimated from below, by three power iterations.
    """
    if weight is None:
        return {}
    matrix = weight.detach().float()
    vector = matrix.sum(dim=0)
    if not bool(vector.any()):
        vector = torch.ones_like(vector)
    for _ in range(_POWER_ITERATIONS):
        vector = matrix.T @ (matrix @ vector)
        vector = vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
    spectral = (matrix @ vector).norm().item()
    return {"kernel_norm": spectral, "sr": matrix.norm().item() / spectral if spectral else 0.0}


def router_weight_features(weight: Tensor | None) -> dict[str, float]:
    """Return the mean cosine between the vectors of two experts (rows of the weight)."""
    if weight is None or weight.shape[0] < _MATRIX:
        return {}
    unit = nn.functional.normalize(weight.detach().float(), dim=1)
    count = len(unit)
    total = (unit @ unit.T).sum() - unit.square().sum()
    return {"router_weight_similarity": (total / (count * (count - 1))).item()}


def router_logit_features(logits: Tensor | None) -> dict[str, float]:
    """Return the mean entropy of tokens over experts (the last dimension)."""
    if logits is None or not logits.is_floating_point():
        return {}
    shares = torch.log_softmax(logits.float(), dim=-1)
    return {"per_token_expert_entropy": -(shares.exp() * shares).sum(-1).mean().item()}
