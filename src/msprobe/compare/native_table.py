# SPDX-License-Identifier: Apache-2.0
"""The table of a comparison: one row for each pair of values, as a polars frame.

Column by column, because that is many times faster than row by row; batch by batch, because the
objects that a batch was made of can go before the next one is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Match, OperationPair, Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.record_frame import make_series
from msprobe.dump.record_names import RecordKind
from msprobe.dump.records import JsonTree, Statistic
from msprobe.dump.values import Role, Value
from msprobe.numerics.element_metrics import ElementMetrics

if TYPE_CHECKING:
    import polars as pl


# So few that the values of a batch stay in the processor's cache while its columns are made.
_BATCH_ROWS: Final = 5_000
_MAX_VALUE_TEXT: Final = 500
_KIND_OF_ROLE: Final = {
    Role.PARAMETER: "parameter",
    Role.PARAMETER_GRAD: "parameter_grad",
    Role.SAVED: "saved",
}
# Looked up faster than the value of a member of an enumeration is.
_WORDS: Final[Mapping[str | None, str | None]] = {
    None: None,
    **{word: word.value for words in (Status, Origin, Cause, Role, Match) for word in words},
}
_TEXT: Final = "String"
_INTEGER: Final = "Int64"
_NUMBER: Final = "Float64"
_TRUTH: Final = "Boolean"

COLUMNS: Final[Mapping[str, str]] = {
    "step": _INTEGER,
    "rank": _TEXT,
    "order": _INTEGER,
    "name": _TEXT,
    "target_name": _TEXT,
    "reference_name": _TEXT,
    "operation": _TEXT,
    "kind": _TEXT,
    "role": _TEXT,
    "slot": _TEXT,
    "module": _TEXT,
    "api": _TEXT,
    "status": _TEXT,
    "origin": _TEXT,
    "error": _NUMBER,
    "cause": _TEXT,
    "reason": _TEXT,
    "match": _TEXT,
    "confidence": _NUMBER,
    "target_dtype": _TEXT,
    "reference_dtype": _TEXT,
    "target_shape": _TEXT,
    "reference_shape": _TEXT,
    "target_value": _TEXT,
    "reference_value": _TEXT,
    "target_requires_grad": _TRUTH,
    "reference_requires_grad": _TRUTH,
    "target_max": _NUMBER,
    "target_min": _NUMBER,
    "target_mean": _NUMBER,
    "target_norm": _NUMBER,
    "reference_max": _NUMBER,
    "reference_min": _NUMBER,
    "reference_mean": _NUMBER,
    "reference_norm": _NUMBER,
    "target_nan": _INTEGER,
    "target_inf": _INTEGER,
    "reference_nan": _INTEGER,
    "reference_inf": _INTEGER,
    "mismatches": _INTEGER,
    "unequal": _INTEGER,
    "count": _INTEGER,
    "max_abs_err": _NUMBER,
    "max_abs_index": _TEXT,
    "max_abs_target": _NUMBER,
    "max_abs_reference": _NUMBER,
    "max_rel_err": _NUMBER,
    "max_rel_index": _TEXT,
    "max_rel_target": _NUMBER,
    "max_rel_reference": _NUMBER,
    "mean_abs_err": _NUMBER,
    "p999_abs_err": _NUMBER,
    "rmse": _NUMBER,
    "relative_l2": _NUMBER,
    "cosine": _NUMBER,
    "max_ulp": _INTEGER,
    "sign_flips": _INTEGER,
    "ratio_1e3": _NUMBER,
    "ratio_5e3": _NUMBER,
    "first_nonfinite": _TEXT,
    "target_md5": _TEXT,
    "reference_md5": _TEXT,
    "target_file": _TEXT,
    "reference_file": _TEXT,
    "source": _TEXT,
}
"""Names of the columns, in order, and the names of their polars types."""


def empty_table() -> pl.DataFrame:
    """Return a table without rows."""
    import polars as pl

    return pl.DataFrame(schema=_schema())


def make_table(comparisons: Sequence[RankComparison], *, keep_rows: bool = True) -> pl.DataFrame:
    """Return the rows of all comparisons as one table.

    Args:
        comparisons: in the order of the table.
        keep_rows: False takes the rows out of the comparisons on the way: of millions of rows there
            is no room for both.
    """
    import polars as pl

    batches: list[pl.DataFrame] = []
    for comparison in comparisons:
        batches += [
            _table_of(rows, comparison) for rows in _batches(comparison, keep_rows=keep_rows)
        ]
    if not batches:
        return empty_table()
    found = pl.concat(batches, how="diagonal")
    # Columns that no batch has values for share their memory. Not by `select`: it would copy the
    # others into one piece each.
    schema = _schema()
    nulls = {
        kind: pl.repeat(None, found.height, dtype=kind, eager=True) for kind in schema.values()
    }
    return pl.DataFrame(
        [
            found[name] if name in found.columns else nulls[kind].alias(name)
            for name, kind in schema.items()
        ]
    )


def _batches(comparison: RankComparison, *, keep_rows: bool) -> Iterator[list[Row]]:
    if keep_rows:
        for start in range(0, len(comparison.rows), _BATCH_ROWS):
            yield comparison.rows[start : start + _BATCH_ROWS]
        return
    rows, comparison.rows = comparison.rows, []
    rows.reverse()  # so that batches can be cut off at the end, which is where lists are cheap
    while rows:
        batch = rows[: -_BATCH_ROWS - 1 : -1]
        del rows[-len(batch) :]
        yield batch


def _schema() -> dict[str, Any]:
    import polars as pl

    return {name: getattr(pl, kind) for name, kind in COLUMNS.items()}


def _table_of(rows: Sequence[Row], comparison: RankComparison) -> pl.DataFrame:
    import polars as pl

    pairs, places = _pairs_of(rows)
    of_pairs = _operation_columns(pairs, comparison)
    backward = of_pairs.pop("backward")
    columns = _row_columns(rows, [backward[place] for place in places])
    columns |= _side_columns("target", [row.target for row in rows])
    columns |= _side_columns("reference", [row.reference for row in rows])
    if any(row.metrics is not None for row in rows):
        columns |= _metric_columns(rows, columns)
    schema = _schema()
    series = {
        name: make_series(name, values, schema.get(name, pl.String))
        for name, values in (of_pairs | columns).items()
    }
    frame = pl.DataFrame([series[name] for name in of_pairs])
    frame = frame[pl.Series(places, dtype=pl.UInt32)].with_columns(
        *(series[name] for name in columns),
        step=pl.lit(comparison.step),
        rank=pl.lit(str(comparison.rank)),
    )
    frame = frame.with_columns(_name("name", "operation", "slot"))
    # Nearly always the same name: then the columns share their memory.
    frame = frame.with_columns(
        pl.col("name").alias(f"{side}_name")
        if of_pairs[f"{side}_record"] == of_pairs["operation"]
        and columns[f"{side}_slot"] == columns["slot"]
        else _name(f"{side}_name", f"{side}_record", f"{side}_slot")
        for side in ("target", "reference")
    )
    # Those without any value are made when all batches are there.
    filled = [
        name for name in schema if name in frame.columns and frame[name].null_count() < frame.height
    ]
    return frame.select(pl.col(name).cast(schema[name]) for name in filled)


def _name(name: str, record: str, slot: str) -> pl.Expr:
    """Return the column of values' names; see `msprobe.compare.model.row_name`."""
    import polars as pl

    # Where a side lacks the value, the slot is null, and so is the name.
    whole = pl.concat_str(record, slot, separator=".")
    return pl.when(pl.col(slot) == "").then(record).otherwise(whole).alias(name)


