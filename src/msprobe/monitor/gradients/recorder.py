# SPDX-License-Identifier: Apache-2.0
"""Common part of the gradient probes of both frameworks: steps, selection, the writer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msprobe.config import Config, GradProbeSection
from msprobe.monitor.gradients.probe import Gradient, ProbeWriter


class GradientRecorder:
    """Writes gradients at the steps and ranks that are wanted.

    Each optimizer counts its own steps, so several of them write into the same step.
    """

    def __init__(self, config: Config, section: GradProbeSection, rank: int) -> None:
        """Begin; nothing is written yet.

        Args:
            config: the settings; `step` and `rank` select.
            section: those of the task.
            rank: of this process.
        """
        self._config = config
        self._patterns = section.param_list
        self._is_wanted = config.wants_rank(rank)
        self._writer = ProbeWriter(config.dump_path / f"rank{rank}", section)
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def selected(self, names: Iterable[str]) -> list[str]:
        """Return the names that the configuration selects."""
        return [
            name
            for name in names
            if not self._patterns or any(fnmatchcase(name, one) for one in self._patterns)
        ]

    def take(self, optimizer: Any, read: Callable[[], Sequence[Gradient]]) -> None:
        """Record the gradients with which an optimizer begins a step, if it is wanted.

        Args:
            optimizer: whose steps count.
            read: reads the gradients.

        Raises:
            ReportWriteError: they cannot be written.
        """
        step = self._steps.get(optimizer, 0)
        self._steps[optimizer] = step + 1
        if self._is_wanted and self._config.wants_step(step) and (gradients := read()):
            self._writer.write(step, gradients)
