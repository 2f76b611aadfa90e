# SPDX-License-Identifier: Apache-2.0
"""Backward passes over a batch of gradients at once: Jacobians, Hessians and their checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

from builders.recordings import Setting, observed, recording

pytestmark = pytest.mark.torch

SETTINGS = (Setting("L0", "tensor"), Setting("L1", "statistics"), Setting("mix", "md5"))


class Shares(nn.Module):
    """Uses its input twice, so that two shares make up its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).tanh() + x[:2] * 2


def a_jacobian(model: nn.Module) -> Tensor:
    return jacobian(model, torch.linspace(-1, 1, 3), vectorize=True)


def a_hessian(model: nn.Module) -> Tensor:
    return hessian(lambda x: model(x).pow(2).sum(), torch.linspace(-1, 1, 3), vectorize=True)


def nested_jacobians(model: nn.Module) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return jacobian(model, x, create_graph=True, vectorize=True)

    return jacobian(inner, torch.linspace(-1, 1, 3), vectorize=True)


def a_check_of_second_derivatives(model: nn.Module) -> Tensor:
    x = torch.linspace(-1, 1, 3, dtype=torch.double, requires_grad=True)
    return torch.tensor(torch.autograd.gradgradcheck(model.double(), x))


def gradients_under_vmap(model: nn.Module) -> Tensor:
    x = torch.linspace(-1, 1, 3, requires_grad=True)
    y = model(x)
    return torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(torch.eye(2))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "work",
    [
        a_jacobian,
        a_hessian,
        nested_jacobians,
        a_check_of_second_derivatives,
        gradients_under_vmap,
    ],
)
def test_the_step_is_complete_and_the_result_the_same(
    work: Callable[[nn.Module], Tensor], setting: Setting, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Shares()
    expected = work(model)
    with observed(tmp_path, setting) as run:
        with run.step_of(model):
            found = work(model)
        account = run.account()
    assert torch.equal(found, expected)
    assert (account["errors"], account["complete"]) == ({}, True)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_statistics_are_those_of_the_whole_batch(level: str, tmp_path: Path) -> None:
    model = Shares()
    x = torch.linspace(-1, 1, 3, requires_grad=True)
    batch = torch.tensor([[1.0, 2.0], [3.0, -4.0], [0.0, 5.0]])
    with recording(tmp_path, level) as run:
        with run.step_of(model):
            (gradient,) = torch.autograd.grad(model(x * 1), x, batch, is_grads_batched=True)
        backward = run.records()["Module.Shares.backward.0"]

    def statistics(record: dict[str, Any]) -> list[Any]:
        return [record[key] for key in ("Max", "Min", "Mean", "Norm")]

    for record, tensor in ((backward["input"][0], batch), (backward["output"][0], gradient)):
        wide = tensor.double()
        numbers = [wide.max(), wide.min(), wide.mean(), wide.norm()]
        assert statistics(record) == pytest.approx([number.item() for number in numbers])
