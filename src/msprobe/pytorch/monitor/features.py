# SPDX-License-Identifier: Apache-2.0
"""Features of weights and modules that are computed when a script asks for them.

They cost far more than a step's statistics; `TrainerMon.log(name=value)` keeps them with the run.
Nothing here draws from, or moves, the global random state.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["eff_rank", "lambda_max_subsample", "mNTK"]

_MATRIX: Final = 2


def eff_rank(param: Tensor, threshold: float = 1e-10) -> Tensor:
    """Return how many singular values of a matrix are above a threshold.

    Args:
        param: the matrix, or matrices in its last two dimensions.
        threshold: absolute.

    Raises:
        ValueError: it has fewer than two dimensions.
    """
    if param.dim() < _MATRIX:
        raise ValueError(f"eff_rank(): a matrix is needed, not the shape {list(param.shape)}")
    rank: Tensor = (torch.linalg.svdvals(param.detach().float()) > threshold).sum(-1)
    return rank


def mNTK(module: nn.Module, x: Tensor) -> Tensor:  # noqa: N802 - its name in scripts
    """Return the modular neural tangent kernel of a module (arXiv:2401.17629).

    It is J Jᵀ, where J has a row for each output and a column for each parameter of the module.

    Args:
        module: a module that returns a tensor; its buffers and gradients stay as they are.
        x: its input.

    Returns:
        Shape (outputs, outputs): all elements of what the module returns, in their order.
    """
    parameters = {name: one.detach().requires_grad_() for name, one in module.named_parameters()}
    buffers = {name: one.detach().clone() for name, one in module.named_buffers()}
    with torch.random.fork_rng(), torch.enable_grad():
        outputs = functional_call(module, (parameters, buffers), (x.detach(),)).flatten()
        given = list(parameters.values())
        rows = torch.stack(
            [
                torch.cat(
                    [
                        one.flatten()
                        for one in torch.autograd.grad(
                            output, given, retain_graph=True, materialize_grads=True
                        )
                    ]
                )
                for output in outputs
            ]
        )
    return rows @ rows.T


def lambda_max_subsample(
    module: nn.Module, x: Tensor, num_iterations: int = 100, subsample_size: int | None = None
) -> Tensor:
    """Return the largest eigenvalue of some rows and columns of `mNTK`, by power iteration.

    Args:
        module: as for `mNTK`.
        x: as for `mNTK`.
        num_iterations: of the power iteration, which approaches the eigenvalue from below.
        subsample_size: how many rows, taken at equal distances; None for all.
    """
    kernel = mNTK(module, x)
    count = len(kernel)
    chosen = torch.linspace(0, count - 1, min(subsample_size or count, count)).round().long()
    kernel = kernel[chosen][:, chosen]
    vector = kernel.sum(1) if kernel.sum(1).any() else torch.ones_like(kernel[0])
    for _ in range(num_iterations):
        product = kernel @ vector
        norm: Tensor = product.norm()
        if norm == 0:
            return norm
        vector = product / norm
    largest: Tensor = vector @ kernel @ vector
    return largest
