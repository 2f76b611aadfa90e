# SPDX-License-Identifier: Apache-2.0
"""`OnlineRun`: the process beside a training that sends its recording away.

The training starts it, waits at the end of steps where the settings say so, and repeats its error
in the log. It never fails because of it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from typing import Any, Final

from msprobe.config import OnlineSettings
from msprobe.dump.locking import RankClaim
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

_PROGRAM: Final = "msprobe.online.sender"
_POLL_S: Final = 0.02
# At the end of the training: as long as bytes arrive, and this long without any.
_LAST_S: Final = 60.0


class OnlineRun:
    """Sends the recording of one rank."""

    def __init__(self, settings: OnlineSettings, claim: RankClaim) -> None:
        """Start the process; where that fails, an error is logged and nothing is sent."""
        self._settings = settings
        self._status_path = claim.dump_path / f"online_{claim.name}.json"
        self._status_path.unlink(missing_ok=True)
        self._has_failed = False
        self._dropped = 0
        sent = {
            "dump_path": str(claim.dump_path),
            "rank": claim.name,
            "status": str(self._status_path),
            "nfs_path": None if settings.nfs_path is None else str(settings.nfs_path),
            "address": settings.address,
            "tls_path": None if settings.tls_path is None else str(settings.tls_path),
            "drops": settings.drops,
            "queue_bytes": settings.queue_bytes,
        }
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # A session of its own: Ctrl-C ends the training, and what it recorded is still sent.
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, json.dumps(sent)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as exc:
            self._fail(f"the sending process cannot be started: {reason(exc)}")

    def step_ended(self, step: int) -> None:
        """Say what went wrong; wait while too much is not yet sent, if the settings say so."""
        while self._goes_on(self._status()):
            status = self._status()
            has_seen = status.get("last_step", -1) >= step
            is_full = status.get("waiting_bytes", 0) > self._settings.queue_bytes
            if self._settings.drops or (has_seen and not is_full):
                break
            time.sleep(_POLL_S)
        dropped = self._status().get("dropped_calls", 0)
        if dropped > self._dropped:
            self._dropped = dropped
            logger.warning("%d calls were not sent so far: the queue was full", dropped)

    def close(self) -> None:
        """Let the process send the rest, as long as it gets on, and end."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        sent, since = -1, time.monotonic()
        while self._goes_on(self._status()) and time.monotonic() - since < _LAST_S:
            now = self._status().get("sent_bytes", 0)
            if now != sent:
                sent, since = now, time.monotonic()
            time.sleep(_POLL_S)
        status = self._status()
        logger.info(
            "sent %d bytes; %d calls were left out",
            status.get("sent_bytes", 0),
            status.get("dropped_calls", 0),
        )
        self._process = None
        if status.get("is_over"):
            process.wait()
        else:
            process.returncode = 0  # it goes on by itself; not waiting for it is no leak

    def _goes_on(self, status: dict[str, Any]) -> bool:
        """Return whether the process still sends; the first time it does not, say why."""
        if self._has_failed or self._process is None:
            return False
        if status.get("error"):
            self._fail(str(status["error"]))
        elif status.get("is_over"):
            return False
        elif self._process.poll() is not None and not self._status().get("is_over"):
            self._fail(f"the sending process ended with code {self._process.returncode}")
        return not self._has_failed

    def _fail(self, problem: str) -> None:
        self._has_failed = True
        logger.error("calls are not sent any more: %s; the training goes on", problem)

    def _status(self) -> dict[str, Any]:
        try:
            found = json.loads(self._status_path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
