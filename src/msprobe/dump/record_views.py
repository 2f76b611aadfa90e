# SPDX-License-Identifier: Apache-2.0
"""`Record`: one entry of ``dump.json``, read-only.

Its parts (``input_args``, ``output`` …) are trees as deep as the user's arguments were;
`Record.values` walks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msprobe.dump.record_names import RecordName
from msprobe.dump.records import JsonTree
from msprobe.dump.value_reader import ValueReader, notes_of, parts_of
from msprobe.dump.values import PartPath, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of ``dump.json`` or ``debug.json``.

    Attributes:
        name: the entry's name, taken apart.
        data: the entry as it is in the file: a dict of parts, or a bare value at level debug.
        reader: reads its values.
    """

    name: RecordName
    data: JsonTree
    reader: ValueReader

    @property
    def parts(self) -> Mapping[str, JsonTree]:
        """The parts that hold values (``input_args``, ``output`` …), as they are in the file."""
        return parts_of(self.data)

    @property
    def notes(self) -> Mapping[str, JsonTree]:
        """Facts about the call as a whole: ``recomputed``, ``phase``, an exception …"""
        return notes_of(self.data)

    def values(self, part: str | None = None) -> list[Value]:
        """Return the values: inputs, parameters, outputs, then those of other parts.

        Args:
            part: only this part (``input_args`` …); None for all.

        Raises:
            DumpFormatError: a value of a wrong type, or nesting beyond 500 levels.
        """
        return self.reader.read(self.data, self.name, part)

    def tensors(self, part: str | None = None) -> Iterator[tuple[PartPath, Value]]:
        """Yield each tensor with its path; see `values`."""
        for value in self.values(part):
            if value.is_tensor:
                yield value.path, value

    def _repr_html_(self) -> str:
        """Return an overview, for notebooks."""
        from msprobe.dump.html_forms import record_html

        return record_html(self)
