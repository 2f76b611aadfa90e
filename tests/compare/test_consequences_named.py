# SPDX-License-Identifier: Apache-2.0
"""What the program makes of results is no cause: numbers, batches, states, weights of a loss."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.compare.training.differences import FactDifference, Moment  # noqa: E402
from msprobe.compare.training.facts_pair import FactsPair  # noqa: E402
from msprobe.compare.verdicts.effective_facts import follows_results  # noqa: E402
from msprobe.compare.verdicts.made_inside import without_received  # noqa: E402
from msprobe.compare.verdicts.observations import StepObservations  # noqa: E402
from msprobe.compare.verdicts.proof import Proof  # noqa: E402
from msprobe.compare.verdicts.verdict_classes import VerdictClass  # noqa: E402
from msprobe.dump.facts import Communication, Data, Facts  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


def corners(boxes: Tensor) -> Tensor:
    middle, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([middle - size / 2, middle + size / 2], -1)


def overlap(own: Tensor, other: Tensor) -> Tensor:
    low = torch.max(own[:, None, :2], other[None, :, :2])
    high = torch.min(own[:, None, 2:], other[None, :, 2:])
    return (high - low).clamp(min=0.0).prod(-1)


@torch.no_grad()
def matched(found: Tensor, boxes: Tensor, change: str | None) -> Tensor:
    """Return the query of each box, which the program chooses by numbers that it reads."""
    cost = torch.cdist(found, boxes, p=1)
    if change != "cost":
        cost = cost - 9.0 * torch.mm(found, boxes.t())
    costs = cost.tolist()
    best = min(
        itertools.permutations(range(len(costs)), len(boxes)),
        key=lambda queries: sum(costs[query][box] for box, query in enumerate(queries)),
    )
    return torch.tensor(best)


def detection(debugger: PrecisionDebugger, change: str | None) -> None:
    """Boxes are matched with queries; the loss is of those that belong together."""
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 20), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    samples = [(torch.randn(6), torch.rand(2, 4) * 0.5 + 0.2) for _ in range(12)]
    if change == "data":
        samples[1] = samples[1][0], samples[1][1] * 1.6
    loader = DataLoader(samples, batch_size=4, collate_fn=lambda batch: [*zip(*batch, strict=True)])
    batches = iter(loader)
    for _ in recorded_steps(debugger, model):
        inputs, targets = next(batches)
        found = model(torch.stack(inputs)).view(4, 5, 4)
        losses = []
        for own, boxes in zip(found, targets, strict=True):
            chosen = own[matched(own, boxes, change)]
            aim = boxes if change == "form" else corners(boxes)
            losses.append(1 - overlap(corners(chosen), aim).diagonal().sum())
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ("cost", "call", "instead of"),
        ("form", "call", "only the reference calls Tensor.__getitem__"),
        ("data", "data", "it differs when it comes in, though the model is given the same"),
    ],
)
def test_numbers_that_the_program_chooses_by_results_are_no_argument(
    change: str, verdict: str, words: str, level: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, detection, change, level=level)
    assert (found["class"], words in found["sentence"]) == (verdict, True), found["sentence"]
    assert found["confidence"] == "likely"
    if change == "cost":
        assert found["sentence"].startswith("call: only the reference calls Tensor.t.0")
        assert found["sentence"].endswith("which the program computes")


class Player(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.GRUCell(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.inner(x, state)
        return self.head(state), state


def rollouts(debugger: PrecisionDebugger, change: str | None) -> None:
    """A state goes from call to call, and on to the next step; some of it begins anew."""
    model = Player()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen, state = torch.randn(3, 4, 5, 4), torch.zeros(5, 8)
    ends = torch.rand(3, 4, 5, 1) < 0.4
    for number in recorded_steps(debugger, model):
        state = torch.zeros(5, 8) if change == "forgotten" else state
        made = []
        for x, end in zip(seen[number], ends[number], strict=True):
            logits, state = model(x, state)
            if change != "kept":
                state = state * (~end).float()
            made.append(logits)
        model(seen[number, 0], state)  # the state is an input of a model before it is carried over
        state = state.detach()
        optimizer.zero_grad()
        torch.stack(made).logsumexp(-1).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_state_that_is_not_carried_over_is_named(level: str, tmp_path: Path) -> None:
    found = verdict_on(tmp_path, rollouts, "forgotten", level=level)
    assert found["class"] == "argument", found["sentence"]
    assert "of the step before in the reference, not in the target (step 1)" in found["sentence"]


def test_a_batch_after_results_that_differ_is_none_of_their_causes(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, rollouts, "kept", level="L0")
    assert found["sentence"].startswith("call: only the reference calls Tensor.__mul__")
    assert found["confidence"] == "likely"


class Codes(nn.Module):
    """Has a buffer that the program writes after the step."""

    used: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(4, 4)
        self.register_buffer("used", torch.linspace(0.8, 1.1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.front(x) * self.used.sum()


def renewal(debugger: PrecisionDebugger, change: str | None) -> None:
    model, limit = Codes(), 0.98 if change == "limit" else 0.93
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(5, 4)
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model.used.masked_fill_(model.used < limit, 1.0)


def test_another_number_behind_the_models_is_why_buffers_differ(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, renewal, "limit", level="L0")
    assert found["sentence"].startswith("argument: argument 1 of Tensor.__lt__"), found["sentence"]
    assert "0.98 in the target, 0.93 in the reference" in found["sentence"]
    assert found["confidence"] == "likely"


def balanced(debugger: PrecisionDebugger, change: str | None) -> None:
    """The terms of the loss are weighed by their gradients, as numbers."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    x, wanted = torch.randn(12, 3), torch.randn(12, 1)
    for _ in recorded_steps(debugger, model):
        made = model(x)
        slope = made[:6] - made[6:]
        if change == "detached":
            slope = slope.detach()
        terms = [(slope + made[:6]).square().mean(), (made - wanted).square().mean()]
        weights = [
            1.0 / torch.autograd.grad(term, model[0].weight, retain_graph=True)[0].norm().item()
            for term in terms
        ]
        optimizer.zero_grad()
        (weights[0] * terms[0] + weights[1] * terms[1]).backward()
        optimizer.step()


