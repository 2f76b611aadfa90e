# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed's ZeRO, whose partitions are joined to whole parameters.

    {folder}/latest                                               name of the newest step's folder
    {folder}/global_step100/mp_rank_00_model_states.pt            the module, shapes of parameters
    {folder}/global_step100/zero_pp_rank_0_mp_rank_00_model_states.pt    the same at stage 3
    {folder}/global_step100/[bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt    flat partitions

Up to stage 2 every rank holds a range of all parameters one after another; at stage 3 it holds its
share of every single one. Parameters are the float32 ones of the optimizer. The copies of lower
precision in the module must be these, rounded; they take part only where there is no other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.parameters import (
    Checkpoint,
    Content,
    Contradiction,
    Format,
    Parameter,
    make_checkpoint,
    renamed,
)
from msprobe.checkpoints.pickled_tree import TorchFile
from msprobe.checkpoints.rounding import is_rounding
from msprobe.checkpoints.spans import JoinedSpan, PartSpan, Span
from msprobe.checkpoints.torch_file import read_torch_file
from msprobe.dump.formats.pickle import Described
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading

_LATEST: Final = "latest"
_MODEL_FILE: Final = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER_FILE: Final = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt"
)
_STATES: Final = "optimizer_state_dict"
_MASTERS: Final = ("single_partition_of_fp32_groups", "fp32_flat_groups")
# Values that say how a checkpoint is laid out, which is no difference of what it holds.
_LAYOUT: Final = frozenset(
    (
        "optimizer",
        "param_shapes",
        "frozen_param_shapes",
        "frozen_param_fragments",
        "shared_params",
        "buffer_names",
        "dp_world_size",
        "mp_world_size",
        "ds_config",
        "ds_version",
    )
)
_OPTIMIZER_KEYS: Final = (("param_groups",), ("state",), ("loss_scaler",), ("clip_grad",))
# At most so many elements are added so that the partitions are equally long.
_MAX_PADDING: Final = 1 << 16

