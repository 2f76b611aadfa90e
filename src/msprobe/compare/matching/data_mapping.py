# SPDX-License-Identifier: Apache-2.0
"""Data mappings: row names of the target → row names of the reference.

    Functional.linear.0.forward.input.0: Functional.linear.1.forward.input.0
    Functional.relu.0.forward.output.0: N/A        # has no partner

Names that are not listed find their partners as they would without the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.compare.model import Row, row_name
from msprobe.compare.sides import Side
from msprobe.errors import UsageError
from msprobe.yaml_nodes import read_yaml

NO_PARTNER: Final = "N/A"


@dataclass(frozen=True, slots=True)
class DataMapping:
    """Target row names → reference row names.

    Attributes:
        rows: the names; None for rows that have no partner.
        lines: line of each in the file, empty without a file.
        path: the file, if there is one.
    """

    rows: Mapping[str, str | None]
    lines: Mapping[str, int]
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class MappedOperation:
    """Rows of one target record that a data mapping leads to one reference record.

    Attributes:
        target: place of the record in the target.
        reference: place in the reference; None if its rows have no partner.
        slots: target slot → reference slot.
    """

    target: int
    reference: int | None
    slots: Mapping[str, str | None]


def read_data_mapping(source: Path | Mapping[str, str]) -> DataMapping:
    """Return a data mapping from a file, or from a mapping made in Python.

    Raises:
        ConfigError: the file is not of that form.
        UsageError: a name in a mapping is no text.
    """
    if isinstance(source, Path):
        rows: dict[str, str | None] = {}
        lines: dict[str, int] = {}
        what = "lines of the form  target row: reference row"
        for name, place, value in read_yaml(source).items(what):
            rows[name] = _partner(value.text("the name of a row of the reference, or N/A"))
            lines[name] = place.line
        return DataMapping(rows, lines, source)
    for name, partner in source.items():
        if not isinstance(name, str) or not isinstance(partner, str):
            raise UsageError(f"data mapping: {name!r}: {partner!r} are not two names of rows")
    return DataMapping({name: _partner(partner) for name, partner in source.items()}, {})


def mapped_operations(
    mapping: DataMapping,
    target: Side,
    reference: Side,
    places: tuple[Mapping[str, int], Mapping[str, int]],
) -> list[MappedOperation]:
    """Return the pairs of records that a mapping makes, by place in the target.

    Args:
        mapping: the mapping.
        target: the target.
        reference: the reference.
        places: record name → place, of the target and the reference.
    """
    of_target, of_reference = Rows(target), Rows(reference)
    slots: defaultdict[tuple[int, int | None], dict[str, str | None]] = defaultdict(dict)
    for row, partner in mapping.rows.items():
        target_row = of_target.find(row)
        reference_row = None if partner is None else of_reference.find(partner)
        if target_row is None or (partner is not None and reference_row is None):
            continue  # a row of another step or rank
        record, slot = reference_row or (None, None)
        partner_place = None if record is None else places[1][record]
        slots[places[0][target_row[0]], partner_place][target_row[1]] = slot
    return [
        MappedOperation(place, partner_place, found)
        for (place, partner_place), found in sorted(
            slots.items(), key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or 0)
        )
    ]


def data_mapping_of(rows: Iterable[Row]) -> dict[str, str]:
    """Return the data mapping that leads to the same rows, as a mapping file would have it.

    Args:
        rows: of a comparison.
    """
    mapping = {}
    for row in rows:
        if row.target_name is not None:
            mapping[row.target_name] = row.reference_name or NO_PARTNER
    return mapping


def _partner(name: str) -> str | None:
    return None if name == NO_PARTNER else name


class Rows:
    """The rows of a side, found by name."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._records = frozenset(side.names)
        self._slots: dict[str, set[str]] = {}

    def find(self, row: str) -> tuple[str, str] | None:
        """Return the record of a row, and its slot; None if the side has no such row."""
        record = self._record(row)
        if record is None:
            return None
        slot = row[len(record) + 1 :]
        known = self._slots_of(record)
        for spelling in (slot, _other_spelling(slot)):
            if spelling in known:
                return record, spelling
        return None

    def near(self, row: str) -> Iterable[str]:
        """Return names that `row` could have been meant to be."""
        record = self._record(row)
        if record is None:
            return self._side.names
        return [row_name(record, slot) for slot in self._slots_of(record)]

    def _record(self, row: str) -> str | None:
        record = row
        while record and record not in self._records:
            record = record.rpartition(".")[0]
        return record or None

    def _slots_of(self, record: str) -> set[str]:
        found = self._slots.get(record)
        if found is None:
            found = self._slots[record] = {value.slot for value in self._side.values(record)}
        return found


def _other_spelling(slot: str) -> str:
    """Return a keyword argument's slot as dumps with tensor files have it, or the reverse."""
    first, _, rest = slot.partition(".")
    return {"input": f"kwargs.{rest}", "kwargs": f"input.{rest}"}.get(first, slot)
