# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional net in MindSpore and record some of its steps with msprobe.

    python examples/mindspore_classifier.py --dump demo_output/ms-healthy
    python examples/mindspore_classifier.py --dump demo_output/ms-broken --plant-bug

The task is to tell which digit is drawn; the digits are made here, as noisy copies of ten glyphs,
so nothing is downloaded. With `--plant-bug` one layer norm of the classifier has a wrong epsilon,
such as one gets by copying it from another framework's default: the loss still falls, a little
differently.

What msprobe needs are the lines marked with `# msprobe`.
"""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe.mindspore import PrecisionDebugger, seed_all  # msprobe

STEPS: Final = 30
RECORDED_STEPS: Final = [0, 10]
BATCH: Final = 32
GLYPHS: Final = """
.###. ..#.. ####. ####. #..#. ##### .###. ##### .###. .###.
#...# .##.. ....# ....# #..#. #.... #.... ....# #...# #...#
#...# ..#.. .###. .###. ##### ####. ####. ...#. .###. .####
#...# ..#.. #.... ....# ...#. ....# #...# ..#.. #...# ....#
.###. .###. ##### ####. ...#. ####. .###. ..#.. .###. .###.
"""


class Classifier(nn.Cell):
    """Two convolutions, then two dense layers with a layer norm between."""

    def __init__(self, epsilon: float) -> None:
        """Make the layers."""
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16)
        self.hidden = nn.Dense(16 * 5 * 5, 32)
        self.norm = nn.LayerNorm((32,), epsilon=epsilon)
        self.output = nn.Dense(32, 10)

    def construct(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = ops.relu(self.norm1(self.conv1(x)))
        x = ops.relu(self.norm2(self.conv2(x)))
        x = self.norm(self.hidden(x.reshape(x.shape[0], -1)))
        return self.output(ops.relu(x))


def digits(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of noisy digits of 9 by 9 and what they are."""
    rows = [line.split() for line in GLYPHS.split("\n") if line]
    glyphs = np.array([[[c == "#" for c in row[n]] for row in rows] for n in range(10)], float)
    labels = random.integers(0, 10, BATCH)
    images = random.normal(0.0, 0.3, (BATCH, 1, 9, 9))
    for image, label in zip(images, labels, strict=True):
        top, left = random.integers(0, 5, 2)
        image[0, top : top + 5, left : left + 5] += glyphs[label]
    return images.astype(np.float32), labels.astype(np.int32)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", required=True, help="folder of the recording")
    parser.add_argument("--plant-bug", action="store_true", help="use a wrong epsilon")
    options = parser.parse_args()

    seed_all(7)  # msprobe: every source of chance
    debugger = PrecisionDebugger(
        dump_path=options.dump, level="mix", step=RECORDED_STEPS
    )  # msprobe
    net = Classifier(epsilon=0.1 if options.plant_bug else 1e-7).set_train()
    loss_of = nn.CrossEntropyLoss()
    weights = net.trainable_params()
    optimizer = nn.Momentum(weights, 0.05, 0.9)
    both = ms.value_and_grad(lambda x, y: loss_of(net(x), y), None, weights)
    random = np.random.default_rng(0)
    for step in range(STEPS):
        images, labels = digits(random)
        debugger.start(net)  # msprobe
        loss, gradients = both(Tensor(images), Tensor(labels))
        debugger.stop()  # msprobe
        optimizer(gradients)
        debugger.step()  # msprobe
        if step % 10 == 0 or step == STEPS - 1:
            print(f"step {step:3}  loss {float(loss.asnumpy()):.4f}")


if __name__ == "__main__":
    main()
