# SPDX-License-Identifier: Apache-2.0
"""Rows in which at least one value is no tensor: numbers, texts, types, devices, None."""

from __future__ import annotations

import math
import re
from typing import Final

from msprobe.compare.model import Matched, Status
from msprobe.compare.verdicts.limits import are_same_limit
from msprobe.dump.records import JsonTree
from msprobe.dump.values import UNREADABLE, Value
from msprobe.numerics.number_types import Kind, kind_of

# Numbers that a script computes in Python or takes from tensors carry float32 rounding at worst.
_NUMBER_RTOL: Final = 1e-6
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_SHOWN: Final = 60

# The place of a run is no property of its numbers.
_PLACE_TYPES: Final = ("torch.device", "torch.Generator", "torch.memory_format", "torch.Stream")


def judge_arguments(row: Matched) -> None:
    """Fill in status, error and finding of a row whose values are not both tensors."""
    target, reference = row.target, row.reference
    row.error = None
    unreadable = [value for value in row.values if value.type == UNREADABLE]
    if unreadable:
        row.status, row.problem = Status.UNREAD, str(unreadable[0].value)
        return
    if row.holds_tensor:
        _judge_mixed(row)
        return
    target_value, reference_value = target.value, reference.value
    if target_value == reference_value or (_is_nan(target_value) and _is_nan(reference_value)):
        row.status = Status.EQUAL
    elif target_value is None or reference_value is None:
        row.status = Status.DIFFERS
        row.finding = f"{_shown(target_value)} instead of {_shown(reference_value)}"
    elif _is_number(target_value) and _is_number(reference_value):
        _judge_numbers(row, target_value, reference_value)
    elif target.type in _PLACE_TYPES and reference.type in _PLACE_TYPES:
        row.status = Status.CLOSE
        row.finding = f"{_shown(target_value)} against {_shown(reference_value)}"
    elif _text(target_value) == _text(reference_value):
        row.status = Status.EQUAL
    elif _are_float_types(target, reference):
        row.status = Status.CLOSE
        row.finding = f"{_shown(target_value)} against {_shown(reference_value)}"
    else:
        row.status = Status.DIFFERS
        row.finding = f"{_shown(target_value)} instead of {_shown(reference_value)}"


def _judge_mixed(row: Matched) -> None:
    target, reference = row.target, row.reference
    tensor, other = (target, reference) if target.is_tensor else (reference, target)
    if other.value is None:
        row.status = Status.ADDED if target.is_tensor else Status.MISSING
        row.finding = (
            "a tensor where the reference has None"
            if target.is_tensor
            else "None where the reference has a tensor"
        ) + (f" ({other.remark})" if other.remark else "")
        return
    number = tensor.max
    if _is_number(other.value) and number is not None and math.prod(tensor.shape or ()) == 1:
        numbers = (number, other.value) if target.is_tensor else (other.value, number)
        _judge_numbers(row, *numbers)
        if not row.finding:
            row.finding = "a tensor on one side, a number on the other"
        return
    row.status = Status.DIFFERS
    row.finding = f"{target.type} instead of {reference.type}"


def _judge_numbers(row: Matched, target: float, reference: float) -> None:
    if target == reference:
        row.status, row.error = Status.EQUAL, 0.0
        return
    if are_same_limit(target, reference):
        row.status, row.error = Status.CLOSE, None
        row.finding = f"{_shown(target)} against {_shown(reference)}, both the limit of a type"
        return
    is_float = float in (type(target), type(reference))
    scale = abs(reference) or abs(target)
    finite = math.isfinite(target) and math.isfinite(reference)
    row.error = abs(target - reference) / scale if finite and scale else None
    if is_float and row.error is not None and row.error <= _NUMBER_RTOL:
        row.status = Status.CLOSE
    else:
        row.status = Status.DIFFERS
        row.finding = f"{_shown(target)} instead of {_shown(reference)}"


def _are_float_types(target: Value, reference: Value) -> bool:
    """Return whether both are types of floating point: another precision, not another meaning."""
    return all(
        isinstance(value.value, str)
        and value.type.endswith(("dtype", "Type", "str"))
        and kind_of(value.value.rpartition(".")[2].lower()) is Kind.FLOAT
        for value in (target, reference)
    )


def _is_number(value: JsonTree) -> bool:
    return isinstance(value, (int, float))


def _is_nan(value: JsonTree) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _text(value: JsonTree) -> str:
    """Return a value as text without addresses, which change from process to process."""
    return _ADDRESS.sub("0x", value if isinstance(value, str) else repr(value))


def _shown(value: JsonTree) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
