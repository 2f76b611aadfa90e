# SPDX-License-Identifier: Apache-2.0
"""Judge how a step ends: whole, interrupted by an exception, or without a call of ``stop``.

An exception that the program catches is nothing unusual: a model may try a fast way first, and a
loop may skip a batch that does not fit. It interrupted the step unless the same kind of work
succeeded afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from msprobe.capture.call import Call
from msprobe.dump.facts import Ended, Ending

_MOST_TEXT: Final = 300
_MOST_AGAIN: Final = 100
_MOST_LATER: Final = 100
# They end a loop or a generator, and say nothing of an error.
_ORDINARY: Final = (StopIteration, StopAsyncIteration, GeneratorExit)


class Work(Enum):
    """A part of the training that an exception can leave."""

    CALL = "a recorded call"
    FORWARD = "a forward call of the model"
    BACKWARD = "a backward pass"


class StepEnding:
    """The end of one step, as far as it is known.

    Attributes:
        is_stopped: whether the program has called ``stop`` since the last ``start``.
        took_gradients: whether a backward pass has returned.
        begun_again: calls of the model before each ``start`` that follows no ``stop``.
    """

    __slots__ = (
        "_calls",
        "_climbing",
        "_last",
        "_left",
        "_next_order",
        "_older",
        "_pending",
        "begun_again",
        "is_stepped",
        "is_stopped",
        "took_gradients",
    )

    def __init__(self, next_order: Callable[[], int]) -> None:
        """Begin a step.

        Args:
            next_order: returns the next place in the order of the step's calls.
        """
        self._next_order = next_order
        self.is_stopped = True
        self.is_stepped = True
        self.took_gradients = False
        self.begun_again: list[int] = []
        self._calls = 0
        # Exceptions of the time before the step; only compared, so that they are not kept alive.
        self._older = {id(error) for error in (sys.exc_info()[1], _unhandled())}
        # Of the exception that leaves one call after the other: the next call that it will leave.
        self._climbing: str | None = None
        # The last exception and the call that it began in; the last one that left all calls.
        self._last: tuple[str, str | None] = ("", None)
        self._left: tuple[str, str | None] | None = None
        # Work that an exception left and that has not succeeded since, with the place in the order.
        self._pending: dict[Work, int] = {}

    def call_raised(self, call: Call, error: str, *, is_outermost: bool) -> None:
        """Note that an exception leaves a call.

        Args:
            call: the call.
            error: the class of the exception.
            is_outermost: whether no recorded call is around it.
        """
        if self._climbing != call.forward_name:
            # A call whose end no hook saw is closed later, at the end of the program perhaps.
            known = (each for each in (sys.exc_info()[1], _unhandled()) if each is not None)
            found = next((each for each in known if id(each) not in self._older), None)
            self._last = (error if found is None else _text(found), call.forward_name)
        self._climbing = call.parent
        if is_outermost:
            self._left = self._last
            self._pending[Work.CALL] = self._next_order()

    def left(self, work: Work) -> None:
        """Note that the exception that is being handled leaves a part of the training."""
        self._calls += work is Work.FORWARD
        self._note(work, sys.exc_info()[1])

    def succeeded(self, work: Work) -> None:
        """Note that a forward call of the model, or a backward pass, returned."""
        self.took_gradients |= work is Work.BACKWARD
        self._calls += work is Work.FORWARD
        if self._pending:
            self._pending.pop(work, None)
            if work is Work.BACKWARD:
                self._pending.pop(Work.FORWARD, None)

    def started(self) -> None:
        """Note a call of ``start``: an exception that is being handled now is an older one."""
        self.is_stopped = False
        self._older.add(id(sys.exc_info()[1]))

    def started_again(self) -> None:
        """Note a call of ``start`` while the step is observed: the program may have left it."""
        if not self.is_stopped:  # else ``start`` belongs to the step before
            self.begun_again.append(self._calls)

    def stopped(self) -> None:
        """Note a call of ``stop``."""
        self.is_stopped = True
        self.passing()

    def passing(self) -> None:
        """Note the exception that is being handled now, if there is one, while the step ends."""
        self._note_new(sys.exc_info()[1])

    def at_exit(self) -> None:
        """Note that the process ends, perhaps by an exception that nothing caught."""
        self.is_stepped = False
        self._note_new(_unhandled())

    def _note_new(self, error: BaseException | None) -> None:
        if error is not None and id(error) not in self._older and not isinstance(error, _ORDINARY):
            self._note(Work.FORWARD, error)

    def _note(self, work: Work, error: BaseException | None) -> None:
        text = "" if error is None else _text(error)
        if text != self._last[0]:
            self._last = (text, None)
        self._left = self._last
        self._pending[work] = self._next_order()

    def judge(self, later: Sequence[int] = ()) -> Ended:
        """Return how the step ends, if it ends now.

        Args:
            later: the steps that are to be recorded after it.
        """
        how = Ending.WHOLE if self.is_stopped else Ending.UNSTOPPED
        order = self._pending.pop(Work.CALL, None)
        if self._pending or (order is not None and self._next_order() == order + 1):
            how = Ending.INTERRUPTED
        text, record = self._left or (None, None)
        return Ended(
            how=how,
            exception=text,
            record=record,
            stepped=self.is_stepped,
            begun_again=self.begun_again[:_MOST_AGAIN],
            later=list(later[:_MOST_LATER]),
        )


def remark(ended: Ended) -> str | None:
    """Return the end of a step in words, None for a whole one."""
    if ended.how is Ending.WHOLE:
        return None
    if ended.how is Ending.UNSTOPPED:
        return "stop() was not called"
    place = f" in {ended.record}" if ended.record else ""
    return f"the step was interrupted by {ended.exception}{place}"


def _unhandled() -> BaseException | None:
    """Return the exception that ends the program; Python leaves it here for debuggers."""
    found: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return found


def _text(error: BaseException) -> str:
    try:
        text = str(error).strip().partition("\n")[0]  # those of frameworks go on with their stack
    except Exception:  # noqa: BLE001 - the class is the user's
        text = ""
    name = type(error).__name__
    return f"{name}: {text}"[:_MOST_TEXT] if text else name
