# SPDX-License-Identifier: Apache-2.0
"""What msprobe does with each function that reaches its function mode.

`ApiTable.lookup` answers for a function object: its record name, whether to record the call, and
what the memo of summaries must know about it (what it writes, whether the storage escapes). The
answers come from the data in ``api_table.yaml`` beside this module; a user's own ``api_list`` file
narrows or widens what is recorded.

``out=`` and ``inplace=True`` are arguments, not functions: both move version counters, and a
caller that cares about ``out=`` looks for the keyword.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from fnmatch import translate
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml
from torch import Tag, nn
from torch._ops import OpOverload, OpOverloadPacket

from msprobe.config.choices import RiskLevel
from msprobe.pytorch.api_identity import Identity, Prefixes, identify

# Modules that leave torch's fused kernels aside when a function mode is on (in eval, without grad),
# so that merely looking would change their last bits. They must run under
# `torch._C.DisableTorchFunction()`, as one call.
FAST_PATH_MODULES: Final = (
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.MultiheadAttention,
)

# A program that makes functions on the fly must not make the table grow without end.
_MOST_ENTRIES: Final = 20_000


class Action(IntEnum):
    """What to do with a call.

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
    """What a call does to its tensor arguments.

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
    """What is known about one function.

    Attributes:
        prefix: first part of its record names (``Functional``, ``Tensor``, ``Torch`` …).
        api: second part (``linear``, ``add_``, ``shape.__get__``).
        action: what to do with a call.
        writes: what it does to its arguments.
        bans: storages of its arguments and results may from now on change unseen.
        returns_mutated: it returns nothing of use; its changed arguments are its output.
        draws_random: it may take numbers from a random generator.
        operator_name: the name as an operator, where operator and method are one function.
        risk: the strictest `risk_level` that still keeps it.
    """

    prefix: str
    api: str
    action: Action
    writes: WriteEffect = WriteEffect.NONE
    bans: bool = False
    returns_mutated: bool = False
    draws_random: bool = False
    operator_name: str | None = None
    risk: RiskLevel = RiskLevel.FOCUS

    @property
    def name(self) -> str:
        """``prefix.api``, the record name without number and direction."""
        return f"{self.prefix}.{self.api}"


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
    inplace_dunders: frozenset[str]
    fast_path: _Names
    metadata: _Names
    unversioned_writes: _Names
    returns_mutated: _Names
    bans: _Names
    random: _Names
    core_risk: _Names
    low_risk: _Names


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
        inplace_dunders=frozenset(data["inplace_dunders"]),
        fast_path=_Names(data["fast_path"]),
        metadata=_Names(data["metadata"]),
        unversioned_writes=_Names(data["unversioned_writes"]),
        returns_mutated=_Names(data["returns_mutated"]),
        bans=_Names(data["bans"]),
        random=_Names(data["random"]),
        core_risk=_Names(data["risk"]["core"]),
        low_risk=_Names(data["risk"]["low"]),
    )


def api_groups() -> Mapping[str, str]:
    """Return the groups of an ``api_list`` file and the prefix that each stands for."""
    return _rules().groups


def describe_function(func: Any) -> ApiEntry:
    """Return what msprobe does with `func` when the user asks for nothing special."""
    rules = _rules()
    identity = identify(func, rules.prefixes)
    name = f"{identity.prefix}.{identity.api}"
    overloads = _overloads(func)
    is_foreign_operator = bool(overloads) and identity.op_namespace != "aten"
    operators = rules.operators if identity.prefix == "Tensor" else {}
    return ApiEntry(
        prefix=identity.prefix,
        api=identity.api,
        action=_action(identity, name, rules),
        writes=_write_effect(identity, name, overloads, rules),
        # Operators outside aten may keep a tensor, or write into it without telling anybody.
        bans=is_foreign_operator or name in rules.bans,
        returns_mutated=name in rules.returns_mutated or _returns_nothing(overloads),
        draws_random=name in rules.random or _is_seeded(overloads),
        operator_name=operators.get(identity.api),
        risk=_risk(name, rules),
    )


def _action(identity: Identity, name: str, rules: _Rules) -> Action:
    if identity.path in rules.backward_entries:
        return Action.BACKWARD_ENTRY
    if identity.internal or identity.op_namespace in rules.silent_op_namespaces:
        return Action.METADATA
    if identity.path.startswith("torch.distributed."):  # reported by `hook_collectives`
        return Action.METADATA
    if name in rules.metadata:
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
    in_place = identity.api.endswith("_") and not identity.api.endswith("__")
    if mutable or in_place or identity.api in rules.inplace_dunders:
        return WriteEffect.VERSIONED
    return WriteEffect.NONE


def _risk(name: str, rules: _Rules) -> RiskLevel:
    if name in rules.core_risk:
        return RiskLevel.CORE
    return RiskLevel.ALL if name in rules.low_risk else RiskLevel.FOCUS


def _overloads(func: Any) -> list[OpOverload[Any, Any]]:
    if isinstance(func, OpOverload):
        return [func]
    if isinstance(func, OpOverloadPacket):
        names = func.overloads()  # type: ignore[no-untyped-call]  # not annotated by torch
        return [getattr(func, name) for name in names]
    return []


def _returns_nothing(overloads: list[OpOverload[Any, Any]]) -> bool:
    return any(op._schema.is_mutable and not op._schema.returns for op in overloads)


def _is_seeded(overloads: list[OpOverload[Any, Any]]) -> bool:
    return any(Tag.nondeterministic_seeded in op.tags for op in overloads)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserChoice:
    """What the user wants recorded, beyond the defaults.

    Attributes:
        listed: per prefix, the only APIs to record; prefixes that are missing keep the default.
        custom_op_namespaces: operator namespaces recorded whatever `listed` says.
        black_list: APIs never recorded, as ``relu`` or ``Functional.relu``.
    """

    listed: Mapping[str, frozenset[str]]
    custom_op_namespaces: frozenset[str] = frozenset()
    black_list: frozenset[str] = frozenset()


class ApiTable:
    """Answers for each function object, quickly from the second time on.

    Safe to use from several threads: entries are immutable and equal whoever makes them.
    """

    __slots__ = ("_choice", "_entries")

    def __init__(self, choice: UserChoice | None = None) -> None:
        """Make the table for a user's choice; without one everything that computes is recorded."""
        self._choice = choice or UserChoice(listed={})
        self._entries: dict[Any, ApiEntry] = {}

    @classmethod
    def from_yaml(
        cls,
        user_path: Path | str | None = None,
        custom_op_namespaces: Iterable[str] = (),
        black_list: Iterable[str] = (),
    ) -> ApiTable:
        """Return the table for one run.

        Args:
            user_path: the user's ``api_list`` file; None for the defaults.
            custom_op_namespaces: namespaces of ``torch.ops``. All custom operators are recorded by
                default; these also stay recorded when an ``api_list`` file is given.
            black_list: APIs that are never recorded, as ``relu`` or ``Functional.relu``.

        Raises:
            ConfigError: the file cannot be read or is not a mapping of groups to lists of names.
        """
        from msprobe.pytorch.api_list import read_api_list, warn_of_unknown_names

        names = frozenset(black_list)
        warn_of_unknown_names(names)
        return cls(
            UserChoice(
                listed=read_api_list(Path(user_path)) if user_path else {},
                custom_op_namespaces=frozenset(custom_op_namespaces),
                black_list=names,
            )
        )

    def lookup(self, func: Any) -> ApiEntry:
        """Return the entry of `func`; about 0.1 µs when it was asked for before."""
        try:
            return self._entries[func]
        except KeyError:
            return self._remember(func)
        except TypeError:  # unhashable: cannot be remembered
            return self._decide(func)

    def risk_of(self, entry: ApiEntry) -> RiskLevel:
        """Return the strictest `risk_level` that still keeps `entry`."""
        return entry.risk

    def wants(self, prefix: str, api: str) -> bool:
        """Return whether the user's lists keep an API, by name alone (collectives)."""
        if any(name in self._choice.black_list for name in self._spellings(prefix, [api])):
            return False
        listed = self._choice.listed.get(prefix)
        return listed is None or api in listed

    def _remember(self, func: Any) -> ApiEntry:
        if len(self._entries) >= _MOST_ENTRIES:
            self._entries.clear()
        entry = self._entries[func] = self._decide(func)
        return entry

    def _decide(self, func: Any) -> ApiEntry:
        entry = describe_function(func)
        action = self._user_action(entry, func)
        if action is entry.action:
            return entry
        # Nobody looks at an excluded call, so what it may write unseen is not to be relied on.
        bans = entry.bans or entry.writes is WriteEffect.UNVERSIONED
        return replace(entry, action=action, bans=bans)

    def _user_action(self, entry: ApiEntry, func: Any) -> Action:
        if entry.action is Action.BACKWARD_ENTRY:
            return entry.action
        names = {entry.api, entry.operator_name} - {None}
        if any(name in self._choice.black_list for name in self._spellings(entry.prefix, names)):
            return _excluded(func)
        listed = self._choice.listed.get(entry.prefix)
        if listed is None or self._is_chosen_operator(func):
            return entry.action
        if not names.isdisjoint(listed):
            return Action.RECORD if _may_be_recorded(entry) else entry.action
        return entry.action if entry.action is Action.METADATA else _excluded(func)

    def _is_chosen_operator(self, func: Any) -> bool:
        namespaces = self._choice.custom_op_namespaces
        return identify(func, _rules().prefixes).op_namespace in namespaces

    @staticmethod
    def _spellings(prefix: str, names: Iterable[str | None]) -> Iterable[str]:
        for name in names:
            yield str(name)
            yield f"{prefix}.{name}"


def is_kept_at(entry: ApiEntry, level: RiskLevel) -> bool:
    """Return whether an API is recorded when the user's `risk_level` is `level`."""
    order = (RiskLevel.CORE, RiskLevel.FOCUS, RiskLevel.ALL)
    return order.index(entry.risk) <= order.index(level)


def _may_be_recorded(entry: ApiEntry) -> bool:
    # A user may add `item` or `detach`; attribute access stays what it is.
    return not entry.api.endswith(("__get__", "__set__", "__delete__"))


def _excluded(func: Any) -> Action:
    """A Python function's insides can still be observed; a C function has none."""
    return Action.DESCEND if hasattr(func, "__code__") else Action.METADATA
