# SPDX-License-Identifier: Apache-2.0
"""Beside the source: growth, values near overflow, updates that a gradient scaler skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from msprobe.overflow.analysis import analyze_overflow
from msprobe.overflow.answer_lines import answer_lines
from msprobe.overflow.findings import StepFindings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def debugger(tmp_path: Path):
    """A debugger that records to ``tmp_path / "dump"``."""
    from msprobe.capture.session import reset_session
    from msprobe.pytorch import PrecisionDebugger

    reset_session()
    torch.manual_seed(3)
    yield PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="mix")
    reset_session()


def analyzed(tmp_path: Path) -> list[StepFindings]:
    from msprobe.capture.session import reset_session

    reset_session()
    return analyze_overflow(tmp_path / "dump")


def text_of(step: StepFindings) -> str:
    return "\n".join(str(line) for line in answer_lines(step))


class Times(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def test_growth_of_the_norm_before_the_source_is_followed_back(debugger, tmp_path) -> None:
    model = torch.nn.Sequential(Times(1.5), Times(20.0), Times(20.0), Times(20.0), Times(1.1))
    debugger.start(model)
    torch.exp(model(torch.ones(2, 3)))
    debugger.stop()
    (step,) = analyzed(tmp_path)
    assert step.first[0].place.name == "Torch.exp.0.forward"
    growth = step.growth
    assert growth.place.name == "Tensor.__mul__.1.forward"
    assert growth.module == "Module.1.Times.forward.0"
    assert growth.calls == 5
    assert growth.norm / growth.norm_before == pytest.approx(13200.0)
    assert "norm x13,200 over 5 calls in 5 modules, first at Tensor.__mul__.1.forward" in text_of(
        step
    )


def test_growth_is_that_of_the_values_and_not_of_large_weights(debugger, tmp_path) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(5)])
    with torch.no_grad():
        for place, layer in enumerate(model):
            layer.weight.copy_(torch.eye(4) * (1.0 if place < 2 else 10.0))
    debugger.start(model)
    torch.exp(model(torch.full((2, 4), 0.5)))
    debugger.stop()
    (step,) = analyzed(tmp_path)
    assert step.growth.norm / step.growth.norm_before == pytest.approx(1000.0)
    assert "norm x1,000 over 3 calls in 3 modules, first at Functional.linear.2" in text_of(step)


def test_a_norm_that_hardly_grew_is_not_mentioned(debugger, tmp_path) -> None:
    debugger.start(model := torch.nn.Linear(3, 3))
    torch.log(model(torch.ones(2, 3)) * 0)
    debugger.stop()
    (step,) = analyzed(tmp_path)
    assert step.first
    assert step.growth is None
    assert "growth" not in text_of(step)


def test_growth_of_gradients_is_followed_through_the_backward_calls(debugger, tmp_path) -> None:
    model = torch.nn.Sequential(Times(1e3), Times(1e3), Times(1e3))
    x = torch.ones(2, 3, requires_grad=True)
    debugger.start(model)
    (model(torch.sqrt(x * 0.0)) * 1.0).sum().backward()
    debugger.stop()
    (step,) = analyzed(tmp_path)
    assert step.first[0].place.name == "Torch.sqrt.0.backward"
    assert step.growth.place.name == "Tensor.__mul__.3.backward"
    assert step.growth.norm / step.growth.norm_before > 1e9


def test_the_first_value_near_the_end_of_its_type_is_named(debugger, tmp_path) -> None:
    x = torch.full((2, 3), 1000.0).half()
    debugger.start(torch.nn.Identity())
    y = x * 60.0
    y * 60.0
    debugger.stop()
    (step,) = analyzed(tmp_path)
    assert step.first[0].place.name == "Tensor.__mul__.1.forward"
    assert (step.near.place.name, step.near.dtype) == ("Tensor.__mul__.0.forward", "float16")
    assert step.near.share == pytest.approx(60000 / 65504)
    assert "Tensor.__mul__.0.forward output.0 reached 92% of the largest float16" in text_of(step)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_finite_run_tells_of_near_overflow_and_not_of_masks(debugger, tmp_path, dtype) -> None:
    largest = torch.finfo(dtype).max
    scores = torch.randn(4, 4).to(dtype)
    debugger.start(torch.nn.Identity())
    mask = torch.full((4, 4), -largest, dtype=dtype).triu(1)
    torch.softmax(scores + mask, -1)
    torch.ones(3, dtype=dtype) * (largest * 0.95)
    debugger.stop()
    (step,) = analyzed(tmp_path)
    assert step.findings == ()
    assert step.near.place.name == "Tensor.__mul__.0.forward"


def train_with_scaler(
    debugger, *, inner: Callable = torch.relu, scale: float = 2.0**16, steps: int = 1
) -> None:
    """Train a float16 layer with a gradient scaler."""
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(steps):
        debugger.start(layer)
        with torch.autocast("cpu", dtype=torch.float16):
            value = inner(layer(torch.randn(8, 4))).float().sum()
        optimizer.zero_grad()
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        debugger.stop()
        debugger.step()


def test_a_scale_that_is_too_large_is_no_source(debugger, tmp_path) -> None:
    train_with_scaler(debugger, steps=4)
    skipped, *_, after = analyzed(tmp_path)
    assert skipped.findings
    assert skipped.first == ()
    assert skipped.skip.is_expected
    assert (skipped.skip.scale, skipped.skip.new_scale) == (2.0**16, 2.0**15)
    assert "the gradient scaler skipped this update" in text_of(skipped)
    assert after.skip is None


def test_a_loss_that_overflows_by_its_scale_is_no_source(debugger, tmp_path) -> None:
    train_with_scaler(debugger, inner=lambda y: y * 100, scale=2.0**127)
    (step,) = analyzed(tmp_path)
    assert step.findings[0].place.name.startswith("Tensor.__mul__")
    assert step.skip.is_expected
    assert step.first == ()


def test_an_infinity_among_the_data_is_the_source_of_a_skipped_update(debugger, tmp_path) -> None:
    layer, scaler = torch.nn.Linear(4, 4), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    debugger.start(layer)
    x = torch.ones(8, 4)
    x[0, 0] = float("inf")
    scaler.scale(layer(x).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    debugger.stop()
    debugger.step()
    (step,) = analyzed(tmp_path)
    assert step.first[0].place.name.startswith("Tensor.__setitem__")
    assert "the scale is not the reason" in text_of(step)


def test_a_slope_that_is_infinite_is_a_source_whatever_the_scale(debugger, tmp_path) -> None:
    train_with_scaler(debugger, inner=lambda y: torch.sqrt(y * 0), scale=2.0)
    (step,) = analyzed(tmp_path)
    assert step.first[0].place.name == "Torch.sqrt.0.backward"
    assert step.skip is not None
    assert not step.skip.is_expected
    assert "the scale is not the reason" in text_of(step)


def test_the_scale_of_the_loss_is_no_growth(debugger, tmp_path) -> None:
    train_with_scaler(debugger, inner=lambda y: torch.sqrt(y * 0), scale=2.0**10)
    (step,) = analyzed(tmp_path)
    assert step.skip.scale == 2.0**10
    assert step.growth is None


def test_a_forward_pass_that_is_not_finite_is_a_source(debugger, tmp_path) -> None:
    train_with_scaler(debugger, inner=lambda y: y * 6e4 * 6e4, scale=2.0)
    (step,) = analyzed(tmp_path)
    assert step.first[0].place.name.startswith("Tensor.__mul__")
    assert not step.skip.is_expected


def test_skips_that_never_end_are_no_matter_of_scale(debugger, tmp_path) -> None:
    def ruined(y):
        return y * 1e4  # its gradient does not fit into float16 at any scale above 6

    train_with_scaler(debugger, inner=ruined, scale=2.0**13, steps=9)
    steps = analyzed(tmp_path)
    assert [bool(step.first) for step in steps[:2]] == [False, False]
    assert steps[8].skip.in_a_row >= 8
    assert steps[8].first


def test_a_loss_that_explodes_over_the_steps_is_told(debugger, tmp_path) -> None:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e9)
    x = torch.randn(8, 4)
    for _ in range(8):
        debugger.start(layer)
        loss = layer(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    steps = analyzed(tmp_path)
    bad = next(step for step in steps if step.first)
    assert bad.loss_growth.loss / bad.loss_growth.loss_before > 1e6
    assert "loss x" in text_of(bad)
