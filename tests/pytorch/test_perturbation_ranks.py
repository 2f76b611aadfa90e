# SPDX-License-Identifier: Apache-2.0
"""The task `free_benchmark` with several processes, forked children and threads."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from families import differences
from families.process_group import DISTRIBUTED_FAMILIES, run_ranks
from torch import nn

from builders.recordings import recording

pytestmark = pytest.mark.torch

PLAIN = "report(train(DISTRIBUTED_FAMILIES[options['family']](7), 3))"
CHECKED = """
from msprobe.pytorch import PrecisionDebugger
case = DISTRIBUTED_FAMILIES[options["family"]](7)
config = folder / f"config{rank}.json"
settings = {"task": "free_benchmark", "level": "mix", "dump_path": str(folder / "out")}
config.write_text(json.dumps(settings | {"free_benchmark": options["keys"]}))
debugger = PrecisionDebugger(config_path=str(config))
for step in range(3):
    debugger.start(case.model)
    loss = case.run_step(step)
    debugger.stop()
    debugger.step()
    case.snapshot(loss)
report(case.state())
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", DISTRIBUTED_FAMILIES)
def test_a_checked_distributed_training_is_bit_identical(family: str, tmp_path: Path) -> None:
    expected = run_ranks(PLAIN, tmp_path, options={"family": family})
    for keys in ({"mode": "ulp_noise"}, {"mode": "rerun", "fuzz_stage": "backward"}):
        folder = tmp_path / str(keys["mode"])
        folder.mkdir()
        found = run_ranks(CHECKED, folder, options={"family": family, "keys": keys})
        for rank, pair in enumerate(zip(expected, found, strict=True)):
            assert differences(*pair) == []
            result = json.loads(
                (folder / "out" / f"rank{rank}" / "free_benchmark.json").read_text()
            )
            assert result["rank"] == rank
            cost = result["cost"]
            assert cost["calls_perturbed"] + sum(cost["calls_left_out"].values()) > 0
            assert result["findings"]["error"] + result["findings"]["warning"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_and_other_threads_are_left_alone(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    results: list[torch.Tensor] = []
    rerunning = recording(tmp_path, "mix", "free_benchmark", section={"mode": "rerun"})
    with rerunning as run, run.step_of(model):
        model(x)
        thread = threading.Thread(target=lambda: results.append(model(x)))
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            os._exit(0 if model(x).isfinite().all() else 1)
        assert os.waitpid(child, 0)[1] == 0
    found = json.loads((tmp_path / "rank" / "free_benchmark.json").read_text())
    assert [call["api_name"] for call in found["calls"]] == ["Functional.linear.0.forward"]
    assert len(results) == 1
