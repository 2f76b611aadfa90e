# SPDX-License-Identifier: Apache-2.0
"""The things that live while a call is being observed: drafts of records and their owners."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from msprobe.dump.layout import safe_file_name
from msprobe.dump.records import JsonTree, TensorRecord
from msprobe.dump.writer import RankDump, TensorPayload

if TYPE_CHECKING:
    from msprobe.capture.stacks import Stack
    from msprobe.capture.statistics import Summary


class LateText(Protocol):
    """JSON in which the summaries of some values are still missing."""

    def fill(self) -> tuple[msgspec.Raw, bool]:
        """Return it with the summaries, which have come, and whether one shows NaN or +Inf."""


class Draft(msgspec.Struct, eq=False):
    """A record in the making.

    Attributes:
        name: record name.
        order: place among the records of the step.
        suffix: of the names of its tensor files.
        files: where the values of its tensors are saved; None when they are not.
        stem: the beginning of the names of its tensor files, where that is not the record name.
        parts: a dict of parts; for a value that the user saved, its description.
        nonfinite: whether a float in it is NaN or infinite (decides how it is encoded).
        overflow: whether a tensor in it holds NaN or an infinity.
        is_bad: whether a tensor in it holds NaN or +Inf; -Inf may be a mask.
        error: text of an error while a tensor of it was described, None without one.
        waiting: summaries that the device has not delivered yet, with the records to fill.
        late: the encoded parts among `parts` that wait for such summaries.
        held: copies of tensors put aside until it is known whether they are saved (overflow
            check), with record and path; None when nothing waits for such a decision.
        parent: the record around its call, where a check is to name it.
        stack: where it was called, under the same condition.
    """

    name: str
    order: int
    suffix: str = ".pt"
    files: RankDump | None = None
    stem: str | None = None
    parts: JsonTree = msgspec.field(default_factory=dict)
    nonfinite: bool = False
    overflow: bool = False
    is_bad: bool = False
    error: BaseException | None = None
    waiting: list[Any] | None = None
    late: dict[str, LateText] | None = None
    held: list[tuple[TensorPayload, TensorRecord, str]] | None = None
    parent: str | None = None
    stack: Stack | None = None

    def file_name(self, path: str, suffix: str | None = None) -> str:
        """Return the file name of the tensor at `path`, such as ``input.0``."""
        wanted = f"{self.stem or self.name}.{path}{suffix or self.suffix}"
        return safe_file_name(wanted) if self.files is None else self.files.tensor_file_name(wanted)

    def save(self, payload: TensorPayload, record: TensorRecord, path: str) -> str:
        """Hand the value of the tensor at `path` to the writer; its record names the file."""
        name = record.data_name = self.file_name(path)
        if self.files is not None:
            self.files.put_tensor(name, payload)
        return name

    def wait_for(self, part: str, text: LateText) -> None:
        """Let a part of the record wait for its text."""
        self.parts[part] = None  # in its place among the others
        self.late = {**(self.late or {}), part: text}
        self.waiting = self.waiting or []

    def add_details(self, record: TensorRecord, summary: Summary) -> None:
        """Note projections, NaN and infinities of a finished summary."""
        if summary.projections is not None:
            record.projections = summary.projections
        found = summary.nonfinite
        if found is not None:
            self.nonfinite = self.overflow = True
            self.is_bad = self.is_bad or bool(found.nan_count or found.pos_inf_count)
            record.nan_count = found.nan_count
            record.pos_inf_count = found.pos_inf_count
            record.neg_inf_count = found.neg_inf_count
            record.finite_max = found.finite_max
            record.finite_min = found.finite_min
        elif summary.norm == math.inf or _is_nonfinite(summary.max) or _is_nonfinite(summary.min):
            self.nonfinite = True  # finite elements whose norm is beyond float64, or not counted
        if summary.note is not None:
            record.note = summary.note


def _is_nonfinite(number: object) -> bool:
    return isinstance(number, float) and not math.isfinite(number)


class Call(msgspec.Struct, gc=False, eq=False):
    """One observed call of a module or an API.

    Hooks on the autograd graph keep it, so there are many: a struct that Python's collector does
    not have to walk.

    Attributes:
        draft: the forward record in the making, which the recording keeps here.
        forward_name: name of the forward record.
        backward_name: name of the backward record.
        parent: the record that encloses it, or None.
        backward_parent: the backward record that encloses its backward, or None.
        call_order: place among the calls of the step.
        stack: index of its call stack; None when stacks are not wanted.
        keeps_forward: whether anything of its forward is kept.
        keeps_inputs: whether its inputs are recorded.
        keeps_outputs: whether its outputs are recorded.
        only_bounds: whether its backward is followed for the scope alone, and not recorded.
        keeps_gradients: whether its backward is recorded.
        expands: for modules under `list` at mix: (forward, backward) of everything inside is kept.
        is_checkpointed: whether a backward pass may recompute it.
        is_recompute: whether it repeats an earlier call inside a backward pass.
        step: the step it belongs to; gradients that arrive later are dropped.
    """

    forward_name: str
    backward_name: str
    is_module: bool
    call_order: int
    parent: str | None
    backward_parent: str | None
    stack: int | None
    step: int
    draft: Draft | None = None
    keeps_forward: bool = False
    keeps_inputs: bool = False
    keeps_outputs: bool = False
    only_bounds: bool = False
    keeps_gradients: bool = False
    expands: tuple[bool, bool] = (False, False)
    is_checkpointed: bool = False
    is_recompute: bool = False
