# SPDX-License-Identifier: Apache-2.0
"""The page of graphs: modules as boxes that open in place, values that flow between them.

Its reader is ``page/data/graph.js``; the content comes from the room ``graph/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msprobe.report.page_file import page_text, write_page

_VIEWS: Final = ("graph_head", "graph_list", "graph", "graph_runs", "graph_node")


def write_graph_page(path: Path, graphs: Mapping[str, Any]) -> Path:
    """Write the page of one recording, or of two beside each other; return the file.

    Args:
        path: the file to write; it appears when it is complete.
        graphs: the graphs of all ranks and steps with their nodes, edges and comparison, as
            strict JSON.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    return write_page(path, title=graphs["title"], sections=_sections(graphs), views=_VIEWS)


def graph_page_text(overview: Mapping[str, Any]) -> str:
    """Return a page that fetches what is in a node from the server it came from.

    Args:
        overview: the graphs as for `write_graph_page`, without what is in them.
    """
    return page_text(overview["title"], _sections(overview), _VIEWS, asks_server=True)


def _sections(graphs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections; that of several runs only marks that there are any."""
    several = {"graph_several": True} if len(graphs["cells"]) > 1 else {}
    return {"graph": graphs, **several}
