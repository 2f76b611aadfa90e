# SPDX-License-Identifier: Apache-2.0
"""Records whose numbers a device has yet to deliver."""

from __future__ import annotations

from msprobe.capture.call import Draft
from msprobe.capture.statistics import LOST, Summary
from msprobe.dump.records import TensorRecord


def take_summary(draft: Draft, record: TensorRecord, summary: Summary) -> None:
    """Add the details of a summary to its record, or let the record wait for the whole summary.

    Args:
        draft: the record in the making.
        record: of the summarised tensor; it has the numbers of a summary that is ready.
        summary: ready or not.
    """
    if summary.ready:
        draft.add_details(record, summary)
        return
    if draft.waiting is None:
        draft.waiting = []
    draft.waiting.append((record, summary))


def fill_waiting(draft: Draft) -> None:
    """Write the summaries that have become ready into the records that wait for them."""
    for part, text in (draft.late or {}).items():
        draft.parts[part], is_bad = text.fill()
        draft.is_bad = draft.is_bad or is_bad
    draft.late = None
    for record, summary in draft.waiting or ():
        if not summary.ready:
            # A remark on a gradient may have come meanwhile.
            record.note = f"{record.note}; {LOST}" if isinstance(record.note, str) else LOST
            continue
        record.max, record.min = summary.max, summary.min
        record.mean, record.norm = summary.mean, summary.norm
        draft.add_details(record, summary)
