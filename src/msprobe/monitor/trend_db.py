# SPDX-License-Identifier: Apache-2.0
"""``*.trend.db``: the SQLite database that mindstudio-probe's trend viewer reads; written and read.

Tables: `monitoring_targets` (a tensor in a chunk and micro step), `monitoring_metrics` (streams),
`monitoring_tags` and `tag_target_mapping` (layers and modules of a name), `global_stats`, and
`trend_data` with one column for each operation.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from msprobe.errors import MonitorFormatError
from msprobe.files import report_file
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.rows import MISSING, Layout, Rows, is_missing
from msprobe.monitor.store import RunWriter

SUFFIX: Final = ".trend.db"
_LAYER: Final = re.compile(r"layers?\.\d+")
_CALL: Final = re.compile(r":call(\d+)\Z")
_FIXED: Final = ("rank", "step", "target_id", "metric_id")

_TABLES: Final = """
CREATE TABLE monitoring_targets (
    target_id INTEGER PRIMARY KEY, target_name TEXT NOT NULL, vpp_stage INTEGER NOT NULL,
    micro_step INTEGER NOT NULL, UNIQUE (target_name, vpp_stage, micro_step));
CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY, metric_name TEXT NOT NULL UNIQUE);
CREATE TABLE monitoring_tags (
    tag_id INTEGER PRIMARY KEY, tag_name TEXT NOT NULL, category TEXT NOT NULL,
    metric_id INTEGER NOT NULL, UNIQUE (tag_name, category, metric_id));
CREATE TABLE tag_target_mapping (
    tag_id INTEGER NOT NULL, target_id INTEGER NOT NULL, PRIMARY KEY (tag_id, target_id));
"""


def write_trend_db(
    run: MonitorRun,
    path: Path,
    *,
    mapping: Mapping[str, str] | None = None,
    micro_steps_as_steps: bool = False,
) -> Path:
    """Write a run as a database; return its path.

    Args:
        run: the run.
        path: of the database.
        mapping: names of modules, or beginnings of them, and what is written for them.
        micro_steps_as_steps: whether each micro step is a step of its own; else they are targets.

    Raises:
        ReportWriteError: it cannot be written.
    """
    with report_file(path) as temporary, closing(sqlite3.connect(temporary)) as database:
        database.execute("PRAGMA journal_mode=OFF")
        database.executescript(_TABLES)
        micro_steps = _micro_steps(run) if micro_steps_as_steps else None
        ops = [str(op) for stream in run.streams for op in run.ops(stream)]
        writer = _Writer(database, ops, mapping or {}, micro_steps)
        for rank in run.ranks:
            for rows in run.blocks(rank):
                writer.put(rows)
        writer.finish(run)
        database.commit()
    return path


def _micro_steps(run: MonitorRun) -> int:
    """Return how many micro steps a step has."""
    return 1 + max((rows.micro_step for rank in run.ranks for rows in run.blocks(rank)), default=0)


def _renamed(name: str, mapping: Mapping[str, str]) -> str:
    """Return a name whose longest beginning in `mapping`, of whole parts, is replaced."""
    fitting = [one for one in mapping if one and f"{name}.".startswith(f"{one.rstrip('.')}.")]
    if not fitting:
        return name
    longest = max(fitting, key=len)
    rest = name[len(longest.rstrip(".")) :]
    return mapping[longest].rstrip(".") + rest


class _Writer:
    def __init__(
        self,
        database: sqlite3.Connection,
        ops: Iterable[str],
        mapping: Mapping[str, str],
        micro_steps: int | None,
    ) -> None:
        self._mapping = mapping
        self._micro_steps = micro_steps
        self._steps: set[int] = set()
        self._database = database
        self._ops = list(dict.fromkeys(ops))
        self._targets: dict[tuple[str, int, int], int] = {}
        self._metrics: dict[str, int] = {}
        self._tags: dict[tuple[str, str, int], int] = {}
        self._mappings: set[tuple[int, int]] = set()
        columns = "".join(f", {_quoted(op)} REAL" for op in self._ops)
        database.execute(
            "CREATE TABLE trend_data (rank INTEGER NOT NULL, step INTEGER NOT NULL, "
            f"target_id INTEGER NOT NULL, metric_id INTEGER NOT NULL{columns})"
        )
        marks = ", ".join("?" * (len(_FIXED) + len(self._ops)))
        self._insert = f"INSERT INTO trend_data VALUES ({marks})"

    def put(self, rows: Rows) -> None:
        layout = rows.layout
        metric = self._metrics.setdefault(layout.stream, len(self._metrics) + 1)
        table = np.full((len(layout.names), len(self._ops)), MISSING)
        for place, op in enumerate(layout.ops):
            table[:, self._ops.index(op)] = rows.values[place]
        # SQLite stores NaN as null, which is all that this format knows.
        values = [
            [None if gone else value for value, gone in zip(row, missing, strict=True)]
            for row, missing in zip(table.tolist(), is_missing(table).tolist(), strict=True)
        ]
        step, micro_step = rows.step, rows.micro_step
        if self._micro_steps is not None:
            step, micro_step = step * self._micro_steps + micro_step, 0
        self._steps.add(step)
        fixed = (
            (rows.rank, step, self._target(name, chunk, micro_step, metric), metric)
            for name, chunk in zip(layout.names_of_calls, layout.chunks, strict=True)
        )
        self._database.executemany(
            self._insert, ((*one, *numbers) for one, numbers in zip(fixed, values, strict=True))
        )

    def _target(self, name: str, chunk: int, micro_step: int, metric: int) -> int:
        name = _renamed(name, self._mapping)
        key = (name, chunk, micro_step)
        target = self._targets.setdefault(key, len(self._targets) + 1)
        for category, tag in _tags_of(name):
            number = self._tags.setdefault((tag, category, metric), len(self._tags) + 1)
            self._mappings.add((number, target))
        return target

    def finish(self, run: MonitorRun) -> None:
        put = self._database.executemany
        put(
            "INSERT INTO monitoring_targets VALUES (?, ?, ?, ?)",
            ((number, *key) for key, number in self._targets.items()),
        )
        put(
            "INSERT INTO monitoring_metrics VALUES (?, ?)",
            ((number, name) for name, number in self._metrics.items()),
        )
        put(
            "INSERT INTO monitoring_tags VALUES (?, ?, ?, ?)",
            ((number, *key) for key, number in self._tags.items()),
        )
        put("INSERT INTO tag_target_mapping VALUES (?, ?)", sorted(self._mappings))
        steps = sorted(self._steps) or [0]
        streams = {name: ",".join(run.ops(name)) for name in self._metrics}
        columns = "".join(f", {_quoted(name)} TEXT" for name in streams)
        create = f"max_rank INTEGER, min_step INTEGER, max_step INTEGER{columns}"
        self._database.execute(f"CREATE TABLE global_stats ({create})")
        row = (max(run.ranks, default=0), steps[0], steps[-1], *streams.values())
        marks = ", ".join("?" * len(row))
        self._database.execute(f"INSERT INTO global_stats VALUES ({marks})", row)
        self._database.execute(
            "CREATE INDEX trend_places ON trend_data (metric_id, rank, step, target_id)"
        )
        self._database.execute("CREATE INDEX trend_targets ON trend_data (target_id, metric_id)")


def _tags_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield categories and tags of a name: its layer, and the other parts as modules."""
    layer = _LAYER.search(name)
    if layer:
        yield "layer", layer[0]
    for part in dict.fromkeys(_LAYER.sub("", name).split(".")):
        if part and not part.isdigit():
            yield "module", part


