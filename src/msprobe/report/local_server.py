# SPDX-License-Identifier: Apache-2.0
"""`LocalServer`: serves one page to a browser of this machine, and to no other page in it.

It listens on 127.0.0.1 only, under its own name, so that no name of another site can point to it.
Every address begins with a random token, so that other programs and pages cannot ask it anything.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

ADDRESS: Final = "127.0.0.1"
"""The only address that pages are served on."""

Answer = tuple[HTTPStatus, str, str]
"""Status, type without the encoding, such as ``text/html``, and body."""


class LocalServer(ABC):
    """A server that listens from its creation on, and answers while `run` runs.

    Attributes:
        url: the address of the page.
        port: the port.
    """

    def __init__(self, port: int = 0) -> None:
        """Start to listen.

        Args:
            port: 0 takes any that is free.

        Raises:
            OSError: the port is taken.
        """
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer((ADDRESS, port), _handler(self))
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        self.url = f"http://{ADDRESS}:{self.port}/{self._token}/"

    def run(self) -> None:
        """Answer requests until `close` is called, or Ctrl-C; then free the port."""
        with self._http:
            self._http.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Make `run` return; called from another thread."""
        self._http.shutdown()

    def answer(self, target: str) -> Answer:
        """Return the answer to a GET request for a target, such as ``/{token}/heat?op=norm``."""
        path, _, query = target.partition("?")
        parts = path.split("/")
        if len(parts) != 3 or not secrets.compare_digest(parts[1].encode(), self._token.encode()):
            return HTTPStatus.NOT_FOUND, "text/plain", "not found"
        with self._lock:
            return self.answer_question(parts[2], query)

    @abstractmethod
    def answer_question(self, question: str, query: str) -> Answer:
        """Return the page for an empty question, or the answer to one that the page asks.

        Args:
            question: the last part of the path.
            query: what is behind the question mark, as it was sent.
        """


def _handler(server: LocalServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            """Answer requests until the browser goes elsewhere, perhaps in the middle of one."""
            with suppress(ConnectionError):
                super().handle()

        def do_GET(self) -> None:
            """Answer, if the browser asked for this machine and not for another name of it."""
            if self.headers.get("Host") in (f"{ADDRESS}:{server.port}", f"localhost:{server.port}"):
                self._send(*server.answer(self.path))
            else:
                self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "unknown host")

        def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode(errors="backslashreplace")
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: the address holds the token."""

    return Handler
