# SPDX-License-Identifier: Apache-2.0
"""NaN and Inf planted in small models, one in each: the planted place is named first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from msprobe.overflow.analysis import analyze_overflow
from msprobe.overflow.findings import Source

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

functional = torch.nn.functional
checkpoint = torch.utils.checkpoint.checkpoint


class Net(torch.nn.Module):
    """A layer, the code of a case, a layer; a layer, a parameter and a buffer for it to use."""

    def __init__(self, between: Callable[[Net, Any], Any]) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.inner = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 4)
        self.gain = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("scale", torch.ones(4))
        self.runs = 0
        self.between = between

    def forward(self, x):
        return self.last(self.between(self, self.first(x)))


def train(net, *, loss=torch.sum, around=lambda net: None, steps=1, lr=0.1) -> None:
    """Run steps of forward, backward and update; `around` acts between forward and backward."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        value = loss(net(torch.randn(5, 4)))
        around(net)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()


@dataclass(frozen=True)
class Planted:
    """A case: what runs, and what is named first.

    Attributes:
        run: trains a model; is given a function that starts the recording.
        place: beginning of the name of the record that is named.
        source: kind of source.
        slot: the value in it; None where several are equally right.
        config: further settings of the recording.
    """

    run: Callable[[Callable[[Any], None]], None]
    place: str
    source: Source = Source.OPERATION
    slot: str | None = "output.0"
    config: dict[str, Any] | None = None


def forward(between, **options) -> Callable:
    """Return a run of `Net` with some code between its layers."""

    def run(start) -> None:
        net = Net(between)
        start(net)
        train(net, **options)

    return run


def recomputed(inner, around=lambda net: None, *, reentrant=False, early=True) -> Callable:
    """Return a run whose middle is checkpointed; `inner` is given the number of the run."""

    def between(net, x):
        def body(x):
            net.runs += 1
            return inner(net, x, net.runs > 1)

        return checkpoint(body, x, use_reentrant=reentrant)

    def run(start) -> None:
        net = Net(between)
        start(net)
        with torch.utils.checkpoint.set_checkpoint_early_stop(early):
            train(net, around=around)

    return run


def poison(name: str) -> Callable:
    """Return an action that puts a NaN into a parameter or buffer, unseen by the recording."""

    def act(net) -> None:
        getattr(net, name).detach().numpy()[0] = math.nan

    return act


def masked_softmax(net, x):
    mask = torch.zeros(5, 4, dtype=torch.bool)
    mask[2] = True
    return torch.softmax(x.masked_fill(mask, -math.inf), -1)


def garbage_index(net, x):
    table = torch.ones(3, 4)
    table.numpy()[2] = math.nan  # a row that no one should ask for
    return x + functional.embedding(torch.tensor([0, 1, 2, 1, 0]), table)


def written_garbage(net, x):
    table = torch.ones(3, 4)
    table[2] = math.nan
    return x + functional.embedding(torch.tensor([0, 1, 2, 1, 0]), table)


def keep_input(net, x, again):
    net.kept = net.kept if again else x
    return torch.tanh(x.sin())


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 1.0

    @staticmethod
    def backward(context, gradient):
        return gradient / 0.0 * 0.0


class BadForward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.detach().numpy() is not None and torch.log(-x.abs() - 1)

    @staticmethod
    def backward(context, gradient):
        return gradient


RECORDED = {"record_recompute": True}

