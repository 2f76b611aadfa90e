# SPDX-License-Identifier: Apache-2.0
"""When the run of a rank folder began and ended, and which folders an earlier run left behind.

A new run removes the old files of its own ranks only. If it has fewer ranks, folders of the earlier
run remain beside its own. No rank of one run ends a step before another one has begun at all, so
what ended before the newest run began belongs to an earlier one.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from msprobe.dump import layout
from msprobe.dump.records import JsonTree
from msprobe.errors import DumpFormatError

if TYPE_CHECKING:  # a recording needs no reader
    from msprobe.dump.dump_steps import Dump, RankKey
    from msprobe.dump.rank_view import RankView

RUN_KEY: Final = "run"
"""Key of the times in ``account.json``."""
_IMPORTED: Final = (os.getpid(), time.time())
# Up to the year 3000: what a calendar can show.
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=32_503_680_000)]


class RunTimes(msgspec.Struct, frozen=True):
    """Times of the process that recorded a step, in seconds since 1970.

    Attributes:
        began: when it loaded msprobe.
        ended: when the step was closed.
    """

    began: _Seconds
    ended: _Seconds

    def as_json(self) -> dict[str, JsonTree]:
        """Return the entry of ``account.json``."""
        return msgspec.structs.asdict(self)


def process_began() -> float:
    """Return when this process loaded msprobe; in a forked process, the time now."""
    process, began = _IMPORTED
    return began if os.getpid() == process else time.time()


def left_over_ranks(dump: Dump) -> dict[RankKey, RunTimes]:
    """Return the ranks whose folders an earlier run left behind, with its times.

    Reads one account for each rank. Folders that do not tell their times are never among them.
    """
    last_view = {key: view for step in dump.steps.values() for key, view in step.ranks.items()}
    if len(last_view) < 2:
        return {}
    times = {key: found for key, view in last_view.items() if (found := _run_times(view))}
    newest = max((found.began for found in times.values()), default=0.0)
    return {key: found for key, found in times.items() if found.ended < newest}


def _run_times(view: RankView) -> RunTimes | None:
    """Return the times of a rank; None where it does not tell them, or they are damaged."""
    try:
        if view.records_path.name == layout.JOURNAL:  # a killed process wrote no account
            ended = view.records_path.stat().st_mtime
            told: JsonTree = {"began": view.head.began or 0.0, "ended": ended}
        else:
            told = (view.account or {}).get(RUN_KEY)
        times = msgspec.convert(told, RunTimes)
    except (DumpFormatError, msgspec.ValidationError, OSError):
        return None
    return times if times.began <= times.ended else None