def _pairs_of(rows: Sequence[Row]) -> tuple[list[OperationPair], list[int]]:
    """Return the operations of consecutive rows, and for each row the place of its own."""
    pairs: list[OperationPair] = []
    places: list[int] = []
    last: OperationPair | None = None
    for row in rows:
        if row.pair is not last:
            last = row.pair
            pairs.append(last)
        places.append(len(pairs) - 1)
    return pairs, places


def _operation_columns(
    pairs: Sequence[OperationPair], comparison: RankComparison
) -> dict[str, Sequence[Any]]:
    """Return the columns about operations rather than values, and which are backward."""
    sides = [comparison.side_of(pair) for pair in pairs]
    names = [pair.name for pair in pairs]
    of_both = list(zip(sides, names, strict=True))
    parsed = [side.parsed(name) for side, name in of_both]
    return {
        "order": [pair.position for pair in pairs],
        "operation": names,
        "target_record": [pair.target for pair in pairs],
        "reference_record": [pair.reference for pair in pairs],
        "module": [side.module(name) for side, name in of_both],
        "api": [each.class_name or each.path for each in parsed],
        "match": [_WORDS[pair.match] for pair in pairs],
        "confidence": [pair.confidence for pair in pairs],
        "source": [side.source_line(name) for side, name in of_both],
        "backward": [each.kind is RecordKind.BACKWARD for each in parsed],
    }


