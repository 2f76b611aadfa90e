# SPDX-License-Identifier: Apache-2.0
"""`scaled_dot_product_attention` and PyTorch's kernels behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch.references.attention import (
    Attended,
    attend,
    either,
    outside_window,
    require_no_dropout,
)
from msprobe.pytorch.references.derivatives import gradients
from msprobe.pytorch.references.flash_attention import attend_packed
from msprobe.replay.references import builtin_golden


@builtin_golden("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with a boolean or additive mask; a causal mask begins at the first key."""
    require_no_dropout(dropout_p)
    return _attended(query, key, value, attn_mask, is_causal, scale).output


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Attended:
    bias = blocked = None
    if mask is not None and mask.dtype == torch.bool:
        blocked = ~mask
    elif mask is not None:
        bias = mask
    causal = None
    if is_causal:
        causal = outside_window(query.shape[-2], key.shape[-2], left=None, right=0)
    return attend(
        query,
        key,
        value,
        scale=_scale(query, scale),
        bias=bias,
        blocked=either(blocked, causal),
    )


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


@builtin_golden("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of the sums."""
    require_no_dropout(dropout_p)
    found = _attended(query, key, value, attn_mask, is_causal, scale)
    # The kernel says zero for a query that sees no key.
    sums = found.logsumexp
    return found.output, sums.masked_fill(sums == -torch.inf, 0.0)


@builtin_golden("_scaled_dot_product_flash_attention")
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention and the logarithm of the sums; nothing about the other seven outputs."""
    require_no_dropout(dropout_p)
    found = _attended(query, key, value, None, is_causal, scale)
    return (found.output, found.logsumexp, *(None,) * 7)


@builtin_golden("_scaled_dot_product_cudnn_attention")
def cudnn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention; nothing about the other eight outputs."""
    require_no_dropout(dropout_p)
    found = _attended(query, key, value, attn_bias, is_causal, scale)
    return (found.output, *(None,) * 8)


@builtin_golden("_scaled_dot_product_efficient_attention")
def efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention; the sums are padded by the kernel and not judged."""
    require_no_dropout(dropout_p)
    found = _attended(query, key, value, attn_bias, is_causal, scale)
    return (found.output, None, None, None)


@builtin_golden("_flash_attention_forward")
def flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    **_: Any,
) -> tuple[Any, ...]:
    """Attention of (batch, length, heads, size), or packed; causal masks end at the last key."""
    require_no_dropout(dropout_p)
    output = attend_packed(
        query,
        key,
        value,
        None if cum_seq_q is None else cum_seq_q[1:],
        None if cum_seq_k is None else cum_seq_k[1:],
        scale=scale,
        causal=is_causal,
        window=(_window(window_size_left), _window(window_size_right)),
        alibi_slopes=alibi_slopes,
    ).output
    return (output, None, None, None, None)


def _window(size: int | None) -> int:
    return -1 if size is None else size


@builtin_golden("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_for_cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of queries, keys and values."""
    require_no_dropout(dropout_p)
    return gradients(
        lambda q, k, v: _attended(q, k, v, attn_mask, is_causal, scale).output,
        (query, key, value),
        grad_out,
    )


@builtin_golden("_scaled_dot_product_flash_attention_backward")
def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *_: Any,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of queries, keys and values."""
    return flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale
    )


@builtin_golden("_scaled_dot_product_efficient_attention_backward")
def efficient_attention_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of queries, keys, values and the bias, where they are asked for."""
    require_no_dropout(dropout_p)
    found = gradients(
        lambda q, k, v, bias: _attended(q, k, v, bias, is_causal, scale).output,
        (query, key, value, attn_bias),
        grad_out_,
    )
    return tuple(
        gradient if wanted else None
        for gradient, wanted in zip(found, grad_input_mask, strict=True)
    )
