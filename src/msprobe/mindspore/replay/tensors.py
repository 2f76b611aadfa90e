# SPDX-License-Identifier: Apache-2.0
"""Tensors of MindSpore, of stored elements and back, and its types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

import mindspore
from mindspore import Tensor
from msprobe.dump.formats.dtypes import FLOATS, item_size, normal_dtype
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.value_types import Maker
from msprobe.replay.generated import narrow


def type_named(name: str) -> Any:
    """Return MindSpore's type of a name such as ``float32``, ``Float32`` or ``bool``.

    Raises:
        AttributeError: it has none.
    """
    plain = normal_dtype(name)
    return mindspore.bool_ if plain == "bool" else getattr(mindspore, plain)


MAKERS: Final[Mapping[str, Maker]] = {"mindspore.dtype": lambda tree: type_named(tree["value"])}
"""For `Rebuilder`: how values of MindSpore's are made of their JSON forms."""


def to_mindspore(stored: StoredTensor) -> Tensor:
    """Return a stored tensor as one of MindSpore's."""
    # `ascontiguousarray` would give scalars a dimension.
    values = np.array(stored.values(), order="C")
    return Tensor(values, type_named(stored.dtype))


def from_mindspore(tensor: Tensor) -> StoredTensor:
    """Return the elements of a tensor; waits for the computation of its values."""
    dtype = normal_dtype(str(tensor.dtype))
    array = tensor.asnumpy()
    if dtype in FLOATS and item_size(dtype) < 4 and dtype != "float16":
        array = narrow(array.astype(np.float32), dtype)
    return StoredTensor(array=np.asarray(array), dtype=dtype)
