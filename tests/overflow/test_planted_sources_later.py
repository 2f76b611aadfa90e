# SPDX-License-Identifier: Apache-2.0
"""More planted NaN and Inf, written after the code that finds them; and runs that are in order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from test_planted_sources import RECORDED, Net, Planted, forward, poison, recomputed, train

from msprobe.overflow.analysis import analyze_overflow
from msprobe.overflow.findings import Source

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

functional = torch.nn.functional
checkpoint = torch.utils.checkpoint.checkpoint


def with_net(prepare: Callable[[Net], None], between=lambda net, x: x) -> Callable:
    """Return a run of `Net` that is prepared before the recording."""

    def run(start) -> None:
        net = Net(between)
        prepare(net)
        start(net)
        train(net)

    return run


def with_data(change: Callable[[Any], None], loss=lambda y: y.sum()) -> Callable:
    """Return a run of `Net` on changed data."""

    def run(start) -> None:
        net, x = Net(lambda net, x: x), torch.randn(5, 4)
        change(x)
        start(net)
        loss(net(x)).backward()

    return run


def bad_target(start) -> None:
    net, target = Net(lambda net, x: x), torch.zeros(5, 4)
    target[1, 1] = math.nan
    start(net)
    functional.mse_loss(net(torch.randn(5, 4)), target).backward()


def update(make_optimizer: Callable, scale: float = 1.0) -> Callable:
    """Return a run with an update by an optimizer, at a loss times `scale`."""

    def run(start) -> None:
        net = Net(lambda net, x: x)
        optimizer = make_optimizer(net.parameters())
        start(net)
        (net(torch.randn(5, 4)).sum() * scale).backward()
        optimizer.step()

    return run


def hooked(net, x):
    x.register_hook(lambda gradient: gradient * math.nan)
    return torch.relu(x)


def nested(net, x, again):
    return checkpoint(lambda x: torch.tanh(x * net.scale), torch.sin(x), use_reentrant=False)


def two_regions(start) -> None:
    def between(net, x):
        x = checkpoint(lambda x: torch.tanh(x * net.gain), x, use_reentrant=False)
        return checkpoint(lambda x: torch.sigmoid(x * net.scale), x, use_reentrant=False)

    net = Net(between)
    start(net)
    train(net, around=poison("scale"))


def checkpointed_layer(start) -> None:
    def between(net, x):
        net.kept = x
        return checkpoint(lambda x: torch.tanh(net.inner(x)), x, use_reentrant=False)

    net = Net(between)
    start(net)
    train(net, around=lambda net: net.kept.detach().numpy().fill(math.nan))


def zero_weight_norm(start) -> None:
    net = Net(lambda net, x: net.inner(x))
    torch.nn.utils.parametrizations.weight_norm(net.inner)
    with torch.no_grad():
        net.inner.parametrizations.weight.original1.zero_()
    start(net)
    train(net)


LATER = {
    "normalised by hand": Planted(
        forward(lambda net, x: (lambda c: (c - c.mean()) / c.std())(x * 0 + 1)),
        "Tensor.__truediv__.0.forward",
    ),
    "layer norm without eps": Planted(
        forward(lambda net, x: functional.layer_norm(x * 0 + 1, (4,), eps=0.0)),
        "Functional.layer_norm.0",
    ),
    "all labels ignored": Planted(
        forward(
            lambda net, x: x,
            loss=lambda y: functional.cross_entropy(y, torch.full((5,), -100)),
        ),
        "Functional.cross_entropy.0.forward",
    ),
    "mean of nothing": Planted(forward(lambda net, x: x + x[:0].mean()), "Tensor.mean.0.forward"),
    "product that overflows": Planted(
        forward(lambda net, x: torch.cumprod(x.abs() + 1e30, 1)), "Torch.cumprod.0.forward"
    ),
    "arc cosine of more than one": Planted(
        forward(lambda net, x: torch.acos(x.abs() + 1.5)), "Torch.acos.0.forward"
    ),
    "softmax of an added mask": Planted(
        forward(lambda net, x: torch.softmax(x + torch.full((5, 4), -math.inf), -1)),
        "Torch.softmax.0.forward",
    ),
    "sum in half precision": Planted(
        forward(lambda net, x: x + (torch.ones(100, 1000).half() * 100).sum().float()),
        "Tensor.sum.0.forward",
    ),
    "matrix product in half precision": Planted(
        forward(lambda net, x: ((x * 0 + 200).half() @ torch.full((4, 4), 200.0).half()).float()),
        "Tensor.__matmul__.0.forward",
    ),
    "division in place": Planted(
        forward(lambda net, x: (x * 1.0).div_(0.0)), "Tensor.div_.0.forward"
    ),
    "root of a negative number": Planted(
        forward(lambda net, x: (-x.abs() - 1) ** 0.5), "Tensor.__pow__.0.forward"
    ),
    "sum of exponentials by hand": Planted(
        forward(lambda net, x: x - torch.log(torch.exp(x.abs() * 1e3 + 100).sum(1, keepdim=True))),
        "Torch.exp.0.forward",
    ),
    "logarithm of one plus minus one": Planted(
        forward(lambda net, x: torch.log1p(x * 0 - 1)), "Torch.log1p.0.forward"
    ),
    "weight norm of a zero vector": Planted(zero_weight_norm, "Torch._weight_norm", slot=None),
    "data": Planted(
        with_data(lambda x: x[0].fill_(math.nan)), "Module.Net.forward.0", Source.INPUT, "input.0"
    ),
    "infinite data": Planted(
        with_data(lambda x: x[0].fill_(math.inf)), "Module.Net.forward.0", Source.INPUT, "input.0"
    ),
    "labels": Planted(bad_target, "Functional.mse_loss.0.forward", Source.INPUT, "input.1"),
    "a weight": Planted(
        with_net(lambda net: net.last.weight.data.numpy().fill(math.nan)),
        "Module.last.Linear.forward.0",
        Source.PARAMETER,
        "parameters.weight",
    ),
    "a bias of minus infinity": Planted(
        with_net(lambda net: net.first.bias.data.fill_(-math.inf)),
        "Module.first.Linear.forward.0",
        Source.PARAMETER,
        "parameters.bias",
    ),
    "a buffer": Planted(
        with_net(lambda net: net.scale.fill_(math.nan), lambda net, x: x * net.scale),
        "Tensor.__mul__.0.forward",
        Source.UNRECORDED,
        "input.1",
    ),
    "slope of a power": Planted(
        forward(lambda net, x: (x * 0.0) ** 0.5), "Tensor.__pow__.0.backward"
    ),
    "slope of the arc cosine": Planted(
        forward(lambda net, x: torch.acos(x * 0 + 1)), "Torch.acos.0.backward"
    ),
    "slope of a length by hand": Planted(
        forward(lambda net, x: x + (x * 0).pow(2).sum(1, keepdim=True).sqrt()),
        "Tensor.sqrt.0.backward",
    ),
    "a hook on a gradient": Planted(forward(hooked), "Tensor.__mul__"),
    "a scale without end": Planted(
        forward(lambda net, x: x, loss=lambda y: y.pow(2).sum() * math.inf),
        "Tensor.__mul__.0.forward",
    ),
    "Adam without eps": Planted(
        update(lambda parameters: torch.optim.Adam(parameters, eps=0.0), scale=0.0),
        "Adam",
        Source.UPDATE,
        slot=None,
    ),
    "a learning rate that is no number": Planted(
        update(lambda parameters: torch.optim.SGD(parameters, lr=math.nan)),
        "SGD",
        Source.UPDATE,
        slot=None,
    ),
    "a learning rate that overflows": Planted(
        update(lambda parameters: torch.optim.SGD(parameters, lr=3e38)),
        "SGD",
        Source.UPDATE,
        slot=None,
    ),
    "recomputed: nested": Planted(
        recomputed(nested, poison("scale")),
        "Tensor.__mul__.0.forward.recompute",
        Source.RECOMPUTED,
        "input.1",
        RECORDED,
    ),
    "recomputed: the second of two regions": Planted(
        two_regions, "Tensor.__mul__.1.forward.recompute", Source.RECOMPUTED, "input.1", RECORDED
    ),
    "recomputed: the input of a layer": Planted(
        checkpointed_layer,
        "Module.inner.Linear.forward.0.recompute",
        Source.RECOMPUTED,
        "input.0",
        RECORDED,
    ),
    "recomputed: not recorded": Planted(
        recomputed(lambda net, x, again: torch.tanh(x.sin() * net.scale), poison("scale")),
        "Torch.tanh.0.backward",
    ),
}
CASES = LATER


def filled_buffers(net, x):
    """Use new memory in the usual ways: each is filled before it is read."""
    x = x.detach()
    copied = torch.empty(5, 4).copy_(x)
    pieces = torch.empty(5, 4)
    pieces[:2] = x[:2]
    pieces[2:] = x[2:]
    summed = torch.empty(5, 4)
    torch.add(copied, pieces, out=summed)
    drawn = torch.empty(4).normal_()
    zeros = torch.empty_like(x).zero_()
    return summed + drawn + zeros + x.new_empty(4).fill_(2.0)


def causal_attention(net, x):
    mask = torch.triu(torch.full((5, 5), -math.inf), 1)
    return torch.softmax(x @ x.T + mask, -1) @ x


def filled_attention(net, x):
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    return torch.softmax((x @ x.T).masked_fill(mask, -math.inf), -1) @ x


def logarithmic_mask(net, x):
    mask = torch.ones(5, 5).tril().log()
    return torch.softmax(x @ x.T + mask, -1) @ x


def fused_attention(net, x):
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    x = x[None, None]
    return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)[0, 0]


def impossible_classes(net, x):
    return torch.log_softmax(x.masked_fill(torch.tensor([0, 0, 0, 1]).bool(), -math.inf), -1)[
        :, [0, 1, 2, 0]
    ]


def running_maximum(net, x):
    best = torch.full((4,), -math.inf)
    for row in x:
        best = torch.maximum(best, row)
    return x - best


def metrics(net, x):
    history = torch.full((3,), math.nan)
    history[0] = x.detach().mean()
    torch.nanmean(history)
    return x.clamp(max=math.inf)


def smallest_loss(net, x):
    best = torch.tensor(math.inf)
    return x + torch.minimum(best, x.detach().sum())


CLEAN = [
    filled_buffers,
    causal_attention,
    filled_attention,
    logarithmic_mask,
    fused_attention,
    impossible_classes,
    running_maximum,
    metrics,
    smallest_loss,
]


@pytest.mark.parametrize("name", LATER)
def test_the_planted_source_is_first(record, name: str) -> None:
    case = LATER[name]
    (step,) = analyze_overflow(record(case.run, case.config))
    first, *_ = step.first
    assert first.place.name.startswith(case.place)
    assert first.source is case.source
    assert case.slot is None or case.slot in first.slots


@pytest.mark.parametrize("between", CLEAN)
def test_a_run_in_order_has_no_source(record, monkeypatch, between) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # new memory is NaN
    try:
        (step,) = analyze_overflow(record(forward(between)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert step.first == ()


def test_facts_with_columns_of_different_lengths_are_read_as_far_as_they_go(record) -> None:
    path = record(update(lambda parameters: torch.optim.SGD(parameters, lr=math.nan)))
    facts = path / "step0" / "rank" / "facts.json"
    tree = json.loads(facts.read_text())
    (event,) = tree["events"]
    event["parameters"]["name"] = event["parameters"]["name"][:2]
    facts.write_text(json.dumps(tree))
    (step,) = analyze_overflow(path)
    assert step.first[0].slots == ("first.weight",)
