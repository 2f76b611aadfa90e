# SPDX-License-Identifier: Apache-2.0
"""The training around the calls of a step: loss, clipping, scaler, optimizers, schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from msprobe.dump.facts import Clip, Facts, OptimizerStep, Scaler, Schedule
from msprobe.plain_text import count_text, plain
from msprobe.report.value_text import number_text

_MOST: Final = 4  # of each kind


def training_texts(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield labels and what is known of each, the most telling numbers of each kind."""
    events = facts.events
    for label, found, between in (
        ("loss", [number_text(loss.value) for loss in facts.loss], ", "),
        ("clipping", [_clip(one) for one in events if isinstance(one, Clip)], "; "),
        ("scaler", [_scaler(one) for one in events if isinstance(one, Scaler)], "; "),
        ("optimizer", [_optimizer(one) for one in facts.optimizer_steps()], "; "),
        ("schedule", [_schedule(one) for one in events if isinstance(one, Schedule)], "; "),
    ):
        if found:
            yield label, _some(found, between)


def _some(texts: Sequence[str], between: str) -> str:
    left = len(texts) - _MOST
    return between.join(texts[:_MOST]) + (f" … ({left} more)" if left > 0 else "")


def _clip(event: Clip) -> str:
    name, limit = plain(event.function), number_text(event.max)
    if event.norm_type is None:
        return f"{name}: elements up to {limit}"
    return f"{name}: norm {number_text(event.total_norm)}, limit {limit}"


def _scaler(event: Scaler) -> str:
    skipped = ", the update was skipped" if event.skipped else ""
    return f"scale {number_text(event.scale)}, then {number_text(event.new_scale)}{skipped}"


def _optimizer(event: OptimizerStep) -> str:
    name = plain(event.class_name.rpartition(".")[2])
    rates = list(dict.fromkeys(str(group.options.get("lr")) for group in event.groups))
    counted = count_text(len(event.parameters.name), "parameter")
    known = [norm for norm in event.parameters.gradient.norm if norm is not None]
    norm = number_text(math.hypot(*known)) if known else "unknown"
    return f"{name}: lr {plain(', '.join(rates))}, {counted}, gradient norm {norm}"


def _schedule(event: Schedule) -> str:
    name = plain(event.class_name.rpartition(".")[2])
    return f"{name}: lr {', '.join(map(number_text, event.lr))} from now on"
