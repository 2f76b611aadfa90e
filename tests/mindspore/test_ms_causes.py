# SPDX-License-Identifier: Apache-2.0
"""Two runs of a MindSpore program, one changed in one place: the verdict names the change."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

import mindspore
from msprobe.capture.session import reset_session
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison
from msprobe.mindspore import PrecisionDebugger

pytestmark = pytest.mark.mindspore

PROGRAM = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=1, pad_mode="pad", padding=1)
        self.norm = nn.BatchNorm2d(4, eps=1e-3, momentum=0.9)
        self.first = nn.Dense(4, 8)
        self.scale = nn.LayerNorm((8,), epsilon=1e-5)
        self.last = nn.Dense(8, 5)
    def construct(self, x):
        h = ops.relu(self.norm(self.conv(x))).mean((2, 3))
        h = self.scale(ops.gelu(self.first(h) * 0.75))
        return self.last(h)

net = Net()
net.set_train(True)
rates = [0.01, 0.02]
optimizer = nn.Adam(net.trainable_params(), learning_rate=rates, beta2=0.99)
rng = np.random.default_rng(1)
images = [Tensor(rng.standard_normal((4, 3, 6, 6)).astype(np.float32)) for _ in range(4)]
labels = [Tensor(rng.integers(0, 5, 4).astype(np.int32)) for _ in range(4)]

def forward(x, y):
    logits = net(x)
    loss = ops.cross_entropy(logits, y, label_smoothing=0.1)
    return (loss + 0.01 * ops.square(logits).mean()) / 2.0

gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)

def run(debugger):
    for step in range(2):
        debugger.start(net)
        total = None
        for x, y in zip(images[2 * step:2 * step + 2], labels[2 * step:2 * step + 2]):
            _, found = gradients_of(x, y)
            total = found if total is None else tuple(a + b for a, b in zip(total, found))
        total = ops.clip_by_global_norm(total, 0.5)
        optimizer(total)
        debugger.stop()
        debugger.step()
"""

# What is changed, into what, the class, and what the sentence must tell.
CAUSES = [
    ("stride=1", "stride=2", "argument", r"stride is \(2, 2\) in the target, \(1, 1\)"),
    ("epsilon=1e-5", "epsilon=1e-2", "argument", "epsilon is 0.01 in the target, 1e-05"),
    (
        "label_smoothing=0.1",
        "label_smoothing=0.2",
        "argument",
        "0.2 (in the target|instead)",
    ),
    ("* 0.75", "* 0.5", "argument", "0.5 (in the target|instead of 0.75)"),
    ("ops.relu", "ops.elu", "call", "elu"),
    ("loss + 0.01 * ops.square(logits).mean()", "loss", "call", "square"),
    (") / 2.0", ") * 2.0", "gradient", "the factor is 4"),
    ("total, 0.5", "total, 0.25", "clipping", "clip_by_global_norm.* 0.25 (in|instead of)"),
    ("total = ops.clip_by_global_norm(total, 0.5)", "pass", "clipping", "clip"),
    ("beta2=0.99", "beta2=0.9", "optimizer_setting", "beta2 is 0.9 in the target, 0.99"),
    ("[0.01, 0.02]", "[0.01, 0.01]", "schedule", "0.01 in the target, 0.02"),
    ("set_train(True)", "set_train(False)", "mode", "eval mode"),
    ("default_rng(1)", "default_rng(2)", "data", "the batch of step 0 differs"),
]
# Other ways to compute the same.
SAME = [
    ("self.first(h) * 0.75", "0.75 * self.first(h)"),
    (".mean((2, 3))", ".mean(-1).mean(-1)"),
    ("ops.square(logits)", "(logits * logits)"),
    ("a + b for", "b + a for"),
]


def record(folder: Path, program: str, level: str) -> Path:
    """Run the program from a file, so that it has lines; return the folder."""
    path = folder.with_suffix(".py")
    path.write_text(program)
    linecache.checkcache()
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(1)
    reset_session()
    names: dict[str, object] = {"__name__": "program"}
    exec(compile(program, str(path), "exec"), names)
    run = names["run"]
    assert callable(run)
    run(PrecisionDebugger(dump_path=str(folder), task="statistics", level=level))
    reset_session()
    return folder


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reference")
    return {level: record(folder / level, PROGRAM, level) for level in ("mix", "L0")}


def verdict(tmp_path: Path, references: dict[str, Path], old: str, new: str, level: str) -> dict:
    assert PROGRAM.count(old) == 1
    target = record(tmp_path / "target", PROGRAM.replace(old, new), level)
    return run_comparison(target, references[level], CompareOptions(workers=1)).summary["verdict"]


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize(("old", "new", "expected", "words"), CAUSES)
def test_a_change_is_named(tmp_path, references, old, new, expected, words, level) -> None:
    found = verdict(tmp_path, references, old, new, level)
    assert found["class"] == expected, found["sentence"]
    assert re.search(words, found["sentence"]), found["sentence"]


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize(("old", "new"), SAME)
def test_the_same_in_another_way_accuses_nobody(tmp_path, references, old, new, level) -> None:
    found = verdict(tmp_path, references, old, new, level)
    assert found["class"] in ("equal", "rounding"), found["sentence"]
