# SPDX-License-Identifier: Apache-2.0
"""A training that is killed a moment after a call has that call in its dump."""

from __future__ import annotations

import signal

import pytest

from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.dump.repair import repair_dump

SCRIPT = """
import os, signal, sys, time
import torch
from msprobe.pytorch import PrecisionDebugger

net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix")
debugger.start(net)
net(torch.ones(3, 4)).sum().backward()
time.sleep(0.25)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_was_recorded_before_a_kill_is_there(tmp_path, task):
    done = run_warm("-c", SCRIPT, tmp_path, task)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (rank,) = open_dump(tmp_path).steps[0].ranks.values()
    expected = {
        "Functional.relu.0.forward",
        "Functional.relu.0.backward",
        "Module.0.Linear.forward.0",
    }
    assert expected <= set(rank.records)
    assert rank.missing_tensors == []


KILLED_INSIDE = """
import os, signal, sys, time
import torch
from msprobe.pytorch import PrecisionDebugger

class Dies(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.25)
        os.kill(os.getpid(), signal.SIGKILL)

net = torch.nn.Sequential(torch.nn.Linear(4, 8), Dies())
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="mix")
debugger.start(net)
net(torch.ones(3, 4))
"""


def test_what_was_given_to_the_call_that_a_process_died_in_is_kept(tmp_path):
    assert run_warm("-c", KILLED_INSIDE, tmp_path).returncode == -signal.SIGKILL
    name = "Module.1.Dies.forward.0"
    view = open_dump(tmp_path).step(0).rank()
    assert name not in view.records
    assert f"{name}.input.0.pt" in view.unrecorded_tensors
    repair_dump(tmp_path)
    view = open_dump(tmp_path).step(0).rank()
    ((path, given),) = view.records[name].tensors()
    made = next(view.records["Module.0.Linear.forward.0"].tensors("output"))[1]
    assert (path, given.shape, given.dtype) == (("input_args", 0), (3, 8), "float32")
    assert (given.max, given.min) == (made.max, made.min)
    assert (view.tensor(given).array == view.tensor(made).array).all()
