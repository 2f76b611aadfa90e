# SPDX-License-Identifier: Apache-2.0
"""Measure the tensors of collectives: a sink of the calls that capture's wrappers see, too.

Seen are the functions of `mint.distributed` and `communication.comm_func`, and primitives such as
`ops.AllReduce` that a user's file or a cell calls. What compiled code sends is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mindspore._c_expression import CommHandle as NativeHandle
from mindspore.communication.comm_func import CommHandle, default_handle
from mindspore.ops.operations import comm_ops

from mindspore import Tensor, nn
from msprobe.capture.call import Call
from msprobe.capture.events import CallSink
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack
from msprobe.capture.values import Found
from msprobe.dump.record_names import base_of
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.api_calls import ApiObserver
from msprobe.mindspore.api_table import DISTRIBUTED, ApiTable
from msprobe.mindspore.free_primitives import FreePrimitives
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.primitive_calls import PrimitiveObserver
from msprobe.mindspore.tensor_payload import crc32_hex
from msprobe.mindspore.tensor_search import tensors_in
from msprobe.monitor.collecting.communication import Transfers
from msprobe.monitor.settings import CommunicationKeys
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Argument

_HANDLES: Final = (CommHandle, NativeHandle)
_NOTHING: Final = frozenset({"barrier", "Barrier"})


class _Open(NamedTuple):
    api: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Communication(Transfers, CallSink):
    """Measures what collectives send and receive; an asynchronous result when it is waited for."""

    def __init__(self, session: Session, keys: CommunicationKeys) -> None:
        """Create it.

        Args:
            session: learns of exceptions.
            keys: which calls, and whether their inputs are measured.
        """
        known = {api.attribute for api in ApiTable(prefixes=DISTRIBUTED).apis()}
        kinds = {name for name, one in vars(comm_ops).items() if isinstance(one, type)}
        super().__init__(keys, tensors_in, _checksum, known | kinds)
        self._session = session
        self._open: dict[str, _Open] = {}
        self._waiting: list[tuple[Any, _Open, list[Any]]] = []

    def install(self, models: Sequence[nn.Cell], repeated: Recomputations) -> None:
        """Watch the functions and primitives; the session's undo ends it."""
        apis = ApiObserver(self._session, ApiTable(prefixes=DISTRIBUTED), repeated)
        PrimitiveObserver(self._session, apis, _communicates).install(models)
        FreePrimitives(self._session, apis, _communicates).install()
        apis.install()
        for kind in _HANDLES:
            self._watch_waits(kind)

    def _watch_waits(self, kind: Any) -> None:
        original = kind.__dict__.get("wait")
        if original is None:
            return

        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(handle, *args, **kwargs)
            quietly(self._session, "collective", self._waited, handle)
            return result

        def restore() -> None:
            if kind.__dict__.get("wait") is wait:
                kind.wait = original
            self._waiting.clear()

        kind.wait = wait
        self._session.undo.callback(restore)

    # -- events ----------------------------------------------------------------------------------

    def begin(self, call: Call, stack: Stack) -> None:
        """Note that a call begins."""
        base = base_of(call.forward_name)
        group, _, api = base.partition(".")
        if not self.is_collecting or (group not in DISTRIBUTED and group != "Primitive"):
            return
        api = api.rpartition(".")[2]
        number = None if api in _NOTHING else self.number(api)
        if number is not None:
            self._open[call.forward_name] = _Open(api, number, (), {})

    def inputs(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
    ) -> bool:
        """Measure what is sent if that is wanted."""
        opened = self._open.get(call.forward_name)
        if opened is None:
            return False
        role = operator_of(DISTRIBUTED[0], opened.api).communication
        given = tuple(args), dict(kwargs or {})
        if self.wants_inputs:
            # Functions of the other groups return their result.
            fills = role and call.forward_name.startswith(DISTRIBUTED[0]) and role.fills
            sent = _without(fills or None, *given)
            self.put(opened.api, opened.number, "pre", *sent)
        received = _without(None if role is None else role.sends, *given)
        self._open[call.forward_name] = opened._replace(args=received[0], kwargs=received[1])
        return False

    def outputs(self, call: Call, output: Any) -> None:
        """Measure the result: what is returned, or else the buffers."""
        opened = self._open.pop(call.forward_name, None)
        if opened is None:
            return
        returned: Found = []
        tensors_in((output,), {}, returned)
        result: tuple[Any, ...] = tuple(tensor for tensor, _ in returned)
        kwargs: dict[str, Any] = {}
        if not result:
            result, kwargs = opened.args, opened.kwargs
        handles = list(_handles_in(output))
        if handles:
            finished = opened._replace(args=result, kwargs=kwargs)
            self._waiting.append((handles[-1], finished, handles))
            return
        self.put(opened.api, opened.number, "post", result, kwargs)

    def raised(self, call: Call, error: str) -> None:
        """Note that a call ended with an exception."""
        self._open.pop(call.forward_name, None)

    # -- inside ----------------------------------------------------------------------------------

    def _waited(self, handle: Any) -> None:
        """Measure the results of a call, of which all handles have been waited for."""
        for place, (_, opened, handles) in enumerate(self._waiting):
            if any(one is handle for one in handles):
                handles[:] = [one for one in handles if one is not handle]
                if not handles:
                    del self._waiting[place]
                    self.put(opened.api, opened.number, "post", opened.args, opened.kwargs)
                return


def _handles_in(output: Any) -> Iterator[Any]:
    """Yield the handles of a call that runs on; the one that stands for none is no handle."""
    for one in output if isinstance(output, tuple | list) else (output,):
        if isinstance(one, _HANDLES) and one is not default_handle:
            yield one


def _communicates(primitive: Any) -> bool:
    return any(kind.__module__ == comm_ops.__name__ for kind in type(primitive).__mro__)


def _without(
    argument: Argument | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments without one of them."""
    if argument is None:
        return args, kwargs
    place = argument.position
    kept = {name: one for name, one in kwargs.items() if name != argument.name}
    return (*args[:place], *args[place + 1 :]), kept


def _checksum(tensor: Tensor) -> str | None:
    values = values_of(tensor)
    return None if values is None else crc32_hex(values)
