# SPDX-License-Identifier: Apache-2.0
"""Check a run against the log of its training: losses, gradient norms, rates, loss scales."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from msprobe.errors import UsageError
from msprobe.monitor.collecting.run_numbers import GRAD_NORM
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.reduction import clipping, total_norms
from msprobe.monitor.rows import VALUE, Stream
from msprobe.plain_text import reason

# How a log calls what the run calls by the first name.
_NAMES: Final = {
    "loss": r"(?:lm |train(?:ing)?[ _])?loss",  # not "val loss", nor "load balancing loss"
    "grad_norm": r"(?:global[ _])?grad(?:ient)?[ _]norm",
    "lr.0": r"learning[ _]rate|lr",
    "loss_scale": r"loss[ _]scale",
}
_NUMBER: Final = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|[+-]?inf)\b"
_STEP: Final = re.compile(r"\b(?:iteration|iter|step)['\"]?\s*[:=\[]?\s*(\d+)", re.IGNORECASE)
_OTHERS: Final = "".join(
    f"(?<!{word} )" for word in ("val", "valid", "validation", "eval", "test", "balancing", "aux")
)
_PATTERNS: Final = {
    name: re.compile(rf"(?<!\w){_OTHERS}(?:{words})['\"]?\s*[:= ]\s*['\"]?{_NUMBER}", re.IGNORECASE)
    for name, words in _NAMES.items()
}
# Norms and losses in a log were added up in float32.
_ROUNDING: Final = 1e-5
_WAYS: Final = {
    "mean over ranks and micro steps": ("mean", "mean"),
    "sum over micro steps, mean over ranks": ("sum", "mean"),
    "of the first rank, mean over micro steps": ("mean", "first"),
    "of the first rank, sum over micro steps": ("sum", "first"),
}
_OF_GRADIENTS: Final = "of grad_reduced, all parameters and ranks together"


class Logged(NamedTuple):
    """A number in a log.

    Attributes:
        value: the number.
        half_digit: half a unit of its last digit.
    """

    value: float
    half_digit: float

    def agrees(self, value: float) -> bool:
        """Return whether a value would be printed like this, up to rounding in float32."""
        if not math.isfinite(self.value):
            return self.value == value or (math.isnan(self.value) and math.isnan(value))
        return abs(value - self.value) <= self.half_digit * 1.001 + _ROUNDING * abs(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A step in which a value is not what it must be.

    Attributes:
        step: the step.
        expected: the number of the log, or of the gradients before their reduction.
        recorded: the number of the run.
        parameter: the parameter whose gradient it is; empty without one.
    """

    step: int
    expected: float
    recorded: float
    parameter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far one quantity is what it must be.

    Attributes:
        name: as the run calls it.
        way: how the run's rows of a step were put together.
        steps: that were compared.
        apart: those in which it differs, for gradients with each parameter.
        first: the number that the log has for the run's first step; None without a log.
    """

    name: str
    way: str
    steps: int
    apart: tuple[Apart, ...]
    first: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def check_log(run: MonitorRun, log: Path, *, first: int | None = None) -> list[Agreement]:
    """Compare every number that a log and a run have of the same step.

    Args:
        run: the run.
        log: text with a line for each step, such as those of Megatron-LM and transformers; a line
            without ``step`` or ``iteration`` is taken for the step after the one before.
        first: the number in the log of the run's first step; None for what agrees best of that
            step's own number and the next one, as logs count from 0 or from 1.

    Returns:
        One entry for each quantity; numbers agree where the run's is the log's up to its last
        digit and the rounding of float32.

    Raises:
        UsageError: the log cannot be read, or has no step and quantity of the run.
    """
    logged = _read(log)
    recorded = _recorded(run)
    norms = _norms_before_clipping(run)
    steps = run.steps()
    begin = steps[0] if steps else 0
    shifts = [0, 1] if first is None else [first - begin]
    found = [_agreements(logged, recorded, norms, begin, shift) for shift in shifts]
    best = max(found, key=lambda one: sum(each.steps - len(each.apart) for each in one))
    if not best:
        names = ", ".join(_NAMES)
        raise UsageError(f"{log}: no line has a step of {run.path} and one of {names}")
    return best


def _read(log: Path) -> dict[str, dict[int, Logged]]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"--log {log}: {reason(error)}") from error
    found: dict[str, dict[int, Logged]] = {name: {} for name in _NAMES}
    step = 0
    for line in lines:
        numbers = dict(_numbers(line))
        if not numbers:
            continue
        told = _STEP.search(line)
        step = int(told[1]) if told else step + 1
        for name, number in numbers.items():
            found[name][step] = number
    return found


def _numbers(line: str) -> Iterator[tuple[str, Logged]]:
    for name, pattern in _PATTERNS.items():
        match = pattern.search(line)
        if match:
            exponent = Decimal(match[1]).as_tuple().exponent
            half = 0.5 * 10.0**exponent if isinstance(exponent, int) else 0.0
            yield name, Logged(float(match[1]), half)


def _recorded(run: MonitorRun) -> dict[str, dict[str, dict[int, float]]]:
    """Return the values of each step by quantity and by way."""
    import polars as pl

    if Stream.RUN not in run.streams:
        return {}
    table = run.table(Stream.RUN).filter(pl.col("name").is_in(list(_NAMES)))
    found: dict[str, dict[str, dict[int, float]]] = {}
    for (name,), rows in table.group_by("name"):
        by_rank = rows.group_by("step", "rank").agg(
            pl.col(VALUE).mean().alias("mean"), pl.col(VALUE).sum().alias("sum")
        )
        by_step = by_rank.sort("rank").group_by("step", maintain_order=True)
        found[str(name)] = {}
        for way, (of_micro_steps, of_ranks) in _WAYS.items():
            column = pl.col(of_micro_steps)
            values = by_step.agg(column.mean() if of_ranks == "mean" else column.first())
            found[str(name)][way] = dict(values.iter_rows())
    return found


def _norms_before_clipping(run: MonitorRun) -> dict[int, float]:
    factors = clipping(run)
    return {
        step: norm * (1.0 if math.isnan(factor := factors.get(step, 1.0)) else factor)
        for step, norm in total_norms(run).items()
    }


def _agreements(
    logged: Mapping[str, Mapping[int, Logged]],
    recorded: Mapping[str, Mapping[str, Mapping[int, float]]],
    norms: Mapping[int, float],
    begin: int,
    shift: int,
) -> list[Agreement]:
    found = []
    for name, numbers in logged.items():
        ways = [
            _agreement(name, way, numbers, values, begin, shift)
            for way, values in recorded.get(name, {}).items()
        ]
        best = min(ways, key=lambda one: len(one.apart), default=None)
        if best is not None and best.steps:
            found.append(best)
    of_all = _agreement(GRAD_NORM, _OF_GRADIENTS, logged[GRAD_NORM], norms, begin, shift)
    return [*found, of_all] if of_all.steps else found


def _agreement(
    name: str,
    way: str,
    numbers: Mapping[int, Logged],
    values: Mapping[int, float],
    begin: int,
    shift: int,
) -> Agreement:
    both = [
        (step, numbers[step + shift], values[step])
        for step in sorted(values)
        if step + shift in numbers
    ]
    apart = tuple(
        Apart(step=step, expected=one.value, recorded=value)
        for step, one, value in both
        if not one.agrees(value)
    )
    first = begin + shift
    return Agreement(name=name, way=way, steps=len(both), apart=apart, first=first)
