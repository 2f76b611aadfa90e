# SPDX-License-Identifier: Apache-2.0
"""Read a run of the monitor: tables, series, matrices. It may grow meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.errors import MonitorFormatError
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json
from msprobe.monitor.rows import MISSING, Layout, Rows, Values, is_missing
from msprobe.monitor.run_file import ROWS_SUFFIX, Kind, RunFile
from msprobe.monitor.store import read_layout

if TYPE_CHECKING:
    import polars as pl

START: Final = "start_iteration"
"""Key of a head: the first step of the process."""
_READ_BYTES: Final = 1 << 24
_NAME: Final = re.compile(rf"rank(\d+)\{ROWS_SUFFIX}")


class Matrix(NamedTuple):
    """One operation of one stream over steps.

    Attributes:
        steps: of the rows, ascending.
        names: of the columns.
        values: shape (steps, names); `MISSING`, which is a NaN, where a tensor was absent.
        of_names: how many names there are, also of columns that were left out.
    """

    steps: NDArray[np.int64]
    names: list[str]
    values: Values
    of_names: int


class _Rank:
    """The blocks of one rank that count.

    A process that begins at some step undoes what earlier ones collected from that step on: the
    training went on from a checkpoint. Of a step that was collected twice the last blocks count.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.rank = rank
        self.file = RunFile(path)
        self._layouts: list[Layout] = []
        self.places: NDArray[np.int64] = np.zeros(0, np.int64)
        self._look()

    def refresh(self) -> bool:
        has_more = self.file.refresh()
        if has_more:
            self._look()
        return has_more

    def _look(self) -> None:
        entries = self.file.entries
        is_value = entries["kind"] == Kind.VALUES
        session = np.cumsum(entries["kind"] == Kind.HEAD)[is_value]
        is_value[is_value] = entries["step"][is_value] < self._ends()[session]
        session = np.cumsum(entries["kind"] == Kind.HEAD)[is_value]
        places = np.flatnonzero(is_value)
        _, inverse = np.unique(entries["step"][places], return_inverse=True)
        last = np.zeros(inverse.max(initial=-1) + 1, np.int64)
        np.maximum.at(last, inverse, session)
        self.places = places[session == last[inverse]]
        found = np.flatnonzero(entries["kind"] == Kind.LAYOUT)
        for place in found[len(self._layouts) :]:
            try:
                layout = read_layout(bytes(self.file.block(int(place))))
            except ValueError as error:
                raise MonitorFormatError(self.file.path, f"layout at entry {place}") from error
            self._layouts.append(layout)

    def heads(self) -> list[dict[str, Any]]:
        found = np.flatnonzero(self.file.entries["kind"] == Kind.HEAD)
        heads = []
        for place in found:
            try:
                head = parse_json(bytes(self.file.block(int(place))))
            except JSON_ERRORS as error:
                raise MonitorFormatError(self.file.path, json_problem(error)) from error
            heads.append(head if isinstance(head, dict) else {})
        return heads

    def _ends(self) -> NDArray[np.int64]:
        """Return the step before which the blocks of each process count, after an entry for none.

        It is the least one at which a later process began.
        """
        none = np.iinfo(np.int64).max
        begins = [head.get(START, none) for head in self.heads()]
        later = np.array([none, *begins, none], np.int64)[1:]
        return np.minimum.accumulate(later[::-1])[::-1]

    def layouts(self) -> list[Layout]:
        return self._layouts

    def layout_at(self, place: int) -> Layout:
        number = int(self.file.entries["layout"][place])
        if not 0 <= number < len(self._layouts):
            raise MonitorFormatError(self.file.path, f"is damaged: entry {place}")
        return self._layouts[number]

    def of_stream(self, stream: str) -> NDArray[np.int64]:
        wanted = [at for at, one in enumerate(self._layouts) if one.stream == stream]
        kept: NDArray[np.int64] = self.places[
            np.isin(self.file.entries["layout"][self.places], wanted)
        ]
        return kept

    def rows(self, place: int) -> Rows:
        entry = self.file.entries[place]
        layout = self.layout_at(place)
        if (int(entry["ops"]), int(entry["rows"])) != (len(layout.ops), len(layout.names)):
            raise MonitorFormatError(self.file.path, f"is damaged: entry {place}")
        return Rows(
            layout=layout,
            rank=self.rank,
            step=int(entry["step"]),
            micro_step=int(entry["micro_step"]),
            time=float(entry["time"]),
            values=self.file.values(place),
        )


