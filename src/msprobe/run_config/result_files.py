# SPDX-License-Identifier: Apache-2.0
"""Files of a comparison of two runs: ``result.xlsx``, ``result.json``, both packs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msprobe.dump.records import JsonTree
from msprobe.files import write_report
from msprobe.json_text import strict_json
from msprobe.report.spreadsheet import MAX_ROWS, write_sheets
from msprobe.report.tables import Cell, Table
from msprobe.run_config.comparing import RunComparison
from msprobe.run_config.conclusion import Conclusion
from msprobe.run_config.levels import ItemResult, Level
from msprobe.run_config.pack import unpack

SCHEMA_VERSION: Final = 1
_MAX_LISTED: Final = 10_000


def write_results(found: RunComparison, directory: Path) -> list[Path]:
    """Write all files into a folder, replacing those of an earlier comparison.

    Returns:
        ``result.xlsx`` and ``result.json``.

    Raises:
        ReportWriteError: the folder cannot be written.
    """
    spreadsheet, summary = directory / "result.xlsx", directory / "result.json"
    tables = {"summary": _summary(found)}
    tables |= {name: _table(item) for name, item in found.items.items()}
    write_sheets(tables, spreadsheet)
    write_report(summary, strict_json(comparison_json(found)))
    unpack(found.bench.path, directory / "bench")
    unpack(found.cmp.path, directory / "cmp")
    return [spreadsheet, summary]


def comparison_json(found: RunComparison) -> dict[str, JsonTree]:
    """Return the comparison as plain data; at most 10,000 differences are listed."""
    differences = found.differences()
    return {
        "schema_version": SCHEMA_VERSION,
        "bench": str(found.bench.path),
        "cmp": str(found.cmp.path),
        "level": found.level.value,
        "conclusion": _conclusion(found.conclusion),
        "hidden": {"bench": found.bench.hidden(), "cmp": found.cmp.hidden()},
        "items": {
            name: {
                "level": item.level.value,
                "compared": item.compared,
                "differences": len(item.differences),
            }
            for name, item in found.items.items()
        },
        "differences": [
            {
                "item": each.item,
                "name": each.name,
                "bench": each.bench,
                "cmp": each.cmp,
                "level": each.level.value,
                "note": each.note,
            }
            for each in differences[:_MAX_LISTED]
        ],
    }


def _conclusion(found: Conclusion) -> dict[str, JsonTree]:
    first = found.difference
    return {
        "kind": found.kind.value,
        "item": None if first is None else first.item.value,
        "name": None if first is None else first.name,
        "sentence": found.sentence,
        "consequences": list(found.consequences),
    }


def _summary(found: RunComparison) -> Table:
    rows = [(name, item.level.value) for name, item in found.items.items()]
    return Table.of(("filename", "pass_check"), rows)


def _table(item: ItemResult) -> Table:
    rows: Sequence[tuple[Cell, ...]] = item.rows
    if len(rows) > MAX_ROWS:
        # A sheet holds no more rows; the differences are kept.
        equal = item.columns.index("equal") if "equal" in item.columns else None
        if equal is not None:
            rows = sorted(rows, key=lambda row: row[equal] is True)
        rows = rows[:MAX_ROWS]
    return Table.of(item.columns, rows)


def is_difference(level: Level) -> bool:
    """Return whether a level counts as a difference for the exit code."""
    return level in (Level.TEXT, Level.WARNING, Level.ERROR)
