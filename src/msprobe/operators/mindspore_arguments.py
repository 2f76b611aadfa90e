# SPDX-License-Identifier: Apache-2.0
"""Arguments of MindSpore's functions that are not PyTorch's in place, name or default."""

from __future__ import annotations

from typing import Final

# Names of the arguments of MindSpore's functions whose positions differ from PyTorch's.
MINDSPORE_ARGUMENTS: Final = {
    "gather": "input index dim",
    "tensor_scatter_elements": "input index src dim",
    "fill": "dtype size fill_value",
    "Primitive.AllGather": "input_tensor",
    "Primitive.ReduceScatter": "input",
}

# MindSpore's names of keyword arguments for which PyTorch has another one; after a dot, those of
# one operator.
MINDSPORE_KEYWORDS: Final = {
    "axis": "dim",
    "axes": "dims",
    "keep_dims": "keepdim",
    "keepdims": "keepdim",
    "epsilon": "eps",
    "leaky_relu.alpha": "negative_slope",
}

# What functions of MindSpore take where a call leaves out an argument, if PyTorch's take another
# value: operator and PyTorch's name of the argument.
MINDSPORE_DEFAULTS: Final = {"leaky_relu.negative_slope": 0.2}