def read_trend_db(source: Path, folder: Path) -> Path:
    """Make a run of a database; return its folder.

    Args:
        source: the database.
        folder: gets the run.

    Raises:
        MonitorFormatError: it is no such database, or damaged.
        MonitorWriteError: the run cannot be written.
    """
    try:
        with closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as database:
            _copy(database, source, folder)
    except (sqlite3.Error, UnicodeError, LookupError, TypeError, ValueError) as error:
        raise MonitorFormatError(source, f"is no {SUFFIX} of a monitor: {error}") from error
    return folder


def _copy(database: sqlite3.Connection, source: Path, folder: Path) -> None:
    described = database.execute("SELECT * FROM trend_data LIMIT 0").description
    ops = tuple(name for name, *_ in described if name not in _FIXED)
    metrics = dict(database.execute("SELECT metric_id, metric_name FROM monitoring_metrics"))
    targets = {
        number: (name, chunk or 0, micro_step)
        for number, name, chunk, micro_step in database.execute(
            "SELECT target_id, ltrim(target_name, '.'), vpp_stage, micro_step "
            "FROM monitoring_targets"
        )
    }
    shown = ", ".join(map(_quoted, (*_FIXED, *ops)))
    ranks = [rank for (rank,) in database.execute("SELECT DISTINCT rank FROM trend_data")]
    for rank in sorted(ranks):
        found = database.execute(
            f"SELECT {shown} FROM trend_data WHERE rank = ? ORDER BY step, metric_id", (rank,)
        )
        with RunWriter(folder, rank, {"imported": str(source), "rank": rank}) as writer:
            for rows in _blocks(found, rank, ops, metrics, targets):
                writer.append(rows)


class _Row(NamedTuple):
    name: str
    chunk: int
    call: int
    values: list[float | None]


def _blocks(
    found: Iterable[tuple[Any, ...]],
    rank: int,
    ops: tuple[str, ...],
    metrics: dict[int, str],
    targets: dict[int, tuple[str, int, int | None]],
) -> Iterator[Rows]:
    """Yield one block for each step, stream and micro step."""
    groups: dict[tuple[int, str, int], list[_Row]] = {}
    current: int | None = None
    for _, step, target, metric, *values in found:
        if step != current and groups:
            yield from _made(groups, rank, ops)
            groups = {}
        current = step
        if all(one is None for one in values):  # each target has a row of each metric there
            continue
        name, chunk, micro_step = targets[target]
        place = (step, metrics[metric], max(micro_step or 0, 0))
        match = _CALL.search(name)
        base, call = (name[: match.start()], int(match[1])) if match else (name, 0)
        groups.setdefault(place, []).append(_Row(base, chunk, call, values))
    yield from _made(groups, rank, ops)


def _made(
    groups: dict[tuple[int, str, int], list[_Row]], rank: int, ops: tuple[str, ...]
) -> Iterator[Rows]:
    for (step, stream, micro_step), members in groups.items():
        names, chunks, calls, found = zip(*members, strict=True)
        values = np.array(
            [[MISSING if one is None else one for one in values] for values in found], np.float64
        ).T
        used = [place for place in range(len(ops)) if not is_missing(values[place].copy()).all()]
        empty = ("",) * len(members)
        kept = tuple(ops[place] for place in used)
        layout = Layout(stream, kept, names, chunks, calls, empty, empty)
        yield Rows(layout, rank, step, micro_step, 0.0, np.ascontiguousarray(values[used]))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
