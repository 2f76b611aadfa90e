# SPDX-License-Identifier: Apache-2.0
"""Operations and modules of a comparison, gathered from its table, worst first.

The table has one row per pair of values. The views speak of operations (records) and modules, so
rows are gathered here, with polars, for any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msprobe.report.comparison_words import DIFFERENCES, ORIGINS, SEVERITY, TELLING

if TYPE_CHECKING:
    import polars as pl

OPERATION: Final = ("step", "rank", "order")
"""The columns that identify an operation."""

_RESULTS: Final = ("output", "parameter_grad", "saved")
_OF_WORST: Final = (
    *("operation", "module", "kind", "slot", "status", "origin", "error", "reason"),
    *("match", "confidence", "source"),
)


def operations(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row per operation, in the order of the table.

    Columns: ``step, rank, order``; ``rows`` and ``differ`` count values; ``error_in`` and
    ``error_out`` are the largest errors of inputs and outputs; ``introduced`` counts values;
    ``severity`` and ``telling`` are the places of the worst status and origin in `SEVERITY` and
    `ORIGINS`. The columns of the verdict, the pairing and the place are those of the operation's
    worst value.
    """
    import polars as pl

    results = pl.col("role").is_in(_RESULTS)
    gathered = frame.group_by(OPERATION, maintain_order=True).agg(
        pl.len().alias("rows"),
        pl.col("status").is_in(DIFFERENCES).sum().alias("differ"),
        (pl.col("origin") == "introduced").sum().alias("introduced"),
        pl.col("error").filter(~results).max().alias("error_in"),
        pl.col("error").filter(results).max().alias("error_out"),
    )
    verdicts = frame.select(*OPERATION, *_OF_WORST)  # a sort moves every column that there is
    worst = ranked(verdicts).unique(OPERATION, keep="first", maintain_order=True)
    return gathered.join(worst, on=OPERATION, how="left", maintain_order="left", nulls_equal=True)


def ranked(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows from the most to the least severe, with ``severity`` and ``telling``.

    By origin, then status, then error, then order of execution. Where no number could be had, the
    error counts as largest among differences, as none elsewhere.
    """
    import polars as pl

    weighed = frame.with_columns(
        severity=_place("status", SEVERITY), telling=_place("origin", ORIGINS)
    )
    unknown = pl.when(pl.col("status").is_in(DIFFERENCES)).then(float("inf")).otherwise(0.0)
    weight = pl.col("error").fill_nan(float("inf")).fill_null(unknown)
    keys = [pl.col("telling"), pl.col("severity"), -weight, *(pl.col(key) for key in OPERATION)]
    return weighed.sort(keys, maintain_order=True)


def culprits_first(operations: pl.DataFrame, summary: Mapping[str, Any]) -> pl.DataFrame:
    """Return operations with those on top that `summary` lists as introduced, in its order."""
    import polars as pl

    places = {
        (each["step"], str(each["rank"]), each["order"]): place
        for place, each in reversed(list(enumerate(summary["introduced"])))
    }
    keys = zip(*(operations[key].to_list() for key in OPERATION), strict=True)
    found = pl.Series("culprit_", [places.get(key) for key in keys], dtype=pl.Int64)
    ordered = operations.with_columns(found).sort(found.name, nulls_last=True, maintain_order=True)
    return ordered.drop(found.name)


def _place(column: str, words: tuple[str, ...]) -> pl.Expr:
    """Return the index of a column's word in `words`; the length of `words` for other words."""
    import polars as pl

    places = {word: place for place, word in enumerate(words)}
    return pl.col(column).replace_strict(places, default=len(words), return_dtype=pl.Int8)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts and the worst status of a number of values.

    Attributes:
        rows: values.
        differ: values with a difference.
        introduced: values whose difference begins here.
        telling: values with a difference that did not just come in with the inputs.
        severity: place of the worst status in `SEVERITY`, one behind its end if there is none.
        error: largest error, None if there is none.
    """

    rows: int = 0
    differ: int = 0
    introduced: int = 0
    telling: int = 0
    severity: int = len(SEVERITY)
    error: float | None = None

    @property
    def status(self) -> str:
        """The worst status; empty if there is none."""
        return SEVERITY[self.severity] if self.severity < len(SEVERITY) else ""

    def add(self, other: Tally) -> None:
        """Take in the values of another tally."""
        self.rows += other.rows
        self.differ += other.differ
        self.introduced += other.introduced
        self.telling += other.telling
        self.severity = min(self.severity, other.severity)
        errors = [error for error in (self.error, other.error) if error is not None]
        self.error = max(errors, default=None)


@dataclass(slots=True, kw_only=True)
class ModuleNode:
    """A module, or a part of a dotted path that several modules share.

    Attributes:
        path: dotted path; empty for calls outside all modules.
        label: its last part, or several where nothing branches off between.
        own: values of the module itself.
        total: these and all below.
        children: in order of execution.
    """

    path: str
    label: str
    own: Tally = field(default_factory=Tally)
    total: Tally = field(default_factory=Tally)
    children: list[ModuleNode] = field(default_factory=list)

    def walk(self) -> Iterator[ModuleNode]:
        """Yield this module and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children[::-1]


def module_tree(frame: pl.DataFrame | pl.LazyFrame) -> ModuleNode:
    """Return the modules of all steps and ranks as one tree; its root has calls outside modules."""
    import polars as pl

    differs = pl.col("status").is_in(DIFFERENCES)
    # Before the grouping: an expression inside it runs once for each group.
    weighed = frame.lazy().select(
        "module",
        "order",
        "error",
        severity=_place("status", SEVERITY),
        differ=differs,
        introduced=pl.col("origin") == "introduced",
        telling=differs & pl.col("origin").is_in(TELLING),
    )
    modules = weighed.group_by("module", maintain_order=True).agg(
        pl.col("order").min().alias("first"),
        pl.len().alias("rows"),
        pl.col("differ", "introduced", "telling").sum(),
        pl.col("severity").min(),
        pl.col("error").max(),
    )
    nodes = {"": ModuleNode(path="", label="")}
    for row in modules.sort("first", maintain_order=True).collect().iter_rows(named=True):
        node = _node(nodes, row.pop("module") or "")
        del row["first"]
        node.own = Tally(**row)
    _sum_up(nodes[""])
    return nodes[""]


def _node(nodes: dict[str, ModuleNode], path: str) -> ModuleNode:
    """Return the node of a path; makes it and those above it where they are missing."""
    missing = []
    while path not in nodes:
        missing.append(path)
        path = path.rpartition(".")[0]
    for each in reversed(missing):
        nodes[each] = ModuleNode(path=each, label=each.rpartition(".")[2])
        nodes[path].children.append(nodes[each])
        path = each
    return nodes[path]


def _sum_up(root: ModuleNode) -> None:
    for node in reversed(list(root.walk())):
        node.total.add(node.own)
        for child in node.children:
            node.total.add(child.total)
        node.children = [_without_links(child) for child in node.children]


def _without_links(node: ModuleNode) -> ModuleNode:
    """Return the node; a mere path part is joined with its only child."""
    if node.own.rows or len(node.children) != 1:
        return node
    child = node.children[0]
    child.label = f"{node.label}.{child.label}"
    return child
