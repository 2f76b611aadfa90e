# SPDX-License-Identifier: Apache-2.0
"""Families whose values are not plain tensors: own outputs, operators, subclasses, modes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from .training import TrainCase, seed_everything, simple_case, without_warnings

WIDTH = 8


@dataclass
class Encoded:
    """A dataclass as a module's output, with a tensor, a nest, a number and a missing value."""

    hidden: Tensor
    layers: list[Tensor]
    count: int
    cache: Tensor | None = None


class ModelOutput(OrderedDict[str, Any]):
    """Dictionary with attribute access, the kind that model libraries return."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class KeywordEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, *, inputs: Tensor, mask: Tensor | None = None) -> Encoded:
        first = self.embed(inputs)
        second = self.mix(input=F.gelu(input=first, approximate="tanh"))
        if mask is not None:
            second = torch.where(condition=mask, input=second, other=torch.zeros_like(second))
        return Encoded(hidden=first + second, layers=[first, second], count=2)


class KeywordModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = KeywordEncoder(), nn.Linear(WIDTH, 3)

    def forward(self, batch: dict[str, Tensor], labels: Tensor) -> ModelOutput:
        encoded = self.encoder(inputs=batch["x"], mask=batch["mask"])
        logits = self.head(encoded.hidden)
        loss = F.cross_entropy(input=logits, target=labels)
        return ModelOutput(loss=loss, logits=logits, hidden_states=tuple(encoded.layers))


def structured_outputs(seed: int) -> TrainCase:
    """Keyword-only tensors, dictionaries as inputs, dataclass and dictionary outputs."""
    seed_everything(seed)
    model = KeywordModel()
    batch = {"x": torch.randn(4, WIDTH), "mask": torch.rand(4, WIDTH) > 0.3}
    labels = torch.tensor([0, 1, 2, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(_step: int) -> Tensor:
        output = model(batch, labels=labels)
        return output.loss + 1e-3 * sum(h.square().mean() for h in output.hidden_states)

    return simple_case(model, loss_of, optimizer)


@torch.library.custom_op("msprobe_families::swish", mutates_args=())
def swish(x: Tensor, beta: float) -> Tensor:
    """An operator of the user's own, with a gradient."""
    return x * torch.sigmoid(beta * x)


def _save_swish(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.beta = inputs[1]


def _swish_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(ctx.beta * x)
    return grad * (s + ctx.beta * x * s * (1 - s)), None


swish.register_autograd(_swish_gradient, setup_context=_save_swish)


@torch.library.custom_op("msprobe_families::count_up", mutates_args=("counter",))
def count_up(counter: Tensor, by: Tensor) -> None:
    """An operator that writes into its argument."""
    counter.add_(by.sum())


class CustomOperators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("counter", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = swish(self.fc(x), 1.5)
        count_up(self.counter, y.detach())
        return y + torch.ops.msprobe_families.swish(x, 0.5) * self.counter.clone().tanh()


def custom_operators(seed: int) -> TrainCase:
    """`torch.library` operators: one differentiable, one that mutates a buffer."""
    seed_everything(seed)
    model = CustomOperators()
    x = torch.randn(4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return simple_case(model, lambda _: model(x).square().mean(), optimizer)


class LoggedTensor(Tensor):
    """A user's subclass that sees every call made on it, so it notices a tool's reads too."""

    log: list[str] = []  # noqa: RUF012  shared by all instances on purpose

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        cls.log.append(resolve_name(func) or func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def tensor_subclass(seed: int) -> TrainCase:
    """A `__torch_function__` subclass as model input; its log of calls is part of the result."""
    seed_everything(seed)
    LoggedTensor.log.clear()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    x = torch.randn(4, WIDTH).as_subclass(LoggedTensor)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        y = model(x)
        y = y + x[:, :2]
        y.mul_(1.5)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        case.extra["calls"] = list(LoggedTensor.log)
        case.extra["type"] = type(y).__name__
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case


class CountingFunctionMode(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls.append(resolve_name(func) or func.__name__)
        return func(*args, **(kwargs or {}))


class CountingDispatchMode(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def user_modes(seed: int) -> TrainCase:
    """The user's own function mode, dispatch mode and device context; what they see is compared."""
    seed_everything(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
    x = torch.randn(4, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        with torch.device("cpu"), CountingFunctionMode() as functions:
            y = model(x) + torch.linspace(0, 1, WIDTH)
            loss = y.square().mean()
        with CountingDispatchMode() as kernels:
            z = model(x)
            (loss + z.mean()).backward()
        optimizer.step()
        case.extra["function calls"] = functions.calls
        case.extra["kernels"] = kernels.calls
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case


class SparseAndComplex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3)
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))

    def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
        h = torch.sparse.mm(adjacency, x @ self.weight)
        h = h + torch.mm(adjacency, x)
        spectrum = torch.fft.rfft(h) * self.filter
        angle = torch.view_as_real(spectrum).tanh().square().sum(-1)
        return torch.fft.irfft(spectrum.conj(), n=WIDTH) + angle.mean()


def sparse_and_complex(seed: int) -> TrainCase:
    """A sparse matrix as an argument, a complex parameter, transforms, lazy conjugation."""
    seed_everything(seed)
    model = SparseAndComplex()
    dense = (torch.rand(5, 5) > 0.5) * 0.2
    adjacency, x = dense.to_sparse_coo().coalesce(), torch.randn(5, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return simple_case(model, lambda _: model(adjacency, x).square().mean(), optimizer)


PROTOTYPE = (r".*prototype stage.*", r".*(torch\.ao|torchao|[Qq]uantiz).*")


class NestedAndQuantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, jagged: Tensor, strided: Tensor, quantised: Tensor) -> Tensor:
        hidden = F.gelu(self.enter(jagged))
        dense = torch.nested.to_padded_tensor(self.enter(strided), 0.0)
        offset = torch.relu(quantised).dequantize().mean()
        return (self.leave(hidden).values() + dense.mean()).mean() * (1 + offset)


def nested_and_quantised(seed: int) -> TrainCase:
    """Nested tensors of both layouts, quantised tensors and 8-bit floats as arguments."""
    seed_everything(seed)
    rows = [torch.randn(n, 4) for n in (2, 5, 3)]
    model = NestedAndQuantised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with without_warnings(*PROTOTYPE):
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
        strided = torch.nested.nested_tensor(rows)
        quantised = torch.quantize_per_tensor(torch.randn(6), 0.1, 10, torch.quint8)
    small = torch.randn(6).to(torch.float8_e4m3fn)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        with without_warnings(*PROTOTYPE):
            loss = model(jagged, strided, quantised) + small.float().sum() * 1e-3
            loss.backward()
        optimizer.step()
        case.extra["8-bit"] = small
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case
