# SPDX-License-Identifier: Apache-2.0
"""`enable_dataloader`: steps begin and end with the batches of the training loop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from torch import nn

from msprobe.capture.session import Session
from msprobe.config import Config, Level
from msprobe.pytorch.training.dataloader import watch_data_loaders

logger = logging.getLogger(__name__)


class Steps(Protocol):
    """The part of a debugger's run that a training loop controls."""

    models: Sequence[nn.Module]

    @property
    def config(self) -> Config:
        """Return the settings."""

    @property
    def session(self) -> Session:
        """Return the state of the run."""

    @property
    def lacks_model(self) -> bool:
        """Return whether the level records modules and no model is known yet."""

    def begin(self, token_range: tuple[int, int] | None, rank: int | None) -> None:
        """Begin to observe, if the step is wanted."""

    def end_step(self) -> None:
        """End the step."""


class LoopFollower:
    """Starts a step with each batch that the loop gets, and ends it with the next request.

    After the last wanted step the program ends, at the next batch. A loop that takes no further
    batch comes to its own end.

    Attributes:
        batch_index: number of the current batch in its pass over the data; None before the first.
    """

    __slots__ = ("_has_batch", "_run", "_warned", "batch_index")

    def __init__(self, run: Steps) -> None:
        """Follow the data loaders of this thread until the session of `run` is closed."""
        self._run = run
        self._has_batch = False
        self.batch_index: int | None = None
        self._warned: set[str] = set()
        run.session.run_undo.callback(watch_data_loaders(self._requested, self._arrived))

    def _requested(self) -> None:
        if self._has_batch:
            self._has_batch = False
            self._run.end_step()

    def _arrived(self, index: int) -> None:
        run = self._run
        self.batch_index = index
        last = run.config.last_step
        if last is not None and run.session.step_number > last and not run.session.is_off:
            logger.info("enable_dataloader: step %d was the last one wanted; the run ends", last)
            raise SystemExit(0)
        self._has_batch = True
        self._begin()

    def _begin(self) -> None:
        run = self._run
        if run.config.level is Level.DEBUG:
            return
        if run.lacks_model:
            self._warn_once(
                "no model",
                f"enable_dataloader: level {run.config.level} records modules, but no model is "
                "known; give it to the constructor or to start(model)",
            )
            return
        run.begin(None, None)

    def explicit_start(self, models: Sequence[nn.Module]) -> None:
        """Take a start of the user's: it may have brought the model for the current batch."""
        self.skipped("start()")
        if models:
            self._run.models = models
        if self._has_batch:
            self._begin()

    def skipped(self, call: str) -> None:
        """Warn once that a call of the user's has no effect."""
        self._warn_once(
            "explicit",
            f"enable_dataloader is true: {call} is skipped, steps follow the DataLoader",
        )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", text)
