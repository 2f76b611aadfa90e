# SPDX-License-Identifier: Apache-2.0
"""Asynchronous collectives: when may their buffers be read?

Reading a buffer while a collective is writing it gives whatever is there, and on an accelerator
would force a wait that the user did not ask for. So a buffer is read only once the user's program
itself knows that the work is done: after its own ``wait()`` or an ``is_completed()`` that said yes.
The user keeps torch's own `Work` object; its class tells us of the wait.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

_COMPLETION_METHODS: Final = ("wait", "synchronize", "block_current_stream", "is_completed")

# Called with the token of a collective and whether its result may be read.
Finish = Callable[[Any, bool], None]


class _Waiting:
    """Collectives that end when all their works are known to be done."""

    __slots__ = ("left", "tokens")

    def __init__(self, tokens: Sequence[Any], left: int) -> None:
        self.tokens = tokens
        self.left = left


class PendingWorks:
    """The pending works, and the collectives that wait for them."""

    def __init__(self, work_class: type[Any], finish: Finish) -> None:
        """Make an empty collection.

        Args:
            work_class: torch's class of works.
            finish: called once for each token that was added.
        """
        self._class = work_class
        self._finish = finish
        self._is_completed: Callable[[Any], bool] = work_class.is_completed
        self._waiting: dict[int, tuple[weakref.ref[Any], _Waiting]] = {}
        self._lost: list[_Waiting] = []

    def watch(self) -> Callable[[], None]:
        """Let `Work` report waits from now on; return the undo, which settles the others."""
        originals = {
            name: self._class.__dict__[name]
            for name in (*_COMPLETION_METHODS, "get_future")
            if name in self._class.__dict__
        }
        ours = {name: self._reporting(name) for name in originals}
        for name, method in ours.items():
            setattr(self._class, name, method)

        def undo() -> None:
            for name, method in ours.items():
                if self._class.__dict__[name] is method:
                    setattr(self._class, name, originals[name])
            self.settle()

        return undo

    def add(self, tokens: Sequence[Any], works: Sequence[Any]) -> None:
        """Finish `tokens` when all `works` are known to be done."""
        self._finish_lost()
        by_id = {id(work): work for work in works}
        waiting = _Waiting(tokens, len(by_id))
        for key, work in by_id.items():
            self._waiting[key] = (weakref.ref(work, functools.partial(self._forget, key)), waiting)

    def settle(self) -> None:
        """Finish everything: as readable where the work is done, as unreadable elsewhere."""
        for key, (work_ref, _) in list(self._waiting.items()):
            work = work_ref()
            if work is not None and self._is_over(work):
                self._done(key)
        for key in list(self._waiting):
            self._forget(key, None)
        self._finish_lost()

    def _is_over(self, work: Any) -> bool:
        try:
            return self._is_completed(work)
        except RuntimeError:  # works of other backends need not implement it
            return False

    def _reporting(self, name: str) -> Callable[..., Any]:
        original = getattr(self._class, name)
        # The value behind a future is used in callbacks that run at an unknown time.
        report = self._give_up if name == "get_future" else self._done

        @functools.wraps(original)
        def method(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            if result is not False and id(work) in self._waiting:
                report(id(work))
            return result

        return method

    def _done(self, key: int) -> None:
        _, waiting = self._waiting.pop(key)
        waiting.left -= 1
        if waiting.left == 0:
            self._finish_all(waiting, completed=True)

    def _give_up(self, key: int) -> None:
        self._forget(key, None)
        self._finish_lost()

    def _forget(self, key: int, _reference: object) -> None:
        # Also runs when a work dies without anybody having waited, at any point of the user's
        # program: only note it here.
        found = self._waiting.pop(key, None)
        if found is not None and found[1].left > 0:
            found[1].left = 0
            self._lost.append(found[1])

    def _finish_lost(self) -> None:
        while self._lost:
            self._finish_all(self._lost.pop(0), completed=False)

    def _finish_all(self, waiting: _Waiting, *, completed: bool) -> None:
        for token in waiting.tokens:
            self._finish(token, completed)
