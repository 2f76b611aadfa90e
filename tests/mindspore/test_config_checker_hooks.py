# SPDX-License-Identifier: Apache-2.0
"""`ConfigChecker` in a training with MindSpore: it sees what runs, and changes nothing."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe.config_check import ConfigChecker
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.run_config.comparing import compare_packs
from msprobe.run_config.conclusion import Kind
from msprobe.run_config.levels import Level
from msprobe.run_config.pack import read_pack


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    ConfigChecker.remove_patches("mindspore")


def train(path: Path | None, *, seed: int = 7, lr: float = 0.1, **options) -> tuple[list, list]:
    """Train a small net for three steps; return its losses and parameters."""
    ms.set_seed(seed)
    random.seed(seed)
    net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
    for number, parameter in enumerate(net.trainable_params()):
        values = np.random.default_rng(seed + number).standard_normal(parameter.shape)
        parameter.set_data(Tensor(values.astype(np.float32)))
    optimizer = nn.SGD(net.trainable_params(), learning_rate=lr)
    if path is not None:
        ConfigChecker(net, None, path, "mindspore", **options)
    step = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)
    losses = []
    for number in range(3):
        x = np.random.default_rng(number).standard_normal((5, 4)).astype(np.float32)
        loss, gradients = step(Tensor(x))
        optimizer(gradients)
        losses.append(float(loss.asnumpy()) + random.random())
    return losses, [parameter.asnumpy() for parameter in net.trainable_params()]


def test_the_training_is_bit_identical(tmp_path: Path) -> None:
    plain = train(None)
    ConfigChecker.apply_patches("mindspore")
    watched = train(tmp_path / "a.zip")
    assert plain[0] == watched[0]
    assert all(map(np.array_equal, plain[1], watched[1]))


def test_data_weights_and_seeds_are_there(tmp_path: Path) -> None:
    ConfigChecker.apply_patches("mindspore")
    train(tmp_path / "a.zip", max_steps=2)
    pack = read_pack(tmp_path / "a.zip")
    assert sorted(pack.weights) == sorted(pack.dataset) == [(0, 0), (1, 0)]
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = pack.dataset[0, 0]["args"]["0"]
    assert found["crc32"] == f"{zlib.crc32(x.tobytes()):08x}"
    assert (found["max"], found["min"]) == (x.max(), x.min())
    assert (found["shape"], found["dtype"]) == ([5, 4], "Float32")
    assert set(pack.weights[0, 0]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert pack.weights[0, 0] != pack.weights[1, 0]
    assert pack.random[0]["mindspore.set_seed"][0]["seeds"] == ["7"]
    assert pack.system["mindspore.version"] == ms.__version__


def test_equal_runs_compare_equal_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        train(tmp_path / f"{name}.zip", seed=seed)
    assert compare_packs(tmp_path / "a.zip", tmp_path / "b.zip").level is Level.PASS
    other = compare_packs(tmp_path / "a.zip", tmp_path / "c.zip")
    assert {name for name, item in other.items.items() if item.level is Level.ERROR} == {
        "weights",
        "generators",
    }


def test_settings_of_the_net_and_its_optimizer(tmp_path: Path) -> None:
    train(tmp_path / "a.zip")
    train(tmp_path / "b.zip", lr=0.2)
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip")
    assert [each.name for each in found.items["optimizer"].differences] == [
        "optimizer.0.init_learning_rate",
        "optimizer.0.learning_rate",
    ]
    assert found.conclusion.kind is Kind.OPTIMIZER
    assert read_pack(tmp_path / "a.zip").training[0]["modules"]["module.0"].startswith("Dense(")


def test_patches_leave_no_trace_once_removed() -> None:
    before = ms.set_seed
    ConfigChecker.apply_patches("mindspore")
    assert ms.set_seed is not before
    ConfigChecker.remove_patches("mindspore")
    assert ms.set_seed is before


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ConfigChecker("net", None, tmp_path / "a.zip", "mindspore")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(UnsupportedError, match="graph mode"):
            ConfigChecker(nn.Dense(2, 2), None, tmp_path / "a.zip", "mindspore")
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
