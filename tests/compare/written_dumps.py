# SPDX-License-Identifier: Apache-2.0
"""Small dumps written by hand from arrays, and what a comparison says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.compare.options import CompareOptions
from msprobe.compare.result import CompareResult
from msprobe.compare.run import run_comparison

Entry = dict[str, Any]


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

    def entry(self) -> Entry:
        """Return what stands in ``dump.json``."""
        array = self.array
        wide = array.astype(np.float64)
        has_values = array.size > 0
        is_bool = array.dtype == bool
        number = (lambda x: x.item()) if not is_bool else bool
        return {
            "type": "torch.Tensor",
            "dtype": f"torch.{array.dtype.name}",
            "shape": list(array.shape),
            "Max": number(array.max()) if has_values else None,
            "Min": number(array.min()) if has_values else None,
            "Mean": float(wide.mean()) if has_values and not is_bool else None,
            "Norm": float(np.sqrt((wide**2).sum())) if has_values and not is_bool else None,
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


class Book:
    """Records of one rank, to be written.

    Args:
        folder: the dump path.
        task: ``statistics`` or ``tensor``.
        level: level of the dump.
        framework: who wrote it.
    """

    def __init__(
        self,
        folder: Path,
        task: str = "statistics",
        level: str = "mix",
        framework: str = "pytorch",
        step: int = 0,
        rank: str = "rank",
    ) -> None:
        self.folder = folder
        self._place = folder / f"step{step}" / rank
        self._head = {"task": task, "level": level, "framework": framework}
        self._records: dict[str, Entry] = {}
        self._parents: dict[str, str | None] = {}
        self._stacks: dict[str, Any] = {}
        self._files = 0

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
    ) -> Book:
        """Add the record of a call, forward or backward by its name."""
        is_backward = ".backward" in name
        record: Entry = {"input" if is_backward else "input_args": self._all(inputs)}
        if not is_backward:
            record["input_kwargs"] = {key: self._one(item) for key, item in (kwargs or {}).items()}
        if parameters is not None:
            record["parameters"] = {key: self._one(item) for key, item in parameters.items()}
        record["output"] = self._all(outputs)
        self._records[name] = record | notes
        self._parents[name] = parent
        if line:
            frame = f"File /home/me/train.py, line {line}, in forward, \n y = f(x)"
            self._stacks[str(len(self._stacks))] = [[name], [frame]]
        return self

    def gradients(self, name: str, **gradients: Any) -> Book:
        """Add the record of a module's parameter gradients."""
        self._records[name] = {key: [self._one(item)] for key, item in gradients.items()}
        self._parents[name] = None
        return self

    def write(self) -> Path:
        """Write the dump; return its path."""
        self._place.mkdir(parents=True, exist_ok=True)
        directory = str(self._place / "dump_tensor_data") if self._files else None
        head = {**self._head, "dump_data_dir": directory, "data": self._records}
        (self._place / "dump.json").write_text(json.dumps(head))
        (self._place / "construct.json").write_text(json.dumps(self._parents))
        (self._place / "stack.json").write_text(json.dumps(self._stacks))
        return self.folder

    def _all(self, values: Sequence[Any]) -> list[Any]:
        return [self._one(item) for item in values]

    def _one(self, item: Any) -> Any:
        if item is None or isinstance(item, dict):
            return item
        if isinstance(item, (list, tuple)):
            return self._all(item)
        if not isinstance(item, Value):
            return {"type": type(item).__name__, "value": item}
        entry = item.entry()
        if self._head["task"] == "tensor":
            self._files += 1
            entry["data_name"] = f"{self._files}.npy"
            folder = self._place / "dump_tensor_data"
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / entry["data_name"], item.array)
        return entry


@dataclass(frozen=True)
class Verdicts:
    """What a comparison found.

    Attributes:
        result: the result itself.
        rows: row name → its columns; of several steps and ranks the first one.
    """

    result: CompareResult
    rows: Mapping[str, Mapping[str, Any]]

    @property
    def summary(self) -> Mapping[str, Any]:
        """What summary.json would hold."""
        return self.result.summary

    def status(self, row: str) -> str:
        """Status of a row."""
        return str(self.rows[row]["status"])

    def origin(self, row: str) -> str | None:
        """Origin of a row."""
        found: str | None = self.rows[row]["origin"]
        return found

    def reason(self, row: str) -> str:
        """Why, in words."""
        return str(self.rows[row]["reason"])

    @property
    def culprits(self) -> list[str]:
        """The operations that introduced a difference, best first."""
        return [entry["name"] for entry in self.summary["introduced"]]


def compare(target: Path, reference: Path, **options: Any) -> Verdicts:
    """Compare two dumps."""
    result = run_comparison(target, reference, CompareOptions(**options))
    rows: dict[str, Mapping[str, Any]] = {}
    for row in result.frame.iter_rows(named=True):
        rows.setdefault(row["name"], row)
    return Verdicts(result, rows)
