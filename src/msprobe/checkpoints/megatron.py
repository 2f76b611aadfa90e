# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Megatron-LM and MindSpeed, put together from the files of all ranks.

    {folder}/latest_checkpointed_iteration.txt
    {folder}/iter_0000100/mp_rank_{tp}[_{pp}][_{ep}]/model_optim_rng.pt

or a distributed checkpoint in that place (`megatron_distributed`).

Tensor-parallel parts are joined, layers and experts are numbered through, names get the spelling of
megatron.core. Entries outside the model that all ranks hold alike are read once; others, as the
states of optimizers and generators, stay those of their rank: ``mp_rank_00.rng_state.0``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace as struct_replace

from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.megatron_distributed import (
    is_megatron_distributed,
    read_megatron_distributed,
)
from msprobe.checkpoints.megatron_names import (
    Cut,
    core_name,
    cut_of,
    expert_of,
    is_expert,
    is_gated,
    is_layout,
    layer_of,
    renumbered,
)
from msprobe.checkpoints.parameters import (
    Checkpoint,
    Content,
    Contradiction,
    Entry,
    Format,
    Parameter,
    Unread,
    Value,
    make_checkpoint,
    renamed,
    same_bytes,
)
from msprobe.checkpoints.spans import ColumnsSpan, JoinedSpan, PartSpan, Span
from msprobe.checkpoints.torch_file import read_torch_file
from msprobe.dump.formats.pickle import Described
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading

LATEST: Final = "latest_checkpointed_iteration.txt"
_RANK_FOLDER: Final = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_FILES: Final = ("model_optim_rng.pt", "model_rng.pt")
_MODEL: Final = re.compile(r"model(\d*)")
_EXTRA_STATE: Final = "_extra_state"
_SIZES: Final = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
}
_MAX_RANKS: Final = 1 << 16


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
    if any(_rank_files(path)) or is_megatron_distributed(path):
        return path
    latest = path / LATEST
    if not latest.is_file():
        return None
    with reading(latest, CheckpointFormatError, ValueError):
        word = latest.read_text(encoding="utf-8")[:40].strip()
    if word != "release" and not (word.isascii() and word.isdigit()):
        raise CheckpointFormatError(latest, f'holds {word!r} instead of a number or "release"')
    folder = path / (word if word == "release" else f"iter_{int(word):07d}")
    if not any(_rank_files(folder)) and not is_megatron_distributed(folder):
        raise CheckpointFormatError(folder, f"holds no mp_rank_* with {' or '.join(_FILES)}")
    return folder


def read_megatron(folder: Path) -> Checkpoint:
    """Return the model in a folder of ``mp_rank_*`` folders, as if one rank had held all of it.

    Raises:
        CheckpointFormatError: a file is damaged, or parts are missing or do not fit together.
    """
    if is_megatron_distributed(folder):
        return read_megatron_distributed(folder)
    content = Content()
    files = _rank_files(folder)
    contents = {file: read_torch_file(file) for file in files}
    settings = next(filter(None, (_settings(found.tree) for found in contents.values())), {})
    grid = _grid(files, settings, contents)
    _check_grid(folder, grid, settings)
    models = {rank: _model(contents[file].content) for file, rank in grid.items()}
    parts = _parts_by_name(models)
    if not parts:
        raise CheckpointFormatError(folder, "holds no parameters of a model")
    _check_layers(folder, parts, settings)
    gated = settings.get("swiglu") is True
    tp_size, pp_size, ep_size = (
        1 + max(getattr(rank, axis) for rank in models) for axis in ("tp", "pp", "ep")
    )
    for name, by_tp in parts.items():
        content.parameters.append(
            _merge(folder, name, by_tp, tp_size, gated, content.contradictions)
        )
    _add_others(content, {file.parent.name: contents[file].content for file in grid})
    for file in grid:
        _add_beside(content, file)
    sizes = f"TP {tp_size} PP {pp_size} EP {ep_size}"
    content.formats = {Format.MEGATRON}
    return make_checkpoint(folder, f"Megatron, {sizes}", content, grid=sizes)


def apart_from_ranks(target: Checkpoint, reference: Checkpoint) -> tuple[Checkpoint, Checkpoint]:
    """Return two checkpoints whose entries of single ranks are unread if their grids differ."""
    if not target.grid or not reference.grid or target.grid == reference.grid:
        return target, reference
    return _without_ranks(target, reference.grid), _without_ranks(reference, target.grid)


def _without_ranks(checkpoint: Checkpoint, grid: str) -> Checkpoint:
    def is_local(entry: Entry) -> bool:
        return bool(entry.path) and _RANK_FOLDER.fullmatch(str(entry.path[0])) is not None

    problem = f"is that of one rank, and the other checkpoint has another grid ({grid})"
    entries: tuple[Parameter | Value, ...] = (
        *checkpoint.parameters.values(),
        *checkpoint.values.values(),
    )
    unread = [
        Unread(name=entry.name, path=entry.path, problem=problem)
        for entry in entries
        if is_local(entry)
    ]
    return replace(
        checkpoint,
        parameters={name: x for name, x in checkpoint.parameters.items() if not is_local(x)},
        values={name: x for name, x in checkpoint.values.items() if not is_local(x)},
        unread=(*checkpoint.unread, *unread),
    )


