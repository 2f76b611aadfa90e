# SPDX-License-Identifier: Apache-2.0
"""The rooms keep to the import table of docs/architecture.md, and importing msprobe is free.

The table in the documentation is read by these tests: a rule is changed there, in one place.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "msprobe"
FRAMEWORK_OF_ADAPTER: Final = {
    "pytorch": {"torch", "torch_npu"},
    "mindspore": {"mindspore"},
    "integrations": {"torch"},
}
FRAMEWORKS: Final = frozenset[str]().union(*FRAMEWORK_OF_ADAPTER.values())
# What the third column of the table says for a room that may reach all others, inside functions.
EVERYTHING: Final = "everything, inside functions"
# Tests see what other rooms see. This extension is imported to check what happens without it.
PRIVATE_IN_TESTS: Final = {"msprobe.numerics._elementwise"}
# Modules that tests import though no other room does, and no page or docstring of a room names
# them as an entrance. A test of one of them holds its room to an inner cut: the list only shrinks.
# Each computes something that is held against an oracle case by case, as no whole run could be.
INTERIORS_IN_TESTS: Final = {
    "checks.random_calls": "references of random functions, against torch's own draws",
    "checks.standards.metrics": "documented metrics, against values computed by hand",
    "checks.standards.ratio_verdict": "each row of the documented table of verdicts",
    "compare.noise.spread": "quantiles, against tables of the distributions",
    "compare.training.elements": "input of the update rules, which are held against optimizers",
    "compare.verdicts.made_inside": "what collectives deliver, made without several ranks",
    "compare.verdicts.observations": "input of find_verdict, made without two recordings",
    "compare.verdicts.places": "input of find_verdict, made without two recordings",
}


def import_table() -> dict[str, str]:
    """Return room -> text of the column "may import", from docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", text, flags=re.MULTILINE)
    assert rows, "docs/architecture.md: the table of rooms was not found"
    return dict(rows)


TABLE: Final = import_table()
DOCUMENTS: Final = "".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))
)
FILES_NAMED: Final = frozenset(re.findall(r"`([\w/]+)\.py`", DOCUMENTS))
MODULES_NAMED: Final = frozenset(re.findall(r"msprobe(?:\.\w+)+", DOCUMENTS))
NEUTRAL_ROOMS: Final = sorted(set(TABLE) - set(FRAMEWORK_OF_ADAPTER))


class Import(NamedTuple):
    """One import statement of one module."""

    where: str
    target: str
    in_function: bool


def room_of(path: Path) -> str:
    """Return the folder of `path` under the package, "" for a module beside the rooms."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def is_for_type_checkers(node: ast.AST) -> bool:
    """Return whether this is ``if TYPE_CHECKING:``, whose imports never happen at run time."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def walk(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the statements that import, and the calls; and whether they are in a function."""
    waiting = [(tree, False)]
    while waiting:
        node, in_function = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            yield node, in_function
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = inside or is_for_type_checkers(node)
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def targets(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    """Return the dotted names that an import statement (or `import_module("…")`) reaches."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *([node.module] if node.module else [])])
            return [f"{origin}.{alias.name}" for alias in node.names]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [".".join(package) + name if name.startswith(".") else name]
    return []


def imports_of(path: Path) -> list[Import]:
    package = ("msprobe", *path.relative_to(PACKAGE).parts[:-1])
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        Import(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", target, in_function)
        for node, in_function in walk(tree)
        for target in targets(node, package)
    ]


@cache
def all_imports() -> list[tuple[str, Import]]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [(room_of(path), found) for path in files for found in imports_of(path)]


def target_room(target: str) -> str | None:
    """Return the room that a dotted name lies in; None when it is not one of ours or no room."""
    parts = target.split(".")
    if parts[0] != "msprobe" or len(parts) < 2:
        return None
    return parts[1] if (PACKAGE / parts[1]).is_dir() else None


def refusal(room: str, found: Import) -> str | None:
    """Say why `room` may not import this; None when it may."""
    framework = found.target.split(".")[0]
    if framework in FRAMEWORKS and framework not in FRAMEWORK_OF_ADAPTER.get(room, set()):
        return f"{found.where}: {room or 'msprobe'} must not see {framework}"
    target = target_room(found.target)
    if target is None or target == room:
        return None
    if room == "" or TABLE[room] == EVERYTHING:
        lazy = found.in_function or found.where.startswith("src/msprobe/__main__")
        return None if lazy else f"{found.where}: {target}/ may be imported inside functions only"
    if target in re.findall(r"`(\w+)/`", TABLE[room]):
        return None
    return f"{found.where}: {room}/ must not import {target}/"


def run_python(code: str) -> Any:
    """Run `code` in a fresh interpreter and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_room_stands_in_the_table_and_every_row_is_a_room() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(TABLE)


@pytest.mark.parametrize("room", sorted(TABLE))
def test_room_says_what_it_is(room: str) -> None:
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree) or ""
    assert len(docstring.split()) >= 15, f"{room}/__init__.py: what is the room for?"


@pytest.mark.parametrize("room", sorted(TABLE))
def test_a_room_that_says_what_it_may_import_says_what_the_table_says(room: str) -> None:
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    told = re.search(r"[Mm]ay\s+import\s((?:[^.]|\.\w)*)\.", ast.get_docstring(tree) or "")
    if told and "beside" not in told[1]:
        assert set(re.findall(r"`(\w+)/`", told[1])) == set(re.findall(r"`(\w+)/`", TABLE[room]))


