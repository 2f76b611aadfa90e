# SPDX-License-Identifier: Apache-2.0
"""Gradients of references by autograd, for operators that are a backward pass themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], *grad_outputs: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a function with respect to its inputs.

    Args:
        function: of these inputs.
        inputs: None is handed on, and has no gradient.
        *grad_outputs: gradient of each output; None where there is none.

    Returns:
        One gradient for each input; None for integers and for inputs that have no effect.
    """
    with torch.enable_grad():
        leaves = [None if one is None else _leaf(one) for one in inputs]
        outputs = function(*leaves)
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, grad_outputs, strict=False)
            if gradient is not None
        ]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            wanted,
            [gradient.to(output.dtype).reshape(output.shape) for output, gradient in pairs],
            allow_unused=True,
        )
    by_leaf = dict(zip(map(id, wanted), found, strict=True))
    return tuple(by_leaf.get(id(leaf)) for leaf in leaves)


def _leaf(tensor: Tensor) -> Tensor:
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach().requires_grad_(differentiable)
