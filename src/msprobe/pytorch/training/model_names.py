# SPDX-License-Identifier: Apache-2.0
"""The models of a run, and what the names of their modules and parameters begin with."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

from torch import nn

Prefixed = tuple[str, nn.Module]
"""A model, and what the names in it begin with: nothing, or ``1.``."""


def numbered(models: Sequence[nn.Module]) -> list[Prefixed]:
    """Return models with their prefixes: several have their index in front."""
    return [(f"{index}." if len(models) > 1 else "", model) for index, model in enumerate(models)]


class NamedModels:
    """Models with their prefixes, which are not kept alive. Iterate over those that are."""

    __slots__ = ("_references",)

    def __init__(self, models: Sequence[Prefixed] = ()) -> None:
        """Remember the models."""
        self._references = [(prefix, weakref.ref(model)) for prefix, model in models]

    def __iter__(self) -> Iterator[Prefixed]:
        """Yield each model that is alive, with its prefix."""
        for prefix, reference in self._references:
            model = reference()
            if model is not None:
                yield prefix, model