def test_rooms_import_only_what_the_table_allows() -> None:
    refused = [text for room, found in all_imports() if (text := refusal(room, found))]
    assert refused == []


def is_private(target: str) -> bool:
    """Return whether a dotted name of ours begins with an underscore in one of its parts."""
    package, *parts = target.split(".")
    private = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return package == "msprobe" and private and target not in PRIVATE_IN_TESTS


@cache
def imports_of_tests() -> list[tuple[str, str]]:
    """Return place and name of everything of ours that tests import."""
    return [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", target)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node, _ in walk(ast.parse(path.read_text(encoding="utf-8")))
        for target in targets(node, ())
        if target.startswith("msprobe.")
    ]


def test_tests_import_no_private_names() -> None:
    assert [one for one in imports_of_tests() if is_private(one[1])] == []
    assert is_private("msprobe.dump.journal._flush")


def module_of(target: str) -> str:
    """Return the module of ours that a dotted name lies in."""
    parts = target.split(".")
    while (
        not (ROOT / "src").joinpath(*parts).with_suffix(".py").exists()
        and not (ROOT / "src").joinpath(*parts, "__init__.py").exists()
    ):
        parts.pop()
    return ".".join(parts)


def is_entrance(module: str) -> bool:
    """Return whether a page of the documentation or the docstring of its room names a module."""
    room, *inner = module.split(".")[1:]
    docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8")))
    dotted = re.escape(".".join(inner))
    named = rf"`(msprobe\.{room}\.)?({dotted}|{re.escape(inner[-1])})(\.\w+)?(\(\))?`"
    if re.search(named, docstring or ""):
        return True
    path = (room, *inner)
    if any("/".join(path[start:]) in FILES_NAMED for start in range(len(path))):
        return True
    return any(f"{name}.".startswith(f"{module}.") for name in MODULES_NAMED)


def test_tests_import_what_other_rooms_may() -> None:
    imported = {
        module_of(found.target)
        for room, found in all_imports()
        if target_room(found.target) not in (None, room)
    }
    used = {module_of(name) for _, name in imports_of_tests() if name not in PRIVATE_IN_TESTS}
    inner = {module for module in used - imported if module.count(".") > 1}
    found = {module.removeprefix("msprobe.") for module in inner if not is_entrance(module)}
    assert found == set(INTERIORS_IN_TESTS)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("dump", "import torch"),
        ("capture", "def f():\n    from torch import nn"),
        ("capture", "from ..pytorch import debugger"),
        ("dump", "from msprobe.capture.session import Session"),
        ("config", "import importlib\nimportlib.import_module('mindspore')"),
        ("pytorch", "import mindspore"),
        ("pytorch", "from msprobe.cli import main"),
        ("cli", "from msprobe.dump import reader"),
        ("", "import msprobe.dump.reader"),
    ],
)
def test_the_check_sees_a_breach(room: str, source: str) -> None:
    path = PACKAGE / room / "breach.py"
    package = ("msprobe", *path.relative_to(PACKAGE).parts[:-1])
    breaches = [
        refusal(room, Import("breach", target, in_function))
        for node, in_function in walk(ast.parse(source))
        for target in targets(node, package)
    ]
    assert any(breaches)


@pytest.fixture(scope="module")
def asked() -> dict[str, list[str]]:
    """Import each room in a process of its own, and return the frameworks it asks for."""
    found: dict[str, list[str]] = run_python(
        f"""
import importlib, importlib.abc, json, os, pkgutil, sys

class Watch(importlib.abc.MetaPathFinder):
    asked = []
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(FRAMEWORKS)!r}:
            self.asked.append(name)

sys.meta_path.insert(0, Watch())
found = dict()
for name in {NEUTRAL_ROOMS!r}:
    reads, writes = os.pipe()
    if os.fork() == 0:
        room = importlib.import_module("msprobe." + name)
        for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
            importlib.import_module(module.name)
        assert room.__name__ in sys.modules
        os.write(writes, json.dumps(Watch.asked).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        found[name] = json.load(answer)
print(json.dumps(found))
"""
    )
    return found


@pytest.mark.parametrize("room", NEUTRAL_ROOMS)
def test_neutral_room_never_asks_for_a_framework(room: str, asked: dict[str, list[str]]) -> None:
    assert asked[room] == []


def test_import_changes_nothing() -> None:
    changed = run_python(
        """
import atexit, json, logging, os, signal, sys, threading, typing, warnings

def state():
    return {
        "environment": dict(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "root handlers": len(logging.root.handlers),
        "msprobe handlers": len(logging.getLogger("msprobe").handlers),
        "msprobe level": logging.getLogger("msprobe").level,
        "warning filters": len(warnings.filters),
        "exit functions": atexit._ncallbacks(),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "excepthook": sys.excepthook is sys.__excepthook__,
        "import hooks": len(sys.meta_path),
        "stubs": [n for n, m in sys.modules.items() if getattr(m, "__spec__", None) is None
                  and n != "__main__"],
    }

before = state()
import msprobe
after = state()
print(json.dumps([key for key in before if before[key] != after[key]]))
"""
    )
    assert changed == []


@pytest.mark.parametrize("code", ["import msprobe", "from msprobe.cli import main; main()"])
def test_import_and_help_load_no_large_library(code: str) -> None:
    loaded = run_python(
        f"""
import json, sys
sys.argv = ["msprobe", "--help"]
try:
    {code}
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps([name for name in sys.modules if "." not in name]))
"""
    )
    assert {"numpy", "polars", "dask", *FRAMEWORKS}.isdisjoint(loaded)
