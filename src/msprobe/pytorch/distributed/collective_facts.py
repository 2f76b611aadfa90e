# SPDX-License-Identifier: Apache-2.0
"""Note collectives and point-to-point calls where they have no records: at level L0.

Nothing of a tensor is read but its size and type.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from msprobe.capture.session import Session
from msprobe.capture.stacks import OWN_FOLDER, calling_frame
from msprobe.capture.values import Found
from msprobe.dump.facts import Communication
from msprobe.operators.lookup import FUNCTIONAL
from msprobe.pytorch.distributed.collectives import opened, without
from msprobe.pytorch.distributed.process_groups import Collective, describe_group
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.tensor_search import tensors_in

_TORCH: Final = f"{Path(torch.__file__).parent}"
_MOST_ENTRIES: Final = 2000
_PEERS: Final = ("src", "dst", "group_src", "group_dst")


class CollectiveFacts:
    """Puts each call into the facts of the step (a `CollectiveObserver`)."""

    def __init__(self, session: Session, count_passes: Callable[[], int]) -> None:
        """Create it.

        Args:
            session: takes the facts.
            count_passes: returns how many backward passes of the step have begun.
        """
        self._session = session
        self._count_passes = count_passes
        self._entries = 0

    def begin(self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call."""
        session = self._session
        if not session.facts.is_open or threading.get_ident() != session.thread or is_tracing():
            return
        quietly(session, "collective", self._take, collective, args, kwargs)

    def end(
        self,
        token: Any,
        result: object,
        *,
        completed: bool,
        error: BaseException | None = None,
    ) -> None:
        """Do nothing: no call has a token."""

    def _take(self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._entries += 1
        if self._entries > _MOST_ENTRIES:
            return
        tensors: Found = []
        tensors_in(*opened(*without(collective.communication.fills, args, kwargs)), tensors)
        if not tensors:  # it receives only
            tensors_in(*opened(args, kwargs), tensors)
        bound = _signature(collective.api).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        op = given.get("op", given.get("reduceOp"))
        self._session.facts.append(
            "communication",
            Communication(
                api=collective.api,
                ranks=list(describe_group(given.get("group")).ranks),
                op=None if op is None else str(op).rpartition(".")[2].lower(),
                peer=next((given[name] for name in _PEERS if given.get(name) is not None), None),
                elements=sum(tensor.numel() for tensor, _ in tensors),
                dtype=str(tensors[0][0].dtype) if tensors else None,
                passes=self._count_passes(),
                source=_source(),
            ),
        )


def _source() -> str:
    """Return the innermost line that is neither ours nor torch's."""
    frame = calling_frame()
    # A backward pass is entered through torch, us and torch again.
    while frame.f_code.co_filename.startswith((_TORCH, OWN_FOLDER)) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@cache
def _signature(api: str) -> inspect.Signature:
    room: Any = torch.distributed.distributed_c10d
    if api.startswith(FUNCTIONAL):
        from torch.distributed import _functional_collectives as room
    return inspect.signature(getattr(room, api.removeprefix(FUNCTIONAL)))
