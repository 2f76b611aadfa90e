# SPDX-License-Identifier: Apache-2.0
"""How the monitor reads tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from torch import Tensor

from msprobe.pytorch.values.measures import Measures


class TorchReading:
    """Reads tensors many at a time; shapes and types are made texts once each."""

    def __init__(self) -> None:
        """Create it; no text is known."""
        self._known: dict[Hashable, str] = {}

    def table(self, threshold: float, *, with_bins: bool = False) -> Measures:
        """Return an empty table of measures."""
        return Measures(threshold, with_bins=with_bins)

    def shape(self, tensor: Tensor) -> str:
        """Return a shape, ``[4, 16]``; of a tensor that ranks share, that of this rank's part."""
        try:
            shape = getattr(tensor, "_local_tensor", tensor).shape
        except RuntimeError:  # nested tensors of the strided layout have none
            return "nested"
        text = self._known.get(shape)
        if text is None:
            text = self._known[shape] = str(list(shape))
        return text

    def dtype(self, tensor: Tensor) -> str:
        """Return a type, ``torch.float32``."""
        text = self._known.get(tensor.dtype)
        if text is None:
            text = self._known[tensor.dtype] = str(tensor.dtype)
        return text


READING: Final = TorchReading()
