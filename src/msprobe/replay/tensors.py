# SPDX-License-Identifier: Apache-2.0
"""`TensorSource`: elements of recorded tensors, from the dump or made from their statistics."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.formats.dtypes import FLOATS, item_size, normal_dtype
from msprobe.dump.rank_view import RankView
from msprobe.dump.stored_values import shape_of
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import DumpFormatError
from msprobe.replay.generated import generate, narrow

ROWS: Final = "rows"
"""Key of a form: by axis, the rows of the recorded tensor that are left of it."""


def _two_digits(values: NDArray[Any]) -> NDArray[Any]:
    texts = [float(f"{one:.2g}") for one in values.reshape(-1).tolist()]
    return np.asarray(texts, np.float64).reshape(values.shape)


SIMPLER: Final = "simpler"
"""Key of a form: how its elements are made simpler, a name among `SIMPLER_VALUES`."""
SIMPLER_VALUES: Final[Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "rounded": np.round,
    "two digits": _two_digits,
}
"""Functions of the elements, by name."""


class CallTensors(Protocol):
    """The tensors of one call.

    Attributes:
        generated: whether any of them was made from statistics.
    """

    generated: bool

    def read(self, tree: Mapping[str, Any], place: str) -> StoredTensor:
        """Return the elements of a tensor.

        Args:
            tree: its form.
            place: where it is in the call.
        """
        ...

    def has_values(self, tree: Mapping[str, Any]) -> bool:
        """Return whether the recorded elements of a tensor are there."""
        ...


class TensorSource:
    """Hands out the tensors of one rank.

    Attributes:
        generated: whether any tensor of the call that `begin` named was made from statistics.
    """

    def __init__(self, view: RankView, *, seed: int = 1234) -> None:
        """Read tensors of `view`; `seed` decides which elements are generated."""
        self._view = view
        self._seed = seed
        self._call = ""
        self.generated = False

    def begin(self, call: str) -> None:
        """Forget the call before: `call` is the name of the next one."""
        self._call = call
        self.generated = False

    def read(self, tree: Mapping[str, Any], place: str) -> StoredTensor:
        """Return the elements of a tensor.

        Args:
            tree: its form in the record.
            place: where it is in the call: generated elements depend on it, and on nothing before.

        Raises:
            RecordNotFoundError: its file is gone.
            DumpFormatError: its file is damaged, or its shape is none.
            UnsupportedError: a special tensor, or a type that cannot be generated.
        """
        try:
            shape_of(tree.get("shape") or [])
        except ValueError as exc:
            raise DumpFormatError(self._view.records_path, f'{place}: "shape" {exc}') from exc
        name = tree.get("data_name")
        if isinstance(name, str):
            return _simplified(_rows(in_recorded_type(self._view.tensor(name), tree), tree), tree)
        self.generated |= not _is_empty(tree)
        number = tree.get("value_id")  # of all appearances of one value in the step
        which = f"{self._call}:{place}" if number is None else str(number)
        return _simplified(generate(tree, zlib.crc32(f"{self._seed}:{which}".encode())), tree)

    def has_values(self, tree: Mapping[str, Any]) -> bool:
        """Return whether the dump has the elements of a tensor, or there are none."""
        return isinstance(tree.get("data_name"), str) or _is_empty(tree)


def _is_empty(tree: Mapping[str, Any]) -> bool:
    return 0 in (tree.get("shape") or ())


def in_recorded_type(stored: StoredTensor, tree: Mapping[str, Any]) -> StoredTensor:
    """Return a tensor in the type of its form: NumPy's files hold bfloat16 and float8 widened."""
    dtype = normal_dtype(str(tree.get("dtype", "")))
    if stored.dtype != "float32" or dtype not in FLOATS or item_size(dtype) >= 4:
        return stored
    return StoredTensor(array=narrow(stored.array, dtype), dtype=dtype)


def _rows(stored: StoredTensor, tree: Mapping[str, Any]) -> StoredTensor:
    """Return the rows that are left of a tensor."""
    array = stored.array
    for axis, rows in (tree.get(ROWS) or {}).items():
        array = np.take(array, rows, axis)
    return stored if array is stored.array else replace(stored, array=array)


def _simplified(stored: StoredTensor, tree: Mapping[str, Any]) -> StoredTensor:
    """Return floating-point elements made simpler, if the form says so."""
    simpler = SIMPLER_VALUES.get(str(tree.get(SIMPLER)))
    values = stored.values()
    if simpler is None or values.dtype.kind != "f":
        return stored
    changed = np.asarray(simpler(values), values.dtype)
    return StoredTensor(array=narrow(changed, stored.dtype), dtype=stored.dtype)
