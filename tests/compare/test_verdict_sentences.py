# SPDX-License-Identifier: Apache-2.0
"""First lines of comparisons: what they name, and that legal rewrites are not accused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Choices:
    """What a program may do differently."""

    joined: bool = True
    scale: float = 1.0
    smoothing: float = 0.0
    reverses: bool = False
    gives_mask: bool = True
    fails: bool = False
    autocast: bool = False
    frozen_first: bool = False
    adapter: type[nn.Module] | None = None
    bias: bool = True
    redraws: bool = False
    narrow: bool = False
    averages: bool = False
    penalty: bool = False


class Net(nn.Module):
    """Two projections of the same value, held as one weight or as two; an optional mask."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.into = nn.Linear(6, 8, bias=choices.bias)
        self.parts = Parts(choices)
        self.out = nn.Linear(8, 3)
        if choices.redraws:
            nn.init.normal_(self.out.weight)
        self.adapter = Adapter(choices.adapter()) if choices.adapter else nn.Identity()
        self.scaled = lambda x: x * choices.scale if choices.scale != 1 else x

    def forward(self, x: Tensor, edges: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.into(x)
        x = x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        x = self.adapter(x + self.parts(self.scaled(x)))
        return self.out(x if mask is None else x * mask[:, None])


class Adapter(nn.Module):
    """An addition of low rank, which is 0 in the first step."""

    def __init__(self, before: nn.Module) -> None:
        super().__init__()
        self.before = before
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.down(self.before(x)))


