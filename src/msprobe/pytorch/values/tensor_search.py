# SPDX-License-Identifier: Apache-2.0
"""Find the torch tensors in arguments and results."""

from __future__ import annotations

from functools import partial
from typing import Final

from torch import Tensor

from msprobe.capture import tensor_search

tensors_in: Final = partial(tensor_search.tensors_in, Tensor)
"""``tensors_in(args, kwargs, found)``: see `msprobe.capture.tensor_search`."""

output_slots: Final = partial(tensor_search.output_slots, Tensor)
"""``output_slots(result)``: see `msprobe.capture.tensor_search`."""
