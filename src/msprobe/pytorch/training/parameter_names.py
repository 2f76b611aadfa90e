# SPDX-License-Identifier: Apache-2.0
"""Names of the parameters of the user's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn


def parameter_names(models: Sequence[nn.Module]) -> Mapping[int, str]:
    """Return identity → name of every parameter, as ``model.named_parameters()`` has it.

    Of one that occurs twice the first name; of several models each has its index in front.
    """
    names: dict[int, str] = {}
    for index, model in enumerate(models):
        prefix = f"{index}." if len(models) > 1 else ""
        for name, parameter in model.named_parameters():
            names.setdefault(id(parameter), prefix + name)
    return names
