# SPDX-License-Identifier: Apache-2.0
"""The scripts in docs/trainers run, are recorded, and train as they do without msprobe."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.dump.facts import Ending, OptimizerStep

DOCS = Path(__file__).resolve().parents[2] / "docs" / "trainers"
# page, what it needs, the recorded steps, calls of the model in a step
PAGES = [
    ("transformers", "transformers", [0, 1, 3], 2),
    ("lightning", "lightning", [0, 1, 3], 2),
    ("accelerate", "accelerate", [0, 1, 3], 2),
    ("deepspeed", "deepspeed", [0, 1, 3], 2),
    ("fsdp", "torch", [0, 1, 3], 2),
    ("megatron", "megatron", [0, 1, 3], 2),
    ("peft", "peft", [0, 1, 3], 2),
    ("diffusers", "diffusers", [0, 1, 3], 2),
    ("timm", "torchvision", [0, 1, 3], 2),  # timm imports it
]
# Importing these libraries twice takes most of the time: MSPROBE_TEST_ALL_PAGES=1 tries every page.
if not os.environ.get("MSPROBE_TEST_ALL_PAGES"):
    PAGES = [page for page in PAGES if page[0] in ("transformers", "lightning", "fsdp")]


def run(folder: Path, page: str, **environment: str) -> list[str]:
    script = re.search(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    assert script is not None
    folder.mkdir()
    (folder / "train.py").write_text(script[1])
    done = run_warm("train.py", cwd=folder, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("weights")]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "needs", "steps", "calls"), PAGES, ids=str)
def test_the_script_of_a_page_is_recorded_and_trains_the_same(
    tmp_path: Path, page: str, needs: str, steps: list[int], calls: int
) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    plain = run(tmp_path / "plain", page, MSPROBE="off")
    assert len(plain) == 1
    assert run(tmp_path / "recorded", page) == plain
    assert not (tmp_path / "plain" / "dump").exists()
    dump = open_dump(tmp_path / "recorded" / "dump")
    assert list(dump.steps) == steps
    for view in dump.rank_views():
        assert view.facts is not None
        assert view.facts.ended.how is Ending.WHOLE
        assert any(isinstance(event, OptimizerStep) for event in view.facts.events)
        assert len(view.facts.loss) == calls
        assert any(re.match(r"(Functional|Torch)\..*forward", name) for name in view.records)
        gradients = [name for name in view.records if name.endswith("parameters_grad")]
        assert gradients
