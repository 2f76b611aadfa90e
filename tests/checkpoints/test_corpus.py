# SPDX-License-Identifier: Apache-2.0
"""Planted differences come first with the right kind and place; equal pairs are equal."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoint_corpus import (  # noqa: E402
    FC2,
    FORMATS,
    NORM,
    QKV,
    Planted,
    add,
    changed,
    drop,
    element,
    moment,
    put,
    training,
    value,
)
from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402

pytestmark = pytest.mark.torch

NAN, INF = float("nan"), float("inf")
GROUP = ("optimizer", "param_groups", 0)
OTHER_RNG = torch.ones(9, dtype=torch.uint8)

# Written before the code of the last formats was finished.
FIRST = (
    *(Planted(name, element(QKV), "changed", QKV) for name in FORMATS),
    Planted("safetensors", put(NORM, NAN), "nonfinite", NORM),
    Planted("dcp", put(FC2, NAN), "nonfinite", FC2),
    Planted("megatron tp2", put(QKV, INF), "nonfinite", QKV),
    Planted("shards", drop(NORM), "removed", NORM),
    Planted("mindspore", add("extra.weight"), "added", "extra.weight"),
    Planted("torch", value("epoch", to=4), "changed", "epoch"),
    Planted("torch", value("scheduler", "last_epoch", to=11), "changed", "scheduler.last_epoch"),
    Planted("old torch", value("scaler", "scale", to=32768.0), "changed", "scaler.scale"),
    Planted("torch", value("args", "dropout", to=0.0), "changed", "args.dropout"),
    Planted("dcp", value(*GROUP, "lr", to=2e-3), "changed", "0.lr"),
    Planted("torch", value(*GROUP, "betas", to=(0.9, 0.95)), "changed", "0.betas"),
    Planted("trainer", moment(FC2, "exp_avg_sq"), "changed", "exp_avg_sq"),
    Planted("torch", moment(FC2, "step"), "changed", f"{FC2}.step"),
    Planted("zero 2", moment(NORM, "exp_avg"), "changed", f"{NORM}.exp_avg"),
    Planted("zero 3", value(*GROUP, "lr", to=0.1), "changed", "0.lr"),
    Planted("blocks", value("epoch", to=9), "changed", "epoch"),
    Planted("torch", value("rng", "torch", to=OTHER_RNG), "changed", "rng.torch"),
)


@pytest.mark.parametrize("plant", FIRST, ids=lambda plant: f"{plant.format} {plant.place}")
def test_a_planted_difference_comes_first(tmp_path: Path, plant: Planted) -> None:
    write = FORMATS[plant.format]
    target, reference = write(tmp_path / "t", changed(plant)), write(tmp_path / "r", training())
    kind, name = compare_checkpoints(target, reference).ranked()[0]
    assert kind == plant.kind
    assert name.endswith(plant.place)


def reordered() -> object:
    """Return the training with its parameters in another order."""
    state = copy.deepcopy(training())
    state.model = dict(reversed(state.model.items()))
    return state


MODEL_FORMATS = ["safetensors", "shards", "torch shards", "npz", "mindspore", "megatron tp2"]
ALIKE = (
    ("torch", "old torch"),
    ("torch", "dcp"),
    ("old torch", "dcp"),
    ("zero 2", "zero 3"),
    *((one, "safetensors") for one in MODEL_FORMATS[1:5]),
    *((one, "shards") for one in MODEL_FORMATS[2:5]),
    ("megatron tp2", "megatron pp2"),
)


@pytest.mark.parametrize(("one", "other"), [*((each, each) for each in FORMATS), *ALIKE])
def test_equal_trainings_are_equal(tmp_path: Path, one: str, other: str) -> None:
    target = FORMATS[one](tmp_path / "t", training())
    reference = FORMATS[other](tmp_path / "r", copy.deepcopy(training()))
    found = compare_checkpoints(target, reference)
    assert found.ranked() == []
    assert found.is_equal
    assert len(found.differences) >= len(training().model)


@pytest.mark.parametrize("name", MODEL_FORMATS)
def test_another_order_of_keys_is_equal(tmp_path: Path, name: str) -> None:
    target, reference = (
        FORMATS[name](tmp_path / folder, state)
        for folder, state in (("t", reordered()), ("r", training()))
    )
    assert compare_checkpoints(target, reference).is_equal