class Parts(nn.Module):
    """Two heads."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.joined = choices.joined
        whole = nn.Linear(8, 16, bias=False)
        if choices.joined:
            self.both = whole
            return
        with torch.random.fork_rng():
            self.a, self.b = (nn.Linear(8, 8, bias=False) for _ in range(2))
        for part, weight in zip((self.a, self.b), whole.weight.detach().split(8), strict=True):
            part.weight.data.copy_(weight)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, -1) if self.joined else (self.a(x), self.b(x))
        return torch.tanh(a) * b


def record(folder: Path, level: str, choices: Choices) -> Path:
    torch.manual_seed(0)
    net = Net(choices)
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    if choices.reverses:
        edges = edges.flip(1)
    given = {"mask": torch.ones(5)} if choices.gives_mask else {}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    average = net.out.weight.detach().clone()
    with recording(folder, level) as observed:
        for step in range(2):
            with observed.step_of(net):
                if choices.fails and step == 1:
                    continue
                with torch.autocast("cpu", torch.bfloat16, enabled=choices.autocast):
                    logits = net(x, edges, **given)
                loss = F.cross_entropy(logits.float(), y, label_smoothing=choices.smoothing)
                if choices.narrow:
                    loss = F.cross_entropy(logits[:2], y[:2])
                if choices.penalty:
                    loss = loss + 0.01 * net.out.weight.abs().sum()
                loss.backward()
                optimizer.step()
                if choices.averages:
                    with torch.no_grad():
                        average.lerp_(net.out.weight, 0.1)
                optimizer.zero_grad()
    return folder


Compare = Callable[..., Any]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def run(level: str, target: Choices, reference: Choices | None = None) -> Any:
        sides = (
            record(tmp_path / "a", level, target),
            record(tmp_path / "b", level, reference or Choices()),
        )
        return run_comparison(*sides, CompareOptions()).summary

    return run


def is_not_accused(summary: Any) -> bool:
    verdict = summary["verdict"]
    is_proved = verdict["confidence"] == "proved" and not summary["introduced"]
    return is_proved and verdict["class"] in ("equal", "rounding", "precision")


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_one_weight_held_as_two_is_another_way_to_compute(compare: Compare, level: str) -> None:
    summary = compare(level, Choices(joined=False))
    assert is_not_accused(summary), summary["verdict"]["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_edges_in_another_order_are_no_cause_where_the_results_agree(
    compare: Compare, level: str
) -> None:
    summary = compare(level, Choices(reverses=True))
    assert is_not_accused(summary), summary["verdict"]["sentence"]
    assert any("the same values in another order" in e for e in summary["verdict"]["evidence"])


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_autocast_inside_modules_explains_their_own_code(compare: Compare, level: str) -> None:
    summary = compare(level, Choices(autocast=True))
    assert summary["verdict"]["class"] == "precision", summary["verdict"]["sentence"]
    assert not summary["introduced"]


def test_an_argument_that_one_side_leaves_out_is_harmless_if_it_changes_nothing(
    compare: Compare,
) -> None:
    summary = compare("L1", Choices(gives_mask=False))
    assert is_not_accused(summary), summary["verdict"]["sentence"]


def test_modules_alone_tell_which_call_makes_another_loss(compare: Compare) -> None:
    verdict = compare("L0", Choices(smoothing=0.2))["verdict"]
    assert "the loss is" in verdict["sentence"]
    assert verdict["class"] == "argument"
    assert "label_smoothing of Functional.cross_entropy (" in verdict["sentence"]
    assert " is 0.2 in the target, 0.0 in the reference" in verdict["sentence"]


def test_the_factor_of_a_value_changed_between_two_modules_is_named(compare: Compare) -> None:
    verdict = compare("L0", Choices(scale=1.5))["verdict"]
    assert "1.5 times the reference's" in verdict["sentence"], verdict["sentence"]


def test_a_step_that_one_side_leaves_early_is_said(compare: Compare) -> None:
    verdict = compare("L1", Choices(fails=True))["verdict"]
    assert verdict["class"] == "incomplete"
    assert "step 1 of the target has no backward pass and no optimizer step" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_call_whose_result_is_multiplied_by_zero_is_told_by_the_gradients(
    compare: Compare, level: str
) -> None:
    verdict = compare(level, Choices(adapter=nn.Dropout), Choices(adapter=nn.Identity))["verdict"]
    assert verdict["class"] == "call"
    assert "dropout" in verdict["sentence"].lower()
    assert verdict["where"]["step"] == 0, verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Choices(bias=False), "only the reference has into.bias"),
        (Choices(redraws=True), "out.weight differs when step 0 starts"),
    ],
    ids=["other", "redrawn"],
)
def test_another_model_comes_before_the_data_that_are_drawn_after_it(
    compare: Compare, level: str, change: Choices, words: str
) -> None:
    verdict = compare(level, change)["verdict"]
    assert verdict["class"] == "parameters", verdict["sentence"]
    assert words in verdict["sentence"]
    assert "the state of the generator cpu differs" in verdict["sentence"]
    assert any("the batch of step 0 differs" in each for each in verdict["evidence"])


def test_another_start_comes_before_one_of_several_batches_that_is_drawn(tmp_path: Path) -> None:
    sides = tmp_path / "target", tmp_path / "reference"
    loaded = torch.linspace(-1.0, 1.0, 30).reshape(5, 6)
    for side in sides:
        torch.manual_seed(0)
        net = nn.Linear(6, 4)
        if side.name == "target":
            nn.init.normal_(net.weight, 0.0, 0.02)
        with recording(side, "L0") as observed, observed.step_of(net):
            (net(torch.randn(5, 6)).square().mean() - net(loaded).mean()).backward()

    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "parameters", verdict["sentence"]
    assert "weight differs when step 0 starts" in verdict["sentence"]
    assert "the state of the generator cpu differs" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_loss_made_by_a_further_call_is_told_by_that_call(compare: Compare, level: str) -> None:
    verdict = compare(level, Choices(narrow=True))["verdict"]
    assert verdict["class"] == "call"
    assert "only the target calls Tensor.__getitem__." in verdict["sentence"]
    assert verdict["where"]["step"] == 0


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_tensor_that_one_side_alone_changes_is_said_where_nothing_uses_it(
    compare: Compare, level: str
) -> None:
    verdict = compare(level, Choices(), Choices(averages=True))["verdict"]
    assert (verdict["class"], verdict["confidence"]) == ("equal", "possible")
    assert "only the reference calls Tensor.lerp_.0.forward" in verdict["sentence"]
    assert compare(level, Choices(averages=True), Choices(averages=True))["equal"]


def test_a_call_that_uses_a_parameter_outside_its_module_is_named(compare: Compare) -> None:
    verdict = compare("mix", Choices(penalty=True))["verdict"]
    assert verdict["class"] == "call"
    assert "only the target calls Tensor." in verdict["sentence"]


class Lower(torch.autograd.Function):
    """Hands on its input and its gradient, or only the lower triangle of one of them."""

    halves = ""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x.clone().tril_(diagonal=0 if Lower.halves == "argument" else 2)
        return y.tril_() if Lower.halves == "forward" else y

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        return gradient.tril_() if Lower.halves == "backward" else gradient


def verdict_on_lower(folder: Path, monkeypatch: pytest.MonkeyPatch, halves: str) -> Any:
    sides = folder / "target", folder / "reference"
    for side, given in zip(sides, (halves, ""), strict=True):
        monkeypatch.setattr(Lower, "halves", given)
        torch.manual_seed(0)
        net = nn.Linear(3, 3)
        with recording(side, "L1") as observed, observed.step_of(net):
            Lower.apply(net(torch.randn(4, 3))).tanh().sum().backward()
    return run_comparison(*sides, CompareOptions()).summary["verdict"]


@pytest.mark.parametrize("halves", ["forward", "backward"])
def test_what_a_custom_function_calls_inside_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halves: str
) -> None:
    verdict = verdict_on_lower(tmp_path, monkeypatch, halves)

    assert verdict["class"] == "call"
    assert "only the target calls Tensor.tril_.1.forward" in verdict["sentence"]
    assert f"inside a custom function: output.0 of Autograd.Lower.0.{halves}" in verdict["sentence"]


def test_an_argument_inside_a_custom_function_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verdict_on_lower(tmp_path, monkeypatch, "argument")

    assert verdict["class"] == "argument"
    assert "Tensor.tril_.0.forward" in verdict["sentence"]


def test_a_loss_that_agrees_within_tolerance_does_not_vouch_for_another_call(
    tmp_path: Path,
) -> None:
    """A share of 1e-5 does not show in the loss, and does in the gradients of its weights."""
    sides = tmp_path / "target", tmp_path / "reference"
    for side, activation in zip(sides, (F.gelu, F.silu), strict=True):
        torch.manual_seed(0)
        net = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 6)])
        x = torch.randn(5, 6)
        with recording(side, "L1") as observed, observed.step_of(net):
            (x + 1e-5 * net[1](activation(net[0](x)))).square().mean().backward()

    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "call"
    assert "only the target calls Functional.gelu.0.forward" in verdict["sentence"]


@pytest.mark.parametrize(
    ("kind", "expected"), [(torch.bool, "call"), (torch.bfloat16, "precision")]
)
def test_a_cast_is_a_matter_of_precision_if_numbers_stay_numbers(
    tmp_path: Path, kind: torch.dtype, expected: str
) -> None:
    sides = tmp_path / "target", tmp_path / "reference"
    for side in sides:
        torch.manual_seed(0)
        net, x = nn.Linear(6, 6), torch.randn(5, 6)
        with recording(side, "L1") as observed, observed.step_of(net):
            gate = F.relu(x)
            y = net(x) * (gate.to(kind) if side.name == "target" else gate)
            y.square().mean().backward()

    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == expected, verdict["sentence"]


def verdict_on(
    folder: Path, train: Callable[[str], Any], net: nn.Module, level: str = "mix"
) -> Any:
    """Return the verdict on two steps that begin alike; `train` is told which side it is."""
    sides = folder / "target", folder / "reference"
    start = {name: each.clone() for name, each in net.state_dict().items()}
    for side in sides:
        net.load_state_dict(start)
        net.zero_grad()
        torch.manual_seed(0)
        with recording(side, level) as observed, observed.step_of(net):
            train(side.name).backward()
    return run_comparison(*sides, CompareOptions()).summary["verdict"]


def test_a_gradient_that_another_one_is_added_to_is_no_multiple(tmp_path: Path) -> None:
    class Gate(nn.Module):
        by_hand = False

        def forward(self, x: Tensor) -> Tensor:
            return x * x.sigmoid() if self.by_hand else F.silu(x)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), Gate(), nn.LayerNorm(8), nn.Linear(8, 4))
    x, y = torch.randn(5, 6), torch.randn(5, 4)

    def train(side: str) -> Tensor:
        Gate.by_hand = side == "target"
        loss = (net(x) - y).square().mean()
        # It is nearly along the gradient, whose extremes and mean it hardly moves.
        return loss + 0.05 * net[3].weight.square().sum() if side == "target" else loss

    verdict = verdict_on(tmp_path, train, net, "L0")

    assert verdict["class"] == "call"
    assert "only the target calls Tensor.square" in verdict["sentence"]


def test_a_further_term_of_the_loss_is_named_where_its_gradient_joins(tmp_path: Path) -> None:
    x, net = torch.randn(5, 6), nn.Linear(6, 4)

    def train(side: str) -> Tensor:
        flat = net(x).flatten()
        loss = flat.square().mean()
        return loss + 0.1 * flat.logsumexp(0) if side == "target" else loss

    verdict = verdict_on(tmp_path, train, net)

    assert verdict["class"] == "call"
    assert "only the target calls Tensor.__add__.0.forward" in verdict["sentence"]


def test_a_model_that_is_given_another_ones_result_for_data_is_called_as_often(
    tmp_path: Path,
) -> None:
    x, other, net = torch.randn(5, 6), torch.randn(5, 4), nn.ModuleList([nn.Linear(6, 4)])
    net.append(nn.Linear(4, 4))

    def train(side: str) -> Tensor:
        own = net[0](x)
        return (net[1](own if side == "target" else other * 2) + own).square().mean()

    verdict = verdict_on(tmp_path, train, net)

    assert "calls the model" not in verdict["sentence"]
    assert "only the reference calls Tensor.__mul__.0.forward" in verdict["sentence"]


def test_a_detached_result_that_a_model_is_given_is_no_data(tmp_path: Path) -> None:
    x, net = torch.randn(5, 6), nn.ModuleList([nn.Linear(6, 4), nn.Bilinear(4, 6, 2)])

    def train(side: str) -> Tensor:
        own = net[0](x)
        return net[1](own.detach() if side == "target" else own, x).square().mean() + own.sum()

    verdict = verdict_on(tmp_path, train, net)

    assert verdict["class"] in ("call", "gradient")
    assert "the model gets other arguments" not in verdict["sentence"]


def test_an_argument_of_which_the_model_makes_the_same_is_no_cause(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        def forward(self, x: Tensor, count: Tensor | None = None) -> Tensor:
            return super().forward(x)

    net, x = Counting(6, 4), torch.randn(5, 6)

    def train(side: str) -> Tensor:
        if side == "target":
            out = net(x)
            return out.square().mean() + 0.01 * out.logsumexp(-1).mean()
        return net(x, count=torch.tensor(5)).square().mean()

    verdict = verdict_on(tmp_path, train, net)

    assert verdict["sentence"].startswith("call: only the target calls Tensor.__add__.0.forward")


def test_labels_within_the_closure_of_an_optimizer_are_data(tmp_path: Path) -> None:
    sides = tmp_path / "target", tmp_path / "reference"
    for label, side in enumerate(sides):
        torch.manual_seed(0)
        net, x, labels = nn.Linear(6, 4), torch.randn(5, 6), torch.tensor([3, label, 2, -100, 1])
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def closure(net: nn.Module = net, x: Tensor = x, labels: Tensor = labels) -> Tensor:
            net.zero_grad()
            known = labels != -100
            loss = F.cross_entropy(net(x)[known], labels[known])
            loss.backward()
            return loss

        with recording(side, "mix") as observed, observed.step_of(net):
            optimizer.step(closure)

    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "data", verdict["sentence"]
    assert "it differs when it comes in" in verdict["sentence"]


def test_what_the_program_draws_and_hands_to_a_call_is_random(tmp_path: Path) -> None:
    sides = tmp_path / "target", tmp_path / "reference"
    for seed, side in enumerate(sides):
        torch.manual_seed(0)
        net, x = nn.Linear(6, 4), torch.randn(5, 6)
        numpy.random.seed(seed)  # noqa: NPY002 - the state that facts hold is this one
        with recording(side, "mix") as observed:
            for _ in range(2):
                with observed.step_of(net):
                    gate = torch.tensor(numpy.random.permutation(4))  # noqa: NPY002
                    (net(x) * gate).square().mean().backward()

    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "random"
    assert "the state of the generator numpy differs" in verdict["sentence"]


@pytest.mark.parametrize("is_masked", [True, False])
def test_padding_is_no_other_data_where_the_training_is_the_same(
    tmp_path: Path, is_masked: bool
) -> None:
    sides = tmp_path / "target", tmp_path / "reference"
    for side in sides:
        torch.manual_seed(0)
        net, words = nn.Embedding(9, 4), torch.randint(1, 9, (3, 5))
        if side.name == "target":
            words = F.pad(words, (0, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with recording(side, "mix") as observed, observed.step_of(net):
            (net(words).square().sum(-1) * (words != 0 if is_masked else 1)).sum().backward()
            optimizer.step()

    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == ("equal" if is_masked else "data"), verdict["sentence"]


def test_a_packed_sequence_is_no_other_data_but_a_call(tmp_path: Path) -> None:
    x, net = torch.randn(3, 5, 4), nn.ModuleList([nn.GRU(4, 6, batch_first=True)])
    lengths = torch.tensor([3, 5, 4])

    def train(side: str) -> Tensor:
        given = x
        if side == "reference":
            pack = nn.utils.rnn.pack_padded_sequence
            given = pack(x, lengths, batch_first=True, enforce_sorted=False)
        return net[0](given)[1].square().mean()

    verdict = verdict_on(tmp_path, train, net)

    assert verdict["class"] == "call"
    assert "only the reference calls Torch.sort.0.forward" in verdict["sentence"]
