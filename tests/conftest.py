# SPDX-License-Identifier: Apache-2.0
"""What all tests share: golden files and how to refresh them, and how examples are drawn."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run: whether a change passes must not be a matter of luck. The
# other profile, an option of pytest, looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite", action="store_true", help="write golden files anew instead of comparing"
    )


def pytest_collection_finish() -> None:
    """Take the many objects of imported modules and collected tests out of the collector's sight.

    They live until the end, and it would look at them again and again.
    """
    gc.freeze()


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
