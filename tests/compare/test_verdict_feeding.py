# SPDX-License-Identifier: Apache-2.0
"""Verdicts on what calls are fed with, which models are called, and calls after the optimizer."""

from __future__ import annotations

import copy
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402
from msprobe.triage.ladder import climb  # noqa: E402

pytestmark = [pytest.mark.torch]


def test_labels_that_differ_come_before_a_later_call(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        if change:
            labels[0] = 2
        for _ in recorded_steps(debugger, model):
            one_hot = torch.zeros(5, 3)
            one_hot[torch.arange(5), labels[:5]] = 1.0
            out = model(x)
            ((out - one_hot) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            out.detach().mul(0.5 if change else 0.25).sum()

    verdict = verdict_on(tmp_path, run, "labels")
    assert verdict["class"] == "data", verdict["sentence"]
    assert "(labels, say)" in verdict["sentence"]


def test_labels_that_happen_to_be_like_the_input_are_no_changed_input(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model = nn.Embedding(6, 6)
        words = torch.tensor([1, 4, 5, 0])
        labels = words.clone()
        labels[-1] = 0 if change else -100
        for _ in recorded_steps(debugger, model):
            given, wanted = words.to("cpu"), labels.to("cpu")
            functional.cross_entropy(model(given), wanted).backward()
            model.zero_grad()

    verdict = verdict_on(tmp_path, run, "labels")
    assert verdict["class"] == "data", verdict["sentence"]


def fetching_ahead(debugger: PrecisionDebugger, change: str | None) -> None:
    """While a batch trains, the labels of the next one are looked up, as numbers, and stacked."""
    model = nn.Linear(4, 3)
    inputs, labels = torch.randn(4, 5, 4), torch.arange(20) % 3
    if change:
        labels[12] = 1
    ahead = [torch.tensor([0, 1, 2, 0, 1])]

    def loss(number: int) -> torch.Tensor:
        first = 5 * (number + 1)
        ahead.append(torch.tensor([int(labels[index]) for index in range(first, first + 5)]))
        return functional.cross_entropy(model(inputs[number]), ahead.pop(0))

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_label_that_is_fetched_a_step_ahead(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, fetching_ahead, "label", None, level)
    assert verdict["class"] == "data", verdict["sentence"]


def remembering(debugger: PrecisionDebugger, change: str | None) -> None:
    """What a step writes into a table, the next one compares with, turned over."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    table, inputs = torch.randn(6, 4), torch.randn(3, 5, 4)
    for number in recorded_steps(debugger, model):
        found = model(inputs[number])
        (found @ table.T).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            table[number] = found[0]
            if change:
                table[5] = found[1]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("sides", [("more", None), (None, "more")])
def test_a_write_of_one_side_alone_that_the_next_step_reads(
    tmp_path: Path, level: str, sides: tuple[str | None, str | None]
) -> None:
    verdict = verdict_on(tmp_path, remembering, *sides, level)
    assert verdict["class"] == "call", verdict["sentence"]
    assert ("only the target" if sides[0] else "only the reference") in verdict["sentence"]
    assert "test_verdict_feeding.py" in verdict["sentence"]
    assert climb(tmp_path / "target", tmp_path / "reference").verdict["class"] == "call"


def augmenting(debugger: PrecisionDebugger, change: Any) -> None:
    """Every batch is augmented with numbers drawn by NumPy, or is another one."""
    seed, scale, shift = change
    np.random.seed(seed)  # noqa: NPY002
    model = nn.Linear(4, 2)
    inputs = torch.randn(4, 5, 4)

    def loss(number: int) -> torch.Tensor:
        noise = torch.from_numpy(np.random.randn(5, 4)).float()  # noqa: NPY002
        given = inputs[number + shift] + noise * scale
        return model(given).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ((1, 0.1, 0), "random", "generator numpy differs when step 0 starts"),
        ((0, 0.2, 0), "argument", "0.2"),
        ((0, 0.1, 1), "data", "the batch"),
    ],
)
def test_what_makes_the_batch_another_one(
    tmp_path: Path, level: str, change: Any, expected: str, words: str
) -> None:
    state = np.random.get_state()  # noqa: NPY002
    try:
        verdict = verdict_on(tmp_path, augmenting, change, (0, 0.1, 0), level)
    finally:
        np.random.set_state(state)  # noqa: NPY002
    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]
    assert climb(tmp_path / "target", tmp_path / "reference").verdict["class"] == expected


def two_in_another_order(debugger: PrecisionDebugger, change: str | None) -> None:
    """The optimizer calls for the loss, as Lightning's does, of pictures that are exchanged."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    one, other, third = torch.randn(3, 5, 4)

    def closure() -> Any:
        given = (one, third, other) if change else (one, other, third)
        loss = functional.triplet_margin_loss(*(model(each) for each in given))
        loss.backward()
        return loss

    for _ in recorded_steps(debugger, model):
        optimizer.step(closure)
        optimizer.zero_grad()


def test_samples_that_are_exchanged_where_the_optimizer_asks_for_the_loss(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, two_in_another_order, "exchanged")
    assert verdict["class"] == "data", verdict["sentence"]
    assert "batches come in another order" in verdict["sentence"]


def split(debugger: PrecisionDebugger, change: str | None) -> None:
    """One batch or two halves, by a model that makes its first state from the number of samples."""
    model = nn.GRU(4, 4, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in recorded_steps(debugger, model):
        torch.manual_seed(number)
        x = torch.randn(4, 6, 4)
        with torch.autocast("cpu", torch.bfloat16):
            for part in x.chunk(2) if change else [x]:
                out, _ = model(part)
                if change:
                    loss = functional.mse_loss(out, part, reduction="sum") / x.numel()
                else:
                    loss = functional.mse_loss(out, part)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_number_of_samples_is_no_argument_to_blame_where_batches_are_split(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, split, "halves")
    assert verdict["class"] in ("equal", "rounding", "unexplained"), verdict["sentence"]


def adapted(debugger: PrecisionDebugger, change: str | None) -> None:
    """MAML with one inner step for each of four tasks."""
    model = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    xs, ys = torch.randn(4, 5, 1), torch.randn(4, 5, 1)

    def fitted(p: dict[str, Any], x: Any, y: Any) -> Any:
        return functional.mse_loss(functional_call(model, p, (x,)), y)

    def task(x: Any, y: Any) -> Any:
        p = dict(model.named_parameters())
        g = grad(fitted)(p, x, y)
        new = {k: p[k] - 0.05 * g[k] for k in p}
        return fitted(p if change == "old" else new, x, y)

    def loss(_: int) -> torch.Tensor:
        tasks = zip(xs, ys, strict=True)
        losses = vmap(task)(xs, ys) if change == "vmap" else torch.stack([task(*t) for t in tasks])
        return losses.mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


def test_a_parameter_that_takes_the_place_of_a_result_is_named(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, adapted, "old")
    assert verdict["class"] == "argument", verdict["sentence"]
    assert "fed with the parameter 0.weight instead of the result of" in verdict["sentence"]


def test_tasks_that_vmap_takes_at_once_accuse_nobody(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, adapted, "vmap")
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


def test_tensors_in_another_order_were_not_changed_in_between(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        first, second = nn.Linear(4, 2), nn.Linear(6, 1)
        model = nn.ModuleDict({"first": first, "second": second})
        x = torch.randn(5, 4)
        for _ in recorded_steps(debugger, model):
            made = torch.tanh(first(x))
            out = second(torch.cat([made, x] if change else [x, made], -1))
            out.square().mean().backward()
            model.zero_grad()

    sentence = verdict_on(tmp_path, run, "order")["sentence"]
    assert "fed with the result of Torch.tanh.0.forward instead of" in sentence


class Networks(nn.Module):
    """A critic and its target network."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(3, 1)
        self.t = copy.deepcopy(self.q).requires_grad_(False)


def bootstrapped(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Networks()
    optimizer = torch.optim.Adam(model.q.parameters(), 0.1)
    x, after = torch.randn(2, 8, 3)
    for _ in recorded_steps(debugger, model):
        with torch.no_grad():
            goal = 1 + 0.9 * (model.q if change == "online" else model.t)(after)
        optimizer.zero_grad()
        functional.mse_loss(model.q(x), goal).backward()
        optimizer.step()
        for p, t in zip(model.q.parameters(), model.t.parameters(), strict=True):
            if change == "in place":
                t.data.mul_(0.95).add_(p.data, alpha=0.05)
            else:
                t.data.copy_(0.05 * p.data + 0.95 * t.data)


def test_a_model_that_is_called_in_place_of_another_is_named(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, bootstrapped, "online")
    assert verdict["class"] == "call", verdict["sentence"]
    assert "in the target where the reference calls Module." in verdict["sentence"]


def test_other_calls_after_the_optimizer_with_the_same_results_accuse_nobody(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, bootstrapped, "in place")
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


def test_a_rate_that_falls_by_one_factor_is_a_setting_and_no_shift(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, rate: float) -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.RMSprop(model.parameters(), rate)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=0, threshold=10.0, threshold_mode="abs"
        )
        x = torch.randn(4, 3)
        for _ in recorded_steps(debugger, model):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            plateau.step(loss.item())

    verdict = verdict_on(tmp_path, run, 0.02, 0.01)
    assert verdict["class"] == "optimizer_setting", verdict["sentence"]
    assert "behind" not in verdict["sentence"]


def match(debugger: PrecisionDebugger, is_converted: bool) -> None:
    """Hold each box against the result that the program finds nearest, by no recorded call."""
    model = nn.Linear(4, 2)
    x, boxes = torch.randn(6, 4), torch.rand(3, 2)
    for _ in recorded_steps(debugger, model):
        corners = boxes
        if is_converted:
            start, size = boxes[:, :1], boxes[:, 1:]
            corners = torch.cat([start - size, start + size], 1)
        goal = torch.stack([corners, corners])[0]
        made = model(x)
        with torch.no_grad():
            cost = torch.cdist(goal, made)[None] - 1
            nearest = torch.stack([torch.tensor(each.numpy().argmin(1).tolist()) for each in cost])
        functional.l1_loss(made[nearest[0]], goal).backward()


def test_a_number_that_the_program_makes_of_other_values_is_not_what_they_come_from(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, match, True, False)

    assert verdict["class"] == "call"
    assert "only the target calls Tensor.__getitem__.0" in verdict["sentence"]


def with_another_term(debugger: PrecisionDebugger, change: str | None) -> None:
    """A term of the loss in float32, of what a model computes in bfloat16 under autocast."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    inputs, labels = torch.randn(3, 16, 8), torch.randint(0, 4, (3, 16))

    def loss(number: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(inputs[number]).float()
        loss = functional.cross_entropy(scores, labels[number])
        if change == "term":
            loss = loss + 1e-3 * scores.logsumexp(-1).square().mean()
        if change == "rewritten":
            loss = -scores.log_softmax(-1)[torch.arange(16), labels[number]].mean()
        return loss

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss, zero_first=False)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "classes"), [("term", {"call"}), ("rewritten", {"equal", "rounding"})]
)
def test_another_loss_of_equal_results_is_no_rounding_of_theirs(
    tmp_path: Path, level: str, change: str, classes: set[str]
) -> None:
    verdict = verdict_on(tmp_path, with_another_term, None, change, level)
    assert verdict["class"] in classes, verdict["sentence"]


def settled_late(debugger: PrecisionDebugger, change: str | None) -> None:
    """Settings of an optimizer that does not use them in its first steps."""
    model = nn.Linear(4, 2)
    betas = (0.9, 0.9 if change == "beta2" else 0.98)
    optimizer = torch.optim.RAdam(model.parameters(), betas=betas)
    for number in recorded_steps(debugger, model):
        torch.manual_seed(number)
        model(torch.randn(3, 4)).square().mean().backward()
        if change == "elements":
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected"), [("beta2", "optimizer_setting"), ("elements", "clipping")]
)
def test_what_only_the_optimizer_shows(
    tmp_path: Path, level: str, change: str, expected: str
) -> None:
    verdict = verdict_on(tmp_path, settled_late, change, None, level)
    assert verdict["class"] == expected, verdict["sentence"]


def noising(debugger: PrecisionDebugger, change: str | None) -> None:
    """The program adds noise to its batch."""
    model = nn.Linear(4, 2)
    inputs = torch.randn(3, 5, 4)
    torch.manual_seed(2 if change else 1)

    def loss(number: int) -> torch.Tensor:
        return model(inputs[number] + torch.randn(5, 4)).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_noise_of_another_seed(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, noising, "seed", None, level)
    assert verdict["class"] == "random", verdict["sentence"]


def two_players(debugger: PrecisionDebugger, change: str | None) -> None:
    """Two models with an optimizer each, one of which trains against the other."""
    made, judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in (judge, made)]
    for _ in recorded_steps(debugger, [made, judge]):
        found = made(torch.randn(5, 2))
        optimizers[0].zero_grad()
        (judge(found.detach()) - judge(torch.randn(5, 4))).mean().backward()
        if change != "idle":
            optimizers[0].step()
        optimizers[1].zero_grad()
        judge(found).square().mean().backward()
        optimizers[1].step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("sides", [("idle", None), (None, "idle")])
def test_one_of_two_optimizers_that_does_not_step(
    tmp_path: Path, level: str, sides: tuple[str | None, str | None]
) -> None:
    verdict = verdict_on(tmp_path, two_players, *sides, level)
    assert verdict["class"] == "update", verdict["sentence"]
    assert f"never in the {'target' if sides[0] else 'reference'}" in verdict["sentence"]


def stepping_aside(debugger: PrecisionDebugger, change: str | None) -> None:
    """The norm of the gradients is computed by hand; they are cleared before, or not."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in recorded_steps(debugger, model):
        if not change:
            optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
        for each in model.parameters():
            each.grad.mul_(1 / (1 + float(norm)))
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_gradients_that_are_not_cleared_are_no_batch(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, stepping_aside, "kept", None, level)
    assert verdict["class"] in ("gradient", "call"), verdict["sentence"]


def with_a_temperature(debugger: PrecisionDebugger, change: str | None) -> None:
    """A parameter that is none of the model's, which the optimizer is given, or not."""
    model, scale = nn.Linear(4, 2), nn.Parameter(torch.tensor(1.5))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    if not change:
        optimizer.add_param_group({"params": [scale]})

    def loss(_: int) -> torch.Tensor:
        return (model(torch.randn(5, 4)) * scale.exp()).square().mean()

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("sides", [("forgotten", None), (None, "forgotten")])
def test_a_parameter_of_no_model_that_one_optimizer_lacks(
    tmp_path: Path, level: str, sides: tuple[str | None, str | None]
) -> None:
    verdict = verdict_on(tmp_path, with_a_temperature, *sides, level)
    assert verdict["class"] == "update", verdict["sentence"]
    assert "'s optimizer updates optimizer.0.group.1.0" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ("both", "Adam", "2.bias is updated by SGD and Adam in the target, by Adam in the ref"),
        ("moved", "Adam", "2.bias is updated by SGD in the target, by Adam in the reference"),
        ("both", "SGD", "2.bias is updated by SGD (optimizer 0) and SGD (optimizer 1) in the tar"),
    ],
)
def test_a_parameter_that_another_optimizer_updates(
    tmp_path: Path, change: str, kind: str, words: str, level: str
) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        first, second = [model[0].bias, model[2].weight], [model[0].weight]
        first += [model[2].bias] if change else []
        second += [model[2].bias] if change != "moved" else []
        optimizers = [torch.optim.SGD(first, 0.1), getattr(torch.optim, kind)(second, 0.01)]
        for _ in recorded_steps(debugger, model):
            model.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()

    verdict = verdict_on(tmp_path, run, change, None, level)
    assert verdict["class"] == "update", verdict["sentence"]
    assert words in verdict["sentence"]


