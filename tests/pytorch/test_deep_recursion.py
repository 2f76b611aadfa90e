# SPDX-License-Identifier: Apache-2.0
"""A recursion that just fits without recording fits with it, and the limit is put back."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from builders.recordings import recording
from msprobe.pytorch import TrainerMon

pytestmark = pytest.mark.torch

LIMIT = 600


@pytest.fixture(autouse=True)
def _low_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(LIMIT)
    yield
    sys.setrecursionlimit(before)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, depth: int) -> Tensor:
        return self.linear(x) if depth == 0 else self(x, depth - 1) + 0.01


class Repeated(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int) -> Tensor:
        return x * 1.0 if depth == 0 else Repeated.apply(x, depth - 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def checkpointed(x: Tensor, depth: int) -> Tensor:
    return x * 2 if depth == 0 else checkpoint(checkpointed, x, depth - 1, use_reentrant=True)


NESTED = Nested()
RECURSIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "modules": NESTED,
    "functions": Repeated.apply,
    "checkpoints": checkpointed,
}


def run(recursion: Callable[[Tensor, int], Tensor], depth: int) -> Tensor | None:
    """The result and its backward pass; None where it is too deep."""
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    try:
        result = recursion(x, depth)
        result.sum().backward()
    except RecursionError:
        return None
    return result.detach()


def deepest(recursion: Callable[[Tensor, int], Tensor]) -> int:
    low, high = 1, LIMIT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if run(recursion, middle) is None else (middle, high)
    return low


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
@pytest.mark.parametrize("kind", list(RECURSIONS))
def test_what_just_fits_without_recording_fits_with_it(
    kind: str, level: str, tmp_path: Path
) -> None:
    recursion = RECURSIONS[kind]
    depth = deepest(recursion)
    expected = run(recursion, depth)
    assert expected is not None
    with recording(tmp_path, level) as debugger:
        with debugger.step_of(NESTED):
            found = run(recursion, depth)
        assert debugger.account()["complete"]
        if kind == "modules" and level in ("L0", "mix"):
            assert f"Module.Nested.forward.{depth}" in debugger.records()
    assert found is not None
    assert torch.equal(found, expected)
    assert sys.getrecursionlimit() == LIMIT


def test_a_recursion_without_end_still_raises_and_can_be_caught(tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as debugger:
        with debugger.step_of(NESTED):
            assert run(NESTED, 10**6) is None
            torch.erf(torch.ones(2))
        assert debugger.parents()["Torch.erf.0.forward"] is None
        assert debugger.account()["complete"] is False
    assert sys.getrecursionlimit() == LIMIT


def test_other_threads_have_the_room_too(tmp_path: Path) -> None:
    depth = deepest(NESTED)  # a thread's own stack begins with fewer frames
    results = []
    with recording(tmp_path, "L0") as debugger, debugger.step_of(NESTED):
        thread = threading.Thread(target=lambda: results.append(run(NESTED, depth)))
        thread.start()
        thread.join()
    assert results[0] is not None


def test_a_limit_that_the_user_sets_meanwhile_is_kept_and_has_room(tmp_path: Path) -> None:
    sys.setrecursionlimit(LIMIT + 200)
    depth = deepest(NESTED)
    sys.setrecursionlimit(LIMIT)

    class Deep(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sys.setrecursionlimit(LIMIT + 200)
            return NESTED(x, depth - 3)

    model = nn.Sequential(NESTED, Deep())
    with recording(tmp_path, "L0") as debugger:
        for _ in range(2):
            with debugger.step_of(model):
                assert model[1](torch.ones(2, 4)) is not None
            assert sys.getrecursionlimit() == LIMIT + 200


def test_a_limit_that_the_user_puts_back_does_not_grow(tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as debugger:
        for _ in range(3):
            debugger.debugger.start(NESTED)
            before = sys.getrecursionlimit()
            sys.setrecursionlimit(5000)
            NESTED(torch.ones(2, 4), 1)
            debugger.debugger.stop()
            sys.setrecursionlimit(before)  # read while it was raised
            debugger.debugger.step()
        with debugger.step_of(NESTED):
            pass
    assert sys.getrecursionlimit() == LIMIT


def test_a_stop_deep_in_the_stack_leaves_the_limit_to_the_step(tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as debugger:

        class Stopping(nn.Module):
            def forward(self, x: Tensor, depth: int) -> Tensor:
                if depth == 0:
                    debugger.debugger.stop()
                    return x
                return self(x, depth - 1)

        model = Stopping()
        debugger.debugger.start(model)
        model(torch.ones(2), LIMIT // 4)
        debugger.debugger.step()
    assert sys.getrecursionlimit() == LIMIT


def test_several_monitors_share_one_limit(tmp_path: Path) -> None:
    before = sys.getrecursionlimit()
    models = [nn.Linear(2, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    monitors = []
    for number, model in enumerate(models):
        path = tmp_path / f"{number}.json"
        path.write_text(
            json.dumps({"output_dir": str(tmp_path / path.stem), "xy_distribution": True})
        )
        monitors.append(TrainerMon(path))
        monitors[-1].set_monitor(model, optimizers[number])
    for _ in range(20):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert sys.getrecursionlimit() < 2 * before + 500
    monitors[0].close()
    models[1](torch.ones(1, 2))
    assert sys.getrecursionlimit() > before
    monitors[1].close()
    assert sys.getrecursionlimit() == before


def test_a_limit_that_is_as_large_as_one_of_ours_may_have_been_is_the_users(tmp_path: Path) -> None:
    for limit in (LIMIT, 1000, 1400, 2000):  # of 600, 800 and 200 frames are 1000
        sys.setrecursionlimit(limit)
        with recording(tmp_path / str(limit), "L0") as debugger, debugger.step_of(NESTED):
            NESTED(torch.ones(2, 4), 1)
        assert sys.getrecursionlimit() == limit
