# SPDX-License-Identifier: Apache-2.0
"""Texts on a comparison for its reader: the next steps to take, and notes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Match, Mode, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.verdicts.culprit_classes import class_of
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.numerics.tolerances import Tolerances
from msprobe.plain_text import place_text

logger = logging.getLogger(__name__)

# Confidence of an alignment below which a reader should look at the pair.
_DOUBTFUL: Final = 0.5
AFTER_BACKWARD: Final = (
    "look at the code between loss.backward() and optimizer.step(): hooks on gradients, division "
    "of the loss, accumulation, all-reduce, unscaling, clipping, zero_grad"
)
"""Where a gradient changes that all calls handed back alike."""
CLIP_ALIKE: Final = "clip gradients alike in both runs"
# Names of inputs that differ; there may be many.
_SHOWN_INPUTS: Final = 3


def for_culprit(culprit: Culprit, total: int, *, same_seeds: bool = False) -> list[str]:
    """Return the next things to run or look at, most useful first."""
    comparison, row = culprit.comparison, culprit.row
    side = comparison.side_of(row.pair)
    record = row.pair.name
    steps = []
    if culprit.called_at:
        steps.append(f"look at {culprit.called_at}, where {record} was called")
    steps.append(f"msprobe show {side.view.directory_of(record)} {record}")
    if culprit.kind == "parameter":
        steps.append(
            "compare the checkpoints that the runs began with (msprobe compare-ckpt), and how the "
            "parameter is initialised and updated"
        )
    elif row.cause is Cause.RANDOM_NUMBERS:
        steps.append(
            "look for random numbers that only one side draws earlier in this step"
            if same_seeds
            else "seed both runs alike (seed_all) and compare again"
        )
    elif row.cause in (Cause.ACCUMULATED, Cause.CHANGED_GRADIENT):
        steps.append(AFTER_BACKWARD)
    elif comparison.mode is not Mode.TENSOR and class_of(culprit) is not VerdictClass.ARGUMENT:
        scope = f"of module {culprit.module}" if culprit.module else "around it"
        steps.append(f"capture the calls {scope} with task tensor, and compare their elements")
    if total > 1:
        others = (
            "another call introduces one" if total == 2 else f"{total - 1} others introduce some"
        )
        steps.append(f"fix this one first; {others}, too")
    return steps


def few_inputs(names: Sequence[str]) -> str:
    """Return the first of some names."""
    return ", ".join(names[:_SHOWN_INPUTS]) + (" …" if len(names) > _SHOWN_INPUTS else "")


def for_inputs(names: Sequence[str]) -> str:
    """Return the next thing to do where the inputs of the model differ."""
    return (
        f"the data differ when they come in ({few_inputs(names)}): feed both runs with the same "
        "batch in the same order, then compare again"
    )


def notes_on(comparison: RankComparison) -> list[str]:
    """Return notes for a reader of the result on how a step and rank were compared."""
    notes = []
    where = place_text(comparison.step, comparison.rank)
    unmatched = sum(pair.match is Match.UNMATCHED for pair in comparison.pairs)
    if unmatched > len(comparison.pairs) / 2:
        notes.append(f"{where}: {unmatched} of {len(comparison.pairs)} calls have no partner")
    doubtful = sum(
        pair.match is Match.ALIGNED and pair.confidence < _DOUBTFUL for pair in comparison.pairs
    )
    if doubtful:
        notes.append(f"{where}: {doubtful} calls were paired with little confidence")
    unread = sum(bool(row.problem) and row.metrics is None for row in comparison.rows)
    if unread:
        notes.append(f"{where}: {unread} pairs of tensors could not be read element by element")
    if comparison.mode is Mode.TENSOR and (without := sum(map(_lacks_files, comparison.rows))):
        notes.append(
            f"{where}: {without} pairs of tensors were judged by statistics: "
            "the records name no files of their values"
        )
    return notes


class UnusedGlobs:
    """The globs in the user's file of tolerances that match no row."""

    def __init__(self, path: Path, tolerances: Tolerances) -> None:
        self._path = path
        self._tolerances = tolerances
        self._unused = tolerances.unused_globs(())

    def look_at(self, comparison: RankComparison) -> None:
        """Take the globs for used that match a row of a comparison."""
        if self._unused:
            unused = self._tolerances.unused_globs(row.name for row in comparison.rows)
            self._unused = [glob for glob in self._unused if glob in unused]

    def notes(self) -> list[str]:
        """Return a note on those that are left, and log it."""
        if not self._unused:
            return []
        unused = ", ".join(self._unused)
        note = f"{self._path}: these globs match no row of the comparison: {unused}"
        logger.warning("%s", note)
        return [note]


def _lacks_files(row: Row) -> bool:
    """Return whether a row's tensors were to be saved, and at least one was not."""
    if row.metrics is not None or row.problem:
        return False
    return any(
        value.is_tensor
        and value.data_name is None
        # Nothing is saved of empty tensors, and of those without memory, which a note tells.
        and value.note is None
        and 0 not in (value.shape or ())
        for value in row.values
    )
