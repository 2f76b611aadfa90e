# SPDX-License-Identifier: Apache-2.0
"""States that differ are told by what made them so: other modules, options, optimizers, calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch
LEVELS = ["L0", "L1", "mix"]


class Gated(nn.Module):
    """Holds buffers beside its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(8, 1), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * self.gate(x).sigmoid())


class Tied(nn.Module):
    """Uses one weight under two names, and a block of a class that is given."""

    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.into, self.block, self.out = nn.Linear(8, 8), kind(), nn.Linear(8, 4)
        self.again = nn.Linear(8, 8, bias=False)
        self.again.weight = self.into.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.again(self.block(self.into(x))))
        return out


def of_modules(debugger: PrecisionDebugger, kind: str) -> None:
    """Train a model with another block; what is made behind it starts with other numbers."""
    model = Tied(Gated if kind == "gated" else lambda: nn.Linear(8, 8))
    data = torch.linspace(-1, 1, 64).reshape(8, 8)
    fit(
        debugger,
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda number: model(data + number).square().mean(),
    )


@pytest.mark.parametrize("level", LEVELS)
def test_other_modules_come_before_what_starts_otherwise(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, of_modules, "plain", "gated", level)

    assert verdict["class"] == "call"
    assert "block is Linear in the target, Gated in the reference" in verdict["sentence"]
    # Neither the buffers of the norm nor the second name of the tied weight are counted.
    assert "2 of the target's 6 parameters and 4 of the reference's 8" in verdict["sentence"]
    assert (
        "2 of 4 parameters that both have, all behind these, start otherwise" in verdict["sentence"]
    )


@pytest.mark.parametrize("level", LEVELS)
def test_where_all_starts_otherwise_modules_are_not_the_cause(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, kind: str) -> None:
        if kind == "gated":
            torch.manual_seed(2)
        of_modules(debugger, kind)

    verdict = verdict_on(tmp_path, run, "plain", "gated", level)

    assert verdict["class"] == "parameters", verdict["sentence"]
    assert "all 4 parameters differ when step 0 starts" in verdict["sentence"]


def test_a_tied_weight_of_another_shape_counts_once(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, words: int) -> None:
        model = nn.ModuleDict({"into": nn.Embedding(words, 4), "out": nn.Linear(4, words)})
        model["out"].weight = model["into"].weight
        fit(
            debugger,
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            lambda number: model["out"](model["into"](torch.tensor([number, 1]))).square().sum(),
        )

    verdict = verdict_on(tmp_path, run, 9, 8, "L0")

    assert verdict["class"] == "parameters", verdict["sentence"]
    assert "all 2 parameters (into.weight, out.bias) have another shape" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_further_module_is_named(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, is_longer: bool) -> None:
        blocks = [nn.Linear(8, 8), nn.Tanh()] * (1 + is_longer)
        if is_longer:
            blocks[2] = nn.Linear(8, 8)
        model = nn.ModuleDict({"body": nn.Sequential(*blocks), "head": nn.Linear(8, 2)})
        fit(
            debugger,
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            lambda number: model["head"](model["body"](torch.full((2, 8), 0.1 + number))).sum(),
        )

    verdict = verdict_on(tmp_path, run, False, True, level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference has module body.2" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_option_of_a_module_comes_before_buffers_made_with_it(
    tmp_path: Path, level: str
) -> None:
    def run(debugger: PrecisionDebugger, iterations: int) -> None:
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6), "weight", iterations)
        fit(
            debugger,
            layer,
            torch.optim.SGD(layer.parameters(), 0.1),
            lambda number: layer(torch.full((2, 6), 1.0 + number)).sum(),
        )

    verdict = verdict_on(tmp_path, run, 3, 1, level)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "n_power_iterations is 3 in the target, 1 in the reference" in verdict["sentence"]
    assert not any("checkpoint" in each for each in verdict["next"])


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_one_optimizer_leaves_out_comes_before_an_average_of_it(
    tmp_path: Path, level: str
) -> None:
    def run(debugger: PrecisionDebugger, is_part: bool) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        average = nn.Linear(8, 8, bias=False)
        trained = model[2].parameters() if is_part else model.parameters()
        optimizer = torch.optim.SGD(trained, 0.1)
        for number in recorded_steps(debugger, model):
            if not number:  # a first batch that sets a weight
                with torch.no_grad():
                    model[0].weight.copy_(torch.linspace(-1, 1, 64).reshape(8, 8))
            optimizer.zero_grad()
            model(torch.full((2, 8), 0.1 + number)).square().sum().backward()
            optimizer.step()
            with torch.no_grad():
                average.weight.lerp_(model[0].weight.to(torch.float32), 0.1)

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert verdict["class"] == "update", verdict["sentence"]
    assert "only the reference's optimizer updates" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("is_early", [True, False])
