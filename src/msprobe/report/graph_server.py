# SPDX-License-Identifier: Apache-2.0
"""A local server for graphs that are too large for one file: the page fetches what is opened.

It listens on 127.0.0.1 only. Every address begins with a random token, so that other programs and
pages of other sites cannot ask it anything. A request names nodes by number and can reach no file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from msprobe.errors import MsprobeError
from msprobe.report.graph_page import graph_page_text
from msprobe.report.local_server import Answer, LocalServer

logger = logging.getLogger(__name__)

_MOST_FOUND: Final = 10_000


class GraphSource(Protocol):
    """Graphs that are read piece by piece. Graphs and nodes are named by their numbers."""

    def overview(self) -> Mapping[str, Any]:
        """Return everything but the contents of the graphs."""

    def comparison(self) -> Mapping[str, Any] | None:
        """Return the sections of the page of the comparison; None without one."""

    def children(self, graph: int, node: int) -> Mapping[str, Any]:
        """Return the children of a node and the edges between them."""

    def path_to(self, graph: int, node: int) -> list[int]:
        """Return the nodes around a node, the root first."""

    def detail(self, graph: int, node: int) -> Mapping[str, Any]:
        """Return the values and the call stack of a node."""

    def find(
        self, graph: int, text: str, conditions: Sequence[tuple[str, str, str]], limit: int
    ) -> Mapping[str, Any]:
        """Return the nodes that have all words and fulfil all conditions, and their number."""

    def upstream(self, graph: int, node: int, limit: int) -> list[int]:
        """Return the nodes whose values have reached a node."""


class GraphServer(LocalServer):
    """Serves graphs, opened again when their files have changed."""

    def __init__(
        self,
        open_source: Callable[[], GraphSource],
        *,
        stamp: Callable[[], object] = lambda: None,
        port: int = 0,
        check_every_s: float = 1.0,
    ) -> None:
        """Start to listen.

        Args:
            open_source: opens the graphs; called again after they have changed.
            stamp: returns something that changes whenever the files of the graphs do.
            port: 0 takes any that is free.
            check_every_s: time between two looks at the files.
        """
        self._open, self._stamp = open_source, stamp
        self._check_every_s, self._next_check_s = check_every_s, 0.0
        self._seen = stamp()
        self._source = open_source()
        self._version = 0
        super().__init__(port)

    def answer_question(self, question: str, query: str) -> Answer:
        """Return the page, or nodes of the graphs."""
        self._reopen_if_changed()
        if not question:
            overview = {**self._source.overview(), "version_served": self._version}
            return HTTPStatus.OK, "text/html", graph_page_text(overview, self._source.comparison())
        words = {name: values[0] for name, values in parse_qs(query).items()}
        try:
            if int(words["version"]) != self._version:
                return HTTPStatus.CONFLICT, "text/plain", "the files have changed: reload the page"
            found = _ANSWERS[question](self._source, words)
        except (KeyError, ValueError, IndexError, TypeError, MsprobeError) as error:
            logger.debug("refused: %s", error)
            return HTTPStatus.BAD_REQUEST, "text/plain", "no such node or question"
        return HTTPStatus.OK, "application/json", json.dumps(found, separators=(",", ":"))

    def _reopen_if_changed(self) -> None:
        """Open the graphs again if their files have changed; keep the old ones while that fails."""
        if time.monotonic() < self._next_check_s:
            return
        self._next_check_s = time.monotonic() + self._check_every_s
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            self._source = self._open()
        except (OSError, MsprobeError):  # half written: a later request tries again
            logger.debug("the files have changed and cannot be read yet")
            return
        self._seen = stamp
        self._version += 1


def _conditions(text: str) -> list[tuple[str, str, str]]:
    return [(str(field), str(op), str(value)) for field, op, value in json.loads(text)]


_ANSWERS: Final[dict[str, Callable[[GraphSource, Mapping[str, str]], Any]]] = {
    "children": lambda source, words: source.children(int(words["graph"]), int(words["node"])),
    "path": lambda source, words: {
        "ids": source.path_to(int(words["graph"]), int(words["node"])),
    },
    "detail": lambda source, words: source.detail(int(words["graph"]), int(words["node"])),
    "find": lambda source, words: source.find(
        int(words["graph"]),
        words.get("text", ""),
        _conditions(words.get("conditions", "[]")),
        min(int(words["limit"]), _MOST_FOUND),
    ),
    "upstream": lambda source, words: {
        "ids": source.upstream(
            int(words["graph"]), int(words["node"]), min(int(words["limit"]), _MOST_FOUND)
        ),
    },
}


def serve_graphs(
    open_source: Callable[[], GraphSource],
    *,
    stamp: Callable[[], object] = lambda: None,
    port: int = 0,
    open_browser: bool = True,
    started: Callable[[str], None] = lambda url: None,
) -> None:
    """Show graphs in the browser until Ctrl-C.

    Args:
        open_source: opens the graphs.
        stamp: returns something that changes whenever the files of the graphs do.
        port: 0 takes any that is free.
        open_browser: whether to open a browser at the page.
        started: called with the address of the page.
    """
    server = GraphServer(open_source, stamp=stamp, port=port)
    started(server.url)
    if open_browser:
        webbrowser.open(server.url)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
