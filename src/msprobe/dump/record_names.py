# SPDX-License-Identifier: Apache-2.0
"""Names of records: call, direction, repetition.

    Functional.linear.0.forward                  API call 0 of F.linear
    Module.blk.0.Linear.forward.2                third forward call of module ``blk.0``
    Cell.fc.Dense.parameters_grad                gradients of a module's own parameters
    loss.0.debug, loss_grad.0.debug              values handed to ``save()``

A number counts the calls of one API or one module within a step, from 0. A backward record has the
number of its forward. A second backward pass over the same call (a retained graph, a double
backward) is a record of its own, ``….backward.pass1``; a gradient of parameters that arrives later
in a step is ``….parameters_grad.1``.

Module paths may hold dots, digits and the words ``forward`` or ``backward``, so names are read from
the right. A name of no known form is kept as `RecordKind.OTHER`; nothing is ever refused.
"""

from __future__ import annotations

import re
from enum import StrEnum
from sys import intern
from typing import Final

import msgspec

from msprobe.api_prefixes import API_PREFIXES


class RecordKind(StrEnum):
    """Kind of record."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"
    PARAMETERS_GRAD_REDUCED = "parameters_grad_reduced"
    DEBUG = "debug"
    OTHER = "other"


MODULE_PREFIXES: Final = ("Module", "Cell")
PARAMETER_GRADIENTS: Final = (RecordKind.PARAMETERS_GRAD, RecordKind.PARAMETERS_GRAD_REDUCED)
"""Kinds of records that hold gradients of parameters."""
_RECOMPUTE: Final = "recompute"
_PASS: Final = re.compile(r"pass(\d{1,18})")
_DIRECTIONS: Final = (RecordKind.FORWARD, RecordKind.BACKWARD)


# Not a dataclass: a msgspec struct is made five times as fast, and every name makes one.
class RecordName(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A parsed record name.

    Attributes:
        full: the name itself, the key in ``dump.json``.
        kind: forward, backward, parameter gradients …
        prefix: ``Functional``, ``Tensor``, ``Module``, ``Cell`` …; empty for debug and other names.
        path: the module's path (empty for a root model), the API, or the name given to ``save()``.
        class_name: the module's class; None for everything else.
        index: number of the call within the step, from 0; None where the name carries none.
        recompute: whether the call repeats an earlier one for activation checkpointing.
        backward_pass: which backward pass over the same call (``….backward.pass1``), from 0.
    """

    full: str
    kind: RecordKind
    prefix: str = ""
    path: str = ""
    class_name: str | None = None
    index: int | None = None
    recompute: bool = False
    backward_pass: int = 0

    @property
    def is_module(self) -> bool:
        """Whether a module (or cell) made the record, rather than an API or ``save()``."""
        return self.class_name is not None

    @property
    def base(self) -> str:
        """The name without direction and number: the same for all calls of one module or API."""
        parts = (self.prefix, self.path, self.class_name or "")
        return ".".join(part for part in parts if part)


def parse_record_name(name: str, *, level: str | None = None) -> RecordName:
    """Return the parts of a record's name.

    Args:
        name: the key of a record.
        level: level of the dump; at ``debug`` the oldest names end with their number alone.
    """
    parts = name.split(".")
    recompute = parts[-1] == _RECOMPUTE
    later_pass = _PASS.fullmatch(parts[-1])
    if recompute or later_pass:
        parts = parts[:-1]
    parsed = (
        _debug_name(name, parts, level)
        or _parameters_name(name, parts)
        or _module_name(name, parts)
        or _api_name(name, parts)
        or RecordName(full=name, kind=RecordKind.OTHER, path=name)
    )
    if recompute and parsed.kind in _DIRECTIONS:
        return msgspec.structs.replace(parsed, recompute=True)
    if later_pass and parsed.kind in _DIRECTIONS:
        return msgspec.structs.replace(parsed, backward_pass=int(later_pass[1]))
    return parsed


def forward_name(name: RecordName) -> str | None:
    """Return the name of the forward record that belongs to a backward record; None for others."""
    return _turned(name, RecordKind.FORWARD) if name.kind is RecordKind.BACKWARD else None


def backward_name(name: RecordName, backward_pass: int = 0) -> str | None:
    """Return the name of the backward record that belongs to a forward record; None for others.

    Args:
        name: of the forward record.
        backward_pass: which backward pass over the call, from 0.
    """
    found = _turned(name, RecordKind.BACKWARD) if name.kind is RecordKind.FORWARD else None
    return found and later_pass(found, backward_pass)


def api_names(base: str, number: int) -> tuple[str, str]:
    """Return the forward and the backward name of an API call; `base` is ``Functional.relu``."""
    return f"{base}.{number}.forward", f"{base}.{number}.backward"


