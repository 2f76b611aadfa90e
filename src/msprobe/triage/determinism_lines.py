# SPDX-License-Identifier: Apache-2.0
"""Whether a program is deterministic, for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from msprobe.dump.records import JsonTree
from msprobe.plain_text import place_text, plain
from msprobe.report.fact_lines import fact_lines, list_lines, title_lines
from msprobe.triage.determinism import Determinism, FirstDifference, Source

SCHEMA_VERSION: Final = 1
_SHOWN_STEPS: Final = 8
_SEEDS: Final = "seed the program before its model and its data are made: seed_all(seed)"
_CONFIRM: Final = "fix one source of chance after the other: msprobe determinism --confirm …"
_NEXT: Final = {
    Source.DATA: (
        "give the data loader a seeded generator, and seed its workers and augmentations",
    ),
    Source.SEED: (_SEEDS,),
    Source.START: (_SEEDS, "load the same checkpoint in both runs"),
    Source.ENVIRONMENT: ("set PYTHONHASHSEED and the settings above for every run",),
    Source.KERNEL: (
        "try torch.use_deterministic_algorithms(True), or seed_all(seed, mode=True)",
        "give a custom operator a fixed order of summation, and no random numbers of its own",
    ),
    Source.PROGRAM: ("look for decisions by time, by the order of sets or by other processes",),
}


def lines(found: Determinism, width: int) -> Iterator[Text]:
    """Yield the answer, then the first difference and what to do next."""
    yield from fact_lines("verdict", _sentence(found), width, "bold")
    first = found.first
    if first is not None:
        yield from _first_lines(first, width)
        yield from title_lines("Next", width)
        yield from list_lines(_next(found, first), width)
    if found.notes:
        yield from title_lines("Notes", width)
        yield from list_lines(found.notes, width)


def _sentence(found: Determinism) -> str:
    compared = f"{found.values:,} values of {_steps(found.steps)}"
    first = found.first
    if first is not None:
        confirmed = " (confirmed)" if first.confirmed_by else ""
        return f"not deterministic, because of {first.source.words}{confirmed}: {first.words}"
    if found.unjudged:
        return (
            f"no difference found in {compared}, but {found.unjudged:,} tensors have no checksum "
            "and were compared by their statistics"
        )
    return f"deterministic: {compared} are equal to the bit"


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    if len(steps) > _SHOWN_STEPS:
        return f"{len(steps)} steps"
    return f"steps {', '.join(map(str, steps))}"


def _first_lines(first: FirstDifference, width: int) -> Iterator[Text]:
    yield from fact_lines("where", place_text(first.step, first.rank), width)
    if first.record is not None:
        yield from fact_lines("call", first.record, width)
    if first.module:
        yield from fact_lines("module", first.module, width)
    if first.line is not None:
        yield from fact_lines("line", first.line, width)
    if first.draw:
        yield from fact_lines("draw", first.draw, width)
    for text in first.evidence:
        yield from fact_lines("evidence", text, width)
    for other in first.further:
        words = other.record if other.source is None else f"{other.record} ({other.source})"
        yield from fact_lines("also", words, width)


def _next(found: Determinism, first: FirstDifference) -> Sequence[str]:
    was_tried = first.confirmed_by or found.notes
    return _NEXT[first.source] if was_tried else [*_NEXT[first.source], _CONFIRM]


def as_json(found: Determinism) -> dict[str, JsonTree]:
    """Return all of it for programs (docs/tasks/determinism.md)."""
    first = found.first
    return {
        "schema_version": SCHEMA_VERSION,
        "deterministic": found.is_deterministic,
        "sentence": plain(_sentence(found)),
        "steps": list(found.steps),
        "values": found.values,
        "without_checksum": found.unjudged,
        "first": None if first is None else _first_json(first),
        "notes": [plain(note) for note in found.notes],
    }


def _first_json(first: FirstDifference) -> dict[str, JsonTree]:
    return {
        "source": str(first.source),
        "confirmed_by": first.confirmed_by or None,
        "words": plain(first.words),
        "step": first.step,
        "rank": first.rank,
        "record": first.record,
        "value": first.value,
        "module": first.module,
        "line": first.line,
        "draw": plain(first.draw) or None,
        "evidence": [plain(text) for text in first.evidence],
        "further": [{"record": each.record, "line": each.source} for each in first.further],
    }