class RootMeanSquare(nn.Module):
    """A norm of several calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Gated(nn.Module):
    """Two projections, the second of which a gate goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, gate = self.first(x).chunk(2, -1)
        return self.last(x * functional.silu(gate) + x)


class Residual(nn.Module):
    """Layers with a norm each, before or behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.norms = nn.ModuleList(RootMeanSquare() for _ in range(2))
        self.layers = nn.ModuleList(Gated() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x.square().mean()


class ResidualNormedBehind(Residual):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = norm(x + layer(x))
        return x.square().mean()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_calls_that_are_made_earlier_on_one_side(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        torch.manual_seed(2)
        model = ResidualNormedBehind() if change else Residual()

        def loss(_: int) -> torch.Tensor:
            return model(torch.randint(0, 9, (4, 3)))

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)

    verdict = verdict_on(tmp_path, run, "behind", level=level)
    assert verdict["class"] in ("call", "order"), verdict["sentence"]
    assert verdict["where"]["step"] == 0


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_call_given_what_another_was_given_is_no_other_batch(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        torch.manual_seed(2)
        model = nn.Linear(3, 2)

        rays = torch.randn(8, 3)

        def loss(_: int) -> torch.Tensor:
            unit = functional.normalize(rays)
            points = 2 * (rays if change else unit)[:, None]
            return (model(points).squeeze(1) * unit[:, :2]).square().mean()

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)

    verdict = verdict_on(tmp_path, run, "not normalized", level=level)
    assert verdict["class"] == "argument", verdict["sentence"]
    assert (
        "fed with what Functional.normalize.0.forward is given instead of the result of "
        "Functional.normalize.0.forward" in verdict["sentence"]
    )


class GatedByTheFirst(nn.Module):
    """Products of two projections, one of which goes through the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            x = x + functional.silu(first(x)) * second(x)
        return x


