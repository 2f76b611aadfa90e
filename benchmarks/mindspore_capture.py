# SPDX-License-Identifier: Apache-2.0
"""What recording costs in MindSpore: recorded steps against plain ones, and compiling graphs.

    python benchmarks/mindspore_capture.py [--steps 60] [--synchronous]
    python benchmarks/mindspore_capture.py --blocks 12 [--steps 5]

Needs MindSpore. The net has two convolutions with batch norm and two dense layers, on 8x1x28x28,
with SGD and one thread. Plain and recorded steps alternate in one process; the figures are medians
and their ratio. "not recording" compares steps between `start` and `stop` of a step that is not
wanted with the steps before and after them, in CPU time. The line below each case says what
`start`, `stop` and `step` cost alone.

While recording, operators run at once instead of through MindSpore's queue, which can make a step
faster than a plain one. With `--synchronous` the plain steps run in the same way, so that the
difference is what recording itself costs.

With `--blocks` it trains a net of so many residual blocks in a static graph, at L0 and alone in
turn, each time in a process of its own: CPU time of the first step, which compiles, and the median
of the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msprobe.mindspore import PrecisionDebugger

CASES = ("L0", "L1", "mix", "not recording")


def make_step() -> tuple[object, Callable[[], None]]:
    import numpy as np

    import mindspore as ms
    from mindspore import Tensor, nn

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
            self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16)
            self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
            self.flatten = nn.Flatten()
            self.fc1, self.fc2 = nn.Dense(16 * 14 * 14, 32), nn.Dense(32, 10)

        def construct(self, x: Tensor) -> Tensor:
            x = self.relu1(self.norm1(self.conv1(x)))
            x = self.relu2(self.norm2(self.conv2(x)))
            return self.fc2(self.fc1(self.flatten(x)))

    ms.set_seed(1)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((8, 1, 28, 28)).astype(np.float32))
    y = Tensor(rng.integers(0, 10, 8).astype(np.int32))
    net = Net().set_train()
    loss = nn.CrossEntropyLoss()
    weights = net.trainable_params()
    optimizer = nn.SGD(weights, 0.01)
    both = ms.value_and_grad(lambda x, y: loss(net(x), y), None, weights)

    def step() -> None:
        value, gradients = both(x, y)
        optimizer(gradients)
        value.asnumpy()
        weights[0].asnumpy()

    return net, step


def worker(case: str, steps: int, *, synchronous: bool) -> None:
    import mindspore
    from msprobe import open_dump
    from msprobe.mindspore import PrecisionDebugger

    mindspore.set_context(pynative_synchronize=synchronous)
    net, step = make_step()
    with tempfile.TemporaryDirectory() as folder:
        wanted = [10**6] if case == "not recording" else None
        level = "mix" if case == "not recording" else case
        debugger = PrecisionDebugger(dump_path=folder, level=level, step=wanted)
        plain, recorded = [], []
        clock = time.process_time if case == "not recording" else time.perf_counter
        for round_ in range(steps + 10):
            begin = clock()
            step()
            middle = clock()
            debugger.start(net)
            step()
            debugger.stop()
            debugger.step()
            end = clock()
            if round_ >= 10:
                plain.append(middle - begin)
                recorded.append(end - middle)
        before, after = statistics.median(plain), statistics.median(recorded)
        count = 0
        if wanted is None:
            view = next(open_dump(folder).rank_views())
            count = len(view.records)
        each = f"{(after - before) / count * 1e6:8.0f}" if count else "       -"
        print(
            f"{case:14} {before * 1e3:9.2f} {after * 1e3:11.2f} {after / before:7.2f} "
            f"{count:8} {each}"
        )
        print(f"{'':14} start, stop and step alone: {_alone(debugger, net) * 1e6:.0f} µs")


def _alone(debugger: PrecisionDebugger, net: object) -> float:
    """Return what a step costs without the user's step, in seconds."""
    spent = []
    for _ in range(200):
        begin = time.perf_counter()
        debugger.start(net)
        debugger.stop()
        debugger.step()
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent)


def graph_worker(blocks: int, steps: int, *, recorded: bool) -> None:
    import numpy as np

    import mindspore as ms
    from mindspore import Tensor, nn
    from msprobe.mindspore import PrecisionDebugger

    width = 64

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act = nn.LayerNorm((width,)), nn.ReLU()
            self.fc1, self.fc2 = nn.Dense(width, 2 * width), nn.Dense(2 * width, width)

        def construct(self, x: Tensor) -> Tensor:
            return x + self.fc2(self.act(self.fc1(self.norm(x))))

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((16, width)).astype(np.float32))
    y = Tensor(rng.integers(0, 10, 16).astype(np.int32))
    net = nn.SequentialCell(*(Block() for _ in range(blocks)), nn.Dense(width, 10)).set_train()
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.CrossEntropyLoss()), optimizer)
    spent_s = []
    with tempfile.TemporaryDirectory() as folder:
        debugger = PrecisionDebugger(dump_path=folder, level="L0") if recorded else None
        for _ in range(steps + 1):
            begin = time.process_time()
            if debugger is not None:
                debugger.start(net)
            train(x, y).asnumpy()
            if debugger is not None:
                debugger.stop()
                debugger.step()
            spent_s.append(time.process_time() - begin)
    print(
        f"{blocks} blocks, {'L0' if recorded else 'plain':5} first step {spent_s[0]:6.2f} CPU s, "
        f"later ones {statistics.median(spent_s[1:]) * 1e3:6.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--case", choices=(*CASES, "graph", "graph L0"))
    parser.add_argument("--blocks", type=int, help="of a net in a static graph")
    options = parser.parse_args()
    if options.case in ("graph", "graph L0"):
        graph_worker(options.blocks, options.steps, recorded=options.case == "graph L0")
        return
    if options.case is not None:
        worker(options.case, options.steps, synchronous=options.synchronous)
        return
    cases: tuple[str, ...] = CASES
    shared = ["--steps", str(options.steps)]
    shared += ["--synchronous"] if options.synchronous else []
    if options.blocks is not None:
        cases = ("graph", "graph L0") * 3
        shared += ["--blocks", str(options.blocks)]
    else:
        head = f"{'':14} {'plain ms':>9} {'recorded ms':>11} {'ratio':>7} {'records':>8}"
        print(f"{head} {'µs each':>8}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3", "MSPROBE_LOG_LEVEL": "2"}
    for case in cases:
        command = [sys.executable, str(Path(__file__)), "--case", case, *shared]
        subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
