# SPDX-License-Identifier: Apache-2.0
"""Results damaged in many ways, and how many of them `verify_call` finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.verify_call import CallReport, ResultRow, VerifyOptions, verify_call
from msprobe.dump.rank_view import RankView
from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.number_types import Kind, kind_of
from msprobe.replay.generated import narrow
from msprobe.replay.recorded_calls import call_names, recorded_call
from msprobe.replay.runner import runner_for
from msprobe.replay.tensors import TensorSource

Values = NDArray[np.float64]


class DamagedSource(TensorSource):
    """A source in which one file has other values."""

    file = ""
    change: Callable[[Values], Values | None]

    def read(self, tree: Mapping[str, Any], place: str) -> StoredTensor:
        """Return the elements of a tensor, changed in one file."""
        stored = super().read(tree, place)
        if tree.get("data_name") != self.file:
            return stored
        changed = self.change(stored.values().astype(np.float64))
        assert changed is not None
        return StoredTensor(
            array=narrow(changed, stored.dtype).reshape(stored.array.shape), dtype=stored.dtype
        )


def _element(factor: float, row: ResultRow) -> Callable[[Values], Values | None]:
    """Move the element that decided by a multiple of its allowed error."""
    judgement = row.judgement
    assert judgement is not None

    def change(values: Values) -> Values | None:
        moved = values.copy().reshape(-1)
        if judgement.index is None or not isinstance(judgement.expected, float):
            return None
        allowed = judgement.allowed or max(abs(judgement.expected), 1e-30)
        moved[judgement.index] = judgement.expected + factor * allowed
        return moved

    return change


def _row_of_zeros(values: Values) -> Values | None:
    if values.ndim < 2:
        return None
    changed = values.copy()
    changed[-1] = 0
    return changed


def _transposed(values: Values) -> Values | None:
    return np.swapaxes(values, -1, -2).copy() if values.ndim >= 2 else None


def _one_sign(values: Values) -> Values | None:
    changed = values.copy().reshape(-1)
    place = int(np.argmax(np.abs(np.nan_to_num(changed))))
    changed[place] = -changed[place]
    return changed


def _in_bfloat16(values: Values) -> Values | None:
    bits = narrow(values.reshape(-1), "bfloat16").astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


_GENERIC: Final[Mapping[str, Callable[[Values], Values | None]]] = {
    "one row is zero": _row_of_zeros,
    "transposed": _transposed,
    "one sign": _one_sign,
    "factor 0.5": lambda values: values * 0.5,
    "factor 1.01": lambda values: values * 1.01,
    "stale: moved by one element": lambda values: np.roll(values.reshape(-1), 1),
    "rounded to bfloat16": _in_bfloat16,
}


def detection(view: RankView) -> dict[str, Counter[str]]:
    """Return per kind of damage how many results of a rank were damaged, and how many found.

    A result counts where the damage changes its bits.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    runner, source = runner_for(view.head.framework), DamagedSource(view)
    for name in call_names(view):
        call = recorded_call(view, name)
        source.file = ""
        sound = verify_call(call, runner, source, VerifyOptions())
        files = _files(call)
        for sound_row in _damageable(sound):
            file = files.get((sound_row.record, sound_row.slot))
            if file is None:
                continue
            # The allowed error is known in full only of an element that needs explaining.
            source.file, source.change = file, _element(1e4, sound_row)
            row = _row_like(verify_call(call, runner, source, VerifyOptions()), sound_row)
            kinds = {f"one element, {factor} x allowed": _element(factor, row) for factor in (2, 8)}
            for kind, change in {**kinds, **_GENERIC}.items():
                values = view.tensor(file)
                changed = change(values.values().astype(np.float64))
                if changed is None or _is_same(changed, values):
                    continue
                source.file, source.change = file, change
                report = verify_call(call, runner, source, VerifyOptions())
                found[kind]["damaged"] += 1
                found[kind]["found"] += _has_fault(report, row)
                if not _has_fault(report, row):
                    found[kind][f"missed {row.record} {row.slot}"] += 1
    return found


def _damageable(report: CallReport) -> Iterator[ResultRow]:
    for row in report.rows:
        is_float = kind_of(row.dtype) is Kind.FLOAT
        if is_float and row.judgement is not None and row.judgement.ratio <= 1:
            yield row


def _files(call: Any) -> dict[tuple[str, str], str]:
    from msprobe.replay.forms import tensor_forms

    trees = [(call.name, call.outputs, "output")]
    for one in call.passes:
        trees += [(one.name, one.outgoing, "output")]
        trees += [(one.name, one.outgoing_kwargs, "output_kwargs")]
    return {
        (record, ".".join(map(str, place))): form["data_name"]
        for record, tree, part in trees
        for place, form in tensor_forms(tree, (part,))
        if "data_name" in form
    }


def _is_same(changed: Values, stored: StoredTensor) -> bool:
    narrowed = narrow(changed, stored.dtype).reshape(-1)
    return bool(
        np.array_equal(narrowed, stored.array.reshape(-1), equal_nan=stored.dtype != "bfloat16")
    )


def _row_like(report: CallReport, row: ResultRow) -> ResultRow:
    return next(one for one in report.rows if (one.record, one.slot) == (row.record, row.slot))


def _has_fault(report: CallReport, row: ResultRow) -> bool:
    judgement = _row_like(report, row).judgement
    return judgement is not None and judgement.ratio > 1
