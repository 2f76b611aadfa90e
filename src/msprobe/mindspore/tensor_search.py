# SPDX-License-Identifier: Apache-2.0
"""Find the MindSpore tensors in arguments and results."""

from __future__ import annotations

from functools import partial
from typing import Final

import mindspore
from msprobe.capture import tensor_search

tensors_in: Final = partial(tensor_search.tensors_in, mindspore.Tensor)
"""``tensors_in(args, kwargs, found)``: see `msprobe.capture.tensor_search`."""

output_slots: Final = partial(tensor_search.output_slots, mindspore.Tensor)
"""``output_slots(result)``: see `msprobe.capture.tensor_search`."""
