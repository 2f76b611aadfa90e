# SPDX-License-Identifier: Apache-2.0
"""MindSpore layers that compute in several calls what is one function in PyTorch.

``nn.Dense`` calls Reshape, MatMul, BiasAdd and Reshape; ``nn.Linear`` calls ``linear``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FLOW: Final = "flow"
"""The argument that is the result of the step before, or the operator's first argument."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a layer.

    Attributes:
        api: the function, or the class of the primitive.
        arguments: its arguments, in order: `FLOW`, an argument of the operator by PyTorch's name,
            or nothing of interest. Empty for a call beside the others, such as of a constant.
        is_optional: whether some layers do without it.
        attributes: attributes of a primitive that are arguments of the operator, and their names
            in PyTorch. Of several for one argument the first counts that is not in `DEFERRING`.
    """

    api: str
    arguments: tuple[str, ...] = (FLOW,)
    is_optional: bool = False
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Decomposition:
    """An operator as a sequence of calls.

    Attributes:
        operator: PyTorch's name of the whole.
        head: the step that gives the whole its name in MindSpore.
        steps: the calls, in order.
    """

    operator: str
    head: str
    steps: tuple[Step, ...]


DEFERRING: Final = frozenset(("pad",))
"""Values of attributes that leave it to another attribute."""

CASTS: Final = frozenset(("astype", "cast", "to", "Cast"))
"""Layers call one for each parameter, also where it has the type already."""

_RESHAPE: Final = Step("Reshape", is_optional=True)
_BIAS: Final = Step("BiasAdd", (FLOW, "bias"), is_optional=True)
_WEIGHT: Final = (FLOW, "weight")
_CAST: Final = Step("Cast", is_optional=True)
_AFFINE: Final = ("weight", "bias")
_EPS: Final = (("epsilon", "eps"),)
_WINDOW: Final = (
    ("stride", "stride"),
    ("pad_mode", "padding"),
    ("pad", "padding"),
    ("dilation", "dilation"),
    ("group", "groups"),
)
_LAYER_NORM: Final = Step("LayerNorm", (FLOW, *_AFFINE), attributes=_EPS)

DECOMPOSITIONS: Final = (
    Decomposition("linear", "MatMul", (_RESHAPE, Step("MatMul", _WEIGHT), _BIAS, _RESHAPE)),
    Decomposition(
        "conv1d",
        "Conv2D",
        (Step("ExpandDims"), Step("Conv2D", _WEIGHT), _BIAS, Step("Squeeze")),
    ),
    Decomposition("conv2d", "Conv2D", (Step("Conv2D", _WEIGHT, attributes=_WINDOW), _BIAS)),
    Decomposition("conv3d", "Conv3D", (Step("Conv3D", _WEIGHT, attributes=_WINDOW), _BIAS)),
    Decomposition("conv_transpose2d", "Conv2DTranspose", (Step("Conv2DTranspose", _WEIGHT), _BIAS)),
    Decomposition("layer_norm", "LayerNorm", (_LAYER_NORM,)),
    Decomposition(
        "batch_norm",
        "BatchNorm",
        (
            _RESHAPE,
            Step(
                "BatchNorm",
                (FLOW, *_AFFINE, "running_mean", "running_var"),
                attributes=(("is_training", "training"), ("momentum", "momentum"), *_EPS),
            ),
            _RESHAPE,
        ),
    ),
    Decomposition("embedding", "Gather", (_RESHAPE, Step("Gather", ("weight", FLOW)), _RESHAPE)),
    # The mean is weighted with a constant 1 that is made on the way.
    Decomposition(
        "mse_loss",
        "__sub__",
        (
            Step("__sub__", (FLOW, "target")),
            Step("square"),
            _CAST,
            Step("Cast", (), is_optional=True),
            Step("Mul", ("", FLOW)),
            Step("sequence_len", (), is_optional=True),
            Step("make_range", (), is_optional=True),
            Step("ReduceMean"),
            _CAST,
        ),
    ),
)
