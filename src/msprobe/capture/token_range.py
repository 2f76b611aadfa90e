# SPDX-License-Identifier: Apache-2.0
"""Observe only some forward calls of the root model, such as the tokens of a generation loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from msprobe.capture.session import Session


class TokenGate:
    """Opens and closes observation by the number of the root model's forward call.

    Calls that lie between two forward calls belong to the earlier one; those before the first are
    observed.
    """

    __slots__ = ("_count", "_first", "_forget", "_last", "_model", "_session")

    def __init__(
        self,
        session: Session,
        model: object,
        token_range: tuple[int, int],
        forget: Callable[[], None],
    ) -> None:
        """Create it.

        Args:
            session: the run.
            model: the root model.
            token_range: first and last call, both included, counting from 0.
            forget: called when observation ends for a while: writes are not seen from then on.
        """
        self._session = session
        self._forget = forget
        self._model = weakref.ref(model)
        self._first, self._last = token_range
        self._count = 0

    def before(self, module: object) -> None:
        """Note that a module begins; called for every module, also while not observing."""
        if self._model() is not module:
            return
        inside = self._first <= self._count <= self._last
        self._count += 1
        if not inside:
            self._forget()
        self._session.observing = inside and self._session.capturing
