# SPDX-License-Identifier: Apache-2.0
"""What all tests share: golden files and how to refresh them, and how examples are drawn."""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from builders.warm_python import WarmWorker

# The same examples in every run: whether a change passes must not be a matter of luck. The
# other profile, an option of pytest, looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("same")

# Each recording notes the commit and the changes of the code beside it, and starts git for it. Here
# git finds no repository, except in tests that use the fixture `git_repositories`.
os.environ["GIT_DIR"] = os.devnull

# Hundreds of programs are started: what Python compiles for one serves the next, wherever the tests
# run. The models are tiny, and a second thread of each would only wait for work, which costs time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["OMP_NUM_THREADS"] = "1"

_FEW_TESTS = 20
_ALL_SLOW = re.compile(r"^pytestmark = .*mark\.slow", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite", action="store_true", help="write golden files anew instead of comparing"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module whose tests are all deselected: some import trainers, or build models.

    The expressions are those of ``make test`` and ``make test-slow``.
    """
    wanted = config.option.markexpr
    if wanted not in ("slow", "not slow") or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_left_out = "mark.slow" not in text if wanted == "slow" else _ALL_SLOW.search(text)
    return True if is_left_out else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take the many objects of imported modules and collected tests out of the collector's sight.

    They live until the end, and it would look at them again and again, as recordings do which look
    for data loaders and arguments. The first optimizer of a process imports PyTorch's compiler.
    """
    if len(session.items) > _FEW_TESTS and "torch" in sys.modules:
        importlib.import_module("torch._dynamo")
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def without_earlier_objects() -> None:
    """Hide what earlier modules made: settings are found among all objects of the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def warm_workers() -> Iterator[None]:
    """Let processes that replay calls find the framework imported, which takes 3 s of a core."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("msprobe.replay.workers.Popen", WarmWorker)
        yield


@pytest.fixture
def git_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git find repositories."""
    monkeypatch.delenv("GIT_DIR")


@pytest.fixture
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file in the folder ``golden`` beside the test."""

    def check(name: str, text: str) -> None:
        path = Path(str(request.path)).parent / "golden" / name
        if request.config.getoption("--overwrite"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}; make it with pytest --overwrite"
        assert text == path.read_text(encoding="utf-8")

    return check
