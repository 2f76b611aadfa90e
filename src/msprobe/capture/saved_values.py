# SPDX-License-Identifier: Apache-2.0
"""Values that the user hands over by name (level debug), and their gradients.

    save({"a": x}, "pair")   pair.0.debug       {"a": {...}}       file pair.0.tensor.a.pt
                             pair_grad.0.debug  {"a": null}        until its gradient arrives

A name is counted from 0 within a step. The gradient record has the shape of the value, with null
where no gradient came. Values that cannot be recorded (None, an object) are null in both.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from msprobe.capture.account import Step
from msprobe.capture.adapter import Adapter
from msprobe.capture.call import Draft
from msprobe.capture.nested import Place
from msprobe.capture.recording import Recording
from msprobe.capture.values import Description
from msprobe.config import Config, Level, Task
from msprobe.dump.records import JsonTree
from msprobe.log import warn_once

logger = logging.getLogger(__name__)

# Characters that a file name cannot have; a record and its files have the same name.
_UNSAFE: Final = re.compile("[/\\\\\x00-\x1f\x7f\ud800-\udfff]|\\.(?=\\.)|^\\.")


class GradientSlot:
    """The place of one tensor's gradient; the first gradient that arrives takes it."""

    __slots__ = ("_path", "_place", "_record", "is_filled", "tensor")

    def __init__(self, record: _GradientRecord, place: Place, path: str, tensor: Any) -> None:
        """Make the slot for `tensor`, which is at `place` and has `path` in file names."""
        self._record = record
        self._place = place
        self._path = path
        # Only until the adapter has begun to watch it: a slot must not keep a tensor alive.
        self.tensor = tensor
        self.is_filled = False

    def take(self, gradient: Any) -> None:
        """Describe the gradient now, and put it at the tensor's place."""
        if not self.is_filled:
            self.is_filled = True
            self._record.take(self._place, self._path, gradient)


class _GradientRecord:
    """The record ``{name}_grad.{count}.debug`` while gradients may arrive."""

    __slots__ = ("_owner", "draft", "is_closed", "remaining")

    def __init__(self, owner: SavedValues, draft: Draft, skeleton: JsonTree) -> None:
        self._owner = owner
        self.draft = draft
        draft.parts = skeleton
        self.remaining = 0
        self.is_closed = False

    def take(self, place: Place, path: str, gradient: Any) -> None:
        if self.is_closed:
            return
        described = self._owner.describe_gradient(gradient, self.draft, path)
        if place:
            around = self.draft.parts
            for key in place[:-1]:
                around = around[key]
            around[place[-1]] = described
        else:
            self.draft.parts = described
        self.remaining -= 1
        if self.remaining == 0:
            self._owner.finish(self)


class _SavedValue(Description):
    """The walk through a saved value: notes the places of tensors, and values it cannot save."""

    __slots__ = ("tensors", "unsupported")

    def __init__(self, adapter: Adapter, draft: Draft) -> None:
        super().__init__(adapter, draft, [])
        self.tensors: list[tuple[Any, Place, str]] = []
        self.unsupported: dict[str, None] = {}

    def tensor(self, tensor: Any, place: Place, path: str) -> JsonTree:
        self.tensors.append((tensor, place, path))
        return super().tensor(tensor, place, path)

    def other(self, value: Any) -> JsonTree:
        self.unsupported[type(value).__qualname__] = None
        return None