def _row_columns(rows: Sequence[Row], backward: Sequence[bool]) -> dict[str, Sequence[Any]]:
    values = [row.value for row in rows]
    return {
        "kind": [
            _KIND_OF_ROLE.get(value.role) or ("backward" if back else "forward")
            for value, back in zip(values, backward, strict=True)
        ],
        "role": [_WORDS[value.role] for value in values],
        "slot": [value.slot for value in values],
        "status": [_WORDS[row.status] for row in rows],
        "origin": [_WORDS[row.origin] for row in rows],
        "error": _numbers([row.error for row in rows]),
        "cause": [_WORDS[row.cause] for row in rows],
        "reason": [row.finding if row.cause is None else row.reason for row in rows],
    }


def _side_columns(side: str, values: Sequence[Value | None]) -> dict[str, Sequence[Any]]:
    # Rows without a partner are few; an empty value spares every column a test for None.
    found = [value or _NO_VALUE for value in values]
    fields = dict(zip(_FIELDS, zip(*map(_fields_of, found), strict=True), strict=True))
    counts: dict[str, Sequence[Any]] = {}
    if any(each is not _NO_VALUE.unusual for each in fields["unusual"]):
        counts = {
            f"{side}_nan": [value.nan_count for value in found],
            f"{side}_inf": [value.inf_count for value in found],
        }
    return {
        f"{side}_slot": [None if value is None else value.slot for value in values],
        f"{side}_dtype": [
            dtype or kind or None
            for dtype, kind in zip(fields["dtype"], fields["type"], strict=True)
        ],
        f"{side}_shape": [
            None if shape is None else _shape_text(shape) for shape in fields["shape"]
        ],
        f"{side}_value": [
            None if value.is_tensor or value is _NO_VALUE else _value_text(value.value)
            for value in found
        ],
        f"{side}_requires_grad": fields["requires_grad"],
        **{f"{side}_{name}": _numbers(fields[name]) for name in ("max", "min", "mean", "norm")},
        **counts,
        f"{side}_md5": fields["md5"],
        f"{side}_file": fields["data_name"],
    }


_FIELDS: Final = (
    *("dtype", "type", "shape", "requires_grad", "max", "min", "mean", "norm"),
    *("unusual", "md5", "data_name"),
)
_fields_of: Final = attrgetter(*_FIELDS)
_NO_VALUE: Final = Value((), "", Role.INPUT, is_tensor=False, type="")

