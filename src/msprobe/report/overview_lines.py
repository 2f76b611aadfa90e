# SPDX-License-Identifier: Apache-2.0
"""The overview of a dump: origin, size, completeness, first NaN."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from rich.text import Text

from msprobe.dump.dump_steps import Dump
from msprobe.dump.facts import Clip, Facts, OptimizerStep, Scaler, Schedule
from msprobe.dump.rank_view import RankView
from msprobe.dump.records import JsonTree
from msprobe.errors import DumpFormatError
from msprobe.plain_text import count_text, plain, size_text
from msprobe.report.fact_lines import fact_lines
from msprobe.report.nonfinite import Nonfinite
from msprobe.report.value_text import number_text

_MAX_LISTED: Final = 12
_MOST: Final = 4  # facts of each kind about the training

_fact: Final = partial(fact_lines, label_width=12)


def overview_lines(
    dump: Dump, view: RankView, nonfinite: Nonfinite, *, width: int
) -> Iterator[Text]:
    """Yield the overview of a dump, of which one rank is shown.

    Raises:
        DumpFormatError: the rank's files are damaged.
    """
    yield Text(plain(str(view.directory)), "bold")
    head = view.head
    task = ", ".join(
        f"{label}{plain(word)}"
        for label, word in (("", head.framework), ("task ", head.task), ("level ", head.level))
        if word
    )
    yield from _fact("capture", task or "unknown", width)
    yield from _fact("steps", _listed(dump.steps, view.step or 0), width)
    step = dump.steps[view.step or 0]
    shown = next((key for key, other in step.ranks.items() if other is view), None)
    yield from _fact("ranks", _listed(step.ranks, shown), width)
    yield from _fact("records", _records(view), width)
    yield from _completeness(view, width)
    yield from _training(view, width)
    if nonfinite.first is None:
        yield from _fact("NaN/Inf", "none in any statistic" if len(view.records) else "-", width)
    else:
        text = f"! in {count_text(len(nonfinite.marks), 'record')}; first: {plain(nonfinite.first)}"
        yield from _fact("NaN/Inf", text, width, style="bold red")


def _listed(keys: Mapping[int, object] | Mapping[int | str, object], shown: object) -> str:
    names = [plain(str(key)) for key in keys]
    text = ", ".join(names[:_MAX_LISTED])
    if len(names) > _MAX_LISTED:
        text += f" … {names[-1]} ({len(names)})"
    return text if len(names) == 1 else f"{text}; shown: {shown}"


def _records(view: RankView) -> str:
    kinds = Counter(view.records.parsed(name).kind for name in view.records)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    if not kinds and view.parents:
        return f"none; {count_text(len(view.parents), 'call')} in the structure"
    return f"{len(view.records):,}" + (f": {counts}" if len(kinds) > 1 else "")


def _completeness(view: RankView, width: int) -> Iterator[Text]:
    account = view.account or {}
    if view.incomplete_reason is not None:
        yield from _fact("complete", f"NO: {view.incomplete_reason}", width, style="bold yellow")
        if missing := len(view.missing_tensors):
            text = f"{count_text(missing, 'tensor file')} that records name"
            yield from _fact("missing", text, width, style="bold yellow")
        if found := view.unrecorded_tensors:
            text = f"{count_text(len(found), 'tensor file')} that no record names, of calls that "
            text += f"had not ended; msprobe repair makes records of them: {_named(found)}"
            yield from _fact("no record", text, width, style="bold yellow")
    else:
        known = "yes" if account.get("complete") is True else "unknown (no account.json)"
        yield from _fact("complete", known, width)
    cost = _cost(account)
    if cost:
        yield from _fact("cost", cost, width)
    for label in ("skipped", "errors"):
        entries = account.get(label)
        if isinstance(entries, dict) and entries:
            counted = ", ".join(f"{count} {reason}" for reason, count in entries.items())
            yield from _fact(label, plain(counted), width)
    notes = account.get("notes")
    for note in notes if isinstance(notes, list) else []:
        yield from _fact("note", plain(str(note)), width)


def _training(view: RankView, width: int) -> Iterator[Text]:
    try:
        facts = view.facts
    except DumpFormatError as error:
        yield from _fact("training", f"unknown: {error}", width, style="bold yellow")
        return
    for label, text in _training_texts(facts) if facts is not None else ():
        yield from _fact(label, text, width)


def _named(files: Sequence[str]) -> str:
    text = ", ".join(map(plain, files[:_MAX_LISTED]))
    return text + (" …" if len(files) > _MAX_LISTED else "")


def _cost(account: Mapping[str, JsonTree]) -> str:
    said = []
    if isinstance(size := account.get("bytes"), int):
        said.append(size_text(size))
    if isinstance(tensors := account.get("tensors"), int) and tensors:
        said.append(count_text(tensors, "tensor"))
    if isinstance(spent_ms := account.get("capture_ms"), (int, float)):
        said.append(f"{spent_ms:.1f} ms in capture")
    return ", ".join(said)


def _training_texts(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield labels and facts of loss, clipping, scaler, optimizers and schedule."""
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
