# SPDX-License-Identifier: Apache-2.0
"""Merge the ranks of a parallel run into one dump per data-parallel replica.

Ranks of one stage of a pipeline hold the same calls. Where all of them hold the same value it is
replicated, and one is kept; otherwise each holds a part, and the statistics of the whole follow
from those of the parts. Stages follow each other: calls and layers of a later one are numbered on.

A partial sum, which the ranks add up afterwards, has no statistics of its own: it becomes that of
the sum if an all-reduce of it follows. Along which dimension a tensor was split is not recorded;
a reference tells, where one of its sizes is so many times that of a part.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.dump.dump_steps import Dump, DumpStep
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordName
from msprobe.errors import UsageError
from msprobe.files import write_report

logger = logging.getLogger(__name__)

DEFAULT_ORDER: Final = "tp-cp-ep-dp-pp"

_STATISTICS: Final = ("Max", "Min", "Mean", "Norm")
_AXES: Final = ("tp", "cp", "ep", "dp", "pp")
_LAYER: Final = re.compile(r"(?<=\.)(\d+)(?=\.)")
_MESSAGES: Final = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_REDUCTIONS: Final = ("all_reduce", "functional_all_reduce", "reduce_scatter_tensor")
_PARTS: Final = "merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks of a run share the model and the data.

    Attributes:
        rank_size: number of ranks.
        tp: ranks that share a layer; also `cp` (a sequence) and `ep` (the experts).
        pp: stages of the pipeline.
        order: the axes from the fastest to the slowest.
    """

    rank_size: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    order: str = DEFAULT_ORDER

    def groups(self) -> list[list[list[int]]]:
        """Return, for each replica of the data, its stages, each a list of ranks.

        Raises:
            UsageError: the sizes do not fit each other.
        """
        axes = self.order.split("-")
        if sorted(axes) != sorted(_AXES):
            raise UsageError(f"--order {self.order}: name each of {', '.join(_AXES)} once")
        fixed = self.tp * self.cp * self.ep * self.pp
        if min(self.rank_size, fixed) < 1 or self.rank_size % fixed:
            raise UsageError(
                f"--rank_size {self.rank_size} is not a multiple of tp*cp*ep*pp = {fixed}"
            )
        sizes = {
            "tp": self.tp,
            "cp": self.cp,
            "ep": self.ep,
            "pp": self.pp,
            "dp": self.rank_size // fixed,
        }
        found: list[list[list[int]]] = [[[] for _ in range(self.pp)] for _ in range(sizes["dp"])]
        for rank in range(self.rank_size):
            place, rest = {}, rank
            for axis in axes:
                rest, place[axis] = divmod(rest, sizes[axis])
            found[place["dp"]][place["pp"]].append(rank)
        return found


def merge_ranks(dump: Dump, layout: Layout, output: Path, *, like: Dump | None = None) -> Path:
    """Write the merged dump; return its folder, with ``rank{n}`` for the n-th replica of the data.

    Args:
        dump: the dump of all ranks.
        layout: how they share the model.
        output: the folder to write to.
        like: a dump of the whole model, for the sizes of tensors that were split; None keeps those
            of the parts.

    Raises:
        UsageError: a rank of the layout is missing, or the sizes do not fit.
        DumpFormatError: a file of records is damaged.
        ReportWriteError: the folder cannot be written.
    """
    groups = layout.groups()
    for step in dump.steps.values():
        for replica, stages in enumerate(groups):
            merged = _Merged()
            for ranks in stages:
                merged.add_stage([_view(dump, step, rank) for rank in ranks])
            if like is not None:
                merged.take_shapes(next(iter(next(iter(like.steps.values())).ranks.values())))
            merged.write(output / f"step{step.number}" / f"rank{replica}")
    return output


def _view(dump: Dump, step: DumpStep, rank: int) -> RankView:
    if rank not in step.ranks:
        raise UsageError(f"{dump.path}: step {step.number} lacks rank {rank} of the layout")
    return step.ranks[rank]


