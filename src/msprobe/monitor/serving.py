# SPDX-License-Identifier: Apache-2.0
"""The page of runs: served on this machine only, or exported as one file."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from msprobe.errors import MsprobeError
from msprobe.monitor.pictures import Pictures
from msprobe.monitor.reader import MonitorRun
from msprobe.report.local_server import Answer, LocalServer
from msprobe.report.monitor_page import live_page, write_monitor_page

# Series of one stream in an exported page; with more of them it would not open at once.
_MOST_EXPORTED: Final = 300
# After incidents were looked for, as many times as long nothing is done, so that others get on.
_PAUSES: Final = 3
_QUIET_S: Final = 10.0
"""Then a run that does not grow has its last step judged, too."""


class PageServer(LocalServer):
    """Serves the page of one or two runs, which may grow meanwhile."""

    def __init__(self, runs: Sequence[MonitorRun], port: int = 0) -> None:
        """Listen; `run` answers.

        Args:
            runs: the run under test, and one to compare with.
            port: 0 for any that is free.

        Raises:
            OSError: the port is taken.
        """
        self._pictures = Pictures(runs)
        self._pictures.found = {"incidents": [], "parting": None, "finding": True}
        self._version = 0
        self._has_grown = threading.Event()
        self._closed = threading.Event()
        super().__init__(port)

    def run(self) -> None:
        """Answer requests; incidents are found meanwhile, on a thread of their own."""
        finder = threading.Thread(target=self._find, name="msprobe-findings", daemon=True)
        finder.start()
        try:
            super().run()
        finally:
            self._closed.set()
            self._has_grown.set()
            finder.join()

    def _find(self) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            self._has_grown.clear()
            try:
                found = self._pictures.findings.find()
            except MsprobeError as exc:
                found = {"incidents": [], "parting": None, "failed": str(exc)}
            if found is not self._pictures.found:
                with self._lock:
                    self._pictures.found = found
                    self._version += 1
            self._closed.wait(_PAUSES * (time.monotonic() - began))
            self._has_grown.wait(_QUIET_S)

    def answer_question(self, question: str, query: str) -> Answer:
        """Return the page, or a picture."""
        try:
            if not question:
                overview = {**self._pictures.overview(), "version": self._version}
                return HTTPStatus.OK, "text/html", live_page(overview)
            if question == "growth":
                if self._pictures.refresh():
                    self._version += 1
                    self._has_grown.set()
                answer: dict[str, Any] = {"version": self._version}
            elif question == "overview":
                answer = {**self._pictures.overview(), "version": self._version}
            else:
                answer = self._pictures.answer(question, dict(parse_qsl(query)))
        except MsprobeError as exc:
            return HTTPStatus.BAD_REQUEST, "text/plain", str(exc)
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
