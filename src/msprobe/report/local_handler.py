# SPDX-License-Identifier: Apache-2.0
"""`LocalHandler`: answers requests from this machine's browser, and from no other page in it."""

from __future__ import annotations

from abc import abstractmethod
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

ADDRESS: Final = "127.0.0.1"
"""The only address that pages are served on."""


class LocalHandler(BaseHTTPRequestHandler):
    """The part of a request that is the same for every page that is served."""

    def do_GET(self) -> None:
        """Answer, if the browser asked for this machine and not for a name that points to it."""
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            self.answer()
        else:
            self.send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "unknown host")

    @abstractmethod
    def answer(self) -> None:
        """Send the answer to a request for ``self.path``."""

    def send(self, status: HTTPStatus, kind: str, text: str) -> None:
        """Send an answer.

        Args:
            status: its status.
            kind: its type without the encoding, such as ``text/html``.
            text: its body.
        """
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
