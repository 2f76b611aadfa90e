# SPDX-License-Identifier: Apache-2.0
"""Single ``.npy`` and ``.pt`` files, where a command takes them in place of a dump."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.text import Text

    from msprobe.compare.model import Matched
    from msprobe.dump.tensor_files import StoredTensor
    from msprobe.dump.values import Value

_SUFFIXES: Final = (".npy", ".pt")
_SHOWN_VALUES: Final = 8
_FACTS: Final = ("data_name", "dtype", "shape", "max", "min", "mean", "norm", "nan_count",
                 "pos_inf_count", "neg_inf_count")  # fmt: skip
_METRICS: Final = ("count", "mismatches", "unequal", "max_abs_err", "max_rel_err", "mean_abs_err",
                   "rmse", "euclidean", "cosine", "max_ulp", "sign_flips")  # fmt: skip


def is_array_file(path: str | Path) -> bool:
    """Return whether a path names a single array."""
    return Path(path).suffix in _SUFFIXES and not Path(path).is_dir()


def read_array(path: Path) -> StoredTensor:
    """Return the array in a file.

    Raises:
        RecordNotFoundError: there is no such file.
        DumpFormatError: the file is damaged.
        UnsupportedError: it holds something else than one plain tensor.
    """
    from msprobe.dump.open_file import OpenFile
    from msprobe.dump.tensor_files import read_open_tensor

    with OpenFile(path) as file:
        return read_open_tensor(file)


def array_value(path: Path, array: StoredTensor) -> Value:
    """Return type, shape and statistics of an array, in the form of a dump's value."""
    from msprobe.capture.array_statistics import summarise_array
    from msprobe.dump.values import Role, Value

    summary = summarise_array(array.values())
    value = Value(
        path=(),
        slot="",
        role=Role.SAVED,
        is_tensor=True,
        type="numpy.ndarray",
        dtype=array.dtype,
        raw_dtype=array.dtype,
        shape=array.array.shape,
        max=summary.max,
        min=summary.min,
        mean=summary.mean,
        norm=summary.norm,
        data_name=path.name,
    )
    if summary.nonfinite is not None:
        value.add_unusual(
            nan_count=summary.nonfinite.nan_count,
            pos_inf_count=summary.nonfinite.pos_inf_count,
            neg_inf_count=summary.nonfinite.neg_inf_count,
        )
    return value


def array_lines(path: Path, array: StoredTensor, width: int) -> Iterator[Text]:
    """Yield an array's type and shape, its statistics and its first elements."""
    from rich.text import Text

    from msprobe.plain_text import count_text, plain, size_text
    from msprobe.report.fact_lines import fact_lines
    from msprobe.report.value_text import nonfinite_text, number_text, value_text

    value = array_value(path, array)
    yield Text(plain(str(path)), "bold")
    size = f"{count_text(array.array.size, 'element')}, {size_text(array.array.nbytes)}"
    yield from fact_lines("type", f"{value_text(value)}, {size}", width)
    numbers = {"max": value.max, "min": value.min, "mean": value.mean, "norm": value.norm}
    said = [f"{name} {number_text(number)}" for name, number in numbers.items()]
    yield from fact_lines("statistics", "  ".join(said), width)
    if nonfinite := nonfinite_text(value):
        yield from fact_lines("not finite", nonfinite, width, "bold red")
    if array.array.size:
        first = array.values().reshape(-1)[:_SHOWN_VALUES].tolist()
        more = " …" if array.array.size > _SHOWN_VALUES else ""
        yield from fact_lines("elements", ", ".join(map(_element, first)) + more, width)


def show_array(path: Path, *, as_json: bool) -> None:
    """Print the contents of an array file."""
    from msprobe.cli.terminal import make_console, print_json, print_lines

    array = read_array(path)
    if as_json:
        value = array_value(path, array)
        print_json({name: getattr(value, name) for name in _FACTS})
        return
    console = make_console()
    print_lines(console, array_lines(path, array, console.width))


def show_compared(row: Matched, *, as_json: bool, quiet: bool) -> None:
    """Print the result of `compare_array_files`."""
    from msprobe.cli.terminal import make_console, print_json, print_lines

    if as_json:
        print_json(compared_json(row))
        return
    console = make_console()
    lines = list(compared_lines(row, console.width))
    print_lines(console, lines[:1] if quiet else lines)


def compare_array_files(target: Path, reference: Path, tolerances: Path | None = None) -> Matched:
    """Compare every element of two arrays; return the judged row.

    Args:
        target: the file under test.
        reference: the trusted file.
        tolerances: a file of other tolerances, as `msprobe compare` takes it.

    Raises:
        RecordNotFoundError: there is no such file.
        DumpFormatError: a file is damaged.
        UnsupportedError: a file holds something else than one plain tensor.
    """
    from msprobe.compare.model import Match, Matched, OperationPair
    from msprobe.compare.tensors.tensor_pairs import TensorJob, measure_pair
    from msprobe.compare.tensors.tensor_rows import element_tolerance
    from msprobe.compare.verdicts.status import judge_row
    from msprobe.errors import UnsupportedError
    from msprobe.numerics.tolerances import Tolerances

    allowed = Tolerances.load(tolerances)
    pair = OperationPair(
        position=0, target=target.name, reference=reference.name, match=Match.MAPPED
    )
    values = [array_value(path, read_array(path)) for path in (target, reference)]
    row = Matched(pair=pair, target=values[0], reference=values[1])
    if values[0].has_shape_of(values[1]):
        outcome = measure_pair(TensorJob(0, target, reference, element_tolerance(row, allowed)))
        if outcome.metrics is None:
            raise UnsupportedError(outcome.problem)
        row.metrics = outcome.metrics
    judge_row(row, allowed)
    return row


def compared_lines(row: Matched, width: int) -> Iterator[Text]:
    """Yield whether two arrays agree, and how far they are apart."""
    from rich.text import Text

    from msprobe.plain_text import plain
    from msprobe.report.comparison_words import STATUS_MEANINGS, STATUS_STYLES
    from msprobe.report.fact_lines import fact_lines
    from msprobe.report.value_text import (
        number_text,
        value_text,
    )

    style = STATUS_STYLES[row.status]
    yield Text(f"{row.status.upper()}  {STATUS_MEANINGS[row.status]}", style)
    for label, value in (("target", row.target), ("reference", row.reference)):
        yield from fact_lines(label, f"{plain(value.data_name or '')}  {value_text(value)}", width)
    if row.reason:
        yield from fact_lines("why", row.reason, width)
    metrics = row.metrics
    if metrics is None or metrics.is_equal:
        return
    said = {
        "largest error": metrics.max_abs_err,
        "relative": metrics.max_rel_err,
        "L2 relative": row.error,
        "cosine": metrics.cosine,
    }
    shown = [f"{name} {number_text(number)}" for name, number in said.items() if number is not None]
    yield from fact_lines("errors", "  ".join(shown), width)
    if metrics.max_abs_index is not None:
        at = f"element {metrics.max_abs_index}: {metrics.max_abs_target}"
        yield from fact_lines("largest", f"{at}, reference {metrics.max_abs_reference}", width)


def compared_json(row: Matched) -> dict[str, Any]:
    """Return the facts of `compared_lines`, for programs."""
    metrics = {} if row.metrics is None else {name: getattr(row.metrics, name) for name in _METRICS}
    return {
        "equal": not row.status.is_difference,
        "status": row.status,
        "error": row.error,
        "reason": row.reason,
        "metrics": metrics,
    }


def _element(number: Any) -> str:
    return f"{number:.6g}" if isinstance(number, (float, complex)) else str(number)
