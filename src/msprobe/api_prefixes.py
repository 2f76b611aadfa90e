# SPDX-License-Identifier: Apache-2.0
"""The prefixes of built-in APIs, with which names such as ``Functional.linear.0.forward`` begin."""

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
