# SPDX-License-Identifier: Apache-2.0
"""`npu_fusion_attention`, its second form and its gradient; MindSpore's takes the same arguments.

Meaning of layouts, masks and sparse modes: the documentation of torch_npu.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from msprobe.pytorch.references.attention import (
    Attended,
    attend,
    either,
    outside_window,
    require_no_dropout,
    spans,
)
from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import NoReferenceError, builtin_golden

_UNLIMITED: Final = 2147483647
# Kernels give the maximum and the sum of each row this many times.
_REPEATS: Final = 8
# Added before the scores are scaled (1), or after it.
_BEFORE_SCALING: Final = 1
_MADE_BY_THE_KERNEL: Final = (2, 3)


class _Sparsity(NamedTuple):
    """Which keys a query sees."""

    mode: int
    mask: Tensor | None
    before: int
    after: int
    prefix: Sequence[int] | None

    def blocked(self, queries: int, keys: int, first: int = 0) -> Tensor | None:
        """Return True for invisible keys; `first` is the sequence's number, for its prefix."""
        if self.mask is None:
            return None
        shift = keys - queries
        match self.mode:
            case 0:
                band = outside_window(queries, keys, left=self.before, right=self.after)
                return either(self._given(queries, keys), band)
            case 1 | 5:
                return self._given(queries, keys)
            case 2:
                return outside_window(queries, keys, left=None, right=0)
            case 3:
                return outside_window(queries, keys, left=None, right=0, shift=shift)
            case 4:
                left, right = self.before, self.after
                return outside_window(queries, keys, left=left, right=right, shift=shift)
            case 6 if self.prefix is not None:
                causal = outside_window(queries, keys, left=None, right=0, shift=shift)
                ends = torch.tensor([int(end) for end in self.prefix[first:]])
                seen = torch.arange(keys) < ends[:, None, None, None]
                return causal & ~seen
        raise NoReferenceError(f"npu_fusion_attention with sparse_mode {self.mode}")

    def _given(self, queries: int, keys: int) -> Tensor:
        if self.mask is None:
            raise NoReferenceError(f"sparse_mode {self.mode} without a mask")
        return self.mask.bool()[..., :queries, :keys]


@builtin_golden("npu_fusion_attention")
def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _UNLIMITED,
    next_tockens: int = _UNLIMITED,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    **options: Any,
) -> tuple[Any, ...]:
    """Attention in any layout, the rows' maxima and sums eight times; nothing of the others."""
    require_no_dropout(1 - keep_prob)
    _refuse_sinks(options)
    sparsity = _Sparsity(sparse_mode, atten_mask, pre_tockens, next_tockens, prefix)
    pse_type = options.get("pse_type", _BEFORE_SCALING)
    if pse_type in _MADE_BY_THE_KERNEL:
        raise NoReferenceError(f"npu_fusion_attention with pse_type {pse_type}")
    if pse is not None:
        pse = pse * scale if pse_type == _BEFORE_SCALING else pse

    def attended(one_query: Tensor, one_key: Tensor, one_value: Tensor, first: int = 0) -> Attended:
        queries, keys = one_query.shape[-2], one_key.shape[-2]
        if pse is not None and pse.shape[-2] not in (1, queries):
            raise NoReferenceError("npu_fusion_attention with a compressed pse")
        blocked = sparsity.blocked(queries, keys, first)
        return attend(one_query, one_key, one_value, scale=scale, bias=pse, blocked=blocked)

    if input_layout == "TND":
        if actual_seq_qlen is None or actual_seq_kvlen is None:
            raise NoReferenceError("layout TND without the lengths of its sequences")
        found = _packed(attended, query, key, value, actual_seq_qlen, actual_seq_kvlen)
    else:
        split, joined = _LAYOUTS[input_layout]
        shared = key.shape[-1] * head_num // query.shape[-1]
        heads = head_num, shared, shared
        tensors = (query, key, value)
        parts = [split(one, count) for one, count in zip(tensors, heads, strict=True)]
        whole = attended(parts[0], parts[1], parts[2])
        found = whole._replace(output=joined(whole.output))
    maximum, total = (one.expand(*one.shape[:-1], _REPEATS) for one in found[1:])
    return (found.output, maximum, total, None, None, None, None)


