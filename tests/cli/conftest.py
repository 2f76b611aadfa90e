# SPDX-License-Identifier: Apache-2.0
"""Commands under test print for a terminal of one known width, wherever the tests run."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
