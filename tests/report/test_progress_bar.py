# SPDX-License-Identifier: Apache-2.0
"""The progress bar, on a real terminal and without one."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

SLOW_WORK = """
import time
from msprobe.report.progress_bar import byte_progress
with byte_progress(4_000_000_000, "reading", enabled={enabled}) as advance:
    for _ in range({parts}):
        time.sleep(0.1)
        advance(500_000_000)
print("done")
"""


def run(parts: int, *, enabled: bool = True, terminal: bool = True) -> tuple[str, str]:
    """Return what a program with a bar writes to stdout and to stderr."""
    code = SLOW_WORK.format(parts=parts, enabled=enabled)
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "90", "LINES": "24"}
    environment.pop("NO_COLOR", None)
    if not terminal:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return done.stdout, done.stderr
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as program:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b""))
        assert program.stdout is not None
        written = program.stdout.read().decode()
    os.close(ours)
    assert program.returncode == 0
    return written, shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other end of a terminal was closed
        return b""


def test_part_size_rate_and_time_left():
    written, shown = run(8)
    assert written == "done\n"
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "reading" in text
    # Which moments are drawn depends on the machine; each picture must be true of itself.
    drawn = re.findall(r"(\d+)%\s+(\d\.\d)/4\.0 GB", text)
    shares = [int(share) for share, _ in drawn]
    assert shares == [round(float(size) / 4.0 * 100) for _, size in drawn]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert re.search(r"\d\.\d GB/s", text)
    assert re.search(r"\d:\d\d left", text)


def test_short_work_shows_nothing():
    assert run(1) == ("done\n", "")


def test_no_terminal_no_bar():
    assert run(8, terminal=False) == ("done\n", "")


def test_a_bar_that_nobody_wants():
    assert run(8, enabled=False) == ("done\n", "")
