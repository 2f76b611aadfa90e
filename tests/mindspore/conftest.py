# SPDX-License-Identifier: Apache-2.0
"""Runs only where MindSpore is installed, in an environment of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed")

from msprobe.capture.session import reset_session  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_session() -> Iterator[None]:
    """End what the test began, so that the next one has a debugger of its own."""
    yield
    reset_session()
