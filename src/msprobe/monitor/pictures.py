# SPDX-License-Identifier: Apache-2.0
"""The data behind the monitor's page: overview, heat maps and series of one or two runs.

A picture has at most `COLUMNS` columns and `ROWS` rows, whatever the size of the run: several steps
become one column, whose value is the largest in size. NaN and Inf win, so that none is lost.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.errors import UsageError
from msprobe.json_text import strict
from msprobe.monitor.alerts.series import is_loss
from msprobe.monitor.findings import Findings
from msprobe.monitor.overview import (
    OF_ALL_RANKS,
    default_op,
    default_stream,
    of_all_ranks,
)
from msprobe.monitor.reader import Matrix, MonitorRun
from msprobe.monitor.rows import MISSING, VALUE, Stream, is_missing

COLUMNS: Final = 600
ROWS: Final = 400
POINTS: Final = 2000
AXES: Final = ("layer", "rank", "layers of ranks")
_SCALARS: Final = ("grad_norm", "grad_norm_clipped", "loss_scale")
_DIGITS: Final = 6

Values = NDArray[np.float64]


class Pictures:
    """Answers the page's questions about one run, or about two.

    Attributes:
        runs: the run under test, and the one that it is compared with, if any.
        findings: finds the incidents of the first, and where the two part, which takes a while.
        found: what they are, for an overview that does not wait for them; None to wait.
    """

    def __init__(self, runs: Sequence[MonitorRun]) -> None:
        self.runs = tuple(runs)
        self._matrices: dict[tuple[int, str, str, int], Matrix] = {}
        self._firsts: dict[tuple[int, str, str, int], Matrix] = {}
        self._overview: dict[str, Any] | None = None
        self.findings = Findings(runs)
        self.found: dict[str, Any] | None = None

    def refresh(self) -> bool:
        """Take what has been added to the runs; return whether there was anything."""
        grown = True in [run.refresh() for run in self.runs]
        if grown:
            self._matrices.clear()
            self._firsts.clear()
            self._overview = None
        return grown

    def answer(self, question: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Return an answer as strict JSON.

        Args:
            question: ``overview``, ``heat`` or ``series``.
            parameters: as the page names them.

        Raises:
            UsageError: there is no such question, stream, operation, rank or name.
        """
        try:
            match question:
                case "overview":
                    return self.overview()
                case "heat":
                    return self.heat(**dict(parameters))
                case "series":
                    return self.series(**dict(parameters))
        except (TypeError, ValueError, KeyError, IndexError) as exc:
            raise UsageError(f"{question}: {exc}") from exc
        raise UsageError(f"no question {question}")

    def overview(self) -> dict[str, Any]:
        """Return runs, streams, scalars, incidents, and where two runs part."""
        if self._overview is None:
            self._overview = strict(self._make_overview())
        found = self.findings.find() if self.found is None else self.found
        return {**self._overview, **strict(found)}

    def _make_overview(self) -> dict[str, Any]:
        first = self.runs[0]
        steps = [run.steps() for run in self.runs]
        stream = default_stream(first)
        return {
            "runs": [
                {
                    "path": str(run.path),
                    "ranks": run.ranks,
                    "first": of_run[0] if of_run else None,
                    "last": of_run[-1] if of_run else None,
                    "count": len(of_run),
                }
                for run, of_run in zip(self.runs, steps, strict=True)
            ],
            "streams": [
                {"name": one, "ops": first.ops(one), "op": default_op(first, one)}
                for one in first.streams
                if one != Stream.RUN
            ],
            "stream": stream,
            "scalars": self._scalars(),
        }

    def _scalars(self) -> list[dict[str, Any]]:
        names = [
            name
            for name in self.runs[0].names(Stream.RUN)
            if name in _SCALARS or is_loss(name) or name.startswith("lr.")
        ]
        names += [name for name in OF_ALL_RANKS if name not in names]
        found = [self.series(Stream.RUN, name, VALUE) for name in names]
        return [one for one in found if one["lines"]]

    def series(
        self, stream: str, name: str, op: str, first: str = "", last: str = ""
    ) -> dict[str, Any]:
        """Return one series of all runs and ranks.

        Args:
            stream: its stream.
            name: of its rows.
            op: its operation.
            first: the first step to return; all from the beginning where empty.
            last: the last step.
        """
        lines = []
        for number, run in enumerate(self.runs):
            for rank in run.ranks:
                found, values = self._one_series(number, stream, name, op, rank)
                chosen = (found >= int(first or 0)) & (found <= int(last or 2**62))
                if chosen.any():
                    steps, values = _thinned(found[chosen], values[chosen])
                    line = {"run": number, "rank": rank, "steps": steps.tolist()}
                    lines.append({**line, "values": _listed(values)})
        return {"stream": stream, "name": name, "op": op, "lines": lines}

    def heat(
        self,
        stream: str,
        op: str,
        axis: str = "layer",
        run: str = "0",
        rank: str = "",
        at: str = "",
    ) -> dict[str, Any]:
        """Return a heat map.

        Args:
            stream: its stream.
            op: its operation.
            axis: ``layer``: layers and steps of one rank; ``rank``: ranks and steps of the layer
                `at`; ``layers of ranks``: layers and ranks at the step `at`.
            run: ``0`` or ``1``; ``ratio`` for the first run over the second.
            rank: of ``layer``; the first where empty.
            at: a layer or a step; the first layer and the last step where empty.

        Returns:
            Names of rows and columns, and ``values``, row by row, as `packed_cells` returns them.
        """
        if axis not in AXES:
            raise UsageError(f"no axis {axis}; use one of {', '.join(AXES)}")
        pair = (0, 1) if run == "ratio" else (int(run),)
        if axis == "rank":
            at = at or self._first_rows(pair[0], stream, op, "").names[0]
        elif axis == "layers of ranks":
            at = at or str(self.runs[pair[0]].steps()[-1])
        if axis == "layer" and len(pair) == 1:
            # Of a hundred thousand series no more is read than is shown.
            matrix = self._first_rows(pair[0], stream, op, rank)
            rows, columns, values = matrix.names, matrix.steps.tolist(), matrix.values.T
            total = matrix.of_names
        else:
            pictures = [self._picture(number, stream, op, axis, rank, at) for number in pair]
            rows, columns, values = pictures[0] if len(pictures) == 1 else _ratio(*pictures)
            total = len(rows)
        places, edges = _bins(len(columns), COLUMNS)
        return {
            "stream": stream,
            "op": op,
            "axis": axis,
            "at": at if axis != "layer" else "",
            "rows": rows[:ROWS],
            "of_rows": total,
            "columns": [columns[place] for place in places],
            "of_columns": len(columns),
            **packed_cells(_binned(values[:ROWS], edges)),
        }

    def _picture(
        self, run: int, stream: str, op: str, axis: str, rank: str, at: str
    ) -> tuple[list[str], list[int], Values]:
        """Return rows, columns and values of a heat map, in full."""
        ranks = self.runs[run].ranks
        if axis == "layer":
            matrix = self._matrix(run, stream, op, int(rank or ranks[0]))
            return matrix.names, matrix.steps.tolist(), matrix.values.T
        matrices = [self._matrix(run, stream, op, one) for one in ranks]
        if axis == "rank":
            parts = [_column(matrix, at) for matrix in matrices]
            steps = sorted({step for part in parts for step in part})
            values = [[part.get(step, MISSING) for step in steps] for part in parts]
            return [f"rank {one}" for one in ranks], steps, np.array(values, np.float64)
        step = int(at)
        names = list(dict.fromkeys(name for matrix in matrices for name in matrix.names))
        rows = [_row(matrix, step) for matrix in matrices]
        values = [[row.get(name, MISSING) for row in rows] for name in names]
        return names, list(ranks), np.array(values, np.float64).reshape(len(names), len(ranks))

    def _one_series(
        self, run: int, stream: str, name: str, op: str, rank: int
    ) -> tuple[NDArray[np.int64], Values]:
        """Return steps and values of a series; only its own values are read if nothing else was."""
        of_run = self.runs[run]
        if stream == Stream.RUN and name in OF_ALL_RANKS and name not in of_run.names(stream):
            if rank != of_run.ranks[0]:  # one line for all
                return np.zeros(0, np.int64), np.zeros(0)
            known = of_all_ranks(of_run, name)
            return known["step"].to_numpy(), known["value"].to_numpy()
        key = run, stream, op, rank
        matrix = self._matrices.get(key) or self._firsts.get(key)
        if matrix is None or (name not in matrix.names and len(matrix.names) < matrix.of_names):
            chunk, _, rest = name.partition(":")
            chunk, plain = (chunk, rest) if chunk.isdigit() else ("0", name)
            frame = self.runs[run].series(stream, plain, op, ranks=[rank], chunk=int(chunk))
            frame = frame.unique("step", keep="last", maintain_order=True)
            return frame["step"].to_numpy(), frame["value"].to_numpy()
        if name not in matrix.names:
            return np.zeros(0, np.int64), np.zeros(0)
        return matrix.steps, matrix.values[:, matrix.names.index(name)]

    def _first_rows(self, run: int, stream: str, op: str, rank: str) -> Matrix:
        """Return the matrix of the first names."""
        chosen = int(rank or self.runs[run].ranks[0])
        key = run, stream, op, chosen
        known = self._matrices.get(key) or self._firsts.get(key)
        if known is None:
            known = self._firsts[key] = self.runs[run].matrix(stream, op, rank=chosen, most=ROWS)
        return known

    def _matrix(self, run: int, stream: str, op: str, rank: int) -> Matrix:
        key = run, stream, op, rank
        if key not in self._matrices:
            self._matrices[key] = self.runs[run].matrix(stream, op, rank=rank)
        return self._matrices[key]


