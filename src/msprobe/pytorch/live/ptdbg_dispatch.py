# SPDX-License-Identifier: Apache-2.0
"""`PtdbgDispatch`: the documented live comparison and its files, on `live_compare`'s engine."""

from __future__ import annotations

import csv
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from msprobe.checks.accuracy_call import own_words
from msprobe.checks.live_check import LiveChoice, Place
from msprobe.checks.live_results import JudgedCall, LiveResults
from msprobe.checks.verify_call import CallReport, ResultRow
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.errors import UsageError
from msprobe.log import ensure_handler, warn_once
from msprobe.plain_text import reason
from msprobe.pytorch.live.dispatch import LiveMode
from msprobe.pytorch.live.live_call import LiveCall
from msprobe.pytorch.live.live_compare import call_report, run_eagerly, this_rank
from msprobe.pytorch.live.operator_facts import OperatorFacts
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay.runner import REFERENCE

logger = logging.getLogger(__name__)

_RESULT_COLUMNS: Final = (
    "API name",
    "Forward Test Success",
    "Backward Test Success",
    "Message",
)
_DETAIL_COLUMNS: Final = (
    *("Npu Name", "Bench Dtype", "NPU Dtype", "Shape", "error_balance", "max_abs_diff"),
    *("max_abs_idx", "max_rel_diff", "max_rel_idx", "eb_thd", "error_thd", "Status", "Message"),
)
# The documented limits of the mean error and of the largest one. They decide nothing here.
_BALANCE_LIMITS: Final = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_ERROR_LIMITS: Final = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
_LIMIT: Final = 2.0**-14


class DumpMode(StrEnum):
    """Calls whose tensors are saved."""

    OFF = "OFF"
    ALL = "all"
    LIST = "list"
    AUTO = "auto"


class PtdbgDispatch:
    """Compares each operator inside of its context with the CPU in float64, as documented.

    A result is judged by its own error, as by `live_compare`: values below 1 as all others, and a
    bias in both directions. The documented limits are written beside it.
    """

    def __init__(
        self,
        dump_mode: str = "OFF",
        api_list: Sequence[str] | None = None,
        dump_path: str | Path | None = None,
        tag: str | None = None,
        process_num: int = 0,
        debug: bool = False,
    ) -> None:
        """Choose what is saved; nothing is written before the context is entered.

        Args:
            dump_mode: calls whose tensors are saved: ``OFF`` none, ``all``, ``list`` those of
                `api_list`, ``auto`` those that fail.
            api_list: names of operators: ``add``, ``aten.add``, ``aten.add.Tensor``.
            dump_path: folder in which the folder of this run is made; None for the current one.
            tag: part of that folder's name.
            process_num: accepted; judging needs the tensors of this process, and is done in it.
            debug: whether each call is logged.

        Raises:
            UsageError: an argument cannot be used.
        """
        if dump_mode not in list(DumpMode):
            raise UsageError(f"PtdbgDispatch: dump_mode is {dump_mode!r}; use OFF, all, list, auto")
        if dump_mode == DumpMode.LIST and not api_list:
            raise UsageError('PtdbgDispatch: dump_mode "list" needs an api_list')
        if isinstance(api_list, str):
            raise UsageError("PtdbgDispatch: api_list is a list of names, not a text")
        if process_num < 0:
            raise UsageError(f"PtdbgDispatch: process_num is {process_num}; use 0 or more")
        stamp = time.strftime("%Y%m%d%H%M%S")
        name = "_".join(filter(None, ("atat", tag, f"rank{this_rank()}", stamp)))
        self.results = LiveResults()
        self.folder = Path(dump_path or ".") / name
        self._mode_of_dump = DumpMode(dump_mode)
        self._names = tuple(api_list or ())
        self._debug = debug
        self._files = _Files(self.folder, stamp)
        self._numbers: Counter[str] = Counter()
        self._dispatch = LiveMode(LiveChoice(), self._judge, self.results.left_out)
        self._undo = ExitStack()

    def __enter__(self) -> PtdbgDispatch:
        """Begin to compare."""
        ensure_handler()
        self._undo.enter_context(run_eagerly())
        self._undo.enter_context(self._dispatch)
        return self

    def __exit__(self, *exc: Any) -> None:
        """End it, and log the answer."""
        self._undo.__exit__(*exc)
        self.results.steps += 1
        answer = "\n".join(self.results.lines())
        logger.info("PtdbgDispatch: %s\n  files: %s", answer, self.folder)

    def _judge(self, facts: OperatorFacts, place: Place, call: LiveCall) -> None:
        """Judge one call and write its rows; runs in a thread of its own."""
        report = call_report(call, REFERENCE)
        judged = JudgedCall(
            operator=facts.overload,
            is_backward=place.is_backward,
            module=place.module,
            source=place.source,
            step=self.results.steps,
            report=report,
        )
        self.results.add(judged)
        name = f"{facts.api}_{self._numbers[facts.api]}"
        self._numbers[facts.api] += 1
        message = _message(report)
        if self._debug:
            logger.info("%s: %s", name, message or report.verdict)
        passes = str(not report.is_fault).upper() if report.is_judged else "SKIP"
        sides = ("", passes) if place.is_backward else (passes, "")
        self._files.result((name, *sides, message))
        for row in report.rows:
            self._files.detail(_detail(name, row, call))
        if self._wants_tensors(facts, judged):
            self._files.tensors(name, call)

    def _wants_tensors(self, facts: OperatorFacts, call: JudgedCall) -> bool:
        if self._mode_of_dump is DumpMode.AUTO:
            return call.report.is_fault
        if self._mode_of_dump is DumpMode.LIST:
            short = facts.overload.rpartition(".")[0]
            return any(name in self._names for name in (facts.api, short, facts.overload))
        return self._mode_of_dump is DumpMode.ALL


