# SPDX-License-Identifier: Apache-2.0
"""Numbers of the run: loss, learning rates, norms of all gradients, loss scale, skipped steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msprobe.dump.facts import Clip, Loss, Scaler
from msprobe.monitor.collecting.step_rows import Key, StepRows
from msprobe.monitor.rows import Stream

LOSS = "loss"
GRAD_NORM = "grad_norm"
GRAD_NORM_CLIPPED = "grad_norm_clipped"
GRAD_NORM_PART = "grad_norm_part"
GRAD_NORM_CLIPPED_PART = "grad_norm_clipped_part"
LOSS_SCALE = "loss_scale"
SKIPPED = "skipped"


# Torch, DeepSpeed and Megatron scale gradients by ``limit / (norm + 1e-6)`` where that is below 1.
_CLIP_EPSILON: Final = 1e-6


def clipped_norm(norm: float, limit: float) -> float:
    """Return what clipping to a limit leaves of the norm of all gradients."""
    return norm * min(1.0, limit / (norm + _CLIP_EPSILON))


class Trained(NamedTuple):
    """The model and optimizer that a loss trains.

    Attributes:
        models: numbers of those monitored models of which it trains something.
        others: whether it trains anything else.
    """

    models: frozenset[int]
    others: bool


class ModelLoss(Loss, frozen=True, kw_only=True):
    """A loss of which it is known what it trains.

    Attributes:
        trained: what that is.
    """

    trained: Trained


class ClipOfParts(Clip, frozen=True, kw_only=True):
    """A call that limits gradients of which ranks have parts.

    Attributes:
        part: the norm before of what this rank has.
        copies: how many ranks have the same.
    """

    part: float
    copies: int


class RunNumbers:
    """Takes the facts of a step (a `FactSink`) that are numbers of the run.

    Args:
        skipped: called when a scaler kept the optimizer from stepping.
        as_number: returns a setting of an optimizer as a number, None for anything else.

    Attributes:
        rows: of the step; None while nothing is collected.
    """

    def __init__(
        self, skipped: Callable[[], None], as_number: Callable[[Any], float | None]
    ) -> None:
        self.rows: StepRows | None = None
        self._skipped = skipped
        self._as_number = as_number
        self._skips = 0
        self._loss_scale: float | None = None
        self._clipped_from: float | None = None
        self._clipped_to: float | None = None
        self._parts_clipped_from: ClipOfParts | None = None
        self._other_norm: Clip | None = None
        self._losses: dict[Trained, dict[int, float]] = {}
        self._main: Trained | None = None

    def begin_step(self, rows: StepRows | None) -> None:
        """Begin a step, or stop with None."""
        self.rows = rows
        self._clipped_from = self._clipped_to = self._parts_clipped_from = None
        self._other_norm = None
        self._losses.clear()
        if rows is None:
            self._loss_scale = None  # it may change unseen

    def put_fact(self, part: str, value: Any) -> None:
        """Take a fact."""
        match value:
            case ModelLoss() if value.value is not None:
                passes = self._losses.setdefault(value.trained, {})
                passes[value.micro] = passes.get(value.micro, 0.0) + value.value
            case ClipOfParts():
                self._parts_clipped_from = value
            case Clip() if value.norm_type not in (None, 2):
                self._other_norm = value
            case Clip() if value.total_norm is not None:
                self._clipped_from = value.total_norm
                if value.max is not None:
                    self._clipped_to = clipped_norm(value.total_norm, value.max)
            case Scaler():
                if value.new_scale is not None:
                    self._loss_scale = value.new_scale
                    self._skips += bool(value.skipped)
                if value.skipped:  # that of another optimizer, too: its pass went through the model
                    self._skipped()

    def put_losses(self) -> None:
        """Take the losses of the step, of which all facts are there.

        Those that train the same models are one series. ``loss`` is the one that trains most of
        those monitored, and then no others; the rest are told by what they train: ``1.loss``,
        ``0+other.loss``.
        """
        if self._losses and self._main is None:
            self._main = min(
                self._losses, key=lambda one: (-len(one.models), one.others, sorted(one.models))
            )
        for trained, passes in self._losses.items():
            parts = [*map(str, sorted(trained.models)), *["other"] * trained.others]
            name = LOSS if trained == self._main else f"{'+'.join(parts)}.{LOSS}"
            for micro_step, value in enumerate(passes.values()):
                self._put(name, value, micro_step)

    def put_optimizer(
        self,
        groups: Sequence[Mapping[str, Any]],
        total_norm: float | None,
        share: float | None = None,
    ) -> None:
        """Take the settings with which the optimizer steps, and the norm of all gradients.

        Args:
            groups: of the optimizer.
            total_norm: None where this rank does not know it.
            share: this rank's part of it, where it has one of all gradients.
        """
        if self.rows is None or Stream.RUN not in self.rows.streams:
            return
        for number, group in enumerate(groups):
            for name, value in group.items():
                values = value if isinstance(value, tuple | list) and name != "params" else (value,)
                for place, one in enumerate(values):
                    found = self._as_number(one)
                    if found is not None:
                        part = f"[{place}]" if isinstance(value, tuple | list) else ""
                        self._put(f"{name}{part}.{number}", found)
        before = self._norm_before(total_norm)
        if before is not None:
            self._put(GRAD_NORM, before)
        if total_norm is None:  # of gradients that lie on several ranks
            total_norm = self._clipped_to
        if total_norm is not None:
            self._put(GRAD_NORM_CLIPPED, total_norm)
        of_parts = self._parts_clipped_from
        if share is not None and self._other_norm is None:  # of what was before, nothing is known
            of_all = share if of_parts is None else of_parts.part / math.sqrt(of_parts.copies)
            self._put(GRAD_NORM_PART, of_all)
            self._put(GRAD_NORM_CLIPPED_PART, share)
        if self._loss_scale is not None:
            self._put(LOSS_SCALE, self._loss_scale)
            self._put(SKIPPED, float(self._skips))
        self._skips = 0

    def _norm_before(self, after: float | None) -> float | None:
        """Return the norm of all gradients before they were clipped; None where it is unknown."""
        if after is None:
            return self._clipped_from
        if self._parts_clipped_from is not None:  # this rank has all, and so have others
            return self._parts_clipped_from.part
        other = self._other_norm
        if other is None:
            return after if self._clipped_from is None else self._clipped_from
        if other.total_norm is None or other.max is None:
            return None
        left = clipped_norm(other.total_norm, other.max)
        return after * other.total_norm / left if left else after

    def put_told(self, numbers: Mapping[str, float]) -> None:
        """Take numbers by name that the optimizer tells; they count instead of measured ones."""
        for name, value in numbers.items():
            self._put(name, value)

    def _put(self, name: str, value: float, micro_step: int = 0) -> None:
        if self.rows is not None and Stream.RUN in self.rows.streams:
            self.rows.put_number(Key(name), value, micro_step)
