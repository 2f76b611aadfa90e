# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings, for pairs (i, i + half) and for pairs of neighbours."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import NoReferenceError, builtin_golden

_HALF: Final = ("half", "rotated_half")
_INTERLEAVED: Final = ("interleave", "interleaved", "rotated_interleaved")


def rotated(x: Tensor, *, interleaved: bool = False) -> Tensor:
    """Return x turned by a right angle: (-b, a) for each pair (a, b).

    Args:
        x: (…, size).
        interleaved: pairs are neighbours; else an element of the first half and one of the second.
    """
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), dim=-1)


@builtin_golden("npu_rotary_mul", "npu_rotary_position_embedding")
def npu_rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str | int = "half") -> Tensor:
    """x·r1 + rotated(x)·r2."""
    return self * r1 + rotated(self, interleaved=_is_interleaved(rotary_mode)) * r2


def _is_interleaved(mode: str | int) -> bool:
    if mode in _HALF or mode == 0:
        return False
    if mode in _INTERLEAVED or mode == 1:
        return True
    raise NoReferenceError(f"rotary_mode {mode}")


@builtin_golden("npu_rotary_mul_backward")
def npu_rotary_mul_backward(
    grad: Tensor, self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str | int = "half"
) -> tuple[Tensor | None, ...]:
    """Gradients of x, r1 and r2."""
    return gradients(
        lambda x, cos, sin: npu_rotary_mul(x, cos, sin, rotary_mode), (self, r1, r2), grad
    )


@builtin_golden("npu_apply_rotary_pos_emb")
def npu_apply_rotary_pos_emb(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: str | int = "BSND",
    rotary_mode: str | int = "half",
) -> tuple[Tensor, Tensor]:
    """Both turned by the same angles."""
    return (
        npu_rotary_mul(query, cos, sin, rotary_mode),
        npu_rotary_mul(key, cos, sin, rotary_mode),
    )


@builtin_golden("apply_rotary_pos_emb", "Autograd.LigerRopeFunction")
def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]:
    """Both turned; angles are (batch, length, size), tensors (batch, heads, length, size)."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return npu_rotary_mul(q, cos, sin), npu_rotary_mul(k, cos, sin)


@builtin_golden("apply_rotary_emb", "Autograd.ApplyRotaryEmb")
def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    *_: Any,
) -> Tensor:
    """The first elements of each head turned by the angles of its position (flash-attn).

    Args:
        x: (batch, length, heads, size).
        cos: (positions, turned / 2).
        sin: same.
        interleaved: as for `rotated`.
        inplace: whether x takes the result.
        seqlen_offsets: position of the first element: a number, or one for each sequence.
        cu_seqlens: bounds of packed sequences; not supported.
        max_seqlen: the longest of these.
    """
    if cu_seqlens is not None:
        raise NoReferenceError("apply_rotary_emb of packed sequences")
    offsets = torch.as_tensor(seqlen_offsets).reshape(-1, 1)
    positions = offsets + torch.arange(x.shape[1])
    turned = 2 * cos.shape[-1]
    repeats = (
        (lambda one: one.repeat_interleave(2, dim=-1))
        if interleaved
        else (lambda one: torch.cat((one, one), dim=-1))
    )
    angles = [repeats(one[positions]).unsqueeze(-2) for one in (cos, sin)]
    head = x[..., :turned]
    found = head * angles[0] + rotated(head, interleaved=interleaved) * angles[1]
    result = torch.cat((found, x[..., turned:]), dim=-1)
    return x.copy_(result) if inplace else result
