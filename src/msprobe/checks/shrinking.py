# SPDX-License-Identifier: Apache-2.0
"""`shrunk`: a smaller call with the same fault, found by delta debugging.

Parts of dimensions are left out as long as the error stays beyond the allowed one, then values are
made simpler. Dimensions of equal size are cut together: a product of matrices stays one. Where
the fault appears again when the call is run, every smaller call is run as well. Where it does not,
as with a recording of another machine, only such parts are left out that the exact result of the
rest does not depend on; the recorded result is cut with them.

Method: A. Zeller, R. Hildebrandt, Simplifying and isolating failure-inducing input, 2002.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.judging import SUSPICIOUS
from msprobe.checks.verify_call import ResultRow, VerifyOptions, verify_call
from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import StoredTensor
from msprobe.replay.forms import tensor_forms
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import Runner
from msprobe.replay.tensors import ROWS, SIMPLER, SIMPLER_VALUES, TensorSource

# Cut results that agree this well are the same: sums of other parts have other roundings.
_SAME: Final = 1e-9

_Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(slots=True)
class _Judged:
    """How one call was judged: the largest ratio, where it is, and the exact results."""

    ratio: float = 0.0
    shape: tuple[int, ...] = ()
    index: int = 0
    references: dict[str, NDArray[Any]] = field(default_factory=dict)

    def add(self, row: ResultRow, reference: StoredTensor) -> None:
        """Take a judged result."""
        assert row.judgement is not None
        self.references[row.slot] = reference.values()
        if row.judgement.ratio > self.ratio:
            self.ratio, self.shape = row.judgement.ratio, row.shape
            self.index = row.judgement.index or 0

    def depends_on_rest(self, whole: _Judged, size: int, rows: Sequence[int]) -> bool:
        """Return whether leaving out all but some rows of `whole` changed what is left."""
        for slot, expected in whole.references.items():
            found, kept = self.references.get(slot), expected
            for axis in (axis for axis, length in enumerate(expected.shape) if length == size):
                kept = np.take(kept, rows, axis)
            if found is None or found.shape != kept.shape:
                return True
            if not np.allclose(found, kept, rtol=_SAME, atol=_SAME, equal_nan=True):
                return True
        return False


def shrunk(
    call: RecordedCall,
    runner: Runner,
    tensors: TensorSource,
    options: VerifyOptions,
    *,
    record: str,
    seconds: float,
) -> tuple[RecordedCall, VerifyOptions]:
    """Return the smallest call found with an error beyond the allowed one, and how to judge it.

    Args:
        call: it is returned as it is if nothing of it is wrong.
        runner: of its framework.
        tensors: where its tensors come from.
        options: how it is judged.
        record: its forward or backward record, whose results are in question.
        seconds: how long to look.
    """
    search = _Search(call, runner, tensors, options, record, time.monotonic() + seconds)
    search.run()
    return search.best, search.options


class _Search:
    """Looks for smaller calls until a point in time.

    Attributes:
        best: the smallest call so far.
        options: how it is judged: by a new run, where the fault appears again in one.
    """

    def __init__(
        self,
        call: RecordedCall,
        runner: Runner,
        tensors: TensorSource,
        options: VerifyOptions,
        record: str,
        deadline: float,
    ) -> None:
        self.best = call
        self.options = options
        self._runner, self._tensors, self._record = runner, tensors, record
        self._deadline = deadline
        self._judged = self._judge(call)

    def run(self) -> None:
        """Look."""
        if self._judged.ratio <= SUSPICIOUS:
            return
        recorded, self.options = self.options, replace(self.options, rerun=True)
        again = self._judge(self.best)
        if again.ratio > SUSPICIOUS:
            self._judged = again
        else:
            self.options = recorded
        for size in sorted(_sizes(self.best), reverse=True):
            self._cut(size)
        if self.options.rerun:
            self._simplify()

    def _judge(self, call: RecordedCall) -> _Judged:
        found = _Judged()

        def seen(row: ResultRow, _: StoredTensor, reference: StoredTensor) -> None:
            if row.record == self._record:
                found.add(row, reference)

        verify_call(call, self._runner, self._tensors, self.options, seen)
        return found

    def _accept(self, call: RecordedCall, size: int = 0, rows: Sequence[int] = ()) -> bool:
        """Keep a smaller call if it has the fault."""
        if time.monotonic() > self._deadline:
            return False
        found = self._judge(call)
        if not found.ratio > SUSPICIOUS:
            return False
        if not self.options.rerun and found.depends_on_rest(self._judged, size, rows):
            return False
        self.best, self._judged = call, found
        return True

    def _cut(self, size: int) -> None:
        """Leave out parts of the dimensions of a size."""
        # Most faults are in every element, or in one: a single row often has them.
        if self._accept_rows(size, [self._worst_row(size)]):
            return
        chunk = size // 2
        while chunk and time.monotonic() < self._deadline:
            start = 0
            while start < size and size > 1:
                rows = [row for row in range(size) if not start <= row < start + chunk]
                if rows and self._accept_rows(size, rows):
                    size = len(rows)
                else:
                    start += chunk
            chunk //= 2

    def _accept_rows(self, size: int, rows: Sequence[int]) -> bool:
        return self._accept(_with_rows(self.best, size, rows), size, rows)

    def _worst_row(self, size: int) -> int:
        """Return the row of the worst element in the first dimension of a size; 0 if none is."""
        shape = self._judged.shape
        if size not in shape:
            return 0
        return int(np.unravel_index(self._judged.index, shape)[shape.index(size)])

    def _simplify(self) -> None:
        """Give tensors simpler values."""
        for chosen in range(len(_tensors(self.best))):
            for name in SIMPLER_VALUES:
                self._accept(_with_simpler(self.best, _tensors(self.best)[chosen], name))


def _tensors(call: RecordedCall) -> list[Mapping[str, Any]]:
    """Return the forms of the arguments and of the gradients that arrived."""
    trees = [call.args, call.kwargs, *(one.incoming for one in call.passes)]
    return [form for tree in trees for _, form in tensor_forms(tree, ()) if "shape" in form]


def _sizes(call: RecordedCall) -> set[int]:
    """Return the sizes of dimensions that can be cut."""
    return {size for form in _tensors(call) for size in form["shape"] if size > 1}


def _mapped(call: RecordedCall, change: _Change, sizes: tuple[int, int] = (0, 0)) -> RecordedCall:
    """Return the call with other forms of tensors, and another number in lists of sizes."""

    def changed(tree: Any) -> Any:
        if isinstance(tree, (list, tuple)):
            is_sizes = all(isinstance(one, dict) and one.get("type") == "int" for one in tree)
            return [_resized(one, *sizes) if is_sizes else changed(one) for one in tree]
        if not isinstance(tree, dict):
            return tree
        if not isinstance(tree.get("type"), str):
            return {key: changed(one) for key, one in tree.items()}
        if "shape" in tree:
            return change(tree)
        value = tree.get("value")
        if isinstance(value, list) and all(type(one) is int for one in value):
            return {**tree, "value": [sizes[1] if one == sizes[0] else one for one in value]}
        return tree

    return replace(
        call,
        args=changed(call.args),
        kwargs=changed(call.kwargs),
        outputs=changed(call.outputs),
        passes=tuple(
            replace(
                one,
                incoming=changed(one.incoming),
                outgoing=changed(one.outgoing),
                outgoing_kwargs=changed(one.outgoing_kwargs),
            )
            for one in call.passes
        ),
    )


def _with_simpler(call: RecordedCall, wanted: Mapping[str, Any], name: str) -> RecordedCall:
    """Return the call with simpler elements of one tensor, wherever it is passed."""
    number = wanted.get("value_id", object())

    def simpler(form: Mapping[str, Any]) -> Mapping[str, Any]:
        is_it = form is wanted or form.get("value_id") == number
        return {**form, SIMPLER: name} if is_it else form

    return _mapped(call, simpler)


def _resized(form: Mapping[str, Any], size: int, length: int) -> JsonTree:
    return {**form, "value": length if form.get("value") == size else form.get("value")}


def _with_rows(call: RecordedCall, size: int, rows: Sequence[int]) -> RecordedCall:
    """Return the call with all dimensions of a size cut to some of their rows."""

    def cut(form: Mapping[str, Any]) -> Mapping[str, Any]:
        shape = list(form["shape"])
        axes = [axis for axis, length in enumerate(shape) if length == size]
        if not axes:
            return form
        kept = dict(form.get(ROWS) or {})
        for axis in axes:
            before = kept.get(axis, range(size))
            kept[axis] = [before[row] for row in rows]
            shape[axis] = len(rows)
        found = {**form, "shape": shape, ROWS: kept}
        if isinstance(form.get("Norm"), float):  # elements that are made stay as large
            part = math.prod(shape) / math.prod(form["shape"])
            found["Norm"] = form["Norm"] * math.sqrt(part)
        return found

    return _mapped(call, cut, (size, len(rows)))
