# SPDX-License-Identifier: Apache-2.0
"""Loss scaling of `mindspore.amp`: by which scale losses are multiplied, which steps it skips.

Its functions for that are compiled, so calls of compiled code tell.
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from typing import Any, Final

from mindspore import amp
from msprobe.capture.session import Session
from msprobe.dump.facts import Scaler
from msprobe.mindspore.adapter import values_of

_SCALES: Final = inspect.unwrap(getattr(amp, "_grad_scale_map", amp.all_finite))
_ALL_FINITE: Final = inspect.unwrap(getattr(amp, "_all_finite", amp.all_finite))
_MOST: Final = 16
"""Scaled losses of which no backward pass has begun."""


class LossScale:
    """Knows scaled losses, and whether the gradients of an attempt at a step were not finite."""

    def __init__(self, session: Session) -> None:
        """Create it.

        Args:
            session: gets the facts.
        """
        self._session = session
        self._known: deque[tuple[weakref.ref[Any], float]] = deque(maxlen=_MOST)
        self._overflowed = False

    def compiled_ran(self, executor: Any, args: tuple[Any, ...], result: Any) -> None:
        """Take a call of compiled code."""
        function = getattr(executor, "fn", None)
        told = args[0] if function is _SCALES else result if function is _ALL_FINITE else None
        values = None if told is None else values_of(told)
        if values is None:
            return
        if function is _ALL_FINITE:
            self._overflowed = not values.all()
            return
        for one in result if isinstance(result, tuple | list) else (result,):
            self._known.append((weakref.ref(one), float(values)))

    def forward_begins(self) -> None:
        """Tell that a step is skipped: after an overflow, gradients are taken anew."""
        if self._overflowed:
            self._overflowed = False
            self._tell(self._known[-1][1] if self._known else 1.0, skipped=True)

    def steps(self) -> None:
        """Note that the optimizer is called, whatever the gradients are."""
        self._overflowed = False

    def of(self, root: Any) -> float | None:
        """Return the scale of a loss that a scaler returned, and tell it; None for others."""
        found = next((scale for known, scale in reversed(self._known) if known() is root), None)
        if found is not None:
            self._tell(found, skipped=False)
        return found

    def _tell(self, scale: float, *, skipped: bool) -> None:
        told = Scaler(scale=scale, skipped=skipped, new_scale=scale)
        self._session.facts.append("events", told)
