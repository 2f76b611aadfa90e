# SPDX-License-Identifier: Apache-2.0
"""What the page of a comparison holds: plain data for strict JSON, most interesting first.

Tables are kept by column, and texts once in a list that columns point into: pages stay small and
open fast. The script of the page (``page/model.js``) is the only reader; both change together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.record_names import parse_record_name
from msprobe.dump.records import JsonTree
from msprobe.json_text import strict
from msprobe.report.comparison_facts import (
    OPERATION,
    ModuleNode,
    culprits_first,
    module_tree,
    operations,
    ranked,
)
from msprobe.report.comparison_words import (
    DIFFERENCES,
    MODE_MEANINGS,
    ORIGIN_MEANINGS,
    ORIGINS,
    SEVERITY,
    STATUS_MEANINGS,
    STATUSES,
    TELLING,
    operation_label,
)
from msprobe.report.value_text import plain

if TYPE_CHECKING:
    import polars as pl

_OPERATION_TEXTS: Final = ("rank", "operation", "module", "match", "source")
_OPERATION_NUMBERS: Final = ("step", "order", "confidence", "error_in", "error_out", "rows")
_VALUE_TEXTS: Final = (
    *("kind", "role", "slot", "status", "origin", "reason", "target_name", "reference_name"),
    *("target_dtype", "reference_dtype", "target_shape", "reference_shape"),
    *("target_value", "reference_value", "first_nonfinite", "max_abs_index", "max_rel_index"),
    *("target_md5", "reference_md5", "target_file", "reference_file"),
)
_VALUE_NUMBERS: Final = (
    *("error", "target_requires_grad", "reference_requires_grad"),
    *("target_max", "target_min", "target_mean", "target_norm", "target_nan", "target_inf"),
    *("reference_max", "reference_min", "reference_mean", "reference_norm"),
    *("reference_nan", "reference_inf", "mismatches", "unequal", "count", "max_abs_err"),
    *("max_abs_target", "max_abs_reference", "max_rel_err", "max_rel_target"),
    *("max_rel_reference", "mean_abs_err", "p999_abs_err", "rmse", "relative_l2", "cosine"),
    *("max_ulp", "sign_flips", "ratio_1e3", "ratio_5e3"),
)
# Enough to tell any two float32 numbers apart.
_DIGITS: Final = 9
# Around so many of the best culprits, so many operations to either side are taken in.
_MAX_CENTRES: Final = 10
_NEIGHBOURS: Final = 30
_HISTOGRAM_FROM: Final = -12
_HISTOGRAM_TO: Final = 4
_BINS_PER_DECADE: Final = 2
_PROFILE_BINS: Final = 600


def page_data(summary: Mapping[str, Any], frame: pl.DataFrame, *, limit: int) -> dict[str, Any]:
    """Return everything that the page shows.

    Args:
        summary: content of ``summary.json``.
        frame: the table.
        limit: rows to take in; operations are taken in whole, the most telling ones first. Counts,
            the tree of modules and the plots are of all rows.
    """
    import polars as pl

    every = operations(frame).with_row_index("place")
    order = _by_interest(every, summary)
    taken = order.head(_fitting(every["rows"].gather(order), limit))
    interest = pl.Series("interest", range(len(order)), dtype=pl.Int64).gather(order.arg_sort())
    shown = every.with_columns(interest)[taken.sort()]
    rows = frame.join(shown, on=OPERATION, how="semi", maintain_order="left", nulls_equal=True)
    texts = _Texts()
    names = shown["operation"].to_list()
    data = {
        "summary": _safe(strict(dict(summary))),
        "words": _words(),
        "shown": {
            "rows": rows.height,
            "of_rows": frame.height,
            "operations": shown.height,
            "of_operations": every.height,
        },
        "operations": {
            **_columns(shown, _OPERATION_TEXTS, texts),
            "label": [texts.place(_label(name)) for name in names],
            "direction": [texts.place(operation_label(name).tail.strip()) for name in names],
            **_columns(shown, (*_OPERATION_NUMBERS, "interest"), None),
        },
        "values": {
            **_columns(_without_repeats(rows), _VALUE_TEXTS, texts),
            **_columns(rows, _VALUE_NUMBERS, None),
        },
        "modules": _modules(module_tree(frame)),
        "histogram": _histogram(frame),
        "spans": _spans(every),
        "profile": _profile(every) if shown.height < every.height else [],
    }
    return {**data, "texts": texts.all}


def _by_interest(every: pl.DataFrame, summary: Mapping[str, Any]) -> pl.Series:
    """Return the places of the operations, those that somebody looking for a fault needs first.

    Where differences begin; what cannot be measured or has no partner; what ran around the first
    ones, in order; everything that inherited, worst first; the rest.
    """
    import polars as pl

    differs, telling = pl.col("differ") > 0, pl.col("origin").is_in(TELLING)
    alone = differs & (pl.col("origin").is_null() | (pl.col("status") != "differs"))
    tier = (
        pl.when(telling)
        .then(0)
        .when(alone)
        .then(1)
        .when(_is_near(summary))
        .then(2)
        .when(differs)
        .then(3)
        .otherwise(4)
    )
    placed = culprits_first(ranked(every), summary).with_row_index("rank_").with_columns(tier=tier)
    within = pl.when(pl.col("tier") == 2).then(pl.col("place")).otherwise(pl.col("rank_"))
    return placed.sort("tier", within)["place"]


def _is_near(summary: Mapping[str, Any]) -> pl.Expr:
    """Return whether an operation ran shortly before or after one where differences begin."""
    import polars as pl

    first = summary["first_difference"]
    centres = [*([first] if first else []), *summary["introduced"][:_MAX_CENTRES]]
    near = [
        (pl.col("step") == each["step"])
        & (pl.col("rank") == str(each["rank"]))
        & pl.col("order").is_between(each["order"] - _NEIGHBOURS, each["order"] + _NEIGHBOURS)
        for each in centres
    ]
    return pl.any_horizontal(near) if near else pl.lit(value=False)


class _Texts:
    """Texts, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str | None) -> int | None:
        if text is None:
            return None
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return [plain(text) for text in self._places]


