# SPDX-License-Identifier: Apache-2.0
"""The prefixes that the names of built-in APIs begin with, as in ``Functional.linear.0.forward``."""

from __future__ import annotations

from typing import Final

API_PREFIXES: Final = (
    "Aten",
    "Autograd",
    "Distributed",
    "Functional",
    "Jit",
    "MindSpeed",
    "Mint",
    "MintDistributed",
    "MintFunctional",
    "NPU",
    "Primitive",
    "Tensor",
    "Torch",
    "VF",
)