class _Files:
    """The documented files; rows are there as soon as they are known."""

    def __init__(self, folder: Path, stamp: str) -> None:
        self._folder = folder
        self._results = folder / f"accuracy_checking_result_{stamp}.csv"
        self._details = folder / f"accuracy_checking_details_{stamp}.csv"

    def result(self, row: Sequence[Any]) -> None:
        """Add a row to the file of results."""
        self._append(self._results, _RESULT_COLUMNS, row)

    def detail(self, row: Sequence[Any]) -> None:
        """Add a row to the file of details."""
        self._append(self._details, _DETAIL_COLUMNS, row)

    def _append(self, path: Path, columns: Sequence[str], row: Sequence[Any]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            with path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerows([columns, row] if is_new else [row])
        except OSError as exc:
            _say(path, exc)

    def tensors(self, name: str, call: LiveCall) -> None:
        """Save arguments and results of a call, of the device and of the CPU."""
        references, _ = call.results(REFERENCE)
        results = [
            call.tensors.tensor(form) for _, form in call.outputs() if call.tensors.has_values(form)
        ]
        inputs = list(call.tensors.all())[: -len(results) or None]
        sides: Mapping[str, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {
            "npu": (inputs, results),
            "cpu": (inputs, list(references.values())),
        }
        for side, (given, made) in sides.items():
            for part, tensors in (("input", given), ("output", made)):
                for number, tensor in enumerate(tensors):
                    suffix = f".{number}" if len(tensors) > 1 else ""
                    self._save(self._folder / side / f"{name}_{part}{suffix}.npy", tensor)

    def _save(self, path: Path, tensor: torch.Tensor) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, from_torch(tensor).values())
        except OSError as exc:
            _say(path, exc)


def _say(path: Path, exc: OSError) -> None:
    warn_once(logger, str(path), "%s cannot be written: %s", path, reason(exc))


def _message(report: CallReport) -> str:
    """Return why a call fails or could not be judged."""
    if report.reason is not None:
        return ": ".join(filter(None, (report.reason, report.detail)))
    faults = (
        f"{row.slot}: {own_words(row.judgement, row.dtype)}"
        for row in report.rows
        if row.judgement is not None and _fails(row)
    )
    return "; ".join(faults)


def _fails(row: ResultRow) -> bool:
    assert row.judgement is not None
    return row.judgement.verdict.is_fault


def _detail(name: str, row: ResultRow, call: LiveCall) -> Sequence[Any]:
    """Return the documented row of one result."""
    place = tuple(int(part) if part.isdigit() else part for part in row.slot.split("."))
    own = next(
        call.tensors.tensor(form)
        for where, form in call.outputs()
        if ("output", *where) == place and call.tensors.has_values(form)
    )
    reference = call.results(REFERENCE)[0].get(place)
    reference_dtype = "" if reference is None else str(reference.dtype)
    head = (f"{name}_{row.slot}", reference_dtype, str(own.dtype), str(tuple(own.shape)))
    if row.judgement is None or reference is None:
        return (*head, *([""] * 7), "SKIP", ": ".join(filter(None, (row.reason, row.detail))))
    dtype = normal_dtype(str(own.dtype))
    limits = (_BALANCE_LIMITS.get(dtype, _LIMIT), _ERROR_LIMITS.get(dtype, _LIMIT))
    status = str(not _fails(row)).upper()
    return (*head, *_metrics(own, reference), *limits, status, own_words(row.judgement, row.dtype))


def _metrics(own: torch.Tensor, reference: torch.Tensor) -> Sequence[Any]:
    """Return error balance, largest absolute and relative error, with their places."""
    if own.numel() == 0:
        return ("", "", "", "", "")
    expected = reference.reshape(-1).to(torch.float64)
    difference = own.detach().to(expected).reshape(-1) - expected
    sizes = expected.abs()
    balance = float((difference / sizes.clamp(min=1.0)).mean())
    absolute = difference.abs()
    relative = torch.where(sizes > 0, absolute / sizes, torch.where(absolute > 0, math.inf, 0.0))
    places = [int(one.nan_to_num(math.inf).argmax()) for one in (absolute, relative)]
    return (
        balance,
        *(float(absolute[places[0]]), places[0]),
        *(float(relative[places[1]]), places[1]),
    )