FORWARD = {
    "log of zero": Planted(forward(lambda net, x: torch.log(x * 0.0)), "Torch.log.0.forward"),
    "zero by zero": Planted(
        forward(lambda net, x: (x * 0.0) / (x * 0.0)), "Tensor.__truediv__.0.forward"
    ),
    "softmax of a row that is masked": Planted(forward(masked_softmax), "Torch.softmax.0.forward"),
    "division by a standard deviation of zero": Planted(
        forward(lambda net, x: (x - x.mean()) / torch.ones_like(x).std()),
        "Tensor.__truediv__.0.forward",
    ),
    "in place": Planted(forward(lambda net, x: (x * 1.0).sub_(1e3).log_()), "Tensor.log_.0"),
    "half precision": Planted(
        forward(lambda net, x: ((x.abs() + 1).half() * 6e4 * 3).float()),
        "Tensor.__mul__",
    ),
    "cast to half precision": Planted(
        forward(lambda net, x: ((x.abs() + 1) * 7e4).half().float()), "Tensor.half.0.forward"
    ),
    "cast to bfloat16": Planted(
        forward(lambda net, x: (x * 0 + 3.4e38).bfloat16().float()), "Tensor.bfloat16.0.forward"
    ),
    "custom function": Planted(forward(lambda net, x: BadForward.apply(x)), "Torch.log.0.forward"),
    "a row of an embedding": Planted(
        forward(garbage_index), "Functional.embedding.0.forward", Source.UNRECORDED, "input.1"
    ),
    "a row that the program filled with NaN": Planted(
        forward(written_garbage), "Tensor.__setitem__.0.forward"
    ),
    "a number": Planted(forward(lambda net, x: x * math.nan), "Tensor.__mul__.0.forward"),
    "loss": Planted(
        forward(lambda net, x: x, loss=lambda y: (y * 0).sum() / 0), "Tensor.__truediv__.0.forward"
    ),
}
BACKWARD = {
    "slope of the root": Planted(
        forward(lambda net, x: torch.sqrt(x * 0.0)), "Torch.sqrt.0.backward"
    ),
    "slope of a norm": Planted(
        forward(lambda net, x: x + (x * 0.0).pow(2).sum(1, keepdim=True).pow(0.5)),
        "Tensor.pow.1.backward",
    ),
    "custom function's backward": Planted(
        forward(lambda net, x: BadBackward.apply(x)), "Autograd.BadBackward.0.backward"
    ),
    "where hides the value and not the slope": Planted(
        forward(lambda net, x: torch.where(x < 1e9, x, torch.sqrt(x - x - 1.0))),
        "Torch.sqrt.0.forward",
    ),
}
RECOMPUTED = {
    "a buffer": Planted(
        recomputed(lambda net, x, again: torch.tanh(x.sin() * net.scale), poison("scale")),
        "Tensor.__mul__.0.forward.recompute",
        Source.RECOMPUTED,
        "input.1",
        RECORDED,
    ),
    "a parameter": Planted(
        recomputed(
            lambda net, x, again: functional.gelu(net.inner(x)),
            lambda net: net.inner.weight.detach().numpy().fill(math.nan),
        ),
        "Module.inner.Linear.forward.0.recompute",
        Source.RECOMPUTED,
        "parameters.weight",
        RECORDED,
    ),
    "the region's input": Planted(
        recomputed(keep_input, lambda net: net.kept.detach().numpy().fill(math.nan)),
        "Tensor.sin.0.forward.recompute",
        Source.RECOMPUTED,
        "input.0",
        RECORDED,
    ),
    "an operation more": Planted(
        recomputed(
            lambda net, x, again: torch.tanh(torch.log(-x.abs() - 1) if again else x),
            reentrant=True,
        ),
        "Torch.log.0.forward.recompute",
        config=RECORDED,
    ),
    "an operation more, not reentrant": Planted(
        recomputed(
            lambda net, x, again: torch.tanh(x * math.nan if again else x),
            early=False,
        ),
        "Tensor.__mul__.0.forward.recompute",
        config=RECORDED,
    ),
    "a number": Planted(
        recomputed(lambda net, x, again: torch.exp(x.abs() * (1e30 if again else 1)), early=False),
        "Torch.exp.0.forward.recompute",
        config=RECORDED,
    ),
}


CASES = FORWARD | BACKWARD | {f"recomputed: {name}": case for name, case in RECOMPUTED.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_planted_source_is_first(record, name: str) -> None:
    case = CASES[name]
    (step,) = analyze_overflow(record(case.run, case.config))
    first, *_ = step.first
    assert first.place.name.startswith(case.place)
    assert first.source is case.source
    assert case.slot is None or case.slot in first.slots
