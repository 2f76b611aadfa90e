# SPDX-License-Identifier: Apache-2.0
"""Runs of the monitor in the terminal: incidents first, then a line for each series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from msprobe.plain_text import plain

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH: Final = 40
_NAME_WIDTH: Final = 48
_SEVERITY_STYLE: Final = {"critical": "bold red", "warning": "yellow"}


def run_lines(facts: Mapping[str, Any], limit: int) -> Iterator[Text]:
    """Yield the lines of a run.

    Args:
        facts: as `monitor.overview.run_facts` makes them.
        limit: series to show; 0 for all.
    """
    steps = facts["steps"]
    span = f"steps {steps['first']} to {steps['last']}" if steps["count"] else "no step"
    yield Text.assemble(
        (str(facts["run"]), "bold"),
        f"   {span}, {steps['count']} collected   ranks {', '.join(map(str, facts['ranks']))}",
    )
    yield Text(plain(f"streams: {', '.join(facts['streams'])}"), style="dim")
    yield Text()
    yield from incident_lines(facts["incidents"])
    for name, scalar in facts["scalars"].items():
        yield _series_line(name, scalar)
    if facts["scalars"]:
        yield Text()
    yield Text(
        plain(f"{facts['stream']} {facts['op']}, rank {facts['rank']} (log scale)"), style="bold"
    )
    shown = facts["series"] if limit == 0 else facts["series"][:limit]
    for series in shown:
        yield _series_line(series["name"], series)
    if len(shown) < len(facts["series"]):
        yield Text(f"… {len(facts['series']) - len(shown)} more (--all)", style="dim")


def agreement_lines(facts: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield a line for each `monitor.log_check.Agreement`, as its `as_json` has it."""
    for one in facts:
        name, steps, apart, of_log = one["name"], one["steps"], one["apart"], one["first"]
        counted = "" if of_log is None else f"; the log calls the first step {of_log}"
        way = f"   ({one['way']}{counted})"
        if not apart:
            digit = "" if of_log is None else ", to the last digit"
            yield Text(plain(f"{name}: equal in all {steps} steps{digit}{way}"))
            continue
        first = apart[0]
        other = "log" if of_log is not None else f"{first['parameter']}: before reduction"
        number = len({each["step"] for each in apart})
        begin = f"{name}: apart in {number} of {steps} steps, first in step {first['step']}: "
        values = f"{other} {first['expected']:g}, run {first['recorded']:.9g}"
        yield Text(plain(begin + values + way), style="bold red")


def incident_lines(incidents: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield the incidents of a run, and a blank line."""
    if not incidents:
        yield Text("no incident", style="green")
    for incident in incidents:
        start, last = incident["start"], incident["last"]
        span = f"step {start}" if start == last else f"steps {start} to {last}"
        yield Text.assemble(
            (f"{incident['severity']:<9}", _SEVERITY_STYLE.get(incident["severity"], "")),
            plain(f"{span}: {incident['sentence']}"),
            (f"   ({incident['series']} series)", "dim"),
        )
    yield Text()


def _series_line(name: str, series: Mapping[str, Any]) -> Text:
    name = plain(name)
    shown = name if len(name) <= _NAME_WIDTH else "…" + name[1 - _NAME_WIDTH :]
    return Text.assemble(
        f"{shown:<{_NAME_WIDTH}} ",
        (sparkline(series["values"]), "cyan"),
        f"  {number_text(series['first']):>10} → {number_text(series['last'])}",
    )


def sparkline(values: Sequence[float | None], width: int = _SPARK_WIDTH) -> str:
    """Return values as bars of eight heights, by the logarithm of their size.

    A value that is not finite is a ``!``, an absent one a space, zero the lowest bar.
    """
    chosen = (
        [values[len(values) * place // width] for place in range(width)]
        if len(values) > width
        else list(values)
    )
    logs = [_log(value) for value in chosen]
    finite = [one for one in logs if one is not None and math.isfinite(one)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_bar(one, low, high) for one in logs).ljust(width)


def _log(value: float | None) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value):
        return math.nan
    return math.log10(abs(value)) if value else -math.inf


def _bar(log: float | None, low: float, high: float) -> str:
    if log is None:
        return " "
    if math.isnan(log):
        return "!"
    if log == -math.inf:
        return _BARS[0]
    share = (log - low) / (high - low) if high > low else 0.5
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def number_text(value: float | None) -> str:
    """Return a number in four digits."""
    return "-" if value is None else f"{value:.4g}"


def comparison_lines(
    comparison: Mapping[str, Any], names: tuple[str, str], limit: int
) -> Iterator[Text]:
    """Yield the lines of two compared runs.

    Args:
        comparison: as `RunComparison.as_json` makes it.
        names: of target and reference.
        limit: series to show; 0 for all.
    """
    yield Text.assemble(("target     ", "dim"), names[0])
    yield Text.assemble(("reference  ", "dim"), names[1])
    yield Text()
    yield from _verdict_lines(comparison)
    apart = [one for one in comparison["series"] if one["first_different"] is not None]
    shown = apart if limit == 0 else apart[:limit]
    if shown:
        yield Text()
        head = f"{'series':<{_NAME_WIDTH + 16}} {'differs':>8} {'apart':>8} {'largest':>9}  at step"
        yield Text(head, style="bold")
    for one in shown:
        yield Text(_distance_line(one, several_ranks=len(comparison["ranks"]) > 1))
    if len(shown) < len(apart):
        yield Text(f"… {len(apart) - len(shown)} more (--all)", style="dim")


def _verdict_lines(comparison: Mapping[str, Any]) -> Iterator[Text]:
    if comparison["equal"]:
        count = len(comparison["series"])
        yield Text(f"equal: {count} series over {comparison['steps']} steps", style="green")
        return
    if not comparison["series"]:
        yield Text("no series and step in common", style="bold red")
    for key, words in (("first_different", "differ from"), ("first_apart", "apart from")):
        first = comparison[key]
        if first is not None:
            rank = f", rank {first['rank']}" if len(comparison["ranks"]) > 1 else ""
            yield Text.assemble(
                (f"{words} step {first[key]}", "bold"),
                plain(f": {first['stream']} {first['name']} {first['op']}{rank}"),
            )
    if comparison["first_apart"] is None and comparison["first_different"] is not None:
        yield Text(
            f"never apart: the differences of {comparison['judged']} sizes and scalars stay small"
            if comparison["judged"]
            else "whether they are apart is not known: no size (norm, rms, absmax, std) is recorded"
        )
    if comparison["series"] and comparison["first_different"] is None:
        yield Text("no series differs where both have values; other values, or their order, do")
    if comparison["skipped_steps"]:
        yield Text(f"{comparison['skipped_steps']} steps are in one run only", style="yellow")
    for key in ("only_target", "only_reference"):
        if comparison[key]:
            side = key.removeprefix("only_")
            first = plain(comparison[key][0])
            yield Text(f"{len(comparison[key])} series in the {side} only: {first} …")


def _distance_line(one: Mapping[str, Any], *, several_ranks: bool) -> str:
    name = plain(f"{one['stream']} {one['name']} {one['op']}")
    if several_ranks:
        name += f", rank {one['rank']}"
    wide = _NAME_WIDTH + 16
    shown = name if len(name) <= wide else "…" + name[1 - wide :]
    apart = "-" if one["first_apart"] is None else one["first_apart"]
    largest = f"{one['largest']:.2g}"
    return f"{shown:<{wide}} {one['first_different']:>8} {apart:>8} {largest:>9}  {one['at']}"