class GatedByTheSecond(GatedByTheFirst):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            x = x + functional.silu(second(x)) * first(x)
        return x


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_call_between_modules_that_are_called_in_another_order(
    tmp_path: Path, level: str
) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        torch.manual_seed(2)
        model = GatedByTheSecond() if change else GatedByTheFirst()

        def loss(_: int) -> torch.Tensor:
            return model(torch.randn(4, 8)).square().mean()

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)

    verdict = verdict_on(tmp_path, run, "gate", level=level)
    assert "only the" not in verdict["sentence"], verdict["sentence"]


class Scaled(nn.Module):
    """A frozen head behind a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.head: nn.Module = nn.Linear(4, 4, bias=False).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x * self.scale)


class Kept(nn.Module):
    """A layer, and a copy of it that is trained."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.original = layer
        self.copy = copy.deepcopy(layer).requires_grad_(True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.copy(x)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_further_parameter_that_is_clipped_too_is_no_other_clipping(
    tmp_path: Path, level: str
) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        torch.manual_seed(2)
        model = Scaled()
        if change:
            model.head = Kept(model.head)
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), 0.1)
        torch.manual_seed(3)
        x = torch.randn(8, 4)
        for _ in recorded_steps(debugger, model):
            model(x).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()

    verdict = verdict_on(tmp_path, run, "head", level=level)
    assert verdict["class"] != "clipping", verdict["sentence"]


