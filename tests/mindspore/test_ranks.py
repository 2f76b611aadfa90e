# SPDX-License-Identifier: Apache-2.0
"""Several processes: each writes the folder of its rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import msprobe
from msprobe import open_dump

SCRIPT = """
import json
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import get_rank, init
from msprobe.mindspore import PrecisionDebugger, TrainerMon

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

optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
path = f"{sys.argv[1]}-{get_rank()}.json"
with open(path, "w") as file:
    json.dump({
        "output_dir": sys.argv[2], "run": "both", "ops": ["max"],
        "cc_distribution": {"enable": True, "cc_pre_hook": True},
    }, file)
with TrainerMon(path) as monitor:
    monitor.set_monitor(net, optimizer)
    ours = Tensor(np.full(3, 1.0 + get_rank(), np.float32))
    total = reduce(ours)
    mint.distributed.all_reduce(ours)
    late = Tensor(np.full(3, 2.0 + get_rank(), np.float32))
    mint.distributed.all_reduce(late, async_op=True).wait()
    optimizer(tuple(ops.zeros_like(one) for one in net.trainable_params()))
    reduce(ours)  # of the next step, which is never written
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
        str(tmp_path / "runs"),
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
    with msprobe.open_monitor(tmp_path / "runs") as run:
        assert run.steps() == [0]
        for api, call, sent, received in (
            ("AllReduce", 0, [1.0, 2.0], 3.0),
            ("all_reduce", 0, [1.0, 2.0], 3.0),
            ("all_reduce", 1, [2.0, 3.0], 5.0),
        ):
            rows = run.table("other").filter(call=call)
            before, after = (
                rows.filter(name=f"{api}.{tag}_0").sort("rank") for tag in ("pre", "post")
            )
            assert before["max"].drop_nulls().to_list() == sent
            assert after["max"].drop_nulls().to_list() == [received, received]
            assert before["checksum"].drop_nulls().n_unique() == 2
            assert after["checksum"].drop_nulls().n_unique() == 1
