# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Megatron-LM and MindSpeed, put together from the files of all ranks.

    {folder}/latest_checkpointed_iteration.txt
    {folder}/iter_0000100/mp_rank_{tp}[_{pp}][_{ep}]/model_optim_rng.pt

Tensor-parallel parts are joined, layers and experts are numbered through, names get the spelling of
megatron.core. Only the model's parameters are read.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.checkpoints.megatron_names import (
    Cut,
    core_name,
    cut_of,
    expert_of,
    is_expert,
    is_gated,
    layer_of,
    renumbered,
)
from msprobe.checkpoints.parameters import Checkpoint, Parameter
from msprobe.checkpoints.spans import ColumnsSpan, JoinedSpan, Span
from msprobe.checkpoints.torch_file import read_torch_file
from msprobe.dump.formats.pickle import Described
from msprobe.errors import CheckpointFormatError

LATEST: Final = "latest_checkpointed_iteration.txt"
_RANK_FOLDER: Final = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_FILES: Final = ("model_optim_rng.pt", "model_rng.pt")
_MODEL: Final = re.compile(r"model(\d*)\.(.+)")


@dataclass(frozen=True, slots=True)
class _Rank:
    """Place of a file in the grid of ranks."""

    tp: int
    pp: int
    ep: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive layers on one pipeline stage; a virtual stage has several."""

    virtual: int
    pp: int


def find_megatron(path: Path) -> Path | None:
    """Return the folder with the files of the ranks; None if this is no Megatron checkpoint.

    Raises:
        CheckpointFormatError: the checkpoint that is marked as the latest is not there.
    """
    if any(_rank_files(path)):
        return path
    latest = path / LATEST
    if not latest.is_file():
        return None
    try:
        word = latest.read_text(encoding="utf-8")[:40].strip()
    except (OSError, ValueError) as exc:
        raise CheckpointFormatError(latest, f"cannot be read: {exc}") from exc
    if word != "release" and not (word.isascii() and word.isdigit()):
        raise CheckpointFormatError(latest, f'holds {word!r} instead of a number or "release"')
    folder = path / (word if word == "release" else f"iter_{int(word):07d}")
    if not any(_rank_files(folder)):
        raise CheckpointFormatError(folder, f"holds no mp_rank_* with {' or '.join(_FILES)}")
    return folder


def read_megatron(folder: Path) -> Checkpoint:
    """Return the model in a folder of ``mp_rank_*`` folders, as if one rank had held all of it.

    Raises:
        CheckpointFormatError: a file is damaged, or parts are missing or do not fit together.
    """
    notes: list[str] = []
    files = _rank_files(folder)
    models: dict[_Rank, dict[tuple[int, str], Parameter]] = {}
    settings: Mapping[str, Any] = {}
    numbers: dict[Path, tuple[int, int | None, int | None]] = files
    contents = {}
    for file in numbers:
        contents[file] = read_torch_file(file)
        settings = settings or _settings(contents[file].tree)
    for file, rank in _grid(numbers, settings, contents).items():
        models[rank] = {}
        for parameter in contents[file].content.parameters:
            found = _MODEL.fullmatch(parameter.name)
            if found is not None:
                models[rank][int(found[1] or 0), core_name(found[2])] = parameter
    parts = _parts_by_name(models)
    if not parts:
        raise CheckpointFormatError(folder, "holds no parameters of a model")
    gated = settings.get("swiglu") is True
    tp_size = 1 + max(rank.tp for rank in models)
    merged = {
        name: _merge(folder, name, by_tp, tp_size, gated, notes) for name, by_tp in parts.items()
    }
    pp_size, ep_size = (1 + max(getattr(rank, axis) for rank in models) for axis in ("pp", "ep"))
    kind = f"Megatron, TP {tp_size} PP {pp_size} EP {ep_size}"
    return Checkpoint(path=folder, kind=kind, parameters=merged, notes=tuple(notes))


def _rank_files(folder: Path) -> dict[Path, tuple[int, int | None, int | None]]:
    found: dict[Path, tuple[int, int | None, int | None]] = {}
    for child in sorted(folder.glob("mp_rank_*")):
        numbers = _RANK_FOLDER.fullmatch(child.name)
        file = next((child / name for name in _FILES if (child / name).is_file()), None)
        if numbers and file is not None:
            tp, second, third = (None if text is None else int(text) for text in numbers.groups())
            assert tp is not None
            found[file] = (tp, second, third)
    return found


def _settings(tree: Any) -> Mapping[str, Any]:
    """Return the training's arguments, stored in the file as a namespace."""
    arguments = tree.get("args") if isinstance(tree, dict) else None
    if isinstance(arguments, Described) and isinstance(arguments.state, dict):
        return arguments.state
    return {}


def _grid(
    numbers: Mapping[Path, tuple[int, int | None, int | None]],
    settings: Mapping[str, Any],
    contents: Mapping[Path, Any],
) -> dict[Path, _Rank]:
    """Return the rank of each file.

    With two numbers in the folder's name the second is that of the pipeline stage, or of the expert
    group where there is no pipeline; the training's arguments tell.
    """
    second_is_expert = settings.get("pipeline_model_parallel_size") == 1
    if "pipeline_model_parallel_size" not in settings:
        second_is_expert = _all_have_embeddings(contents)
    grid: dict[Path, _Rank] = {}
    for file, (tp, second, third) in numbers.items():
        if third is None and second is not None and second_is_expert:
            grid[file] = _Rank(tp, 0, second)
        else:
            grid[file] = _Rank(tp, second or 0, third or 0)
    return grid


