# SPDX-License-Identifier: Apache-2.0
"""From two dumps to a judged comparison, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msprobe.compare.matching import pair_operations
from msprobe.compare.model import Mode, Row
from msprobe.compare.options import CompareOptions
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.result import CompareResult
from msprobe.compare.run import run_comparison
from msprobe.compare.sides import Side
from msprobe.compare.tensors.tensor_rows import element_tolerance
from msprobe.compare.value_pairs import pair_values
from msprobe.compare.verdicts.origin import find_origins
from msprobe.compare.verdicts.status import judge_rows
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.dump.values import Value
from msprobe.numerics.elementwise import compare_arrays
from msprobe.numerics.tolerances import Tolerances


def judged(target: Path, reference: Path) -> RankComparison:
    """Compare two rank folders."""
    return judged_views(open_dump(target).step().rank(), open_dump(reference).step().rank())


def judged_views(target: RankView, reference: RankView) -> RankComparison:
    """Compare two ranks."""
    sides = Side(target, source="target"), Side(reference, source="reference")
    pairs = pair_operations(*sides, CompareOptions())
    comparison = RankComparison(
        step=target.step or 0,
        rank=target.name if target.rank is None else target.rank,
        target=sides[0],
        reference=sides[1],
        mode=sides[0].mode,
        pairs=pairs,
        rows=[row for pair in pairs for row in pair_values(*sides, pair)],
    )
    tolerances = Tolerances.load(None)
    if comparison.mode is Mode.TENSOR:
        for row in comparison.rows:
            measure(row, comparison, tolerances)
    judge_rows(comparison, tolerances)
    find_origins(comparison)
    return comparison


def measure(row: Row, comparison: RankComparison, tolerances: Tolerances) -> None:
    """Measure the elements of a row whose files are there and fit."""
    values = row.target, row.reference
    if None in values or not all(value.data_name for value in values):
        return
    if squeezed(values[0]) != squeezed(values[1]):
        return
    views = comparison.target.view, comparison.reference.view
    tensors = [view.tensor(value.data_name) for view, value in zip(views, values, strict=True)]
    flat = [replace(tensor, array=tensor.array.reshape(-1)) for tensor in tensors]
    row.metrics = compare_arrays(*flat, element_tolerance(row, tolerances))


def squeezed(value: Value) -> list[int]:
    return [size for size in value.shape or () if size != 1]


@dataclass(frozen=True)
class Verdicts:
    """What a comparison found.

    Attributes:
        result: the result itself.
        rows: row name → its columns; of several steps and ranks the first one.
    """

    result: CompareResult
    rows: Mapping[str, Mapping[str, Any]]

    @property
    def summary(self) -> Mapping[str, Any]:
        """What summary.json would hold."""
        return self.result.summary

    def status(self, row: str) -> str:
        """Status of a row."""
        return str(self.rows[row]["status"])

    def origin(self, row: str) -> str | None:
        """Origin of a row."""
        found: str | None = self.rows[row]["origin"]
        return found

    def reason(self, row: str) -> str:
        """Why, in words."""
        return str(self.rows[row]["reason"])

    @property
    def culprits(self) -> list[str]:
        """The operations that introduced a difference, best first."""
        return [entry["name"] for entry in self.summary["introduced"]]


def compare(target: Path, reference: Path, **options: Any) -> Verdicts:
    """Compare two dumps; no call is computed again, which takes a process."""
    chosen = CompareOptions(**{"verify": False, **options})
    result = run_comparison(target, reference, chosen)
    rows: dict[str, Mapping[str, Any]] = {}
    for row in result.frame.iter_rows(named=True):
        rows.setdefault(row["name"], row)
    return Verdicts(result, rows)
