# SPDX-License-Identifier: Apache-2.0
"""Small dumps: of several ranks, written record by record, and of training under the debugger."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from builders.dumps import write_rank

Entry = tuple[str, str | None, Mapping[str, Any]]
"""A record: its name, the record it ran inside, and its parts."""


@pytest.fixture
def write_dump(tmp_path: Path) -> Callable[..., Path]:
    """Write one step of some ranks: ``write_dump({"rank0": [entries], …}, step=0)``."""

    def write(ranks: Mapping[str, list[Entry]], step: int = 0, framework: str = "pytorch") -> Path:
        frames = ["File train.py, line 7, in loss, \n y = f(x)"]
        for rank, entries in ranks.items():
            write_rank(
                tmp_path / "dump" / f"step{step}" / rank,
                {name: parts for name, _, parts in entries},
                parents={name: parent for name, parent, _ in entries},
                stacks={name: frames for name, *_ in entries},
                framework=framework,
            )
        return tmp_path / "dump"

    return write


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Run a case under the debugger and return the path of its dump."""
    torch = pytest.importorskip("torch")
    from msprobe.capture.session import reset_session
    from msprobe.pytorch import PrecisionDebugger

    def run(case: Callable, config: dict[str, Any] | None = None) -> Path:
        reset_session()
        torch.manual_seed(3)
        settings = {"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "dump")}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(settings | {"statistics": {}} | (config or {})))
        debugger = PrecisionDebugger(config_path=str(path))
        case(debugger.start)
        debugger.stop()
        reset_session()
        return tmp_path / "dump"

    yield run
    reset_session()
