# SPDX-License-Identifier: Apache-2.0
"""The page of runs: served on this machine only, or exported as one file."""

from __future__ import annotations

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
        super().__init__(port)

    def answer_question(self, question: str, query: str) -> Answer:
        """Return the page, or a picture."""
        try:
            if not question:
                return HTTPStatus.OK, "text/html", live_page(self._pictures.overview())
            if question == "growth":
                answer: dict[str, Any] = {"grown": self._pictures.refresh()}
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