class MonitorRun:
    """A run of the monitor; made by `open_monitor`.

    Attributes:
        path: its folder.
    """

    def __init__(self, path: Path, files: dict[int, Path]) -> None:
        """Open the files of all ranks.

        Raises:
            MonitorFormatError: one is damaged, or of another program.
        """
        self.path = path
        self._ranks = {rank: _Rank(file, rank) for rank, file in sorted(files.items())}

    def __enter__(self) -> MonitorRun:
        """Return the run itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the files."""
        for one in self._ranks.values():
            one.file.close()

    def again(self) -> MonitorRun:
        """Open the run a second time, for another thread."""
        return MonitorRun(self.path, {rank: one.file.path for rank, one in self._ranks.items()})

    def refresh(self) -> bool:
        """Take what was added to the files since; return whether there was anything."""
        return True in [one.refresh() for one in self._ranks.values()]

    # -- what there is ---------------------------------------------------------------------------

    @property
    def ranks(self) -> list[int]:
        """The ranks that wrote."""
        return list(self._ranks)

    @property
    def streams(self) -> list[str]:
        """The streams that have rows, in the order in which they came."""
        return list(dict.fromkeys(one.stream for one in self._layouts()))

    def heads(self, rank: int) -> list[dict[str, Any]]:
        """Return facts about each process that wrote for a rank: configuration, versions."""
        return self._rank(rank).heads()

    def ops(self, stream: str) -> list[str]:
        """Return the operations of a stream."""
        return list(dict.fromkeys(op for one in self._layouts(stream) for op in one.ops))

    def names(self, stream: str) -> list[str]:
        """Return the names of a stream."""
        return list(dict.fromkeys(name for one in self._layouts(stream) for name in one.names))

    def shapes(self, stream: str, rank: int) -> dict[str, str]:
        """Return the shapes of a stream's tensors by name, as `matrix` names them."""
        return {
            chunked_name(name, chunk): shape
            for one in self._rank(rank).layouts()
            if one.stream == stream
            for name, chunk, shape in zip(one.names, one.chunks, one.shapes, strict=True)
        }

    def steps(self, rank: int | None = None) -> list[int]:
        """Return the collected steps, of one rank or of all."""
        ranks = self._chosen(None if rank is None else [rank])
        found = [np.unique(one.file.entries["step"][one.places]) for one in ranks]
        return np.unique(np.concatenate(found)).tolist() if found else []

    # -- values ----------------------------------------------------------------------------------

    def blocks(self, rank: int, *, begin: int = 0) -> Iterator[Rows]:
        """Yield the rows of a rank in the order in which they were collected, from a block on."""
        one = self._rank(rank)
        for place in one.places[begin:]:
            yield one.rows(int(place))

    def steps_of_blocks(self, rank: int) -> NDArray[np.int64]:
        """Return the step of each block of a rank."""
        one = self._rank(rank)
        return one.file.entries["step"][one.places].astype(np.int64)

    def table(
        self,
        stream: str,
        *,
        ranks: Sequence[int] | None = None,
        names: Iterable[str] | None = None,
        steps: Iterable[int] | None = None,
    ) -> pl.DataFrame:
        """Return rows of a stream, with one column for each operation.

        Args:
            stream: such as ``grad_reduced``.
            ranks: None for all.
            names: None for all.
            steps: None for all.

        Returns:
            Columns rank, step, micro_step, chunk, name, call, the operations, shape, dtype, time.
            A value that a row does not have is null.
        """
        import polars as pl

        wanted = None if steps is None else np.array(sorted(set(steps)), np.int64)
        frames = [_empty(self.ops(stream))]  # operations may change while a run grows
        for one in self._chosen(ranks):
            places = one.of_stream(stream)
            if wanted is not None:
                places = places[np.isin(one.file.entries["step"][places], wanted)]
            frames += [frame_of(one.rows(int(place))) for place in places]
        table = pl.concat(frames, how="diagonal")
        if names is not None:
            table = table.filter(pl.col("name").is_in(list(names)))
        fixed = ["rank", "step", "micro_step", "chunk", "name", "call"]
        return table.select(*fixed, *self.ops(stream), "shape", "dtype", "time")

    def rows(
        self,
        stream: str | None = None,
        *,
        ranks: Sequence[int] | None = None,
        names: Iterable[str] | None = None,
        steps: Iterable[int] | None = None,
    ) -> pl.DataFrame:
        """Return values one to a row: as `table`, with the columns stream, op and value."""
        import polars as pl

        wanted = None if names is None else list(names)
        found = []
        for each in self.streams if stream is None else [stream]:
            table = self.table(each, ranks=ranks, names=wanted, steps=steps)
            kept = ["rank", "step", "micro_step", "chunk", "name", "call", "time"]
            # A column of the table may be called "value".
            long = table.unpivot(self.ops(each), index=kept, variable_name="op", value_name="=")
            found.append(long.with_columns(pl.lit(each).alias("stream")).rename({"=": "value"}))
        order = ["rank", "step", "micro_step", "stream", "chunk", "name", "call", "op", "value"]
        if not found:
            return pl.DataFrame(schema=[*order, "time"])
        return pl.concat(found).drop_nulls("value").select(*order, "time")

    def series(
        self,
        stream: str,
        name: str,
        op: str,
        *,
        ranks: Sequence[int] | None = None,
        call: int = 0,
        chunk: int = 0,
    ) -> pl.DataFrame:
        """Return one value over the steps: columns rank, step, micro_step, value.

        Only these values are read, whatever the size of the run.
        """
        import polars as pl

        columns: list[tuple[NDArray[Any], ...]] = []
        for one in self._chosen(ranks):
            known: dict[Layout, int | None] = {}
            kept, spots = [], []
            for place in one.of_stream(stream).tolist():
                layout = one.layout_at(place)
                if layout not in known:
                    known[layout] = _spot(layout, name, op, call, chunk)
                spot = known[layout]
                if spot is not None:
                    kept.append(place)
                    spots.append(spot)
            chosen = np.array(kept, np.int64)
            found = one.file.numbers(chosen, np.array(spots, np.int64))
            entries = one.file.entries[chosen]
            rank = np.full(len(kept), one.rank)
            columns.append((rank, entries["step"], entries["micro_step"], found))
        names = ("rank", "step", "micro_step", "value")
        joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
        frame = pl.DataFrame(dict(zip(names, joined, strict=True)))
        return frame.filter(~pl.Series(is_missing(joined[3])))

    def matrix(
        self, stream: str, op: str, *, rank: int, call: int = 0, most: int | None = None
    ) -> Matrix:
        """Return one operation of all rows of a stream over the steps.

        Of several micro steps the last one counts. Names of chunks after the first begin with the
        number of the chunk, ``1:layers.0.weight``.

        Args:
            stream: such as ``grad_reduced``.
            op: such as ``norm``.
            rank: the rank.
            call: of the modules.
            most: read only so many names, the first ones; None for all.
        """
        one = self._rank(rank)
        places = one.of_stream(stream)
        steps, at_step = np.unique(one.file.entries["step"][places], return_inverse=True)
        columns: dict[str, int] = {}
        found: dict[Layout, tuple[Iterator[Values], _Index]] = {}
        of_place = [one.layout_at(int(place)) for place in places]
        for layout in dict.fromkeys(of_place):
            target = _columns(layout, op, call, columns, most)
            if target is not None:
                number, sources, goals = target
                own = places[[other is layout for other in of_place]]
                found[layout] = _chosen_values(one.file, own, number, sources), goals
        names = list(columns)[:most]
        values = np.full((len(steps), len(names)), MISSING)
        for layout, row in zip(of_place, at_step, strict=True):
            if layout in found:
                read, goals = found[layout]
                values[row, goals] = next(read)
        return Matrix(steps.astype(np.int64), names, values, len(columns))

    def gradient_noise(self, *, window: int = 10) -> pl.DataFrame:
        """Return the gradient noise scale of data-parallel ranks; see `msprobe.monitor.noise`."""
        from msprobe.monitor.noise import gradient_noise

        return gradient_noise(self, window=window)

    def gradient_norms(self) -> pl.DataFrame:
        """Return step, grad_norm and grad_norm_clipped where ranks have parts of them (FSDP2)."""
        from msprobe.monitor.reduction import gradient_norms

        return gradient_norms(self)

    # -- inside ----------------------------------------------------------------------------------

    def _rank(self, rank: int) -> _Rank:
        if rank not in self._ranks:
            raise MonitorFormatError(self.path, f"has no rank {rank}; it has {self.ranks}")
        return self._ranks[rank]

    def _chosen(self, ranks: Sequence[int] | None) -> list[_Rank]:
        return [self._rank(rank) for rank in (self._ranks if ranks is None else ranks)]

    def _layouts(self, stream: str | None = None) -> Iterator[Layout]:
        for one in self._ranks.values():
            for layout in one.layouts():
                if stream is None or layout.stream == stream:
                    yield layout


