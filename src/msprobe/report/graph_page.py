# SPDX-License-Identifier: Apache-2.0
"""The page of graphs: modules as boxes that open in place, values that flow between them.

Its reader is ``page/data/graph.js``; the content comes from the room ``graph/``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msprobe.report.comparison_page import page_title, page_views
from msprobe.report.page_file import page_text, write_page

_VIEWS: Final = ("graph_head", "graph_list", "graph", "graph_runs", "graph_node")


def write_graph_page(
    path: Path, graphs: Mapping[str, Any], comparison: Mapping[str, Any] | None = None
) -> Path:
    """Write the page of one recording, or of two beside each other; return the file.

    Args:
        path: the file to write; it appears when it is complete.
        graphs: the graphs of all ranks and steps with their nodes, edges and comparison, as
            strict JSON.
        comparison: the sections of the page of the comparison, whose views are added.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    sections = graph_sections(graphs) | dict(comparison or {})
    return write_page(path, title=_title(sections), sections=sections, views=_views(sections))


def graph_page_text(
    overview: Mapping[str, Any], comparison: Mapping[str, Any] | None = None
) -> str:
    """Return a page that fetches what is in a node from the server it came from.

    Args:
        overview: the graphs as for `write_graph_page`, without what is in them.
        comparison: the sections of the page of the comparison.
    """
    sections = graph_sections(overview) | dict(comparison or {})
    return page_text(_title(sections), sections, _views(sections), asks_server=True)


def _title(sections: Mapping[str, Any]) -> str:
    title: str = sections["graph"]["title"]
    return page_title(sections) if "summary" in sections else title


def _views(sections: Mapping[str, Any]) -> Sequence[str]:
    return page_views(sections, opens_with_graph=True) if "summary" in sections else _VIEWS


def graph_sections(graphs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections; that of several runs only marks that there are any."""
    several = {"graph_several": True} if len(graphs["cells"]) > 1 else {}
    return {"graph": graphs, **several}
