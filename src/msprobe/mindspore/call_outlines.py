# SPDX-License-Identifier: Apache-2.0
"""Note which calls cells are made of, where calls have no records: at level L0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import mindspore
from msprobe.capture.outlines import Outlines
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.capture.stacks import calling_frame
from msprobe.mindspore.api_calls import ApiObserver
from msprobe.mindspore.api_table import ApiTable
from msprobe.mindspore.gradient_limits import GradientLimits
from msprobe.mindspore.guard import quietly

_FRAMEWORK: Final = f"{Path(mindspore.__file__).parent}"
_WORDS: Final = (type(mindspore.float32), type(mindspore.int32), type(mindspore.bool_))


class CallOutlines(ApiObserver):
    """Puts the outline of each step into its facts; calls that are observed have no record."""

    def __init__(
        self,
        session: Session,
        table: ApiTable,
        recomputations: Recomputations,
        limits: GradientLimits | None = None,
    ) -> None:
        """Create it, not yet installed; see `ApiObserver`."""
        super().__init__(session, table, recomputations, limits)
        self._outlines = Outlines(session, (mindspore.Tensor,), _WORDS, _FRAMEWORK)

    def begin(self) -> None:
        """Put the outline when the session's undo ends the observation."""
        self._session.undo.callback(quietly, self._session, "outline", self._outlines.put)
        self._session.step_undo.callback(self._outlines.begin_step)

    def record(
        self,
        name: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attributes: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return ``run(*args, **kwargs)``, noted as one call; its exceptions pass."""
        session, outlines, noted = self._session, self._outlines, None
        if not self._choice.leaves_out(name):
            noted = quietly(session, "outline", outlines.note, name, calling_frame(), args, kwargs)
        self._inside = True
        try:
            result = run(*args, **kwargs)
        finally:
            self._inside = False
        if noted is not None:
            quietly(session, "outline", outlines.note_result, noted, result)
        return result
