# SPDX-License-Identifier: Apache-2.0
"""Features that scripts compute themselves: rank of a weight, tangent kernel of a module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msprobe.pytorch.monitor.features import eff_rank, lambda_max_subsample, mNTK

pytestmark = pytest.mark.torch


def test_rank_of_a_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*shape, generator=generator) for shape in ((9, 3), (3, 7)))
    assert eff_rank(left @ right, threshold=1e-4) == 3
    assert eff_rank(torch.diag(torch.tensor([2.0, 1e-3, 0.0])), threshold=0.01) == 1
    with pytest.raises(ValueError, match=r"not the shape \[4\]"):
        eff_rank(torch.ones(4))


def test_tangent_kernel_is_that_of_gradients_and_leaves_the_module_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state = torch.get_rng_state()
    kernel = mNTK(model, x)
    largest = lambda_max_subsample(model, x, num_iterations=400)
    some = lambda_max_subsample(model, x, num_iterations=400, subsample_size=3)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
    parameters = list(model.parameters())
    rows = []
    for output in model(x).flatten():
        gradients = torch.autograd.grad(output, parameters, retain_graph=True)
        rows.append(torch.cat([one.flatten() for one in gradients]))
    jacobian = torch.stack(rows)
    torch.testing.assert_close(kernel, jacobian @ jacobian.T, rtol=1e-4, atol=1e-5)
    expected = torch.linalg.eigvalsh(jacobian.double() @ jacobian.double().T)[-1]
    assert largest.item() == pytest.approx(expected.item(), rel=1e-3)
    chosen = jacobian[[0, 4, 9]].double()  # 10 outputs, three at equal distances
    expected = torch.linalg.eigvalsh(chosen @ chosen.T)[-1]
    assert some.item() == pytest.approx(expected.item(), rel=1e-3)