def test_an_average_before_the_update_is_order(tmp_path: Path, level: str, is_early: bool) -> None:
    def run(debugger: PrecisionDebugger, is_early: bool) -> None:
        model, average = nn.Linear(8, 4), nn.Linear(8, 4).requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), 0.01, foreach=False)

        def follow() -> None:
            with torch.no_grad():
                for own, other in zip(average.parameters(), model.parameters(), strict=True):
                    own.lerp_(other, 0.1)

        nets = nn.ModuleDict({"model": model, "average": average})
        for number in recorded_steps(debugger, nets):
            optimizer.zero_grad()
            loss = F.mse_loss(model(torch.full((2, 8), 0.1 + number)), torch.ones(2, 4))
            loss.backward()
            if is_early:
                follow()
            # Given a closure, an optimizer is outlined with what it calls.
            optimizer.step(lambda last=loss: last)
            if not is_early:
                follow()

    verdict = verdict_on(tmp_path, run, is_early, not is_early, level)

    assert verdict["class"] == "order", verdict["sentence"]
    assert "average.weight" in verdict["sentence"]
    late, early = ("target", "reference") if is_early else ("reference", "target")
    words = f" in the {late}, before it in the {early}"
    if level == "L0":
        words = f"of the framework in the {late}, after it in the {early}"
    assert words in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("is_early", [True, False])
def test_an_average_that_is_not_recorded_before_the_update_is_no_equal_result(
    tmp_path: Path, level: str, is_early: bool
) -> None:
    """Parameters and gradients agree; what the average comes to does not."""

    def run(debugger: PrecisionDebugger, is_early: bool) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def follow() -> None:
            with torch.no_grad():
                for own, other in zip(average.parameters(), model.parameters(), strict=True):
                    own.lerp_(other, 0.1)

        for number in recorded_steps(debugger, model):
            data = torch.full((2, 8), 0.1 + number)
            optimizer.zero_grad()
            F.mse_loss(model(data), torch.ones(2, 4)).backward()
            if is_early:
                follow()
            optimizer.step()
            if not is_early:
                follow()
            with torch.no_grad():
                F.mse_loss(average(data), torch.ones(2, 4))

    verdict = verdict_on(tmp_path, run, is_early, not is_early, level)

    assert verdict["class"] == "order", verdict["sentence"]
    late, early = ("target", "reference") if is_early else ("reference", "target")
    words = (
        "SGD updates 0.weight after Tensor.lerp_.0.forward",
        f"the {late}, before it in the {early}",
    )
    if level == "L0":
        words = "Tensor.lerp_ (", f"before SGD updates what it reads in the {late}"
    assert all(each in verdict["sentence"] for each in words)