def _fitting(sizes: pl.Series, limit: int) -> int:
    """Return how many operations fit; the first always does."""
    return max(int((sizes.cum_sum() <= limit).sum()), 1) if len(sizes) else 0


def _words() -> dict[str, JsonTree]:
    return {
        "statuses": {word: STATUS_MEANINGS[word] for word in STATUSES},
        "severity": list(SEVERITY),
        "differences": list(DIFFERENCES),
        "origins": {word: ORIGIN_MEANINGS[word] for word in ORIGINS},
        "modes": dict(MODE_MEANINGS),
    }


def _label(record_name: str) -> str:
    """Return what to call an operation where its module stands below."""
    name = parse_record_name(record_name)
    label = operation_label(record_name)
    part = name.path.rpartition(".")[2]
    owner = f"{part} " if name.is_module and part else ""
    return owner + (label.short if name.is_module else label.text)


def _without_repeats(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out names that are the row's own, and of files what the names say."""
    import polars as pl

    sides = ("target", "reference")
    names = [
        pl.when(pl.col(f"{side}_name") != pl.col("name"))
        .then(pl.col(f"{side}_name"))
        .alias(f"{side}_name")
        for side in sides
    ]
    files = [pl.col(f"{side}_file").str.strip_prefix(pl.col("name")) for side in sides]
    return rows.with_columns(*names, *files)


def _columns(
    table: pl.DataFrame, names: tuple[str, ...], texts: _Texts | None
) -> dict[str, list[Any]]:
    """Return the columns that hold anything, texts as places in `texts`.

    A column that holds the same everywhere holds it once.
    """
    import polars as pl

    columns: dict[str, list[Any]] = {}
    for name in names:
        column = table[name]
        if column.null_count() == len(column):
            continue
        if column.n_unique() == 1:
            column = column.head(1)
        if texts is not None:
            columns[name] = [texts.place(text) for text in column.to_list()]
        elif column.dtype == pl.Float64:
            columns[name] = _numbers(column)
        else:
            columns[name] = column.to_list()
    return columns


def _numbers(column: pl.Series) -> list[Any]:
    rounded = column.round_sig_figs(_DIGITS).to_list()
    if column.is_finite().all():
        return rounded
    return [strict(number) for number in rounded]


def _modules(root: ModuleNode) -> list[list[Any]]:
    """Return the modules, parents first: path, label, parent's place, and the tally of each."""
    places: dict[int, int] = {}
    parents = {id(child): node for node in root.walk() for child in node.children}
    table: list[list[Any]] = []
    for node in root.walk():
        places[id(node)] = len(table)
        parent = parents.get(id(node))
        total = node.total
        table.append(
            [
                plain(node.path),
                plain(node.label),
                None if parent is None else places[id(parent)],
                total.rows,
                total.differ,
                total.introduced,
                total.severity,
                strict(total.error),
            ]
        )
    return table


def _histogram(frame: pl.DataFrame) -> dict[str, Any]:
    """Return how many values have which error, by decade and origin; of all rows."""
    import polars as pl

    last = (_HISTOGRAM_TO - _HISTOGRAM_FROM) * _BINS_PER_DECADE - 1
    place = (pl.col("error").log10() - _HISTOGRAM_FROM) * _BINS_PER_DECADE
    differs = pl.col("status").is_in(DIFFERENCES)
    counted = (
        frame.lazy()
        .select(
            place=pl.when((pl.col("error") > 0) & pl.col("error").is_finite())
            .then(place.floor().clip(0, last))
            .cast(pl.Int64),
            group=pl.when(differs)
            .then(pl.col("origin").fill_null("other"))
            .otherwise(pl.lit("agrees")),
        )
        .drop_nulls("place")
        .group_by("group", "place")
        .len()
        .collect()
    )
    counts: dict[str, list[int]] = {}
    for group, bin_place, count in counted.sort("group", "place").iter_rows():
        counts.setdefault(group, [0] * (last + 1))[bin_place] = count
    return {"from": _HISTOGRAM_FROM, "per_decade": _BINS_PER_DECADE, "counts": counts}


def _spans(every: pl.DataFrame) -> list[list[Any]]:
    """Return step, rank and last order of each comparison, in the order of the table."""
    import polars as pl

    spans = every.group_by("step", "rank", maintain_order=True).agg(pl.col("order").max())
    return [[step, plain(str(rank)), last] for step, rank, last in spans.iter_rows()]


def _profile(every: pl.DataFrame) -> list[list[Any]]:
    """Return [step, rank, order, largest error] of all operations, in a few bins a comparison."""
    import polars as pl

    spans = max(every.select(pl.struct("step", "rank").n_unique()).item(), 1)
    last = every.select(pl.col("order").max()).item() or 0
    width = max(math.ceil(last * spans / _PROFILE_BINS), 1)
    bins = (
        every.lazy()
        .select(
            "step",
            "rank",
            bin=pl.col("order") // width,
            error=pl.max_horizontal("error_in", "error_out"),
        )
        .filter(pl.col("error").is_finite())
        .group_by("step", "rank", "bin", maintain_order=True)
        .agg(pl.col("error").max())
        .collect()
    )
    return [[step, plain(str(rank)), place * width, e] for step, rank, place, e in bins.iter_rows()]


def _safe(tree: JsonTree) -> JsonTree:
    """Return the tree with texts that can be shown as they are."""
    if isinstance(tree, str):
        return plain(tree)
    if isinstance(tree, dict):
        return {plain(str(key)): _safe(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_safe(value) for value in tree]
    return tree