Shape = tuple[int, ...]
_Flats = Mapping[str, Mapping[int, Parameter]]
"""Flat partitions of a rank by their kind (``exp_avg`` …) and group."""


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of the only model-parallel rank, by number of the data-parallel rank."""

    model: dict[int, Path]
    optimizer: dict[int, Path]


def find_deepspeed(path: Path) -> Path | None:
    """Return the folder with the files of a step; None if this is no ZeRO checkpoint.

    Raises:
        CheckpointFormatError: the step that is marked as the latest is not there.
    """
    if _files(path) is not None:
        return path
    latest = path / _LATEST
    if not latest.is_file():
        return None
    with reading(latest, CheckpointFormatError, ValueError):
        word = latest.read_text(encoding="utf-8")[:200].strip()
    if Path(word).name != word or word in ("", ".", ".."):
        raise CheckpointFormatError(latest, f"names the folder {word!r:.60}, not beside it")
    if not (path / word).is_dir():
        raise CheckpointFormatError(path / word, f"is missing, and {_LATEST!r} names it")
    return path / word if _files(path / word) is not None else None


def read_deepspeed(folder: Path) -> Checkpoint:
    """Return the whole parameters and states of the optimizer of a step.

    Raises:
        CheckpointFormatError: a file is damaged, or partitions are missing or do not fit together.
    """
    files = _files(folder)
    assert files is not None
    models = [read_torch_file(file) for _, file in sorted(files.model.items())]
    ranks = [read_torch_file(file) for _, file in sorted(files.optimizer.items())]
    stage = _setting(ranks[0], "zero_stage", 2)
    _check_count(folder, files, ranks[0])
    try:
        groups = _shapes(models[0].tree["param_shapes"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
        raise CheckpointFormatError(
            next(iter(files.model.values())), f"has no param_shapes ({exc!r:.60})"
        ) from exc
    content = Content()
    partitions = _Partitions(folder, [_flat(rank.content) for rank in ranks], stage)
    for kind in partitions.kinds():
        for name, parameter in partitions.joined(kind, groups):
            path = (name,) if kind in _MASTERS else ("optimizer", "state", name, kind)
            content.parameters.append(renamed(parameter, path))
    _add_module(content, models, {name for group in groups for name in group}, stage)
    _add_values(content, models[0].content, ranks[0].content)
    kind = f"DeepSpeed ZeRO, stage {stage}, {len(ranks)} partitions"
    content.formats = {Format.ZERO}
    return make_checkpoint(folder, kind, content)


def _files(folder: Path) -> _Files | None:
    found = _Files({}, {})
    for file in folder.glob("*mp_rank_*_states.pt"):
        for pattern, files in (
            (_MODEL_FILE, found.model),
            (_OPTIMIZER_FILE, found.optimizer),
        ):
            match = pattern.fullmatch(file.name)
            if match is not None:
                if int(match[2]):
                    return None  # parts of several model-parallel ranks cannot be joined
                files[int(match[1] or 0)] = file
    return found if found.model and found.optimizer else None


def _setting(rank: TorchFile, key: str, default: Any) -> Any:
    states = rank.tree.get(_STATES) if isinstance(rank.tree, dict) else None
    found = states.get(key, default) if isinstance(states, dict) else default
    if isinstance(found, Described) and isinstance(found.arguments, tuple) and found.arguments:
        found = found.arguments[0]  # a member of an enumeration
    return max(found) if isinstance(found, list) and found else found


def _check_count(folder: Path, files: _Files, first: TorchFile) -> None:
    count = _setting(first, "partition_count", len(files.optimizer))
    if type(count) is not int or not 0 < count < 1 << 20:
        raise CheckpointFormatError(folder, f"partition_count is {count!r:.40}")
    for kind, found, expected in (
        ("optim_states", files.optimizer, count),
        ("model_states", files.model, 1 if len(files.model) == 1 else count),
    ):
        missing = sorted(set(range(expected)) - set(found))
        if missing or len(found) > expected:
            problem = f"has {len(found)} files *_{kind}.pt where partition_count is {count}"
            if missing:
                problem += f"; zero_pp_rank_{missing[0]}_mp_rank_00_{kind}.pt is missing"
            raise CheckpointFormatError(folder, problem)


def _shapes(tree: Any) -> list[dict[str, Shape]]:
    """Return the shapes of the parameters of each group."""
    groups = tree if isinstance(tree, list) else [tree]
    return [{str(name): _size(size) for name, size in group.items()} for group in groups]


def _size(described: Any) -> Shape:
    sizes = described.arguments[0] if isinstance(described, Described) else described
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise ValueError("a shape has a size that is no number")
    return tuple(sizes)


def _flat(content: Content) -> _Flats:
    found: dict[str, dict[int, Parameter]] = {}
    for item in content.parameters:
        if item.path[:1] != (_STATES,) or len(item.shape) != 1:
            continue
        match [key for key in _inner_keys(item.path) if key != "state"]:
            case [str() as kind, int() as group] if kind in _MASTERS:
                found.setdefault(kind, {})[group] = item
            case [int() as group, str() as kind]:
                found.setdefault(kind, {})[group] = item
    return found


class _Partitions:
    """The flat partitions of all ranks."""

    def __init__(self, folder: Path, ranks: Sequence[_Flats], stage: Any) -> None:
        self._folder = folder
        self._ranks = ranks
        self._is_stage_3 = stage == 3

    def kinds(self) -> list[str]:
        """Return the kinds of partitions, the parameters themselves first."""
        kinds = list(self._ranks[0])
        if not any(kind in _MASTERS for kind in kinds):
            raise CheckpointFormatError(self._folder, "holds no flat float32 partitions")
        return sorted(kinds, key=lambda kind: kind not in _MASTERS)

    def joined(
        self, kind: str, groups: Sequence[Mapping[str, Shape]]
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield every parameter of a kind with its name."""
        if self._is_stage_3:
            merged = {name: shape for group in groups for name, shape in group.items()}
            numbers = sorted(self._ranks[0][kind])
            yield from self._interleaved(
                [self._chain(r, kind, numbers) for r in self._ranks], merged
            )
            return
        for number, group in enumerate(groups):
            if number in self._ranks[0][kind]:
                flats = [self._part(rank, kind, number) for rank in self._ranks]
                yield from self._consecutive(flats, group)

    def _part(
        self, rank: Mapping[str, Mapping[int, Parameter]], kind: str, group: int
    ) -> Parameter:
        try:
            return rank[kind][group]
        except KeyError as exc:
            problem = f"{kind} of group {group} is missing on a rank"
            raise CheckpointFormatError(self._folder, problem) from exc

    def _chain(self, rank: _Flats, kind: str, groups: Sequence[int]) -> Parameter:
        """Return the groups of a rank one after another."""
        parts = [self._part(rank, kind, group) for group in groups]
        return _joined(parts[0], [(part.span, part.count) for part in parts])

    def _consecutive(
        self, flats: Sequence[Parameter], group: Mapping[str, Shape]
    ) -> Iterator[tuple[str, Parameter]]:
        whole = _joined(flats[0], [(flat.span, flat.count) for flat in flats])
        needed = sum(map(math.prod, group.values()))
        if not needed <= whole.count <= needed + _MAX_PADDING * len(flats):
            self._refuse(whole.count, needed)
        begin = 0
        for name, shape in group.items():
            count = math.prod(shape)
            yield name, replace(flats[0], shape=shape, span=PartSpan(whole.span, begin))
            begin += count

    def _interleaved(
        self, flats: Sequence[Parameter], group: Mapping[str, Shape]
    ) -> Iterator[tuple[str, Parameter]]:
        shares = {name: -(-math.prod(shape) // len(flats)) for name, shape in group.items()}
        needed = sum(shares.values())
        for flat in flats:
            if not needed <= flat.count <= needed + _MAX_PADDING:
                self._refuse(flat.count, needed)
        begin = 0
        for name, shape in group.items():
            parts: list[tuple[Span, int]] = [
                (PartSpan(flat.span, begin), shares[name]) for flat in flats
            ]
            yield name, replace(flats[0], shape=shape, span=JoinedSpan(parts))
            begin += shares[name]

    def _refuse(self, found: int, needed: int) -> None:
        problem = f"partitions of {found} elements do not fit the parameters, which take {needed}"
        raise CheckpointFormatError(self._folder, problem)


def _joined(first: Parameter, parts: list[tuple[Span, int]]) -> Parameter:
    span = parts[0][0] if len(parts) == 1 else JoinedSpan(parts)
    return replace(first, shape=(sum(count for _, count in parts),), span=span)


def _add_module(
    content: Content, models: Sequence[TorchFile], partitioned: set[str], stage: Any
) -> None:
    """Add tensors of the module without a float32 partition; check that the others are copies."""
    masters = {item.path: item for item in content.parameters}
    for item in models[0].content.parameters:
        if item.path[:1] != ("module",):
            continue
        path = (path_name(item.path[1:]),)
        if path not in masters:
            if stage != 3 or item.count or path[0] not in partitioned:
                content.parameters.append(renamed(item, path))
            continue
        master = masters[path]
        if stage == 3 and item.shape != master.shape:
            continue  # an empty place holder
        if item.shape != master.shape or not is_rounding(master, item, item.dtype):
            problem = "the module's copy is not the optimizer's parameter, rounded"
            content.contradictions.append(Contradiction(name=path[0], problem=problem))
    content.parameters += _frozen(models)


def _frozen(models: Sequence[TorchFile]) -> Iterator[Parameter]:
    """Yield frozen parameters of stage 3, of which every rank holds a share."""
    tree = models[0].tree
    shapes = tree.get("frozen_param_shapes") if isinstance(tree, dict) else None
    if not isinstance(shapes, dict) or len(models) < 1:
        return
    shares = [
        {path_name(item.path[1:]): item for item in model.content.parameters
         if item.path[:1] == ("frozen_param_fragments",)}
        for model in models
    ]  # fmt: skip
    for name, size in shapes.items():
        parts = [rank[name] for rank in shares if name in rank]
        if len(parts) == len(models):
            joined = _joined(parts[0], [(part.span, part.count) for part in parts])
            yield renamed(replace(joined, shape=_size(size)), (name,))


def _add_values(content: Content, model: Content, rank: Content) -> None:
    """Add settings of the optimizer, and what the module's file holds beside the module."""
    for value in rank.values:
        keys = _inner_keys(value.path)
        if keys[:1] in _OPTIMIZER_KEYS and keys[-1] != "params":
            content.values.append(renamed(value, ("optimizer", *keys)))
    for item in rank.parameters:
        if item.shape == () and item.path[:1] == (_STATES,):
            content.parameters.append(renamed(item, ("optimizer", *_inner_keys(item.path))))
    content.values += [item for item in model.values if _is_beside_module(item.path)]
    content.parameters += [item for item in model.parameters if _is_beside_module(item.path)]
    content.unread += [*model.unread, *rank.unread]


def _inner_keys(path: KeyPath) -> KeyPath:
    """Return a path without the containers around the state of an optimizer."""
    return tuple(key for key in path if key not in (_STATES, "base_optimizer_state"))


def _is_beside_module(path: KeyPath) -> bool:
    return path[:1] != ("module",) and path[0] not in _LAYOUT