def call_name(record: str) -> str:
    """Return ``Functional.linear.0`` for the record ``Functional.linear.0.forward``."""
    return record.removesuffix(".forward")


def forward_record(call: str) -> str:
    """Return the record whose `call_name` this is."""
    return f"{call}.forward"


def module_names(base: str, number: int) -> tuple[str, str]:
    """Return the forward and the backward name of a module call; `base` is ``Module.fc.Linear``."""
    return f"{base}.forward.{number}", f"{base}.backward.{number}"


def base_of(name: str) -> str:
    """Return what `api_names` or `module_names` made a name of."""
    return name.rsplit(".", 2)[0]


def later_pass(backward_name: str, number: int) -> str:
    """Return the record name of the `number`-th backward pass over one call (0 is the first)."""
    return f"{backward_name}.pass{number}" if number else backward_name


def parameters_grad_name(
    module_base: str, arrival: int, kind: str = RecordKind.PARAMETERS_GRAD
) -> str:
    """Return the name for the `arrival`-th gradient that a module's parameters got in a step."""
    return f"{module_base}.{kind}.{arrival}" if arrival else f"{module_base}.{kind}"


def recompute_name(name: str) -> str:
    """Return the name of the record of the recomputation of a forward call."""
    return f"{name}.{_RECOMPUTE}"


def repeated_name(name: RecordName) -> str | None:
    """Return the name of the forward record that a recomputation repeats; None for others.

    A recomputation may make calls that its first run did not make: there is no such record then.
    """
    return name.full.removesuffix(f".{_RECOMPUTE}") if name.recompute else None


def _turned(name: RecordName, direction: RecordKind) -> str | None:
    """Return the name of the record of the same call in a direction."""
    if name.index is None:
        return None
    head, _, last = name.full.rpartition(".")
    if last != name.kind and not last.isdigit():  # a recomputation, or a later backward pass
        head, _, last = head.rpartition(".")
    if last == name.kind:
        return f"{head}.{direction}"
    return f"{head.removesuffix(name.kind)}{direction}.{last}"


def _number(text: str) -> int | None:
    # 18 digits: a call number that fits in 64 bits; anything longer is part of a user's name.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _debug_name(name: str, parts: list[str], level: str | None) -> RecordName | None:
    if len(parts) >= 3 and parts[-1] == "debug" and _number(parts[-2]) is not None:
        path, index = parts[:-2], _number(parts[-2])
    elif level == "debug" and len(parts) >= 2 and _number(parts[-1]) is not None:
        path, index = parts[:-1], _number(parts[-1])
    else:
        return None
    return RecordName(full=name, kind=RecordKind.DEBUG, path=".".join(path), index=index)


def _parameters_name(name: str, parts: list[str]) -> RecordName | None:
    index = None
    if len(parts) > 1 and parts[-2] in PARAMETER_GRADIENTS:
        index = _number(parts[-1])
        if index is None:
            return None
        parts = parts[:-1]
    if len(parts) < 3 or parts[-1] not in PARAMETER_GRADIENTS:
        return None
    return RecordName(
        full=name,
        kind=RecordKind(parts[-1]),
        prefix=intern(parts[0]),
        path=intern(".".join(parts[1:-2])),
        class_name=intern(parts[-2]),
        index=index,
    )


def _module_name(name: str, parts: list[str]) -> RecordName | None:
    if len(parts) < 4 or parts[0] not in MODULE_PREFIXES:
        return None
    if parts[-2] in _DIRECTIONS and _number(parts[-1]) is not None:
        direction, index = parts[-2], _number(parts[-1])
    elif parts[-1] in _DIRECTIONS and _number(parts[-2]) is not None:
        direction, index = parts[-1], _number(parts[-2])  # oldest dumps: number first
    else:
        return None
    return RecordName(
        full=name,
        kind=RecordKind(direction),
        prefix=intern(parts[0]),
        path=intern(".".join(parts[1:-3])),
        class_name=intern(parts[-3]),
        index=index,
    )


def _api_name(name: str, parts: list[str]) -> RecordName | None:
    if len(parts) < 4 or parts[-1] not in _DIRECTIONS or _number(parts[-2]) is None:
        return None
    # A registered API's prefix is a module name, dots and all; the known prefixes have none.
    split = 1 if parts[0] in API_PREFIXES else len(parts) - 3
    return RecordName(
        full=name,
        kind=RecordKind(parts[-1]),
        prefix=intern(".".join(parts[:split])),
        path=intern(".".join(parts[split:-2])),
        index=_number(parts[-2]),
    )
