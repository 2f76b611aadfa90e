# SPDX-License-Identifier: Apache-2.0
"""A comparison of two runs for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from msprobe.plain_text import count_text, plain
from msprobe.run_config.comparing import RunComparison
from msprobe.run_config.levels import Difference, ItemResult, Level

_STYLES: Final = {
    Level.PASS: "bold green",
    Level.INFO: "dim",
    Level.TEXT: "yellow",
    Level.WARNING: "bold yellow",
    Level.ERROR: "bold red",
}
_LISTED: Final = 10
_MAX_VALUE: Final = 70


def comparison_lines(found: RunComparison, *, limit: int = _LISTED) -> Iterator[Text]:
    """Yield the conclusion, then a line an item and its differences.

    Args:
        found: the comparison.
        limit: differences listed of an item, and none of consequences; 0 for all of all.
    """
    yield Text.assemble(("bench  ", "dim"), plain(str(found.bench.path)))
    yield Text.assemble(("cmp    ", "dim"), plain(str(found.cmp.path)))
    yield Text()
    conclusion = found.conclusion
    yield Text(plain(conclusion.sentence), _STYLES[found.level])
    for words in conclusion.consequences:
        yield Text(f"  then {plain(words)}", "dim")
    yield Text()
    if hidden := sorted({*found.bench.hidden(), *found.cmp.hidden()}):
        yield hidden_line(hidden, limit=limit)
    for item in found.items.values():
        yield _item_line(item)
        shown = [each for each in item.differences if not limit or each.level is not Level.INFO]
        if limit and shown and conclusion.explains(item.item):
            continue
        for each in shown[: limit or None]:
            yield _difference_line(each)
        if limit and len(shown) > limit:
            yield Text(f"      … {len(shown) - limit:,} more", "dim")
        if quiet := len(item.differences) - len(shown):
            yield Text(f"      {count_text(quiet, 'difference')} of level info", "dim")


def hidden_line(names: Sequence[str], *, limit: int = _LISTED) -> Text:
    """Return a line with the names of what was hidden; at most `limit` names, 0 for all."""
    shown = ", ".join(names[: limit or None])
    more = f" and {len(names) - limit:,} more" if limit and len(names) > limit else ""
    return Text(f"hidden: {plain(shown)}{more}", "dim")


def _item_line(item: ItemResult) -> Text:
    count = f"{len(item.differences):,} of {item.compared:,} differ"
    if not item.compared:
        count = "nothing compared"
    elif not item.differences:
        count = f"{item.compared:,} compared"
    return Text.assemble(
        f"  {item.item}".ljust(20), (item.level.value.ljust(9), _STYLES[item.level]), (count, "dim")
    )


def _difference_line(each: Difference) -> Text:
    note = f"  ({plain(each.note)})" if each.note else ""
    return Text.assemble(
        ("      " + each.level.value.ljust(8), _STYLES[each.level]),
        (plain(each.name), "bold"),
        f"  {_value(each.bench)} → {_value(each.cmp)}",
        (note, "dim"),
    )


def _value(text: str | None) -> str:
    if text is None:
        return "not set"
    shown = plain(text)
    return shown if len(shown) <= _MAX_VALUE else shown[: _MAX_VALUE - 1] + "…"
