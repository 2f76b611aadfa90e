# SPDX-License-Identifier: Apache-2.0
"""The prefixes of built-in APIs, with which names such as ``Functional.linear.0.forward`` begin."""

from __future__ import annotations

from typing import Final

COMPILED: Final = "Jit"
"""The prefix of functions that MindSpore compiles: each is a program, not one call."""
PRIMITIVE: Final = "Primitive"
"""The prefix of MindSpore's operators that programs or cells make as objects."""
API_PREFIXES: Final = (
    "Aten",
    "Autograd",
    "Distributed",
    "Functional",
    COMPILED,
    "MindSpeed",
    "Mint",
    "MintDistributed",
    "MintFunctional",
    "NPU",
    PRIMITIVE,
    "Tensor",
    "Torch",
    "VF",
)
