# SPDX-License-Identifier: Apache-2.0
"""The accuracy check of a recording that is still being made, as in a shared folder.

A training process records with the task `tensor`; another process, on another machine if the folder
is shared, checks calls while the training goes on. The two know nothing of each other: if one of
them is killed, the other goes on, and a check of finished steps can be made at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msprobe.checks.accuracy_check import CheckSettings, Recording, wanted_calls
from msprobe.dump import layout
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.dump.record_names import backward_name
from msprobe.errors import DumpFormatError, UsageError

_SECONDS_BETWEEN: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Calls of one rank of one step that can be checked.

    Attributes:
        recording: the rank.
        names: records of all calls that are complete so far.
        has_ended: whether the step has ended, so that no call will follow.
    """

    recording: Recording
    names: Sequence[str]
    has_ended: bool


@dataclass(slots=True)
class Follower:
    """Watches a dump that grows.

    Attributes:
        path: of the dump; it may not exist yet.
        settings: the user's lists of operators.
        patience_s: ends after so many seconds without a new call.
        rank: only this rank; None for all.
        is_over: whether nothing more will come: then all that is new is looked at once more.
    """

    path: Path
    settings: CheckSettings
    patience_s: float
    rank: int | None = None
    is_over: Callable[[], bool] = lambda: False
    _seen: dict[Recording, tuple[int, bool]] = field(default_factory=dict)

    def arrivals(self, sleep: Callable[[float], object] = time.sleep) -> Iterator[Arrived]:
        """Yield ranks with new calls until none came for the time of patience.

        Args:
            sleep: waits so many seconds.
        """
        waited = 0.0
        while waited < self.patience_s:
            is_over = self.is_over()
            found = list(self._new())
            if found:
                waited = 0.0
                yield from found
            elif is_over:
                return
            else:
                sleep(_SECONDS_BETWEEN)
                waited += _SECONDS_BETWEEN

    def _new(self) -> Iterator[Arrived]:
        for recording, view in self._ranks():
            ended = not (view.directory / layout.JOURNAL).exists()
            known = self._seen.get(recording)
            if known is not None and known[1]:
                continue
            try:
                names = self._complete(view, ended)
            except (DumpFormatError, UsageError):  # nothing is written yet, or just renamed
                continue
            if known != (len(names), ended):
                self._seen[recording] = (len(names), ended)
                yield Arrived(recording=recording, names=names, has_ended=ended)

    def _ranks(self) -> Iterator[tuple[Recording, RankView]]:
        try:
            dump = open_dump(self.path)
        except DumpFormatError:
            return
        for number, step in dump.steps.items():
            for key, view in step.ranks.items():
                if self.rank in (None, key):
                    yield Recording(path=str(self.path), step=number, rank=key), view

    def _complete(self, view: RankView, ended: bool) -> list[str]:
        """Return the calls of which nothing more will come: those with gradients, or all."""
        names = wanted_calls(view, self.settings)
        if ended:
            return names
        found = []
        for name in names:
            backward = backward_name(view.records.parsed(name))
            if (
                backward is not None
                and backward in view.records
                and _has_files(view, (name, backward))
            ):
                found.append(name)
        return found


def _has_files(view: RankView, names: Iterable[str]) -> bool:
    """Return whether the tensors of records are there: they are written by another thread."""
    values = (value for name in names for value in view.records.values_of(name))
    return all(
        value.data_name is None or (view.tensor_directory / value.data_name).exists()
        for value in values
    )
