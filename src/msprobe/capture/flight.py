# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the last steps of a run in memory, written when something happens."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from msprobe.capture import signals
from msprobe.capture.account import Account
from msprobe.capture.nonfinite_records import MOST_SKIPPED
from msprobe.capture.signals import SignalRequest
from msprobe.dump.facts import Clip, Ended, Ending, Loss, OptimizerStep, Scaler
from msprobe.dump.writer import RankDump

_GRADIENT_NORM: Final = "gradient norm"

Spikes = Callable[[Mapping[str, float]], str | None]
OnWritten = Callable[[int, Path, str], None]
"""Is told that steps were written: number and folder of the last one, and why."""


@dataclass(slots=True)
class KeptStep:
    """A step that is held in memory.

    Attributes:
        dump: its records.
        account: its counts.
        fields: further fields of ``account.json``.
    """

    dump: RankDump
    account: Account
    fields: dict[str, Any]


class StepNumbers:
    """Takes the facts of a step, and keeps the loss and the gradient norm.

    Attributes:
        of: name → value.
        has_skipped: whether a gradient scaler skipped the update.
    """

    def __init__(self, dump: RankDump) -> None:
        """Hand the facts on to `dump`."""
        self._dump = dump
        self.of: dict[str, float] = {}
        self.has_skipped = False

    @property
    def has_finite_losses(self) -> bool:
        """Whether the loss is known, and all of its parts are finite."""
        return "loss" in self.of and all(
            math.isfinite(value) for name, value in self.of.items() if name != _GRADIENT_NORM
        )

    def put_fact(self, part: str, value: Any) -> None:
        """Take a part of the facts, or an entry of it."""
        self._dump.put_fact(part, value)
        if isinstance(value, Loss) and value.value is not None:
            self.of[f"loss of backward pass {value.micro}" if value.micro else "loss"] = value.value
        elif isinstance(value, Clip) and value.total_norm is not None:
            self.of[_GRADIENT_NORM] = value.total_norm
        elif isinstance(value, Scaler):
            self.has_skipped = self.has_skipped or bool(value.skipped)
        elif isinstance(value, OptimizerStep):
            norms = [norm for norm in value.parameters.gradient.norm if norm is not None]
            if norms:
                self.of.setdefault(_GRADIENT_NORM, math.hypot(*norms))


class FlightRecorder:
    """Keeps the last steps, and decides when they are written.

    A condition that lasts is one event: the steps are written when it begins.

    Attributes:
        kept: the steps, oldest first.
        numbers: of the current step.
        on_written: is told of it; None for nothing.
        spikes: judges loss and gradient norm of each step; None where nothing does.
    """

    def __init__(self, size: int) -> None:
        """Create it for so many steps; from now on SIGUSR1 asks for them."""
        self.kept: deque[KeptStep] = deque()
        self.numbers: StepNumbers | None = None
        self.spikes: Spikes | None = None
        self.on_written: OnWritten | None = None
        self._size = size
        self._asked_for: str | None = None
        self._was_bad = False
        self._skipped = 0
        self._signal = SignalRequest(partial(self.ask, signals.NAME))

    def close(self) -> None:
        """Forget the steps, and let go of the signal."""
        self.forget()
        self._signal.close()

    def forget(self) -> None:
        """Forget the steps."""
        while self.kept:
            self.kept.popleft().dump.discard()

    def ask(self, reason: str) -> None:
        """Have the steps written when the current one ends."""
        self._asked_for = self._asked_for or reason

    def watch(self, dump: RankDump) -> StepNumbers:
        """Return what takes the facts of a step that begins."""
        self.numbers = StepNumbers(dump)
        return self.numbers

    def keep(self, step: KeptStep) -> None:
        """Keep a step that is over; the oldest goes if there are too many."""
        step.dump.park()
        self.kept.append(step)
        if len(self.kept) > self._size:
            self.kept.popleft().dump.discard()

    def why_now(self, ended: Ended, is_bad: bool) -> str | None:
        """Return why the steps are to be written now, None if nothing has happened.

        Args:
            ended: how the step ended.
            is_bad: whether a record of it shows NaN or +Inf.
        """
        reasons: list[str] = []
        if self._asked_for is not None:
            reasons.append(self._asked_for)
            self._asked_for = None
        if ended.how is Ending.INTERRUPTED:
            reasons.append(f"exception: {ended.exception}")
        is_bad = is_bad and not self._looks_for_scale()
        if is_bad and not self._was_bad:
            reasons.append("NaN or Inf")
        self._was_bad = is_bad
        numbers = {} if self.numbers is None else self.numbers.of
        spike = None if self.spikes is None else self.spikes(numbers)
        if spike is not None:
            reasons.append(spike)
        return "; ".join(reasons) or None

    def _looks_for_scale(self) -> bool:
        """Return whether a gradient scaler dealt with an overflow of the step's gradients."""
        numbers = self.numbers
        if numbers is None or not numbers.has_skipped:
            self._skipped = 0
            return False
        self._skipped += 1
        return numbers.has_finite_losses and self._skipped <= MOST_SKIPPED
