# SPDX-License-Identifier: Apache-2.0
"""At level L0: what a program or a module makes itself, of values that agree, is no data."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


def critical(debugger: PrecisionDebugger, change: str | None) -> None:
    """A critic is given data, what a generator makes, and what lies between."""
    maker, critic = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD([*maker.parameters(), *critic.parameters()], 0.1)
    batches = torch.randn(4, 8, 6)

    def loss(number: int) -> Tensor:
        real = torch.stack(list(batches[number]))
        more = torch.stack(list(batches[3] if change == "samples" else real))
        made = maker(torch.randn(8, 3)).detach()
        part = torch.rand(8, 1)
        first, second = (made, real) if change == "mixed" else (real, made)
        between = part * first + (1 - part) * second
        terms = [critic(each).mean() for each in (made, between, more)]
        total: Tensor = terms[0] + terms[1].square() - terms[2]
        return total

    fit(debugger, [maker, critic], optimizer, loss)


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ("mixed", "order", "is fed with the result of Module.0.Linear.forward.0 instead of"),
        ("samples", "data", "what call 2 of Module.1.Sequential gets"),
    ],
)
def test_what_the_program_mixes_otherwise_is_no_data(
    change: str, verdict: str, words: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, critical, change, level="L0")
    assert (found["class"], words in found["sentence"]) == (verdict, True), found["sentence"]


chosen: set[str] = set()  # not an attribute of a module: comparisons would name it


class Counting(nn.Module):
    """Keeps an average that nothing of the same step reads."""

    mean: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.count.mul_(0.9).add_(x.gt(0).sum(0), alpha=0.1)
            smooth = self.count / self.count.sum()
            part = self.count if "raw" in chosen else smooth
            self.mean.copy_(x.sum(0) / (part + 1e-3))
        return x * 2


def counting(debugger: PrecisionDebugger, change: str) -> None:
    chosen.clear()
    chosen.add(change)
    model = nn.Sequential(nn.Linear(4, 4), Counting(), nn.Linear(4, 2))
    inputs = torch.randn(3, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(inputs[number]).square().mean())


def test_what_a_module_writes_otherwise_is_told_with_its_call(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, counting, "raw", "", level="L0")
    assert found["class"] == "argument", found["sentence"]
    assert "1.mean differs after step 0" in found["sentence"]
    assert "is fed with the result of Tensor.add_ " in found["sentence"]


def casting(debugger: PrecisionDebugger, kind: str) -> None:
    model, inputs = nn.Linear(16, 16), torch.randn(3, 8, 16)
    wanted = torch.randint(0, 16, (8,))

    def loss(number: int) -> Tensor:
        logits = model(inputs[number])
        logits = logits.bfloat16() if kind == "bfloat16" else logits.float()
        return functional.cross_entropy(logits.view(8, 16), wanted)

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


def test_a_cast_to_another_type_is_a_matter_of_precision(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, casting, "bfloat16", "float", level="L0")
    assert found["class"] == "precision", found["sentence"]
    assert "the target calls Tensor.bfloat16 " in found["sentence"]


def smoothing(debugger: PrecisionDebugger, change: str | None) -> None:
    model, inputs = nn.Linear(6, 5), torch.randn(3, 8, 6)
    wanted = torch.rand(3, 8, 5).softmax(-1)
    wanted = wanted.flip(1) if change == "labels" else wanted

    def loss(number: int) -> Tensor:
        each: Tensor = wanted[number].neg() * model(inputs[number]).log_softmax(-1)
        return each.sum(-1).mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


def test_other_labels_are_told_with_the_line_that_takes_them(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, smoothing, "labels", level="L0")
    assert found["class"] == "data", found["sentence"]
    assert f"argument 0 of Tensor.mul ({Path(__file__).name}:" in found["sentence"]


class Scan(nn.Module):
    """Its state is small beside what it is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.decay, self.leave = (nn.Linear(12, 12) for _ in range(3))
        nn.init.constant_(self.decay.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        u = self.enter(x)
        decay = functional.softplus(self.decay(u)).neg().exp()
        h, states = torch.zeros_like(u[:, 0]), []
        for t in range(u.shape[1]):
            h = decay[:, t] * h + 1e-3 * u[:, t]
            if "rounded" in chosen:
                h = h.bfloat16().float()
            states.append(h)
        out: Tensor = self.leave(torch.stack(states, 1) + u)
        return out


def scanning(debugger: PrecisionDebugger, change: str) -> None:
    chosen.clear()
    chosen.add(change)
    model = nn.Sequential(nn.Linear(12, 12), Scan(), Scan(), nn.Linear(12, 4))
    inputs = torch.randn(3, 8, 6, 12)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(inputs[number]).square().mean())


def test_a_cast_there_and_back_is_a_matter_of_precision(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, scanning, "rounded", "", level="L0")
    assert found["class"] == "precision", found["sentence"]
    assert "only the target calls Tensor.bfloat16 " in found["sentence"]


class Restarting(nn.Module):
    """Keeps samples that it draws, which nothing of the same step reads."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.kept.copy_(x[torch.randint(0, len(x), (1,))][0])
        return x * 2


def restarting(debugger: PrecisionDebugger, seed: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Restarting(), nn.Linear(4, 2))
    inputs = torch.randn(3, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(seed)
    fit(debugger, model, optimizer, lambda number: model(inputs[number]).square().mean())


def test_what_a_module_draws_for_a_buffer_hangs_on_the_seed(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, restarting, 7, 1, level="L0")
    assert found["class"] == "random", found["sentence"]
    assert "the state of the generator cpu differs when step 0 starts" in found["sentence"]


def surgery(debugger: PrecisionDebugger, change: str) -> None:
    """Take from the gradients of one task what is against those of the other, by hand."""
    model = nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 1), nn.Linear(6, 1)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.randn(3, 7, 5)
    for step in recorded_steps(debugger, model):
        optimizer.zero_grad()
        hidden = torch.tanh(model[0](data[step]))
        outs = model[1](hidden), model[2](hidden)
        losses = outs[0].square().mean(), outs[change == "head"].abs().mean()
        shared = list(model[0].parameters())
        own, other = (torch.autograd.grad(each, shared, retain_graph=True) for each in losses)
        (losses[0] + losses[1]).backward()
        for parameter, first, second in zip(shared, own, other, strict=True):
            dot = (first * second).sum()
            if dot > 0 or change == "eps":
                size = second.square().sum() + (1.0 if change == "eps" else 1e-12)
                parameter.grad = first + second - dot / size * second
        optimizer.step()


def test_what_a_program_makes_of_gradients_is_told_at_l0(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, surgery, "eps", "", level="L0")

    assert verdict["class"] in ("argument", "call"), verdict["sentence"]
    assert "gradients" in verdict["sentence"]


def test_what_is_fed_otherwise_comes_before_calls_that_follow_from_it(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, surgery, "head", "", level="L0")

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "is fed with the result of Module.2.Linear.forward.0" in verdict["sentence"]
