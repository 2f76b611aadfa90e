# SPDX-License-Identifier: Apache-2.0
"""Tests that need PyTorch: none is collected without it, and each uses one thread."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None:
    collect_ignore_glob = ["*"]
else:
    import torch

    # The models are tiny, and test processes that run side by side must not fight for cores.
    torch.set_num_threads(1)
