# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a comparison, the most interesting operations first.

Its readers are ``page/data/comparison.js`` and the views; both sides change together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.record_names import parse_record_name
from msprobe.dump.records import JsonTree
from msprobe.json_text import strict
from msprobe.report.comparison_answer import (
    answer_of,
    call_stack,
    counts_text,
    culprit_groups,
    error_text,
    group_label,
    source_text,
)
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
from msprobe.report.page_file import PageTables, write_page

if TYPE_CHECKING:
    import polars as pl

DEFAULT_LIMIT: Final = 10_000
"""Rows in a page unless asked otherwise: some 4 MB, which a browser opens at once."""

# Main views and those at their sides, by the one that the page opens with.
_WITHOUT_GRAPH: Final = ("modules", "list")
_LIST_FIRST: Final = ("modules", "graph_list", "list", "graph", "graph_runs")
_GRAPH_FIRST: Final = ("graph_list", "modules", "graph", "graph_runs", "list")
_OPERATION_TEXTS: Final = ("rank", "operation", "module", "match", "source", "label", "direction")
_OPERATION_NUMBERS: Final = (
    *("step", "order", "confidence", "error_in", "error_out", "rows", "interest"),
)
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
# Around so many of the best culprits, so many operations to either side are taken in.
_MAX_CENTRES: Final = 10
_NEIGHBOURS: Final = 30
_HISTOGRAM_FROM: Final = -12
_HISTOGRAM_TO: Final = 4
_BINS_PER_DECADE: Final = 2
_PROFILE_BINS: Final = 600


