# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison: one file that a browser opens without a network.

It is put together from the folder ``page``. Data stand in it as JSON and reach the document as
text only; the page's own policy lets no other script run than the one it came with.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.files import write_report
from msprobe.report.comparison_page_data import page_data
from msprobe.report.value_text import plain

if TYPE_CHECKING:
    import polars as pl

DEFAULT_LIMIT: Final = 10_000
"""Rows in a page unless asked otherwise: some 4 MB, which a browser opens at once."""

_SCRIPTS: Final = (
    "model.js",
    "dom.js",
    "timeline.js",
    "tree.js",
    "list.js",
    "detail.js",
    "overview.js",
    "main.js",
)
# Inside a script element only "<" could end it; the others guard against older readers of HTML.
_JSON_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNote:
    """What a page holds.

    Attributes:
        path: the file.
        rows: values in it.
        of_rows: values in the table.
        size_bytes: size of the file.
    """

    path: Path
    rows: int
    of_rows: int
    size_bytes: int


def write_comparison_page(
    path: Path, summary: Mapping[str, Any], frame: pl.DataFrame, *, limit: int = DEFAULT_LIMIT
) -> PageNote:
    """Write the page of a comparison.

    Args:
        path: the file to write; it appears when it is complete.
        summary: content of ``summary.json``.
        frame: the table with one row per pair of values.
        limit: rows to take in, the most interesting ones; the page says so if there are more.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    data = page_data(summary, frame, limit=limit)
    write_report(path, comparison_page(data))
    shown = data["shown"]
    return PageNote(
        path=path, rows=shown["rows"], of_rows=shown["of_rows"], size_bytes=path.stat().st_size
    )


def comparison_page(data: Mapping[str, Any]) -> str:
    """Return the page that shows `data`, as `page_data` makes them."""
    folder = files("msprobe.report") / "page"
    scripts = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    summary = data["summary"]
    title = f"msprobe: {summary['target']} against {summary['reference']}"
    parts = {
        "script_hash": f"'sha256-{digest}'",
        "title": html.escape(plain(title)),
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_JSON_ESCAPES),
        "script": script,
    }
    return _filled((folder / "page.html").read_text(encoding="utf-8"), parts)


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """Return the template with its ``{{places}}`` filled; what is filled in is not read again."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)
