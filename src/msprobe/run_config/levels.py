# SPDX-License-Identifier: Apache-2.0
"""Levels of differences between two runs, and their tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msprobe.report.tables import Cell


class Item(StrEnum):
    """A part of a run's settings that is compared, by the name of its sheet."""

    ARGUMENTS = "hyperparameters"
    MODULES = "modules"
    OPTIMIZER = "optimizer"
    SCHEDULE = "schedule"
    SCALER = "scaler"
    CLIP = "clip"
    LOADER = "loader"
    OBJECTS = "objects"
    ENV = "env"
    PACKAGES = "pip"
    SYSTEM = "system"
    RANDOM = "random"
    GENERATORS = "generators"
    DATASET = "dataset"
    WEIGHTS = "weights"
    BUFFERS = "buffers"
    MODES = "modes"
    PACK = "pack"


class Aspect(StrEnum):
    """Respect in which two values differ, where it says more than the item."""

    VALUE = "value"
    CAUSE = "cause"
    """Of a lower level, but known to have caused differences that were found."""
    SEED = "seed"
    DTYPE = "dtype"
    ORDER = "order"
    """The same rows in another order."""
    LATER = "later"
    """Parted during the run, not before."""
    CODE = "code"
    """The user's code, which may hold any cause."""
    TEXT = "text"
    """The text of a launch script, whose effect is not known."""
    NOT_COMPARED = "not compared"


class Level(StrEnum):
    """How much a difference matters; `PASS` is no difference."""

    PASS = "pass"
    INFO = "info"
    """Does not change the computation."""
    TEXT = "text"
    """The text of a launch script differs; what that changes is not explained."""
    WARNING = "warning"
    """May change it."""
    ERROR = "error"
    """Changes it, or very likely does."""

    @property
    def weight(self) -> int:
        """A number that grows with the level."""
        return _WEIGHTS[self]


_WEIGHTS: Final = {level: place for place, level in enumerate(Level)}


def highest(levels: Iterable[Level]) -> Level:
    """Return the highest level; `PASS` if there is none."""
    return max(levels, key=lambda level: level.weight, default=Level.PASS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which two runs differ.

    Attributes:
        item: the compared item.
        name: the variable, package, argument or parameter.
        bench: value of the trusted run as text; None where it has none.
        cmp: value of the run under test, in the same form.
        level: how much it matters.
        note: a further hint; may be empty.
        aspect: in which respect they differ.
        step: the first (micro) step where they do, for `Aspect.LATER`.
    """

    item: Item
    name: str
    bench: str | None
    cmp: str | None
    level: Level
    note: str = ""
    aspect: Aspect = Aspect.VALUE
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """One item compared.

    Attributes:
        item: the item.
        columns: titles of its table.
        rows: its table.
        differences: all differences, in the order of the table.
        compared: how many things were looked at.
    """

    item: Item
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    differences: list[Difference]
    compared: int

    @property
    def level(self) -> Level:
        """The highest level, of differences that change the computation.

        An item of which nothing was compared does not pass.
        """
        found = highest(difference.level for difference in self.differences)
        if not self.compared:
            return highest((found, Level.WARNING))
        return Level.PASS if found is Level.INFO else found


def listed(
    item: Item, columns: tuple[str, ...], differences: list[Difference], *, compared: int
) -> ItemResult:
    """Return an item whose table has a row for each difference: name, values, level."""
    rows: list[tuple[Cell, ...]] = [
        (each.name, each.bench or "None", each.cmp or "None", each.level.value)
        for each in differences
    ]
    return ItemResult(
        item=item, columns=columns, rows=rows, differences=differences, compared=compared
    )
