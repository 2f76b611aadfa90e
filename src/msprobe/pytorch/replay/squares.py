# SPDX-License-Identifier: Apache-2.0
"""`squares_of`: sums of the squares of the terms that make up a result.

A sum of terms t, each with r independent relative errors of size u, has an error of u·sqrt(r·Σ t²)
in the root mean square (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
2.8). A function that is linear in each of its tensors, with factors 0 and 1, has this sum at the
squares of its tensors; and so have its gradients. Others have functions here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.operators.operator import Family, Linear
from msprobe.pytorch.references.torch_attention import scaled_dot_product_attention
from msprobe.replay.forms import tensor_forms
from msprobe.replay.recorded_calls import RecordedCall

_FACTORS: Final = ("alpha", "beta", "max_norm", "scale_grad_by_freq")


@dataclass(frozen=True, slots=True)
class Squares:
    """A function whose results are sums of squares.

    Attributes:
        function: takes the arguments of the call.
        of_inputs: whether it takes their squares.
        has_gradients: whether its gradients are sums of squares, too.
        roundings: of each term: one for each of its factors.
    """

    function: Callable[..., Any]
    of_inputs: bool
    has_gradients: bool = True
    roundings: int = 1


def squares_of(call: RecordedCall, function: Callable[..., Any]) -> Squares | None:
    """Return how the sums of squares of a call are computed; None where that is not known.

    Args:
        call: the call.
        function: what runs it.
    """
    operator = call.operator
    factors = (call.kwargs.get(name) for name in _FACTORS)
    if call.class_name is not None or any(one and one.get("value") is not False for one in factors):
        return None
    own = _OWN.get(operator.name)
    if own is not None:
        return own
    flags = [form.get("value") for _, form in tensor_forms([*call.args], ()) if "value" in form]
    if operator.name == "embedding" and any(one is True for one in flags):
        return None  # gradients are divided by numbers of occurrences
    numbers = [one for one in call.args if isinstance(one, dict) and "shape" not in one]
    is_linear = operator.linear is Linear.TENSORS or operator.family is Family.MOVING
    if is_linear or (operator.linear is Linear.NUMBERS_TOO and not numbers):
        has_factors = operator.family.sums_products or operator.family is Family.MULTIPLYING
        return Squares(function, of_inputs=True, roundings=2 if has_factors else 1)
    return None


class _LayerNorm(torch.autograd.Function):
    """Squares of the changes that roundings of the input, the scale and the shift make."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dims: tuple[int, ...], eps: float
    ) -> Tensor:
        rate = (x.var(dims, correction=0, keepdim=True) + eps).rsqrt_()
        normal = (x - x.mean(dims, keepdim=True)).mul_(rate)
        scaled = x * rate
        count = math.prod(x.shape[dim] for dim in dims)
        average = scaled.square().mean(dims, keepdim=True) / count  # of the mean that is subtracted
        ctx.save_for_backward(normal, scaled, weight, rate)
        ctx.dims, ctx.count = dims, count
        own = scaled.square().add_(average).mul_(weight.square())
        return own.add_(bias.square())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normal, scaled, weight, rate = ctx.saved_tensors
        rows = tuple(range(normal.dim() - len(ctx.dims)))
        own = gradient * weight
        drifts = own * normal
        drift = drifts.mean(ctx.dims, keepdim=True)
        averages = own.square().mean(ctx.dims, keepdim=True) / ctx.count
        turned = drifts.square_().mean(ctx.dims, keepdim=True) / ctx.count
        of_input = own.square_().add_((scaled * drift).square_()).add_(averages)
        of_input = of_input.add_(normal.square() * turned).mul_(rate.square())
        of_weight = (gradient * normal).square_()
        of_bias = gradient.square()
        if rows:
            of_weight, of_bias = of_weight.sum(rows), of_bias.sum(rows)
        return of_input, of_weight, of_bias, None, None


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    shape = tuple(normalized_shape)
    scale = input.new_ones(shape) if weight is None else weight
    shift = input.new_zeros(shape) if bias is None else bias
    dims = tuple(range(-len(shape), 0))
    return _LayerNorm.apply(input, scale, shift, dims, eps)  # type: ignore[no-untyped-call]


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the sum of (weight · value)² over the keys."""
    keys = key.shape[-2]
    each = torch.eye(keys, dtype=value.dtype).expand(*value.shape[:-2], keys, keys)
    weights = scaled_dot_product_attention(query, key, each, *args, **kwargs)
    groups = weights.shape[-3] // value.shape[-3] if value.dim() > 2 else 1
    own = value.square()
    own = own if groups == 1 else own.repeat_interleave(groups, dim=-3)
    return weights.square() @ own


_OWN: Final = {
    "layer_norm": Squares(_layer_norm, of_inputs=False),
    "scaled_dot_product_attention": Squares(
        _attention, of_inputs=False, has_gradients=False, roundings=2
    ),
}
