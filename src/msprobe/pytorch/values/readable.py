# SPDX-License-Identifier: Apache-2.0
"""Find the tensor that holds the elements of a value, if its memory may be read.

Reading the wrong thing does not raise, it kills the process: FSDP2 passes tensors whose storage
was given back. Every reader of element data (statistics, checksums, saved tensors) comes here
first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from msprobe.dump.records import STORED_VALUES

PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types that hold their data themselves (unless functorch wrapped them)."""
_TRACED: Final = frozenset({"FakeTensor", "FunctionalTensor", "ProxyTensor"})
_SPARSE: Final = frozenset(
    {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
)
transforms_active: Final[Callable[[], bool]] = torch._C._are_functorch_transforms_active
"""Return whether this runs inside vmap, grad or another transform of functorch."""
IN_FLIGHT: Final = "collective in flight"
"""Note of results of collectives that the program has not waited for."""


def _address_of_storage(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


storage_address: Final[Callable[[torch.Tensor], int]] = getattr(
    torch._C, "_data_address", _address_of_storage
)
"""Return the address of the storage of a tensor. Raises RuntimeError when there is none.

Unlike ``data_ptr()``, torch's internal function leaves a lazily cloned tensor uncopied.
"""


def outside_transforms() -> AbstractContextManager[object]:
    """Return a context in which vmap and its like do not wrap what we compute."""
    return temporarily_clear_interpreter_stack() if transforms_active() else _NOTHING


_NOTHING: Final = nullcontext()


def readable(t: torch.Tensor) -> torch.Tensor | str:
    """Return the strided tensor that holds the elements of `t`, or why there is none.

    Wrappers are looked through: functorch's (vmap, grad), batched gradients, DTensor (this rank's
    shard), collectives (unless still in flight), nested and sparse tensors (their values). Nothing
    is copied, except that nested tensors of padded or permuted storage are refused rather than
    copied.

    Grad mode must be off, and torch functions of subclasses and the user's modes disabled.

    Args:
        t: any tensor.

    Returns:
        A dense or strided tensor whose storage covers it, of an ordinary or a quantised dtype; or a
        note of a few words.
    """
    try:
        return _readable(t)
    except (RuntimeError, NotImplementedError, ValueError, AttributeError) as exc:
        return f"unreadable: {type(exc).__name__}"


def _readable(t: torch.Tensor) -> torch.Tensor | str:
    if type(t) in PLAIN and _is_itself(t):
        return "released" if is_released(t) else t
    inner = _look_through(t)
    if isinstance(inner, str):
        return inner
    if inner is not t:
        return _readable(inner)
    if t.device.type == "meta":
        return "meta"
    if t.layout is not torch.strided:
        return f"layout {str(t.layout).removeprefix('torch.')}"
    if is_wrapper(t):
        return f"wrapper {type(t).__name__}"
    return "released" if is_released(t) else t


def _is_itself(t: torch.Tensor) -> bool:
    """Return whether a tensor of a plain type holds strided elements of its own."""
    return (
        t.layout is torch.strided
        and not t.is_meta
        and not t.is_nested
        and not _functorch.is_functorch_wrapped_tensor(t)
        and not _functorch.is_legacy_batchedtensor(t)
    )


def _look_through(t: torch.Tensor) -> torch.Tensor | str:
    """Return the tensor one level inside `t`, `t` itself if it is plain, or a note."""
    if _functorch.is_functorch_wrapped_tensor(t):
        return _functorch.get_unwrapped(t)
    if _functorch.is_legacy_batchedtensor(t):
        return _whole_batch(t)
    if isinstance(t, UninitializedTensorMixin):
        return "uninitialized"
    name = type(t).__name__
    if name in _TRACED:
        return "fake"
    if name == "DTensor":
        local: torch.Tensor = t._local_tensor  # type: ignore[attr-defined]
        return local
    if name == "AsyncCollectiveTensor":
        # Waiting would be a synchronisation that the program did not ask for.
        elements: torch.Tensor = t.elem  # type: ignore[attr-defined]
        return elements if t.completed else IN_FLIGHT  # type: ignore[attr-defined]
    if t.is_nested:
        return _nested_values(t)
    if t.layout in _SPARSE:
        return t._values() if t.layout is torch.sparse_coo else t.values()
    return t


def _whole_batch(t: torch.Tensor) -> torch.Tensor:
    """Return all of a gradient of which a batched backward pass (``is_grads_batched``) shows one.

    Each pass that runs inside another has its level. At one that is not there this adds a dimension
    of size 1.
    """
    level = 1
    while _functorch.is_legacy_batchedtensor(t):
        t = torch._remove_batch_dim(t, level, 1, 0)
        level += 1
    return t


def _nested_values(t: torch.Tensor) -> torch.Tensor | str:
    if t.layout is torch.jagged:
        values: torch.Tensor = t._values  # type: ignore[assignment]  # an attribute here
        return values
    return t.values() if t.is_contiguous() else "nested with gaps"


def memory_of(t: torch.Tensor) -> tuple[int, int] | None:
    """Return address and size in bytes of a plain contiguous CPU tensor, None for any other.

    The quick way for the usual case; the memory is certain to be there and to hold the value.
    """
    if type(t) not in PLAIN or not t.is_cpu or t.layout is not torch.strided:
        return None
    try:
        if not t.is_contiguous() or t.is_neg() or t.is_conj():
            return None
        size_bytes = t.numel() * t.element_size()
        start: int = t.storage_offset() * t.element_size()  # type: ignore[assignment]  # no SymInt
        address = storage_address(t)
        if not address or t.untyped_storage().nbytes() < start + size_bytes:
            return None
    except (RuntimeError, NotImplementedError):  # functorch wrapper, strided nested …
        return None
    return address + start, size_bytes


def is_row_major(t: torch.Tensor) -> bool:
    """Return whether the elements lie in memory in their order, each once."""
    if t.layout is not torch.strided or t.is_nested or t.is_contiguous():
        return True
    steps = [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]
    return 0 not in steps and steps == sorted(steps, reverse=True)


def note_of_stored_values(t: torch.Tensor) -> str | None:
    """Return the note that the statistics of a sparse tensor carry, None for others."""
    return STORED_VALUES if t.layout in _SPARSE else None


def is_wrapper(t: torch.Tensor) -> bool:
    """Return whether `t` is of a class that redefines its operators, such as torchao's."""
    kind: Any = type(t)
    if kind in PLAIN:
        return False
    return bool(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)


def is_released(t: torch.Tensor) -> bool:
    """Return whether the storage of `t` ends before its last element (reading would crash)."""
    count = t.numel()
    if count == 0:
        return False
    if not t.is_contiguous():
        count = 1 + sum(
            (size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)
        )
    storage = t.untyped_storage()
    end = (t.storage_offset() + count) * t.element_size()
    return storage.nbytes() < end or storage.data_ptr() == 0
