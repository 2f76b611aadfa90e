# SPDX-License-Identifier: Apache-2.0
"""`RecordedRuns`: the recorded steps of two runs: their facts, and comparisons of their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msprobe.compare.options import CompareOptions
from msprobe.compare.ranks import ViewPair, pair_views
from msprobe.compare.run import run_comparison
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.reader import open_dump
from msprobe.triage.run_facts import RunFacts, Seen
from msprobe.triage.rungs import FoundStep, class_of


class RecordedRuns:
    """Two recordings: their facts, and comparisons of their steps, made when asked for.

    Attributes:
        views: steps and ranks that both sides recorded.
        numbers: their steps.
        notes: what else one must know.
    """

    def __init__(
        self,
        target: Path,
        reference: Path,
        views: Sequence[ViewPair] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self._paths = target, reference
        self.views = views
        self.notes = list(notes)
        self.numbers = list(dict.fromkeys(view.step for view in views))
        # Of one comparison: there may be thousands of steps.
        self._compared: tuple[tuple[int, ...], Mapping[str, Any]] | None = None

    @classmethod
    def open(cls, target: Path, reference: Path, last: int | None = None) -> RecordedRuns:
        """Return two recordings.

        Args:
            target: path of the dump under test.
            reference: path of the trusted one.
            last: the step in which the runs part, if it is known: later ones only follow from it.

        Raises:
            DumpFormatError: there is no dump at a path.
            UsageError: the two hold no common step or rank.
        """
        pairing = pair_views(open_dump(target), open_dump(reference))
        views = [view for view in pairing.pairs if last is None or view.step <= last]
        return cls(target, reference, views, pairing.notes)

    @cached_property
    def facts(self) -> RunFacts:
        """The facts of all steps and ranks, compared."""
        facts = RunFacts(self.views)
        self.notes += facts.notes
        return facts

    def compare(self, *steps: int) -> Mapping[str, Any]:
        """Return the summary of a full comparison of some steps.

        Raises:
            UsageError: no value of one side can be compared with the other.
            DumpFormatError: a file is damaged.
        """
        if self._compared is not None and self._compared[0] == steps:
            return self._compared[1]
        found = run_comparison(*self._paths, CompareOptions(steps=steps)).summary
        self._compared = steps, found
        self.notes += found["notes"]
        return found

    @cached_property
    def parting(self) -> FoundStep:
        """The first step that parts, by the facts, or by comparing step after step."""
        known = self.facts.parting
        if known is not None:
            return FoundStep(known.step, f"in step {known.step} {known.words}")
        values = 0
        doubts, confidence = "", Confidence.PROVED
        for seen in self.facts.steps:
            if seen.seen is Seen.EQUAL:
                continue
            summary = self.compare(seen.step)
            if not summary["rows"]:
                words = f"nothing of step {seen.step} can be compared"
                return FoundStep(seen.step, words, is_known=False)
            values += summary["rows"]
            if class_of(summary["verdict"]) is not VerdictClass.EQUAL:
                first = summary["first_difference"]
                name = "" if first is None else f": the first value that differs is {first['name']}"
                return FoundStep(seen.step, f"step {seen.step} differs{name}")
            if not doubts and summary["verdict"]["confidence"] != Confidence.PROVED:
                doubts = "".join(f"; {each}" for each in summary["verdict"]["evidence"][:1])
                confidence = Confidence(summary["verdict"]["confidence"])
        numbers = self.numbers
        steps = f"step {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} steps"
        if values:
            words = f"{values} values of {steps} agree{doubts}"
            return FoundStep(None, words, confidence=confidence)
        return FoundStep(None, f"losses, gradients and parameters of {steps} are equal to the bit")
