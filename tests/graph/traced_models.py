# SPDX-License-Identifier: Apache-2.0
"""Small models of many shapes, and their edges as torch.fx sees them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from msprobe.dump.record_names import parse_record_name


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x + torch.tanh(self.first(x)))
        return hidden + self.second(hidden) * x


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.both = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        query = self.query(x).view(2, -1, self.heads, 8).transpose(1, 2)
        key, value = (
            self.both(memory).view(2, -1, 2, self.heads, 8).permute(2, 0, 3, 1, 4).unbind(0)
        )
        scores = torch.softmax(query @ key.transpose(-2, -1) / 8**0.5, -1)
        mixed = (self.drop(scores) @ value).transpose(1, 2).reshape(2, -1, 16)
        return self.out(mixed)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = Attention()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.before(x)
        x = x + self.attention(inside, inside)
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(16, 20)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.wanted = nn.Embedding(20, 16), nn.Embedding(20, 16)
        self.encoder, self.own, self.cross = Block(), Attention(), Attention()
        self.head = nn.Linear(16, 20)

    def forward(self, source: Tensor, wanted: Tensor) -> Tensor:
        memory = self.encoder(self.source(source))
        x = self.wanted(wanted)
        x = x + self.own(x, x)
        x = x + self.cross(x, memory)
        return self.head(x)


class ResidualConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.relu = nn.GroupNorm(2, 4), nn.ReLU(inplace=True)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        y = self.relu(self.first(x))
        x = self.relu(self.second(y) + x)
        return self.head(torch.flatten(self.pool(x), 1))


class SkipConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = functional.relu(self.down(x))
        low = functional.relu(self.middle(functional.max_pool2d(high, 2)))
        return torch.sigmoid(self.out(torch.cat([self.up(low), high], 1)))


class DenseConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        known = [x]
        for layer in self.layers:
            known.append(functional.leaky_relu(layer(torch.cat(known, 1)), 0.1))
        return torch.cat(known, 1).mean((2, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden, state = x.new_zeros(2, 5), x.new_zeros(2, 5)
        parts = x.unbind(1)
        for place in range(3):
            gates = functional.linear(parts[place], self.cell.weight_ih) + functional.linear(
                hidden, self.cell.weight_hh
            )
            one, two, three, four = gates.chunk(4, 1)
            state = torch.sigmoid(two) * state + torch.sigmoid(one) * torch.tanh(three)
            hidden = torch.sigmoid(four) * torch.tanh(state)
        return self.head(hidden)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.gate(x), -1)
        found = [weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)]
        return torch.stack(found, 0).sum(0) + x


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 12), nn.LayerNorm(12), nn.ReLU(inplace=True), nn.Linear(12, 16), nn.Tanh()
        )
        self.judge = nn.Sequential(nn.Linear(16, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        made = self.layers(noise)
        return self.judge(made) - self.judge(real) + self.judge(made.detach())


class InPlaceChain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x).clone()
        y = y.add_(1.0).mul_(2.0)
        y = y.add_(self.two(x))
        return functional.relu_(y).to(torch.float64).to(torch.float32).contiguous() + x


@dataclass(frozen=True)
class TracedModel:
    """A model and how to call it."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]

    def __str__(self) -> str:
        return self.model.__name__


def _ids() -> Tensor:
    return torch.arange(10).reshape(2, 5) + 1


TRACED_MODELS = [
    TracedModel(Residual, lambda: (torch.randn(3, 8),)),
    TracedModel(Transformer, lambda: (_ids(),)),
    TracedModel(EncoderDecoder, lambda: (_ids(), _ids() + 2)),
    TracedModel(ResidualConvolutions, lambda: (torch.randn(2, 3, 8, 8),)),
    TracedModel(SkipConvolutions, lambda: (torch.randn(2, 3, 8, 8),)),
    TracedModel(DenseConvolutions, lambda: (torch.randn(2, 3, 6, 6),)),
    TracedModel(Recurrent, lambda: (torch.randn(2, 3, 6),)),
    TracedModel(Experts, lambda: (torch.randn(4, 8),)),
    TracedModel(Generator, lambda: (torch.randn(4, 6), torch.randn(4, 16))),
    TracedModel(InPlaceChain, lambda: (torch.randn(4, 4),)),
]


class _Tracer(fx.Tracer):
    """Traces into all modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


def traced_edges(model: nn.Module, records: list[str]) -> set[tuple[str, str]]:
    """Return the pairs of API records of which one used what the other made.

    Args:
        model: the model.
        records: names of the forward records of its API calls, in order.
    """
    nodes = [node for node in _Tracer().trace(model).nodes if _is_call(node) and not _is_part(node)]
    known = [_plain(_fx_name(node)) for node in nodes]
    recorded = [_plain(parse_record_name(record).path) for record in records]
    record_of: dict[fx.Node, str] = {}
    for block in SequenceMatcher(None, known, recorded, autojunk=False).get_matching_blocks():
        for place in range(block.size):
            record_of[nodes[block.a + place]] = records[block.b + place]
    assert len(record_of) == len(records), (known, recorded)
    return {
        (record_of[maker], record_of[node])
        for node in record_of
        for maker in _makers(node, record_of)
    }


class _Calls(TorchFunctionMode):
    """Which nodes each call to PyTorch adds to the graph that `make_fx` traces."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, list[fx.Node]]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        nodes = get_proxy_mode().tracer.graph.nodes
        before = len(nodes)
        result = func(*args, **(kwargs or {}))
        self.made.append((func.__name__, list(nodes)[before:]))
        return result


def computed_edges(
    case: TracedModel, model: nn.Module, records: list[str]
) -> tuple[set[tuple[str, str]], set[str]]:
    """Return what `traced_edges` does, by the operators that ran in the calls.

    Returns: the pairs; and the records in which nothing ran, as of an idle dropout.
    """
    calls = _Calls()

    def run(*inputs: Tensor) -> Any:
        with calls:
            return model(*inputs)

    make_fx(run)(*case.inputs())
    made = [
        ("truediv" if name == "div" else _plain(name), nodes) for name, nodes in calls.made if nodes
    ]
    recorded = [_plain(parse_record_name(record).path) for record in records]
    record_of: dict[fx.Node, str] = {}
    known = [name for name, _ in made]
    for block in SequenceMatcher(None, known, recorded, autojunk=False).get_matching_blocks():
        for place in range(block.size):
            nodes = made[block.a + place][1]
            record_of |= dict.fromkeys(nodes, records[block.b + place])
    pairs = {
        (record_of[maker], user)
        for node, user in record_of.items()
        for maker in _makers(node, record_of)
        if record_of[maker] != user
    }
    return pairs, {*records} - {*record_of.values()}


def _is_call(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method")


def _fx_name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _plain(name: str) -> str:
    return name.strip("_")


def _makers(node: fx.Node, record_of: dict[fx.Node, str]) -> Iterator[fx.Node]:
    """Yield the recorded calls whose results a call uses, through those that are not recorded."""
    for maker in node.all_input_nodes:
        if maker in record_of:
            yield maker
        else:
            yield from _makers(maker, record_of)


def _is_part(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is not operator.getitem:
        return False
    place: Any = node.args[1]
    return isinstance(place, int)