def open_monitor(path: str | Path) -> MonitorRun:
    """Open a run of the monitor, which may still be written.

    Args:
        path: the folder of a run, a folder of runs (the newest is opened), or one ``.rows`` file.

    Raises:
        MonitorFormatError: there is no run, or it is damaged.
    """
    path, advice = Path(path), "name the output folder of TrainerMon"
    if path.is_file():
        match = _NAME.fullmatch(path.name)
        if path.suffix != ROWS_SUFFIX:
            raise MonitorFormatError(path, f"is no file of the monitor (*{ROWS_SUFFIX}); {advice}")
        return MonitorRun(path.parent, {int(match[1]) if match else 0: path})
    folder = newest_run(path)
    if folder is None:
        raise MonitorFormatError(
            path, f"holds no run of the monitor (no rank*{ROWS_SUFFIX}); {advice}"
        )
    return MonitorRun(folder, files_of(folder))


def newest_run(path: Path, is_meant: Callable[[Path], bool] = lambda _: True) -> Path | None:
    """Return the folder itself if it holds a run, else the newest run inside; None without any.

    Args:
        path: the folder.
        is_meant: whether a folder inside counts.
    """
    if files_of(path):
        return path
    folders = [one for one in path.glob("*") if one.is_dir() and is_meant(one) and files_of(one)]
    return max(folders, key=lambda one: one.name, default=None)


