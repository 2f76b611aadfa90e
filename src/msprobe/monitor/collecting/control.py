# SPDX-License-Identifier: Apache-2.0
"""Follow changes of the configuration file during training, at the same step on all ranks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msprobe.config.reading import read_config_file
from msprobe.errors import ConfigError
from msprobe.log import warn_once

logger = logging.getLogger(__name__)

_KEY: Final = "msprobe/monitor/change"
# Ranks are at most one step apart, as gradients are reduced in each.
_STEPS_AHEAD: Final = 2


class ControlFile:
    """The file of the configuration; it is only read.

    Of several processes the first reads it, and tells the others from which step a change holds.

    Args:
        path: the file.
        rank: of this process.
        store: returns the store that the processes share; None without one: each reads the file.
    """

    def __init__(self, path: Path, rank: int, store: Callable[[], Any] | None) -> None:
        self.path = path
        self._shared = store
        self._reads = rank == 0 or store is None
        self._seen = self._stamp()
        self._count = 0
        self._coming: tuple[int, dict[str, Any]] | None = None

    def due(self, step: int) -> dict[str, Any] | None:
        """Return the changed configuration if it holds from this step on.

        It is None unless `dynamic_on` is true, and after a change that cannot be read.
        """
        try:
            if self._reads:
                self._read(step)
            elif self._coming is None:
                self._ask()
        except RuntimeError as error:  # the process that keeps the store may have ended before
            warn_once(logger, _KEY, "changes of %s are not followed any more: %s", self.path, error)
        if self._coming is None or step < self._coming[0]:
            return None
        raw = self._coming[1]
        self._coming = None
        return raw

    def _read(self, step: int) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            raw, _ = read_config_file(self.path)
        except ConfigError as error:
            logger.warning("the changed configuration is left out: %s", error)
            return
        if raw.get("dynamic_on") is not True:
            return
        begin = step if self._shared is None else step + _STEPS_AHEAD
        self._coming = (begin, raw)
        if self._shared is not None:
            self._shared().set(f"{_KEY}/{self._count}", json.dumps([begin, raw]))
            self._count += 1

    def _ask(self) -> None:
        if self._shared is None:
            return
        key = f"{_KEY}/{self._count}"
        store = self._shared()
        if store.check([key]):
            begin, raw = json.loads(store.get(key))
            self._coming = (begin, raw)
            self._count += 1

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
