# SPDX-License-Identifier: Apache-2.0
"""Records the PyTorch twin of `test_twins.TwinNet`; its dump is kept beside this file.

python tests/mindspore/data/make_torch_twin.py tests/mindspore/data/torch_twin
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (the name that everybody uses)

from msprobe.pytorch import PrecisionDebugger


def values(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class TwinNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.first(x), approximate="tanh")
        return self.last(self.norm(x) * 2.0)


net = TwinNet()
for seed, (layer, shape) in enumerate([(net.first, (8, 4)), (net.last, (2, 8))]):
    layer.weight.data, layer.bias.data = values(seed, *shape), values(seed + 10, shape[0])
net.norm.weight.data, net.norm.bias.data = values(20, 8), values(21, 8)
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
debugger.start(net)
(net(values(30, 3, 4)) ** 2).mean().backward()
debugger.stop()
debugger.step()