class _Merged:
    """The records of one replica, stage by stage."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._records: dict[str, Any] = {}
        self._parents: dict[str, str | None] = {}
        self._stacks: dict[str, Sequence[str]] = {}
        self._calls: Counter[str] = Counter()  # of an API, in earlier stages
        self._layers: Counter[str] = Counter()  # of a list of modules, in earlier stages

    def add_stage(self, views: Sequence[RankView]) -> None:
        """Add the ranks of one stage, which hold the same calls."""
        first = views[0]
        head = first.head
        self._head = {"task": head.task, "level": head.level, "framework": head.framework}
        names = [*dict.fromkeys([*first.parents, *first.records])]
        renamed = {name: self._renamed(first.records.parsed(name)) for name in names}
        reduced = _reduced_values(views)
        _warn_of_gaps(views)
        for record in first.records:
            if _is_message(first.records.parsed(record)):
                continue
            trees = [view.records.data(record) for view in views if record in view.records]
            self._records.setdefault(renamed[record], _merge(trees, reduced))
            self._stacks.setdefault(renamed[record], first.frames(record))
        for name, parent in first.parents.items():
            if not _is_message(first.records.parsed(name)):
                self._parents.setdefault(
                    renamed[name], renamed.get(parent, parent) if parent else None
                )
        self._count(first, names)

    def _renamed(self, name: RecordName) -> str:
        """Return the name of a record in the whole model."""
        if name.is_module or not name.prefix:
            return _LAYER.sub(lambda found: self._layer(name.full, found), name.full, count=1)
        base = f"{name.prefix}.{name.path}"
        number = (name.index or 0) + self._calls[base]
        return name.full.replace(f"{base}.{name.index}", f"{base}.{number}", 1)

    def _layer(self, name: str, found: re.Match[str]) -> str:
        return str(int(found[1]) + self._layers[name[: found.start()]])

    def _count(self, view: RankView, names: Sequence[str]) -> None:
        calls: Counter[str] = Counter()
        layers: Counter[str] = Counter()
        for full in names:
            name = view.records.parsed(full)
            found = _LAYER.search(full)
            if name.is_module and found is not None:
                key = full[: found.start()]
                layers[key] = max(layers[key], int(found[1]) + 1)
            elif name.index is not None and not name.is_module:
                base = f"{name.prefix}.{name.path}"
                calls[base] = max(calls[base], name.index + 1)
        self._calls += calls
        self._layers += layers

    def take_shapes(self, whole: RankView) -> None:
        """Give split tensors the sizes of their counterparts in a dump of the whole model."""
        for name, record in self._records.items():
            if name not in whole.records:
                continue
            tensors, others = [*_tensors(record)], [*_tensors(whole.records.data(name))]
            if len(tensors) == len(others):
                for tensor, other in zip(tensors, others, strict=True):
                    _take_shape(tensor, other)

    def write(self, folder: Path) -> None:
        """Write the files of the rank."""
        stacks: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, frames in self._stacks.items():
            if frames:
                stacks[tuple(frames)].append(name)
        numbered = enumerate(stacks.items())
        files: dict[str, Any] = {
            "dump.json": {**self._head, "dump_data_dir": None, "data": self._records},
            "construct.json": self._parents,
            "stack.json": {str(n): [names, [*frames]] for n, (frames, names) in numbered},
        }
        for name, tree in files.items():
            write_report(folder / name, json.dumps(tree, indent=1), warns=False)


def _warn_of_gaps(views: Sequence[RankView]) -> None:
    """Tell of ranks of a stage that lack records, and of calls that only some of them made."""
    known = [
        {name for name in view.records if not _is_message(view.records.parsed(name))}
        for view in views
    ]
    odd = known[0].union(*known) - known[0].intersection(*known)
    for view in views:
        if view.incomplete_reason is not None:
            logger.warning("%s: records may be missing: %s", view.directory, view.incomplete_reason)
    if odd:
        logger.warning(
            "%s: %d records are not on all ranks that share a layer, such as %s; what is merged of "
            "them is of the others alone, or left out",
            *(views[0].directory, len(odd), min(odd)),
        )


def _is_message(name: RecordName) -> bool:
    return name.prefix == "Distributed" and name.path in _MESSAGES


def _reduced_values(views: Sequence[RankView]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """Return the statistics of each value that the ranks added up → those of the sum."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for view in views if len(views) > 1 else ():
        for record in view.records:
            name = view.records.parsed(record)
            if name.prefix != "Distributed" or name.path not in _REDUCTIONS:
                continue
            tree = view.records.data(record)
            given, made = ([*_tensors(tree.get(part))] for part in ("input_args", "output"))
            if given and made and made[0].get("shape") == given[0].get("shape"):
                found[_print(given[0])] = made[0]
    return found


