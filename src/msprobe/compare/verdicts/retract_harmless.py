# SPDX-License-Identifier: Apache-2.0
"""Retract origins in calls that change no result.

A module may be written in another way: other calls inside, other values between them, and yet the
same result. Such calls are no culprits. Arguments and parameters that differ stay blamed: their
effect may show elsewhere (a momentum, an index to ignore) or later.
"""

from __future__ import annotations

from msprobe.compare.causes import Cause
from msprobe.compare.model import Origin, Row
from msprobe.compare.verdicts.calls import Call, Calls
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role


def retract_inconsequential(calls: Calls) -> None:
    """Clear the origin of calls whose innermost module that both sides have makes the same result.

    Only forward calls are looked at; their backward records are judged by themselves.
    """
    agreeing: dict[str, bool] = {}
    for call in calls:
        if call.parsed.kind is not RecordKind.FORWARD or call.parsed.is_module:
            continue
        blamed = [row for row in call.rows if row.origin is Origin.INTRODUCED]
        if not blamed or any(_stays(row) for row in blamed):
            continue
        module = _enclosing(calls, call)
        if module is None:
            continue
        name = module.pair.name
        if name not in agreeing:
            agreeing[name] = _agrees(module)
        if agreeing[name]:
            for row in call.rows:
                if row.origin is Origin.INTRODUCED:
                    row.origin, row.cause, row.subject = None, Cause.HARMLESS, name


def _stays(row: Row) -> bool:
    """Return whether a row is blamed for an argument that is no tensor."""
    if row.value.role is not Role.INPUT:
        return False
    return not row.holds_tensor


def _enclosing(calls: Calls, call: Call) -> Call | None:
    """Return the innermost module around a call that both sides recorded."""
    names = ((call.pair.target, True), (call.pair.reference, False))
    around = [_module_around(calls, name, side) for name, side in names if name is not None]
    first, last = around[0], around[-1]
    # A call of another module on either side is no inner matter of one of them.
    if first is None or last is None or first.start != last.start:
        return None
    return first


def _module_around(calls: Calls, name: str, is_target: bool) -> Call | None:
    parent = calls.parent_of(name, is_target=is_target)
    while parent is not None:
        found = calls.named(parent, is_target=is_target)
        if found is not None and found.is_matched and found.parsed.is_module:
            return found
        parent = calls.parent_of(parent, is_target=is_target)
    return None


def _agrees(module: Call) -> bool:
    outputs = [row for row in module.rows if row.value.role is Role.OUTPUT]
    return bool(outputs) and not any(row.status.is_difference for row in outputs)