def write_comparison_page(path: Path, sections: Mapping[str, Any]) -> Path:
    """Write the page of a comparison, with graphs of both sides where there is a section of them.

    Args:
        path: the file to write; it appears when it is complete.
        sections: what `page_data` returns, and more.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    views = page_views(sections, opens_with_graph=False)
    return write_page(path, title=page_title(sections), sections=sections, views=views)


def page_title(sections: Mapping[str, Any]) -> str:
    """Return the title of the page of a comparison."""
    summary = sections["summary"]
    return f"msprobe: {summary['target']} against {summary['reference']}"


def page_views(sections: Mapping[str, Any], *, opens_with_graph: bool) -> tuple[str, ...]:
    """Return the views of the page of a comparison, in the order of their panes."""
    has_graph = "graph" in sections
    places = _GRAPH_FIRST if opens_with_graph else _LIST_FIRST if has_graph else _WITHOUT_GRAPH
    details = ("facts", *(["graph_node"] if has_graph else []), "operation", "answer")
    return ("verdict", "timeline", *places, *details)


def page_data(summary: Mapping[str, Any], frame: pl.DataFrame, *, limit: int) -> dict[str, Any]:
    """Return everything that the page shows.

    Args:
        summary: content of ``summary.json``.
        frame: the table.
        limit: rows to take in; operations are taken in whole, the most telling ones first. Counts,
            the tree of modules and the plots are of all rows.
    """
    import polars as pl

    # The error of an unread value is that of its statistics, and would read as an equal value.
    frame = frame.with_columns(error=pl.when(pl.col("status") != "unread").then("error"))
    every = operations(frame).with_row_index("place")
    order = _by_interest(every, summary)
    taken = order.head(_fitting(every["rows"].gather(order), limit))
    interest = pl.Series("interest", range(len(order)), dtype=pl.Int64).gather(order.arg_sort())
    shown = every.with_columns(interest)[taken.sort()]
    rows = frame.join(shown, on=OPERATION, how="semi", maintain_order="left", nulls_equal=True)
    tables = PageTables()
    # The longest table first: its texts get the shortest numbers.
    values = tables.columns(_without_repeats(rows), texts=_VALUE_TEXTS, numbers=_VALUE_NUMBERS)
    return {
        "summary": strict({**summary, "introduced": [*map(_culprit, summary["introduced"])]}),
        "answer": _answer(summary),
        "words": _words(),
        "shown": {
            "rows": rows.height,
            "of_rows": frame.height,
            "operations": shown.height,
            "of_operations": every.height,
        },
        "operations": tables.columns(
            _labelled(shown), texts=_OPERATION_TEXTS, numbers=_OPERATION_NUMBERS
        ),
        "values": values,
        "modules": _modules(module_tree(frame)),
        "histogram": _histogram(frame),
        "spans": _spans(every),
        "profile": _profile(every) if shown.height < every.height else [],
        **tables.sections(),
    }


def _culprit(culprit: Mapping[str, Any]) -> dict[str, Any]:
    """Return a culprit of the summary with its source line and frames for the page."""
    frames = [list(frame) for frame in call_stack(culprit)]
    return {**culprit, "place": source_text(culprit), "stack": frames}


def _answer(summary: Mapping[str, Any]) -> dict[str, JsonTree]:
    """Return the answer in words, and the groups of culprits with what a card says of each."""
    answer = answer_of(summary)
    return {
        "outcome": answer.outcome,
        "sentence": answer.sentence,
        "confidence": answer.confidence,
        "evidence": [*answer.evidence],
        "where": answer.where,
        "steps": [*answer.steps],
        "counts": counts_text(summary) if answer.kind else "",
        "groups": [
            {
                **{key: group.first[key] for key in ("step", "order", "kind", "status", "module")},
                "rank": str(group.first["rank"]),
                "count": group.count,
                "label": group_label(group),
                "error": error_text(group.first),
                "source": source_text(group.first),
                "reason": group.reason,
                "places": group.places,
            }
            for group in culprit_groups(summary)
        ],
    }


def _by_interest(every: pl.DataFrame, summary: Mapping[str, Any]) -> pl.Series:
    """Return the places of the operations, the most interesting first.

    Where differences begin; what cannot be measured or has no partner; what ran around the first
    ones, in order; what inherited or could not be read, worst first; the rest.
    """
    import polars as pl

    differs, telling = pl.col("differ") > 0, pl.col("origin").is_in(TELLING)
    alone = differs & (pl.col("status") != "differs")
    tier = (
        pl.when(telling)
        .then(0)
        .when(alone)
        .then(1)
        .when(_is_near(summary))
        .then(2)
        .when(differs | (pl.col("status") == "unread"))
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


def _fitting(sizes: pl.Series, limit: int) -> int:
    """Return how many operations fit into the page, at least one."""
    return max(int((sizes.cum_sum() <= limit).sum()), 1) if len(sizes) else 0


def _words() -> dict[str, JsonTree]:
    return {
        "statuses": {word: STATUS_MEANINGS[word] for word in STATUSES},
        "severity": list(SEVERITY),
        "differences": list(DIFFERENCES),
        "origins": {word: ORIGIN_MEANINGS[word] for word in ORIGINS},
        "modes": dict(MODE_MEANINGS),
    }


def _labelled(operations: pl.DataFrame) -> pl.DataFrame:
    """Return operations with their labels, as used where the module is known, and directions."""
    import polars as pl

    names = operations["operation"].to_list()
    return operations.with_columns(
        pl.Series("label", map(_label, names), dtype=pl.String),
        pl.Series(
            "direction", [operation_label(name).tail.strip() for name in names], dtype=pl.String
        ),
    )


def _label(record_name: str) -> str:
    name = parse_record_name(record_name)
    label = operation_label(record_name)
    part = name.path.rpartition(".")[2]
    owner = f"{part} " if name.is_module and part else ""
    return owner + (label.short if name.is_module else label.text)


def _without_repeats(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out names equal to the row's own, and parts of file names that repeat them."""
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
                node.path,
                node.label,
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
    return [list(span) for span in spans.iter_rows()]


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
    return [[step, rank, place * width, error] for step, rank, place, error in bins.iter_rows()]
