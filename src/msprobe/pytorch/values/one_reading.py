# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of torch tensors: checksum, norm and projections in one reading of the memory.

Made for parameters, gradients and optimizer states, of which there are many: no record is made.
"""

from __future__ import annotations

from typing import Final

import torch

from msprobe.capture.projections import checksum
from msprobe.capture.statistics import Fingerprint
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.readable import readable
from msprobe.pytorch.values.statistics import projections_of, summarise

# NumPy knows neither bfloat16 nor float8.
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: torch.Tensor) -> Fingerprint | None:
    """Return the fingerprint of a tensor in host memory; None where it cannot be read there.

    Equal elements in the same row-major order have equal fingerprints, whatever the strides. The
    caller guarantees what `summarise` asks for. Plain tensors are read once, where they lie; others
    are copied.
    """
    if TENSORS is not None:
        found = TENSORS.fingerprint(tensor)
        if found is not None:
            return Fingerprint(*found)
    held = readable(tensor)
    if isinstance(held, str) or not held.is_cpu:
        return None
    whole = held.dequantize() if held.is_quantized else held
    whole = whole.resolve_conj().resolve_neg().contiguous()
    bits = whole.view(-1).view(_BITS.get(whole.element_size(), torch.int64)).numpy()
    return Fingerprint(checksum(bits), summarise(whole).norm, projections_of(whole))