def _refuse_sinks(options: dict[str, Any]) -> None:
    for name in ("sink", "query_rope", "key_rope"):
        if options.get(name) is not None:
            raise NoReferenceError(f"npu_fusion_attention with {name}")


def _split_hidden(tensor: Tensor, heads: int) -> Tensor:
    """Return (batch, length, heads·size) as (batch, heads, length, size)."""
    return tensor.reshape(*tensor.shape[:-1], heads, -1).transpose(1, 2)


def _join_hidden(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).flatten(-2)


_Split = Callable[[Tensor, int], Tensor]
_LAYOUTS: Final[dict[str, tuple[_Split, Callable[[Tensor], Tensor]]]] = {
    "BNSD": (lambda tensor, _: tensor, lambda tensor: tensor),
    "BSND": (lambda tensor, _: tensor.transpose(1, 2), lambda tensor: tensor.transpose(1, 2)),
    "BSH": (_split_hidden, _join_hidden),
    "SBH": (
        lambda tensor, heads: _split_hidden(tensor.transpose(0, 1), heads),
        lambda tensor: _join_hidden(tensor).transpose(0, 1),
    ),
}


def _packed(
    attended: Callable[..., Attended],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Sequence[int],
    key_ends: Sequence[int],
) -> Attended:
    """Return attention of each packed sequence, (tokens, heads, size)."""
    outputs = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    maxima = query.new_zeros((*query.shape[:-1], 1))
    totals = query.new_zeros((*query.shape[:-1], 1))
    for number, ((start, end), (first, last)) in enumerate(
        zip(spans(query_ends), spans(key_ends), strict=False)
    ):
        one = attended(
            query[start:end].transpose(0, 1),
            key[first:last].transpose(0, 1),
            value[first:last].transpose(0, 1),
            number,
        )
        rows = torch.arange(start, end)
        outputs = outputs.index_copy(
            0, rows, one.output.reshape(one.output.shape[-3:]).transpose(0, 1)
        )
        maxima = maxima.index_copy(
            0, rows, one.maximum.reshape(one.maximum.shape[-3:]).transpose(0, 1)
        )
        totals = totals.index_copy(0, rows, one.total.reshape(one.total.shape[-3:]).transpose(0, 1))
    return Attended(outputs, maxima, totals)


@builtin_golden("Functional.flash_attention_score")
def flash_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    real_shift: Tensor | None = None,
    drop_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    keep_prob: float = 1.0,
    scalar_value: float = 1.0,
    pre_tokens: int = _UNLIMITED,
    next_tokens: int = _UNLIMITED,
    inner_precise: int = 0,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
) -> Any:
    """`npu_fusion_attention` with the arguments of MindSpore, which returns the attention alone."""
    found = npu_fusion_attention(
        query,
        key,
        value,
        head_num,
        input_layout,
        pse=real_shift,
        atten_mask=attn_mask,
        scale=scalar_value,
        keep_prob=keep_prob,
        pre_tockens=pre_tokens,
        next_tockens=next_tokens,
        prefix=prefix,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
        sparse_mode=sparse_mode,
    )
    return found[0]


@builtin_golden("npu_fusion_attention_v2")
def npu_fusion_attention_v2(
    *args: Any,
    pre_tokens: int = _UNLIMITED,
    next_tokens: int = _UNLIMITED,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Same as `npu_fusion_attention`, with corrected names and `pse_type`."""
    kwargs |= {"pre_tockens": pre_tokens, "next_tockens": next_tokens}
    return npu_fusion_attention(*args, **kwargs)


@builtin_golden("npu_fusion_attention_grad", "npu_fusion_attention_backward")
def npu_fusion_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    scale_value: float = 1.0,
    **options: Any,
) -> tuple[Tensor | None, ...]:
    """Gradients of queries, keys, values and `pse`."""
    for saved in ("softmax_max", "softmax_sum", "softmax_in", "attention_in"):
        options.pop(saved, None)
    for drawn in ("seed", "offset", "numels"):
        options.pop(drawn, None)

    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        found = npu_fusion_attention(
            q, k, v, head_num, input_layout, pse=bias, scale=scale_value, **options
        )
        output: Tensor = found[0]
        return output

    return gradients(forward, (query, key, value, pse), dy)
