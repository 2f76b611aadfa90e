# SPDX-License-Identifier: Apache-2.0
"""`verify_dump`: judge all calls of a dump, in processes of their own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.checks.judging import SUSPICIOUS, Verdict
from msprobe.checks.verify_call import CallReport, ResultRow, VerifyOptions, verify_call
from msprobe.dump.dump_steps import Dump, RankKey
from msprobe.dump.facts import Facts
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import forward_name
from msprobe.dump.stack_frames import user_line
from msprobe.errors import DumpFormatError, MsprobeError, UsageError
from msprobe.operators.operator import Family
from msprobe.plain_text import place_text
from msprobe.replay.recorded_calls import call_names, recorded_call
from msprobe.replay.reduced_precision import float32_units
from msprobe.replay.references import import_definitions, whole_path
from msprobe.replay.runner import Reason, Runner, runner_for
from msprobe.replay.tensors import TensorSource
from msprobe.replay.workers import Crash, Limits, run_tasks

# Calls for which a further process is worth its start.
_CALLS_A_PROCESS: Final = 200


class CallTask(NamedTuple):
    """One call of a dump.

    Attributes:
        folder: the rank folder.
        file: its file of records.
        name: of the forward record.
    """

    folder: str
    file: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCall:
    """One call of a dump and its judgements.

    Attributes:
        step: number of the step.
        rank: the rank.
        position: place among the calls of the rank.
        report: the judgements.
        source: line of the user's code that made the call; None if unknown.
    """

    step: int
    rank: RankKey
    position: int
    report: CallReport
    source: str | None = None

    @property
    def is_fault(self) -> bool:
        """Whether a result is suspicious or wrong."""
        return self.report.is_fault

    @property
    def worst(self) -> ResultRow | None:
        """The row with the largest error in parts of the allowed one; None if none was judged."""
        rows = [row for row in self.report.rows if row.judgement is not None]
        return max(rows, key=_severity, default=None)

    @property
    def told(self) -> list[ResultRow]:
        """The worst row of each record, forward and backward, that is at fault; else the worst."""
        worst: dict[str, ResultRow] = {}
        for row in sorted(self.report.rows, key=_severity):
            if row.judgement is not None and row.judgement.verdict.is_fault:
                worst[row.record] = row
        return list(worst.values()) or [row for row in (self.worst,) if row is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDump:
    """Judgements of all calls of a dump.

    Attributes:
        path: of the dump.
        calls: in order of steps, ranks and execution.
        notes: what is to be known of the dump as a whole.
    """

    path: Path
    calls: Sequence[VerifiedCall]
    notes: tuple[str, ...] = field(default=())

    def with_verdict(self, verdict: Verdict) -> list[VerifiedCall]:
        """Return the calls with a verdict."""
        return [call for call in self.calls if call.report.verdict is verdict]

    @property
    def judged(self) -> int:
        """Number of calls that were judged."""
        return sum(call.report.is_judged for call in self.calls)

    @property
    def not_judged(self) -> Counter[Reason]:
        """Number of calls that were not judged, by reason."""
        reasons = (call.report.reason for call in self.calls if not call.report.is_judged)
        return Counter(reason or Reason.NO_OUTPUT for reason in reasons)

    @property
    def worst(self) -> list[VerifiedCall]:
        """The calls that are judged, the largest error in parts of the allowed one first."""
        judged = [call for call in self.calls if call.worst is not None]
        return sorted(judged, key=lambda call: _severity(call.worst), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which calls are verified.

    Attributes:
        steps: numbers of steps; empty for all.
        ranks: ranks; empty for all.
        names: texts of which a name has one in it; empty for all.
        scope: names of the first and the last call; None for all.
    """

    steps: Sequence[int] = ()
    ranks: Sequence[int] = ()
    names: Sequence[str] = ()
    scope: tuple[str, str] | None = None

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the selected ones of the names of a rank's calls."""
        found = list(names)
        if self.scope is not None:
            starts, ends = (self._positions(found, end) for end in self.scope)
            found = found[min(starts, default=len(found)) : max(ends, default=-1) + 1]
        return [name for name in found if not self.names or any(one in name for one in self.names)]

    @staticmethod
    def _positions(names: Sequence[str], wanted: str) -> list[int]:
        return [
            i for i, name in enumerate(names) if name == wanted or name.startswith(wanted + ".")
        ]


