# SPDX-License-Identifier: Apache-2.0
"""`msprobe run` on scripts of MindSpore that nobody edited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.dump.facts import Ending, OptimizerStep

SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model

way = sys.argv[1]
ms.set_context(mode=ms.GRAPH_MODE if way.startswith("graph") else ms.PYNATIVE_MODE)
ms.set_device("CPU")
ms.set_seed(1)
np.random.seed(1)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(8, 16)
        self.act = nn.ReLU()
        self.fc2 = nn.Dense(16, 3)
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return super().__call__(x)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


net = Net()
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Adam(net.trainable_params(), 1e-2)
inputs = np.random.randn(4, 4, 8).astype(np.float32)
labels = np.random.randint(0, 3, (4, 4)).astype(np.int32)


def forward(x, y):
    return loss_fn(net(x), y)


gradient = ms.value_and_grad(forward, None, optimizer.parameters)


def update(x, y):
    loss, gradients = gradient(x, y)
    optimizer(gradients)
    return loss


def evaluate():
    return float(net(Tensor(inputs[0])).sum().asnumpy())


if way.endswith("Model"):
    data = NumpySlicesDataset(
        {"data": inputs.reshape(16, 8), "label": labels.reshape(16)}, shuffle=False
    )
    Model(net, loss_fn, optimizer).train(1, data.batch(4), dataset_sink_mode=False)
else:
    update_once = ms.jit(update) if way == "jit" else update
    for number in range(4):
        loss = update_once(Tensor(inputs[number]), Tensor(labels[number]))
        print(number, float(loss.asnumpy()), evaluate())
print(sys.argv, sys.stdin.read(), net.calls, [p.asnumpy().tolist() for p in net.get_parameters()])
raise SystemExit(5)
"""
ADVERSARIES = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops

ms.set_device("CPU")
generator = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 6))
judge = nn.SequentialCell(nn.Dense(6, 8), nn.Dense(8, 1))
optimizers = [nn.SGD(net.trainable_params(), 0.1) for net in (judge, generator)]


def of_judge(noise):
    made = ops.stop_gradient(generator(noise))
    return judge(ops.ones((4, 6))).sum() - judge(made).sum()


gradients = [
    ms.grad(of_judge, None, optimizers[0].parameters),
    ms.grad(lambda noise: judge(generator(noise)).sum(), None, optimizers[1].parameters),
]
for _ in range(2):
    for optimizer, gradient in zip(optimizers, gradients):
        optimizer(gradient(Tensor(np.ones((4, 4), np.float32))))
"""
FORWARD = ["Cell.fc1.Dense.forward.0", "Cell.act.ReLU.forward.0", "Cell.fc2.Dense.forward.0"]

# As it is before any test: MindSpore's compiler adds folders of its own, with a `math.py` in one.
PATHS = os.pathsep.join(sys.path)


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": PATHS}
    return run_warm(*words, cwd=folder, env=environment, text="from stdin")


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("functions", ()),
        ("functions", ("--step-function", "update")),
        pytest.param("jit", (), marks=pytest.mark.slow),
        pytest.param("Model", (), marks=pytest.mark.slow),
        pytest.param("graphs", (), marks=pytest.mark.slow),
        pytest.param("graphs of Model", (), marks=pytest.mark.slow),
    ],
)
def test_a_script_is_recorded_and_ends_as_it_does_alone(
    tmp_path: Path, way: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    alone = start(tmp_path, "train.py", way)
    words = ["-m", "msprobe", "run", *options, "-o", "dump", "--step", "0-2", "train.py", way]
    recorded = start(tmp_path, *words)
    assert (recorded.returncode, recorded.stdout) == (5, alone.stdout), recorded.stderr
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [0, 1, 2]
    for step in dump.steps:
        view = dump.step(step).rank("graph/rank" if way == "jit" else "rank")
        names = [name for name, _ in view.records.items()]
        cells = [name for name in names if name.startswith("Cell.") and ".forward." in name]
        assert cells[:3] == FORWARD
        assert "Cell.fc1.Dense.backward.0" in names
        assert view.account is not None
        assert view.account["complete"] is True
        facts = dump.step(step).rank("rank").facts
        assert facts is not None
        assert facts.ended is not None
        assert facts.ended.how is Ending.WHOLE
        if way != "jit":  # the optimizer is inside the compiled code
            assert [type(event) for event in facts.events] == [OptimizerStep]


@pytest.mark.slow
def test_two_models_keep_their_names_from_step_to_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ADVERSARIES)
    words = ["run", "--level", "L0", "--step", "all", "-o", "dump", "train.py"]
    ended = start(tmp_path, "-m", "msprobe", *words)
    assert ended.returncode == 0, ended.stderr
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [0, 1, 2, 3]
    for step in dump.steps:
        names = [name for name in dump.step(step).rank().records if ".forward." in name]
        made = ["Cell.0.Dense", "Cell.1.ReLU", "Cell.2.Dense", "Cell.SequentialCell"]
        # The first has a part named 1.
        judged = ["Cell.3.0.Dense", "Cell.3.1.Dense", "Cell.3.SequentialCell"]
        calls = [(made, 0), (judged, 0), (judged, 1)][: 2 if step % 2 else 3]
        assert names == [f"{cell}.forward.{call}" for cells, call in calls for cell in cells]
        facts = dump.step(step).rank().facts
        assert facts is not None
        parameters = ["0.weight", "0.bias", "2.weight", "2.bias"]
        parameters += [f"3.{part}.{name}" for part in "01" for name in ("weight", "bias")]
        assert facts.parameters.name == parameters
        assert all(facts.parameters.checksum)
        assert facts.settings["module.3.1"].startswith("Dense(")
        assert set(facts.modes.training) >= {"", "3"}


def test_kernels_are_left_to_an_edited_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import mindspore\nprint('done')\n")
    ended = start(tmp_path, "-m", "msprobe", "run", "--level", "L2", "-o", "dump", "train.py")
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert "nothing is recorded: level L2" in ended.stderr
    assert not (tmp_path / "dump").exists()
