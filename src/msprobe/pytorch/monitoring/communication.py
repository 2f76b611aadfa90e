# SPDX-License-Identifier: Apache-2.0
"""Measure the tensors of collectives: an observer of the calls that capture sees, too."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from msprobe.capture.session import Session
from msprobe.monitor.collecting.communication import Transfers
from msprobe.monitor.settings import CommunicationKeys
from msprobe.pytorch.distributed.collectives import opened, without
from msprobe.pytorch.distributed.process_groups import COLLECTIVES, Collective
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.tensor_search import tensors_in


class _Token(NamedTuple):
    collective: Collective
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call: int


class Communication(Transfers):
    """Measures what collectives send and receive (a `CollectiveObserver`)."""

    def __init__(self, session: Session, keys: CommunicationKeys) -> None:
        """Create it.

        Args:
            session: learns of exceptions.
            keys: which calls, and whether their inputs are measured.
        """
        super().__init__(keys, tensors_in, _checksum, [one.api for one in COLLECTIVES])
        self._session = session

    def begin(
        self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object | None:
        """Measure the inputs if they are wanted; None when the call is of no interest."""
        if not self.is_collecting or is_tracing():
            return None
        return quietly(self._session, "collective", self._begin, collective, args, kwargs)

    def end(
        self,
        token: Any,
        result: object,
        *,
        completed: bool,
        error: BaseException | None = None,
    ) -> None:
        """Measure the buffers if they hold the result."""
        if completed and error is None:
            quietly(self._session, "collective", self._end, token, result)

    # -- inside ----------------------------------------------------------------------------------

    def _begin(
        self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Token | None:
        number = self.number(collective.api)
        if number is None:
            return None
        if self.wants_inputs:
            sent = opened(*without(collective.communication.fills, args, kwargs), hides="irecv")
            self.put(collective.api, number, "pre", *sent)
        return _Token(collective, args, kwargs, number)

    def _end(self, token: _Token, result: object) -> None:
        collective = token.collective
        if collective.returns:
            found: Any = (result() if callable(result) else result,), {}
        else:
            filled = without(collective.communication.sends, token.args, token.kwargs)
            found = opened(*filled, hides="isend")
        self.put(collective.api, token.call, "post", *found)


def _checksum(tensor: Tensor) -> str | None:
    return crc32_hex(tensor) if tensor.is_cpu else None


def may_communicate() -> bool:
    """Return whether this process belongs to a process group."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()