def verify_dump(
    dump: Dump,
    *,
    selection: Selection | None = None,
    device: str = "cpu",
    imports: Sequence[str] = (),
    workers: int | None = None,
    limits: Limits | None = None,
    scheduler: str | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> VerifiedDump:
    """Run every call of a dump again in float64 and judge what was recorded.

    Args:
        dump: an open dump.
        selection: which calls; None for all.
        device: where calls are run again whose results were not recorded.
        imports: modules that define custom operators and functions, or reference functions.
        workers: processes; None for as many as pay off, 0 to work in this one.
        limits: time and memory of each call.
        scheduler: address of a dask cluster that does the work, ``tcp://host:port``; its workers
            see the dump under the same path.
        progress: called with the numbers of calls done and of all calls.

    Raises:
        UnsupportedError: the framework of the dump cannot be replayed here.
        DumpFormatError: the file of records is damaged.
        UsageError: the selection matches no call, there is no such device, or no cluster answers.
    """
    wanted = selection or Selection()
    found: list[VerifiedCall] = []
    notes: list[str] = []
    places = selected_calls(dump, wanted, notes)
    tasks = [task for *_, own in places for task in own]
    if device != "cpu" and places:
        device = runner_for(places[0][2].head.framework).device(device)
    start = partial(CallVerifier, device, tuple(map(whole_path, imports)))
    reports = dict(_reports(tasks, start, workers, limits, progress, scheduler))
    for number, key, view, own in places:
        for position, task in enumerate(own):
            found.append(
                VerifiedCall(
                    step=number,
                    rank=key,
                    position=position,
                    report=reports[task],
                    source=user_line(tuple(view.frames(task.name))),
                )
            )
    return VerifiedDump(path=dump.path, calls=found, notes=tuple(notes))


def verify_calls(
    tasks: Sequence[CallTask], *, limits: Limits | None = None
) -> Mapping[CallTask, CallReport]:
    """Return the judgements of single calls, made in one process of their own.

    Args:
        tasks: the calls.
        limits: time and memory of each call.

    Raises:
        UnsupportedError: the framework of a dump cannot be replayed here.
    """
    start = partial(CallVerifier, "cpu", ())
    return dict(_reports(tasks, start, 1, limits, lambda done, total: None))


def _extent(dump: Dump) -> str:
    ranks = dict.fromkeys(str(key) for step in dump.steps.values() for key in step.ranks)
    return f"steps {', '.join(map(str, dump.steps))} and ranks {', '.join(ranks)}"


def selected_calls(
    dump: Dump, selection: Selection, notes: list[str]
) -> list[tuple[int, RankKey, RankView, list[CallTask]]]:
    """Return the ranks of each step with their calls.

    Args:
        dump: an open dump.
        selection: which calls.
        notes: gets what is said of ranks.

    Raises:
        UsageError: nothing is selected.
    """
    places = list(_places(dump, selection, notes))
    if selection != Selection() and not any(own for *_, own in places):
        raise UsageError(
            f"{dump.path}: no call is selected; it has {_extent(dump)}; choose others with "
            "--list, --scope, --step or --rank"
        )
    return places


def _places(
    dump: Dump, selection: Selection, notes: list[str]
) -> Iterator[tuple[int, RankKey, RankView, list[CallTask]]]:
    for number, step in dump.steps.items():
        if selection.steps and number not in selection.steps:
            continue
        for key, view in step.ranks.items():
            if selection.ranks and key not in selection.ranks and view.rank is not None:
                continue
            notes += [f"{place_text(number, key)}: {text}" for text in view.ignore_damaged()]
            reason = view.incomplete_reason
            if reason is not None:
                notes.append(f"{place_text(number, key)}: {reason}")
            alone = sum(1 for _ in _gradients_alone(view))
            if alone:
                text = f"{alone} records of gradients are not judged: their calls have no record"
                notes.append(f"{place_text(number, key)}: {text}")
            names = selection.of(call_names(view))
            if view.head.level == "mix":  # the calls inside of modules are there, too
                names = [name for name in names if not view.records.parsed(name).is_module]
            folder, file = str(view.directory.resolve()), view.records_path.name
            yield number, key, view, [CallTask(folder, file, name) for name in names]


def _gradients_alone(view: RankView) -> Iterator[str]:
    """Yield the records of gradients whose call has no forward record."""
    for name in view.records:
        forward = forward_name(view.records.parsed(name))
        if forward is not None and forward not in view.records:
            yield name


def _reports(
    tasks: Sequence[CallTask],
    verifier: Callable[[int], CallVerifier],
    workers: int | None,
    limits: Limits | None,
    progress: Callable[[int, int], object],
    scheduler: str | None = None,
) -> Iterator[tuple[CallTask, CallReport]]:
    """Yield the report of each call."""
    count = process_count(len(tasks)) if workers is None else workers
    if scheduler is not None:
        count = 1  # on each worker of the cluster
    start = partial(verifier, max(count, 1))
    answers = run_tasks(tasks, start, count=count, limits=limits, scheduler=scheduler)
    for done, (task, answer) in enumerate(answers, 1):
        progress(done, len(tasks))
        if isinstance(answer, Crash):
            yield task, CallReport(name=task.name, reason=answer.reason, detail=answer.detail)
        else:
            yield task, answer


def process_count(calls: int) -> int:
    """Return how many processes pay off for so many calls."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, -(-calls // _CALLS_A_PROCESS)))


class CallVerifier:
    """Verifies single calls of dumps; one for each process."""

    def __init__(self, device: str, imports: Sequence[str], processes: int) -> None:
        """Prepare for calls of any dump.

        Args:
            device: where calls are run again whose results were not recorded.
            imports: modules to import first.
            processes: how many share the cores of this machine.

        Raises:
            ConfigFileError: a file cannot be run.
            UnsupportedError: a module cannot be imported.
        """
        for name in imports:
            import_definitions(name)
        self._device = device
        self._processes = processes
        self._ranks: dict[tuple[str, str], _Rank] = {}

    def __call__(self, task: CallTask) -> CallReport:
        """Return the judgements of one call."""
        key = (task.folder, task.file)
        rank = self._ranks.get(key)
        if rank is None:
            self._ranks.clear()
            rank = self._ranks[key] = _Rank(RankView(Path(task.folder), records_file=task.file))
            rank.runner.share_cores(self._processes)
        units = {**rank.units, **rank.runner.float32_units(rank.target or self._device)}
        options = VerifyOptions(device=self._device, units=units)
        try:
            call = recorded_call(rank.view, task.name)
        except DumpFormatError as exc:
            return CallReport(name=task.name, reason=Reason.DAMAGED, detail=str(exc))
        return verify_call(call, rank.runner, rank.tensors, options)


class _Rank:
    """Settings that all calls of a rank share."""

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.runner: Runner = runner_for(view.head.framework)
        self.tensors = TensorSource(view)

    @cached_property
    def _facts(self) -> Facts | None:
        try:
            return self.view.facts
        except MsprobeError:
            return None

    @cached_property
    def target(self) -> str:
        """The kind of device whose results MindSpore recorded, such as ascend; else empty."""
        settings = {} if self._facts is None else self._facts.settings
        return str(settings.get("mindspore.device_target", "")).lower()

    @cached_property
    def units(self) -> Mapping[Family, float]:
        """The unit roundoff of float32 where it was recorded, of families where it is coarser."""
        facts = self._facts
        if facts is None:  # convolutions have these products unless they are told not to
            return float32_units(on_accelerator=True, matmul_precision="highest", cudnn_tf32=True)
        settings = facts.settings
        return float32_units(
            on_accelerator=any(name.startswith(("cuda", "npu")) for name in facts.random),
            matmul_precision=str(settings.get("torch.float32_matmul_precision", "highest")),
            cudnn_tf32=str(settings.get("torch.cudnn_allow_tf32")) == "True",
        )


def _severity(row: ResultRow | None) -> tuple[int, float]:
    if row is None or row.judgement is None:
        return (-1, 0.0)
    judgement = row.judgement
    is_fault = judgement.ratio > SUSPICIOUS or judgement.verdict is Verdict.WRONG
    return (judgement.verdict.severity if is_fault else 0, judgement.ratio)
