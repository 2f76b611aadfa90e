# SPDX-License-Identifier: Apache-2.0
"""Finding references as replays find them, and comparing in float64."""

from __future__ import annotations

import torch

import msprobe.pytorch.references  # noqa: F401
from msprobe.replay.references import find


def reference(name):
    """Return the reference of calls that are recorded under a name."""
    found = find([name, name.rpartition(".")[2]])
    assert found is not None, name
    return found.function


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def close(target, expected, bound=1e-12):
    torch.testing.assert_close(target, expected, rtol=bound, atol=bound)
