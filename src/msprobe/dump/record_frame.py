# SPDX-License-Identifier: Apache-2.0
"""All values of a rank's records as one polars table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.records import Statistic
from msprobe.errors import DumpFormatError

if TYPE_CHECKING:
    import polars as pl

    from msprobe.dump.rank_view import RankView

# Column → its polars type, then where it comes from.
_OF_RECORD: Final = {"record": "String", "kind": "String", "index": "Int64", "module": "Boolean"}
_OF_VALUE: Final = {
    "slot": "String",
    "role": "String",
    "type": "String",
    "dtype": "String",
    "shape": "List",
    "max": "Float64",
    "min": "Float64",
    "mean": "Float64",
    "norm": "Float64",
    "nan_count": "Int64",
    "pos_inf_count": "Int64",
    "neg_inf_count": "Int64",
    "md5": "String",
    "data_name": "String",
    "value_id": "Int64",
}
_STATISTICS: Final = ("max", "min", "mean", "norm")


def record_frame(view: RankView) -> pl.DataFrame:
    """Return a row for each value of each record, in order of execution; see `RankView.frame`.

    Raises:
        DumpFormatError: the rank's files are damaged (single damaged records are left out).
    """
    import polars as pl

    columns: dict[str, list[Any]] = {name: [] for name in (*_OF_RECORD, *_OF_VALUE)}
    for record in view.records:
        try:
            values = view.records.values_of(record)
        except DumpFormatError:
            continue
        name = view.records.parsed(record)
        for value in values:
            for column, entry in zip(
                _OF_RECORD, (record, name.kind.value, name.index, name.is_module), strict=True
            ):
                columns[column].append(entry)
            for column in _OF_VALUE:
                columns[column].append(getattr(value, column))
    for column in _STATISTICS:
        columns[column] = [_float(number) for number in columns[column]]
    types = _OF_RECORD | _OF_VALUE
    dtypes = {
        name: pl.List(pl.Int64) if kind == "List" else getattr(pl, kind)
        for name, kind in types.items()
    }
    return pl.DataFrame(
        [make_series(name, entries, dtypes[name]) for name, entries in columns.items()]
    )


def _float(number: Statistic) -> float | None:
    if number is None:
        return None
    try:
        return float(number)
    except OverflowError:  # an integer beyond all floats, in a damaged file
        return math.inf if number > 0 else -math.inf


def make_series(name: str, entries: Sequence[Any], dtype: Any) -> pl.Series:
    """Return a column of polars, also of texts that hold half characters."""
    import polars as pl

    try:
        return pl.Series(name, entries, dtype=dtype, strict=False)
    except UnicodeEncodeError:  # half characters of a hostile dump, which polars does not take
        whole = [
            entry.encode("utf-8", "backslashreplace").decode() if type(entry) is str else entry
            for entry in entries
        ]
        return pl.Series(name, whole, dtype=dtype, strict=False)
