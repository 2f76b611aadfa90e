# SPDX-License-Identifier: Apache-2.0
"""Watches a model's calls and random functions in one process, for `msprobe.config_check`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from msprobe.errors import ConfigError
from msprobe.run_config.model_watch import Framework, ModelWatch
from msprobe.run_config.pack import PackWriter
from msprobe.run_config.random_recording import RandomRecorder


class RunObserver:
    """Notes random calls and watches models of one framework, until `stop`.

    Attributes:
        framework: reads models and tensors.
    """

    def __init__(self, framework: Framework, recorder: RandomRecorder) -> None:
        """Prepare; nothing is replaced yet.

        Args:
            framework: reads models and tensors.
            recorder: notes calls of random functions.
        """
        self.framework = framework
        self._recorder = recorder
        self._undo = ExitStack()

    def watch_random_calls(self) -> None:
        """Note calls of random functions from now on; a second call changes nothing."""
        for undo in self._recorder.watch():
            self._undo.callback(undo)

    def watch_model(
        self, model: Any, writer: PackWriter, *, rank: int, max_steps: int | None
    ) -> None:
        """Summarise inputs and parameters before each call of a model.

        Args:
            model: a model, or a list of its parts whose first is called once a micro step.
            writer: where to.
            rank: this process's rank.
            max_steps: calls to look at; None for all.

        Raises:
            ConfigError: it is no model of this framework.
            UnsupportedError: its calls cannot be watched now.
        """
        parts = self.framework.parts_of(model)
        watch = ModelWatch(
            self.framework, parts, self._recorder, writer, rank=rank, max_steps=max_steps
        )
        is_tracing = self.framework.is_tracing

        def before_call(_: Any, args: Any, kwargs: Any) -> None:
            if not is_tracing() and not watch.before_call(args, kwargs):
                handle.remove()

        # PyTorch and MindSpore both know this hook.
        handle = parts[0].register_forward_pre_hook(before_call, with_kwargs=True)
        self._undo.callback(handle.remove)
        self._undo.callback(self.framework.watch_clipping(watch.note_clip))

    def stop(self) -> None:
        """Put every function back, remove every hook, forget the calls."""
        self._undo.close()
        self._recorder.clear()


def parts_in(
    model: Any,
    kind: type,
    name: str,
    *,
    containers: tuple[type[Iterable[Any]], ...] = (list, tuple),
) -> list[Any]:
    """Return the parts of a model that the user gave.

    Args:
        model: the model, or a container of its parts.
        kind: the class of the framework's models.
        name: how users know that class.
        containers: classes of objects that hold parts.

    Raises:
        ConfigError: a part is of another class, or there is none.
    """
    parts = list(model) if isinstance(model, containers) else [model]
    if not parts or not all(isinstance(part, kind) for part in parts):
        rule = f"a {name}, or a list of them"
        raise ConfigError("model", type(model).__name__, rule, source="ConfigChecker()")
    return parts


def launched_as(rank: str, size: str) -> tuple[int, int]:
    """Return rank and world size from a launcher's variables; (0, 1) without them.

    Args:
        rank: the environment variable that holds the rank.
        size: the one that holds the number of ranks.
    """
    texts = [os.environ.get(name, "") for name in (rank, size)]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        return 0, 1
    return int(texts[0]), int(texts[1])
