# SPDX-License-Identifier: Apache-2.0
"""Correct MindSpore and PyTorch twins agree in every value; a changed layer is found.

The layers of MindSpore call several operators where PyTorch calls one. The twins were recorded by
``data/make_torch_models.py``, in an environment with PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mindspore as ms
import msprobe
from mindspore import Tensor, nn, ops
from msprobe.mindspore import PrecisionDebugger

DATA = Path(__file__).parent / "data"
WIDTH, WORDS = 8, 11
# MindSpore's names of parameters, where they differ.
NAMES = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


def values(seed: int, *shape: int) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Transformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.qkv, self.out = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.up, self.down = nn.Dense(WIDTH, 16), nn.Dense(16, WIDTH)
        self.last = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)

    def construct(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        query, key, value = ops.split(self.qkv(self.norm(x)), WIDTH, -1)
        weights = ops.softmax(ops.matmul(query, key.swapaxes(-1, -2)) / WIDTH**0.5, -1)
        x = x + self.out(ops.matmul(weights, value))
        x = x + self.down(ops.gelu(self.up(x)))
        return self.head(self.last(x)).reshape(-1, WORDS)


class Convolutions(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm, self.relu, self.pool = nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2, 2)
        self.flat, self.head = nn.Flatten(), nn.Dense(36, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.flat(self.pool(self.relu(self.norm(self.conv(x))))))


def record(folder: Path, net: nn.Cell, loss: nn.Cell, *data: Tensor, lr: float = 0.1) -> None:
    named: dict[str, Any] = {}
    for parameter in net.trainable_params():
        path, _, name = parameter.name.rpartition(".")
        named[f"{path}.{NAMES.get(name, name)}"] = parameter
    for seed, name in enumerate(sorted(named)):
        named[name].set_data(values(seed, *named[name].shape))
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), lr)
    both = ms.value_and_grad(lambda x, y: loss(net(x), y), None, optimizer.parameters)
    debugger = PrecisionDebugger(dump_path=folder, level="L1")
    debugger.start(net)
    _, gradients = both(*data)
    debugger.stop()
    optimizer(gradients)
    debugger.step()


def record_transformer(folder: Path, net: Transformer, lr: float = 0.1) -> None:
    words = np.random.default_rng(99).integers(0, WORDS, (2, 4)).astype(np.int32)
    inputs, targets = Tensor(words[:, :-1]), Tensor(words[:, 1:].reshape(-1))
    record(folder, net, nn.CrossEntropyLoss(), inputs, targets, lr=lr)


def test_twin_transformers_agree(tmp_path: Path) -> None:
    record_transformer(tmp_path, Transformer())
    for sides in (
        (tmp_path, DATA / "torch_transformer"),
        (DATA / "torch_transformer", tmp_path),
    ):
        result = msprobe.compare_dumps(*sides)
        assert result.summary["equal"], result.summary["counts"]
        assert result.summary["unmatched"]["operations"] == {"added": [], "missing": []}
        (joined,) = result.summary["notes"]
        assert joined.endswith("embedding (1), layer_norm (2), linear (5)")
        assert result.summary["verdict"]["class"] == "equal"


def test_twin_convolutions_agree(tmp_path: Path) -> None:
    record(tmp_path, Convolutions(), nn.MSELoss(), values(40, 2, 3, 6, 6), values(41, 2, 2))
    result = msprobe.compare_dumps(tmp_path, DATA / "torch_convolutions")
    assert result.summary["verdict"]["class"] in ("equal", "rounding")
    assert result.summary["verdict"]["confidence"] == "proved"
    agreeing = result.frame["status"].is_in(["equal", "close"])
    # PyTorch counts the batches that it has normalised.
    assert set(result.frame.filter(~agreeing)["operation"]) <= {"Tensor.add_.0.forward"}
    assert result.summary["unmatched"]["operations"]["added"] == []


def test_another_setting_of_the_optimizer_is_named(tmp_path: Path) -> None:
    record_transformer(tmp_path, Transformer(), lr=0.2)
    result = msprobe.compare_dumps(tmp_path, DATA / "torch_transformer")
    verdict = result.summary["verdict"]
    assert verdict["class"] == "optimizer_setting"
    assert "SGD lr is 0.2 in the target, 0.1 in the reference" in verdict["sentence"]
    assert not result.summary["equal"]


def test_another_weight_is_named_as_pytorch_does(tmp_path: Path) -> None:
    net = Transformer()
    keep = net.norm.gamma.set_data
    net.norm.gamma.set_data = lambda data: keep(data * 1.5)
    record_transformer(tmp_path, net)
    verdict = msprobe.compare_dumps(tmp_path, DATA / "torch_transformer").summary["verdict"]
    assert verdict["class"] == "parameters"
    assert "norm.weight" in verdict["sentence"]
    assert "only" not in verdict["sentence"]


def test_other_statistics_of_a_normalisation_are_seen(tmp_path: Path) -> None:
    net = Convolutions()
    net.norm = nn.BatchNorm2d(4, momentum=0.5)  # PyTorch's 0.1 is 0.9 here
    record(tmp_path, net, nn.MSELoss(), values(40, 2, 3, 6, 6), values(41, 2, 2))
    verdict = msprobe.compare_dumps(tmp_path, DATA / "torch_convolutions").summary["verdict"]
    assert verdict["class"] == "argument"
    assert "0.5 instead of 0.1" in verdict["sentence"]


class LossyDense(nn.Dense):
    """Loses bits between the product and the bias."""

    def construct(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = self.matmul(self.reshape(x, (-1, shape[-1])), self.weight)
        x = self.bias_add(x.astype(ms.float16).astype(ms.float32), self.bias)
        return self.reshape(x, (*shape[:-1], -1))


class ShiftedDense(nn.Dense):
    """Adds a bias that is not its parameter."""

    def construct(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = self.matmul(self.reshape(x, (-1, shape[-1])), self.weight)
        return self.reshape(self.bias_add(x, self.bias * 1.01), (*shape[:-1], -1))


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ("epsilon", "Primitive.layer_norm.LayerNorm.1.forward"),
        ("transposed", "Primitive.matmul.MatMul.1.forward"),
        ("lossy", "Primitive.matmul.MatMul.1.forward"),
        ("shifted", "Primitive.matmul.MatMul.1.forward"),
    ],
)
def test_a_changed_layer_is_found(change: str, culprit: str, tmp_path: Path) -> None:
    net = Transformer()
    if change == "epsilon":
        net.last.layer_norm = ops.LayerNorm(-1, -1, epsilon=10.0)
    elif change == "transposed":
        net.out.matmul = ops.MatMul(transpose_b=False)
    else:
        net.out.__class__ = LossyDense if change == "lossy" else ShiftedDense
    record_transformer(tmp_path, net)
    result = msprobe.compare_dumps(tmp_path, DATA / "torch_transformer")
    assert not result.summary["equal"]
    assert result.summary["introduced"][0]["name"].startswith(culprit), result.summary["introduced"]
    if change == "epsilon":
        assert "10.0 instead of 1e-05" in result.summary["verdict"]["sentence"]
