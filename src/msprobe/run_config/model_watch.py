# SPDX-License-Identifier: Apache-2.0
"""Write inputs and parameters of a model into a pack, call by call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from msprobe.dump.records import JsonTree
from msprobe.errors import MsprobeError
from msprobe.run_config.arguments import megatron_arguments
from msprobe.run_config.pack import DYNAMIC, PackWriter
from msprobe.run_config.random_recording import RandomRecorder, python_and_numpy_states
from msprobe.run_config.value_tables import CHECKSUM, STATISTICS

logger = logging.getLogger(__name__)

_MAX_DEPTH: Final = 20


class Framework(Protocol):
    """Operations of a framework that `ModelWatch` needs, implemented by the framework's room."""

    def rank_and_world_size(self) -> tuple[int, int]:
        """Return this process's rank and the number of ranks.

        Before the ranks know each other they are as the launcher has set them (`launched_as`).
        """

    def facts(self) -> dict[str, str]:
        """Return the settings of the framework that decide how numbers are computed."""

    def parts_of(self, model: Any) -> Sequence[Any]:
        """Return the parts of a model given by the user; the first is called once a micro step.

        Raises:
            ConfigError: it is no model of this framework.
            UnsupportedError: its calls cannot be watched now.
        """

    def parameters_of(self, part: Any) -> Iterator[tuple[str, Any]]:
        """Yield every parameter of a part with its name."""

    def buffers_of(self, part: Any) -> Iterator[tuple[str, Any]]:
        """Yield every buffer of a part with its name."""

    def leaf(self, value: Any) -> dict[str, JsonTree] | None:
        """Return the entry of a tensor, made by `leaf_of`; None for any other value."""

    def generator_states(self) -> Iterator[tuple[str, str]]:
        """Yield the framework's random generators with checksums of their states; draws nothing."""

    def is_tracing(self) -> bool:
        """Return whether a call now computes nothing, as code is being compiled."""

    def unnoticed(self) -> AbstractContextManager[object]:
        """Return the state in which tensors can be read without the program noticing."""


def leaf_of(
    shape: Iterable[int], dtype: str, summary: Any, checksum: str | None
) -> dict[str, JsonTree]:
    """Return the entry of a tensor.

    Args:
        shape: its shape.
        dtype: its type, as the framework spells it.
        summary: holds ``max``, ``min``, ``mean`` and ``norm``; None where it cannot be read.
        checksum: of its bytes, None as well where it holds none.
    """
    leaf: dict[str, JsonTree] = {name: getattr(summary, name, None) for name in STATISTICS}
    leaf |= {"shape": list(shape), "dtype": dtype}
    return leaf if checksum is None else leaf | {CHECKSUM: checksum}


class ModelWatch:
    """Writes inputs, parameters and generator states before each micro step."""

    def __init__(
        self,
        framework: Framework,
        parts: Sequence[Any],
        recorder: RandomRecorder,
        writer: PackWriter,
        *,
        rank: int,
        max_steps: int | None,
    ) -> None:
        """Begin with micro step 0.

        Args:
            framework: reads the model.
            parts: the parts of the model.
            recorder: knows the calls of random functions so far.
            writer: where to.
            rank: this process's rank.
            max_steps: micro steps to look at; None for all.
        """
        self._framework = framework
        self._parts = parts
        self._recorder = recorder
        self._writer = writer
        self._rank = rank
        self._max_steps = max_steps
        self._step = 0

    def before_call(self, args: Any, kwargs: Any) -> bool:
        """Write the state before this call of the model; return whether to watch the next one.

        An error is logged and ends the watching, not the training.
        """
        try:
            with self._framework.unnoticed():
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
        self._put_values(f"weights/{place}/weight.json", self._framework.parameters_of)
        self._put_values(f"buffers/{place}/buffer.json", self._framework.buffers_of)

    def _collect_once(self) -> None:
        self._writer.put_json(f"random/rank{self._rank}.json", self._recorder.as_json())
        states = {**dict(python_and_numpy_states()), **dict(self._framework.generator_states())}
        place = f"random/generators_rank{self._rank}.json"
        self._writer.put_json(place, {"step0": states})
        if arguments := megatron_arguments():
            self._writer.put_json(DYNAMIC, arguments)

    def _put_values(
        self, member: str, values_of: Callable[[Any], Iterator[tuple[str, Any]]]
    ) -> None:
        found: dict[str, JsonTree] = {}
        for number, part in enumerate(self._parts):
            begin = f"{number}." if len(self._parts) > 1 else ""
            for name, value in values_of(part):
                found[begin + name] = self._framework.leaf(value)
        if found:
            self._writer.put_json(member, found)

    def _described(self, value: Any, depth: int = 0) -> JsonTree:
        """Return the entries of the tensors in `value`, nested like it; all else is left out."""
        leaf = self._framework.leaf(value)
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
