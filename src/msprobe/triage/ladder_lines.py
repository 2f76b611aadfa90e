# SPDX-License-Identifier: Apache-2.0
"""The rungs of `climb`, for the terminal, for programs and for exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.text import Text

from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.records import JsonTree
from msprobe.plain_text import plain
from msprobe.report.fact_lines import fact_lines, list_lines, title_lines
from msprobe.triage.rungs import Answer, Rung, RungResult, Triage

SCHEMA_VERSION: Final = 1
_RUNG_WIDTH: Final = max(len(rung.words) for rung in Rung) + 4
_ANSWERS: Final = {
    Answer.AGREES: ("agrees", "green"),
    Answer.DIFFERS: ("differs", "yellow"),
    Answer.EXPLAINS: ("explains", "bold red"),
    Answer.UNKNOWN: ("cannot be judged", "magenta"),
}
_SECOND_S: Final = 1.0

# 2 is an error, as for every command. docs/tasks/triage.md lists them.
EXIT_CODES: Final[Mapping[VerdictClass, int]] = {
    VerdictClass.EQUAL: 0,
    VerdictClass.UNEXPLAINED: 1,
    VerdictClass.SETTINGS: 10,
    VerdictClass.DATA: 11,
    VerdictClass.PARAMETERS: 12,
    VerdictClass.MODE: 13,
    VerdictClass.RANDOM: 14,
    VerdictClass.NONDETERMINISTIC: 15,
    VerdictClass.ARGUMENT: 20,
    VerdictClass.CALL: 21,
    VerdictClass.ORDER: 22,
    VerdictClass.PRECISION: 23,
    VerdictClass.KERNEL: 24,
    VerdictClass.COMMUNICATION: 25,
    VerdictClass.ROUNDING: 26,
    VerdictClass.GRADIENT: 30,
    VerdictClass.CLIPPING: 31,
    VerdictClass.OPTIMIZER_SETTING: 32,
    VerdictClass.SCHEDULE: 33,
    VerdictClass.OPTIMIZER_STATE: 34,
    VerdictClass.UPDATE: 35,
    VerdictClass.INCOMPLETE: 40,
    VerdictClass.DIFFERENT_PROGRAMS: 41,
}
_HARMLESS_IF_PROVED: Final = (VerdictClass.ROUNDING, VerdictClass.PRECISION)


def exit_code(found: Triage) -> int:
    """Return the exit code of a class; 0 if the runs are equal, or rounding is proved."""
    kind = found.verdict_class
    if kind in _HARMLESS_IF_PROVED and found.verdict["confidence"] == Confidence.PROVED:
        return 0
    return EXIT_CODES[kind]


def lines(found: Triage, width: int) -> Iterator[Text]:
    """Yield the verdict, then every rung with its answer and its time, and what to do next."""
    verdict = found.verdict
    yield from fact_lines("verdict", verdict["sentence"], width, "bold")
    for text in verdict["evidence"]:
        yield from fact_lines("evidence", text, width)
    yield Text()
    for result in found.rungs:
        yield from _rung_lines(result, width)
    for title, texts in (("Next", verdict["next"]), ("Notes", found.notes)):
        if texts:
            yield from title_lines(title, width)
            yield from list_lines(texts, width)


def _rung_lines(result: RungResult, width: int) -> Iterator[Text]:
    answer, style = _ANSWERS[result.answer]
    head = f"  {result.rung.words}".ljust(_RUNG_WIDTH)
    yield Text.assemble(
        (head, "bold"), (answer.ljust(18), style), (_time_text(result.elapsed_s), "dim")
    )
    yield from fact_lines("", result.words, width, label_width=_RUNG_WIDTH)
    if result.record is not None:
        yield from fact_lines(
            "", f"to judge it: {result.record}", width, "dim", label_width=_RUNG_WIDTH
        )


def _time_text(elapsed_s: float) -> str:
    if elapsed_s < _SECOND_S:
        return f"{elapsed_s * 1000:.1f} ms"
    return f"{elapsed_s:.1f} s"


def as_json(
    found: Triage, target: Path, reference: Path, again: Path | None
) -> dict[str, JsonTree]:
    """Return all of it for programs (docs/reference/triage.md)."""
    from msprobe import __version__

    return {
        "schema_version": SCHEMA_VERSION,
        "msprobe_version": __version__,
        "target": str(target),
        "reference": str(reference),
        "again": None if again is None else str(again),
        "verdict": dict(found.verdict),
        "exit_code": exit_code(found),
        "step": found.step,
        "rungs": [_rung_json(result) for result in found.rungs],
        "notes": [plain(note) for note in found.notes],
        "elapsed_s": round(found.elapsed_s, 6),
    }


def _rung_json(result: RungResult) -> dict[str, JsonTree]:
    return {
        "name": str(result.rung),
        "answer": str(result.answer),
        "words": result.words,
        "record": result.record,
        "elapsed_s": round(result.elapsed_s, 6),
    }
