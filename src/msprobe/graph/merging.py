# SPDX-License-Identifier: Apache-2.0
"""Merge the ranks of a parallel run into one dump per data-parallel replica.

Calls of ranks that share a layer are the same if they have the same place: the same box around
them, and the same number among the calls of this name in it. Their values are merged along one
axis after the other (`merged_values`). Stages of a pipeline, and pieces of the model in one stage,
follow each other: their layers and calls are numbered on. Experts live on one rank each.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msprobe.dump.dump_steps import Dump, DumpStep
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.errors import UsageError
from msprobe.files import write_report
from msprobe.graph.merged_tensors import with_stored, write_tensors
from msprobe.graph.merged_values import Reductions, join_pieces, merge_records, settle
from msprobe.graph.model import HalfKind
from msprobe.graph.rank_calls import Key, Piece, RankCall, Renaming, pieces_of

logger = logging.getLogger(__name__)

DEFAULT_ORDER: Final = "tp-cp-ep-dp-pp"

_AXES: Final = ("tp", "cp", "ep", "dp", "pp")
_SHARED: Final = ("tp", "ep", "cp")
"""Axes of the ranks that share a stage of one replica, in the order in which they are merged."""
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks of a run share the model and the data.

    Attributes:
        rank_size: number of ranks.
        tp: ranks that share a layer; also `cp` (a sequence) and `ep` (the experts).
        pp: stages of the pipeline.
        vpp: pieces of the model in each stage.
        order: the axes from the fastest to the slowest.
    """

    rank_size: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    vpp: int = 1
    order: str = DEFAULT_ORDER

    def places(self) -> list[dict[str, int]]:
        """Return the place of each rank on each axis.

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
        if self.vpp < 1:
            raise UsageError(f"--vpp {self.vpp}: give the number of pieces in each stage, from 1")
        sizes = {axis: getattr(self, axis, self.rank_size // fixed) for axis in _AXES}
        found = []
        for rank in range(self.rank_size):
            place, rest = {}, rank
            for axis in axes:
                rest, place[axis] = divmod(rest, sizes[axis])
            found.append(place)
        return found

    def groups(self) -> list[list[list[int]]]:
        """Return, for each replica of the data, its stages, each a list of ranks.

        Raises:
            UsageError: the sizes do not fit each other.
        """
        places = self.places()
        replicas = max(place["dp"] for place in places) + 1
        found: list[list[list[int]]] = [[[] for _ in range(self.pp)] for _ in range(replicas)]
        for rank, place in enumerate(places):
            found[place["dp"]][place["pp"]].append(rank)
        return found


def merge_ranks(dump: Dump, layout: Layout, output: Path, *, like: Dump | None = None) -> Path:
    """Write the merged dump; return its folder, with ``rank{n}`` for the n-th replica of the data.

    Args:
        dump: the dump of all ranks.
        layout: how they share the model.
        output: the folder to write to.
        like: a dump of the whole model. Its sizes tell tensors that were split from partial sums
            and from copies that should agree and do not.

    Raises:
        UsageError: a rank of the layout is missing, or the sizes do not fit.
        DumpFormatError: a file of records is damaged.
        ReportWriteError: the folder cannot be written.
    """
    places, groups = layout.places(), layout.groups()
    whole = None if like is None else next(iter(next(iter(like.steps.values())).ranks.values()))
    for step in dump.steps.values():
        for replica, stages in enumerate(groups):
            views = {rank: _view(dump, step, rank) for ranks in stages for rank in ranks}
            merged = _Replica(layout, views, places, whole)
            merged.write(output / f"step{step.number}" / f"rank{replica}")
    return output


@contextmanager
def merged_dumps(
    target: Path, reference: Path | None, layouts: Sequence[Layout]
) -> Iterator[tuple[Path, Path | None]]:
    """Merge both dumps; yield their folders, which exist within the context.

    Args:
        target: the dump of all ranks.
        reference: the dump that it is compared with, if any.
        layouts: of the target, and of the reference.
    """
    with TemporaryDirectory() as folder:
        whole = reference
        if reference is not None:
            whole = merge_ranks(open_dump(reference), layouts[1], Path(folder, "reference"))
        like = None if whole is None else open_dump(whole)
        yield merge_ranks(open_dump(target), layouts[0], Path(folder, "target"), like=like), whole


def _view(dump: Dump, step: DumpStep, rank: int) -> RankView:
    if rank not in step.ranks:
        raise UsageError(f"{dump.path}: step {step.number} lacks rank {rank} of the layout")
    return step.ranks[rank]


class _Replica:
    """The records of one replica of the data: all its ranks merged."""

    def __init__(
        self,
        layout: Layout,
        views: Mapping[int, RankView],
        places: Sequence[Mapping[str, int]],
        whole: RankView | None,
    ) -> None:
        self._views, self._places = views, places
        self._whole = {} if whole is None else _records_by_key(whole)
        self._calls: list[tuple[tuple[Any, ...], RankCall]] = []  # place in the whole, call
        self._records: dict[tuple[Key, HalfKind, int], dict[int, Any]] = {}  # by piece
        keeps_number = whole is None or Piece.is_numbered(whole)
        renaming = Renaming(keeps_number=keeps_number, ranks_of_experts=layout.ep)
        stages: dict[int, list[int]] = defaultdict(list)
        for rank in views:
            stages[places[rank]["pp"]].append(rank)
        pieces = {rank: pieces_of(view, layout.vpp) for rank, view in views.items()}
        calls: dict[int, dict[int, list[RankCall]]] = {}  # piece → rank → its calls
        for number in range(layout.vpp):
            for stage, ranks in sorted(stages.items()):
                place = number * layout.pp + stage
                parts = {rank: pieces[rank][number] for rank in ranks}
                calls[place] = self._add(place, parts, renaming)
        for stage in sorted(stages):
            self._merge({place: calls[place] for place in calls if place % layout.pp == stage})
        self._settle()
        self._renames = layout.pp * layout.vpp > 1 or layout.ep > 1

    def _add(
        self, place: int, pieces: Mapping[int, Piece], renaming: Renaming
    ) -> dict[int, list[RankCall]]:
        """Add the calls of a piece of the model, which some ranks share; return them by rank."""
        calls = {
            rank: piece.calls(renaming, expert=self._places[rank]["ep"])
            for rank, piece in pieces.items()
        }
        first = next(iter(pieces))
        renaming.count(pieces[first], calls[first])
        self._warn_of_gaps(calls)
        for position, call in _in_order(calls):
            step, phase = call.micro_step, int(call.is_backward)
            self._calls.append(((step, phase, -place if phase else place, *position), call))
        return calls

    def _merge(self, pieces: Mapping[int, Mapping[int, Sequence[RankCall]]]) -> None:
        """Merge the records of the ranks of a stage, along one axis after the other."""
        found: dict[int, dict[Any, Any]] = defaultdict(dict)
        for place, calls in pieces.items():
            for rank, each in calls.items():
                for call in each:
                    for kind, number, record in call.records():
                        tree = with_stored(
                            self._views[rank].records.data(record), self._views[rank], record
                        )
                        found[rank][place, (call.key, kind, number)] = tree
        for axis in _SHARED:
            lines: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for rank in found:
                others = (name for name in _SHARED if name != axis)
                lines[tuple(self._places[rank][name] for name in others)].append(rank)
            found = {
                line[0]: self._merged([found[rank] for rank in line], line, axis)
                for line in lines.values()
            }
        (merged,) = found.values()
        for (place, key), tree in merged.items():
            self._records.setdefault(key, {})[place] = tree

    def _merged(
        self, sides: Sequence[Mapping[Any, Any]], ranks: Sequence[int], axis: str
    ) -> dict[Any, Any]:
        """Return the records of some ranks, which differ along one axis, as those of one."""
        if len(sides) == 1:
            return dict(sides[0])
        reductions = Reductions(ranks)
        shared: dict[Any, list[Any]] = defaultdict(list)
        for side in sides:
            for key, tree in side.items():
                shared[key].append(tree)
                reductions.learn(_name(key), tree)
        return {
            key: merge_records(
                trees,
                reductions,
                whole=self._whole.get(key[1]),
                has_partial_sums=key[1][1] is HalfKind.PARAMETERS_GRAD and axis != "tp",
                has_own_counts=axis == "ep",
            )
            for key, trees in shared.items()
        }

    def _settle(self) -> None:
        """Decide on partial sums; tell of values that ranks should hold alike and do not."""
        odd: Counter[str] = Counter()
        for key, trees in self._records.items():
            for tree in trees.values():
                whole = self._whole.get(key)
                odd[str(key[0][-1])] += settle(tree, whole if len(trees) == 1 else None)
        names = [name for name, count in odd.items() if count]
        if names:
            logger.warning(
                "ranks %s: %d values that these ranks should hold alike are not the same; those of "
                "the first are kept. They are at calls of %s",
                ", ".join(map(str, self._views)),
                odd.total(),
                ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else ""),
            )

    def _warn_of_gaps(self, calls: Mapping[int, Sequence[RankCall]]) -> None:
        """Tell of ranks of a stage that lack records, and of calls that only some of them made."""
        for rank in calls:
            view = self._views[rank]
            if view.incomplete_reason is not None:
                logger.warning(
                    "%s: records may be missing: %s", view.directory, view.incomplete_reason
                )
        for number in {self._places[rank]["ep"] for rank in calls}:
            known = {
                rank: {call.key: call.name.full for call in each if [*call.records()]}
                for rank, each in calls.items()
                if self._places[rank]["ep"] == number
            }
            names = {key: name for each in known.values() for key, name in each.items()}
            odd = [key for key in names if any(key not in each for each in known.values())]
            if odd:
                logger.warning(
                    "%s: %d records are not on all ranks that share a layer, such as %s; what is "
                    "merged of them is of the others alone",
                    *(self._views[next(iter(known))].directory, len(odd)),
                    min(names[key] for key in odd),
                )

    def _in_order(self) -> list[tuple[RankCall, str]]:
        """Return the records in the order of execution: of a micro batch first all forward ones."""
        found: list[tuple[tuple[Any, ...], RankCall, str]] = []
        for place, call in self._calls:
            step, _, piece, *_ = place
            if not call.node.halves:
                found.append((place, call, call.name.full))
            for half in call.node.halves:
                is_first = half.kind is HalfKind.FORWARD and not call.is_backward
                behind = (step, 1, -abs(piece), half.order, 0, 0, 0)
                found.append((place if is_first else behind, call, half.record))
        found.sort(key=lambda entry: entry[0])
        return [(call, record) for _, call, record in found]

    def write(self, folder: Path) -> None:
        """Write the files of the rank."""
        calls = [call for _, call in sorted(self._calls, key=lambda entry: entry[0])]
        names = _final_names(calls) if self._renames else {}
        records: dict[str, Any] = {}
        parents: dict[str, str | None] = {}
        stacks: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        renamed = {
            (call.rank_view, record): call.renamed(record, names.get(call.key))
            for call in calls
            for record in call.all_names()
        }
        for call, record in self._in_order():
            name = renamed[call.rank_view, record]
            above = call.rank_view.parents.get(record)
            if name not in parents:
                parents[name] = (
                    None if above is None else renamed.get((call.rank_view, above), above)
                )
            found = next((each for each in call.records() if each[2] == record), None)
            if found is None or name in records:
                continue
            kind, number, _ = found
            key = call.key, kind, number
            records[name] = join_pieces(self._records[key], kind)
            write_tensors(records[name], self._whole.get(key), folder, name)
            if frames := call.rank_view.frames(record):
                stacks[tuple(frames)].append(name)
        head = next(iter(self._views.values())).head
        about = {"task": head.task, "level": head.level, "framework": head.framework}
        numbered = enumerate(stacks.items())
        files: dict[str, Any] = {
            "dump.json": {**about, "dump_data_dir": None, "data": records},
            "construct.json": parents,
            "stack.json": {str(n): [names, [*frames]] for n, (frames, names) in numbered},
        }
        for name, tree in files.items():
            write_report(folder / name, json.dumps(tree, indent=1), warns=False)


def _name(key: tuple[int, tuple[Key, HalfKind, int]]) -> str:
    """Return the name of the call of a record."""
    return str(key[1][0][-1])


def _records_by_key(view: RankView) -> dict[tuple[Key, HalfKind, int], Any]:
    """Return the records of a whole model by their places."""
    (piece,) = pieces_of(view, 1)
    return {
        (call.key, kind, number): with_stored(view.records.data(record), view, record)
        for call in piece.calls(Renaming(keeps_number=True, ranks_of_experts=1))
        for kind, number, record in call.records()
    }


def _in_order(
    calls: Mapping[int, Sequence[RankCall]],
) -> Iterator[tuple[tuple[int, ...], RankCall]]:
    """Yield the calls of ranks that share a piece, each once, with its place among them.

    What only another rank has comes before the next call that both have.
    """
    first, *others = calls.values()
    places = {call.key: place for place, call in enumerate(first)}
    for place, call in enumerate(first):
        yield (place, 1, 0, 0), call
    for number, other in enumerate(others):
        following = len(first)
        for place in range(len(other) - 1, -1, -1):
            call = other[place]
            if call.key in places:
                following = min(following, places[call.key])
            else:
                yield (following, 0, number, place), call
        places |= {call.key: len(first) for call in other if call.key not in places}


def _final_names(calls: Sequence[RankCall]) -> dict[Key, int]:
    """Return the number of each call of an API among all, in order."""
    counts: dict[str, int] = defaultdict(int)
    found = {}
    for call in calls:
        if not call.name.is_module and call.name.index is not None:
            found[call.key] = counts[call.name.base]
            counts[call.name.base] += 1
    return found
