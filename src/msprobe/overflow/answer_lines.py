# SPDX-License-Identifier: Apache-2.0
"""Terminal lines: where NaN and Inf begin, and how far they spread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from msprobe.dump.record_names import parse_record_name
from msprobe.dump.stack_frames import parse_frame
from msprobe.overflow.findings import Finding, Source, StepFindings
from msprobe.plain_text import count_text, plain, rank_text

_MAX_LISTED: Final = 10
_MAX_SLOTS: Final = 4

_WORDS: Final = {
    Source.OPERATION: "made here: the tensors that the call was given are finite",
    Source.PARAMETER: "came in with a parameter",
    Source.INPUT: "came in from outside",
    Source.UNRECORDED: "came in between recorded calls",
    Source.RECOMPUTED: "changed between the forward pass and its recomputation",
    Source.UPDATE: "made by the update of an optimizer",
    Source.COMMUNICATION: "came out of a communication",
    Source.RECEIVED: "received from another rank",
}


def answer_lines(found: StepFindings) -> Iterator[Text]:
    """Yield the answer for one step."""
    yield Text(f"step {found.step}: {_spread(found)}", "bold")
    first = found.first
    several = len(found.affected) > 1
    for alike in _grouped(first):
        yield Text()
        yield from _finding_lines("first", alike[0], _ranks_text(alike) if several else "")
    if circumstances := list(_circumstances(found)):
        yield Text()
        yield from circumstances
    rest = [finding for finding in found.findings if finding not in first]
    own = [finding for finding in rest if finding.source is not Source.RECEIVED]
    received = [finding for finding in rest if finding.source is Source.RECEIVED]
    if own:
        yield Text()
        count = count_text(len(own), "further place")
        yield Text(f"  {count} where they come in, in order of execution", "dim")
    for finding in own[:_MAX_LISTED]:
        yield _short_line(finding, several)
    if len(own) > _MAX_LISTED:
        yield Text(f"  … {len(own) - _MAX_LISTED} more; the file has all", "dim")
    if received:
        yield Text()
        yield from _received_lines(received)
    for note in found.notes:
        yield Text(f"  note: {plain(note)}", "yellow")


def _circumstances(found: StepFindings) -> Iterator[Text]:
    """Yield what else the dump tells: growth before, values near overflow, a skipped update."""
    if (skip := found.skip) is not None:
        scales = f"scale {_number(skip.scale)}, then {_number(skip.new_scale)}"
        yield _fact("scaler", f"the gradient scaler skipped this update: {scales}")
        if skip.is_expected:
            yield _fact("", "only gradients or the scaled loss overflow: the scale is too large")
        elif skip.in_a_row > 1:
            yield _fact("", f"{skip.in_a_row} updates in a row; the scale is not the reason")
        else:
            yield _fact("", "the scale is not the reason")
    if (growth := found.growth) is not None:
        times = f"x{_number(growth.norm / growth.norm_before)}"
        over = count_text(growth.calls, "call")
        over += f" in {count_text(growth.modules, 'module')}" if growth.modules > 1 else ""
        inside = f" inside {plain(growth.module)}" if growth.module else ""
        where = f"first at {plain(growth.place.name)}{inside}"
        yield _fact("growth", f"norm {times} over {over}, {where}")
    if (loss := found.loss_growth) is not None:
        times = f"x{_number(loss.loss / loss.loss_before)}"
        yield _fact("", f"loss {times} from step {loss.step} to step {loss.last_step}")
    if (near := found.near) is not None:
        several = f" on {rank_text(near.place.rank)}" if len(found.affected) > 1 else ""
        where = f"{plain(near.place.name)} {near.slot}{several}"
        yield _fact("near", f"{where} reached {near.share:.0%} of the largest {near.dtype}")


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    is_plain = value < 1e6 and (value >= 100.0 or value.is_integer())
    return f"{value:,.0f}" if is_plain else f"{value:.3g}"


def _grouped(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Return findings of several ranks that say the same, as one list each."""
    groups: dict[tuple[str, Source, str], list[Finding]] = {}
    for finding in findings:
        key = (finding.place.name, finding.source, finding.contents)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _received_lines(received: list[Finding]) -> Iterator[Text]:
    """Yield one line for each communication that handed NaN or Inf on to further ranks."""
    count = count_text(len(received), "further place")
    yield Text(f"  {count} only received them from another rank", "dim")
    by_call: dict[str, list[Finding]] = {}
    for finding in received:
        by_call.setdefault(parse_record_name(finding.place.name).base, []).append(finding)
    for call, findings in by_call.items():
        times = count_text(len({finding.place.name for finding in findings}), "call")
        yield Text(f"    {plain(call)}: {times}, {_ranks_text(findings)}")


