# SPDX-License-Identifier: Apache-2.0
"""Runs only where MindSpore is installed: `make test-mindspore`, in an environment of its own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from msprobe.capture.session import reset_session

_FOUND = find_spec("mindspore")
if _FOUND is None or _FOUND.origin is None:  # this very folder may be taken for a package
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="module")
def warm_workers() -> None:
    """Start processes that replay calls anew: one that is forked may hang in MindSpore."""


@pytest.fixture(autouse=True)
def fresh_session() -> Iterator[None]:
    """End what the test began, so that the next one has a debugger and a mode of its own."""
    import mindspore

    yield
    reset_session()
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
