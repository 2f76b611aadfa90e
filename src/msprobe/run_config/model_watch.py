# SPDX-License-Identifier: Apache-2.0
"""Write inputs and parameters of a model into a pack, call by call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msprobe.dump.facts import Modes
from msprobe.dump.records import JsonTree
from msprobe.errors import MsprobeError
from msprobe.run_config.pack import DYNAMIC, LATER_PARTS, NOT_SET, PackWriter
from msprobe.run_config.random_recording import RandomRecorder, python_and_numpy_states
from msprobe.run_config.value_tables import CHECKSUM, ROWS, STATISTICS

logger = logging.getLogger(__name__)

_MAX_DEPTH: Final = 20
_MAX_CLIPS: Final = 8

Parts = dict[str, dict[str, str]]
"""Settings by part and name."""


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

    def rows(self, value: Any) -> list[str]:
        """Return checksums of the rows of a tensor; empty if they are not worth the time."""

    def generator_states(self) -> Iterator[tuple[str, str]]:
        """Yield the framework's random generators with checksums of their states; draws nothing."""

    def settings(self, parts: Sequence[Any], with_grad: bool) -> RunSettings:
        """Return the arguments of the program, and settings and flags of the training.

        Args:
            parts: the parts of the model; empty if there is none.
            with_grad: what `with_grad` returned when the program ran.
        """

    def with_grad(self) -> bool:
        """Return whether the program records gradients now."""

    def watch_clipping(self, note: Callable[[dict[str, str]], None]) -> Callable[[], None]:
        """Hand the settings of each call that clips gradients to `note`; return the undo."""

    def is_tracing(self) -> bool:
        """Return whether a call now computes nothing, as code is being compiled."""

    def guard(self) -> AbstractContextManager[object]:
        """Return the state in which tensors can be read without the program noticing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a running training.

    Attributes:
        arguments: those of the program, flat.
        parts: settings and flags by part: ``modules``, ``optimizer``, ``modes`` …
    """

    arguments: dict[str, JsonTree]
    parts: Parts

    def write(self, writer: PackWriter, rank: int) -> None:
        """Write them into a pack."""
        # Where the pack lies is no setting.
        places = [str(writer.path), str(writer.path.absolute())]  # a value may not be hashable
        arguments = {
            name: [each for each in one if each not in places] if isinstance(one, list) else one
            for name, one in self.arguments.items()
            if str(one) not in places and one not in [[place] for place in places]
        }
        if arguments:
            writer.put_json(DYNAMIC, arguments)
        parts = {name: part for name, part in self.parts.items() if part}
        if parts:
            writer.put_json(f"training/rank{rank}.json", parts)


def flat_modes(modes: Modes) -> dict[str, str]:
    """Return the flags of a model by name."""
    return {
        **{f"training.{path or 'model'}": str(flag) for path, flag in modes.training.items()},
        **{f"autocast.{device}": dtype for device, dtype in modes.autocast.items()},
        "grad_enabled": str(modes.grad_enabled),
        **{f"requires_grad.{name}": "False" for name in modes.requires_grad_false},
    }


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


def write_settings(
    framework: Framework, parts: Sequence[Any], writer: PackWriter, rank: int, with_grad: bool
) -> Parts:
    """Write the settings of the running training into a pack.

    They are read from objects of many libraries: what goes wrong there is logged.

    Args:
        framework: reads the model.
        parts: the parts of the model; empty if there is none.
        writer: where to.
        rank: this process's rank.
        with_grad: whether the program records gradients.

    Returns:
        the settings by part.
    """
    try:
        found = framework.settings(parts, with_grad)
        found.write(writer, rank)
    except Exception as exc:
        logger.warning("config_check cannot read settings of the training: %s", exc, exc_info=True)
        return {}
    return found.parts


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
        self._clips: list[dict[str, str]] = []
        self._settings: Parts = {}
        self._is_over = False

    def note_clip(self, settings: dict[str, str]) -> None:
        """Write the settings of a call that clips gradients, unless they were written before.

        The last one that counts is the one after the last call of the model that was looked at.
        """
        if self._is_over:
            return
        self._is_over = self._max_steps is not None and self._step >= self._max_steps
        if settings in self._clips or len(self._clips) >= _MAX_CLIPS:
            return
        place = f"training/rank{self._rank}.clip{len(self._clips)}.json"
        self._clips.append(settings)
        try:
            self._writer.put_json(place, {"clip": settings})
        except MsprobeError as exc:
            logger.warning("config_check cannot write how gradients are clipped: %s", exc)

    def before_call(self, args: Any, kwargs: Any) -> bool:
        """Write the state before this call of the model; return whether to watch the next one.

        An error is logged and ends the watching, not the training.
        """
        with_grad = self._framework.with_grad()
        try:
            with self._framework.guard():
                self._collect(args, kwargs, with_grad)
        except Exception as exc:
            logger.warning("config_check stops watching the model: %s", exc, exc_info=True)
            return False
        self._step += 1
        return self._max_steps is None or self._step < self._max_steps

    def _collect(self, args: Any, kwargs: Any, with_grad: bool) -> None:
        place = f"step{self._step}/rank{self._rank}"
        if self._step == 0:
            self._collect_once(with_grad)
        elif self._settings:
            self._collect_changes(with_grad)
        dataset = {"args": self._described(list(args)), "kwargs": self._described(kwargs)}
        self._writer.put_json(f"dataset/{place}/dataset.json", dataset)
        self._put_values(f"weights/{place}/weight.json", self._framework.parameters_of)
        self._put_values(f"buffers/{place}/buffer.json", self._framework.buffers_of)

    def _collect_once(self, with_grad: bool) -> None:
        self._writer.put_json(f"random/rank{self._rank}.json", self._recorder.as_json())
        states = {**dict(python_and_numpy_states()), **dict(self._framework.generator_states())}
        place = f"random/generators_rank{self._rank}.json"
        self._writer.put_json(place, {"step0": states})
        self._settings = write_settings(
            self._framework, self._parts, self._writer, self._rank, with_grad
        )

    def _collect_changes(self, with_grad: bool) -> None:
        """Write the flags and numbers of optimizers that are others than before the last call."""
        found = self._framework.settings(self._parts, with_grad).parts
        changes = {
            str(part): _changes(self._settings.get(part, {}), found.get(part, {}))
            for part in LATER_PARTS
        }
        self._settings = found
        changes = {part: changed for part, changed in changes.items() if changed}
        if changes:
            self._writer.put_json(f"training/rank{self._rank}.step{self._step}.json", changes)

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
        if leaf is not None:
            rows = self._framework.rows(value)
            return leaf | {ROWS: rows} if rows else leaf
        if depth > _MAX_DEPTH:
            return {}
        found = {key: self._described(item, depth + 1) for key, item in _items(value)}
        return {key: tree for key, tree in found.items() if tree}


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    names = dict.fromkeys((*now, *before))
    return {name: now.get(name, NOT_SET) for name in names if now.get(name) != before.get(name)}


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(number), item) for number, item in enumerate(value)]
    return [(str(key), item) for key, item in getattr(value, "__dict__", {}).items()]
