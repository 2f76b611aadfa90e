# SPDX-License-Identifier: Apache-2.0
"""Measurements of one step, on their way to the recorder's thread, where they become rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from msprobe.log import warn_once
from msprobe.monitor.ops import Op, columns_of, evaluate
from msprobe.monitor.rows import MISSING, VALUE, Layout, Rows, Stream
from msprobe.monitor.settings import StreamSettings

logger = logging.getLogger(__name__)

_MOST_LAYOUTS: Final = 4096


class Key(NamedTuple):
    """The identity of a row.

    Attributes:
        name: of the tensor.
        chunk: the model among several.
        call: which call of its module in the micro step.
    """

    name: str
    chunk: int = 0
    call: int = 0


Measures = NDArray[np.float64]


class MeasureTable(Protocol):
    """The measures of tensors, a row each; columns as in `msprobe.monitor.ops`."""

    @property
    def reasons(self) -> Mapping[int, str]:
        """Row → why a tensor could not be read; its row is left out."""

    def add(self, tensors: list[Any], known: Any = None) -> None:
        """Read tensors; each gets the next row."""

    def start_copy(self) -> None:
        """Start to copy the numbers of accelerators, without waiting for them."""

    def wait(self) -> tuple[Measures, Measures | None]:
        """Return measures and bins of all tensors so far, on any thread."""


class Reading(Protocol):
    """How the tensors of a framework are read."""

    def table(self, threshold: float, *, with_bins: bool = False) -> MeasureTable:
        """Return an empty table.

        Args:
            threshold: elements with a smaller magnitude are counted; negative to count none.
            with_bins: whether elements are counted by magnitude.
        """

    def shape(self, tensor: Any) -> str:
        """Return a shape as it is written."""

    def dtype(self, tensor: Any) -> str:
        """Return a type of elements as it is written."""


class Layouts:
    """Layouts that were made before, so that equal blocks share one."""

    def __init__(self) -> None:
        """Create it without any."""
        self._known: dict[tuple[Any, ...], Layout] = {}

    def get(self, stream: str, ops: tuple[str, ...], columns: Sequence[tuple[Any, ...]]) -> Layout:
        """Return the layout with these columns: names, chunks, calls, shapes, dtypes."""
        key = (stream, ops, *columns)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MOST_LAYOUTS:
                self._known.clear()
            found = self._known[key] = Layout(stream, ops, *columns)
        return found


class Batch:
    """The tensors of one stream in one micro step."""

    __slots__ = (
        *("_dtypes", "_keys", "_measures", "_reading", "_shapes"),
        *("micro_step", "ops", "stream"),
    )

    def __init__(
        self, stream: Stream, micro_step: int, ops: tuple[Op, ...], eps: float, reading: Reading
    ) -> None:
        """Create an empty batch."""
        self.stream = stream
        self.micro_step = micro_step
        self.ops = ops
        threshold = eps if Op.ZEROS in ops else -1.0
        self._reading = reading
        self._measures = reading.table(threshold, with_bins=Op.LOG2_HIST in ops)
        self._keys: list[Key] = []
        self._shapes: list[str] = []
        self._dtypes: list[str] = []

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._keys)

    def add(self, keys: Sequence[Key], tensors: list[Any], known: Any = None) -> None:
        """Measure tensors now."""
        self._measures.add(tensors, known)
        self._keys += keys
        self._shapes += map(self._reading.shape, tensors)
        self._dtypes += map(self._reading.dtype, tensors)

    def start_copy(self) -> None:
        """Start to copy numbers of accelerators to the host."""
        self._measures.start_copy()

    def rows(self, layouts: Layouts, rank: int, step: int, at: float) -> Rows:
        """Return the rows; on the recorder's thread."""
        measures, bins = self._measures.wait()
        values = evaluate(self.ops, measures, bins)
        if Op.ID in self.ops:
            place = list(dict.fromkeys(self.ops)).index(Op.ID)
            has_no_id = np.array([shape != "[]" for shape in self._shapes])
            values[place, has_no_id] = MISSING
        names, chunks, calls = zip(*self._keys, strict=True)
        columns = [names, chunks, calls, tuple(self._shapes), tuple(self._dtypes)]
        reasons = self._measures.reasons
        if reasons:
            for place, reason in reasons.items():
                warn_once(
                    logger,
                    ("unread", self.stream, names[place]),
                    "%s of %s is not monitored: %s",
                    self.stream,
                    names[place],
                    reason,
                )
            kept = [place for place in range(len(names)) if place not in reasons]
            values = np.ascontiguousarray(values[:, kept])
            columns = [tuple(column[place] for place in kept) for column in columns]
        layout = layouts.get(self.stream, columns_of(self.ops), columns)
        return Rows(layout, rank, step, self.micro_step, at, values)


