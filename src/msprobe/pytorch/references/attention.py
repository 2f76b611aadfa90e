# SPDX-License-Identifier: Apache-2.0
"""Attention as it is defined: scores, masks, softmax, weighted sum; the base of all fused forms.

Queries, keys and values have the shape (…, heads, length, size). A query that no key is visible to
gets zeros, as from the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from msprobe.replay.references import NoReferenceError


class Attended(NamedTuple):
    """Attention and what kernels keep for the backward pass.

    Attributes:
        output: (…, heads, queries, size).
        maximum: largest score of each query, (…, heads, queries, 1).
        total: sum of the exponentials after this was subtracted, same shape.
    """

    output: Tensor
    maximum: Tensor
    total: Tensor

    @property
    def logsumexp(self) -> Tensor:
        """Logarithm of the sum of exponentials, (…, heads, queries)."""
        return (self.maximum + self.total.log()).squeeze(-1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    blocked: Tensor | None = None,
    softcap: float = 0.0,
) -> Attended:
    """Return softmax(query·keyᵀ·scale + bias)·value.

    Args:
        query: its number of heads is a multiple of the number of heads of `key` and `value`.
        key: each of its heads serves a group of consecutive query heads.
        value: may have another size of heads.
        scale: of the products of queries and keys.
        bias: added to the scaled scores.
        blocked: True where a key is not visible; of a shape that broadcasts to the scores.
        softcap: scores are softcap·tanh(scores/softcap); 0 leaves them as they are.
    """
    scores = (query * scale) @ per_query_head(key, query).transpose(-2, -1)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if blocked is not None:
        scores.masked_fill_(blocked, -torch.inf)
    if scores.shape[-1] == 0:
        maximum = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    else:
        maximum = scores.detach().amax(-1, keepdim=True)
    shift = maximum.masked_fill(maximum == -torch.inf, 0.0)
    weights = scores.sub_(shift).exp_()
    total = weights.sum(-1, keepdim=True)
    output = weights @ per_query_head(value, query) / total.masked_fill(total == 0, 1.0)
    return Attended(output, maximum, total)


def per_query_head(tensor: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with each head repeated for the query heads that share it."""
    heads, shared = query.shape[-3], tensor.shape[-3]
    if heads == shared:
        return tensor
    return tensor.repeat_interleave(heads // shared, dim=-3)


def outside_window(
    queries: int, keys: int, *, left: int | None, right: int | None, shift: int = 0
) -> Tensor:
    """Return True for the keys that a query does not see, (queries, keys).

    Query i sees keys i + shift - left … i + shift + right.

    Args:
        queries: number of queries.
        keys: number of keys.
        left: how far it sees back; None without limit.
        right: how far it sees ahead; 0 is a causal mask, None without limit.
        shift: keys - queries lets the last query see the last key.
    """
    distance = torch.arange(keys) - (torch.arange(queries).unsqueeze(1) + shift)
    blocked = torch.zeros(queries, keys, dtype=torch.bool)
    if left is not None:
        blocked |= distance < -left
    if right is not None:
        blocked |= distance > right
    return blocked


def either(*masks: Tensor | None) -> Tensor | None:
    """Return where any of the masks is True; None if there is none."""
    found: Tensor | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def spans(ends: Tensor | Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of each sequence in a packed batch.

    Args:
        ends: where each one ends; as kernels want it, trailing zeros are sequences left out.
    """
    bounds = [int(end) for end in ends]
    while bounds and bounds[-1] == 0:
        bounds.pop()
    return list(zip([0, *bounds], bounds, strict=False))


def require_no_dropout(probability: float) -> None:
    """Refuse calls with dropout: the kernel drew its mask from a generator of its own.

    Raises:
        NoReferenceError: there is dropout.
    """
    if probability:
        raise NoReferenceError(f"attention with dropout {probability:g}: its mask is not recorded")