class SavedValues:
    """Names, counts and records the values that the user saves in a step."""

    __slots__ = ("_adapter", "_next", "_open", "_recording", "_step", "_used", "_warned")

    def __init__(self, recording: Recording, step: Step, adapter: Adapter) -> None:
        """Create it for the records of `recording`."""
        self._recording = recording
        self._step = step
        self._adapter = adapter
        self._next: dict[str, int] = {}
        self._used: set[str] = set()
        self._open: dict[_GradientRecord, None] = {}
        self._warned: set[str] = set()

    def save(self, value: Any, name: str, *, with_gradients: bool) -> list[GradientSlot]:
        """Record a value.

        Args:
            value: a tensor, a number, a text, or lists, tuples, dicts and dataclasses of these.
            name: the user's name for it.
            with_gradients: whether a record for its gradients is made.

        Returns:
            A slot for each tensor whose gradient is wanted; the adapter watches those tensors that
            can get one and passes it to the slot.
        """
        stem, gradient_stem = self._take_names(_safe(name), with_gradients=with_gradients)
        draft = self._draft(stem)
        walk = _SavedValue(self._adapter, draft)
        draft.parts = walk.value(value, (), "tensor")
        self._recording.hand_on(draft)
        self._warn_of_unsupported(name, list(walk.unsupported))
        if not with_gradients:
            return []
        record = _GradientRecord(self, self._draft(gradient_stem), _without_values(draft.parts))
        self._recording.write_interim(record.draft)
        self._open[record] = None
        return [GradientSlot(record, place, path, tensor) for tensor, place, path in walk.tensors]

    def expect(self, slot: GradientSlot) -> None:
        """Count a slot whose tensor can get a gradient; its record waits for it."""
        slot._record.remaining += 1

    def describe_gradient(self, gradient: Any, draft: Draft, path: str) -> JsonTree:
        """Return the record of a gradient, which is only read, now."""
        return self._adapter.record_tensor(gradient, draft, path, is_gradient=True)

    def finish(self, record: _GradientRecord) -> None:
        """Write a gradient record; gradients that arrive later are dropped."""
        record.is_closed = True
        self._open.pop(record, None)
        self._recording.hand_on(record.draft)

    def close_records(self) -> None:
        """Write the records that still wait for gradients: the step is over."""
        for record in list(self._open):
            self.finish(record)

    def next_step(self) -> None:
        """Begin to count again."""
        self._next.clear()
        self._used.clear()
        self._open.clear()

    def _draft(self, stem: str) -> Draft:
        draft = self._recording.new_draft(f"{stem}.debug", self._step.next_order())
        draft.stem = stem
        return draft

    def _take_names(self, name: str, *, with_gradients: bool) -> tuple[str, str]:
        """Return the stems of value and gradient.

        A number is passed over where it would hit a record that is there already: the gradient of
        ``y`` and a value that the user calls ``y_grad`` share their names.
        """
        number = self._next.get(name, 0)
        while True:
            stem, gradient_stem = f"{name}.{number}", f"{name}_grad.{number}"
            number += 1
            if stem in self._used or (with_gradients and gradient_stem in self._used):
                continue
            break
        self._next[name] = number
        self._used.add(stem)
        if with_gradients:
            self._used.add(gradient_stem)
        return stem, gradient_stem

    def _warn_of_unsupported(self, name: str, kinds: list[str]) -> None:
        if kinds and name not in self._warned:
            self._warned.add(name)
            logger.warning("save(%r): %s cannot be saved and is null", name, ", ".join(kinds))


def is_wanted(config: Config, name: object, save_backward: object) -> bool:
    """Return whether a call of `save` records anything; a warning says why it does not."""
    if config.level is not Level.DEBUG or config.task not in (Task.STATISTICS, Task.TENSOR):
        text = (
            "save() records nothing at level %s with task %s; "
            "it needs level debug, and task statistics or tensor"
        )
        warn_once(logger, (config.level, config.task), text, config.level, config.task)
        return False
    for key, found, kind in (("name", name, str), ("save_backward", save_backward, bool)):
        if not isinstance(found, kind):
            text = "save(): %s must be a %s, found a %s; nothing is saved"
            logger.warning(text, key, kind.__name__, type(found).__name__)
            return False
    return True


def _without_values(described: JsonTree) -> JsonTree:
    """Return the lists and objects of a description with null in place of each value."""
    if isinstance(described, list):
        return [_without_values(item) for item in described]
    if isinstance(described, dict) and not isinstance(described.get("type"), str):
        return {key: _without_values(item) for key, item in described.items()}
    return None


def _safe(name: str) -> str:
    """Return the name without characters that a file name cannot have."""
    return _UNSAFE.sub("_", name) or "_"
