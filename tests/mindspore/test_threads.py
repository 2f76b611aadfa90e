# SPDX-License-Identifier: Apache-2.0
"""Other threads of the user's that run operators and cells while one is recorded."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from nets import random

from builders.warm_python import run_warm
from mindspore import Tensor, nn
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

# In a process of its own: what goes wrong here may end the process.
SCRIPT = """
import sys, threading
import numpy as np
from mindspore import Tensor, nn
from msprobe.mindspore import PrecisionDebugger

net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2))
x = Tensor(np.ones((3, 4), np.float32))
want = net(x).asnumpy()
debugger = PrecisionDebugger(dump_path=sys.argv[1], level=sys.argv[2])
right = 0
for _ in range(30):
    debugger.start(net)
    found = []
    thread = threading.Thread(target=lambda: found.append(net(x).asnumpy()))
    thread.start()
    found.append(net(x).asnumpy())
    thread.join()
    debugger.stop()
    debugger.step()
    right += all(np.array_equal(one, want) for one in found) and len(found) == 2
print("right", right)
"""


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_thread_beside_the_recorded_one_computes_as_before(level: str, tmp_path: Path) -> None:
    # MindSpore itself computes about one of 900 such pairs otherwise, with nothing recorded.
    assert _printed(SCRIPT, tmp_path, level) in (["right 30"], ["right 29"])
    for view in open_dump(tmp_path).rank_views():
        assert not any("raised" in record.notes for record in view.records.values())


def test_a_thread_does_not_end_calls_of_the_recorded_one(tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    class Waiting(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            if threading.current_thread() is recorded:
                inside.set()
                assert done.wait(60)
            return x * 2.0

    def run_beside() -> None:
        assert inside.wait(60)
        net(Tensor(random(2, 3)))
        done.set()

    recorded = threading.current_thread()
    net = nn.SequentialCell(nn.ReLU(), Waiting())
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    other = threading.Thread(target=run_beside)
    other.start()
    net(Tensor(random(2, 3)))
    other.join()
    debugger.stop()
    debugger.step()
    view = open_dump(tmp_path).step(0).rank()
    assert list(view.records) == [
        "Cell.0.ReLU.forward.0",
        "Cell.1.Waiting.forward.0",
        "Cell.SequentialCell.forward.0",
    ]
    assert all("output" in record.parts for record in view.records.values())
    account = json.loads((tmp_path / "step0" / "rank" / "account.json").read_text())
    assert account["skipped"] == {"cell calls in other threads": 3}


# In a process of its own: pytest's workers have threads too.
SCRIPT_ALONE = """
import sys, threading
import mindspore as ms
from mindspore import nn
from msprobe.mindspore import PrecisionDebugger

def at_once():
    return ms.get_context("pynative_synchronize")

start = threading.Thread.start
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L0")
net = nn.SequentialCell(nn.ReLU())
release = threading.Event()
other = threading.Thread(target=release.wait)

debugger.start(net)
print("alone", at_once())
other.start()
print("beside a new thread", at_once())
debugger.stop()
debugger.start(net)
print("beside a thread", at_once())
debugger.stop()
release.set()
other.join()
debugger.start(net)
print("alone again", at_once())
debugger.stop()
print("stopped", at_once())
print("start restored", threading.Thread.start is start)
"""


def test_operators_run_at_once_only_while_the_thread_is_alone(tmp_path: Path) -> None:
    assert _printed(SCRIPT_ALONE, tmp_path) == [
        "alone True",
        "beside a new thread False",
        "beside a thread False",
        "alone again True",
        "stopped False",
        "start restored True",
    ]


# A thread that Python did not start, as those of MindSpore; it is listed once it asked who it is.
SCRIPT_FOREIGN = """
import sys, threading, _thread
import mindspore as ms
from mindspore import nn
from msprobe.mindspore import PrecisionDebugger

asked, release = threading.Event(), threading.Event()

def foreign():
    threading.current_thread()
    asked.set()
    release.wait()

ident = _thread.start_new_thread(foreign, ())
asked.wait()
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L0")
net = nn.SequentialCell(nn.ReLU())
for inside in (True, False):
    if not inside:
        release.set()
        while ident in sys._current_frames():
            pass
    debugger.start(net)
    print("in Python" if inside else "outside", ms.get_context("pynative_synchronize"))
    debugger.stop()
"""


def test_a_foreign_thread_counts_only_while_it_runs_python(tmp_path: Path) -> None:
    assert _printed(SCRIPT_FOREIGN, tmp_path) == ["in Python False", "outside True"]


def _printed(script: str, *arguments: str | Path) -> list[str]:
    """Run `script` in a process of its own; return the lines that it prints."""
    done = run_warm("-c", script, *map(str, arguments))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