class StepRows:
    """Everything measured in one step."""

    def __init__(
        self, step: int, streams: Mapping[Stream, StreamSettings], eps: float, reading: Reading
    ) -> None:
        """Begin a step.

        Args:
            step: its number.
            streams: those that it collects.
            eps: magnitude below which an element counts as zero.
            reading: how tensors are read.
        """
        self.step = step
        self.streams = streams
        self._eps = eps
        self._reading = reading
        self._batches: dict[tuple[Stream, int], Batch] = {}
        self._numbers: list[tuple[Stream, int, str, Key, float]] = []

    def wanted(
        self, stream: Stream, parameters: Iterable[tuple[Key, Any]]
    ) -> Iterator[tuple[Key, Any]]:
        """Yield the parameters that a stream collects in this step."""
        settings = self.streams.get(stream)
        if settings is not None:
            yield from (one for one in parameters if settings.wants(one[0].name))

    def batch(self, stream: Stream, micro_step: int = 0) -> Batch:
        """Return the batch of a stream that is collected in this step."""
        found = self._batches.get((stream, micro_step))
        if found is None:
            ops = self.streams[stream].ops
            found = Batch(stream, micro_step, ops, self._eps, self._reading)
            self._batches[stream, micro_step] = found
        return found

    def put_number(
        self,
        key: Key,
        value: float,
        micro_step: int = 0,
        *,
        stream: Stream = Stream.RUN,
        op: str = VALUE,
    ) -> None:
        """Take a number that is no operation of a tensor."""
        self._numbers.append((stream, micro_step, op, key, value))

    def drop(self) -> None:
        """Forget everything: the optimizer's step was skipped."""
        self._batches.clear()
        self._numbers.clear()

    def start_copies(self) -> None:
        """Start to copy numbers of accelerators to the host."""
        for batch in self._batches.values():
            batch.start_copy()

    @property
    def filled(self) -> set[Stream]:
        """The streams that have rows so far."""
        read = {stream for (stream, _), batch in self._batches.items() if len(batch)}
        return read | {stream for stream, *_ in self._numbers}

    @property
    def row_count(self) -> int:
        """Number of rows so far."""
        return sum(map(len, self._batches.values())) + len(self._numbers)

    def rows(self, layouts: Layouts, rank: int, at: float) -> list[Rows]:
        """Return all rows; on the recorder's thread."""
        found = {
            place: batch.rows(layouts, rank, self.step, at)
            for place, batch in self._batches.items()
            if len(batch)
        }
        others = []
        for numbers in self._number_rows(layouts, rank, at):
            place = Stream(numbers.layout.stream), numbers.micro_step
            rows = found.get(place)
            if rows is not None and set(numbers.layout.keys) <= set(rows.layout.keys):
                found[place] = _with_column(rows, numbers, layouts)
            else:
                others.append(numbers)
        return [*found.values(), *others]

    def _number_rows(self, layouts: Layouts, rank: int, at: float) -> Iterator[Rows]:
        groups: dict[tuple[Stream, int, str], dict[Key, float]] = {}
        for stream, micro_step, op, key, value in self._numbers:
            groups.setdefault((stream, micro_step, op), {})[key] = value
        for (stream, micro_step, op), found in groups.items():
            empty = ("",) * len(found)
            layout = layouts.get(stream, (op,), [*zip(*found, strict=True), empty, empty])
            values = np.array([list(found.values())], np.float64)
            yield Rows(layout, rank, self.step, micro_step, at, values)


def _with_column(rows: Rows, numbers: Rows, layouts: Layouts) -> Rows:
    """Return a block with numbers of the same tensors as one more operation."""
    layout = rows.layout
    known = dict(zip(numbers.layout.keys, numbers.values[0], strict=True))
    column = [known.get(key, MISSING) for key in layout.keys]
    columns = [layout.names, layout.chunks, layout.calls, layout.shapes, layout.dtypes]
    ops = (*layout.ops, *numbers.layout.ops)
    joined = layouts.get(layout.stream, ops, columns)
    return replace(rows, layout=joined, values=np.vstack([rows.values, column]))


def now() -> float:
    """Return the time of rows: seconds since 1970 UTC."""
    return time.time()
