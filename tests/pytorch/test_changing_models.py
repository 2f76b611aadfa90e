# SPDX-License-Identifier: Apache-2.0
"""Models whose modules and parameters are not all there when recording begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from builders.recordings import recording

pytestmark = pytest.mark.torch

BATCH = torch.linspace(-1, 1, 8).view(2, 4)


def lazy_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 2))


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_lazy_modules_are_recorded_from_their_first_call_on(level: str, tmp_path: Path) -> None:
    with recording(tmp_path, level) as run:
        model = lazy_model()
        for _ in range(2):
            model.zero_grad()
            with run.step_of(model):
                loss = model(BATCH).sum()
                loss.backward()
        steps = [set(run.names("Module.", step)) for step in (0, 1)]
        first = [record for record in run.records().values() if record.get("parameters")]
        accounts = [run.account(step) for step in (0, 1)]
    plain = lazy_model()
    assert torch.equal(loss, plain(BATCH).sum())
    assert [account["errors"] for account in accounts] == [{}, {}]
    if level in ("L0", "mix"):
        # The class is the one that a lazy module becomes, in the first step as in the second.
        assert steps[0] == steps[1]
        parameters = [record["parameters"]["weight"] for record in first]
        assert [one["shape"] for one in parameters] == [[8, 4], [8], [2, 8]]
        assert all(one["Norm"] > 0 for one in parameters)
        assert {
            "Module.0.Linear.forward.0",
            "Module.0.Linear.parameters_grad",
            "Module.1.BatchNorm1d.parameters_grad",
            "Module.2.Linear.parameters_grad",
        } <= steps[0]


def test_a_lazy_module_that_never_runs_is_no_gap(tmp_path: Path) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 2), "unused": nn.LazyLinear(2)})
    with recording(tmp_path, "mix") as run:
        with run.step_of(model):
            model["used"](BATCH).sum().backward()
        assert run.account()["complete"]
        assert [name for name in run.names() if "unused" in name] == []


def test_modules_that_are_added_between_steps_are_recorded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with recording(tmp_path, "L0") as run:
        with run.step_of(model):
            model(BATCH).sum().backward()
        model[2] = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        with run.step_of(model):
            model(BATCH).sum().backward()
        head = run.names(".2", step=1)
    assert "Module.2.1.Linear.forward.0" in head
    assert "Module.2.1.Linear.backward.0" in head
    assert "Module.2.1.Linear.parameters_grad" in head
    assert "Module.2.Sequential.forward.0" in head
    assert not [name for name in head if name.startswith("Module.2.Linear")]


def test_modules_and_parameters_that_are_added_within_a_step_are_recorded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with recording(tmp_path, "L0") as run:
        run.debugger.start(model)
        model(BATCH).sum().backward()
        run.debugger.stop()
        model.append(nn.Linear(2, 1))
        model[0].weight = nn.Parameter(torch.ones(4, 4))
        run.debugger.start(model)
        model(BATCH).sum().backward()
        run.debugger.stop()
        run.debugger.step()
        assert "Module.2.Linear.parameters_grad" in run.names()
        again = run.records()["Module.0.Linear.parameters_grad.1"]
    assert set(again) == {"weight", "bias"}
    replaced = model[0].weight.grad
    assert replaced is not None
    assert again["weight"][0]["Max"] == replaced.max().item()


def test_a_module_that_changed_its_place_is_recorded_there(tmp_path: Path) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.ModuleDict({"a": first, "b": second})
    with recording(tmp_path, "L0") as run:
        with run.step_of(model):
            model["a"](BATCH)
        model["a"], model["b"] = second, first
        with run.step_of(model):
            model["a"](BATCH)
        assert run.names(step=1) == ["Module.a.Linear.forward.0"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_a_model_that_cannot_be_looked_through_harms_nothing(level: str, tmp_path: Path) -> None:
    class Secret(nn.Linear):
        is_hidden = False

        def __getattribute__(self, name: str) -> Any:
            if name == "_modules" and Secret.is_hidden:
                raise ZeroDivisionError("on purpose")
            return super().__getattribute__(name)

    with recording(tmp_path, level) as run:
        model = Secret(4, 4)
        Secret.is_hidden = True
        with run.step_of(model):
            loss = model(BATCH).sum()
            loss.backward()
        account = run.account()
    assert model.weight.grad is not None
    assert account["complete"] is False
    assert set(account["errors"].values()) == {1}


def test_a_parameter_that_refuses_hooks_stands_in_the_account(tmp_path: Path) -> None:
    class Closed(nn.Parameter):
        def register_post_accumulate_grad_hook(self, _hook: object) -> None:  # type: ignore[override]
            raise TypeError("no hooks here")

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].weight = Closed(torch.ones(4, 4))
    with recording(tmp_path, "L0") as run:
        with run.step_of(model):
            model(BATCH).sum().backward()
        account = run.account()
        assert "Module.1.Linear.parameters_grad" in run.names()
        assert list(run.records()["Module.0.Linear.parameters_grad"]) == ["bias"]
    assert account["complete"] is False
    assert account["errors"] == {"watching a parameter: TypeError": 1}


def test_a_gradient_that_an_earlier_hook_uses_up_is_recorded(tmp_path: Path) -> None:
    def updated(model: nn.Module) -> list[float]:
        """Let each parameter be updated in the backward pass; return the norms of gradients."""
        norms: list[float] = []

        def update(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            norms.append(parameter.grad.norm().item())
            parameter.data.sub_(parameter.grad)
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        return norms

    model = nn.Sequential(nn.Linear(4, 2))
    norms = updated(model)
    with recording(tmp_path, "L0") as run:
        with run.step_of(model):
            model(BATCH).sum().backward()
        recorded = run.records()["Module.0.Linear.parameters_grad"]
        assert run.account()["errors"] == {}
    assert sorted(one["Norm"] for (one,) in recorded.values()) == pytest.approx(sorted(norms))
    model(BATCH).sum().backward()  # the program's hooks are in their places
    assert len(norms) == 4


class MakesItsHead(nn.Module):
    """Makes a part of itself in its first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        if not hasattr(self, "head"):
            self.head = nn.Linear(4, 2)
        return self.head(hidden)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_made_while_recording_is_told_and_recorded_next(
    level: str, tmp_path: Path
) -> None:
    model, other = MakesItsHead(), nn.Sequential(nn.Linear(4, 4))
    with recording(tmp_path, level) as run:
        for _ in range(2):
            with run.step_of(model):
                model(other(torch.ones(2, 4))).sum().backward()
        first, second = (run.account(step=step)["skipped"] for step in range(2))
        recorded = ["Module.head.Linear.forward.0" in run.records(step=step) for step in range(2)]
    assert first.get("calls of modules added while recording") == 1
    assert "calls of modules added while recording" not in second
    assert recorded == [False, True]
