# SPDX-License-Identifier: Apache-2.0
"""`PerturbationTask`: the part of the task `free_benchmark` that both frameworks share.

It chooses calls, takes judgements, and keeps the files of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from msprobe.checks.perturbation import Judged, SkippedError
from msprobe.checks.perturbation_preheat import Preheating
from msprobe.checks.perturbation_results import (
    PerturbationResults,
    PerturbationRun,
    PerturbedCall,
)
from msprobe.config import Config, FreeBenchmarkSection, Perturbation, Stage
from msprobe.dump.stack_frames import user_line


class ObservedCall(Protocol):
    """Facts of an observed call that this task needs."""

    step: int
    forward_name: str
    backward_name: str
    parent: str | None
    stack: int | None


class ObservedRun(Protocol):
    """Facts of the run that this task needs: its session, in part."""

    config: Config

    @property
    def step_number(self) -> int:
        """Number of the current step."""
        ...

    def rank(self) -> int | None:
        """Return the rank of this process, None without a process group."""
        ...

    def frames(self, stack: int | None) -> tuple[str, ...]:
        """Return the frames of the stack with an index."""
        ...

    def spent_s(self) -> float:
        """Return the seconds that the current step has cost so far."""
        ...


class PerturbationTask:
    """Chooses calls and keeps what is found; it also is the `TaskFiles` of its task.

    Attributes:
        section: the settings of the task.
        results: what was found.
        preheating: decides which calls are learned from; None where none are.
        is_open: whether a step has begun.
    """

    def __init__(self, run: ObservedRun, section: FreeBenchmarkSection) -> None:
        """Create it; no file is touched before the first step."""
        self._run = run
        self.section = section
        self.preheating = Preheating(section.preheat) if section.preheat is not None else None
        self.is_open = False
        self._seen: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._has_summary = False
        self._lines: dict[int | None, str] = {}
        judges = section.mode in (Perturbation.HIGH_PRECISION, Perturbation.CPU_REFERENCE)
        self.results = PerturbationResults(
            PerturbationRun(
                mode=section.word,
                stage=section.stage,
                handler=section.handler,
                judges_errors=judges,
            )
        )

    # -- calls ---------------------------------------------------------------------------------

    def skip(self, reason: str) -> None:
        """Count a call that is left out."""
        self.results.skipped[reason] += 1

    def is_sampled(self, api: str) -> bool:
        """Return whether the next call of an API is to be perturbed."""
        section, number = self.section, self._seen[api]
        self._seen[api] = number + 1
        preheating = self.preheating
        if preheating is not None and preheating.is_on:
            return preheating.takes(api, number)
        if number % section.every_n:
            self.skip("not the n-th call")
            return False
        if section.max_calls is not None and self._taken[api] >= section.max_calls:
            self.skip("enough calls of the API in this step")
            return False
        return True

    def take(self, api: str) -> None:
        """Count a call that is perturbed."""
        self._taken[api] += 1

    def report(self, call: ObservedCall, judge: Callable[[], Iterable[Judged]]) -> None:
        """Add what is found about a call, or why nothing is."""
        try:
            found = list(judge())
        except SkippedError as exc:
            self.skip(str(exc))
            return
        self.results.examined += 1
        is_backward = self.section.stage is Stage.BACKWARD
        source = self._lines.get(call.stack)
        if source is None:
            source = self._lines[call.stack] = user_line(self._run.frames(call.stack)) or ""
        for one in found:
            self.results.add(
                PerturbedCall(
                    step=call.step,
                    name=call.backward_name if is_backward else call.forward_name,
                    judged=one,
                    module=call.parent or "",
                    source=source,
                )
            )

    # -- files ---------------------------------------------------------------------------------

    def begin(self, dump_path: Path, rank_name: str) -> None:
        """Begin a step."""
        self.is_open = True
        self._seen.clear()
        self._taken.clear()
        if self.preheating is not None:
            self.preheating.begin_step()
        self.results.begin(dump_path / rank_name, self._run.rank() or 0)

    def continue_at(self, step: int) -> None:
        """Do nothing: findings of another step stay."""

    def write(self) -> None:
        """Bring the files up to date at the end of a step."""
        if not self.is_open:
            return
        self.is_open = False
        self.results.spent_s += self._run.spent_s()
        self.results.write()
        last = self._run.config.last_step
        if last is not None and self._run.step_number >= last:
            self._summarise()

    def close(self) -> None:
        """Log the summary, if it was not logged."""
        self._summarise()

    def _summarise(self) -> None:
        if not self._has_summary and self.results.examined + sum(self.results.skipped.values()):
            self._has_summary = True
            self.results.log_summary()
            self.results.write_page()
