# SPDX-License-Identifier: Apache-2.0
"""Pages: one HTML file that a browser opens without a network.

A page is a title, data in sections, and views of them. The folder ``page`` has the parts that all
pages share (``shared/shell.js`` starts a page and defines the type of a view), the views, and the
readers of data that several views use. A further view is a file in ``page/views`` and its section.

Data are in the page as JSON and reach the document as text only. The page's own policy lets no
other script run than the one it came with, and fetches nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.records import JsonTree
from msprobe.files import write_report
from msprobe.json_text import strict
from msprobe.plain_text import plain

if TYPE_CHECKING:
    import polars as pl

_FOLDER: Final = files("msprobe.report") / "page"
_SHELL: Final = "shared/shell.js"
_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:class|const|(?:async )?function) (\w+))", re.MULTILINE)
_COMMENT: Final = re.compile(r"/\*\*.*?\*/\s*|^ *//[^\n]*\n", re.MULTILINE | re.DOTALL)
# Of a JSON text that is all ASCII: characters that are written as escapes.
_ESCAPED: Final = re.compile(r"(?:\\u[0-9a-f]{4})+|\\.")
# Inside a script element only "<" could end it; the others guard against older readers of HTML.
_JSON_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
# Enough to tell any two float32 numbers apart.
_DIGITS: Final = 9


def write_page(
    path: Path,
    *,
    title: str,
    sections: Mapping[str, Any],
    views: Sequence[str],
    folder: Traversable = _FOLDER,
) -> Path:
    """Write a page; return the file.

    Args:
        path: the file to write; it appears when it is complete.
        title: title of the window.
        sections: data by name, as strict JSON. A view whose sections are missing is left out.
        views: names of files in ``page/views``, in the order of their panes.
        folder: the folder ``page``.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    return write_report(path, page_text(title, sections, views, folder=folder))


def page_text(
    title: str,
    sections: Mapping[str, Any],
    views: Sequence[str],
    *,
    folder: Traversable = _FOLDER,
    asks_server: bool = False,
) -> str:
    """Return a page as HTML; arguments as for `write_page`.

    Args:
        title: title of the window.
        sections: data by name.
        views: names of files in ``page/views``.
        folder: the folder ``page``.
        asks_server: whether the page may fetch from the server that it came from.
    """
    modules = _Modules(folder)
    shell = modules.add(_SHELL)
    added = [modules.add(f"views/{name}.js") for name in views]
    started = ", ".join(f"{view}.view" for view in added)
    script = "\n".join(
        ["(() => {", '"use strict";', *modules.scripts, f"{shell}.start([{started}]);", "})();", ""]
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "script_hash": f"'sha256-{digest}'",
        "connect": "connect-src 'self'; " if asks_server else "",
        "title": html.escape(plain(title)),
        "style": "\n".join(modules.styles),
        "data": _json(sections),
        "script": script,
    }
    template = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


class _Modules:
    """JavaScript modules as parts of one script: each a function's result, after what it imports.

    Attributes:
        scripts: the modules.
        styles: style sheets that are beside a module and have its name.
    """

    def __init__(self, folder: Traversable) -> None:
        self._folder = folder
        self._variables: dict[str, str] = {}
        self.scripts: list[str] = []
        self.styles: list[str] = []

    def add(self, name: str) -> str:
        """Add a module and its imports; return the variable that holds its exports.

        Args:
            name: the file, from the folder of pages.
        """
        if name in self._variables:
            return self._variables[name]
        self._variables[name] = variable = f"module{len(self._variables)}"

        def imported(found: re.Match[str]) -> str:
            other = self.add(posixpath.normpath(posixpath.join(posixpath.dirname(name), found[2])))
            return f"const {{{found[1].replace(' as ', ': ')}}} = {other};"

        style = self._folder / f"{name.removesuffix('.js')}.css"
        if style.is_file():
            self.styles.append(style.read_text(encoding="utf-8"))
        source = _IMPORT.sub(imported, (self._folder / name).read_text(encoding="utf-8"))
        exports = ", ".join(_EXPORT.findall(source))
        body = f"{_COMMENT.sub('', _EXPORT.sub('', source))}return {{ {exports} }};"
        self.scripts.append(f"const {variable} = (() => {{\n{body}\n}})();")
        return variable


def _json(sections: Mapping[str, Any]) -> str:
    """Return data as JSON that is safe inside a script element, its texts safe to be shown."""
    text = json.dumps(sections, allow_nan=False, separators=(",", ":"))
    return _ESCAPED.sub(_shown, text).translate(_JSON_ESCAPES)


def _shown(escaped: re.Match[str]) -> str:
    """Return escaped characters, if a page may show them, or signs in their place."""
    return json.dumps(plain(json.loads(f'"{escaped[0]}"')))[1:-1]


class PageTables:
    """Tables of a page by column, and the texts that their columns point into, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._text_columns: dict[str, None] = {}

    def texts(self, name: str, texts: Iterable[str | None]) -> list[int | None]:
        """Return a column of texts.

        Args:
            name: of the column; in all tables of the page such a column holds texts.
            texts: one a row.
        """
        self._text_columns[name] = None
        places = self._places
        return [None if text is None else places.setdefault(text, len(places)) for text in texts]

    def columns(
        self, table: pl.DataFrame, *, texts: Sequence[str], numbers: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Return the columns of a table, without those that hold nothing.

        A column with the same value in all rows holds it once.
        """
        import polars as pl

        columns: dict[str, list[Any]] = {}
        for name in (*texts, *numbers):
            column = table[name]
            if column.null_count() == len(column):
                continue
            if column.n_unique() == 1:
                column = column.head(1)
            if name in texts:
                columns[name] = self.texts(name, column.to_list())
            elif column.dtype == pl.Float64:
                columns[name] = _numbers(column)
            else:
                columns[name] = column.to_list()
        return columns

    def sections(self) -> dict[str, JsonTree]:
        """Return the sections of the page that go with the tables, once these are complete."""
        return {"text_columns": [*self._text_columns], "texts": [*self._places]}


def _numbers(column: pl.Series) -> list[Any]:
    rounded = column.round_sig_figs(_DIGITS).to_list()
    return rounded if column.is_finite().all() else [strict(number) for number in rounded]