def _all_have_embeddings(contents: Mapping[Path, Any]) -> bool:
    """Whether every file holds experts and the embedding, which only a first stage has."""
    return all(
        any(is_expert(name) for name in names)
        and any(name.endswith("embedding.word_embeddings.weight") for name in names)
        for names in (
            [core_name(parameter.name) for parameter in file.content.parameters]
            for file in contents.values()
        )
    )


def _parts_by_name(
    models: Mapping[_Rank, Mapping[tuple[int, str], Parameter]],
) -> dict[str, dict[int, list[Parameter]]]:
    """Return, by full name and tensor-parallel rank, every copy of a part."""
    first_layer = _first_layers(models)
    experts: Counter[_Chunk] = Counter()
    for rank, model in models.items():
        for (virtual, name), _ in model.items():
            number = expert_of(name)
            if number is not None:
                chunk = _Chunk(virtual, rank.pp)
                experts[chunk] = max(experts[chunk], number + 1)
    parts: dict[str, dict[int, list[Parameter]]] = defaultdict(lambda: defaultdict(list))
    for rank in sorted(models, key=lambda rank: (rank.pp, rank.ep, rank.tp)):
        for (virtual, name), parameter in models[rank].items():
            chunk = _Chunk(virtual, rank.pp)
            layers, first_expert = first_layer[chunk], rank.ep * experts[chunk]
            full = renumbered(name, first_layer=layers, first_expert=first_expert)
            parts[full][rank.tp].append(parameter)
    return parts


def _first_layers(models: Mapping[_Rank, Mapping[tuple[int, str], Parameter]]) -> dict[_Chunk, int]:
    """Return the number of the first layer of each chunk: virtual stage first, then stage."""
    counts: Counter[_Chunk] = Counter()
    for rank, model in models.items():
        for virtual, name in model:
            number = layer_of(name)
            chunk = _Chunk(virtual, rank.pp)
            counts[chunk] = max(counts[chunk], 0 if number is None else number + 1)
    first: dict[_Chunk, int] = {}
    total = 0
    for chunk in sorted(counts, key=lambda chunk: (chunk.virtual, chunk.pp)):
        first[chunk] = total
        total += counts[chunk]
    return first


def _merge(
    folder: Path,
    name: str,
    by_tp: Mapping[int, list[Parameter]],
    tp_size: int,
    gated: bool,
    notes: list[str],
) -> Parameter:
    if sorted(by_tp) != list(range(tp_size)):
        missing = sorted(set(range(tp_size)) - set(by_tp))
        raise CheckpointFormatError(
            folder, f"{name!r} is missing on tensor-parallel rank {missing}"
        )
    parts = [by_tp[tp][0] for tp in range(tp_size)]
    copies = [copy for tp in range(tp_size) for copy in by_tp[tp][1:]]
    cut = cut_of(name) if tp_size > 1 else Cut.WHOLE
    if cut is Cut.WHOLE:
        _compare_copies(name, parts[0], [*parts[1:], *copies], notes)
        return _joined(name, parts[0], parts[0].shape, parts[0].span)
    for tp in range(tp_size):
        _compare_copies(name, by_tp[tp][0], by_tp[tp][1:], notes)
    return _join_parts(folder, name, parts, cut, gated and is_gated(name))


def _join_parts(
    folder: Path, name: str, parts: list[Parameter], cut: Cut, in_halves: bool
) -> Parameter:
    axis = cut.value
    assert axis is not None
    first = parts[0]
    for part in parts:
        shape = (*part.shape[:axis], *part.shape[axis + 1 :])
        if (
            len(part.shape) <= axis
            or part.dtype != first.dtype
            or shape != (*first.shape[:axis], *first.shape[axis + 1 :])
        ):
            shapes = ", ".join(str(list(part.shape)) for part in parts)
            raise CheckpointFormatError(folder, f"the parts of {name!r} do not fit: {shapes}")
    total = sum(part.shape[axis] for part in parts)
    joined = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    span: Span
    if cut is Cut.COLUMNS:
        span = ColumnsSpan([(part.span, part.shape[1]) for part in parts])
    elif in_halves and all(part.shape[0] % 2 == 0 for part in parts):
        # Each rank holds its share of the gate, then its share of the values.
        halves = [
            (_Tail(part.span, half * (part.count // 2)), part.count // 2)
            for half in (0, 1)
            for part in parts
        ]
        span = JoinedSpan(list(halves))
    else:
        span = JoinedSpan([(part.span, part.count) for part in parts])
    return _joined(name, first, joined, span)


class _Tail:
    """A span from one of its elements on."""

    def __init__(self, span: Span, first: int) -> None:
        self._span = span
        self._first = first

    def read(self, start: int, stop: int) -> Any:
        """Return some elements of the inner span."""
        return self._span.read(start + self._first, stop + self._first)


def _joined(name: str, part: Parameter, shape: tuple[int, ...], span: Span) -> Parameter:
    return Parameter(
        name=name, dtype=part.dtype, shape=shape, span=span, file=part.file, path=(name,)
    )


def _compare_copies(name: str, first: Parameter, copies: list[Parameter], notes: list[str]) -> None:
    """Add a note for each parameter whose copies on different ranks differ."""
    for copy in copies:
        same = (
            copy.shape == first.shape
            and copy.dtype == first.dtype
            and all(
                one.tobytes() == other.tobytes()
                for one, other in zip(first.pieces(), copy.pieces(), strict=True)
            )
        )
        if not same:
            notes.append(
                f"{name}: {copy.file.parent.name} does not hold the same as "
                f"{first.file.parent.name}, whose values are used"
            )
