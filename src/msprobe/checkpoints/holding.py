# SPDX-License-Identifier: Apache-2.0
"""Contents of checkpoint formats: weights alone, or also the rest that a training saves.

An entry that only one side has is a difference where the other side's format could hold it. Where
it could not, the entry was not compared.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from typing import Final

from msprobe.checkpoints.parameters import AnyEntry, Checkpoint, Format, Parameter, Value, renamed


class Role(StrEnum):
    """Kind of entry of a checkpoint."""

    WEIGHTS = "weights"
    OPTIMIZER = "states of optimizers"
    SCHEDULE = "schedules"
    SCALER = "loss scales"
    RANDOM = "random states"
    ARGUMENTS = "arguments"
    PROGRESS = "counts of steps"
    OTHER = "other values"


_WITHOUT: Final = {
    Format.ZERO: {Role.RANDOM, Role.ARGUMENTS, Role.OTHER},
    Format.MEGATRON: {Role.SCALER, Role.OTHER},
}
_EVERYTHING: Final = frozenset(Role)
HOLDS: Final = {
    **dict.fromkeys(Format, frozenset((Role.WEIGHTS,))),
    **dict.fromkeys((Format.TORCH, Format.DISTRIBUTED), _EVERYTHING),
    **{kind: _EVERYTHING - roles for kind, roles in _WITHOUT.items()},
}
"""The roles that a format holds. A folder of files holds what any of its formats does."""

_NAMES: Final = {
    Role.OPTIMIZER: r"(base_)?optim(izers?)?(_states?)?(_\d+)?",
    Role.SCHEDULE: r"((opt_param|lr)_)?sched(ulers?)?(_states?)?(_\d+)?",
    Role.SCALER: r"((grad|loss|amp)_)?scaler(_states?)?",
    Role.RANDOM: r"([a-z]+_)?(rng|random)(_(tracker|states?))*(_\d+)?",
    Role.ARGUMENTS: r"(\w+_)?(args|arguments|config|hparams|hyper_parameters)",
    Role.PROGRESS: r"(\w+_)?(epochs?|iterations?|steps?|samples|tokens)(_num)?",
    Role.OTHER: r"callbacks|loops|metrics|best_\w+",
}  # fmt: skip
_ROLES: Final = {role: re.compile(names) for role, names in _NAMES.items()}
# MindSpore's optimizers name their states so, and PyTorch's do not.
_STATE: Final = re.compile(r"(moments?[12]?|adam_[mv]|accum)\..+|beta[12]_power")
_ALIGNED: Final = (Role.OPTIMIZER, Role.SCHEDULE, Role.SCALER, Role.RANDOM, Role.ARGUMENTS)
_PYTHON: Final = frozenset((Format.TORCH, Format.STATE_DICT))


def named_role(name: str) -> Role | None:
    """Return the role that a file or an outermost key has by its name; None for any other."""
    return next((role for role, names in _ROLES.items() if names.fullmatch(name.lower())), None)


def role_of(entry: Parameter | Value) -> Role:
    """Return the role of an entry by its outermost key."""
    first = str(entry.path[0]) if entry.path else ""
    role = named_role(first)
    if isinstance(entry, Value):
        return role or Role.OTHER
    if len(entry.path) > 1 or entry.shape in ((), (1,)) or entry.dtype == "uint8":
        return role or Role.WEIGHTS
    return Role.OPTIMIZER if _STATE.fullmatch(first) else Role.WEIGHTS


def roles_without(checkpoint: Checkpoint, other: Checkpoint) -> frozenset[Role]:
    """Return what the format of a checkpoint does not hold, compared with that of the other."""
    formats = checkpoint.formats
    # A file of tensors alone could have held more, as another file of its kind does.
    if not formats or formats == other.formats or other.formats <= _PYTHON >= formats:
        return frozenset()
    return _EVERYTHING.difference(*(HOLDS[each] for each in formats))


def aligned(reference: Checkpoint, target: Checkpoint) -> Checkpoint:
    """Return a reference of another format whose roles have the target's outermost keys."""
    if reference.formats == target.formats:
        return reference
    target_keys, reference_keys = _keys_by_role(target), _keys_by_role(reference)
    names = {
        reference_keys[role]: target_keys[role]
        for role in _ALIGNED
        if target_keys.get(role) and reference_keys.get(role)
    }
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return reference
    items = [_with_key(item, names) for item in reference.parameters.values()]
    parameters = {item.name: item for item in items}
    values = {x.name: x for x in (_with_key(item, names) for item in reference.values.values())}
    if (len(parameters), len(values)) != (len(reference.parameters), len(reference.values)):
        return reference  # names would collide
    renames = (f"{old!r} is compared with {new!r}" for old, new in names.items())
    notes = (*reference.notes, *renames)
    return replace(reference, parameters=parameters, values=values, notes=notes)


def _keys_by_role(checkpoint: Checkpoint) -> dict[Role, str]:
    """Return the outermost key of each role that has one alone, of entries that are below it."""
    paths = [item.path for item in checkpoint.parameters.values()]
    paths += [item.path for item in checkpoint.values.values()]
    keys = {path[0] for path in paths if len(path) > 1 and isinstance(path[0], str)}
    found: dict[Role, str] = {}
    for key in sorted(keys):
        role = named_role(key)
        if role is not None:
            found[role] = "" if role in found else key
    return found


def _with_key(item: AnyEntry, names: dict[str, str]) -> AnyEntry:
    new = names.get(item.path[0]) if len(item.path) > 1 else None
    return item if new is None else renamed(item, (new, *item.path[1:]))
