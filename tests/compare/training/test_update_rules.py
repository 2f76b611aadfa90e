# SPDX-License-Identifier: Apache-2.0
"""The rules of optimizers against the optimizers of PyTorch themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from msprobe.compare.training.elements import Elements  # noqa: E402
from msprobe.compare.training.update_rules import rule_of  # noqa: E402

pytestmark = pytest.mark.torch

SETTINGS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.2, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.3, "betas": (0.8, 0.99), "amsgrad": True}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.3, "decoupled_weight_decay": True}),
    (torch.optim.AdamW, {"lr": 0.01, "maximize": True, "eps": 1e-3}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.5, "amsgrad": True, "foreach": True}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.5, "fused": True}),
    (torch.optim.RMSprop, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9, "maximize": True}),
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1}),
    (torch.optim.Adadelta, {"lr": 1.0, "weight_decay": 0.1}),
    (torch.optim.Adadelta, {"lr": 0.5, "rho": 0.8, "maximize": True, "eps": 1e-4}),
    (torch.optim.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.Adamax, {"lr": 0.01, "betas": (0.8, 0.9), "maximize": True}),
    (torch.optim.NAdam, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.NAdam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    (torch.optim.RAdam, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.5, 0.9)}),
    (torch.optim.RAdam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    (torch.optim.ASGD, {"lr": 0.01, "weight_decay": 0.1, "lambd": 1e-2}),
    (torch.optim.Rprop, {"lr": 0.01}),
    (torch.optim.Rprop, {"lr": 0.01, "etas": (0.4, 1.3), "maximize": True}),
]
RANGES: list[tuple[type[torch.optim.Optimizer], dict[str, Any], tuple[int, ...]]] = [
    (torch.optim.Adafactor, {"lr": 0.1}, (64,)),
    (torch.optim.Adafactor, {"lr": 0.1, "weight_decay": 0.1, "maximize": True, "d": 1.5}, (64,)),
    (torch.optim.Adafactor, {"lr": 0.1, "weight_decay": 0.1}, (16, 4)),
    (torch.optim.Muon, {"lr": 0.1}, (16, 4)),
    (torch.optim.Muon, {"lr": 0.1, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}, (4, 16)),
]
EPSILON = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}
STEPS = 4


class Lion(torch.optim.Optimizer):
    """The optimizer of Chen et al. (2023), as its paper writes it."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("exp_avg", torch.zeros_like(p))
                first, second = group["betas"]
                mixed = state["exp_avg"].mul(first).add(p.grad, alpha=1 - first)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(mixed.sign(), alpha=-group["lr"])
                state["exp_avg"].mul_(second).add_(p.grad, alpha=1 - second)


def array(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return tensor.detach().double().numpy().copy()


def trained(
    optimizer: type[torch.optim.Optimizer],
    options: dict[str, Any],
    dtype: torch.dtype,
    shape: tuple[int, ...] = (64,),
) -> Iterator[tuple[dict[str, Any], Elements, np.ndarray[Any, Any]]]:
    """Train, and yield the setting, the elements before and the parameter after each step."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    p = torch.nn.Parameter(start)
    made = optimizer([p], **options)
    for number in range(STEPS):
        p.grad = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        state = {key: array(each) for key, each in made.state[p].items() if each is not None}
        has_state = bool(state) and number > 0
        elements = Elements(
            before=array(p).reshape(-1),
            gradient=array(p.grad).reshape(-1),
            steps=np.full(64, number + 1.0),
            state={
                key: np.broadcast_to(each, p.shape).reshape(-1)
                for key, each in state.items()
                if each.shape in (p.shape, ())
            },
            has_state=np.full(64, has_state),
            norms=np.full(64, p.detach().double().norm().item()),
            shapes=[shape] * 64,
            epsilon=torch.finfo(dtype).eps,
        )
        made.step()
        yield made.param_groups[0], elements, array(p).reshape(-1)


def name_of(optimizer: type[torch.optim.Optimizer]) -> str:
    return f"{optimizer.__module__}.{optimizer.__qualname__}"


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [*SETTINGS, (Lion, {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1})],
    ids=lambda each: getattr(each, "__name__", None) or ",".join(each),
)
def test_rules_give_what_the_optimizers_of_pytorch_give(
    optimizer: type[torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype
) -> None:
    for group, elements, after in trained(optimizer, options, dtype):
        rule = rule_of(name_of(optimizer), group)
        assert rule is not None
        updated = rule(group, elements)
        excess = np.abs(after - updated.value) - updated.allowed(EPSILON[dtype])
        assert excess.max() <= 0
        if dtype is torch.float64:
            # NAdam and ASGD keep numbers of a whole parameter in float32.
            rtol = 1e-6 if optimizer in (torch.optim.NAdam, torch.optim.ASGD) else 1e-9
            np.testing.assert_allclose(updated.value, after, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize(
    ("optimizer", "options", "shape"), RANGES, ids=lambda each: getattr(each, "__name__", None)
)
def test_rules_of_whole_tensors_bound_what_the_optimizers_do(
    optimizer: type[torch.optim.Optimizer],
    options: dict[str, Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    for number, (group, elements, after) in enumerate(trained(optimizer, options, dtype, shape)):
        rule = rule_of(name_of(optimizer), group)
        assert rule is not None
        updated = rule(group, elements)
        allowed = updated.allowed(EPSILON[dtype])
        assert (np.abs(after - updated.value) - allowed).max() <= 0
        assert updated.is_bound is not None
        if number == 0:  # of a vector the first step is known exactly
            assert updated.is_bound.all() == (len(shape) > 1)
        wrong = elements.before + 30 * (after - elements.before)
        assert (np.abs(wrong - updated.value) > allowed).any()


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"lr": 0.01}, {"lr": 0.01001}),
        ({"betas": (0.9, 0.999)}, {"betas": (0.9, 0.99)}),
        ({"weight_decay": 0.01}, {"weight_decay": 0.0}),
        ({"eps": 1e-8}, {"eps": 1e-4}),
    ],
    ids=["lr", "beta2", "weight_decay", "eps"],
)
def test_another_setting_is_beyond_rounding(options: dict[str, Any], other: dict[str, Any]) -> None:
    *_, (group, elements, after) = trained(torch.optim.AdamW, options, torch.float32)
    wrong = {**group, **other}
    rule = rule_of("torch.optim.adamw.AdamW", wrong)
    assert rule is not None

    updated = rule(wrong, elements)

    assert (np.abs(after - updated.value) > updated.allowed(EPSILON[torch.float32])).any()


@pytest.mark.parametrize(
    "name", ["mine.SGD", "torch.optim.lbfgs.LBFGS", "apex.optimizers.fused_adam.FusedAdam", ""]
)
def test_other_optimizers_have_no_rule(name: str) -> None:
    given: Callable[..., object] | None = rule_of(name, {})
    assert given is None
