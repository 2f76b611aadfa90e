# SPDX-License-Identifier: Apache-2.0
"""Terminal lines: where a program loses digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msprobe.compare.noise.digits import CallDigits, NoiseReport
from msprobe.plain_text import place_text, plain

if TYPE_CHECKING:
    from rich.text import Text


def sentence(report: NoiseReport, least: float) -> str:
    """Return the answer in one sentence."""
    results = [call for call in report.calls if call.worst is not None]
    if not results:
        return "no call with a floating result is in all recordings"
    below = report.below(least)
    if not below:
        worst = min(call.worst.digits for call in results if call.worst is not None)
        return (
            f"every result of {len(results):,} calls has at least {_digits(least)}; "
            f"the fewest are {worst:.1f}"
        )
    first = below[0]
    where = f" ({plain(first.source)})" if first.source else ""
    are = "have a result" if len(below) > 1 else "has a result"
    return (
        f"{len(below):,} of {len(results):,} calls {are} with less than {_digits(least)}; "
        f"the first is {plain(first.record)}{where}"
    )


def _digits(number: float) -> str:
    return f"{number:g} trusted digit" + "s" * (number != 1)


def answer_lines(report: NoiseReport, least: float, most: int) -> Iterator[Text]:
    """Yield the sentence, and the calls that lose most digits.

    Args:
        report: the digits.
        least: digits below which a result is not trusted.
        most: how many calls are listed; 0 for all.
    """
    from rich.text import Text

    yield Text(sentence(report, least), "bold")
    yield Text(f"  measured by {len(report.recordings)} recordings with noise", "dim")
    losing = report.losing
    if not losing:
        return
    yield Text()
    yield from _table(
        losing[: most or None], len({(call.step, call.rank) for call in report.calls}) > 1
    )
    if 0 < most < len(losing):
        yield Text(f"  … {len(losing) - most:,} more lose digits; --all lists them", "dim")


def _table(calls: Sequence[CallDigits], has_several: bool) -> Iterator[Text]:
    from rich.text import Text

    from msprobe.report.grid import Cell, columns_of, heading, row

    titles = ["lost", "in", "out", "type", "record", "module", "source"]
    lines = []
    for call in calls:
        worst = call.worst
        if worst is None or call.lost is None or call.digits_in is None:
            continue
        where = f"{place_text(call.step, call.rank)} " if has_several else ""
        lines.append(
            [
                Cell(f"{call.lost:.1f}"),
                Cell(f"{call.digits_in:.1f}"),
                Cell(f"{worst.digits:.1f}"),
                Cell(worst.dtype),
                Cell(plain(f"{where}{call.record}")),
                Cell(plain(call.module)),
                Cell(plain(call.source or "")),
            ]
        )
    columns = columns_of(titles, lines, right=("lost", "in", "out"))
    for line in (heading(columns), *(row(columns, cells) for cells in lines)):
        yield Text("  ").append_text(line)
