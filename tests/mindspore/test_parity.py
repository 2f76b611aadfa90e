# SPDX-License-Identifier: Apache-2.0
"""Which task works in which mode of MindSpore: the table of docs/tasks/mindspore.md holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.config.choices import Task
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore import PrecisionDebugger

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "mindspore.md"


def table() -> dict[str, list[str]]:
    """Return the columns of the table by task."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| task | PyTorch | dynamic graph | static graph |") + 2
    rows = {}
    for line in lines[start:]:
        if not line.startswith("| `"):
            break
        name, *columns = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.strip("`")] = columns
    return rows


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Burst(nn.Cell):
    """Divides by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return ops.div(ops.abs(self.scale(x)) + 1.0, ops.zeros_like(x))


def run(folder: Path, task: str, level: str, **section: Any) -> list[Path]:
    """Train one step with a task; return the files."""
    folder.mkdir()
    file = folder / "config.json"
    keys = {"task": task, "level": level, "dump_path": str(folder / "dump"), task: section}
    file.write_text(json.dumps(keys))
    net, x = Burst(), Tensor(random(3, 4))
    optimizer = nn.SGD(net.trainable_params())

    def loss(x: Tensor) -> Tensor:
        return net(x).sum()

    gradients = ms.value_and_grad(loss, None, net.trainable_params())
    debugger = PrecisionDebugger(config_path=file)
    if task == Task.GRAD_PROBE:
        debugger.monitor(optimizer)
    debugger.start(net)
    optimizer(gradients(x)[1])
    debugger.stop()
    debugger.step()
    assert not list(folder.rglob("dump_error_info.log"))
    return [path for path in (folder / "dump").rglob("*") if path.is_file()]


@pytest.mark.parametrize("task", [task.value for task in Task if task is not Task.EXCEPTION_DUMP])
@pytest.mark.parametrize(
    ("column", "level"), [(1, "L1"), pytest.param(2, "L0", marks=pytest.mark.slow)]
)
def test_a_task_works_where_the_table_says_so(
    task: str, column: int, level: str, tmp_path: Path
) -> None:
    said = table()[task][column]
    if column == 2:
        ms.set_context(mode=ms.GRAPH_MODE)
    section: dict[str, Any] = {}
    if task == Task.DIFF_CHECK:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        run(tmp_path / "reference", "statistics", level)
        reset_session()
        section["reference"] = str(tmp_path / "reference" / "dump")
        ms.set_context(mode=ms.PYNATIVE_MODE if column == 1 else ms.GRAPH_MODE)
    if task == Task.STRUCTURE:
        level = "L0"
    if said.startswith("refused"):
        with pytest.raises((ConfigError, UnsupportedError)):
            run(tmp_path / "run", task, level, **section)
        return
    files = run(tmp_path / "run", task, level, **section)
    assert files or task == Task.DIFF_CHECK  # it writes what differs
    found = [path.read_text() for path in tmp_path.rglob("nan_check*.csv")]
    assert bool(found) == (task == Task.NAN_CHECK)
    assert all(",source," in text for text in found)


def test_each_task_has_a_row() -> None:
    rows = table()
    assert set(rows) == {task.value for task in Task}
    assert np.all([len(columns) == 3 for columns in rows.values()])