def _model(content: Content) -> dict[tuple[int, str], Parameter]:
    """Return the parameters of a rank by number of the virtual stage and name."""
    found: dict[tuple[int, str], Parameter] = {}
    for parameter in content.parameters:
        stage = _stage(parameter)
        if stage is not None:
            name = path_name(parameter.path[1:])
            key = (stage, core_name(name))
            found[key if key not in found else (stage, name)] = parameter
    return found


def _stage(parameter: Parameter) -> int | None:
    """Return the virtual stage of a parameter, None for a tensor that is none of the model's."""
    found = _MODEL.fullmatch(str(parameter.path[0])) if len(parameter.path) > 1 else None
    if found is None or parameter.path[-1] == _EXTRA_STATE:
        return None
    return int(found[1] or 0)


def _add_others(content: Content, by_rank: Mapping[str, Content]) -> None:
    """Add the entries outside the model."""
    seen: Counter[tuple[KeyPath, str]] = Counter()
    for found in by_rank.values():
        seen.update((value.path, repr(value.content)) for value in found.values)
    shared: set[KeyPath] = set()
    for rank, found in by_rank.items():
        others = [each for each in found.parameters if _stage(each) is None]
        local = Content(parameters=others, unread=found.unread)
        for value in found.values:
            if is_layout(value.path):
                continue
            if seen[value.path, repr(value.content)] < len(by_rank):
                local.values.append(value)
            elif value.path not in shared:
                shared.add(value.path)
                content.values.append(value)
        content.add(local, (rank,))
        content.notes += found.notes


def _add_beside(content: Content, file: Path) -> None:
    """Add the other files of a rank, as that of a distributed optimizer."""
    for other in sorted(file.parent.glob("*.pt")):
        if other != file:
            content.add(read_torch_file(other).content, (file.parent.name, other.stem))


def _check_grid(folder: Path, grid: Mapping[Path, _Rank], settings: Mapping[str, Any]) -> None:
    """Check that there is a file for every rank of the grid that the saved arguments describe."""
    sizes: dict[str, int] = {}
    for axis, argument in _SIZES.items():
        found = 1 + max(getattr(rank, axis) for rank in grid.values())
        said = settings.get(argument)
        sizes[axis] = said if type(said) is int and 0 < said <= _MAX_RANKS else found
        if found > sizes[axis]:
            problem = f"{argument} is {said} in the saved arguments, and there are {found} parts"
            raise CheckpointFormatError(folder, problem)
    there = set(grid.values())
    for tp in range(sizes["tp"]):
        for pp in range(sizes["pp"]):
            if not any(rank.tp == tp and rank.pp == pp for rank in there):
                name = f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if sizes["pp"] > 1 else "")
                raise CheckpointFormatError(folder, f"{name} is missing ({_sizes_text(sizes)})")
    missing = [ep for ep in range(sizes["ep"]) if not any(rank.ep == ep for rank in there)]
    if missing:
        problem = f"expert group {missing[0]} is missing ({_sizes_text(sizes)})"
        raise CheckpointFormatError(folder, problem)


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return f"tensor parallel {sizes['tp']}, pipeline {sizes['pp']}, expert {sizes['ep']}"


def _check_layers(folder: Path, names: Iterable[str], settings: Mapping[str, Any]) -> None:
    said = settings.get("num_layers")
    layers = {layer_of(name) for name in names if name.startswith("decoder.layers.")}
    if type(said) is int and layers and len(layers) < said:
        problem = f"holds {len(layers)} layers, num_layers is {said} in the saved arguments"
        raise CheckpointFormatError(folder, problem)


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
    contradictions: list[Contradiction],
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
        _compare_copies(name, parts[0], [*parts[1:], *copies], contradictions)
        return renamed(parts[0], (name,))
    for tp in range(tp_size):
        _compare_copies(name, by_tp[tp][0], by_tp[tp][1:], contradictions)
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
            (PartSpan(part.span, half * (part.count // 2)), part.count // 2)
            for half in (0, 1)
            for part in parts
        ]
        span = JoinedSpan(list(halves))
    else:
        span = JoinedSpan([(part.span, part.count) for part in parts])
    return renamed(struct_replace(first, shape=joined, span=span), (name,))


def _compare_copies(
    name: str, first: Parameter, copies: list[Parameter], contradictions: list[Contradiction]
) -> None:
    """Add the copies of a parameter on other ranks that differ from the first one."""
    for copy in copies:
        if not same_bytes(first, copy):
            problem = (
                f"{copy.file.parent.name} does not hold the same as "
                f"{first.file.parent.name}, whose values are used"
            )
            contradictions.append(Contradiction(name=name, problem=problem))
