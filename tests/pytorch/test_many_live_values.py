# SPDX-License-Identifier: Apache-2.0
"""The books of values stay linear in the number of values that are alive at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.warm_python import run_warm

pytestmark = pytest.mark.torch

PROGRAM = """
import sys
import torch

looked = 0
expired = torch.UntypedStorage._expired

def counted(handle):
    global looked
    looked += 1
    return expired(handle)

torch.UntypedStorage._expired = staticmethod(counted)
from msprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="L1")
debugger.start()
one, kept = torch.ones(2), []
for _ in range(int(sys.argv[2])):
    kept.append(torch.OPERATOR)
debugger.stop()
debugger.step()
print("looked", looked)
"""


@pytest.mark.parametrize("operator", ["relu(one)", "empty(2)"])
def test_live_values_are_not_looked_through_for_each_new_one(tmp_path: Path, operator: str) -> None:
    count = 10_000
    program = PROGRAM.replace("OPERATOR", operator)
    ended = run_warm("-c", program, tmp_path, str(count))
    assert ended.returncode == 0, ended.stderr
    looked = int(ended.stdout.split()[-1])
    assert 0 < looked < 3 * count
