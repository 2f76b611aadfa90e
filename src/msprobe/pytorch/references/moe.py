# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: gates that choose experts, and tokens sorted by expert and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.replay.references import NoReferenceError, builtin_golden

_SOFTMAX: Final = 0
_TOP_TWO: Final = 1


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of the last axis and their places; of equals the first ones."""
    values, places = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], places[..., :k]


@builtin_golden("npu_moe_gating_top_k_softmax")
def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest shares of softmax(x), their experts, and their rows in order of expert choice.

    Args:
        x: (…, experts).
        finished: rows that take part in nothing; their expert is the number of experts.
        k: how many experts a row gets.
    """
    values, experts = top_k(x.softmax(-1), k)
    if finished is not None:
        experts = experts.masked_fill(finished.bool().unsqueeze(-1), x.shape[-1])
    rows = experts.numel() // k
    row_index = torch.arange(rows * k).reshape(k, rows).t().reshape(experts.shape)
    return values, experts.int(), row_index.int()


@builtin_golden("topk_softmax", "fused_topk")
def topk_softmax(x: Tensor, k: int, renormalize: bool = False) -> tuple[Tensor, Tensor]:
    """The k largest shares of softmax(x) and their experts."""
    values, experts = top_k(x.softmax(-1), k)
    return (values / values.sum(-1, keepdim=True) if renormalize else values), experts


@builtin_golden("npu_moe_gating_top_k")
def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Any, ...]:
    """Shares of the k chosen experts, the experts, and the shares of all if asked for.

    Experts are chosen by their share + bias within the `k_group` best of `group_count` groups; a
    group counts by its best expert, or (``group_select_mode`` 1) by its two best.

    Args:
        x: (rows, experts).
        k: how many experts a row gets.
        bias: (experts), for the choice alone.
        k_group: how many groups are kept.
        group_count: number of groups.
        group_select_mode: see above.
        renorm: 1 for shares that sum to 1.
        norm_type: 0 for softmax, 1 for sigmoid.
        out_flag: whether the shares of all experts are returned.
        routed_scaling_factor: factor of the chosen shares.
        eps: added to their sum.
    """
    shares = x.softmax(-1) if norm_type == _SOFTMAX else x.sigmoid()
    choice = shares if bias is None else shares + bias
    if group_count > 1:
        grouped = choice.reshape(*choice.shape[:-1], group_count, -1)
        best = top_k(grouped, 2 if group_select_mode == _TOP_TWO else 1)[0].sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool)
        kept = kept.scatter(-1, top_k(best, k_group)[1], True)
        choice = grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)
    experts = top_k(choice, k)[1]
    chosen = shares.gather(-1, experts)
    if renorm or norm_type != _SOFTMAX:
        chosen = chosen / (chosen.sum(-1, keepdim=True) + eps)
    return chosen * routed_scaling_factor, experts.int(), shares if out_flag else None


@builtin_golden("npu_moe_token_permute", "moe_permute", "Autograd.PermuteMoE_topK")
def npu_moe_token_permute(
    tokens: Tensor,
    indices: Tensor,
    num_out_tokens: int | None = None,
    *args: Any,
    padded_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Tokens sorted by expert, and the place that each choice of an expert got.

    Args:
        tokens: (tokens, size).
        indices: the experts of each token, (tokens) or (tokens, k).
        num_out_tokens: how many sorted tokens are kept; None or 0 for all.
        *args: `padded_mode` by position.
        padded_mode: not supported.
    """
    if padded_mode or any(args):
        raise NoReferenceError("npu_moe_token_permute with padding")
    k = 1 if indices.ndim == 1 else indices.shape[1]
    order = indices.flatten().argsort(stable=True)
    places = order.argsort(stable=True)
    kept = order[:num_out_tokens] if num_out_tokens else order
    return tokens[kept // k], places.int()


@builtin_golden("npu_moe_token_unpermute", "moe_unpermute", "Autograd.UnpermuteMoE_topK")
def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> Tensor:
    """Each token's sum over its experts, weighted with their shares.

    Args:
        permuted_tokens: (kept, size).
        sorted_indices: places in it, (tokens·k); choices beyond its end were dropped.
        probs: (tokens, k).
        padded_mode: not supported.
        restore_shape: only used with it.
    """
    if padded_mode:
        raise NoReferenceError("npu_moe_token_unpermute with padding")
    k = 1 if probs is None else probs.shape[1]
    places = sorted_indices.long()
    kept = places < permuted_tokens.shape[0]
    found = permuted_tokens[places.clamp_max(permuted_tokens.shape[0] - 1)]
    found = found.masked_fill(~kept.unsqueeze(-1), 0.0).reshape(-1, k, found.shape[-1])
    return (found if probs is None else found * probs.unsqueeze(-1)).sum(1)