def test_a_weight_that_is_computed_of_gradients_follows_from_what_cuts_the_graph(
    tmp_path: Path,
) -> None:
    found = verdict_on(tmp_path, balanced, "detached", level="L0")
    assert "only the target calls Tensor.detach" in found["sentence"], found["sentence"]
    assert found["class"] in ("call", "gradient")


def policy(debugger: PrecisionDebugger, change: str | None) -> None:
    """A model is kept near its first self, where the divergence is the same either way."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    first = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    x, labels = torch.randn(16, 4), torch.randint(0, 3, (16,))
    for _ in recorded_steps(debugger, [model, first]):
        logits = model(x)
        both = [torch.distributions.Categorical(logits=each) for each in (logits, first(x))]
        if change == "reversed":
            both.reverse()
        apart = torch.distributions.kl_divergence(*both).mean()
        optimizer.zero_grad()
        (functional.cross_entropy(logits, labels) + 0.5 * apart).backward()
        optimizer.step()


def test_a_call_behind_the_models_with_its_operands_interchanged_is_named(tmp_path: Path) -> None:
    found = verdict_on(tmp_path, policy, "reversed", level="L0")
    assert found["class"] == "order", found["sentence"]


def test_a_batch_after_a_step_that_differs_may_be_made_of_its_results() -> None:
    batch = FactDifference(
        verdict=VerdictClass.DATA, moment=Moment.DATA, step=1, rank=0, words="the batch differs"
    )
    for jumps, rank, expected in ((1, 0, True), (0, 0, False), (1, 1, False)):
        proof = Proof(jumps=(), total=jumps, worst=None, differing=1, has_two_precisions=False)
        before = StepObservations(
            step=0, rank=rank, is_exact=False, forward_differs=True, proof=proof
        )
        assert follows_results(batch, [before]) is expected


def test_what_an_optimizer_shares_later_is_no_batch_that_was_received() -> None:
    """Both may have as many elements."""
    batch = Data(micro=0, record="Module.Net.forward.0", where="input.0", shape=[4, 3], dtype="f")
    for passes, kept in ((0, 0), (1, 1)):
        sent = Communication(api="broadcast", ranks=[0, 1], peer=0, elements=12, passes=passes)
        facts = Facts(data=[batch], communication=[sent])
        side: Any = SimpleNamespace(names=())
        comparison: Any = SimpleNamespace(sides=(side, side))
        pair = FactsPair(step=0, rank=1, target=facts, reference=facts)
        assert len(without_received(comparison, pair).target.data) == kept
