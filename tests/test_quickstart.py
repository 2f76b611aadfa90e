# SPDX-License-Identifier: Apache-2.0
"""What README and the getting-started page tell a newcomer to type works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")

ROOT: Final = Path(__file__).resolve().parent.parent
FENCE: Final = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL
)
# The blocks of each page run in order, each in its own interpreter, in one folder.
PAGES: Final = ["README.md", "docs/getting-started.md", "docs/tasks/save.md"]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page that a reader would run or save."""

    kind: str
    body: str
    title: str | None


def blocks_of(page: str) -> list[Block]:
    """Return the blocks to run: python, console, and files with a title."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [Block(m["kind"], m["body"], m["title"]) for m in FENCE.finditer(text)]
    return [b for b in found if b.kind in ("python", "console") or b.title]


def run(arguments: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "error", "COLUMNS": "120"}
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_console(line: str, folder: Path) -> str:
    """Run a `msprobe …` line with the interpreter of the tests."""
    program, *arguments = shlex.split(line)
    assert program == "msprobe", line
    code = "import sys; from msprobe.cli import main; sys.exit(main())"
    return run([sys.executable, "-c", code, *arguments], folder)


@pytest.mark.parametrize("page", PAGES)
def test_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    assert any(block.kind == "python" for block in blocks)
    for block in blocks:
        if block.title:
            (tmp_path / block.title).write_text(block.body, encoding="utf-8")
        elif block.kind == "python":
            run([sys.executable, "-c", block.body], tmp_path)
        else:
            shown = [run_console(line, tmp_path) for line in block.body.splitlines()]
            assert all(text.strip() for text in shown)
    assert list(tmp_path.glob("dump*/step0/rank/*.json"))
