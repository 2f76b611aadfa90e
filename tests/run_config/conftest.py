# SPDX-License-Identifier: Apache-2.0
"""What earlier tests of the process made is no setting of these."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def without_earlier_objects() -> Iterator[None]:
    """Hide all objects that are there already: settings are found among those of the process."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
