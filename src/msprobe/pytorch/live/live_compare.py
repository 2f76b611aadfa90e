# SPDX-License-Identifier: Apache-2.0
"""`live_compare`: judge each operator of a running training against a reference, as it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from msprobe.checks.live_check import LiveCheck, LiveChoice, Place
from msprobe.checks.verify_call import CallReport, Seen, VerifyOptions, verify_prepared
from msprobe.errors import UsageError
from msprobe.log import ensure_handler
from msprobe.pytorch.interception.compiled import silence_hook_warning
from msprobe.pytorch.live.dispatch import LiveMode
from msprobe.pytorch.live.live_call import LiveCall
from msprobe.pytorch.live.operator_facts import OperatorFacts
from msprobe.pytorch.live.screening import screened
from msprobe.pytorch.replay.devices import find_device
from msprobe.pytorch.replay.runner import RUNNER
from msprobe.replay.runner import CannotReplayError, Setting

_DTYPES: Final = ("float64", "float32")


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
    choice = LiveChoice.checked(
        operators=operators,
        modules=modules,
        device=device,
        every_n=every_n,
        max_calls=max_calls,
        max_bytes=max_bytes,
    )
    return LiveCompare(_setting(reference), choice, Path(dump_path), save=save)


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


class LiveCompare(LiveCheck):
    """Judges operators while its context is entered."""

    def __init__(self, setting: Setting, choice: LiveChoice, folder: Path, *, save: bool) -> None:
        """Use `live_compare`."""
        super().__init__(folder, this_rank, save=save)
        self._setting = setting
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

    def __exit__(self, *exc: Any) -> None:
        """End the step: write the table, and say what is new."""
        self._is_on = False
        self._undo.__exit__(*exc)
        self.end_step()

    def _judge(self, facts: OperatorFacts, place: Place, call: LiveCall) -> None:
        """Judge one call, in a thread of its own."""
        report = partial(call_report, call, self._setting)
        self.judge(facts.overload, place, call.call, call.tensors, report)


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
