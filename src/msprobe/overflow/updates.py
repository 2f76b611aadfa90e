# SPDX-License-Identifier: Apache-2.0
"""Updates of parameters that made NaN or Inf out of finite gradients, from ``facts.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from msprobe.dump.dump_steps import RankKey
from msprobe.dump.facts import OptimizedParameters, OptimizerStep
from msprobe.dump.rank_view import RankView
from msprobe.errors import DumpFormatError
from msprobe.overflow.findings import Finding, Place, Source
from msprobe.plain_text import count_text

_SETTINGS: Final = ("lr", "eps", "weight_decay", "betas", "momentum")


def bad_updates(rank: RankKey, view: RankView, position: int) -> Iterator[Finding]:
    """Yield the optimizer steps that made NaN or Inf out of finite parameters and gradients.

    Args:
        rank: the rank.
        view: its dump of the step.
        position: that of the findings, after all records.
    """
    try:
        steps = view.facts.optimizer_steps() if view.facts else []
    except DumpFormatError:
        return
    for step in steps:
        made = _made_bad(step.parameters)
        if made:
            yield Finding(
                place=Place(rank, f"{_class_of(step)}.{step.number}.step.{step.call}"),
                source=Source.UPDATE,
                slots=tuple(step.parameters.name[index] for index in made),
                contents=f"NaN or Inf in {count_text(len(made), 'parameter')} afterwards",
                detail=_detail(step, made),
                position=position,
            )


def _class_of(step: OptimizerStep) -> str:
    return step.class_name.rpartition(".")[2]


def _made_bad(parameters: OptimizedParameters) -> list[int]:
    """Return the parameters that were finite before, with a finite gradient, and are not after."""
    # A damaged file may hold columns of different lengths.
    columns = zip(
        parameters.name,
        parameters.before.norm,
        parameters.gradient.norm,
        parameters.after.norm,
        strict=False,
    )
    return [
        index
        for index, (_, before, gradient, after) in enumerate(columns)
        if _is_finite(before)
        and _is_finite(gradient)
        and after is not None
        and not _is_finite(after)
    ]


def _detail(step: OptimizerStep, made: list[int]) -> str:
    bad_states = [
        name
        for name, values in step.parameters.state.items()
        if any(norm is not None and not _is_finite(norm) for norm in _at(values.norm, made))
    ]
    if bad_states:
        return f"the state held them before: {', '.join(bad_states)}"
    group = next((group for group in step.groups if made[0] in group.parameters), None)
    known = group.options if group else {}
    settings = [f"{name} {known[name]}" for name in _SETTINGS if known.get(name) is not None]
    return f"parameters, gradients and state were finite; {', '.join(settings)}"


def _at(norms: list[float | None], places: list[int]) -> Iterator[float | None]:
    return (norms[place] for place in places if place < len(norms))


def _is_finite(number: float | None) -> bool:
    return number is not None and math.isfinite(number)
