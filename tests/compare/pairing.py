# SPDX-License-Identifier: Apache-2.0
"""From records to sides and their pairs, for tests of pairing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msprobe
from builders.dumps import write_rank
from builders.records import Records
from msprobe.compare.matching import pair_operations
from msprobe.compare.model import OperationPair, Row
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.compare.value_pairs import pair_values


def write_side(
    directory: Path, records: Records, *, source: str = "target", **options: Any
) -> Side:
    """Write one rank's dump and open it; `options` are those of `write_rank`."""
    files = {"parents": {}, "stacks": {}} | options
    folder = write_rank(directory / source / "step0" / "rank", records, **files)
    return Side(msprobe.open_dump(folder).step().rank(), source=source)


def both(directory: Path, target: Records, reference: Records, **options: Any) -> tuple[Side, Side]:
    """Write two dumps of one kind and open them."""
    return (
        write_side(directory, target, source="target", **options),
        write_side(directory, reference, source="reference", **options),
    )


def names_of(pairs: Sequence[OperationPair]) -> list[tuple[str | None, str | None]]:
    return [(pair.target, pair.reference) for pair in pairs]


def rows_of(target: Side, reference: Side, options: CompareOptions | None = None) -> list[Row]:
    pairs = pair_operations(target, reference, options or CompareOptions())
    return [row for pair in pairs for row in pair_values(target, reference, pair)]
