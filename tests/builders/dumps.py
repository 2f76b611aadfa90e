# SPDX-License-Identifier: Apache-2.0
"""Writes the dump of one rank, from records or from the arrays that were passed around."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.tensor_archive_writer import write_archive

from .records import Entry, Records, backward, forward


def write_rank(
    folder: Path,
    records: Records,
    *,
    parents: Mapping[str, str | None] | None = None,
    stacks: Mapping[str, Sequence[str]] | None = None,
    **head: Any,
) -> Path:
    """Write the files of one rank; return its folder.

    Args:
        folder: the rank folder.
        records: name of a record → what ``dump.json`` holds (``debug.json`` at level debug).
        parents: what ``construct.json`` holds; None for no such file.
        stacks: name of a record → its frames; None for no ``stack.json``.
        head: keys at the top, in place of a mix dump of statistics from PyTorch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    name = "debug.json" if head.get("level") == "debug" else "dump.json"
    (folder / name).write_text(json.dumps({**keys, **head, "data": records}, indent=1))
    if parents is not None:
        (folder / "construct.json").write_text(json.dumps(parents))
    if stacks is not None:
        numbered = enumerate(stacks.items())
        tree = {str(number): [[record], list(frames)] for number, (record, frames) in numbered}
        (folder / "stack.json").write_text(json.dumps(tree))
    return folder


@dataclass(frozen=True)
class Value:
    """A tensor with what a record says about it.

    Attributes:
        array: its values.
        id: its `value_id`, 0 for none.
        about: further keys of its entry, or other values for those that follow from the array.
    """

    array: NDArray[Any]
    id: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, task: str) -> Entry:
        """Return its entry in a dump of this task, still without a file."""
        return {
            "type": "torch.Tensor",
            "dtype": f"torch.{self.array.dtype.name}",
            "shape": list(self.array.shape),
            **({} if task == "md5" else statistics(self.array)),
            **({"md5": checksum(self.array)} if task.endswith("md5") else {}),
            "requires_grad": False,
            **({"value_id": self.id} if self.id else {}),
            **self.about,
        }


def value(array: Any, id: int = 0, **about: Any) -> Value:
    """Return a tensor; numbers become float32."""
    found = np.asarray(array)
    if found.dtype == np.float64 and not isinstance(array, np.ndarray):
        found = found.astype(np.float32)
    return Value(found, id, about)


def checksum(array: NDArray[Any]) -> str:
    return f"{zlib.crc32(array.tobytes()):08x}"


def statistics(array: NDArray[Any]) -> Entry:
    """Return the four statistics of an array; None for those that its type does not have."""
    found: Entry = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    if array.size == 0 or array.dtype.kind == "c":
        return found
    found |= {"Max": array.max().item(), "Min": array.min().item()}
    if array.dtype != np.bool_:
        wide = array.astype(np.float64)
        found |= {"Mean": float(wide.mean()), "Norm": float(np.sqrt((wide * wide).sum()))}
    return found


def save_archive(array: NDArray[Any], path: Path, dtype: str = "") -> None:
    """Write a file as torch.save makes it; `dtype` is that of types which NumPy lacks."""
    raw = memoryview(np.ascontiguousarray(array).tobytes())
    write_archive(str(path), dtype or array.dtype.name, array.shape, raw)


class DumpBuilder:
    """Collects the records of one rank in one step from arrays, and writes them.

    Args:
        folder: the dump path.
        task: ``statistics``, ``tensor``, ``md5`` (without statistics) or ``statistics+md5``.
        level: level of the dump.
        framework: who wrote it.
        step: number of the step.
        rank: name of the rank folder.
        suffix: of the files of tensors, ``.npy`` or ``.pt``.
    """

    def __init__(
        self,
        folder: Path,
        task: str = "statistics",
        level: str = "mix",
        framework: str = "pytorch",
        step: int = 0,
        rank: str = "rank",
        suffix: str = ".npy",
    ) -> None:
        self.folder = folder
        self._place = folder / f"step{step}" / rank
        self._task = task
        self._head = {"level": level, "framework": framework}
        self._suffix = suffix
        self._records: dict[str, Any] = {}
        self._parents: dict[str, str | None] = {}
        self._stacks: dict[str, Sequence[str]] = {}

    def call(
        self,
        name: str,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        *,
        kwargs: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        parent: str | None = None,
        line: int = 0,
        **notes: Any,
    ) -> DumpBuilder:
        """Add the record of a call, forward or backward by its name."""
        if ".backward" in name:
            parts = backward(inputs, outputs)
        else:
            parts = forward(inputs, outputs, **(kwargs or {}))
        if parameters is not None:
            parts["parameters"] = dict(parameters)
        frame = f"File /home/me/train.py, line {line}, in forward, \n y = f(x)"
        return self.add(name, parts, parent, [frame] if line else (), **notes)

    def gradients(self, name: str, **gradients: Any) -> DumpBuilder:
        """Add the record of a module's parameter gradients."""
        self._records[name] = {
            key: [self._described(item, f"{name}.{key}")] for key, item in gradients.items()
        }
        self._parents[name] = None
        return self

    def saved(self, name: str, item: Value) -> DumpBuilder:
        """Add what `save` was given."""
        self._records[name] = self._described(item, name)
        return self

    def add(
        self,
        name: str,
        parts: Mapping[str, Any],
        parent: str | None,
        frames: Sequence[str] = (),
        **notes: Any,
    ) -> DumpBuilder:
        """Add a record by its parts; `notes` are written as they are."""
        words = {"input_args": "input", "input_kwargs": "kwargs"}
        self._records[name] = {
            part: item
            if isinstance(item, bool)
            else self._described(item, f"{name}.{words.get(part, part)}")
            for part, item in parts.items()
        } | notes
        self._parents[name] = parent
        if frames:
            self._stacks[name] = frames
        return self

    def write(self) -> Path:
        """Write the dump; return its path."""
        tensors = self._place / "dump_tensor_data"
        head = {
            "task": "tensor" if self._task == "tensor" else "statistics",
            **self._head,
            "dump_data_dir": str(tensors) if tensors.exists() else None,
        }
        write_rank(self._place, self._records, parents=self._parents, stacks=self._stacks, **head)
        return self.folder

    def _described(self, item: Any, label: str) -> Any:
        match item:
            case Value():
                return self._tensor(item, label)
            case list() | tuple():
                return [self._described(each, f"{label}.{n}") for n, each in enumerate(item)]
            case None | {"type": _}:
                return item
            case {"class_type": _, "tensor": held}:
                return {**item, "tensor": self._described(held, label)}
            case dict():
                return {key: self._described(each, f"{label}.{key}") for key, each in item.items()}
        return {"type": type(item).__name__, "value": item}

    def _tensor(self, item: Value, label: str) -> Entry:
        entry = item.entry(self._task)
        if self._task == "tensor":
            entry["data_name"] = label + self._suffix
            path = self._place / "dump_tensor_data" / entry["data_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._suffix == ".npy":
                np.save(path, item.array)
            else:
                save_archive(item.array, path, entry["dtype"].removeprefix("torch."))
        return entry
