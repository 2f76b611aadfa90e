# SPDX-License-Identifier: Apache-2.0
"""Small dumps, captured from real models or written record by record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from overflow_dumps import Entry

from msprobe.dump.writer import DumpHead, DumpWriter


@pytest.fixture
def write_dump(tmp_path: Path) -> Callable[..., Path]:
    """Write one step of some ranks: ``write_dump({"rank0": [entries], …}, step=0)``."""

    def write(ranks: Mapping[str, list[Entry]], step: int = 0, framework: str = "pytorch") -> Path:
        writer = DumpWriter()
        dump_path = tmp_path / "dump"
        for folder, entries in ranks.items():
            directory = dump_path / f"step{step}" / folder
            dump = writer.open(directory, DumpHead("statistics", "mix", framework))
            dump.put_frames(0, ["File train.py, line 7, in loss, \n y = f(x)"])
            for order, (name, parent, parts) in enumerate(entries):
                dump.put_call(name, order, parent, 0)
                dump.put_record(name, order, dict(parts), nonfinite=True)
            dump.close()
        writer.close()
        return dump_path

    return write
