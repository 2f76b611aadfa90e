# SPDX-License-Identifier: Apache-2.0
"""Several processes: each writes the folder of its rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe import open_dump

SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import get_rank, init
from msprobe.mindspore import PrecisionDebugger

ms.set_context(device_target="CPU")
init()
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
net = nn.SequentialCell(nn.Dense(3, 2))
reduce = ops.AllReduce()
debugger.start(net)
out = net(Tensor(np.full((2, 3), 1.0 + get_rank(), np.float32)))
total = reduce(out)
debugger.stop()
debugger.step()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.slow
def test_two_processes_write_two_folders(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launcher = Path(sys.executable).with_name("msrun")
    command = [
        str(launcher), "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}",
        "--join=True", f"--log_dir={tmp_path / 'logs'}", str(script), str(tmp_path / "dump"),
    ]  # fmt: skip
    # The launcher starts whatever is called python.
    environment = {**os.environ, "PATH": f"{launcher.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env=environment,
    )
    logs = "\n".join(p.read_text()[-3000:] for p in (tmp_path / "logs").glob("worker_*.log"))
    assert done.returncode == 0, done.stderr + logs
    step = open_dump(tmp_path / "dump").step(0)
    assert list(step.ranks) == [0, 1]
    largest = [
        next(step.rank(rank).records["Cell.0.Dense.forward.0"].tensors("input_args"))[1].max
        for rank in (0, 1)
    ]
    assert largest == [1.0, 2.0]
