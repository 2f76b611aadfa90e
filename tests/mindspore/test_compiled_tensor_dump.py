# SPDX-License-Identifier: Apache-2.0
"""What graphs of an accelerator write to files gives the records that callbacks give.

The operators run here outside graphs, where the CPU has them.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nets import random

import mindspore as ms
from mindspore import Tensor, nn
from msprobe import open_dump
from msprobe.capture.session import Session, use_session
from msprobe.config import load_config
from msprobe.mindspore.adapter import TENSOR_TYPES, MindSporeAdapter
from msprobe.mindspore.cell_hooks import CellNames
from msprobe.mindspore.compiled.cells import CompiledCells
from msprobe.mindspore.compiled.records import GraphRecords
from msprobe.mindspore.compiled.tensor_dump import TensorDumpFiles


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU())
        self.shared = nn.Dense(8, 8)

    def construct(self, x: Tensor) -> Tensor:
        return self.shared(self.shared(self.block(x)))


def test_files_of_the_runtime_become_records(tmp_path: Path) -> None:
    logging.getLogger("msprobe").setLevel(logging.WARNING)
    config = load_config(None, task="tensor", dump_path=tmp_path / "dump", level="L0")
    session = Session(config, MindSporeAdapter(config), TENSOR_TYPES)
    use_session(session)
    net = Net()
    names = CellNames([net])
    records = GraphRecords(session, names, list(names.items()), after_stop=True)
    files = TensorDumpFiles(tmp_path / "values")
    files.open()
    cells = CompiledCells(names.items(), partial(files.construct_for, backward=True))
    cells.put_in()
    session.run_undo.callback(cells.take_out)
    x = Tensor(random(3, 4))
    both = ms.value_and_grad(lambda x: (net(x) ** 2).sum(), 0, net.trainable_params())
    for step in range(2):
        session.start()
        both(x)
        session.stop()
        files.end_step(records if step == 1 else None)
        records.close()
        records.next_step()
        session.step()
    assert list((tmp_path / "values").iterdir()) == []
    view = open_dump(tmp_path / "dump").step(1).rank()
    assert [name for name in view.records if "forward" in name] == [
        "Cell.block.0.Dense.forward.0",
        "Cell.block.1.ReLU.forward.0",
        "Cell.block.SequentialCell.forward.0",
        "Cell.shared.Dense.forward.0",
        "Cell.shared.Dense.forward.1",
        "Cell.Net.forward.0",
    ]

    def values(name: str, part: str) -> Any:
        return view.tensor(next(view.records[name].tensors(part))[1]).array

    first, last = "Cell.shared.Dense.forward.0", "Cell.shared.Dense.forward.1"
    np.testing.assert_array_equal(values(last, "input_args"), values(first, "output"))
    np.testing.assert_array_equal(values("Cell.Net.forward.0", "output"), values(last, "output"))
    # The loss is the sum of squares: its gradient is twice the output.
    gradient = values("Cell.shared.Dense.backward.1", "input")
    np.testing.assert_array_equal(gradient, 2 * values(last, "output"))
    weight = net.shared.weight.asnumpy()
    passed_on = values("Cell.shared.Dense.backward.1", "output")
    np.testing.assert_allclose(passed_on, gradient @ weight, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values("Cell.shared.Dense.backward.0", "input"), passed_on)
    session.close()
    assert "construct" not in net.shared.__dict__