def _column(matrix: Matrix, name: str) -> dict[int, float]:
    if name not in matrix.names:
        return {}
    values = matrix.values[:, matrix.names.index(name)]
    return dict(zip(matrix.steps.tolist(), values.tolist(), strict=True))


def _row(matrix: Matrix, step: int) -> dict[str, float]:
    found = np.flatnonzero(matrix.steps == step)
    if not len(found):
        return {}
    return dict(zip(matrix.names, matrix.values[found[0]].tolist(), strict=True))


def _ratio(
    target: tuple[list[str], list[int], Values], reference: tuple[list[str], list[int], Values]
) -> tuple[list[str], list[int], Values]:
    """Return the first picture over the second, where both have rows and columns."""
    rows = [row for row in target[0] if row in set(reference[0])]
    columns = [column for column in target[1] if column in set(reference[1])]
    parts = []
    for names, numbers, values in (target, reference):
        row_at = {row: place for place, row in enumerate(names)}
        column_at = {column: place for place, column in enumerate(numbers)}
        chosen = [row_at[row] for row in rows], [column_at[column] for column in columns]
        parts.append(values[np.ix_(*chosen)] if rows and columns else np.zeros((0, 0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return rows, columns, np.asarray(np.where(parts[0] == parts[1], 1.0, parts[0] / parts[1]))


def _bins(count: int, most: int) -> tuple[list[int], NDArray[np.int64]]:
    """Return the first place of each bin, and the edges of the bins."""
    edges = np.linspace(0, count, min(count, most) + 1).astype(np.int64)
    return edges[:-1].tolist(), edges


def _binned(values: Values, edges: NDArray[np.int64]) -> Values:
    """Return the value of largest size in each bin of columns; NaN and Inf win."""
    if len(edges) == values.shape[1] + 1:
        return values
    absent, begins = is_missing(values), edges[:-1]
    high = np.maximum.reduceat(np.where(absent, -np.inf, values), begins, axis=1)
    low = np.minimum.reduceat(np.where(absent, np.inf, values), begins, axis=1)
    result = np.where(np.abs(low) > np.abs(high), low, high)
    result[low > high] = MISSING
    return result


def _thinned(steps: NDArray[np.int64], values: Values) -> tuple[NDArray[np.int64], Values]:
    """Return at most `POINTS` points: of each piece of the line its lowest and its highest."""
    if len(steps) <= POINTS:
        return steps, values
    _, edges = _bins(len(steps), POINTS // 2)
    absent = is_missing(values)
    low, high = np.where(absent, np.inf, values), np.where(absent, -np.inf, values)
    kept: list[int] = []
    for begin, end in pairwise(edges.tolist()):
        ends = begin + int(low[begin:end].argmin()), begin + int(high[begin:end].argmax())
        kept += sorted(set(ends))
    return steps[kept], values[kept]


def packed_cells(values: Values) -> dict[str, Any]:
    """Return numbers as they lie in memory: a page reads them at once, where JSON takes longest.

    Returns:
        ``bytes_each``, and ``values``: little-endian floats in base64, of 4 bytes if that keeps
        their size, else of 8. A NaN whose last bit is set is an absent value.
    """
    size = np.abs(values[np.isfinite(values) & (values != 0)])
    single = np.finfo(np.float32)
    fits = bool((size >= single.tiny).all() and (size <= single.max).all())
    packed = values.astype("<f4" if fits else "<f8", order="C")
    bits = packed.view(f"<u{packed.itemsize}")
    bits[np.isnan(values)] = np.array(np.nan, packed.dtype).view(bits.dtype)
    bits[is_missing(values)] += 1
    text = base64.b64encode(packed.data).decode()
    return {"bytes_each": packed.itemsize, "values": text}


def _listed(values: Values) -> list[Any]:
    """Return numbers in six digits, as strict JSON; None for absent ones."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        digits = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(values))))
        rounded = np.rint(values * digits) / digits
    is_plain = np.isfinite(rounded)
    listed: list[Any] = np.where(is_plain, rounded, 0.0).tolist()
    absent = is_missing(values)
    for place in np.flatnonzero(~is_plain).tolist():
        listed[place] = None if absent[place] else strict(float(values[place]))
    return listed
