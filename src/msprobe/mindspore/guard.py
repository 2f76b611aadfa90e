# SPDX-License-Identifier: Apache-2.0
"""Run msprobe's own code in the middle of the user's program, without leaving a trace in it.

Exceptions are noted, not raised. Operators of ours make no records: only calls from files of the
user and from layers do (see `stack_traits`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

from mindspore.common import api
from mindspore.common import dtype as mstype

import mindspore
from mindspore import Tensor, ops
from mindspore import _c_expression as core
from msprobe.capture.session import Session

T = TypeVar("T")

# Not in every version; without them there is nothing to keep out of.
_MODES: Final[Any] = getattr(core, "_DispatchGuardStack", None)
_NO_PRECISION: Final[Any] = getattr(getattr(core, "MixedPrecisionType", None), "NOTSET", None)

_MULTIPLY: Final = ops.Mul()


def quietly(session: Session, where: str, action: Callable[..., T], *args: Any) -> T | None:
    """Run `action`; see `msprobe.capture.saving.Quietly`.

    `action` may read tensors and must not run operators: these would be recorded by the
    automatic differentiation of the user's program.
    """
    with session.lock:
        try:
            return action(*args)
        except Exception as error:  # noqa: BLE001 - the user's training must survive us
            session.failed(where, error)
            return None


class Guard:
    """The context in which operators of our own run; good for one use.

    Automatic differentiation is off, so that no node of its graph is made. The mixed precision of
    an enclosing cell (``to_float``) is off: it would cast what our operators are given to float16.
    """

    __slots__ = ("_had_gradients",)

    def __enter__(self) -> None:
        """Switch both off."""
        executor = api._pynative_executor
        self._had_gradients = executor.enable_grad()
        executor.set_enable_grad(False)
        if _NO_PRECISION is not None:
            executor.set_mixed_precision_type(_NO_PRECISION)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Undo both."""
        executor = api._pynative_executor
        # Some failures of operators empty the stack of precisions (MindSpore 2.10); to take one
        # more from it would end the process. They switch differentiation on, too, which gives them
        # away. After all others our entry is still there: left behind, it would have the cell take
        # it for its own, and the cell's precision stay on for the rest of the program.
        is_emptied = kind is not None and executor.enable_grad()
        if _NO_PRECISION is not None and not is_emptied:
            executor.set_mixed_precision_type(_NO_PRECISION, False)
        executor.set_enable_grad(self._had_gradients)


def must_not_run() -> bool:
    """Return whether no operator of ours should run now.

    A dispatch mode of the user is told of operators. A stream of the user's own may run while what
    we computed on it is collected on another.
    """
    if _MODES is not None and _MODES.depth() > 0:
        return True
    if not _has_streams():
        return False
    return bool(mindspore.runtime.current_stream() != mindspore.runtime.default_stream())


@cache
def _has_streams() -> bool:
    # Asked when operators have run already: the device is settled. The CPU answers with an error.
    is_cpu = mindspore.get_context("device_target") == "CPU"
    return not is_cpu and hasattr(getattr(mindspore, "runtime", None), "current_stream")


def may_fail() -> bool:
    """Return whether an operator that fails now would do no harm.

    MindSpore 2.10 answers the failure of an operator, caught or not, by forgetting the graph that a
    gradient is being recorded into, and the precisions of the cells that are being called.
    """
    if api._pynative_executor.grad_flag() or must_not_run():
        return False
    samples = (Tensor(1.0, mstype.float32), Tensor(1.0, mstype.float16))
    return all(_MULTIPLY(one, one).dtype == one.dtype for one in samples)
