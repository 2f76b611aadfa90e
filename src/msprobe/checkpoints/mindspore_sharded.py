# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that MindSpore saves rank by rank, joined as its strategy file says.

{folder}/rank_0/{name}.ckpt, {folder}/rank_1/{name}.ckpt …
{folder}/[strategy/]{name}.ckpt     the strategy: how each parameter is cut over the devices

message ParallelStrategyMap { repeated ParallelLayoutItem parallel_layout_item = 3; … }
message ParallelLayoutItem  { string param_name = 1; ParallelLayouts parallel_layouts = 2; }
message ParallelLayouts     { repeated Dims dev_matrix = 1; repeated Dims tensor_map = 2;
                              int32 opt_weight_shard_size = 7; … }
message Dims                { repeated int32 dim = 1; }
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from msprobe.checkpoints.blocks import Block, joined_blocks
from msprobe.checkpoints.parameters import (
    Checkpoint,
    Content,
    Contradiction,
    Parameter,
    Unread,
    make_checkpoint,
    same_bytes,
)
from msprobe.dump.formats.protobuf import MalformedMessageError, Message, Wire
from msprobe.dump.open_file import OpenFile
from msprobe.errors import CheckpointFormatError, DumpFormatError

_RANK: Final = re.compile(r"rank_(\d+)")
_SUFFIXES: Final = (".ckpt", ".safetensors")
_FIRST_BYTE: Final = b"\x08"
"""A strategy begins with the number of the pipeline stage, a checkpoint with an entry."""
_MAX_TEXT_BYTES: Final = 1 << 16
_MAX_DEVICES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a parameter is cut.

    Attributes:
        devices: sizes of the grid of devices.
        axes: for each dimension of the parameter the axis of the grid that cuts it, counted from
            the last one; -1 for none.
        shards: into how many parts the optimizer cuts it further; 0 or less for none.
    """

    devices: tuple[int, ...]
    axes: tuple[int, ...]
    shards: int

    def offset(self, rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return where the part of a rank begins in the whole parameter."""
        rest, place = rank % math.prod(self.devices), list[int]()
        for size in reversed(self.devices):
            rest, coordinate = divmod(rest, size)
            place.append(coordinate)
        return tuple(
            0 if axis < 0 else place[axis] * size
            for axis, size in zip(self.axes, shape, strict=True)
        )

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the parameter whose parts have this shape."""
        return tuple(
            size if axis < 0 else size * self.devices[-axis - 1]
            for axis, size in zip(self.axes, shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class MindSporeShards:
    """Files of a sharded checkpoint: one of each rank, and strategies."""

    ranks: dict[int, Path]
    strategies: tuple[Path, ...]


def find_mindspore_shards(path: Path) -> MindSporeShards | None:
    """Return the files of a sharded checkpoint with its strategy; None if a folder is none."""
    ranks: dict[int, Path] = {}
    for child in path.glob("rank_*"):
        number = _RANK.fullmatch(child.name)
        files = [file for file in child.glob("*") if file.suffix in _SUFFIXES]
        if number is None or len(files) != 1:
            continue
        ranks[int(number[1])] = files[0]
    strategies = [
        file
        for file in sorted([*path.glob("*.ckpt"), *path.glob("strategy/*.ckpt")])
        if file.is_file() and _starts_as_strategy(file)
    ]
    return MindSporeShards(ranks, tuple(strategies)) if ranks and strategies else None


def _starts_as_strategy(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(1) == _FIRST_BYTE
    except OSError:
        return False


def read_mindspore_shards(
    folder: Path, files: MindSporeShards, read: Callable[[Path], Content]
) -> Checkpoint:
    """Return the whole parameters of a sharded checkpoint.

    Args:
        folder: the folder.
        files: its files.
        read: reads the file of a rank.

    Raises:
        CheckpointFormatError: a file is damaged, or parts are missing or do not fit together.
    """
    layouts: dict[str, _Layout] = {}
    for file in files.strategies:
        layouts |= _read_strategy(file)
    parts: dict[str, dict[int, Parameter]] = defaultdict(dict)
    content = Content()
    for rank, file in sorted(files.ranks.items()):
        found = read(file)
        for parameter in found.parameters:
            parts[parameter.name][rank] = parameter
        found.parameters = []
        content.add(found, (f"rank_{rank}",))
    for name, by_rank in parts.items():
        _join(folder, content, name, by_rank, layouts.get(name))
    kind = f"MindSpore, {len(files.ranks)} ranks"
    return make_checkpoint(folder, kind, content)


def _join(
    folder: Path, content: Content, name: str, parts: dict[int, Parameter], layout: _Layout | None
) -> None:
    first = next(iter(parts.values()))
    layout = layout or _Layout((1,), (-1,) * len(first.shape), 0)
    if layout.shards > 0:
        problem = "the optimizer cuts it further, which cannot be joined"
        content.unread.append(Unread(name=name, path=(name,), problem=problem))
        return
    if any((part.shape, part.dtype) != (first.shape, first.dtype) for part in parts.values()):
        raise CheckpointFormatError(folder, f"the parts of {name!r} differ in shape or type")
    if len(layout.axes) != len(first.shape):
        problem = f"{name!r} has {len(first.shape)} dimensions, its strategy {len(layout.axes)}"
        raise CheckpointFormatError(folder, problem)
    blocks: dict[tuple[int, ...], Parameter] = {}
    for rank, part in parts.items():
        copy = blocks.setdefault(layout.offset(rank, part.shape), part)
        if copy is not part and not same_bytes(copy, part):
            problem = f"rank_{rank} does not hold the same as {copy.file.parent.name}"
            content.contradictions.append(Contradiction(name=name, problem=problem))
    whole = layout.whole(first.shape)
    try:
        span = joined_blocks(
            whole,
            [Block(offset, part.shape, part.span) for offset, part in blocks.items()],
            first.dtype,
        )
    except ValueError as exc:
        problem = f"the parts of {name!r} do not make up {list(whole)}: {exc}"
        raise CheckpointFormatError(folder, problem) from exc
    content.parameters.append(replace(first, shape=whole, span=span))


def _read_strategy(path: Path) -> dict[str, _Layout]:
    found: dict[str, _Layout] = {}
    try:
        with OpenFile(path) as file:
            for entry in Message(file, 0, file.size).fields():
                if entry.number == 3 and entry.wire is Wire.BYTES:
                    name, layout = _read_item(entry.data)
                    found[name] = layout
    except (MalformedMessageError, DumpFormatError) as exc:
        raise CheckpointFormatError(path, f"is no strategy of MindSpore: {exc}") from exc
    return found


def _read_item(item: Message) -> tuple[str, _Layout]:
    name, layout = "", None
    for entry in item.fields():
        if entry.number == 1 and entry.wire is Wire.BYTES:
            name = entry.data.text(_MAX_TEXT_BYTES)
        elif entry.number == 2 and entry.wire is Wire.BYTES:
            layout = _read_layout(entry.data)
    if not name or layout is None:
        raise MalformedMessageError("an entry has no name or no layout")
    return name, layout


def _read_layout(message: Message) -> _Layout:
    devices: list[list[int]] = []
    axes: list[list[int]] = []
    shards = 0
    for entry in message.fields():
        if entry.number in (1, 2) and entry.wire is Wire.BYTES:
            (devices if entry.number == 1 else axes).append(_dims(entry.data))
        elif entry.number == 7 and entry.wire is Wire.VARINT:
            shards = _signed(entry.integer)
    if len(devices) != 1 or len(axes) != 1 or not _fits(devices[0], axes[0]):
        raise MalformedMessageError("a layout is of an unknown form")
    return _Layout(tuple(devices[0]), tuple(axes[0]), shards)


def _fits(devices: Sequence[int], axes: Sequence[int]) -> bool:
    sizes = all(0 < size <= _MAX_DEVICES for size in devices) and len(devices) < 64
    return sizes and all(-1 <= axis < len(devices) for axis in axes)


def _dims(message: Message) -> list[int]:
    return [
        _signed(value)
        for entry in message.fields()
        if entry.number == 1
        for value in entry.integers()
    ]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
