# SPDX-License-Identifier: Apache-2.0
"""Seeing collectives and point-to-point calls of `torch.distributed`.

These functions do not reach a function mode on every version of torch, and their results are often
complete only later. `hook_collectives` diverts them while capturing and reports each call twice:
when it begins, and when its buffers may be read. Not seen: collectives that C++ starts by itself
(DDP's reducer) and the functional collectives of tensor parallelism, whose results are complete
only when they are first used.
"""

from __future__ import annotations

import inspect
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch

from msprobe.operators.lookup import operator_of, operators
from msprobe.operators.operator import Communication, Flow
from msprobe.pytorch.distributed.pending_work import PendingWorks
from msprobe.pytorch.interception.code_swap import divert

logger = logging.getLogger(__name__)

PREFIX: Final = "Distributed"
"""With which the names of records of collectives begin."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One function of `torch.distributed`.

    Attributes:
        api: its name; records are named ``Distributed.{api}``.
        returns: whether it returns its result instead of writing to its arguments.
    """

    api: str
    returns: bool = False

    @property
    def communication(self) -> Communication:
        """The roles of its buffers: input or output only."""
        return operator_of(PREFIX, self.api).communication or Communication(flow=Flow.BETWEEN_ALL)


COLLECTIVES: Final = tuple(
    Collective(api)
    for operator in operators()
    if operator.communication is not None and operator.communication.moves_tensors
    for api in (operator.name.removeprefix(f"{PREFIX}."), *operator.aliases)
    if hasattr(torch.distributed, api)
)
"""Functions of this version of torch that are watched."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A process group, in words that are equal in all its processes.

    Attributes:
        ranks: global ranks of its members; empty where this process is no member.
        group_id: eight hexadecimal digits, the CRC-32 of the text of the list of ranks.
    """

    ranks: tuple[int, ...]
    group_id: str


def describe_group(group: object = None) -> GroupDescription:
    """Return the description of a process group; of the default group for None."""
    import torch.distributed as dist

    ranks: list[int] = []
    if isinstance(group, dist.ProcessGroup) or (group is None and dist.is_initialized()):
        ranks = dist.get_process_group_ranks(group)
    return GroupDescription(tuple(ranks), f"{zlib.crc32(str(ranks).encode()):08x}")


class CollectiveObserver(Protocol):
    """Receiver of collectives. Called in the thread that calls or waits, with modes as the user
    has them; an exception is logged once and otherwise ignored.
    """

    def begin(
        self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object | None:
        """Note that a collective is about to run; its input buffers may be read.

        Returns: a token for `end`, or None when this call is of no interest.
        """

    def end(
        self,
        token: Any,
        result: object,
        *,
        completed: bool,
        error: BaseException | None = None,
    ) -> None:
        """Note that a collective is over. Called once for each token.

        Args:
            token: the result of `begin`.
            result: the function's result, or a function that returns it, to be called once
                and quietly (functional collectives); None for asynchronous calls.
            completed: whether the buffers hold the result. False when the call raised, or when the
                user's program never asked whether an asynchronous one is done: do not read them.
            error: the exception that the call raised.
        """


def hook_collectives(observer: CollectiveObserver) -> Callable[[], None]:
    """Report collectives to `observer` until the returned undo is called.

    The functions stay the same objects (see `code_swap`); a call inside another one is not
    reported again. The undo ends calls that are still running; calling it twice is harmless.
    """
    if not torch.distributed.is_available():
        return _do_nothing
    return _Hooks(observer).install()


def _do_nothing() -> None:
    """Undo nothing."""


class _Thread(threading.local):
    """State of one thread.

    Attributes:
        inside: a reported call is running.
        coalescing: open coalescing managers, innermost last: their group and the tokens of calls
            that torch has only queued.
    """

    def __init__(self) -> None:
        self.inside = False
        self.coalescing: list[tuple[object, list[Any]]] = []


class _Hooks:
    """The diversions of one capture."""

    def __init__(self, observer: CollectiveObserver) -> None:
        from torch.distributed import distributed_c10d

        self._c10d = distributed_c10d
        self._observer = observer
        self._thread = _Thread()
        self._has_failed = False
        self._pending = PendingWorks(
            distributed_c10d.Work, lambda token, completed: self._end(token, None, completed)
        )

    def install(self) -> Callable[[], None]:
        undo = ExitStack()
        undo.callback(self._pending.watch())
        for collective in COLLECTIVES:
            self._divert(undo, collective.api, partial(self.run, collective))
        self._divert(undo, "_coalescing_manager", self._coalesce)
        return undo.close

    def _divert(self, undo: ExitStack, name: str, handler: Callable[..., Any]) -> None:
        function = getattr(self._c10d, name, None)
        if function is None:  # not in this version of torch
            return
        try:
            undo.callback(divert(function, handler))
        except TypeError:
            logger.warning("torch.distributed.%s cannot be observed: %r", name, function)

    def run(
        self,
        collective: Collective,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one collective and report it, unless it is part of another."""
        thread = self._thread
        if thread.inside:
            return original(*args, **kwargs)
        thread.inside = True
        token = None
        try:
            token = self._guarded(self._observer.begin, collective, args, kwargs)
            result = original(*args, **kwargs)
        except BaseException as error:
            self._end(token, None, completed=False, error=error)
            raise
        finally:
            thread.inside = False
        if token is not None:
            self._finish_later_or_now(token, result, self._queue_of(original, args, kwargs))
        return result

    def _finish_later_or_now(self, token: Any, result: Any, queue: list[Any] | None) -> None:
        works = self._works_in(result)
        if queue is not None:
            queue.append(token)
        elif works:
            self._guarded(self._pending.add, [token], works)
        else:
            self._end(token, result, completed=True)

    def _works_in(self, result: object) -> Sequence[Any]:
        values = result if isinstance(result, list) else [result]
        return [value for value in values if isinstance(value, self._c10d.Work)]

    def _queue_of(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any] | None:
        """Return the queue of the coalescing manager that holds this call back, if one does."""
        if not self._thread.coalescing:
            return None
        try:
            group = inspect.signature(original).bind(*args, **kwargs).arguments.get("group")
            group = group or self._c10d._get_default_group()
        except (TypeError, ValueError):
            return None
        queues = (queue for owner, queue in self._thread.coalescing if owner is group)
        return next(queues, None)

    def _coalesce(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[Any]:
        """Replace the generator function under ``_coalescing_manager``.

        Calls inside are only queued; they run when the context is left.
        """
        if self._thread.inside:
            yield from original(*args, **kwargs)
            return
        bound = inspect.signature(original).bind(*args, **kwargs).arguments
        queue: list[Any] = []
        entry = (bound.get("group") or self._c10d._get_default_group(), queue)
        works: Sequence[Any] = ()
        completed = False
        self._thread.coalescing.append(entry)
        try:
            with contextmanager(original)(*args, **kwargs) as manager:
                yield manager
            works = self._works_in(manager.works)
            completed = True
        finally:
            self._thread.coalescing.remove(entry)
            if works and queue:
                self._guarded(self._pending.add, queue, works)
            else:
                for token in queue:
                    self._end(token, None, completed)

    def _end(
        self, token: Any, result: object, completed: bool, error: BaseException | None = None
    ) -> None:
        if token is not None:
            self._guarded(self._observer.end, token, result, completed=completed, error=error)

    def _guarded(self, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return action(*args, **kwargs)
        except Exception:  # the user's training must survive us
            if not self._has_failed:
                self._has_failed = True
                logger.warning("a collective could not be recorded", exc_info=True)
            return None