_METRIC_COLUMNS: Final[dict[str, Callable[[ElementMetrics], Any]]] = {
    "mismatches": lambda found: found.mismatches,
    "unequal": lambda found: found.unequal,
    "count": lambda found: found.count,
    "max_abs_err": lambda found: _number(found.max_abs_err),
    "max_abs_target": lambda found: _number(found.max_abs_target),
    "max_abs_reference": lambda found: _number(found.max_abs_reference),
    "max_rel_err": lambda found: _number(found.max_rel_err),
    "max_rel_target": lambda found: _number(found.max_rel_target),
    "max_rel_reference": lambda found: _number(found.max_rel_reference),
    "mean_abs_err": lambda found: _number(found.mean_abs_err),
    "p999_abs_err": lambda found: _number(found.p999_abs_err),
    "rmse": lambda found: _number(found.rmse),
    "relative_l2": lambda found: _number(found.relative_l2),
    "cosine": lambda found: _number(found.cosine),
    "max_ulp": lambda found: _int64(found.max_ulp),
    "sign_flips": lambda found: found.sign_flips,
    "ratio_1e3": lambda found: _number(found.ratio_1e3),
    "ratio_5e3": lambda found: _number(found.ratio_5e3),
}
_INDEX_COLUMNS: Final[dict[str, Callable[[ElementMetrics], int | None]]] = {
    "max_abs_index": lambda found: found.max_abs_index,
    "max_rel_index": lambda found: found.max_rel_index,
    "first_nonfinite": lambda found: found.first_nonfinite_mismatch,
}


_COUNT_COLUMNS: Final[dict[str, Callable[[ElementMetrics], int]]] = {
    "target_nan": lambda found: found.target_nan,
    "target_inf": lambda found: found.target_pos_inf + found.target_neg_inf,
    "reference_nan": lambda found: found.reference_nan,
    "reference_inf": lambda found: found.reference_pos_inf + found.reference_neg_inf,
}


def _metric_columns(
    rows: Sequence[Row], said: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """Return the columns of element metrics; where none were read, counts are those of the dump."""
    metrics = [row.metrics for row in rows]
    columns: dict[str, Sequence[Any]] = {
        name: [None if found is None else pick(found) for found in metrics]
        for name, pick in _METRIC_COLUMNS.items()
    }
    for name, count in _COUNT_COLUMNS.items():
        columns[name] = [
            known if found is None else count(found)
            for known, found in zip(said.get(name) or [None] * len(rows), metrics, strict=True)
        ]
    shapes = [row.value.shape for row in rows]
    for name, pick in _INDEX_COLUMNS.items():
        columns[name] = [
            None if found is None else _index_text(pick(found), shape)
            for found, shape in zip(metrics, shapes, strict=True)
        ]
    return columns


def _numbers(values: Sequence[Statistic]) -> Sequence[float | None]:
    """Return numbers as a column holds them; nearly always unchanged."""
    if {*map(type, values)} <= {float, type(None)}:
        return values
    return [_number(value) for value in values]


def _number(value: Statistic | complex) -> float | None:
    """Return a number as a column holds it; of a complex one its modulus."""
    if type(value) is float or value is None:
        return value
    try:
        return abs(value) if isinstance(value, complex) else float(value)
    except OverflowError:
        return math.inf


# Made once: `json.dumps` makes an encoder at each call.
_json_text: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode


def _int64(value: int | None) -> int | None:
    return None if value is None else min(value, (1 << 63) - 1)


@cache
def _shape_text(shape: tuple[int, ...]) -> str:
    return str(list(shape))


def _index_text(position: int | None, shape: tuple[int, ...] | None) -> str | None:
    """Return the index of the element at a flat position of a tensor, ``[0, 3]``."""
    if position is None or shape is None:
        return None
    place: list[int] = []
    for size in reversed(shape):
        position, coordinate = divmod(position, max(size, 1))
        place.append(coordinate)
    return str(place[::-1])


def _value_text(value: JsonTree) -> str:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        text = repr(value)
    else:
        text = value if isinstance(value, str) else _json_text(value)
    return text if len(text) <= _MAX_VALUE_TEXT else text[:_MAX_VALUE_TEXT] + "…"