def _ranks_text(findings: list[Finding]) -> str:
    ranks = list(dict.fromkeys(finding.place.rank for finding in findings))
    if len(ranks) == 1:
        return rank_text(ranks[0])
    shown = ", ".join(str(rank) for rank in ranks[:_MAX_LISTED])
    return plain(f"ranks {shown}" + (" …" if len(ranks) > _MAX_LISTED else ""))


def _spread(found: StepFindings) -> str:
    affected = sum(found.affected.values())
    total = count_text(found.records, "record")
    if not found.records and not found.findings:
        return "no NaN or Inf seen; the step kept no record"  # nan_check: nothing was found
    if not affected:
        return f"no NaN or Inf seen in {total}" + (", but in an update" if found.findings else "")
    text = f"NaN or Inf in {affected:,} of {total}"
    if len(found.affected) > 1:
        ranks = [str(rank) for rank, count in found.affected.items() if count]
        shown = ", ".join(ranks[:_MAX_LISTED]) + (" …" if len(ranks) > _MAX_LISTED else "")
        text += f", on {len(ranks)} of {count_text(len(found.affected), 'rank')} ({shown})"
    return plain(text)


def _finding_lines(label: str, finding: Finding, ranks: str) -> Iterator[Text]:
    where = f" on {ranks}" if ranks else ""
    yield Text.assemble(
        (f"  {label}  ", "dim"), (plain(finding.place.name), "bold red"), (where, "bold")
    )
    yield _fact("what", f"{_slots(finding)}: {finding.contents}")
    yield _fact("origin", _WORDS[finding.source])
    if finding.sender is not None:
        sender = finding.sender
        yield _fact("", f"{plain(sender.name)} on {rank_text(sender.rank)} put them in")
    if finding.detail:
        yield _fact("", plain(finding.detail))
    if finding.modules:
        yield _fact("inside", plain(" < ".join(finding.modules[:3])))
    if frame := _user_frame(finding.frames):
        yield _fact("code", frame)


def _fact(label: str, text: str) -> Text:
    return Text.assemble((f"    {label}".ljust(12), "dim"), text)


def _short_line(finding: Finding, several: bool) -> Text:
    where = f" on {rank_text(finding.place.rank)}" if several else ""
    words = _WORDS[finding.source].partition(":")[0]
    if finding.is_deliberate:
        words += ", on purpose it seems"
    text = f"{plain(finding.place.name)}{where}: {_slots(finding)}: {finding.contents}"
    return Text.assemble(("    ", ""), text, (f"  ({words})", "dim"))


def _slots(finding: Finding) -> str:
    shown = ", ".join(finding.slots[:_MAX_SLOTS])
    return plain(shown + (" …" if len(finding.slots) > _MAX_SLOTS else ""))


def _user_frame(frames: tuple[str, ...]) -> str:
    """Return file, line and code of the innermost frame outside the frameworks."""
    for frame in map(parse_frame, frames):
        if frame is not None and not frame.is_of_framework:
            where = f"{frame.file}:{frame.line} in {frame.function}"
            return plain(f"{where}   {frame.code}").rstrip()
    return ""
