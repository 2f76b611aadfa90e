# SPDX-License-Identifier: Apache-2.0
"""Linear layers, products of matrices and of groups of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from msprobe.pytorch.references.activations import npu_fast_gelu
from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import NoReferenceError, builtin_golden

_COUNTS: Final = 1
_ONE_RESULT: Final = (2, 3)
_ACTIVATIONS: Final[dict[int, Callable[[Tensor], Tensor]]] = {
    0: lambda x: x,
    1: torch.relu,
    2: lambda x: functional.gelu(x, approximate="tanh"),
    3: functional.gelu,
    4: npu_fast_gelu,
    5: functional.silu,
}


@builtin_golden("npu_linear")
def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input·weightᵀ + bias."""
    product = input @ weight.transpose(-2, -1)
    return product if bias is None else product + bias


@builtin_golden("npu_linear_backward")
def npu_linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of input and weight."""
    return gradients(npu_linear, (input, weight), grad)


@builtin_golden("matmul_backward")
def matmul_backward(
    grad: Tensor, self: Tensor, other: Tensor, mask: Sequence[bool] = (True, True)
) -> tuple[Tensor | None, ...]:
    """Gradients of both factors, of any number of axes, where `mask` asks for them."""
    found = gradients(torch.matmul, (self, other), grad)
    return tuple(one if wanted else None for one, wanted in zip(found, mask, strict=True))


@builtin_golden("npu_bmmV2")
def npu_bmm_v2(self: Tensor, mat2: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Product of batches of matrices, in another shape if one is given."""
    product = self @ mat2
    return product.reshape(tuple(output_sizes)) if output_sizes else product


@builtin_golden("grouped_mm", "_grouped_mm", "Aten._grouped_mm")
def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Products of groups: rows of `mat_a`, columns of `mat_b` or the inner axis, cut at `offs`."""
    if offs is None:
        product = mat_a @ mat_b
        return product if bias is None else product + bias
    groups = spans_of(offs)
    if mat_a.ndim == 2 and mat_b.ndim == 3:
        rows = [mat_a[start:end] @ one for (start, end), one in zip(groups, mat_b, strict=True)]
        if bias is not None:
            rows = [one + add for one, add in zip(rows, bias, strict=True)]
        return _padded(torch.cat(rows), mat_a.shape[0], 0)
    if mat_a.ndim == 3 and mat_b.ndim == 2:
        columns = [
            one @ mat_b[:, start:end] for (start, end), one in zip(groups, mat_a, strict=True)
        ]
        return _padded(torch.cat(columns, dim=1), mat_b.shape[1], 1)
    return torch.stack([mat_a[:, start:end] @ mat_b[start:end] for start, end in groups])


def spans_of(offs: Tensor) -> list[tuple[int, int]]:
    """Return start and end of each group; a group may be empty."""
    ends = [int(end) for end in offs]
    return list(zip([0, *ends], ends, strict=False))


def _padded(result: Tensor, size: int, dim: int) -> Tensor:
    """Return the result with zeros where no group reaches."""
    missing = list(result.shape)
    missing[dim] = size - result.shape[dim]
    return torch.cat((result, result.new_zeros(missing)), dim)


@builtin_golden("npu_grouped_matmul")
def npu_grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    bias: Sequence[Tensor] | None = None,
    scale: Sequence[Tensor] | None = None,
    offset: Sequence[Tensor] | None = None,
    antiquant_scale: Sequence[Tensor] | None = None,
    antiquant_offset: Sequence[Tensor] | None = None,
    per_token_scale: Sequence[Tensor] | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    **_: Any,
) -> list[Tensor]:
    """One product for each group; see torch_npu for the ways to give groups.

    Groups are the tensors of the lists, or parts of one tensor: of its rows, of the leading axis of
    a weight, or (``group_type`` 2) of the inner axis. Quantised products are (x·w + bias)·scale,
    weights may be stored as (w + offset)·scale.
    """
    if offset:
        raise NoReferenceError("npu_grouped_matmul with an offset of the result")
    inner = group_type == 2
    weights = list(weight[0]) if len(weight) == 1 and weight[0].ndim == 3 else list(weight)
    if inner:
        groups = _groups(group_list, group_list_type)
        parts = [x[0][:, start:end] for start, end in groups]
        weights = [weights[0][start:end] for start, end in groups]
    else:
        parts = _rows(x, len(weights), group_list, group_list_type)
    weights = [
        _restored(one, number, antiquant_scale, antiquant_offset)
        for number, one in enumerate(weights)
    ]
    scales = _per_group(scale, len(weights))
    biases = _per_group(bias, len(weights))
    tokens = _rows(per_token_scale, len(weights), group_list, group_list_type)
    results = []
    for number, (part, one) in enumerate(zip(parts, weights, strict=True)):
        product = wide(part) @ wide(one)
        product = product if biases is None else product + biases[number]
        product = product if scales is None else product * scales[number]
        product = product * tokens[number].unsqueeze(-1) if per_token_scale else product
        results.append(_ACTIVATIONS[act_type or 0](product))
    if inner:
        return [torch.stack(results)]
    if split_item not in _ONE_RESULT:
        return results
    whole = torch.cat(results)
    return [_padded(whole, sum(one.shape[0] for one in x), 0)]


def _groups(group_list: Any, kind: int | None) -> list[tuple[int, int]]:
    sizes = [int(one) for one in group_list]
    return spans_of(torch.tensor(sizes).cumsum(0) if kind == _COUNTS else torch.tensor(sizes))


def _rows(
    x: Sequence[Tensor] | None, count: int, group_list: Any, kind: int | None
) -> list[Tensor]:
    """Return the rows of each group."""
    if not x:
        return []
    if len(x) == count and group_list is None:
        return list(x)
    return [x[0][start:end] for start, end in _groups(group_list, kind)]


def _per_group(given: Sequence[Tensor] | None, count: int) -> list[Tensor] | None:
    """Return one tensor for each group; a single one may hold all of them."""
    if not given:
        return None
    if len(given) == count:
        return list(given)
    return list(given[0])


def _restored(
    weight: Tensor,
    number: int,
    scale: Sequence[Tensor] | None,
    offset: Sequence[Tensor] | None,
) -> Tensor:
    """Return a weight that was stored in fewer bits."""
    if not scale:
        return weight
    restored = wide(weight)
    if offset:
        restored = restored + _nth(offset, number)
    return restored * _nth(scale, number)


def _nth(given: Sequence[Tensor], number: int) -> Tensor:
    return given[number] if len(given) > 1 or given[0].ndim < 2 else given[0][number]


def wide(tensor: Tensor) -> Tensor:
    """Return numbers whose products are exact: float64 for integers and 8-bit floats."""
    return tensor if tensor.dtype in _COMPUTED else tensor.double()


_COMPUTED: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128)
