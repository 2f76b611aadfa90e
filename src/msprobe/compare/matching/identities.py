# SPDX-License-Identifier: Apache-2.0
"""What a record is, in words that both sides share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from msprobe.compare.matching.families import family
from msprobe.compare.matching.module_paths import shared_paths
from msprobe.compare.sides import Side
from msprobe.dump.record_names import RecordName


class Identity(NamedTuple):
    """What a record is.

    Attributes:
        family: equal for all calls of one operation or module, whatever it is called.
        fallback: a wider family.
        is_mapped: whether a mapping that the user asked for decided it.
    """

    family: str
    fallback: str
    is_mapped: bool = False


class Identifier(Protocol):
    """Tells what the records of one side are."""

    def identity(self, name: RecordName) -> Identity:
        """Return what a record is."""

    def scope(self, path: str) -> str:
        """Return a module's path as both sides know it."""


class SharedNames:
    """Identities of dumps of one framework: families of APIs, paths without wrappers."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        """Make an identifier; `paths` says how both sides know the modules of this one."""
        self._paths = paths

    def identity(self, name: RecordName) -> Identity:
        """Return what a record is."""
        if name.is_module:
            return Identity(f"module {self.scope(name.path)}", f"class {name.class_name}")
        if not name.prefix:
            return Identity(f"value {name.path}", f"value {name.path}")
        operation = family(name.prefix, name.path)
        return Identity(operation, operation)

    def scope(self, path: str) -> str:
        """Return a module's path as both sides know it."""
        return self._paths.get(path, path)


def module_paths(side: Side) -> set[str]:
    """Return the paths of all modules that a side recorded."""
    parsed = map(side.parsed, side.names)
    return {name.path for name in parsed if name.is_module}


def shared_names(target: Side, reference: Side) -> tuple[SharedNames, SharedNames]:
    """Return the identifiers of two dumps of one framework."""
    of_target, of_reference = shared_paths(module_paths(target), module_paths(reference))
    return SharedNames(of_target), SharedNames(of_reference)
