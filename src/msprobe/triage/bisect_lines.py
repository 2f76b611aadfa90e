# SPDX-License-Identifier: Apache-2.0
"""Results of `bisect_runs` as lines of the terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from rich.text import Text

from msprobe.compare.training.differences import are
from msprobe.compare.training.start import BEFORE
from msprobe.dump.records import JsonTree
from msprobe.dump.signature_file import FOLDER, OPTIMIZER_STEPS
from msprobe.plain_text import count_text, few_text, plain
from msprobe.report.value_text import number_text
from msprobe.triage.bisect import Bisection
from msprobe.triage.parted_step import GROUPS, OPTIMIZER, RankParting
from msprobe.triage.parting import Phase

SCHEMA_VERSION: Final = 1

_ALL_ELSE: Final = "with equal parameters, data and random states"
_WORDS: Final = {
    Phase.PARAMETER: "the parameters differ when it begins",
    Phase.DATA: "the model is given other data",
    Phase.RANDOM: "the random generators begin with other states",
    Phase.LOSS: f"the loss differs, {_ALL_ELSE}",
    Phase.GRADIENT: "the gradients differ, with equal losses",
    Phase.SETTINGS: "the optimizer has other settings, and equal gradients",
    Phase.UPDATE: "the updates differ, with equal gradients and settings",
}
# After a drift nothing is equal to the bit any more.
_JUMPS: Final = {
    Phase.PARAMETER: "the parameters jump before it begins",
    Phase.LOSS: "the loss jumps",
    Phase.GRADIENT: "the gradients jump",
    Phase.SETTINGS: "the optimizer has other settings",
    Phase.UPDATE: "the updates jump, with equal settings",
}
_SIDES: Final = ("target", "reference")
_few: Final = partial(few_text, most=3)
_WHOLE_NAME: Final = 3  # parts of a setting's name behind the optimizer's number
_UNFELT: Final = "a small part of the updates jumps, and neither losses nor gradients do"


def sentence(found: Bisection) -> str:
    """Return the answer in one sentence."""
    first = found.first
    if first is None:
        what = "agree in norms and sampled elements" if found.is_sampled else "hold the same bits"
        return f"the runs {what} in their {count_text(found.steps, 'common step')}"
    parting = first.parting
    where = f" of {first.rank}" if found.ranks > 1 else ""
    if parting.jump is None:
        why = (
            "no step differs more than recordings of one program do"
            if found.knows_noise
            else "no step jumps, so this may be rounding that adds up"
        )
        words = plain(_phase_words(first))
        return f"the runs part in step {parting.step}{where}: {words}, and drift from there: {why}"
    drift = f", after a drift from step {parting.step} on" if parting.drifts else ""
    words = _phase_words(first)
    before = BEFORE if found.parted_before else ""
    return plain(f"the runs part in step {parting.jump}{where}{drift}: {words}{before}")


def _phase_words(first: RankParting) -> str:
    """Return how the runs differ in the phase in which they part."""
    if first.phase is Phase.SETTINGS and first.settings:
        return _settings_apart_words(*first.settings[0])
    jumps = first.parting.drifts and first.parting.jump is not None
    size = _size(first.parting.jump_error if jumps else first.parting.error)
    special = "" if first.parting.jump is None else _what_differs(first, jumps)
    words = f"{special or _general_words(first, jumps)}{size}"
    if first.types is not None and first.phase is Phase.PARAMETER:
        count, target, reference = first.types
        some = "all" if count == first.parameters else f"{count} of"
        are = f"{some} {first.parameters} parameters are {target} in the target"
        return f"{are}, {reference} in the reference{size}"
    if first.autocast is not None and first.phase in (Phase.LOSS, Phase.GRADIENT):
        target, reference = (dtype or "the types of its parameters" for dtype in first.autocast)
        return f"autocast: the target computes in {target}, the reference in {reference}; {words}"
    if first.stepless:
        return f"no optimizer of the {first.stepless} makes a step"
    return words


def _general_words(first: RankParting, jumps: bool) -> str:
    return (_JUMPS if jumps else {}).get(first.phase, _WORDS[first.phase])


def _what_differs(first: RankParting, jumps: bool) -> str:
    """Return how a phase differs, if more is known than that."""
    is_gradient = first.phase is Phase.GRADIENT
    if first.phase is Phase.PARAMETER and any(first.alone):
        parts = zip(_SIDES, first.alone, strict=True)
        return ", ".join(f"only the {side} has {_few(names)}" for side, names in parts if names)
    if first.phase is Phase.LOSS:
        return _loss_words(first, jumps)
    words = ""
    if is_gradient and first.factor is not None:
        words = f"all gradients are {number_text(first.factor)} times the reference's"
        words += "" if jumps else ", with equal losses"
        if first.clipping:
            return f"{first.clipping}; {words}"
    elif is_gradient and any(first.lacking):
        words = ", ".join(
            f"{_few(names)} {are(names, 'has', 'have')} no gradient in the {side} alone"
            for side, names in zip(_SIDES, first.lacking, strict=True)
            if names
        )
    if is_gradient and first.clipping:
        words = f"{words or _general_words(first, jumps)}; {first.clipping}"
    return words


def _loss_words(first: RankParting, jumps: bool) -> str:
    target, reference = map(number_text, first.losses)
    numbers = f" {target} instead of {reference}" if target != reference else ""
    if first.has_scaled_loss:
        words = f"the loss and all gradients are {number_text(first.factor)} times the reference's"
    elif jumps or not numbers:
        words = "the loss jumps" if jumps else "the loss differs"
    else:
        words, numbers = f"the loss is{numbers}", ""
    words += numbers and f": the loss is{numbers}"
    return words if jumps else f"{words}, {_ALL_ELSE}"


def _settings_apart_words(name: str, target: Any, reference: Any) -> str:
    """Return the words for a setting that differs: ``AdamW lr is 0.1 in the target, …``."""
    words, option = _setting_words(name), name.rpartition(".")[2]
    kind = words.replace(f" {option}", "", 1)
    if option == OPTIMIZER_STEPS:
        return (
            f"{kind} makes {count_text(target or 1, 'step')} within it in the target, "
            f"{reference or 1} in the reference"
        )
    if option == GROUPS:
        return (
            f"{kind} has {count_text(target, 'group')} in the target, {reference} in the reference"
        )
    if option == OPTIMIZER:
        target, reference = (each or "missing" for each in (target, reference))
        return f"the {words} is {target} in the target, {reference} in the reference"
    return (
        f"{words} is {json.dumps(target)} in the target, {json.dumps(reference)} in the reference"
    )


def _setting_words(name: str) -> str:
    """Return the words for a setting: of ``0.AdamW.1.lr``, ``AdamW lr of group 1``."""
    number, *rest = name.split(".", 3)
    *kind, option = rest if len(rest) < _WHOLE_NAME else (rest[0], rest[2])
    of_group = "" if len(rest) < _WHOLE_NAME or rest[1] == "0" else f" of group {rest[1]}"
    of_optimizer = "" if number == "0" else f" ({OPTIMIZER} {number})"
    return " ".join([*kind, option]) + of_group + of_optimizer


def lines(found: Bisection) -> Iterator[Text]:
    """Yield the answer, what shows it, and what to record next."""
    yield Text(sentence(found), "bold")
    first = found.first
    if first is not None:
        yield from _details(found, first)
    for note in found.notes:
        yield Text(f"  note: {plain(note)}", "yellow")


def _details(found: Bisection, first: RankParting) -> Iterator[Text]:
    parting = first.parting
    if len(found.partings) > 1:
        ranks = ", ".join(each.rank for each in found.partings[:8])
        yield Text(f"  {len(found.partings)} of {found.ranks} ranks part: {plain(ranks)}")
    is_headline = parting.jump is not None and first.phase is Phase.SETTINGS
    for name, target, reference in first.settings[is_headline:5]:
        yield Text(
            plain(
                f"  {_setting_words(name)}: {json.dumps(target)} instead of {json.dumps(reference)}"
            )
        )
    for change in first.changes:
        yield Text(plain(f"  {first.quantity} of {change.name}{_size(change.error)}"))
    more = first.changed - len(first.changes)
    if more > 0:
        yield Text(f"  … {more} more of {count_text(first.parameters, 'parameter')}", "dim")
    for step, phase in parting.idle:
        words = _UNFELT if phase is Phase.UPDATE else _WORDS[phase]
        yield Text(f"  without consequence: in step {step} {words}", "dim")
    if parting.jump is None and not found.knows_noise:
        yield Text(
            "  to know what is noise, record the reference twice, and give the second with --again",
            "dim",
        )
    yield Text(f"  {to_record(found, first)}:")
    yield Text(f"    {json.dumps(recording(found, first))}")
    command = "bisect" if found.parted_before else "triage"
    yield Text(plain(f"  then: msprobe {command} {found.target} {found.reference}"))


def to_record(found: Bisection, first: RankParting) -> str:
    """Return what to record next, in words."""
    if found.parted_before:
        return f"record the signatures of the steps before step {first.step} of both runs, too"
    return f"record step {first.step} of both runs in full, each in its own dump path"


def recording(found: Bisection, first: RankParting) -> dict[str, JsonTree]:
    """Return the configuration for the target that records what `to_record` says."""
    path = found.target.parent if found.target.is_file() else found.target
    path = path.parent if path.name == FOLDER else path
    number = first.rank.removeprefix("rank")
    return {
        "task": "signature" if found.parted_before else "statistics",
        "dump_path": str(path),
        "rank": [int(number)] if number.isdecimal() else [],
        "step": [] if found.parted_before else [first.step],
        "level": "mix",
    }


def as_json(found: Bisection) -> dict[str, JsonTree]:
    """Return all of it for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "equal": found.first is None,
        "sentence": sentence(found),
        "is_sampled": found.is_sampled,
        "steps": found.steps,
        "ranks": found.ranks,
        "knows_noise": found.knows_noise,
        "partings": [_parting_json(each) for each in found.partings],
        "recording": None if found.first is None else recording(found, found.first),
        "notes": list(found.notes),
    }


def _parting_json(found: RankParting) -> dict[str, JsonTree]:
    parting = found.parting
    return {
        "rank": found.rank,
        "step": parting.step,
        "phase": parting.phase.value,
        "error": parting.error,
        "drifts": parting.drifts,
        "jump": parting.jump,
        "jump_phase": None if parting.jump_phase is None else parting.jump_phase.value,
        "jump_error": parting.jump_error,
        "quantity": found.quantity,
        "changed": found.changed,
        "parameters": found.parameters,
        "changes": [{"name": each.name, "error": each.error} for each in found.changes],
        "settings": [list(each) for each in found.settings],
        "without_consequence": [[step, phase.value] for step, phase in parting.idle],
    }


def _size(error: float | None) -> str:
    return "" if error is None else f" (relative difference {number_text(error)})"