class _Codes(nn.Module):
    """Codes that follow their average, which begins as a copy of them."""

    def __init__(self, *, is_early: bool) -> None:
        super().__init__()
        self.is_early = is_early
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("book", torch.randn(5, 3))
        self.register_buffer("average", self.book.clone())

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        if not self.is_early:
            found = functional.embedding(index, self.book)
        self.average.mul_(0.9).add_(0.1)
        self.book[:] = self.average * 2
        if self.is_early:
            found = functional.embedding(index, self.book)
        return found * self.scale


def test_one_of_two_buffers_that_hold_the_same_is_not_named_alone(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model, index = _Codes(is_early=change is not None), torch.tensor([0, 3, 4])
        for _ in recorded_steps(debugger, model):
            model(index).sum().backward()

    said = verdict_on(tmp_path, run, "early")["sentence"]
    words = "instead of the buffer book (or the buffer average, which holds the same)"
    assert words in said, said


def test_samples_that_the_model_is_given_besides_are_not_said_to_be_the_same(
    tmp_path: Path,
) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model = nn.Embedding(4, 30)
        parts = [torch.tensor([0, 1, 2]), torch.tensor([3, 2, 0, 0, 2, 1])]
        if change:
            parts[1] = parts[1].flip(0)

        for _ in recorded_steps(debugger, model):
            functional.cross_entropy(model(torch.cat(parts)), torch.arange(9) % 3).backward()

    verdict = verdict_on(tmp_path, run, "flipped")
    assert verdict["class"] == "data", verdict["sentence"]
    assert "input.0 holds the same values in another order" in verdict["sentence"]


def test_parameters_that_change_places_are_named_where_modules_have_no_records(
    tmp_path: Path,
) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        gate, up = nn.Linear(4, 4), nn.Linear(4, 4)
        model, x = nn.ModuleDict({"gate": gate, "up": up}), torch.randn(3, 4)
        first, second = (up, gate) if change else (gate, up)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        fit(debugger, model, optimizer, lambda _: (functional.silu(first(x)) * second(x)).sum())

    verdict = verdict_on(tmp_path, run, "exchanged", level="L1")
    words = "called with the parameter up.weight instead of the parameter gate.weight"
    assert words in verdict["sentence"], verdict["sentence"]
    assert verdict["class"] == "argument"


def test_parameters_that_change_places_are_named_beside_others_that_hold_the_same(
    tmp_path: Path,
) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        gate, up = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        first = nn.ModuleDict({"gate": gate, "up": up})
        model, x = nn.ModuleList([first, deepcopy(first)]), torch.randn(3, 16)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        names = ("up", "gate") if change else ("gate", "up")

        def loss(_: int) -> torch.Tensor:
            made = x
            for each in model:
                made = functional.silu(each[names[0]](made)) * each[names[1]](made)
            return made.sum()

        fit(debugger, model, optimizer, loss)

    sentence = verdict_on(tmp_path, run, "exchanged", level="L1")["sentence"]
    words = "called with the parameter 0.up.weight (or the parameter 1.up.weight, which holds"
    assert words in sentence, sentence
    assert "times the reference's" not in sentence, sentence


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_states_that_change_places_between_steps_are_no_data(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model, x = nn.LSTM(4, 3), torch.randn(3, 5, 2, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        state = (torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
        for number in recorded_steps(debugger, model):
            state = tuple(each.detach() * 0.9 for each in (state[::-1] if change else state))
            found, state = model(x[number], state)
            optimizer.zero_grad()
            found.square().mean().backward()
            optimizer.step()

    verdict = verdict_on(tmp_path, run, "exchanged", level=level)
    assert verdict["class"] == "order", verdict["sentence"]
    words = "forward.output.2 of step 0 instead of VF.lstm.0.forward.output.1"
    assert words in verdict["sentence"], verdict["sentence"]
