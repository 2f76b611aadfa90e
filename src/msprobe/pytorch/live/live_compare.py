# SPDX-License-Identifier: Apache-2.0
"""`live_compare`: judge each operator of a running training against a reference, as it runs."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

import torch

from msprobe.checks.accuracy_call import save_tensors
from msprobe.checks.judging import Verdict
from msprobe.checks.live_results import JudgedCall, LiveResults
from msprobe.checks.verify_call import (
    CallReport,
    ResultRow,
    Seen,
    VerifyOptions,
    verify_prepared,
)
from msprobe.dump.layout import safe_file_name
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import MsprobeError, ReportWriteError, UsageError
from msprobe.log import ensure_handler, warn_once
from msprobe.pytorch.interception.compiled import silence_hook_warning
from msprobe.pytorch.live.dispatch import LiveChoice, LiveMode
from msprobe.pytorch.live.live_call import LiveCall
from msprobe.pytorch.live.operator_facts import OperatorFacts
from msprobe.pytorch.live.places import Place
from msprobe.pytorch.live.screening import screened
from msprobe.pytorch.replay.devices import find_device
from msprobe.pytorch.replay.runner import RUNNER
from msprobe.replay.runner import CannotReplayError, Setting

logger = logging.getLogger(__name__)

_DTYPES: Final = ("float64", "float32")
# Unit roundoff of factors in TF32 and in bfloat16.


def live_compare(
    reference: str = "cpu-float64",
    *,
    device: str | None = None,
    dump_path: str | Path = "./live_compare",
    operators: Sequence[str] = (),
    modules: Sequence[str] = (),
    every_n: int = 1,
    max_calls: int | None = None,
    max_bytes: int = 4 << 30,
    save: bool = True,
) -> LiveCompare:
    """Judge each operator against a reference while the training runs.

    The result is a context manager around forward and backward. It may be entered again for each
    step; all steps go into one table, written at the end of each. The training keeps its numbers
    and its random state.

    Args:
        reference: device and type in which references are computed: ``cpu-float64``,
            ``cuda-float64``, ``cpu-float32``. Inputs are raised to the type.
        device: judge only operators that run on this type of device; None for all.
        dump_path: folder of ``live_compare_rank{n}.csv``, the JSON beside it, and tensors.
        operators: patterns of names such as ``mm`` or ``*softmax*``; empty for all.
        modules: patterns of module paths such as ``blocks.0.*``; empty for all.
        every_n: judge one in so many calls of each operator.
        max_calls: judge at most so many calls of each operator.
        max_bytes: leave out calls whose judgement would need more memory.
        save: whether arguments and results are saved where a place has its first fault.

    Raises:
        UsageError: an argument cannot be used.
    """
    if every_n < 1 or (max_calls is not None and max_calls < 1):
        raise UsageError("live_compare: every_n and max_calls are numbers from 1 on")
    choice = LiveChoice(
        operators=_patterns(operators, "operators"),
        modules=_patterns(modules, "modules"),
        device=device,
        every_n=every_n,
        max_calls=max_calls,
        max_bytes=max_bytes,
    )
    return LiveCompare(_setting(reference), choice, Path(dump_path), save=save)


def _patterns(value: Sequence[str], name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        raise UsageError(f"live_compare: {name} is a list of patterns, not a text")
    return tuple(value)


def _setting(reference: str) -> Setting:
    """Return how references are computed.

    Raises:
        UsageError: there is no such device or type.
    """
    device, _, dtype = reference.rpartition("-")
    if dtype not in _DTYPES or not device:
        rule = 'use a device and "float64" or "float32", such as "cpu-float64"'
        raise UsageError(f"live_compare: reference is {reference!r}; {rule}")
    return Setting(device=find_device(device), dtype=dtype)


class LiveCompare:
    """Judges operators while its context is entered.

    Attributes:
        results: findings so far.
        folder: where the files are.
    """

    def __init__(self, setting: Setting, choice: LiveChoice, folder: Path, *, save: bool) -> None:
        """Use `live_compare`."""
        self.results = LiveResults()
        self.folder = folder
        self._setting = setting
        self._saves = save
        self._mode = LiveMode(choice, self._judge, self.results.left_out)
        self._undo = ExitStack()
        self._is_on = False

    def __enter__(self) -> LiveCompare:
        """Begin to judge.

        Raises:
            UsageError: it has been entered already.
        """
        if self._is_on:
            raise UsageError("live_compare: the context is entered already")
        ensure_handler()
        self._is_on = True
        self._undo.enter_context(run_eagerly())
        self._undo.enter_context(self._mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the step: write the table, and say what is new."""
        self._is_on = False
        self._undo.__exit__(kind, error, trace)
        if self.results.steps == 0:
            atexit.register(self._at_exit, os.getpid())
        self.results.steps += 1
        self._write()

    @property
    def table_path(self) -> Path:
        """The table of this rank."""
        return self.folder / f"live_compare_rank{this_rank()}.csv"

    def summary(self) -> str:
        """Return the answer in plain text: one sentence, then the worst places."""
        return "\n".join(self.results.lines())

    def _at_exit(self, process: int) -> None:
        if os.getpid() == process:
            logger.info("live_compare: %s\n  table: %s", self.summary(), self.table_path)

    def _write(self) -> None:
        try:
            self.results.write(self.table_path.with_suffix(""))
        except ReportWriteError as exc:
            warn_once(logger, str(exc.path), "live_compare: %s", exc)

    def _judge(self, facts: OperatorFacts, place: Place, call: LiveCall) -> None:
        """Judge one call, in a thread of its own."""
        seen: dict[str, tuple[StoredTensor, StoredTensor]] = {}

        def keep(row: ResultRow, found: StoredTensor, reference: StoredTensor) -> None:
            assert row.judgement is not None
            if row.judgement.verdict in (Verdict.SUSPICIOUS, Verdict.WRONG):
                seen[f"{row.record}.{row.slot}"] = (found, reference)

        report = call_report(call, self._setting, keep)
        judged = JudgedCall(
            operator=facts.overload,
            is_backward=place.is_backward,
            module=place.module,
            source=place.source,
            step=self.results.steps,
            report=report,
        )
        new = self.results.add(judged)
        if not new:
            return
        name = safe_file_name(call.call.name.removesuffix(".forward"))
        saved = Path(f"rank{this_rank()}") / f"step{judged.step}" / name
        if self._saves and self._save(self.folder / saved, call, seen):
            for row in new:
                row.saved = str(saved)
        self._write()

    def _save(
        self, folder: Path, call: LiveCall, seen: dict[str, tuple[StoredTensor, StoredTensor]]
    ) -> bool:
        try:
            save_tensors(folder, call.call, call.tensors, seen)
        except MsprobeError as exc:
            warn_once(logger, type(exc).__name__, "live_compare: no tensors saved: %s", exc)
            return False
        return True


def call_report(call: LiveCall, setting: Setting, seen: Seen | None = None) -> CallReport:
    """Return the judgements of a call.

    Args:
        call: the call.
        setting: how its reference is computed.
        seen: is given each row that was judged in full, with the tensor and its reference.
    """
    units = RUNNER.float32_units(max((one.device.type for one in call.tensors.all()), default=""))
    options = VerifyOptions(units=units, reference=setting)
    try:
        found = screened(call, setting, units)
        return found or verify_prepared(call.call, call, call.tensors, options, seen)
    except CannotReplayError as exc:
        return CallReport(name=call.call.name, reason=exc.reason, detail=exc.detail)


def run_eagerly() -> ExitStack:
    """Return a context in which compiled code runs eagerly: fused kernels have no operators."""
    found = ExitStack()
    if "torch._dynamo" in sys.modules:
        silence_hook_warning(found)
        found.enter_context(torch.compiler.set_stance("force_eager"))
    return found


def this_rank() -> int:
    """Return the rank of this process, 0 without a process group."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0") or 0)
