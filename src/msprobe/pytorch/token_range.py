# SPDX-License-Identifier: Apache-2.0
"""Observe only some forward calls of the root model, such as the tokens of a generation loop."""

from __future__ import annotations

import weakref

from torch import nn

from msprobe.capture.session import Session
from msprobe.pytorch.memo import Memo


class TokenGate:
    """Opens and closes observation by the number of the root model's forward call.

    Calls that lie between two forward calls belong to the earlier one; those before the first are
    observed.
    """

    __slots__ = ("_count", "_first", "_last", "_memo", "_model", "_session")

    def __init__(
        self, session: Session, memo: Memo, model: nn.Module, token_range: tuple[int, int]
    ) -> None:
        """Create it; both ends of `token_range` are included, counting from 0."""
        self._session = session
        self._memo = memo
        self._model = weakref.ref(model)
        self._first, self._last = token_range
        self._count = 0

    def before(self, module: nn.Module) -> None:
        """Note that a module begins; called for every module, also while not observing."""
        if self._model() is not module:
            return
        inside = self._first <= self._count <= self._last
        self._count += 1
        if not inside:
            self._memo.clear()  # writes are not seen from here on
        self._session.observing = inside and self._session.capturing
