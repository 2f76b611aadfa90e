# SPDX-License-Identifier: Apache-2.0
"""The overflow check: keep only calls in which a NaN or an infinity is seen that is no mask."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from msprobe.capture.call import Draft
from msprobe.capture.nonfinite_records import FindingKind, nonfinite_kind, values_of
from msprobe.dump.stack_frames import user_frame
from msprobe.plain_text import count_text

logger = logging.getLogger(__name__)


class OverflowCheck:
    """Decides which drafts are kept, and counts.

    Attributes:
        hits: overflowing records so far in this step.
        sources: those whose inputs were finite.
        finished: whether the wanted number was reached, in all steps together.
    """

    __slots__ = ("_earlier", "_limit", "_minus_inf", "finished", "hits", "sources")

    def __init__(self, limit: int) -> None:
        """Create it; `limit` is `overflow_nums`, -1 for no limit."""
        self._limit = limit
        self._earlier = 0
        self._minus_inf = 0  # records of results that only hold -Inf: kept, but no hits
        self.hits = 0
        self.sources = 0
        self.finished = False

    def wants(self, name: str) -> bool:
        """Return False: only overflowing calls are kept."""
        return False

    def begin_step(self, step: int, results: Path) -> None:
        """Count the hits of another step."""
        self._earlier += self.hits
        self.hits = self.sources = 0

    def keeps(self, draft: Draft) -> bool:
        """Judge a finished draft; the tensors of one that is kept are saved."""
        held, draft.held = draft.held, None
        if self.finished or not draft.overflow:
            return False
        values = list(values_of(draft.parts))
        kind, _ = nonfinite_kind(draft, values, had_before=self.hits > 0)
        if kind is FindingKind.ONLY_MINUS_INF:
            if self._minus_inf == self._limit:
                return False
            self._minus_inf += 1
        elif kind is None:
            return False
        else:
            self._count(draft, is_source=kind is FindingKind.SOURCE)
            kind = FindingKind.INHERITED if kind is FindingKind.CAME_IN else kind
        draft.parts["overflow"] = str(kind)
        for payload, record, path in held or ():
            draft.save(payload, record, path)
        return True

    def _count(self, draft: Draft, *, is_source: bool) -> None:
        if self._earlier + self.hits == 0:
            line = user_frame(draft.stack.frames) if draft.stack is not None else None
            place = "".join(
                f"\n  {how} {what}" for how, what in (("in", draft.parent), ("at", line)) if what
            )
            logger.warning(
                "first overflow: %s (%s)%s",
                draft.name,
                "its inputs are finite: it starts here" if is_source else "its inputs overflow too",
                place,
            )
        self.hits += 1
        self.sources += is_source
        if self._earlier + self.hits == self._limit:
            self.finished = True
            found = count_text(self._limit, "overflowing call")
            logger.info("overflow check ends: %s found", found)

    def end_step(self) -> dict[str, Any]:
        """Return the counts for the account of the step."""
        return {"overflows": self.hits, "overflow_sources": self.sources}
