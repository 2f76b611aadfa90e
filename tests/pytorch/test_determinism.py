# SPDX-License-Identifier: Apache-2.0
"""Two recordings of one program: healthy ones agree to the bit, else the first call is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from torch import Tensor, nn
from torch.nn import functional

from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger
from msprobe.triage.determinism import Determinism, Source, judge_determinism

pytestmark = pytest.mark.torch

CHECKSUMS = '{"statistics": {"summary_mode": "md5"}}'
# Those that are quick, so that a pair takes a fraction of a second.
HEALTHY = (
    "weight_tying",
    "mixture_of_experts",
    "recurrent",
    "custom_functions",
    "checkpointing",
    "adversarial",
    "user_hooks",
    "sparse_and_complex",
    "accumulation_with_autocast",
    "random_everywhere",
    "conv_bn_inplace",
)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "config.json").write_text(CHECKSUMS)
    yield
    reset_session()


def record(
    folder: Path,
    name: str,
    model: nn.Module | list[nn.Module],
    step: Callable[[int], object],
    steps: int = 2,
) -> Path:
    debugger = PrecisionDebugger(
        str(folder / "config.json"), dump_path=str(folder / name), level="mix"
    )
    for number in range(2):
        debugger.start(model)
        step(number)
        debugger.stop()
        debugger.step()
    reset_session()
    return folder / name


@pytest.mark.parametrize("family", HEALTHY)
def test_two_runs_of_a_healthy_program_are_equal_to_the_bit(family: str, tmp_path: Path) -> None:
    dumps = []
    for name in ("first", "second"):
        case = FAMILIES[family](7)
        dumps.append(record(tmp_path, name, case.model, case.run_step))
    found = judge_determinism(*dumps)
    assert found.first is None
    assert found.values > 50
    assert found.unjudged == 0


class Net(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(functional.gelu(self.first(x))))


def run_twice(
    folder: Path,
    between: Callable[[Tensor], Tensor] = functional.relu,
    *,
    batch: Callable[[int], Tensor] | None = None,
    prepare: Callable[[Net, int], None] = lambda net, run: None,
    before: Callable[[int], None] = lambda run: None,
) -> Determinism:
    def one_run(run: int) -> Path:
        torch.manual_seed(0)
        net = Net(between)
        prepare(net, run)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = torch.randn(20, 6)

        def step(number: int) -> None:
            before(run)
            rows = data[4 * number : 4 * number + 4] if batch is None else data[batch(run)]
            optimizer.zero_grad()
            net(rows).square().mean().backward()
            optimizer.step()

        return record(folder, f"run{run}", net, step)

    return judge_determinism(*(one_run(run) for run in range(2)))


class Noise(torch.autograd.Function):
    """A custom operator whose gradient passes through."""

    @staticmethod
    def forward(ctx: object, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return function(x)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


@pytest.fixture
def noisy() -> Iterator[Callable[[Tensor], Tensor]]:
    """A custom operator that adds noise of its own."""
    chance = torch.Generator().manual_seed(3)

    def add_noise(x: Tensor) -> Tensor:
        return x + 1e-7 * torch.randn(x.shape, generator=chance)

    with torch.library._scoped_library("determinism_test", "DEF") as library:
        library.define("noisy(Tensor x) -> Tensor")
        library.impl("noisy", add_noise, "CompositeExplicitAutograd")
        library.impl("noisy", lambda x: Noise.apply(x, add_noise), "Autograd")
        yield torch.ops.determinism_test.noisy


def test_a_kernel_with_noise_of_its_own_is_named_with_its_line(
    noisy: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    first = run_twice(tmp_path, noisy).first
    assert first is not None
    assert first.source is Source.KERNEL
    assert first.record == "determinism_test.noisy.0.forward"
    assert first.line is not None
    assert first.line.startswith("test_determinism.py:")


def test_unseeded_dropout_is_random_numbers(tmp_path: Path) -> None:
    found = run_twice(
        tmp_path, functional.dropout, before=lambda run: torch.manual_seed(run) and None
    )
    first = found.first
    assert first is not None
    assert (first.source, first.record) == (Source.SEED, "Functional.dropout.0.forward")
    assert first.further == []


def test_a_shuffled_sampler_is_the_data(tmp_path: Path) -> None:
    orders = [torch.randperm(20)[:4] for _ in range(2)]
    first = run_twice(tmp_path, batch=lambda run: orders[run]).first
    assert first is not None
    assert first.source is Source.DATA
    assert "the batch of step 0 differs" in first.words


def test_other_parameters_at_the_start_are_not_the_data(tmp_path: Path) -> None:
    def another(net: Net, run: int) -> None:
        with torch.no_grad():
            net.second.weight[0, 0] += run * 1e-6

    first = run_twice(tmp_path, prepare=another).first
    assert first is not None
    assert first.source is Source.START
    assert "second.weight" in first.words


def test_a_kernel_under_other_settings_is_the_environment(
    noisy: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    try:
        first = run_twice(
            tmp_path, noisy, prepare=lambda net, run: torch.set_num_threads(threads + run)
        ).first
    finally:
        torch.set_num_threads(threads)
    assert first is not None
    assert first.source is Source.ENVIRONMENT
    assert "threads" in first.evidence[0]


def test_calls_of_one_run_alone_are_another_course(tmp_path: Path) -> None:
    runs = iter([functional.relu, functional.relu, functional.silu, functional.silu])

    def other_in_the_second_run(x: Tensor) -> Tensor:
        return next(runs)(x)

    first = run_twice(tmp_path, other_in_the_second_run).first
    assert first is not None
    assert first.source is Source.PROGRAM


@pytest.mark.parametrize("draws", [True, False])
def test_a_number_that_python_drew_unseeded_is_chance(tmp_path: Path, draws: bool) -> None:
    numbers = iter(range(4))

    def add_a_number(x: Tensor) -> Tensor:
        return torch.add(x, random.random() if draws else next(numbers))

    first = run_twice(tmp_path, add_a_number).first
    assert first is not None
    assert first.source is (Source.SEED if draws else Source.PROGRAM)
    assert draws == any("not seeded alike" in words for words in first.evidence)
