# SPDX-License-Identifier: Apache-2.0
"""The words of a comparison in reports: statuses and origins, their meaning, order and style.

The words themselves are those of the columns ``status`` and ``origin`` of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msprobe.dump.record_names import RecordKind, parse_record_name
from msprobe.plain_text import plain

# Worst first: meaningless numbers are worse than changed ones.
SEVERITY: Final = (
    "nonfinite",
    "shape",
    "differs",
    "dtype",
    "missing",
    "added",
    "unread",
    "close",
    "equal",
)
STATUSES: Final = SEVERITY[::-1]
DIFFERENCES: Final = SEVERITY[:6]

STATUS_MEANINGS: Final = {
    "equal": "the same, bit for bit",
    "close": "within the tolerance of the coarser type",
    "differs": "outside the tolerance",
    "nonfinite": "NaN or Inf on one side only, or in other places",
    "shape": "the shapes are different",
    "dtype": "the types are different",
    "missing": "only the reference has it",
    "added": "only the target has it",
    "unread": "the values could not be read, and nothing else tells them apart",
}
STATUS_STYLES: Final = {
    "equal": "green",
    "close": "green",
    "differs": "yellow",
    "nonfinite": "bold magenta",
    "shape": "magenta",
    "dtype": "magenta",
    "missing": "cyan",
    "added": "cyan",
    "unread": "bold yellow",
}

# The most telling first.
ORIGINS: Final = ("introduced", "amplified", "input", "inherited")
TELLING: Final = ORIGINS[:3]
ORIGIN_MEANINGS: Final = {
    "introduced": "the difference begins here",
    "amplified": "came in small and grew by more than rounding explains",
    "input": "was different already when it came in from outside",
    "inherited": "came in with the inputs",
}
ORIGIN_STYLES: Final = {
    "introduced": "bold red",
    "amplified": "bold yellow",
    "input": "bold blue",
    "inherited": "dim",
}
MODE_MEANINGS: Final = {
    "tensor": "every element of the tensors",
    "statistics": "maximum, minimum, mean and norm",
    "md5": "checksums",
}


def count_different(counts: Mapping[str, int]) -> int:
    """Return how many values differ, given counts by status."""
    return sum(counts.get(status, 0) for status in DIFFERENCES)


@dataclass(frozen=True, slots=True)
class OperationLabel:
    """The name of an operation where module, direction and source are beside it.

    Attributes:
        text: the module's path and class, or the API with its number.
        short: the same without the module's path, or without the API's prefix.
        tail: direction and repetition, where they are not the usual.
        is_module: whether it is a module.
    """

    text: str
    short: str
    tail: str
    is_module: bool = False

    @property
    def without_prefix(self) -> str:
        """The short name; a module keeps its path, which identifies it."""
        return self.text if self.is_module else self.short


def operation_label(record_name: str) -> OperationLabel:
    """Return how to call an operation in a list."""
    name = parse_record_name(record_name)
    tail = "" if name.kind is RecordKind.FORWARD else f" {name.kind}"
    tail += f" pass {name.backward_pass}" if name.backward_pass else ""
    tail += " (recompute)" if name.recompute else ""
    if name.is_module:
        number = f".{name.index}" if name.index else ""
        short = plain(f"{name.class_name}{number}")
        text = plain(f"{name.path}.") + short if name.path else short
        return OperationLabel(text, short, tail, is_module=True)
    if name.kind is RecordKind.OTHER:
        return OperationLabel(plain(record_name), plain(record_name), "")
    number = "" if name.index is None else f".{name.index}"
    short = plain(f"{name.path}{number}")
    return OperationLabel(plain(f"{name.prefix}.") + short if name.prefix else short, short, tail)