def files_of(folder: Path) -> dict[int, Path]:
    """Return the files of a run by rank."""
    found = ((_NAME.fullmatch(one.name), one) for one in folder.glob(f"rank*{ROWS_SUFFIX}"))
    return {int(match[1]): one for match, one in found if match}


def _spot(layout: Layout, name: str, op: str, call: int, chunk: int) -> int | None:
    if op not in layout.ops:
        return None
    for row, found in enumerate(layout.names):
        if found == name and layout.calls[row] == call and layout.chunks[row] == chunk:
            return layout.ops.index(op) * len(layout.names) + row
    return None


_Index = slice | NDArray[np.int64]


def _columns(
    layout: Layout, op: str, call: int, columns: dict[str, int], most: int | None
) -> tuple[int, _Index, _Index] | None:
    """Return the number of an operation, rows of a block, and their columns in a matrix."""
    if op not in layout.ops:
        return None
    sources = [row for row, number in enumerate(layout.calls) if number == call]
    goals = [
        columns.setdefault(chunked_name(layout.names[row], layout.chunks[row]), len(columns))
        for row in sources
    ]
    if most is not None:
        wanted = [place for place, goal in enumerate(goals) if goal < most]
        sources, goals = [sources[one] for one in wanted], [goals[one] for one in wanted]
    return layout.ops.index(op), _as_index(sources), _as_index(goals)


def _chosen_values(
    file: RunFile, places: NDArray[np.int64], number: int, sources: _Index
) -> Iterator[Values]:
    """Return the values of some rows of each block, of one operation."""
    if isinstance(sources, slice):  # in one piece: of large blocks no more than these is read
        length = sources.stop - sources.start
        spots = number * file.entries["rows"][places].astype(np.int64) + sources.start
        most = max(1, _READ_BYTES // (8 * length))
        for first in range(0, len(places), most):
            some = slice(first, first + most)
            yield from file.runs(places[some], spots[some], length)
    else:
        for place in places:
            yield file.values(int(place), checked=False)[number][sources]


def _as_index(places: list[int]) -> _Index:
    """Return places as an index, a slice where they follow one another: that is much faster."""
    found = np.array(places, np.int64)
    if len(found) and (np.diff(found) == 1).all():
        return slice(places[0], places[-1] + 1)
    return found


def chunked_name(name: str, chunk: int) -> str:
    """Return a name as it is shown among several chunks."""
    return f"{chunk}:{name}" if chunk else name


def frame_of(rows: Rows) -> pl.DataFrame:
    """Return a block as a part of `MonitorRun.table`."""
    import polars as pl

    layout = rows.layout
    count = len(layout.names)
    columns: dict[str, Any] = {
        "rank": np.full(count, rows.rank, np.int32),
        "step": np.full(count, rows.step, np.int64),
        "micro_step": np.full(count, rows.micro_step, np.int32),
        "chunk": np.array(layout.chunks, np.int32),
        "name": layout.names,
        "call": np.array(layout.calls, np.int32),
        "shape": layout.shapes,
        "dtype": layout.dtypes,
        "time": np.full(count, rows.time),
    }
    for op, values in zip(layout.ops, rows.values, strict=True):
        column = pl.Series(op, values)
        missing = is_missing(values)
        if missing.any():
            column = column.set(pl.Series(missing), None)
        columns[op] = column
    return pl.DataFrame(columns)


def _empty(ops: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    numbers = {"rank": pl.Int32, "step": pl.Int64, "micro_step": pl.Int32, "chunk": pl.Int32}
    texts = {"shape": pl.String, "dtype": pl.String, "time": pl.Float64}
    columns = {"name": pl.String, "call": pl.Int32, **dict.fromkeys(ops, pl.Float64)}
    return pl.DataFrame(schema={**numbers, **columns, **texts})
