# SPDX-License-Identifier: Apache-2.0
"""`kill -9` at random points: what was put a second before is there, and no file is ever torn.

The child writes as a training would: calls, records, tensor files, several `build_json` a step, a
new step now and then. Through a pipe it tells, with a time stamp, how many records it has put.
Meanwhile this process reads the JSON files as fast as it can.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from msprobe.dump.journal import read_journal

PROGRESS = struct.Struct("dii")  # time.monotonic, step, records put in it

CHILD = """
import os, struct, sys, time
from pathlib import Path
from msprobe.dump.records import TensorRecord
from msprobe.dump.writer import DumpHead, DumpWriter

class Payload:
    size_bytes = 5000
    def write(self, path):
        with open(path, "wb") as file:
            for part in range(5):
                file.write(b"x" * 1000)
                file.flush()

base, pipe, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
writer = DumpWriter(queue_bytes=1 << 20)
tensor = TensorRecord("torch.Tensor", "torch.float32", (2, 3), 1.0, 2.0, 3.0, 4.0)
for step in range(1000):
    dump = writer.open(base / f"step{step}" / "rank0", DumpHead("tensor", "mix", "pytorch"))
    for number in range(6000):
        name = f"Functional.linear.{number}.forward"
        dump.put_record(name, number, {"input_args": [tensor], "output": [number]})
        dump.put_call(name, number, None, number % 10)
        if number < 10:
            dump.put_frames(number, ["File x.py, line 1, in f"] * 20)
        if number % 40 == 0:
            dump.put_tensor(name + ".pt", Payload())
            dump.link_tensor(name + ".2.pt", name + ".pt")
        if number % 25 == 0:
            os.write(pipe, struct.pack("dii", time.monotonic(), step, number + 1))
            time.sleep(pause_s)
        if number % 1500 == 1499:
            dump.build_json()
    dump.close()
"""


class Victim:
    """A child that writes, its pipe, and what has been read from it."""

    def __init__(self, directory: Path, pause_s: float) -> None:
        self.directory = directory
        self.read_end, write_end = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, directory, str(write_end), str(pause_s)],
            pass_fds=[write_end],
        )
        os.close(write_end)
        os.set_blocking(self.read_end, False)
        self.text = b""

    def read_progress(self) -> None:
        while True:
            try:
                part = os.read(self.read_end, 1 << 16)
            except BlockingIOError:
                return
            if not part:
                return
            self.text += part

    def kill(self) -> float:
        """Kill the child; return the time before it."""
        before = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL
        self.read_progress()
        os.close(self.read_end)
        return before

    def put_before(self, moment: float) -> tuple[int, int] | None:
        """Return the step and the number of records that the child had put at that time."""
        whole = len(self.text) // PROGRESS.size * PROGRESS.size
        entries = [
            entry[1:] for entry in PROGRESS.iter_unpack(self.text[:whole]) if entry[0] <= moment
        ]
        return entries[-1] if entries else None


def load_json_files(directory: Path) -> int:
    """Parse every JSON file that is there; return how many."""
    count = 0
    for path in directory.glob("step*/rank0/[!.]*.json"):
        json.loads(path.read_bytes())
        count += 1
    return count


def survivors(directory: Path) -> dict[str, int]:
    """Return name → number of each record that can be read back from a step."""
    journal = directory / "journal.jsonl"
    if not list(directory.glob("[!.]*")):  # killed while the folder was being made
        return {}
    if not journal.exists():
        data = json.loads((directory / "dump.json").read_bytes())["data"]
        return {name: record["output"][0] for name, record in data.items()}
    contents = read_journal(journal)
    assert contents.damaged_lines == 0
    text = journal.read_bytes()
    found = {}
    for name, span in contents.index.records.items():
        record = json.loads(text[span.offset : span.offset + span.length])
        found[name] = record["output"][0]
    return found


def check(victim: Victim, killed_at: float) -> int:
    """Compare what lies on disk with what was put a second before; return its record count."""
    steps = sorted(victim.directory.glob("step*"), key=lambda path: int(path.name[4:]))
    for step in steps:
        found = survivors(step / "rank0")
        assert found == {f"Functional.linear.{n}.forward": n for n in range(len(found))}
        if step != steps[-1]:
            assert len(found) == 6000
        for path in (step / "rank0" / "dump_tensor_data").glob("[!.]*"):
            assert path.stat().st_size == 5000
    put = victim.put_before(killed_at - 1.0)
    if put is None:
        return 0
    step_number, count = put
    assert len(steps) > step_number
    assert len(survivors(steps[step_number] / "rank0")) >= count
    return count


@pytest.mark.slow
def test_killed_at_random_a_dump_holds_all_but_its_last_second(tmp_path):
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    guarded = 0
    torn_free_reads = 0
    for round_number in range(5):
        victims = [
            Victim(tmp_path / f"{round_number}.{number}", rng.choice([0.001, 0.003, 0.01]))
            for number in range(4)
        ]
        waiting = [(time.monotonic() + rng.uniform(0.2, 2.8), victim) for victim in victims]
        killed = []
        while waiting:
            for due, victim in list(waiting):
                victim.read_progress()
                if time.monotonic() >= due:
                    killed.append((victim, victim.kill()))
                    waiting.remove((due, victim))
            torn_free_reads += load_json_files(rng.choice(victims).directory)
            time.sleep(0.005)
        for victim, moment in killed:
            guarded += check(victim, moment) > 0
    # 20 kills; those before the child's first second only show that nothing is torn.
    assert guarded >= 5, f"seed {seed}"
    assert torn_free_reads >= 37, f"seed {seed}"
