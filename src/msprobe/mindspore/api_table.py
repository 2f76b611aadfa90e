# SPDX-License-Identifier: Apache-2.0
"""Which functions of MindSpore are recorded in a run, and under which names.

Every public function of `mindspore.ops`, `mint`, `mint.nn.functional`, `mint.distributed`,
`communication.comm_func` and every method of `Tensor` is, except what ``api_table.yaml`` leaves
out. A file of the user (``api_list``) names groups of its own: a group that it has is complete.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Final

import yaml

from mindspore import Tensor
from msprobe.errors import ConfigError

logger = logging.getLogger(__name__)

_KEY: Final = "api_list"
_LARGEST_FILE_BYTES: Final = 4 << 20
_TENSOR: Final = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A place with functions.

    Attributes:
        prefix: first part of the names of records.
        home: the module; empty for `Tensor`.
    """

    prefix: str
    home: str = ""


_GROUPS: Final[Mapping[str, Group]] = {
    "functional": Group(prefix="Functional", home="mindspore.ops"),
    "mint": Group(prefix="Mint", home="mindspore.mint"),
    "mint_functional": Group(prefix="MintFunctional", home="mindspore.mint.nn.functional"),
    "mint_distributed": Group(prefix="MintDistributed", home="mindspore.mint.distributed"),
    "distributed": Group(prefix="Distributed", home="mindspore.communication.comm_func"),
    _TENSOR: Group(prefix="Tensor"),
}
PREFIXES: Final = tuple(group.prefix for group in _GROUPS.values())
"""First parts of the names of APIs."""
DISTRIBUTED: Final = ("MintDistributed", "Distributed")
"""Those of communication."""
# As the groups are called in files written for mindstudio-probe.
_ALIASES: Final = {
    "ops": "functional",
    "mint.ops": "mint",
    "mint.nn.functional": "mint_functional",
    "mint.distributed": "mint_distributed",
    "communication.comm_func": "distributed",
}


@dataclass(frozen=True, slots=True)
class Api:
    """One function to record.

    Attributes:
        owner: the module or class it is looked up in.
        attribute: its name there.
        name: of its records, without the number.
    """

    owner: Any
    attribute: str
    name: str


class ApiTable:
    """The APIs of one run."""

    def __init__(
        self,
        user_path: Path | None = None,
        black_list: Sequence[str] = (),
        prefixes: Sequence[str] = PREFIXES,
    ) -> None:
        """Make the table.

        Args:
            user_path: the user's file; None for the defaults.
            black_list: APIs that are never recorded, as ``relu`` or ``Functional.relu``.
            prefixes: of the groups that it has.

        Raises:
            ConfigError: the file cannot be read, or is no mapping of groups to lists of names.
        """
        self._listed = {} if user_path is None else _read_groups(user_path)
        self._refused = frozenset(black_list)
        self._prefixes = prefixes

    def apis(self) -> Iterator[Api]:
        """Yield every API to record that this MindSpore has."""
        for key, group in _GROUPS.items():
            owner = _owner(group)
            if owner is None or group.prefix not in self._prefixes:
                continue
            names = self._listed.get(key)
            for name in _default_names(key) if names is None else _known(key, names, owner):
                full = f"{group.prefix}.{name}"
                if name not in self._refused and full not in self._refused:
                    yield Api(owner, name, full)


@cache
def _default_names(key: str) -> tuple[str, ...]:
    told = rules()
    left_out = set(told["not_recorded"][key])
    owner = _owner(_GROUPS[key])
    if key == _TENSOR:
        methods = [name for name in dir(Tensor) if not name.startswith("_")]
        found = [name for name in methods if inspect.isroutine(getattr(Tensor, name))]
        operators = [name for name in told["operators"] if hasattr(Tensor, name)]
        return tuple(name for name in (*found, *operators) if name not in left_out)
    also = [name for name in told["also_recorded"].get(key, ()) if hasattr(owner, name)]
    public = [*(getattr(owner, "__all__", None) or dir(owner)), *also]
    return tuple(
        name
        for name in dict.fromkeys(public)
        if name not in left_out and name[:1].islower() and _is_function(owner, name)
    )


def _is_function(owner: Any, name: str) -> bool:
    """Return whether a name means a function that computes, rather than a helper or an import."""
    found = getattr(owner, name, None)
    if not inspect.isroutine(found):
        return False
    module = getattr(found, "__module__", None) or ""
    return module.startswith("mindspore") and not module.startswith("mindspore._checkparam")


def owner_of(prefix: str) -> Any:
    """Return the owner of the APIs of a prefix; None where this MindSpore lacks them."""
    return next(_owner(group) for group in _GROUPS.values() if group.prefix == prefix)


def _owner(group: Group) -> Any:
    if not group.home:
        return Tensor
    try:
        return import_module(group.home)
    except ImportError:  # older versions lack mint
        return None


@cache
def rules() -> Mapping[str, Any]:
    """Return the content of ``api_table.yaml``."""
    file = resources.files("msprobe.mindspore") / "api_table.yaml"
    found: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def _known(key: str, names: Sequence[str], owner: Any) -> list[str]:
    """Return the names that exist; others are reported, as a file may serve several versions."""
    unknown = [name for name in names if not hasattr(owner, name)]
    for name in unknown[:10]:
        close = get_close_matches(name, dir(owner), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        logger.warning("%s: group %s: this MindSpore has no %r%s", _KEY, key, name, hint)
    return [name for name in names if hasattr(owner, name)]


def _read_groups(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(_KEY, str(path), "a file below 4 MiB", source=path)
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            _KEY, str(path), "a YAML file", source=path, hint=str(error).splitlines()[0]
        ) from error
    if not isinstance(tree, dict):
        raise ConfigError(_KEY, tree, "a mapping of groups to lists of names", source=path)
    groups: dict[str, tuple[str, ...]] = {}
    for group, names in tree.items():
        key = _ALIASES.get(str(group), str(group))
        if key not in _GROUPS:
            raise ConfigError(_KEY, group, (*_GROUPS, *_ALIASES), source=path)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{_KEY}.{group}", names, "a list of names", source=path)
        groups[key] = tuple(dict.fromkeys(names))
    return groups
