# SPDX-License-Identifier: Apache-2.0
"""Compiled modules against eager ones: rows, budget and report, whatever compiled them.

A compiled result fails when its own error is beyond what its type and its measured condition allow,
and beyond twice the eager result's. Adapters run the modules: eagerly, compiled, and in float64.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.accuracy_call import own_words
from msprobe.checks.budgets import budget_of, computing_unit, largest_of, smallest_of
from msprobe.checks.judging import Judgement, judge
from msprobe.dump.tensor_files import StoredTensor
from msprobe.operators.operator import Family, Operator
from msprobe.replay.runner import Noise
from msprobe.report.csv_files import write_csv
from msprobe.report.tables import Table

logger = logging.getLogger(__name__)

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
_COLUMNS: Final = (
    *("module_name", "check_type", "tensor_index", "status", "max_abs_diff", "mean_abs_diff"),
    *("max_rel_diff", "shape", "note", "dtype", "verdict", "ratio", "eager_ratio", "graph"),
)
_SEED: Final = 1

Probe = Callable[[Noise], StoredTensor]
"""Returns a result of a run in float64 with random errors."""

Module = TypeVar("Module")


class ResultKey(NamedTuple):
    """One result of a module's call.

    Attributes:
        check_type: ``forward``, ``input_grad`` or ``param_grad``.
        number: its place among those.
        name: of the parameter; empty for others.
    """

    check_type: str
    number: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One output or gradient of a module, compiled against eager.

    Attributes:
        module_name: its path in the model.
        check_type: ``forward``, ``input_grad``, ``param_grad``; ``module`` if nothing could be run.
        tensor_index: number of the tensor among those.
        status: ``PASS``, ``FAIL``, ``SKIP``.
        max_abs_diff: largest difference between compiled and eager.
        mean_abs_diff: the mean of these.
        max_rel_diff: the largest in parts of the eager element.
        shape: of the tensor.
        note: the parameter's name, and why it fails or was left out.
        dtype: of the tensor.
        verdict: of the compiled result by its own error.
        ratio: its error in parts of the allowed one.
        eager_ratio: the eager result's.
        graph: the first wrong graph and its operator.
    """

    module_name: str
    check_type: str
    tensor_index: int = 0
    status: str
    max_abs_diff: float | None = None
    mean_abs_diff: float | None = None
    max_rel_diff: float | None = None
    shape: str = ""
    note: str = ""
    dtype: str = ""
    verdict: str = ""
    ratio: float | None = None
    eager_ratio: float | None = None
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult:
    """Rows of all wrapped modules, in the order in which they ran.

    Attributes:
        rows: one for each output and gradient.
        loss: of the eager run; None if unknown.
    """

    rows: tuple[CheckRow, ...] = ()
    loss: float | None = None

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing fails."""
        return not self.failures and any(row.status == PASS for row in self.rows)

    @property
    def failures(self) -> list[CheckRow]:
        """The rows that fail; the first is that of the first wrong module."""
        return [row for row in self.rows if row.status == FAIL]

    def lines(self) -> Iterator[str]:
        """Yield the answer in plain text."""
        modules = {row.module_name for row in self.rows}
        bad = list(dict.fromkeys(row.module_name for row in self.failures))
        count = f"{len(modules)} compiled module{'' if len(modules) == 1 else 's'}"
        if not self.passed and not bad:
            yield f"none of {count} could be judged"
        elif not bad:
            yield f"{count} compared with eager: no difference beyond rounding"
        else:
            yield f"{len(bad)} of {count} differ from eager; first: {bad[0]}"
        for name in bad:
            first = next(row for row in self.failures if row.module_name == name)
            where = f", {first.graph}" if first.graph else ""
            yield f"  {name} {first.check_type}.{first.tensor_index}: {first.note}{where}"
        for row in self.rows:
            if row.status == SKIP:
                yield f"  {row.module_name}: not judged, {row.note}"

    def report(self, csv_path: str | Path | None) -> None:
        """Log the answer, and write the table.

        Args:
            csv_path: the file; None for none.

        Raises:
            ReportWriteError: it cannot be written.
        """
        logger.info("compile check: %s", "\n".join(self.lines()))
        if csv_path is not None:
            cells = [[getattr(row, column) for column in _COLUMNS] for row in self.rows]
            write_csv(Table.of(_COLUMNS, cells), Path(csv_path))


def modules_below(
    root: Module,
    depth: int,
    children_of: Callable[[Module], Iterable[tuple[str, Module]]],
    never_runs: Callable[[Module], bool],
) -> Iterator[tuple[str, Module]]:
    """Yield the modules `depth` levels below one, with their paths.

    Args:
        root: the module.
        depth: 1 for its children.
        children_of: returns the children of a module by their names.
        never_runs: whether a module only holds others; it is no level.
    """
    for name, child in children_of(root):
        left = depth - (not never_runs(child))
        if left == 0:
            yield name, child
        else:
            for path, one in modules_below(child, left, children_of, never_runs):
                yield f"{name}.{path}", one


def left_out(module_name: str, note: str) -> CheckRow:
    """Return the row of a module that could not be judged, with the reason."""
    return CheckRow(module_name=module_name, check_type="module", status=SKIP, note=note)


def is_fault_of(compiled: Judgement, eager: Judgement) -> bool:
    """Return whether a compiled result is wrong, and the eager one is not as wrong."""
    return compiled.ratio > 1.0 and compiled.ratio > 2.0 * eager.ratio


def judged_pair(
    found: StoredTensor,
    exact: StoredTensor,
    probe: Probe,
    operands: Sequence[Sequence[int]],
    unit: float = 0.0,
) -> Judgement:
    """Return the judgement of a result of several operators against the same in float64.

    Args:
        found: the result.
        exact: the same in float64.
        probe: returns it with random errors in each step.
        operands: shapes of the tensors that it was made of.
        unit: unit roundoff of the coarsest type on the way to it.
    """
    coarsest = max(unit, computing_unit([found.dtype]))
    budget = budget_of(
        Operator(name="", family=Family.COMPOSITE),
        found.dtype,
        unit=coarsest,
        shape=found.array.shape,
        operands=operands,
    )
    known: list[StoredTensor] = []

    def probes(count: int) -> list[StoredTensor]:
        while len(known) < count:
            largest, smallest = largest_of(found.dtype), smallest_of(found.dtype)
            known.append(probe(Noise(coarsest, _SEED + len(known), largest, smallest)))
        return known

    def slack() -> float:
        # Where large numbers cancel inside, the result is as good as those of its size.
        size = np.nan_to_num(np.abs(exact.values()), nan=0.0, posinf=0.0, neginf=0.0)
        return coarsest * float(size.max())

    return judge(found, exact, budget, probes, slack)


def judged_row(
    module_name: str,
    key: ResultKey,
    compiled: StoredTensor,
    eager: StoredTensor,
    own: Judgement,
    other: Judgement,
) -> CheckRow:
    """Return the row of one result.

    Args:
        module_name: path of the module.
        key: which of its results.
        compiled: the compiled one's.
        eager: the eager one's.
        own: judgement of the compiled one's.
        other: judgement of the eager one's.
    """
    is_fault = is_fault_of(own, other)
    words = own_words(own, compiled.dtype) if is_fault else ""
    absolute, mean, relative = _differences(compiled, eager)
    return CheckRow(
        module_name=module_name,
        check_type=key.check_type,
        tensor_index=key.number,
        status=FAIL if is_fault else PASS,
        max_abs_diff=absolute,
        mean_abs_diff=mean,
        max_rel_diff=relative,
        shape=str(list(compiled.array.shape)),
        note=": ".join(filter(None, (key.name, words))),
        dtype=compiled.dtype,
        verdict=own.verdict.value,
        ratio=own.ratio,
        eager_ratio=other.ratio,
    )


def is_identical(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two results have the same type, shape and bits; NaN equals NaN."""
    same = one.dtype == other.dtype and one.array.shape == other.array.shape
    return same and bool(
        np.array_equal(one.array, other.array, equal_nan=one.array.dtype.kind in "fc")
    )


def same_row(module_name: str, key: ResultKey, compiled: StoredTensor) -> CheckRow:
    """Return the row of a compiled result that is the eager one to the last bit."""
    return CheckRow(
        module_name=module_name,
        check_type=key.check_type,
        tensor_index=key.number,
        status=PASS,
        max_abs_diff=0.0,
        mean_abs_diff=0.0,
        max_rel_diff=0.0,
        shape=str(list(compiled.array.shape)),
        note=key.name,
        dtype=compiled.dtype,
        verdict="identical",
    )


def _differences(compiled: StoredTensor, eager: StoredTensor) -> tuple[float, float, float]:
    """Return the largest and the mean difference, and the largest relative one."""
    if compiled.array.shape != eager.array.shape:
        return float("inf"), float("inf"), float("inf")
    if compiled.array.size == 0:
        return 0.0, 0.0, 0.0
    a, b = (_wide(one.values()) for one in (compiled, eager))
    with np.errstate(all="ignore"):
        difference = np.where(a == b, 0.0, np.abs(a - b))
        relative = np.where(difference == 0, 0.0, difference / np.abs(b))
    return float(difference.max()), float(difference.mean()), float(relative.max())


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
