# SPDX-License-Identifier: Apache-2.0
"""Every test here has a debugger of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_session() -> Iterator[None]:
    pytest.importorskip("torch")
    from msprobe.capture.session import reset_session

    reset_session()
    yield
    reset_session()
