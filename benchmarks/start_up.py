# SPDX-License-Identifier: Apache-2.0
"""CPU time before anything is recorded: imports, help, the configuration, the table of APIs.

    python benchmarks/start_up.py [--rounds 5]

Every round of a figure is a fresh process, and the median is printed beside its target.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

# Each prints seconds: name → (target in seconds, program).
FIGURES = {
    "import msprobe": (0.3, "begin()\nimport msprobe\nend()"),
    "msprobe --help": (
        0.5,
        """
import sys
sys.argv = ["msprobe", "--help"]
begin()
from msprobe.cli import main
try:
    main()
except SystemExit:
    end()
""",
    ),
    "load a configuration, best of 30": (
        0.005,
        """
import json, pathlib, tempfile
from msprobe.config import load_config
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "config.json"
    names = [f"name{number}" for number in range(100)]
    content = {"rank": [0, "4-7"], "step": ["0-1000"], "statistics": {"list": names}}
    path.write_text(json.dumps(content))
    print(min(measured(lambda: load_config(path, dump_path=folder)) for _ in range(30)))
""",
    ),
    "table of APIs, with PyTorch imported": (
        0.5,
        """
import torch.overrides
torch.overrides.resolve_name(torch.relu)
begin()
from msprobe.pytorch.apis.api_table import ApiTable
ApiTable.from_yaml().lookup(torch.relu)
end()
""",
    ),
    "a look-up in it, best of 5 x 20,000": (
        0.1e-6,
        """
import timeit, torch
from msprobe.pytorch.apis.api_table import ApiTable
table = ApiTable.from_yaml()
table.lookup(torch.relu)
print(min(timeit.repeat(lambda: table.lookup(torch.relu), number=20_000, repeat=5)) / 20_000)
""",
    ),
}
CLOCK = """
import time
def begin():
    global start
    start = time.process_time()
def end():
    print(time.process_time() - start)
def measured(function):
    start = time.process_time()
    function()
    return time.process_time() - start
"""


def seconds(program: str) -> float:
    """Run a program and return the seconds that it prints last."""
    command = [sys.executable, "-c", CLOCK + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for name, (target, program) in FIGURES.items():
        median = statistics.median(seconds(program) for _ in range(rounds))
        verdict = "yes" if median <= target else "NO"
        print(f"{name:40} {median * 1e6:12,.2f} µs   at most {target * 1e6:,g} µs: {verdict}")


if __name__ == "__main__":
    main()
