# SPDX-License-Identifier: Apache-2.0
"""Records of collectives and point-to-point calls: ``Distributed.{api}.{n}.forward``.

The inputs are described when the call begins, the buffers when they are known to be complete. A
buffer that the call only fills is null in the inputs, one that it only sends is null in the output.
Buffers are never waited for: where the program itself does not wait, the record says so.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import torch

from msprobe.capture.call import Call
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.capture.stacks import calling_frame
from msprobe.capture.values import Described, Found
from msprobe.operators.lookup import FUNCTIONAL
from msprobe.operators.operator import Argument
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.distributed.process_groups import PREFIX, Collective, describe_group
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.adapter import TorchAdapter
from msprobe.pytorch.values.tensor_search import tensors_in

NEVER_COMPLETE: Final = "not known to be complete: the program did not wait for it"
_P2P_OPERATION: Final = "torch.distributed.P2POp"
_OTHER_THREAD: Final = "not read: another thread waited for it"
_graph_task: Final = torch._C._current_graph_task_id


class Token:
    """A collective between its begin and its end.

    Attributes:
        call: the call; its record is written at the end.
        collective: which function it is.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    __slots__ = ("args", "call", "collective", "kwargs")

    def __init__(
        self, call: Call, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Create it when the call begins."""
        self.call = call
        self.collective = collective
        self.args = args
        self.kwargs = kwargs


class CollectiveRecorder:
    """Turns collectives into records of the session (a `CollectiveObserver`)."""

    def __init__(
        self,
        session: Session,
        adapter: TorchAdapter,
        table: ApiTable,
        recomputations: Recomputations,
    ) -> None:
        """Create it.

        Args:
            session: receives the calls.
            adapter: learns which storages change unseen.
            table: the APIs to record.
            recomputations: recognises repeated calls of checkpointed code.
        """
        self._session = session
        self._adapter = adapter
        self._table = table
        self._recomputations = recomputations
        # Calls that ended in threads that do not record; written by the one that does.
        self._elsewhere: list[Token] = []

    # -- the observer's side -------------------------------------------------------------------

    def begin(
        self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Token | None:
        """Describe the inputs; None when the call is not recorded."""
        session = self._session
        if not session.observing or is_tracing():
            return None
        if not self._is_own_thread():
            session.account.skipped["collectives in other threads"] += 1
            return None
        return quietly(session, "collective begin", self._begin, collective, args, kwargs)

    def end(
        self,
        token: Token,
        result: object,
        *,
        completed: bool,
        error: BaseException | None = None,
    ) -> None:
        """Describe the buffers, if they are complete, and hand the record on."""
        session = self._session
        if not self._is_own_thread():
            self._elsewhere.append(token)
            return
        quietly(session, "collective end", self._end, token, result, completed, error)

    def write_left_over(self) -> None:
        """Write the records of calls that ended in other threads."""
        while self._elsewhere:
            quietly(self._session, "collective end", self._incomplete, self._elsewhere.pop(0))

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self._session.thread or _graph_task() != -1

    # -- begin ---------------------------------------------------------------------------------

    def _begin(
        self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Token | None:
        session = self._session
        self.write_left_over()
        if session.muted or not self._is_wanted(collective):
            self._ban(args, kwargs)
            return None
        call = self._begin_call(f"{PREFIX}.{collective.api}")
        if call is not None:
            self._describe_inputs(call, collective, args, kwargs)
        self._ban(args, kwargs)
        return None if call is None else Token(call, collective, args, kwargs)

    def _is_wanted(self, collective: Collective) -> bool:
        if self._table.wants(PREFIX, collective.api.removeprefix(FUNCTIONAL)):
            return True
        self._session.account.skipped["not listed"] += 1
        return False

    def _begin_call(self, name: str) -> Call | None:
        frame = calling_frame()
        stack = self._session.stacks.at(frame)
        return self._recomputations.begin(name, stack, frame, is_module=False)

    def _describe_inputs(
        self,
        call: Call,
        collective: Collective,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if not call.keeps_forward:
            return
        args, kwargs = opened(*without(collective.communication.fills, args, kwargs), hides="irecv")
        self._session.calls.inputs(call, args, kwargs, [])

    def _ban(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Mark buffers as written unseen: communication writes without changing their version."""
        found: Found = []
        tensors_in(*opened(args, kwargs), found)
        for tensor, _ in found:
            self._adapter.distrust(tensor)

    # -- end -----------------------------------------------------------------------------------

    def _end(
        self, token: Token, result: object, completed: bool, error: BaseException | None
    ) -> None:
        self.write_left_over()
        session = self._session
        call = token.call
        if session.dump is None:
            return
        if error is not None:
            session.calls.raised(call, type(error).__name__)
            return
        if not completed:
            self._incomplete(token, NEVER_COMPLETE)
            return
        session.calls.outputs(call, self._buffers(token, result))
        session.calls.end(call)

    def _buffers(self, token: Token, result: object) -> object:
        collective = token.collective
        if collective.returns:
            return result() if callable(result) else result
        args, kwargs = without(collective.communication.sends, token.args, token.kwargs)
        args, kwargs = opened(args, kwargs, hides="isend")
        return (*args, *kwargs.values())

    def _incomplete(self, token: Token, reason: str = _OTHER_THREAD) -> None:
        call, calls = token.call, self._session.calls
        if self._session.dump is None:
            return
        if call.keeps_outputs:
            calls.fact(call, "output", None)
            calls.fact(call, "remarks", {"output": reason})
        calls.end(call)


def without(
    argument: Argument | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with None in the place of one of them."""
    if argument is None:
        return args, kwargs
    if argument.name in kwargs:
        return args, kwargs | {argument.name: None}
    position = argument.position
    if position < len(args):
        args = (*args[:position], None, *args[position + 1 :])
    return args, kwargs


def opened(
    args: Sequence[Any], kwargs: dict[str, Any], *, hides: str = ""
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with point-to-point operations as dicts, so that tensors are found.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        hides: operations whose tensor is left out.
    """
    return (
        tuple(_open_list(value, hides) for value in args),
        {key: _open_list(value, hides) for key, value in kwargs.items()},
    )


def _open_list(value: Any, hides: str) -> Any:
    if type(value) is not list:
        return value
    operation = torch.distributed.P2POp
    return [_open(item, hides) if isinstance(item, operation) else item for item in value]


def _open(operation: Any, hides: str) -> dict[str, Any]:
    name = operation.op.__name__
    return {
        "class_type": Described(_P2P_OPERATION),
        "tensor": None if name == hides else operation.tensor,
        "op": Described(name),
        "peer": Described(operation.peer),
        "tag": Described(operation.tag),
        "group_id": Described(describe_group(operation.group).group_id),
    }
