# SPDX-License-Identifier: Apache-2.0
"""Small nets of several families, with the data they are trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops


class Case(NamedTuple):
    """A net to train: how it is made, and its batch."""

    make: Callable[[], nn.Cell]
    inputs: tuple[np.ndarray, ...]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class ConvNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(4, 8, 3, stride=2)
        self.fc = nn.Dense(8 * 4 * 4, 5)

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv1(x)))
        return self.fc(self.conv2(x).reshape(x.shape[0], -1))


class Attention(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Dense(width, 3 * width)
        self.out = nn.Dense(width, width)

    def construct(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / (width // self.heads) ** 0.5
        mixed = ops.matmul(ops.softmax(scores, axis=-1), v)
        return self.out(mixed.swapaxes(1, 2).reshape(batch, length, width))


class Transformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((16,)), nn.LayerNorm((16,))
        self.attention = Attention(16, 2)
        self.mlp = nn.SequentialCell(nn.Dense(16, 32), nn.GELU(), nn.Dense(32, 16))

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Lstm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)
        self.fc = nn.Dense(8, 3)

    def construct(self, x: Tensor) -> Tensor:
        state = (ops.zeros((x.shape[0], 8), ms.float32), ops.zeros((x.shape[0], 8), ms.float32))
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.fc(state[0])


class SharedEmbedding(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(Tensor(random(11, 6, seed=3)), name="table")
        self.twice = nn.Dense(6, 6)

    def construct(self, ids: Tensor) -> Tensor:
        x = ops.gather(self.table, ids, 0)
        x = ops.tanh(self.twice(self.twice(x)))  # one cell, called twice
        return ops.matmul(x, self.table.T)


class Split(nn.Cell):
    """Takes and returns nested structures."""

    def construct(self, pair: dict[str, Any], rest: list[Tensor]) -> dict[str, Any]:
        both = ops.cat((pair["a"], rest[0]), axis=0)
        return {"sum": both * 2.0, "parts": [rest[0] + 1.0, (pair["a"] - 1.0, None)]}


class Nested(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.split = Split()

    def construct(self, x: Tensor) -> Tensor:
        found = self.split({"a": self.fc(x)}, [ops.relu(x) * self.fc(x)])
        return found["sum"].sum() + found["parts"][0].sum() + found["parts"][1][0].sum()


class Compiled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Dense(4, 8), nn.Dense(8, 2)

    @ms.jit
    def middle(self, x: Tensor) -> Tensor:
        return ops.relu(x) * 2.0 + ops.tanh(x)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc2(self.middle(self.fc1(x)))


class Inner(nn.Cell):
    """A cell whose construct is compiled, with cells inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU())
        self.out = nn.Dense(8, 8)

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x)) + x


class CompiledCell(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Dense(4, 8), Inner(), nn.Dense(8, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)))


class MintNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mint.nn.Linear(4, 8), mint.nn.Linear(8, 2)

    def construct(self, x: Tensor) -> Tensor:
        x = mint.nn.functional.relu(self.first(x))
        return self.second(mint.mul(x, 0.5))


CASES = {
    "conv": Case(ConvNet, (random(2, 1, 8, 8),)),
    "transformer": Case(Transformer, (random(2, 5, 16),)),
    "lstm": Case(Lstm, (random(3, 4, 6),)),
    "embedding": Case(SharedEmbedding, (np.array([[1, 4, 1], [0, 10, 2]], np.int32),)),
    "nested": Case(Nested, (random(3, 4),)),
    "compiled": Case(Compiled, (random(3, 4),)),
    "compiled_cell": Case(CompiledCell, (random(3, 4),)),
    "mint": Case(MintNet, (random(3, 4),)),
}


class Trained(NamedTuple):
    """What a training did, bit for bit."""

    losses: list[bytes]
    parameters: list[bytes]


def train(case: Case, steps: int = 5, debugger: Any = None) -> Trained:
    """Train a net; with a debugger every step is recorded."""
    ms.set_seed(7)
    net = case.make()
    weights = net.trainable_params()
    inputs = [Tensor(array) for array in case.inputs]
    optimizer = nn.Momentum(weights, 0.01, 0.9)

    def loss_of(*inputs: Tensor) -> Tensor:
        return (net(*inputs) ** 2).mean()

    both = ms.value_and_grad(loss_of, None, weights)
    losses = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(net)
        loss, gradients = both(*inputs)
        if debugger is not None:
            debugger.stop()
        optimizer(gradients)
        if debugger is not None:
            debugger.step()
        losses.append(loss.asnumpy().tobytes())
    return Trained(losses, [weight.asnumpy().tobytes() for weight in weights])
