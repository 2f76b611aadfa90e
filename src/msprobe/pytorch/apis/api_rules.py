# SPDX-License-Identifier: Apache-2.0
"""The default treatment of each function.

`describe_function` answers for a function object: its record name, whether to record the call, and
what the memo of summaries must know about it (what it writes, whether the storage escapes). The
answers come from the data in ``api_table.yaml`` beside this module, and from `msprobe.operators`.

``out=`` and ``inplace=True`` are arguments, not functions: both move version counters, and a
caller that cares about ``out=`` looks for the keyword.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from fnmatch import translate
from functools import cache
from importlib import resources
from typing import Any, Final

import torch
import yaml
from torch import Tag, nn
from torch._ops import OpOverload, OpOverloadPacket

from msprobe.capture.selection import RISKS
from msprobe.config.choices import RiskLevel
from msprobe.operators.lookup import is_in_place, operator_of
from msprobe.operators.operator import InPlace, Operator
from msprobe.pytorch.apis.api_identity import Identity, Prefixes, identify

# Modules that leave torch's fused kernels aside when a function mode is on (in eval, without grad),
# so that merely looking would change their last bits. They must run under
# `torch._C.DisableTorchFunction()`, as one call.
FAST_PATH_MODULES: Final = (
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.MultiheadAttention,
)

_CUTS: Final = ("detach", "detach_", "requires_grad_", "_set_grad_enabled")
_TURNED: Final = tuple(f"{name}.__get__" for name in ("T", "mT", "H", "mH"))
_SHOWN: Final = "data.__get__"
_OUT: Final = frozenset({"out"})


class Action(IntEnum):
    """Treatment of a call.

    Attributes:
        RECORD: record it.
        METADATA: run it and record nothing.
        BACKWARD_ENTRY: it runs a backward pass; keep observing inside.
        FAST_PATH: a fused kernel; record it as one call, without looking inside.
        DESCEND: the user excluded it; record nothing, but keep observing inside.
    """

    RECORD = 0
    METADATA = 1
    BACKWARD_ENTRY = 2
    FAST_PATH = 3
    DESCEND = 4


class WriteEffect(IntEnum):
    """Effect of a call on its tensor arguments.

    Attributes:
        NONE: nothing, unless ``out=`` or ``inplace=True`` says otherwise.
        VERSIONED: it writes, and torch's version counter says so.
        UNVERSIONED: it may write without moving the version counter.
    """

    NONE = 0
    VERSIONED = 1
    UNVERSIONED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEntry:
    """Facts about one function.

    Attributes:
        prefix: first part of its record names (``Functional``, ``Tensor``, ``Torch`` …).
        api: second part (``linear``, ``add_``, ``shape.__get__``).
        action: the treatment of a call.
        writes: its effect on its arguments.
        bans: storages of its arguments and results may from now on change unseen.
        returns_mutated: it returns nothing of use; its changed arguments are its output.
        draws_random: it may take numbers from a random generator.
        chance: position and name of the probability that it draws for; with 0 it draws none.
        in_place: its effect on the memory of its first argument, if it is called in place; None
            where it only changes it.
        allocates: it returns memory with undefined content.
        leaves_unread: it may do without the values of its first argument: it returns a view of it,
            changes it in place, or asks for its shape.
        outs: names of the arguments that it only writes.
        foreign_writes: positions and names of arguments that an operator outside aten may write.
        operator_name: the name as an operator, where operator and method are one function.
        risk: the strictest `risk_level` that still keeps it.
        name: ``prefix.api``, the record name without number and direction.
        is_pure: whether it has no effect on memory, but for an argument `out`.
        is_plain: whether a call is recorded, is pure, and draws no numbers.
        is_unseen: whether a call is run, and nothing else.
        is_outlined: whether a call is recorded, or cuts the graph of gradients.
        is_view: whether it is no call but shows a tensor: `x.data`, and what `is_turned` tells.
        is_turned: whether it shows the transpose: `x.T`, `x.mT`.
        is_setter: whether it sets an attribute; one that is set to None shares no memory.
    """

    prefix: str
    api: str
    action: Action
    writes: WriteEffect = WriteEffect.NONE
    bans: bool = False
    returns_mutated: bool = False
    draws_random: bool = False
    chance: tuple[int, str] | None = None
    in_place: InPlace | None = None
    allocates: bool = False
    leaves_unread: bool = False
    outs: frozenset[str] = _OUT
    foreign_writes: tuple[tuple[int, str], ...] = ()
    operator_name: str | None = None
    risk: RiskLevel = RiskLevel.FOCUS
    name: str = field(init=False)
    is_pure: bool = field(init=False)
    is_plain: bool = field(init=False)
    is_unseen: bool = field(init=False)
    is_outlined: bool = field(init=False)
    is_view: bool = field(init=False)
    is_turned: bool = field(init=False)
    is_setter: bool = field(init=False)

    def __post_init__(self) -> None:
        """Find what follows from the rest."""
        touches = self.writes or self.bans or self.allocates or self.returns_mutated
        object.__setattr__(self, "name", f"{self.prefix}.{self.api}")
        object.__setattr__(self, "is_pure", not touches)
        is_recorded = self.action in (Action.RECORD, Action.FAST_PATH)
        is_special = touches or self.draws_random or self.in_place or self.outs != _OUT
        object.__setattr__(self, "is_plain", is_recorded and not is_special)
        if not is_recorded or touches or self.in_place or self.outs != _OUT:
            object.__setattr__(self, "chance", None)
        is_unseen = self.action is Action.METADATA and not (self.bans or self.allocates)
        object.__setattr__(self, "is_unseen", is_unseen)
        object.__setattr__(self, "is_outlined", is_recorded or self.api in _CUTS)
        is_turned = self.api in _TURNED
        object.__setattr__(self, "is_view", is_turned or self.api == _SHOWN)
        object.__setattr__(self, "is_turned", is_turned)
        is_setter = self.action is Action.METADATA and self.api.endswith(".__set__")
        object.__setattr__(self, "is_setter", is_setter)


_CHANCES: Final = {"Functional.scaled_dot_product_attention": (4, "dropout_p")}


class _Names:
    """A set of ``Prefix.api`` patterns."""

    __slots__ = ("_match",)

    def __init__(self, patterns: Iterable[str]) -> None:
        self._match = re.compile("|".join(map(translate, patterns))).match

    def __contains__(self, name: str) -> bool:
        return self._match(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """``api_table.yaml``, ready for use."""

    prefixes: Prefixes
    groups: Mapping[str, str]
    operators: Mapping[str, str]
    backward_entries: frozenset[str]
    silent_op_namespaces: frozenset[str]
    core_prefixes: frozenset[str]
    fast_path: _Names
    metadata: _Names
    unversioned_writes: _Names
    returns_mutated: _Names
    bans: _Names


@cache
def _rules() -> _Rules:
    text = resources.files(__package__).joinpath("api_table.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return _Rules(
        prefixes=Prefixes(
            modules=data["prefixes"],
            op_namespaces=data["op_prefixes"],
            vf=frozenset(data["vf"]),
            renames=data["renames"],
        ),
        groups=data["groups"],
        operators=data["operators"],
        backward_entries=frozenset(data["backward_entries"]),
        silent_op_namespaces=frozenset(data["silent_op_namespaces"]),
        core_prefixes=frozenset(data["core_prefixes"]),
        fast_path=_Names(data["fast_path"]),
        metadata=_Names(data["metadata"]),
        unversioned_writes=_Names(data["unversioned_writes"]),
        returns_mutated=_Names(data["returns_mutated"]),
        bans=_Names(data["bans"]),
    )


def api_groups() -> Mapping[str, str]:
    """Return the groups of an ``api_list`` file and the prefix of each."""
    return _rules().groups


def op_namespace(func: Any) -> str | None:
    """Return the namespace of an operator of ``torch.ops``, None for any other function."""
    return identify(func, _rules().prefixes).op_namespace


def describe_function(func: Any) -> ApiEntry:
    """Return the default treatment of `func`."""
    rules = _rules()
    identity = identify(func, rules.prefixes)
    name = f"{identity.prefix}.{identity.api}"
    overloads = _overloads(func)
    is_foreign_operator = bool(overloads) and identity.op_namespace != "aten"
    operators = rules.operators if identity.prefix == "Tensor" else {}
    writes = _write_effect(identity, name, overloads, rules)
    operator = operator_of(identity.prefix, identity.api)
    is_core = identity.prefix in rules.core_prefixes
    return ApiEntry(
        prefix=identity.prefix,
        api=identity.api,
        action=_action(identity, name, operator, rules),
        writes=writes,
        # Operators outside aten may keep a tensor, or write into it without telling anybody.
        bans=is_foreign_operator or name in rules.bans,
        returns_mutated=name in rules.returns_mutated or _returns_nothing(overloads),
        draws_random=operator.draws_random or _is_seeded(overloads),
        chance=_CHANCES.get(name),
        in_place=operator.in_place if is_in_place(identity.api) else None,
        allocates=operator.allocates,
        leaves_unread=(
            writes is not WriteEffect.NONE
            or operator.reads_shape_only
            or _may_return_view(identity.api)
        ),
        outs=_outs(overloads) if overloads else _OUT,
        foreign_writes=written_arguments(overloads) if is_foreign_operator else (),
        operator_name=operators.get(identity.api),
        risk=RiskLevel.CORE if is_core else RISKS[operator.importance],
    )


def _action(identity: Identity, name: str, operator: Operator, rules: _Rules) -> Action:
    if identity.path in rules.backward_entries:
        return Action.BACKWARD_ENTRY
    if identity.internal or identity.op_namespace in rules.silent_op_namespaces:
        return Action.METADATA
    if identity.path.startswith("torch.distributed."):  # reported by `hook_collectives`
        return Action.METADATA
    if name in rules.metadata or operator.allocates:
        return Action.METADATA
    return Action.FAST_PATH if name in rules.fast_path else Action.RECORD


def _write_effect(
    identity: Identity, name: str, overloads: list[OpOverload[Any, Any]], rules: _Rules
) -> WriteEffect:
    if name in rules.unversioned_writes:
        return WriteEffect.UNVERSIONED
    mutable = any(op._schema.is_mutable and "out" not in op._overloadname for op in overloads)
    if mutable and identity.op_namespace != "aten":
        return WriteEffect.UNVERSIONED
    if mutable or is_in_place(identity.api):
        return WriteEffect.VERSIONED
    return WriteEffect.NONE


def _overloads(func: Any) -> list[OpOverload[Any, Any]]:
    if isinstance(func, OpOverload):
        return [func]
    if isinstance(func, OpOverloadPacket):
        names = func.overloads()  # type: ignore[no-untyped-call]  # not annotated by torch
        return [getattr(func, name) for name in names]
    return []


def _may_return_view(api: str) -> bool:
    """Return whether the operator of a name returns a view of its first argument, or changes it."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{api}")
    return any(schema.arguments and schema.arguments[0].alias_info for schema in schemas)


def _outs(overloads: Iterable[OpOverload[Any, Any]]) -> frozenset[str]:
    """Return the names of the arguments that operators of aten only write.

    Those of other operators may be read, too: nothing tells.
    """
    return frozenset(
        argument.name
        for op in overloads
        if op.namespace == "aten"
        for argument in op._schema.arguments
        if argument.is_out
    )


def written_arguments(overloads: Iterable[OpOverload[Any, Any]]) -> tuple[tuple[int, str], ...]:
    """Return the positions and names of the arguments that operators may write."""
    return tuple(
        (index, argument.name)
        for op in overloads
        for index, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _returns_nothing(overloads: list[OpOverload[Any, Any]]) -> bool:
    return any(op._schema.is_mutable and not op._schema.returns for op in overloads)


def _is_seeded(overloads: list[OpOverload[Any, Any]]) -> bool:
    return any(Tag.nondeterministic_seeded in op.tags for op in overloads)


def is_kept_at(entry: ApiEntry, level: RiskLevel) -> bool:
    """Return whether an API is recorded when the user's `risk_level` is `level`."""
    order = (RiskLevel.CORE, RiskLevel.FOCUS, RiskLevel.ALL)
    return order.index(entry.risk) <= order.index(level)
