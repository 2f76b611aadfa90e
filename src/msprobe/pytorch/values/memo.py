# SPDX-License-Identifier: Apache-2.0
"""The memo of values: the summary of a tensor while it is provably unchanged and alive.

It is part of the C extension that describes plain tensors; the rules by which a value is
known are there (``_tensors.c``). Without the extension nothing is remembered: every value is
summarised each time, and saved under each of its names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec
import torch
from torch import Tensor
from torch.nn import Parameter

from msprobe.capture.statistics import NATIVE, NATIVE_VARIABLE, Summary, from_raw, raw_of
from msprobe.capture.values import Found, Position

_MODULE: Final = "msprobe.pytorch.values._tensors"


class Value(Protocol):
    """The summary and the records of one value.

    Attributes:
        id: small integer, the same wherever this value appears in the step; 0 when unknown.
        md5: its CRC-32, once that was set.
        file: name of the tensor file that holds it, once that was set.
    """

    id: int
    md5: str | None
    file: str | None

    @property
    def summary(self) -> Summary:
        """The statistics."""


class Memo(Protocol):
    """Values by their place in memory, for the time that writes are observed.

    Attributes:
        active: whether they are; nothing is remembered otherwise.
        share: of the largest number of a type, from which `check` says that a value is near it; 0
            for none.
        bad: how many values with a NaN or +Inf were described.
        summarise: of plain tensors on other devices than the CPU, whose numbers may come later;
            None to leave these tensors to the caller.
    """

    active: bool
    share: float
    bad: int
    summarise: Callable[[Tensor], Summary] | None

    def check(self, tensor: Tensor) -> int:
        """Return the `State` of a plain tensor on the CPU, -1 of any other."""

    def check_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, found: Found, parameters: bool
    ) -> int:
        """Return the worst `State` of the arguments; each tensor is appended to `found`.

        -1, with nothing appended, where an argument is no plain tensor, number, text or None.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            found: gets each tensor with its position.
            parameters: whether parameters are read.
        """

    def check_gradients(self, arrived: Sequence[tuple[Tensor, str, Position]]) -> int:
        """Return the worst states: of the side ``input`` in two bits, of the other in the next two.

        -1 where one of the gradients is no plain tensor.
        """

    def look(self, tensor: Tensor) -> Value | None:
        """Return the `Value` of a plain tensor, made if need be, else None."""

    def describe(self, tensor: Tensor, requires_grad: bool | None) -> msgspec.Raw | None:
        """Return the JSON of a plain tensor on the CPU without file and checksum, else None.

        Args:
            tensor: any tensor.
            requires_grad: the value for the record; None to ask the tensor.
        """

    def born(self, tensor: Tensor) -> None:
        """Note that an observed call made a tensor, unless its storage is known already."""

    def came_in(self, tensor: Tensor) -> None:
        """Note that an observed call received a tensor: its storage was made elsewhere, if new."""

    def all_born(self, values: Sequence[tuple[Tensor, *tuple[Any, ...]]]) -> None:
        """Note the birth of the first of each tuple."""

    def all_came_in(self, found: Found) -> None:
        """Note that an observed call received each of the tensors."""

    def describe_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, found: Found
    ) -> tuple[msgspec.Raw, msgspec.Raw] | None:
        """Return the JSON list and object of plain tensors, numbers, texts and None.

        Each tensor is noted as `came_in`, and appended to `found` with its place. None, with
        nothing appended, where one of the values is something else, or on another device.
        """

    def describe_gradients(
        self, arrived: Sequence[tuple[Tensor, str, Position]], outputs: int, arguments: int
    ) -> msgspec.Raw | None:
        """Return the JSON of a backward record, see `Adapter.record_gradients`.

        None where one of the gradients is no plain tensor on the CPU.
        """

    def wrote(self, tensor: Tensor) -> None:
        """Note that a call may have written to a tensor."""

    def ban(self, tensor: Tensor) -> None:
        """Note that a tensor's storage may from now on change unseen."""

    def clear(self) -> None:
        """Forget everything."""

    def next_step(self) -> None:
        """Forget everything and number values anew."""


class FoundOut(msgspec.Struct, gc=False, eq=False):
    """A `Value` outside the memo: of other devices, layouts and classes."""

    summary: Summary
    id: int = 0
    md5: str | None = None
    file: str | None = None


class NoMemo:
    """The memo without the C extension: it knows nothing."""

    active = False
    share = 0.0
    bad = 0
    summarise: Callable[[Tensor], Summary] | None = None

    def check(self, tensor: Tensor) -> int:
        """Return -1."""
        return -1

    def check_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, found: Found, parameters: bool
    ) -> int:
        """Return -1."""
        return -1

    def check_gradients(self, arrived: Sequence[tuple[Tensor, str, Position]]) -> int:
        """Return -1."""
        return -1

    def look(self, tensor: Tensor) -> None:
        """Return None."""

    def describe(self, tensor: Tensor, requires_grad: bool | None) -> None:
        """Return None."""

    def born(self, tensor: Tensor) -> None:
        """Do nothing."""

    came_in = wrote = ban = born

    def all_born(self, values: Sequence[tuple[Tensor, *tuple[Any, ...]]]) -> None:
        """Do nothing."""

    def all_came_in(self, found: Found) -> None:
        """Do nothing."""

    def describe_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, found: Found
    ) -> None:
        """Return None."""

    def describe_gradients(
        self, arrived: Sequence[tuple[Tensor, str, Position]], outputs: int, arguments: int
    ) -> None:
        """Return None."""

    def clear(self) -> None:
        """Do nothing."""

    next_step = clear


def _load() -> Any:
    """Return the extension, ready for use; None when it was not built or is switched off."""
    if NATIVE is None or os.environ.get(NATIVE_VARIABLE) == "0":
        return None
    try:
        module = import_module(_MODULE)
    except ImportError:
        return None
    storage: Any = torch.UntypedStorage
    kinds = {
        dtype: kind
        for name, kind in NATIVE.kinds.items()
        if isinstance(dtype := getattr(torch, name, None), torch.dtype)
    }
    module.setup(
        Tensor,
        Parameter,
        torch.strided,
        getattr(torch._C, "_is_cow_tensor", None),
        storage._expired,
        storage._free_weak_ref,
        msgspec.json.Encoder().encode,
        msgspec.Raw,
        from_raw,
        raw_of,
        kinds,
        getattr(Tensor, "__dlpack_c_exchange_api__", None),
    )
    return module


TENSORS: Final = _load()
"""The C extension; None without it."""


def new_memo() -> Memo:
    """Return an empty memo that is not active."""
    memo: Memo = NoMemo() if TENSORS is None else TENSORS.Memo()
    return memo
