# SPDX-License-Identifier: Apache-2.0
"""Nets that MindSpore compiles, in whole or in part, and the ways in which it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from nets import CASES, Case, random

import mindspore as ms
from mindspore import Tensor, nn, ops


class Looped(nn.Cell):
    """One cell, called three times in a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.relu, self.out = nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.relu(self.fc(x)) + x
        return self.out(x)


class Branching(nn.Cell):
    """How often its cells are called depends on the values of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other, self.tanh = nn.Dense(4, 4), nn.Dense(4, 4), nn.Tanh()

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        count = Tensor(0, ms.int32)
        while count < 2:
            y = self.tanh(self.fc(y))
            count = count + 1
        if y.sum() > 1000:  # noqa: SIM108 - both forms are compiled, this is the usual one
            y = self.fc(y)
        else:
            y = self.other(y)
        return y


class Dropping(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.fc = nn.BatchNorm1d(4), nn.Dropout(p=0.5), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.norm(x)))


class Half(nn.Cell):
    """Its first cell computes in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.half = nn.Dense(4, 4).to_float(ms.float16)
        self.fc = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc(ops.cast(self.half(x), ms.float32))


class Pair(nn.Cell):
    """Takes and returns nested structures, with numbers and tensors of other types in them."""

    def construct(
        self, pair: tuple[Tensor, Tensor], rest: list[Tensor], scale: int = 1, mask: Any = None
    ) -> dict[str, Any]:
        both = pair[0] * scale + pair[1]
        return {"sum": both, "parts": [rest[0] * mask, (pair[1] - 1.0, rest[1])]}


class Nested(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.pair = nn.Dense(4, 4), Pair()

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        numbers = ops.cast(x > 0, ms.int32)
        found = self.pair((y, y * y), [ops.tanh(y), numbers], scale=2, mask=x > 0)
        parts = found["parts"]
        return found["sum"] + parts[0] * parts[1][0] * parts[1][1]


class Both(nn.Cell):
    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return x * 3.0 + y


class Crossed(nn.Cell):
    """A cell whose second input is made of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.both = nn.Dense(4, 4), Both()

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return self.both(y, y * y)


class Passing(nn.Cell):
    def construct(self, zero_d: Tensor, empty: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return zero_d * 2.0, empty, x * zero_d


class Edges(nn.Cell):
    """Tensors without dimensions and without elements cross the boundary of a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.passing = nn.Dense(4, 4), Passing()

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        number, _, z = self.passing(y.mean(), y[:0], y)
        return z + number


class JitInside(nn.Cell):
    """Compiled code that calls compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Dense(4, 4), nn.Dense(4, 4)

    @ms.jit
    def middle(self, x: Tensor) -> Tensor:
        return ops.tanh(self.fc(x))

    def construct(self, x: Tensor) -> Tensor:
        return self.out(self.middle(x)) + self.middle(x * 2.0)


class Two(nn.Cell):
    def construct(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2.0 + y, x * 3.0 + y


class Uneven(nn.Cell):
    """Cells that are called several times, and do not get the same gradients in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.two, self.relu = nn.Dense(4, 4), Two(), nn.ReLU()
        self.again = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        y = x * 0.5
        for _ in range(3):
            x, y = self.two(x, y)  # the last y is not used
        z = self.relu(x)
        self.relu(x * -2.0)  # nor is this
        first = self.again(z)
        return first + self.again(ops.stop_gradient(first))


COMPILED_CASES = {
    "conv": CASES["conv"],
    "transformer": CASES["transformer"],
    "lstm": CASES["lstm"],
    "embedding": CASES["embedding"],
    **{
        kind.__name__.lower(): Case(kind, (random(3, 4),))
        for kind in (Looped, Branching, Dropping, Half, Nested, Crossed, Edges, JitInside, Uneven)
    },
}


class Whole(nn.Cell):
    """A net and its loss."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, *inputs: Tensor) -> Tensor:
        return (self.net(*inputs) ** 2).mean()


@cache
def _jitted(kind: type[nn.Cell]) -> type[nn.Cell]:
    return type(kind.__name__, (kind,), {"construct": ms.jit(kind.construct)})


@cache
def _eager(kind: type[nn.Cell]) -> type[nn.Cell]:
    methods = {name: one for name, one in vars(kind).items() if hasattr(one, "__wrapped_by_jit__")}
    return type(kind.__name__, (kind,), {name: one.__wrapped__ for name, one in methods.items()})


class Training(NamedTuple):
    """A net that is trained with compiled code.

    Attributes:
        model: what to record; the net inside it is ``net``.
        step: trains once; returns the loss and the gradients.
    """

    model: nn.Cell
    step: Callable[[], tuple[Tensor, tuple[Tensor, ...]]]

    def parameters(self) -> list[bytes]:
        return [one.asnumpy().tobytes() for one in self.model.get_parameters()]


MODES = ("cell", "function", "step", "graph")


def training(case: Case, mode: str, weights: Callable[[nn.Cell], Any] | None = None) -> Training:
    """Return a new net and a step of it.

    Args:
        case: the net and its batch.
        mode: what is compiled: the net as a cell of a dynamic one, the function whose gradient is
            taken, the step with its gradient and optimiser; everything, in graph mode; or nothing
            ("eager").
        weights: chooses those that are trained, all without it.
    """
    ms.set_seed(7)
    net = case.make()
    if mode == "cell":
        net.__class__ = _jitted(type(net))
    elif mode == "eager":
        net.__class__ = _eager(type(net))
    model = Whole(net).set_train()
    inputs = [Tensor(array) for array in case.inputs]
    chosen = (weights or nn.Cell.trainable_params)(model)
    optimizer = nn.Momentum(chosen, 0.01, 0.9)
    if mode == "graph":
        one_step = nn.TrainOneStepCell(model, optimizer, return_grad=True).set_train()

        def graph_step() -> tuple[Tensor, tuple[Tensor, ...]]:
            loss, gradients = one_step(*inputs)
            return loss, tuple(gradients[weight.name] for weight in chosen)

        return Training(model, graph_step)

    def forward(*inputs: Tensor) -> Tensor:
        return model(*inputs)

    both = ms.value_and_grad(ms.jit(forward) if mode == "function" else forward, None, chosen)

    def step(*inputs: Tensor) -> Any:
        loss, gradients = both(*inputs)
        optimizer(gradients)
        return loss, gradients

    run = ms.jit(step) if mode == "step" else step
    return Training(model, lambda: run(*inputs))
