# SPDX-License-Identifier: Apache-2.0
"""Trains a small net, with or without level L2; prints the losses and what it met as JSON.

MindSpore reads the settings of its Dump once a process, so every test runs this in one of its own.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.errors import MsprobeError
from msprobe.mindspore import PrecisionDebugger


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(4, 8)
        self.fc2 = nn.Dense(8, 2)

    def construct(self, x):
        return self.fc2(ops.relu(self.fc1(x)))


@ms.jit
def compiled(x):
    return ops.tanh(x) * 2


def main(config, mode, *, train_first, before_start, bad, pause):
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(1)
    chance = np.random.default_rng(0)
    data = [chance.standard_normal((3, 4)).astype(np.float32) for _ in range(4)]
    if bad:
        data[1][0, 0] = np.inf
    if train_first:
        compiled(Tensor(data[0])).asnumpy()
    debugger = None
    if config is not None:
        debugger = PrecisionDebugger(config)
    if before_start:
        compiled(Tensor(data[0])).asnumpy()
    net = Net()
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1)
    )
    losses = []
    for number, x in enumerate(data):
        if debugger is not None:
            debugger.start(net)
        inputs = Tensor(x) if mode == "graph" else compiled(Tensor(x))
        if debugger is not None and number in pause:
            debugger.stop()
        loss = step(inputs, Tensor(np.ones((3, 2), np.float32)))
        losses.append(loss.asnumpy().tobytes().hex())
        if debugger is not None:
            debugger.stop()
            debugger.step()
    weights = [value.asnumpy().tobytes().hex() for value in net.trainable_params()]
    reset_session()
    return losses + weights


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    try:
        sys.stdout.write(f"RESULT {json.dumps(main(**options))}\n")
    except MsprobeError as error:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        sys.stdout.write(f"REFUSED {text}\n")
