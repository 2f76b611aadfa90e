# SPDX-License-Identifier: Apache-2.0
"""The functions and operators of the package flash-attn.

Tensors are (batch, length, heads, size), or (tokens, heads, size) where sequences of several
lengths are packed one behind the other. A causal mask ends at the last key.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msprobe.pytorch.references.attention import (
    attend,
    either,
    outside_window,
    require_no_dropout,
    spans,
)
from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import builtin_golden

Window = tuple[int, int]
_ALL = (-1, -1)


class Packed(NamedTuple):
    """Attention in the shape of the queries, and the logarithm of the sums."""

    output: Tensor
    logsumexp: Tensor


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor | None = None,
    key_ends: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window = _ALL,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
) -> Packed:
    """Return attention of a batch, or of each of the packed sequences.

    Args:
        query: (batch, length, heads, size), or (tokens, heads, size) with `query_ends`.
        key: same, with heads of which each serves a group of query heads.
        value: same.
        query_ends: where each packed sequence ends.
        key_ends: same for keys and values.
        scale: of the scores; None is 1/√size.
        causal: whether later keys are not visible; the last query sees all keys.
        window: how far a query sees back and ahead; -1 without limit.
        softcap: see `attend`.
        alibi_slopes: (heads) or (batch, heads): scores decrease with the distance.
    """
    if query_ends is None or key_ends is None:
        return _attend_batch(query, key, value, scale, causal, window, softcap, alibi_slopes)
    sums = query.new_full((query.shape[1], query.shape[0]), torch.inf)
    outputs = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    pairs = zip(spans(query_ends), spans(key_ends), strict=False)
    for number, ((start, end), (first, last)) in enumerate(pairs):
        slopes = alibi_slopes
        if slopes is not None and slopes.ndim == 2:
            slopes = slopes[number]
        one = _attend_batch(
            query[start:end].unsqueeze(0),
            key[first:last].unsqueeze(0),
            value[first:last].unsqueeze(0),
            *(scale, causal, window, softcap, slopes),
        )
        rows = torch.arange(start, end)
        outputs = outputs.index_copy(0, rows, one.output[0])
        sums = sums.index_copy(1, rows, one.logsumexp[0])
    return Packed(outputs, sums)


def _attend_batch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    causal: bool,
    window: Window,
    softcap: float,
    alibi_slopes: Tensor | None,
) -> Packed:
    queries, keys = query.shape[1], key.shape[1]
    left, right = (None if size < 0 else size for size in window)
    shift = keys - queries
    blocked = either(
        outside_window(queries, keys, left=left, right=right, shift=shift),
        outside_window(queries, keys, left=None, right=0, shift=shift) if causal else None,
    )
    bias = None
    if alibi_slopes is not None:
        distance = torch.arange(keys) - (torch.arange(queries).unsqueeze(1) + shift)
        bias = -alibi_slopes[..., None, None] * distance.abs()
    found = attend(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        bias=bias,
        blocked=blocked,
        softcap=softcap,
    )
    # The kernels say infinity for a query that sees no key.
    sums = found.logsumexp
    return Packed(found.output.transpose(1, 2), sums.masked_fill(sums == -torch.inf, torch.inf))


def _result(found: Packed, return_attn_probs: bool) -> Any:
    return (found.output, found.logsumexp, None) if return_attn_probs else found.output


@builtin_golden("flash_attn_func", "Autograd.FlashAttnFunc")
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _ALL,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *_: Any,
) -> Any:
    """Attention of equally long sequences."""
    require_no_dropout(dropout_p)
    found = attend_packed(
        q,
        k,
        v,
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return _result(found, return_attn_probs)


@builtin_golden("flash_attn_varlen_func", "Autograd.FlashAttnVarlenFunc")
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _ALL,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *_: Any,
) -> Any:
    """Attention of packed sequences; their bounds begin with 0."""
    require_no_dropout(dropout_p)
    found = attend_packed(
        q,
        k,
        v,
        cu_seqlens_q[1:],
        cu_seqlens_k[1:],
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return _result(found, return_attn_probs)


@builtin_golden("flash_attn_qkvpacked_func", "Autograd.FlashAttnQKVPackedFunc")
def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention of queries, keys and values in one tensor, (batch, length, 3, heads, size)."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *args, **kwargs)


@builtin_golden("flash_attn_kvpacked_func", "Autograd.FlashAttnKVPackedFunc")
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention of keys and values in one tensor, (batch, length, 2, heads, size)."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *args, **kwargs)


@builtin_golden("flash_attn_varlen_qkvpacked_func", "Autograd.FlashAttnVarlenQKVPackedFunc")
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **kwargs: Any
) -> Any:
    """Attention of packed sequences in one tensor, (tokens, 3, heads, size)."""
    q, k, v = qkv.unbind(1)
    ends, longest = cu_seqlens, max_seqlen
    return flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, *args, **kwargs)


@builtin_golden("flash_attn_varlen_kvpacked_func", "Autograd.FlashAttnVarlenKVPackedFunc")
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention of packed sequences with keys and values in one tensor."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *args, **kwargs)


@builtin_golden("flash_attn._flash_attn_forward")
def flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Any, ...]:
    """Attention and the logarithm of the sums."""
    require_no_dropout(dropout_p)
    found = attend_packed(
        q,
        k,
        v,
        scale=softmax_scale,
        causal=causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return (*found, None, None)


@builtin_golden("flash_attn._flash_attn_backward")
def flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    *_: Any,
) -> None:
    """Write the gradients into `dq`, `dk` and `dv`, as the operator does."""
    window = window_size_left, window_size_right

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        require_no_dropout(dropout_p)
        return attend_packed(
            q,
            k,
            v,
            scale=softmax_scale,
            causal=causal,
            window=window,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
        ).output

    found = gradients(forward, (q, k, v), dout)
    for buffer, gradient in zip((dq, dk, dv), found, strict=True):
        if buffer is not None and gradient is not None:
            buffer.copy_(gradient)


@builtin_golden("flash_attn._flash_attn_varlen_forward")
def flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> tuple[Any, ...]:
    """Attention of packed sequences and the logarithm of the sums, (heads, tokens)."""
    require_no_dropout(dropout_p)
    found = attend_packed(
        q,
        k,
        v,
        cu_seqlens_q[1:],
        cu_seqlens_k[1:],
        scale=softmax_scale,
        causal=causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return (*found, None, None)
