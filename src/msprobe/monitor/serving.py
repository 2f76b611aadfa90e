# SPDX-License-Identifier: Apache-2.0
"""The page of runs: served on this machine only, or exported as one file.

The server listens on 127.0.0.1, answers only requests that carry a random token, and only under its
own name, so that no other page of the browser can ask it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import msgspec

from msprobe.errors import MsprobeError
from msprobe.monitor.pictures import Pictures
from msprobe.monitor.reader import MonitorRun
from msprobe.report.local_handler import ADDRESS, LocalHandler
from msprobe.report.monitor_page import live_page, write_monitor_page

# Series of one stream in an exported page; with more of them it would not open at once.
_MOST_EXPORTED: Final = 300


class PageServer:
    """Serves the page of one or two runs until it is closed.

    Attributes:
        url: the address with the token.
    """

    def __init__(self, runs: Sequence[MonitorRun], port: int = 0) -> None:
        """Listen; `serve` answers.

        Args:
            runs: the run under test, and one to compare with.
            port: 0 for any that is free.

        Raises:
            OSError: the port is taken.
        """
        token = secrets.token_urlsafe(24)
        handler = type("Handler", (_Handler,), {"token": token, "pictures": Pictures(runs)})
        self._server = ThreadingHTTPServer((ADDRESS, port), handler)
        self._server.daemon_threads = True
        self.url = f"http://{ADDRESS}:{self._server.server_port}/?token={token}"

    def serve(self) -> None:
        """Answer until `close` is called."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(LocalHandler):
    token: str
    pictures: Pictures
    lock = threading.Lock()
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Send the page, or the answer to one of its questions."""
        parts = urlsplit(self.path)
        if parts.path == "/":
            given = parse_qs(parts.query).get("token", [""])[0]
            self._guarded(given, self._page)
        elif parts.path.startswith("/api/"):
            question = parts.path.removeprefix("/api/")
            self._guarded(
                self.headers.get("X-Token", ""), lambda: self._answer(question, parts.query)
            )
        else:
            self.send(HTTPStatus.NOT_FOUND, "text/plain", "no such page")

    def _guarded(self, token: str, act: Any) -> None:
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            self.send(HTTPStatus.FORBIDDEN, "text/plain", "the address lacks its token")
            return
        try:
            with self.lock:
                status, kind, text = act()
        except MsprobeError as exc:
            status, kind, text = HTTPStatus.BAD_REQUEST, "text/plain", str(exc)
        self.send(status, kind, text)

    def _page(self) -> tuple[HTTPStatus, str, str]:
        return HTTPStatus.OK, "text/html", live_page(self.pictures.overview(), self.token)

    def _answer(self, question: str, query: str) -> tuple[HTTPStatus, str, str]:
        if question == "growth":
            answer: dict[str, Any] = {"grown": self.pictures.refresh()}
        else:
            answer = self.pictures.answer(question, dict(parse_qsl(query)))
        return HTTPStatus.OK, "application/json", msgspec.json.encode(answer).decode()


def export_page(path: Path, runs: Sequence[MonitorRun]) -> Path:
    """Write the page of runs as one file; return it.

    It holds the heat maps of layers over steps, of the usual operation of each stream, and the
    first 300 series of each.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    pictures = Pictures(runs)
    overview = pictures.overview()
    answers = {
        f"{question}?{urlencode(sorted(parameters.items()))}": pictures.answer(question, parameters)
        for question, parameters in _exported(overview, runs)
    }
    return write_monitor_page(path, overview, answers)


def _exported(
    overview: dict[str, Any], runs: Sequence[MonitorRun]
) -> Iterator[tuple[str, dict[str, str]]]:
    pairs = ["0", "1", "ratio"] if len(runs) > 1 else ["0"]
    for stream in overview["streams"]:
        common = {"stream": stream["name"], "op": stream["op"]}
        for run in pairs:
            yield "heat", {**common, "axis": "layer", "run": run}
        for rank in runs[0].ranks if len(runs[0].ranks) > 1 else []:
            yield "heat", {**common, "axis": "layer", "run": "0", "rank": str(rank)}
        for name in runs[0].names(stream["name"])[:_MOST_EXPORTED]:
            yield "series", {**common, "name": name}
