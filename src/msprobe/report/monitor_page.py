# SPDX-License-Identifier: Apache-2.0
"""The page of one or two runs of the monitor: asked from a server, or exported as one file.

Its readers are ``page/data/monitor.js`` and the views ``page/views/monitor_*.js``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msprobe.report.page_file import page_text, write_page

_VIEWS: Final = ("monitor_overview", "monitor_heat", "monitor_series", "monitor_incidents")


def live_page(overview: Mapping[str, Any]) -> str:
    """Return the page that asks its own server, by addresses below its own.

    Args:
        overview: of the runs.
    """
    sections = {"monitor": overview, "monitor_live": True}
    return page_text(_title(overview), sections, _VIEWS, asks_server=True)


def write_monitor_page(path: Path, overview: Mapping[str, Any], answers: Mapping[str, Any]) -> Path:
    """Write a page that needs no server; return the file.

    Args:
        path: the file to write.
        overview: of the runs.
        answers: by question, as the page asks them.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    sections = {"monitor": overview, "monitor_answers": answers}
    return write_page(path, title=_title(overview), sections=sections, views=_VIEWS)


def _title(overview: Mapping[str, Any]) -> str:
    return "msprobe monitor: " + " against ".join(run["path"] for run in overview["runs"])
