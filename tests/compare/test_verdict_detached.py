# SPDX-License-Identifier: Apache-2.0
"""Values that one side takes without their gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = [pytest.mark.torch]


class Flow(nn.Module):
    """A scale and a shift; the logarithm of the scale is a term of the loss."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.net, self.own = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.place = place

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.net(x).tanh()
        y = x * scale.exp() - (scale.detach() if self.place == "argument" else scale)
        if self.place == "behind":
            scale = scale.detach()
        return y, scale.sum(1) + self.own.sum()


def recorded(folder: Path, place: str) -> Path:
    torch.manual_seed(2)
    model = Flow(place)
    with recording(folder, "mix") as observed:
        for x in torch.randn(2, 5, 4):
            with observed.step_of(model):
                x.requires_grad_()
                y, logarithm = model(x)
                # A first backward pass that asks for the gradient of the data alone.
                (slope,) = torch.autograd.grad(logarithm.sum() + y.sum(), x, create_graph=True)
                (y.square().sum() + slope.square().sum()).backward()
    return folder


@pytest.mark.parametrize(
    ("place", "call"), [("argument", "Tensor.__sub__.0.backward"), ("behind", "Tensor.sum.")]
)
def test_what_is_detached_is_said_to_be(tmp_path: Path, place: str, call: str) -> None:
    sides = recorded(tmp_path / "target", place), recorded(tmp_path / "reference", "")
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "gradient"
    assert call in verdict["sentence"]
    assert "without a gradient in the target: detached, frozen, or" in verdict["sentence"]


class Behind(nn.Module):
    """Its first layer may run without gradients; one side alone has further calls behind it."""

    def __init__(self, *, is_frozen: bool, further: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.is_frozen, self.further = is_frozen, further

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.is_frozen):
            x = self.first(x)
        for _ in range(0 if self.is_frozen else self.further):
            x = x.clone()
        return self.second(x)


@pytest.mark.parametrize("further", [1, 2])
def test_calls_behind_what_is_computed_without_gradients_do_not_make_them(
    tmp_path: Path, further: int
) -> None:
    for name, is_frozen in (("target", True), ("reference", False)):
        torch.manual_seed(2)
        model = Behind(is_frozen=is_frozen, further=further)
        with recording(tmp_path / name, "L1") as observed, observed.step_of(model):
            model(torch.ones(3, 4)).square().mean().backward()
    sides = tmp_path / "target", tmp_path / "reference"
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "gradient"
    assert "clone" not in verdict["sentence"]


class Copied(nn.Module):
    """One side alone copies a value where no gradients are recorded: the copy has the same."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.first, self.second, self.copies = nn.Linear(4, 4), nn.Linear(4, 4), copies

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        if self.copies:
            with torch.no_grad():
                x = x.clone()
        return self.second(x)


def test_a_call_of_one_side_that_cuts_the_graph_is_named(tmp_path: Path) -> None:
    for name, copies in (("target", True), ("reference", False)):
        torch.manual_seed(2)
        model = Copied(copies=copies)
        with recording(tmp_path / name, "mix") as observed, observed.step_of(model):
            model(torch.ones(3, 4)).square().mean().backward()
    sides = tmp_path / "target", tmp_path / "reference"
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the target calls Tensor.clone" in verdict["sentence"]
