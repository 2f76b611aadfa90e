# SPDX-License-Identifier: Apache-2.0
"""MSAdapter (`mindtorch`), PyTorch's API on MindSpore: held against its published interface.

Its newest package, 0.4.0, imports names that no MindSpore from 2.7 on has, so it cannot run here.
`Module` below does with hooks and calls what `mindtorch.torch.nn.Module` of that package does.
MSPROBE_MINDTORCH names the folder of the unpacked package, for a test that compares both.
"""

from __future__ import annotations

import ast
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import mindspore as ms
from mindspore import nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

PUBLISHED = os.environ.get("MSPROBE_MINDTORCH")


class Handle:
    def __init__(self, hooks, key):
        self.hooks, self.key = hooks, key

    def remove(self):
        self.hooks.pop(self.key, None)


class Module(nn.Cell):
    """A cell that keeps its hooks apart from those of a cell, and calls them itself."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "_forward_hooks", OrderedDict())
        object.__setattr__(self, "_forward_pre_hooks", OrderedDict())

    def register_forward_pre_hook(self, hook):
        self._forward_pre_hooks[id(hook)] = hook
        return Handle(self._forward_pre_hooks, id(hook))

    def register_forward_hook(self, hook):
        self._forward_hooks[id(hook)] = hook
        return Handle(self._forward_hooks, id(hook))

    def construct(self, *inputs, **kwargs):
        return self.forward(*inputs, **kwargs)

    def __call__(self, *args, **kwargs):
        for hook in self._forward_pre_hooks.values():
            hook(self, args)
        result = self.forward(*args, **kwargs)
        for hook in self._forward_hooks.values():
            hook(self, args, result)
        return result


class Linear(Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        numbers = np.linspace(-1, 1, inputs * outputs, dtype=np.float32)
        self.weight = ms.Parameter(ms.Tensor(numbers.reshape(outputs, inputs)), name="weight")

    def forward(self, x):
        return ops.matmul(x, self.weight.T)


class Net(Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Linear(3, 4), Linear(4, 2)

    def forward(self, x, scale=1.0):
        return self.second(ops.relu(self.first(x))) * scale


def test_modules_are_recorded_and_compute_the_same(tmp_path):
    net, batch = Net(), ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))

    def train():
        grad = ms.value_and_grad(lambda x: net(x, scale=2.0).sum(), None, net.trainable_params())
        loss, gradients = grad(batch)
        return [loss.asnumpy(), *(each.asnumpy() for each in gradients)]

    plain = train()
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="mix")
    for _ in range(2):
        debugger.start(net)
        recorded = train()
        debugger.stop()
        debugger.step()
    assert all(np.array_equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    (view, _) = open_dump(tmp_path).rank_views()
    names = set(view.records)
    for cell in ("Cell.Net", "Cell.first.Linear", "Cell.second.Linear"):
        assert {f"{cell}.forward.0", f"{cell}.backward.0"} <= names
    assert any(".relu.0.forward" in name for name in names)


@pytest.mark.skipif(PUBLISHED is None, reason="MSPROBE_MINDTORCH names no unpacked package")
def test_the_published_module_has_this_interface():
    path = Path(str(PUBLISHED)) / "mindtorch/torch/nn/modules/module.py"
    found = {
        node.name: node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }["Module"]
    assert [ast.unparse(base) for base in found.bases] == ["Cell"]
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    for name in ("register_forward_pre_hook", "register_forward_hook", "construct", "__call__"):
        own = ast.parse(Path(__file__).read_text())
        (module,) = (n for n in own.body if isinstance(n, ast.ClassDef) and n.name == "Module")
        (mine,) = (n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == name)
        assert ast.unparse(methods[name].args) == ast.unparse(mine.args), name
    text = ast.unparse(found)
    for call in ("hook(self, cast_inputs)", "hook(self, cast_inputs, result)", "self.forward("):
        assert call in text
