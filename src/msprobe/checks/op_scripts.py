# SPDX-License-Identifier: Apache-2.0
"""Scripts of single calls, written by the adapter of the call's framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from msprobe.checks.budgets import unit_of
from msprobe.checks.verify_call import ResultRow
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import call_name, forward_record
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import MsprobeError, RecordNotFoundError, UnsupportedError
from msprobe.near_misses import did_you_mean
from msprobe.numerics.number_types import Kind, kind_of
from msprobe.replay.recorded_calls import call_names

# Where each framework's `write_op_script` is.
_WRITERS: Final = {
    "pytorch": "msprobe.pytorch.scripts.op_script",
    "mindspore": "msprobe.mindspore.replay.op_script",
}
LINE: Final = 100
"""Longest line of a script, where it is no list of numbers."""


class ScriptError(MsprobeError):
    """A call cannot be written as a script.

    Attributes:
        call: the call's name.
    """

    def __init__(self, call: str, problem: str) -> None:
        self.call = call
        super().__init__(f"{call}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """Content of the script of a call.

    Attributes:
        backward: its gradients instead of its results.
        device: where calls are run again whose results were not recorded.
        inline: tensors of more elements are saved in a file beside the script.
        shrink_s: seconds in which to look for a smaller call with the same fault; None for none.
        seed: makes all inputs from it, recorded ones, too; None takes the recorded ones.
        metrics: whether it prints the metrics of mindstudio-probe as well.
    """

    backward: bool = False
    device: str = "cpu"
    inline: int = 32
    shrink_s: float | None = None
    seed: int | None = None
    metrics: bool = False


@dataclass(frozen=True, slots=True)
class Allowed:
    """Allowed error of each element of one result.

    Attributes:
        relative: in parts of the exact element.
        absolute: beside this.
    """

    relative: float
    absolute: float


def allowed_error(row: ResultRow, found: StoredTensor, reference: StoredTensor) -> Allowed:
    """Return an allowed error that gives the verdict of a judgement.

    Each element may be off by one rounding of its type, and by an absolute error beside it.

    Args:
        row: of the report, with a judgement.
        found: what was judged.
        reference: the exact result.
    """
    judgement = row.judgement
    assert judgement is not None
    if kind_of(found.dtype) not in (Kind.FLOAT, Kind.COMPLEX):
        return Allowed(0.0, 0.0)
    unit = unit_of(row.dtype)
    absolute = judgement.allowed
    if judgement.expected is not None and np.isfinite(judgement.expected):
        absolute = max(absolute - unit * abs(judgement.expected), 0.0)
    if judgement.ratio <= 1:  # what other elements are allowed may be more
        exact = reference.values()
        wide = np.complex128 if exact.dtype.kind == "c" else np.float64
        exact, target = exact.astype(wide), found.values().astype(wide)
        with np.errstate(all="ignore"):
            beyond = np.abs(target - exact) - unit * np.abs(exact)
        beyond = beyond[np.isfinite(beyond)]
        absolute = max(absolute, float(beyond.max(initial=0.0)))
    # Rounded up to a few digits.
    return Allowed(unit, float(f"{absolute * 1.0005:.4g}"))


def dictionary_lines(title: str, entries: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a dictionary, one if they fit or there is one entry."""
    line = f"{title} = {{{', '.join(entries)}}}"
    if len(line) <= LINE or len(entries) == 1:
        yield line
        return
    yield f"{title} = {{"
    yield from (f"    {entry}," for entry in entries)
    yield "}"


def power_text(number: float) -> str:
    """Return a number as source: a power of two, as unit roundoffs are, as such."""
    part, exponent = math.frexp(number)
    return f"2.0**{exponent - 1}" if part == 0.5 else repr(number)


def docstring_text(text: str) -> str:
    """Return a text of the dump that cannot end the docstring of a script."""
    plain = "".join(one if one.isprintable() else "?" for one in text)
    return plain.replace("\\", "/").replace('"', "'")


class ScriptWriter(Protocol):
    """Writes scripts for calls of one framework."""

    def __call__(self, view: RankView, name: str, path: Path, options: ScriptOptions) -> Path:
        """Write the script of one call.

        Raises:
            ScriptError: it cannot be written.
            RecordNotFoundError: there is no such call.
        """
        ...


def script_writer(framework: str) -> ScriptWriter:
    """Return the writer of a framework, which is imported for it.

    Raises:
        UnsupportedError: there is none, or the framework is not installed.
    """
    module = _WRITERS.get(framework)
    if module is None:
        raise UnsupportedError(f"calls of {framework or 'an unknown framework'} make no scripts")
    try:
        writer: ScriptWriter = import_module(module).write_op_script
    except ImportError as exc:
        raise UnsupportedError(f"op_script needs {framework}, which cannot be imported") from exc
    return writer


def write_op_script(view: RankView, call: str, path: Path, options: ScriptOptions) -> Path:
    """Write the script of one call, and return its path.

    Args:
        view: the rank that recorded the call.
        call: its name, with or without ``.forward`` or ``.backward``.
        path: of the script; larger tensors are saved beside it.
        options: what it shows.

    Raises:
        RecordNotFoundError: there is no such call.
        ScriptError: it cannot be written.
        UnsupportedError: calls of this framework make no scripts here.
    """
    return script_writer(view.head.framework)(view, forward_name(view, call), path, options)


def forward_name(view: RankView, call: str) -> str:
    """Return the name of a call's forward record.

    Raises:
        RecordNotFoundError: there is none.
    """
    names = call_names(view)
    for wanted in (call, forward_record(call), forward_record(call.removesuffix(".backward"))):
        if wanted in names:
            return wanted
    raise RecordNotFoundError(
        view.records_path, f"no call {call}{did_you_mean(forward_record(call), names)}"
    )


def script_name(call: str, *, backward: bool) -> str:
    """Return the file name of a call's script."""
    return f"{call_name(call)}.{'backward' if backward else 'forward'}.py"


class FaultyCall(NamedTuple):
    """A call that a script shall show.

    Attributes:
        view: the rank that recorded it.
        name: of its forward record.
        backward: whether a gradient is at fault.
        step: number of the step.
    """

    view: RankView
    name: str
    backward: bool
    step: int


def write_worst_scripts(
    calls: Iterable[FaultyCall], folder: Path, count: int, *, device: str = "cpu"
) -> list[Path]:
    """Write the scripts of the worst calls; those that cannot be written are left out.

    Args:
        calls: the worst first.
        folder: made if missing.
        count: how many scripts at most.
        device: where calls are run again whose results were not recorded.
    """
    written: list[Path] = []
    for view, call, backward, step in calls:
        if len(written) == count:
            break
        name = script_name(call, backward=backward)
        path = folder / f"step{step}.{view.directory.name}.{name}"
        options = ScriptOptions(backward=backward, device=device)
        try:
            written.append(script_writer(view.head.framework)(view, call, path, options))
        except (ScriptError, UnsupportedError):
            continue
    return written
