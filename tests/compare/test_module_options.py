# SPDX-License-Identifier: Apache-2.0
"""At level L0 the options of a module that differ are named, with the values that it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = pytest.mark.torch


class Scaled(nn.Module):
    """Has plain attributes and no `extra_repr`."""

    def __init__(self, factor: float = 2.0, *, shifted: bool = False) -> None:
        super().__init__()
        self.factor = factor
        self.shifted = shifted
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.factor + self.shifted


def recorded(folder: Path, change: Callable[[Any], object]) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, bias=False), nn.LeakyReLU(0.1), Scaled())
    change(model)
    with recording(folder, "L0") as observed, observed.step_of(model):
        model(torch.linspace(-1, 1, 12).view(3, 4)).sum().backward()
    return folder, model


def eps(model: Any) -> None:
    model[1].eps = 0.25


def slope(model: Any) -> None:
    model[2].negative_slope = 0.6


def factor(model: Any) -> None:
    model[3].factor = 3.0


def shifted(model: Any) -> None:
    model[3].shifted = True


def without_norm(model: Any) -> None:
    model[1] = nn.RMSNorm(4, eps=1e-5)


@pytest.mark.parametrize(
    ("change", "place", "attribute"),
    [(eps, 1, "eps"), (slope, 2, "negative_slope"), (factor, 3, "factor"), (shifted, 3, "shifted")],
    ids=["eps", "slope", "factor", "shifted"],
)
@pytest.mark.parametrize("swapped", [False, True], ids=["in the target", "in the reference"])
def test_the_option_is_the_argument(
    tmp_path: Path,
    change: Callable[[Any], object],
    place: int,
    attribute: str,
    swapped: bool,
) -> None:
    sides = [recorded(tmp_path / "a", change), recorded(tmp_path / "b", lambda _model: None)]
    if swapped:
        sides.reverse()
    (target, changed), (reference, plain) = sides

    verdict = run_comparison(target, reference, CompareOptions()).summary["verdict"]

    # The oracle: the modules as they are.
    values = [getattr(model[place], attribute) for model in (changed, plain)]  # type: ignore[index]
    words = f"{attribute} is {values[0]} in the target, {values[1]} in the reference"
    assert verdict["class"] == "argument"
    assert verdict["sentence"].endswith(words)
    assert verdict["where"]["module"] == str(place)


def test_another_class_of_module_is_no_argument(tmp_path: Path) -> None:
    target, _ = recorded(tmp_path / "a", without_norm)
    reference, _ = recorded(tmp_path / "b", lambda _model: None)
    verdict = run_comparison(target, reference, CompareOptions()).summary["verdict"]
    assert verdict["class"] != "argument"
    assert "RMSNorm" in verdict["sentence"]


def test_a_training_flag_does_not_hide_the_option(tmp_path: Path) -> None:
    def changed(model: Any) -> None:
        eps(model)
        model.eval()  # nothing here depends on it

    target, _ = recorded(tmp_path / "a", changed)
    reference, _ = recorded(tmp_path / "b", lambda _model: None)
    verdict = run_comparison(target, reference, CompareOptions()).summary["verdict"]
    assert verdict["class"] == "argument"
    assert "eps is 0.25 in the target" in verdict["sentence"]
    assert any("eval mode" in each for each in verdict["evidence"])


def test_an_option_without_consequence_is_not_named(tmp_path: Path) -> None:
    def in_place(model: Any) -> None:
        model[2].inplace = True

    target, _ = recorded(tmp_path / "a", in_place)
    reference, _ = recorded(tmp_path / "b", lambda _model: None)
    summary = run_comparison(target, reference, CompareOptions()).summary
    assert summary["verdict"]["class"] == "equal"
    assert not summary["introduced"]