def _tensors(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if "shape" in tree:
            yield tree
        else:
            for item in tree.values():
                yield from _tensors(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from _tensors(item)


def _print(tensor: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        str(tensor.get("shape")),
        *(tensor.get(name) for name in _STATISTICS),
        tensor.get("md5"),
    )


def _merge(trees: Sequence[Any], reduced: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> Any:
    """Return the tree of a value, or of several, of the ranks together."""
    first = trees[0]
    if isinstance(first, dict) and "shape" in first:
        return _merge_tensors(trees, reduced)
    if isinstance(first, dict):
        return {
            key: _merge(
                [tree[key] for tree in trees if isinstance(tree, dict) and key in tree], reduced
            )
            for key in first
        }
    if isinstance(first, list):
        lists = [tree for tree in trees if isinstance(tree, list) and len(tree) == len(first)]
        return [_merge([tree[place] for tree in lists], reduced) for place in range(len(first))]
    return first


def _merge_tensors(
    tensors: Sequence[Any], reduced: Mapping[tuple[Any, ...], Mapping[str, Any]]
) -> dict[str, Any]:
    known = [tensor for tensor in tensors if isinstance(tensor, dict) and "shape" in tensor]
    first: dict[str, Any] = dict(known[0])
    for key in ("data_name", "value_id", "projections"):
        first.pop(key, None)
    if len({_print(tensor) for tensor in known}) == 1:
        return first
    first.pop("md5", None)
    total = reduced.get(_print(known[0]))
    if total is not None and all(_print(tensor) in reduced for tensor in known):
        return {**first, **{name: total.get(name) for name in _STATISTICS}, _PARTS: "sum"}
    return {**first, **_statistics(known), _PARTS: f"{len(known)} parts"}


def _take_shape(tensor: dict[str, Any], whole: Mapping[str, Any]) -> None:
    """Set the size of the one dimension that a tensor was split along."""
    own, there = tensor["shape"], whole["shape"]
    parts = str(tensor.get(_PARTS, "")).partition(" parts")[0]
    if not parts.isdigit() or len(own) != len(there):
        return
    split = [place for place, sizes in enumerate(zip(own, there, strict=True)) if len({*sizes}) > 1]
    if len(split) == 1 and own[split[0]] * int(parts) == there[split[0]]:
        tensor["shape"] = there
        tensor[_PARTS] = f"{parts} parts along dimension {split[0]}"


def _statistics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of all elements of some tensors."""
    columns: dict[str, list[float]] = {name: [] for name in _STATISTICS}
    for part in parts:
        for name, column in columns.items():
            number = part.get(name)
            if not isinstance(number, (int, float)):
                return dict.fromkeys(_STATISTICS)
            column.append(number)
    counts = [math.prod(part["shape"]) for part in parts]
    weighted = sum(mean * count for mean, count in zip(columns["Mean"], counts, strict=True))
    return {
        "Max": _or_nan(columns["Max"], max(columns["Max"])),
        "Min": _or_nan(columns["Min"], min(columns["Min"])),
        "Mean": weighted / sum(counts) if sum(counts) else None,
        "Norm": math.hypot(*columns["Norm"]),
    }


def _or_nan(numbers: Sequence[float], extreme: float) -> float:
    return math.nan if any(map(math.isnan, numbers)) else extreme
