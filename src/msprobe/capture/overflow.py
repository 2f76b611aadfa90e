# SPDX-License-Identifier: Apache-2.0
"""The overflow check: keep only calls in which a NaN or an infinity is seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET

from msprobe.capture.call import Draft
from msprobe.dump.records import JsonTree, TensorRecord
from msprobe.plain_text import count_text

logger = logging.getLogger(__name__)

# The parts that a call received. A call whose received values are all finite is a source. Gradients
# of parameters show no inputs: one is a source only where nothing overflowed before it in the step.
RECEIVED: Final = frozenset({"input_args", "input_kwargs", "parameters", "input"})


def overflowing(tree: JsonTree) -> bool:
    """Return whether a tensor record in `tree` holds NaN or infinities."""
    return any(record.nan_count is not UNSET for record in tensor_records(tree))


def tensor_records(tree: JsonTree) -> Iterator[TensorRecord]:
    """Yield the records of tensors in a part of a record."""
    if isinstance(tree, TensorRecord):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensor_records(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from tensor_records(value)


class OverflowCheck:
    """Decides which drafts are kept, and counts.

    Attributes:
        hits: overflowing records so far in this step.
        sources: those whose inputs were finite.
        finished: whether the wanted number was reached, in all steps together.
    """

    __slots__ = ("_earlier", "_limit", "finished", "hits", "sources")

    def __init__(self, limit: int) -> None:
        """Create it; `limit` is `overflow_nums`, -1 for no limit."""
        self._limit = limit
        self._earlier = 0
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
        received = [value for part, value in draft.parts.items() if part in RECEIVED]
        is_source = not any(map(overflowing, received)) and (bool(received) or self.hits == 0)
        self._count(draft.name, is_source=is_source)
        draft.parts["overflow"] = "source" if is_source else "inherited"
        for payload, record, path in held or ():
            draft.save(payload, record, path)
        return True

    def _count(self, name: str, *, is_source: bool) -> None:
        if self._earlier + self.hits == 0:
            logger.warning(
                "first overflow: %s (%s)",
                name,
                "its inputs are finite: it starts here" if is_source else "its inputs overflow too",
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
