# SPDX-License-Identifier: Apache-2.0
"""Records whose numbers arrive later, or never."""

from __future__ import annotations

from msprobe.capture.call import Draft
from msprobe.capture.statistics import Summary
from msprobe.capture.unfinished import fill_waiting, take_summary
from msprobe.dump.records import TensorRecord


def waiting(*summaries: Summary) -> tuple[Draft, list[TensorRecord]]:
    draft = Draft("Tensor.mul.0.forward", 0, None, ".pt")
    records = [TensorRecord("torch.Tensor", "torch.float32", (2,)) for _ in summaries]
    for record, summary in zip(records, summaries, strict=True):
        take_summary(draft, record, summary)
    return draft, records


def test_numbers_come_when_they_are_there() -> None:
    summary = Summary(ready=False)
    draft, (record,) = waiting(summary)
    assert record.max is None
    summary.max, summary.min, summary.mean, summary.norm, summary.ready = 2.0, 1.0, 1.5, 2.2, True
    fill_waiting(draft)
    assert (record.max, record.min, record.mean, record.norm) == (2.0, 1.0, 1.5, 2.2)
    assert not isinstance(record.note, str)


def test_what_never_came_is_told_beside_what_was_remarked_meanwhile() -> None:
    draft, records = waiting(Summary(ready=False), Summary(ready=False))
    records[1].note = "of two passes"
    fill_waiting(draft)
    assert [record.note for record in records] == [
        "the device did not deliver the statistics",
        "of two passes; the device did not deliver the statistics",
    ]
