# SPDX-License-Identifier: Apache-2.0
"""Seeing the functional collectives, with which tensor parallelism communicates.

They return a tensor at once, and its elements arrive later; the first operation that needs them
waits. The result is read when that wait, the program's own, is over. The coalesced variants, of
which only traced programs make use, are not seen.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.operators.lookup import FUNCTIONAL
from msprobe.pytorch.distributed.process_groups import Collective, CollectiveObserver
from msprobe.pytorch.interception.code_swap import divert
from msprobe.pytorch.values.readable import PLAIN

_FUNCTIONS: Final = (
    "all_reduce",
    "broadcast",
    "all_gather_single",
    "reduce_scatter_single",
    "all_to_all_single",
    "permute_tensor",
    # Names of older versions; where both exist, the old ones only call the new ones.
    "all_gather_tensor",
    "reduce_scatter_tensor",
)


class _Storage:
    """The memory of a result, held by a weak reference that keeps its address taken."""

    __slots__ = ("_handle", "address")

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._handle = storage._weak_ref()
        self.address: int = storage._cdata

    def is_dead(self) -> bool:
        return bool(torch.UntypedStorage._expired(self._handle))

    def __del__(self, free: Callable[[Any], None] = torch.UntypedStorage._free_weak_ref) -> None:
        free(self._handle)


class _InFlight:
    """A result that has not been waited for yet.

    The program may keep nothing but a view of it, so its shape is remembered, not the tensor.
    """

    __slots__ = ("geometry", "storage", "token")

    def __init__(self, token: object, elements: Tensor) -> None:
        self.token = token
        self.storage = _Storage(elements)
        self.geometry = (elements.shape, elements.stride(), elements.storage_offset())

    def elements(self, waited: Tensor) -> Tensor:
        """Return the whole result, from any tensor on its storage."""
        return waited.detach().as_strided(*self.geometry)


def hook_functional_collectives(observer: CollectiveObserver) -> Callable[[], None]:
    """Report functional collectives to `observer` until the returned undo is called.

    Like `hook_collectives`. The undo reports results in flight as not complete.
    """
    return _Hooks(observer).install()


class _Thread(threading.local):
    """Whether a reported call is running in this thread."""

    def __init__(self) -> None:
        self.inside = False


class _Hooks:
    """The diversions of one capture."""

    def __init__(self, observer: CollectiveObserver) -> None:
        from torch.distributed import _functional_collectives

        self._room: Any = _functional_collectives
        self._observer = observer
        self._thread = _Thread()
        self._in_flight: dict[int, _InFlight] = {}

    def install(self) -> Callable[[], None]:
        undo = ExitStack()
        undo.callback(self._settle)
        for name in _FUNCTIONS:
            function = getattr(self._room, name, None)
            if function is not None:
                collective = Collective(f"{FUNCTIONAL}{name}", returns=True)
                undo.callback(divert(function, functools.partial(self.run, collective)))
        undo.callback(divert(self._room.wait_tensor, self._wait))
        return undo.close

    def run(
        self,
        collective: Collective,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one call and report it, unless it is part of another."""
        if self._thread.inside:
            return original(*args, **kwargs)
        self._end_lost()
        token = self._observer.begin(collective, args, kwargs)
        self._thread.inside = True
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if token is not None:
                self._observer.end(token, None, completed=False, error=error)
            raise
        finally:
            self._thread.inside = False
        if token is not None:
            self._expect(token, result)
        return result

    def _expect(self, token: object, result: Any) -> None:
        if isinstance(result, self._room.AsyncCollectiveTensor):
            if not result.completed:
                entry = _InFlight(token, result.elem)
                self._in_flight[entry.storage.address] = entry
                return
            result = result.elem
        self._observer.end(token, result, completed=True)

    def _wait(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = original(*args, **kwargs)
        if self._in_flight and type(result) in PLAIN:
            with torch._C.DisableTorchFunction():
                entry = self._in_flight.pop(result.untyped_storage()._cdata, None)
            if entry is not None:
                elements = functools.partial(entry.elements, result)
                self._observer.end(entry.token, elements, completed=True)
        return result

    def _end_lost(self) -> None:
        for address, entry in list(self._in_flight.items()):
            if entry.storage.is_dead():
                del self._in_flight[address]
                self._observer.end(entry.token, None, completed=False)

    def _settle(self) -> None:
        while self._in_flight:
            _, entry = self._in_flight.popitem()
            self._observer.end(entry.token, None, completed=False)
