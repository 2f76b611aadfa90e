# SPDX-License-Identifier: Apache-2.0
"""Find records without their tensor files, and tensor files without their records.

Records reach the journal at once, and tensor files wait in the writer's queue: a kill leaves
records whose files were never written. The inputs of a call are on disk before the call has ended
and its record is written: a kill leaves the input files of the calls that were running.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from msprobe.dump import layout
from msprobe.dump.array_statistics import array_statistics
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, parse_record_name
from msprobe.dump.record_views import Record
from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import read_tensor
from msprobe.errors import DumpFormatError, UnsupportedError
from msprobe.files import TEMPORARY_PREFIX

UNFINISHED: Final = "unfinished"
"""Field of a record that was made of its tensor files."""

_WHY: Final = "the process ended before this call did; made of its tensor files"
_CALLS: Final = (RecordKind.FORWARD, RecordKind.BACKWARD)
# As files name the parts of a record.
_PARTS: Final = {"input": "input_args", "kwargs": "input_kwargs"}
_SAME_NAME: Final = ("output", "output_kwargs", "parameters")
_MOST_ITEMS: Final = 10_000


def missing_tensor_files(records: Iterable[Record], folder: Path) -> list[str]:
    """Return the files that records name as `data_name` and that `folder` does not hold.

    Each file once, in the order of the records. A record that is damaged names none.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    named = (name for record in records for name in _named_files(record))
    return list(dict.fromkeys(name for name in named if name not in there))


def unrecorded_tensor_files(records: Iterable[Record], folder: Path) -> list[str]:
    """Return the files in `folder` that no record names as `data_name`, sorted.

    A record that is damaged names none.
    """
    if not folder.is_dir():
        return []
    left = {
        path.name
        for path in folder.iterdir()
        if path.name.endswith(layout.TENSOR_SUFFIXES) and not path.name.startswith(TEMPORARY_PREFIX)
    }
    for record in records:
        left -= set(_named_files(record))
    return sorted(left)


def _named_files(record: Record) -> list[str]:
    """Return the tensor files that a record names; none if the record is damaged."""
    try:
        return [tensor.data_name for _, tensor in record.tensors() if tensor.data_name]
    except DumpFormatError:
        return []


def unfinished_records(
    files: Iterable[str], folder: Path, *, framework: str, known: Container[str]
) -> dict[str, JsonTree]:
    """Return records of the calls that files belong to, by name.

    Args:
        files: names of tensor files.
        folder: where they are.
        framework: of the dump.
        known: names of records that are there; nothing is added to these.

    Files that cannot be read, or whose names do not tell the call, are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        place = _place_of(file)
        if place is None or place.record in known:
            continue
        try:
            tensor = _entry(file, folder, framework)
        except (DumpFormatError, UnsupportedError):
            continue
        tree = found.setdefault(place.record, {})
        for key in place.path[:-1]:
            tree = tree.setdefault(key, {})
        tree[place.path[-1]] = tensor
    return {name: {**_with_lists(parts), UNFINISHED: _WHY} for name, parts in found.items()}


class _Place(NamedTuple):
    record: str
    path: tuple[str, ...]


def _place_of(file: str) -> _Place | None:
    """Return record and value of a tensor file, by the file's name; None if it does not tell."""
    parts = file.rpartition(".")[0].split(".")
    for end in range(1, len(parts)):
        record, rest = ".".join(parts[:end]), parts[end:]
        kind = parse_record_name(record).kind
        if kind in _CALLS and len(rest) > 1 and (rest[0] in _PARTS or rest[0] in _SAME_NAME):
            is_gradient = kind is RecordKind.BACKWARD and rest[0] == "input"
            part = rest[0] if is_gradient else _PARTS.get(rest[0], rest[0])
            return _Place(record, (part, *rest[1:])) if all(map(_is_key, rest)) else None
        if kind in PARAMETER_GRADIENTS:
            return _Place(record, (".".join(rest), "0"))
    return None


def _is_key(text: str) -> bool:
    return not text.isdecimal() or int(text[:9]) < _MOST_ITEMS


def _with_lists(tree: Any) -> Any:
    """Return the tree with a list for every dict whose keys are all numbers."""
    if not isinstance(tree, dict) or "type" in tree:
        return tree
    items = {key: _with_lists(item) for key, item in tree.items()}
    if not all(key.isdecimal() for key in items):
        return items
    numbered = {int(key): item for key, item in items.items()}
    return [numbered.get(number) for number in range(max(numbered) + 1)]


def _entry(file: str, folder: Path, framework: str) -> dict[str, JsonTree]:
    tensor = read_tensor(folder, file)
    is_torch = framework != "mindspore"
    return {
        "type": "torch.Tensor" if is_torch else "mindspore.Tensor",
        "dtype": f"torch.{tensor.dtype}" if is_torch else _mindspore_dtype(tensor.dtype),
        "shape": list(tensor.array.shape),
        **array_statistics(tensor.values()),
        "data_name": file,
    }


def _mindspore_dtype(dtype: str) -> str:
    word = dtype.replace("uint", "UInt").replace("bfloat", "BFloat")
    return word[0].upper() + word[1:]
