# SPDX-License-Identifier: Apache-2.0
"""The series that alert rules judge: their kinds, and their places in the order of a step."""

from __future__ import annotations

import re
from collections.abc import Set
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.monitor.rows import Layout, Stream

MAGNITUDES: Final = ("norm", "rms", "absmax", "std", "ratio")
"""Operations that say how large a tensor is; the first of them that a stream has is judged."""

_GROUP_NUMBER: Final = re.compile(r"(?P<key>.+)\.\d+")
# The order in which a training step makes values; of one stage in the order of collection,
# backward stages in the reverse order.
_STAGES: Final[dict[str, int]] = {
    Stream.PARAM_ORIGIN: 1,
    Stream.LINEAR: 1,
    Stream.ROUTER_WEIGHT: 1,
    Stream.ACTV: 2,
    Stream.ATTENTION: 2,
    Stream.ROUTER_LOGIT: 2,
    Stream.ACTV_GRAD: 4,
    Stream.GRAD_UNREDUCED: 5,
    Stream.GRAD_REDUCED: 6,
    Stream.EXP_AVG: 7,
    Stream.EXP_AVG_SQ: 7,
    Stream.STATE: 7,
    Stream.UPDATE: 9,
    Stream.PARAM_UPDATED: 10,
}
_SCALAR_STAGE: Final = 8
_OTHER_STAGE: Final = 11
_REVERSED: Final = frozenset({4, 5, 6})


class Kind(IntEnum):
    """How a series is judged."""

    FINITE = 0
    """Only that it is finite."""
    MAGNITUDE = 1
    LOSS = 2
    BAD_COUNT = 3
    """Number of NaN or Inf."""
    ZERO_SHARE = 4
    LEARNING_RATE = 5
    SETTING = 6
    LOSS_SCALE = 7
    SKIPPED = 8


_SETTINGS: Final = frozenset({Kind.LEARNING_RATE, Kind.SETTING, Kind.LOSS_SCALE})


class Series(NamedTuple):
    """One series of numbers over steps."""

    rank: int
    stream: str
    chunk: int
    name: str
    call: int
    op: str

    @property
    def shared(self) -> tuple[str, int, str, int, str]:
        """The same series on any rank."""
        return self[1:]


def kind_of(stream: str, name: str, op: str, ops: tuple[str, ...]) -> Kind | None:
    """Return how a series is judged; None for one that no rule needs.

    Args:
        stream: its stream.
        name: of the row.
        op: of the value.
        ops: all of the stream, to judge one magnitude only.
    """
    if stream == Stream.RUN:
        return _kind_of_scalar(name)
    if op in ("nans", "infs"):
        return Kind.BAD_COUNT
    if op == "zeros":
        return Kind.ZERO_SHARE if stream == Stream.ACTV else None
    if op == next((one for one in MAGNITUDES if one in ops), None):
        return Kind.MAGNITUDE
    if op in ("entropy", "per_token_expert_entropy", "sr"):
        return Kind.MAGNITUDE
    return None


def is_loss(name: str) -> bool:
    """Return whether a number of the run is a loss: ``loss``, ``1.loss``, ``aux_loss``."""
    return name.endswith("loss")


def _kind_of_scalar(name: str) -> Kind:
    if is_loss(name):
        return Kind.LOSS
    if name == "grad_norm":  # clipped, it says less
        return Kind.MAGNITUDE
    if name == "loss_scale":
        return Kind.LOSS_SCALE
    if name == "skipped":
        return Kind.SKIPPED
    numbered = _GROUP_NUMBER.fullmatch(name)
    if numbered is None:
        return Kind.FINITE
    return Kind.LEARNING_RATE if numbered["key"] == "lr" else Kind.SETTING


class SeriesTable:
    """All series seen so far, by number; columns as arrays.

    Attributes:
        keys: the series.
        dtypes: data type of the tensor, as the framework writes it.
        kind: `Kind` of each.
        place: its place in the order of a training step; smaller is earlier.
        group: number of its stream on its rank; breadth is counted within one.
    """

    def __init__(self) -> None:
        self.keys: list[Series] = []
        self.dtypes: list[str] = []
        self.kind = np.zeros(0, np.int8)
        self.place = np.zeros(0, np.int64)
        self.group = np.zeros(0, np.int64)
        self._numbers: dict[Series, int] = {}
        self._groups: dict[tuple[int, str], int] = {}
        self._new: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self.keys)

    def add(self, layout: Layout, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for the values of a block that are judged, their series and places in the block.

        Args:
            layout: of the block.
            rank: its rank.
        """
        numbers, places = [], []
        for column, op in enumerate(layout.ops):
            for row, name in enumerate(layout.names):
                kind = kind_of(layout.stream, name, op, layout.ops)
                if kind is None:
                    continue
                key = Series(rank, layout.stream, layout.chunks[row], name, layout.calls[row], op)
                numbers.append(self._number(key, kind, layout.dtypes[row]))
                places.append(column * len(layout.names) + row)
        self._extend_columns()
        return np.array(numbers, np.int64), np.array(places, np.int64)

    def are_of(self, series: NDArray[np.int64], streams: Set[str]) -> NDArray[np.bool_]:
        """Return which series are of one of these streams."""
        chosen = np.array([stream in streams for _, stream in self._groups], np.bool_)
        return chosen[self.group[series]]

    def _number(self, key: Series, kind: Kind, dtype: str) -> int:
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
            self.dtypes.append(dtype)
            self._new.append((kind, _place(key, kind, number), self._group(key)))
        return number

    def _group(self, key: Series) -> int:
        return self._groups.setdefault((key.rank, key.stream), len(self._groups))

    def _extend_columns(self) -> None:
        if self._new:
            kinds, places, groups = zip(*self._new, strict=True)
            self.kind = np.append(self.kind, np.array(kinds, np.int8))
            self.place = np.append(self.place, np.array(places, np.int64))
            self.group = np.append(self.group, np.array(groups, np.int64))
            self._new.clear()


def _place(key: Series, kind: Kind, number: int) -> int:
    stage, place = _stage(key.stream, kind, number)
    return (stage << 32) + place


def stage_of(stream: str, name: str, number: int) -> tuple[int, int]:
    """Return the place of a series in the order of a training step; the smaller is the earlier.

    Args:
        stream: its stream.
        name: of its row.
        number: of the row, in the order of collection.
    """
    kind = _kind_of_scalar(name) if stream == Stream.RUN else Kind.MAGNITUDE
    return _stage(stream, kind, number)


def _stage(stream: str, kind: Kind, number: int) -> tuple[int, int]:
    if stream == Stream.RUN:
        stage = 0 if kind in _SETTINGS else 3 if kind is Kind.LOSS else _SCALAR_STAGE
    else:
        stage = _STAGES.get(stream, _OTHER_STAGE)
    return stage, -number if stage in _REVERSED else number
