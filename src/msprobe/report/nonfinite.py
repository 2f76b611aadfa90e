# SPDX-License-Identifier: Apache-2.0
"""Find the records of a rank that hold NaN or infinities, and those where these begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msprobe.dump.call_forest import with_ancestors
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import forward_name
from msprobe.dump.record_views import Record
from msprobe.errors import DumpFormatError

# Signs in trees, for readers without colour too: a fault begins here, a fault is present.
BORN: Final = "!!"
PRESENT: Final = "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonfinite:
    """Records of a rank that hold NaN or infinities.

    Attributes:
        marks: record name → ``!!`` where they begin, ``!`` where they merely are.
        first: the first record in order of execution where they begin; if they begin nowhere (they
            came in from outside), the first that has any; None if there are none.
    """

    marks: Mapping[str, str]
    first: str | None


def find_nonfinite(view: RankView) -> Nonfinite:
    """Return the records of a rank with NaN or infinities, by their statistics.

    They begin in a call whose results have some although its arguments have none. Of calls inside
    each other only the innermost counts, and a backward call only if its forward call, whose values
    it works with, has none. Records without a NaN or infinity are not even parsed.

    Raises:
        DumpFormatError: the rank's files are damaged (single damaged records are passed over).
    """
    marks: dict[str, str] = {}
    for name in view.records:
        if view.records.may_be_nonfinite(name):
            try:
                mark = _mark(view.records[name])
            except DumpFormatError:
                continue
            if mark:
                marks[name] = mark
    around = {parent for name in marks if (parent := view.parents.get(name)) is not None}
    for outer in with_ancestors(view.parents, around) & marks.keys():
        marks[outer] = PRESENT
    for name in marks:
        if forward_name(view.records.parsed(name)) in marks:
            marks[name] = PRESENT
    born = (name for name, mark in marks.items() if mark == BORN)
    return Nonfinite(marks=marks, first=next(born, next(iter(marks), None)))


def _mark(record: Record) -> str:
    """Return the mark of a single record.

    Results are the outputs of a forward call and the input gradients of a backward call.
    """
    results = arguments = False
    # Scalars do not count: a mask is filled with -inf on purpose, and a literal NaN is a beginning.
    for path, tensor in record.tensors():
        if tensor.has_nan or tensor.has_inf:
            results |= path[0] == "output"
            arguments |= path[0] != "output"
    if results and not arguments:
        return BORN
    return PRESENT if results or arguments else ""
