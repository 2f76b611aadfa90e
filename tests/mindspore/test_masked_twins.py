# SPDX-License-Identifier: Apache-2.0
"""A port of a PyTorch program to MindSpore: what it does otherwise is named, what it must is not.

The program was recorded by ``data/make_torch_models.py``, in an environment with PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mindspore as ms
import msprobe
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.mindspore import PrecisionDebugger

DATA = Path(__file__).parent / "data"
REFERENCES = {"mix": DATA / "torch_masked", "L0": DATA / "torch_masked_modules"}
WIDTH = 8
NAMES = {"gamma": "weight", "beta": "bias"}
SAME_WINDOW = {"pad_mode": "same"}
WINDOW = {"pad_mode": "pad", "padding": 1}


def values(seed: int, *shape: int) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Masked(nn.Cell):
    def __init__(self, change: str) -> None:
        super().__init__()
        windows = [SAME_WINDOW if change == each else WINDOW for each in ("first", "second")]
        self.first = nn.Conv2d(3, WIDTH, 3, has_bias=True, **windows[0])
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, **windows[1])
        self.norm = nn.BatchNorm2d(WIDTH, momentum=0.1 if change == "momentum" else 0.9)
        self.qkv, self.head = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, 5)
        self.slope = () if change == "slope" else (0.01,)
        self.axis = -2 if change == "axis" else -1
        self.scale = () if change == "unscaled" else (WIDTH**0.5,)

    def construct(self, images: Tensor) -> Tensor:
        x = ops.leaky_relu(self.norm(self.first(images)), *self.slope)
        x = self.second(x)
        x = x.reshape(*x.shape[:2], -1).swapaxes(1, 2)
        query, key, value = ops.split(self.qkv(x), WIDTH, -1)
        scores = ops.matmul(query, key.swapaxes(-1, -2))
        for scale in self.scale:
            scores = scores / scale
        later = ops.triu(ops.ones((x.shape[1], x.shape[1])), diagonal=1).astype(ms.bool_)
        weights = ops.softmax(scores.masked_fill(later, -1e9), axis=self.axis)
        return self.head(ops.matmul(weights, value)[:, -1])


def record(folder: Path, change: str = "", level: str = "mix") -> dict:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    reset_session()
    net = Masked(change)
    named = {}
    for one in net.trainable_params():
        path, _, name = one.name.rpartition(".")
        named[f"{path}.{NAMES.get(name, name)}"] = one
    for seed, name in enumerate(sorted(named)):
        named[name].set_data(0.3 * values(seed, *named[name].shape))
    net.set_train(change != "eval")
    # Given to all at once, a decay leaves out gamma and beta.
    group = [{"params": net.trainable_params(), "weight_decay": 1e-2}]
    decayed = (net.trainable_params(), 0.1, 0.9, 1e-2) if change == "decay" else (group, 0.1, 0.9)
    optimizer = nn.Momentum(*decayed, use_nesterov=change == "nesterov")
    debugger = PrecisionDebugger(dump_path=folder, level=level)
    both = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, optimizer.parameters)
    for step in range(2):
        moved = int(change == "data" and step == 1)
        labels = np.random.default_rng(70 + step).integers(0, 5, 4).astype(np.int32)
        debugger.start(net)
        _, gradients = both(values(50 + step + moved, 4, 3, 6, 6), Tensor(labels))
        if change != "unlimited":
            gradients = ops.clip_by_global_norm(gradients, 2.0 if change == "limit" else 1.0)
        debugger.stop()
        optimizer(gradients)
        debugger.step()
    reset_session()
    return msprobe.compare_dumps(folder, REFERENCES[level]).summary["verdict"]


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("change", ["", "first"])
def test_what_is_right_is_proved(change: str, level: str, tmp_path: Path) -> None:
    """Padding "same" is one element at each end where a convolution moves by one."""
    verdict = record(tmp_path / "dump", change, level)
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved"


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("second", "argument", "input.4 (padding) of Primitive.conv2d.Conv2D.1.forward"),
        ("slope", "argument", "0.2 instead of 0.01"),
        ("axis", "argument", "-2 instead of -1"),
        ("momentum", "argument", "0.9 instead of 0.1"),
        ("decay", "optimizer_setting", "weight_decay is 0 in the target, 0.01 in the reference"),
        ("nesterov", "optimizer_setting", "nesterov is True in the target, False"),
        ("limit", "clipping", "max_norm 2 in the target, 1 in the reference"),
        ("unlimited", "clipping", "only the reference calls clip_grad_norm_, with 1"),
        ("data", "data", "the batch of step 1 differs: mean of input.0 is"),
        ("eval", "mode", "the model is in eval mode in the target"),
    ],
)
def test_what_is_done_otherwise_is_named(
    change: str, expected: str, words: str, tmp_path: Path
) -> None:
    verdict = record(tmp_path / "dump", change)
    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("slope", "argument", "negative_slope of Functional.leaky_relu"),
        ("axis", "argument", "dim of Functional.softmax"),
        ("limit", "clipping", "max_norm 2 in the target, 1 in the reference"),
        ("unscaled", "call", "only the reference calls Tensor.__truediv__"),
        ("data", "data", "the batch of step 1 differs: mean of input.0 is"),
    ],
)
def test_outlines_of_modules_name_the_call(
    change: str, expected: str, words: str, tmp_path: Path
) -> None:
    verdict = record(tmp_path / "dump", change, "L0")
    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]
