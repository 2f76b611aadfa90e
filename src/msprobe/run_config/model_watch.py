# SPDX-License-Identifier: Apache-2.0
"""What a model is called with, and with which parameters, written into a pack call by call."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from msprobe.dump.records import JsonTree
from msprobe.errors import MsprobeError
from msprobe.run_config.arguments import megatron_arguments
from msprobe.run_config.pack import DYNAMIC, PackWriter

logger = logging.getLogger(__name__)

_MAX_DEPTH: Final = 20


class WatchedModel(Protocol):
    """What a framework's room must know of a model and its tensors."""

    def leaf(self, value: Any) -> dict[str, JsonTree] | None:
        """Return statistics and checksum of a tensor; None if `value` is none."""

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield every parameter with its name."""

    def generator_states(self) -> Iterator[tuple[str, str]]:
        """Yield every random generator with a checksum of its state. Must draw nothing."""

    def random_calls(self) -> dict[str, JsonTree]:
        """Return the calls of random functions so far."""

    def unnoticed(self) -> AbstractContextManager[object]:
        """Return the state in which tensors can be read without the program noticing."""


class ModelWatch:
    """Writes what each micro step starts with."""

    def __init__(
        self, model: WatchedModel, writer: PackWriter, *, rank: int, max_steps: int | None
    ) -> None:
        """Begin with micro step 0.

        Args:
            model: the model.
            writer: where to.
            rank: this process's rank.
            max_steps: micro steps to look at; None for all.
        """
        self._model = model
        self._writer = writer
        self._rank = rank
        self._max_steps = max_steps
        self._step = 0

    def before_call(self, args: Any, kwargs: Any) -> bool:
        """Write what this call of the model starts with; return whether to watch the next one.

        An error is logged and ends the watching, not the training.
        """
        try:
            with self._model.unnoticed():
                self._collect(args, kwargs)
        except (MsprobeError, RuntimeError, ValueError, TypeError, OSError) as exc:
            logger.warning("config_check stops watching the model: %s", exc, exc_info=True)
            return False
        self._step += 1
        return self._max_steps is None or self._step < self._max_steps

    def _collect(self, args: Any, kwargs: Any) -> None:
        place = f"step{self._step}/rank{self._rank}"
        if self._step == 0:
            self._collect_once()
        dataset = {"args": self._described(list(args)), "kwargs": self._described(kwargs)}
        self._writer.put_json(f"dataset/{place}/dataset.json", dataset)
        weights = {name: self._model.leaf(value) for name, value in self._model.parameters()}
        self._writer.put_json(f"weights/{place}/weight.json", weights)

    def _collect_once(self) -> None:
        self._writer.put_json(f"random/rank{self._rank}.json", self._model.random_calls())
        states = {"step0": dict(self._model.generator_states())}
        self._writer.put_json(f"random/generators_rank{self._rank}.json", states)
        if arguments := megatron_arguments():
            self._writer.put_json(DYNAMIC, arguments)

    def _described(self, value: Any, depth: int = 0) -> JsonTree:
        """Return a tree like `value`, of the tensors in it; everything else is left out."""
        leaf = self._model.leaf(value)
        if leaf is not None or depth > _MAX_DEPTH:
            return leaf or {}
        found = {key: self._described(item, depth + 1) for key, item in _items(value)}
        return {key: tree for key, tree in found.items() if tree}


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(number), item) for number, item in enumerate(value)]
    return [(str(key), item) for key, item in getattr(value, "__dict__", {}).items()]
