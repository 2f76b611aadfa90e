# SPDX-License-Identifier: Apache-2.0
"""`ApiTable`: the treatment, in this run, of each function that reaches the function mode.

`ApiTable.lookup` answers for a function object: what `describe_function` says of it, narrowed or
widened by the user's ``api_list`` file and ``black_list``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from msprobe.pytorch.apis.api_list import read_api_list, warn_of_unknown_names
from msprobe.pytorch.apis.api_rules import (
    Action,
    ApiEntry,
    WriteEffect,
    describe_function,
    op_namespace,
)

# A program that makes functions on the fly must not make the table grow without end.
_MOST_ENTRIES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UserChoice:
    """The user's choice of APIs to record, beyond the defaults.

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

    Safe to use from several threads: entries are immutable, and equal in all threads.

    Attributes:
        entries: those of the functions that were asked for.
    """

    __slots__ = ("_choice", "entries")

    def __init__(self, choice: UserChoice | None = None) -> None:
        """Make the table for a user's choice; without one everything that computes is recorded."""
        self._choice = choice or UserChoice(listed={})
        self.entries: dict[Any, ApiEntry] = {}

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
            return self.entries[func]
        except KeyError:
            return self._remember(func)
        except TypeError:  # unhashable: cannot be remembered
            return self._decide(func)

    def wants(self, prefix: str, api: str) -> bool:
        """Return whether the user's lists keep an API, by name alone (collectives)."""
        if any(name in self._choice.black_list for name in self._spellings(prefix, [api])):
            return False
        listed = self._choice.listed.get(prefix)
        return listed is None or api in listed

    def _remember(self, func: Any) -> ApiEntry:
        if len(self.entries) >= _MOST_ENTRIES:
            self.entries.clear()
        entry = self.entries[func] = self._decide(func)
        return entry

    def _decide(self, func: Any) -> ApiEntry:
        entry = describe_function(func)
        action = self._user_action(entry, func)
        if action is entry.action:
            return entry
        # An excluded call is not observed, so memory that it may write unseen is not relied on.
        bans = entry.bans or entry.in_place is not None or entry.writes is WriteEffect.UNVERSIONED
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
        return op_namespace(func) in self._choice.custom_op_namespaces

    @staticmethod
    def _spellings(prefix: str, names: Iterable[str | None]) -> Iterable[str]:
        for name in names:
            yield str(name)
            yield f"{prefix}.{name}"


def _may_be_recorded(entry: ApiEntry) -> bool:
    # A user may add `item` or `detach`; attribute access is not changed.
    return not entry.api.endswith(("__get__", "__set__", "__delete__"))


def _excluded(func: Any) -> Action:
    """A Python function's insides can still be observed; a C function has none."""
    return Action.DESCEND if hasattr(func, "__code__") else Action.METADATA