def test_gradients_that_another_loss_left_are_no_code_without_records(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, is_left: bool) -> None:
        maker, judge = nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
        nets = nn.ModuleDict({"maker": maker, "judge": judge})
        of_judge, of_maker = (torch.optim.SGD(each.parameters(), 0.1) for each in (judge, maker))
        real = torch.linspace(-1, 1, 32).reshape(4, 8)
        for number in recorded_steps(debugger, nets):
            made = maker(torch.full((4, 3), 0.2 + number))
            judge.requires_grad_(True)
            if not is_left:
                of_judge.zero_grad()
            (judge(real) - judge(made.detach())).square().mean().backward()
            of_judge.step()
            if is_left:
                of_judge.zero_grad()
            judge.requires_grad_(is_left)
            of_maker.zero_grad()
            judge(made).square().mean().backward()
            of_maker.step()
            judge.requires_grad_(True)

    verdict = verdict_on(tmp_path, run, True, False, "mix")

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "are not cleared" in verdict["sentence"]
    assert "code that was not recorded" not in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_validation_without_effect_gives_way_to_the_mode_it_leaves(
    tmp_path: Path, level: str
) -> None:
    def run(debugger: PrecisionDebugger, stays: bool) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in recorded_steps(debugger, model):
            optimizer.zero_grad()
            model(torch.full((4, 8), 0.1 + number)).square().sum().backward()
            optimizer.step()
            if stays and not number:
                model.eval()
                with torch.no_grad():
                    model(torch.full((2, 8), 0.1))

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert verdict["class"] == "mode", verdict["sentence"]
    assert verdict["where"]["step"] == 1


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_call_through_which_the_gradients_flow_that_differ_is_named(
    tmp_path: Path, level: str
) -> None:
    class Upper(nn.Module):
        def __init__(self, is_masked: bool) -> None:
            super().__init__()
            self.is_masked = is_masked
            self.weight = nn.Parameter(torch.randn(6, 6).triu())
            self.scale = nn.Parameter(torch.randn(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight.triu() if self.is_masked else self.weight
            return x @ weight * self.scale

    def run(debugger: PrecisionDebugger, is_masked: bool) -> None:
        model = Upper(is_masked)
        fit(
            debugger,
            model,
            torch.optim.SGD(model.parameters(), 0.01),
            lambda number: model(torch.eye(6) + number + torch.arange(6.0)).square().sum(),
        )

    verdict = verdict_on(tmp_path, run, False, True, level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference calls Tensor.triu.0.forward" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_layer_that_is_made_after_the_optimizer_comes_before_clipping(
    tmp_path: Path, level: str
) -> None:
    """Its gradients are clipped with the others, and neither unscaled nor cleared."""

    def run(debugger: PrecisionDebugger, is_late: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        data, scaler = torch.randn(3, 8, 6), torch.amp.GradScaler("cpu", init_scale=64.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if is_late:
            head = nn.Linear(8, 3)
            head.load_state_dict(model[2].state_dict())
            model[2] = head
        for number in recorded_steps(debugger, model):
            optimizer.zero_grad()
            scaler.scale(model(data[number]).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert verdict["class"] == "update", verdict["sentence"]
    words = "only the reference's optimizer updates 2 of 4 parameters (2.bias, 2.weight) (step 0)"
    assert f"{words}; that of the other side updates 2 that its model lacks" in verdict["sentence"]


def test_calls_between_modules_in_training_alone_follow_from_the_mode(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            hidden = self.inner(data)
            if self.training:
                hidden = hidden + 0.1 * torch.empty(hidden.shape).uniform_(-1, 1)
            result: torch.Tensor = self.outer(hidden)
            return result

    def run(debugger: PrecisionDebugger, stays_in_eval: bool) -> None:
        model, data = Noisy(), torch.randn(3, 8, 6)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in recorded_steps(debugger, model):
            optimizer.zero_grad()
            model(data[number]).square().mean().backward()
            optimizer.step()
            model.eval()
            if not stays_in_eval:
                model.train()

    verdict = verdict_on(tmp_path, run, True, False, "L0")

    assert (verdict["class"], verdict["where"]["step"]) == ("mode", 1), verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_an_average_that_is_written_within_the_closure_is_order(tmp_path: Path, level: str) -> None:
    """Trainers call the hooks behind backward in there."""

    def run(debugger: PrecisionDebugger, is_early: bool) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.RMSprop(model.parameters(), 0.01)

        def follow() -> None:
            with torch.no_grad():
                for own, other in zip(average.parameters(), model.parameters(), strict=True):
                    own.lerp_(other, 0.1)

        def closure() -> torch.Tensor:
            loss = F.mse_loss(model(data), torch.ones(2, 4))
            optimizer.zero_grad()
            loss.backward()
            if is_early:
                follow()
            return loss

        for number in recorded_steps(debugger, [model, average]):
            data = torch.full((2, 8), 0.1 + number)
            optimizer.step(closure)
            if not is_early:
                follow()

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert verdict["class"] == "order", verdict["sentence"]
    assert "only the" not in verdict["sentence"]


class Stacked(nn.Module):
    """Layers, and a table that comes first and is drawn last."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, 8))
        self.into = nn.Linear(8, 8)
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(count)))
        nn.init.normal_(self.table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(self.into(x) + self.table)
        return made


def of_layers(debugger: PrecisionDebugger, change: str) -> None:
    if change == "seed":
        torch.manual_seed(9)
    model = Stacked(3 if change == "more" else 2)
    data = torch.linspace(-1, 1, 32).reshape(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(data + number).square().mean())


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_drawn_after_a_further_module_follows_from_it(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, of_layers, "more", "", level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the target has module layers.2" in verdict["sentence"]
    assert "all drawn after these, starts otherwise" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_another_seed_is_no_further_module(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, of_layers, "seed", "", level)

    assert verdict["class"] == "parameters", verdict["sentence"]
