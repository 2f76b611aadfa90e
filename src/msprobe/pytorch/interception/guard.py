# SPDX-License-Identifier: Apache-2.0
"""Run msprobe's own tensor code without effect on the user's program or torch.

Grad mode is off, torch functions of subclasses and modes are off (a user's tensor subclass must
not see our reads), the user's dispatch modes are off (under non-reentrant checkpointing anything
else would count as a recomputed operation). `quietly` lets no exception out: it is noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from msprobe.capture.session import Session

T = TypeVar("T")

_clock: Final = time.perf_counter
# What an event costs outside of its clock: the way from torch to us and back (1.6 to 4.5 µs for a
# mode or a hook that does nothing), and torch's code and data that ours pushed out of the caches,
# which is more the longer ours ran. Fitted to eight workloads, see docs/performance.md.
CALL_S: Final = 8e-6
"""Seconds of an event that the clock inside of it does not see, whatever the event does."""
DISPLACED: Final = 1.10
"""Time that an event adds to the program, as a multiple of the time inside of it."""
_DisableTorchFunction: Final = torch._C.DisableTorchFunction
_set_grad: Final = torch._C._set_grad_enabled
_is_grad_enabled: Final = torch.is_grad_enabled
_dispatch_modes: Final = torch._C._len_torch_dispatch_stack


@contextmanager
def guard() -> Iterator[None]:
    """Enter the state that `quietly` runs in: for rare work, as it costs more."""
    had_grad = _is_grad_enabled()
    with _DisableTorchFunction(), _disable_current_modes() if _dispatch_modes() else nullcontext():
        _set_grad(False)
        try:
            yield
        finally:
            _set_grad(had_grad)


def quietly(session: Session, where: str, action: Callable[..., T], *args: Any) -> T | None:
    """Run `action` (see `msprobe.capture.saving.Quietly`) in the state that `guard` enters.

    Every event of a run passes here, so the guard is written out: a call more would cost a tenth.
    """
    is_outermost = session.spending_since is None
    if is_outermost:
        started = session.spending_since = _clock()
    try:
        with session.lock, _DisableTorchFunction():
            had_grad = _is_grad_enabled()
            if had_grad:
                _set_grad(False)
            try:
                if _dispatch_modes():
                    with _disable_current_modes():
                        return action(*args)
                return action(*args)
            except Exception as error:  # noqa: BLE001 - the user's training must survive us
                session.failed(where, error)
                return None
            finally:
                if had_grad:
                    _set_grad(True)
    finally:
        if is_outermost:
            session.current.account.spent_s += (_clock() - started) * DISPLACED + CALL_S
            session.spending_since = None
