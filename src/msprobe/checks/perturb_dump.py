# SPDX-License-Identifier: Apache-2.0
"""`perturb_dump`: run the calls of a dump again with a change; no training is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from msprobe.checks.perturbation import Judged, SkippedError
from msprobe.checks.perturbation_results import (
    PerturbationResults,
    PerturbationRun,
    PerturbedCall,
)
from msprobe.checks.verify_dump import CallTask, Selection, process_count, selected_calls
from msprobe.config import Perturbation, Stage
from msprobe.dump.dump_steps import Dump, RankKey
from msprobe.dump.rank_view import RankView
from msprobe.dump.stack_frames import user_line
from msprobe.errors import MsprobeError, UnsupportedError
from msprobe.replay.recorded_calls import RecordedCall, recorded_call
from msprobe.replay.references import import_definitions
from msprobe.replay.runner import CannotReplayError
from msprobe.replay.tensors import TensorSource
from msprobe.replay.workers import Crash, Limits, run_tasks

_PERTURBERS: Final = {"pytorch": "msprobe.pytorch.perturbation.offline"}
Named = tuple[str, Judged]
"""Name of the record that a judgement is of, and the judgement."""


class PerturbCall(Protocol):
    """Perturbs one recorded call, in its framework."""

    def __call__(
        self, call: RecordedCall, tensors: TensorSource, mode: Perturbation, stage: Stage
    ) -> list[Named]:
        """Return the judgements of its results, or gradients.

        Raises:
            SkippedError: the change says nothing about it.
            CannotReplayError: it cannot be run again.
            DumpFormatError: a tensor file is damaged.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one call: judgements, or the reason why there are none."""

    found: Sequence[Named] = ()
    reason: str = ""


def perturb_dump(
    dump: Dump,
    *,
    mode: Perturbation = Perturbation.ULP_NOISE,
    stage: Stage = Stage.FORWARD,
    selection: Selection | None = None,
    imports: Sequence[str] = (),
    workers: int | None = None,
    limits: Limits | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Mapping[RankKey, PerturbationResults]:
    """Run the calls of a dump again with a change, on the CPU.

    Args:
        dump: an open dump.
        mode: the change.
        stage: results or input gradients.
        selection: which calls; None for all.
        imports: modules that define custom operators and functions.
        workers: processes; None for as many as pay off, 0 to work in this one.
        limits: time and memory of each call.
        progress: called with the numbers of calls done and of all calls.

    Returns: the results of each rank.

    Raises:
        UnsupportedError: calls of this framework cannot be perturbed here.
        UsageError: nothing is selected.
        DumpFormatError: the file of records is damaged.
    """
    places = selected_calls(dump, selection or Selection(), [])
    for _, _, view, _ in places:
        _perturber_of(view.head.framework)
    tasks = [task for *_, own in places for task in own]
    count = process_count(len(tasks)) if workers is None else workers
    start = partial(CallPerturber, mode, stage, tuple(imports))
    answers: dict[CallTask, Answer] = {}
    for task, answer in run_tasks(tasks, start, count=count, limits=limits):
        is_crash = isinstance(answer, Crash)
        answers[task] = Answer(reason=str(answer.reason)) if is_crash else answer
        progress(len(answers), len(tasks))
    found: dict[RankKey, PerturbationResults] = {}
    for number, key, view, own in places:
        results = found.setdefault(key, _results(mode, stage))
        for task in own:
            _add(results, view, number, task.name, answers[task])
    return found


def _results(mode: Perturbation, stage: Stage) -> PerturbationResults:
    has_reference = mode in (Perturbation.HIGH_PRECISION, Perturbation.CPU_REFERENCE)
    return PerturbationResults(PerturbationRun(mode=mode, stage=stage, judges_errors=has_reference))


def _add(
    results: PerturbationResults, view: RankView, step: int, call: str, answer: Answer
) -> None:
    if answer.reason:
        results.skipped[answer.reason] += 1
        return
    results.examined += 1
    source = user_line(tuple(view.frames(call))) or ""
    for name, judged in answer.found:
        results.add(PerturbedCall(step=step, name=name, judged=judged, source=source))


class CallPerturber:
    """Perturbs single calls of dumps; one for each process."""

    def __init__(self, mode: Perturbation, stage: Stage, imports: Sequence[str]) -> None:
        """Prepare for calls of any dump.

        Args:
            mode: the change.
            stage: results or input gradients.
            imports: modules to import first.

        Raises:
            UnsupportedError: a module cannot be imported.
        """
        for name in imports:
            import_definitions(name)
        self._mode = mode
        self._stage = stage
        self._view: RankView | None = None
        self._tensors: TensorSource | None = None
        self._place: tuple[str, str] | None = None

    def __call__(self, task: CallTask) -> Answer:
        """Return the judgements of one call."""
        if self._view is None or self._tensors is None or self._place != task[:2]:
            self._view = RankView(Path(task.folder), records_file=task.file)
            self._tensors = TensorSource(self._view)
            self._place = task[:2]
        perturb = _perturber_of(self._view.head.framework)
        self._tensors.begin(task.name)
        try:
            call = recorded_call(self._view, task.name)
            return Answer(perturb(call, self._tensors, self._mode, self._stage))
        except CannotReplayError as exc:
            return Answer(reason=str(exc.reason))
        except (SkippedError, MsprobeError) as exc:
            return Answer(reason=str(exc))


def _perturber_of(framework: str) -> PerturbCall:
    """Return the perturber of a framework, which is imported for it.

    Raises:
        UnsupportedError: there is none, or the framework is not installed.
    """
    module = _PERTURBERS.get(framework)
    if module is None:
        text = f"calls of {framework or 'an unknown framework'} cannot be perturbed"
        raise UnsupportedError(text)
    try:
        return cast("PerturbCall", import_module(module).perturb_call)
    except ImportError as exc:
        raise UnsupportedError(f"perturbing needs {framework}, which is missing") from exc
