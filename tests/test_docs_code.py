# SPDX-License-Identifier: Apache-2.0
"""Commands, programs and settings that the pages of the documentation show are valid.

Each command line has the options it is shown with; each program compiles, and finds in msprobe what
it imports; settings can be read. `test_quickstart.py` and `integrations/test_pages.py` run pages.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from msprobe.cli.commands import names_of_commands
from msprobe.cli.parser import parse_command
from msprobe.config import load_config

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
FENCE: Final = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND: Final = re.compile(r"^(?:\$ |.* -m )?msprobe (?P<words>\w.*)$", re.MULTILINE)
# Behind these the shell, or a remark, goes on.
END: Final = re.compile(r"  | #| \|\| ")
# What a reader has: a model, what trains it, and functions of a training.
GIVEN: Final = {
    *("model", "net", "Net", "make_model", "optimizer", "scheduler", "train", "train_step"),
    *("loader", "data", "batch", "batches", "epochs", "forward_and_backward", "debugger"),
    *("tokenizer", "topk_logprobs", "tokens", "writer"),
}


def blocks(*kinds: str) -> Iterator[tuple[str, str]]:
    """Yield page and text of each fenced block of these kinds."""
    for path in PAGES:
        for found in FENCE.finditer(path.read_text(encoding="utf-8")):
            if found["kind"] in kinds:
                yield str(path.relative_to(ROOT)), found["body"]


COMMANDS: Final = sorted(
    {
        (page, END.split(found["words"])[0].replace("…", "x"))
        for page, body in blocks("", "bash", "console", "text")
        for found in COMMAND.finditer(body)
    }
)
SETTINGS: Final = [
    (page, body)
    for page, body in blocks("json")
    if {"task", "dump_path"} <= set(json.loads(body)) and "tls_path" not in body  # needs its keys
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_has_the_options_it_is_shown_with(page: str, line: str) -> None:
    words = shlex.split(line)
    known = names_of_commands()
    length = 2 if " ".join(words[:2]) in known else 1

    parse_command(known[" ".join(words[:length])], words[length:])


# Pages of trainers import large libraries; `integrations/test_pages.py` runs them.
@pytest.mark.parametrize(
    ("page", "program"), [each for each in blocks("python") if "/trainers/" not in each[0]]
)
def test_a_program_finds_what_it_imports(page: str, program: str) -> None:
    for node in ast.walk(ast.parse(program, page)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msprobe"):
            if ".mindspore" in node.module and importlib.util.find_spec("mindspore.train") is None:
                continue
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module} has no {name.name}"


@pytest.mark.parametrize("page", sorted({page for page, _ in blocks("python")}))
def test_names_come_from_the_page_or_are_clearly_the_reader_s(page: str) -> None:
    programs = [ast.parse(body) for each, body in blocks("python") if each == page]
    nodes = [node for program in programs for node in ast.walk(program)]
    bound = {*dir(builtins), *GIVEN}
    for node in nodes:
        if isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    used = {node.id for node in nodes if isinstance(node, ast.Name)}

    assert used <= bound


@pytest.mark.parametrize(("page", "text"), SETTINGS)
def test_settings_can_be_used(tmp_path: Path, page: str, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)

    load_config(path)
