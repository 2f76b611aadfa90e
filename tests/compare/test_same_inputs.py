# SPDX-License-Identifier: Apache-2.0
"""A call errs by itself only where it is proved to have been given the same elements in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.operator_calls import replaced_kernel
from builders.recordings import recording
from msprobe.compare.run import compare_dumps

torch = pytest.importorskip("torch")

_MASK = np.arange(32).reshape(4, 8) % 3 == 0
# Two elements change places where all statistics, and the signs of both projections, are the same.
_OTHER_MASK = _MASK.copy()
_OTHER_MASK[0, [3, 5]] = _OTHER_MASK[0, [5, 3]]


class Filling(torch.nn.Module):
    """Fills scores where a mask says so; the mask is a buffer, or comes from code outside."""

    def __init__(self, mask: np.ndarray, *, has_buffer: bool = False) -> None:
        super().__init__()
        self.outside = mask
        self.register_buffer("inside", torch.from_numpy(mask) if has_buffer else None)

    def forward(self, x: Any) -> Any:
        mask = torch.from_numpy(self.outside) if self.inside is None else self.inside
        return x.masked_fill(mask, 0.5).T.exp().sum()


class Scaling(torch.autograd.Function):
    """Multiplies by a number that no recorded call is given."""

    by = 2.0

    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        return torch.from_numpy(x.detach().numpy() * np.float32(Scaling.by))

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient * 2


class Applying(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return Scaling.apply(x).sum()


def record(folder: Path, model: Any) -> Path:
    """Record a step of a model at level L1; return the dump."""
    x = torch.arange(32.0).view(4, 8).sin().requires_grad_()
    with recording(folder, "L1") as run, run.step_of(model):
        model(x).backward()
    return folder


def verdict(target: Path, reference: Path) -> Any:
    return compare_dumps(target, reference).summary["verdict"]


def test_a_mask_of_which_no_order_is_known_leaves_the_difference_unexplained(
    tmp_path: Path,
) -> None:
    sides = [
        record(tmp_path / name, Filling(mask)) for name, mask in (("a", _OTHER_MASK), ("b", _MASK))
    ]

    found = verdict(*sides)

    assert found["class"] == "unexplained"
    assert "Tensor.masked_fill.0.forward" in found["sentence"]
    assert "whether input.1 holds the same elements in the same order" in found["sentence"]


@pytest.mark.parametrize("has_buffer", [True, False])
def test_a_wrong_kernel_is_named_where_the_checksum_of_its_mask_is_known(
    tmp_path: Path, has_buffer: bool
) -> None:
    right = record(tmp_path / "right", Filling(_MASK, has_buffer=has_buffer))
    with replaced_kernel("masked_fill.Scalar", lambda x, mask, _: x * ~mask):
        wrong = record(tmp_path / "wrong", Filling(_MASK, has_buffer=has_buffer))

    assert verdict(wrong, right)["class"] == ("kernel" if has_buffer else "unexplained")


def test_a_wrong_kernel_that_is_given_a_transposed_view_is_named(tmp_path: Path) -> None:
    right = record(tmp_path / "right", Filling(_MASK))
    with replaced_kernel("exp", lambda x: x * x + x + 1):
        wrong = record(tmp_path / "wrong", Filling(_MASK))

    found = verdict(wrong, right)

    assert (found["class"], found["where"]["record"]) == ("kernel", "Tensor.exp.0.forward")


def test_the_code_of_a_custom_function_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = record(tmp_path / "right", Applying())
    monkeypatch.setattr(Scaling, "by", 2.5)
    wrong = record(tmp_path / "wrong", Applying())

    found = verdict(wrong, right)

    assert found["class"] == "unexplained"
    assert "Autograd.Scaling.0.forward" in found["sentence"]


class Places(torch.nn.Module):
    """Puts the coordinates of a grid together."""

    def __init__(self, indexing: str) -> None:
        super().__init__()
        self.indexing = indexing

    def forward(self, x: Any) -> Any:
        y, z = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing=self.indexing)
        return (torch.stack([z, y], -1).view(4, 8) * x).sum()


def test_an_argument_whose_result_only_seems_to_agree_is_named(tmp_path: Path) -> None:
    """Both grids are views of the same numbers, repeated along another dimension."""
    sides = record(tmp_path / "xy", Places("xy")), record(tmp_path / "ij", Places("ij"))

    found = verdict(*sides)

    assert found["class"] == "argument"
    assert "indexing of Torch.meshgrid.0.forward" in found["sentence"]


class Negating(Filling):
    """Makes its mask by more calls than Python's stack is deep."""

    def forward(self, x: Any) -> Any:
        mask = torch.from_numpy(self.outside)
        for _ in range(1200):
            mask = mask.logical_not()
        return x.masked_fill(mask, 0.5).T.exp().sum()


def test_a_chain_of_calls_may_be_longer_than_the_stack(tmp_path: Path) -> None:
    sides = [
        record(tmp_path / str(number), Negating(mask))
        for number, mask in enumerate((_OTHER_MASK, _MASK))
    ]
    found = verdict(*sides)

    assert found["class"] == "unexplained"
    assert "holds the same elements in the same order was not recorded" in found["sentence"]
