# SPDX-License-Identifier: Apache-2.0
"""The user's table of APIs to record: a YAML file of groups of names.

    functional: [linear, conv2d]
    tensor: [__add__, softmax]
    torch: [matmul, linalg.norm]

A group that is given is complete: nothing else under its prefix is recorded. A group that is
missing keeps the default. Names that this PyTorch does not have are reported, not refused: the
file may serve several versions.
"""

from __future__ import annotations

import importlib
import logging
import types
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from msprobe.errors import ConfigError
from msprobe.pytorch.apis.api_rules import api_groups, describe_function

logger = logging.getLogger(__name__)

_KEY: Final = "api_list"
_LARGEST_FILE_BYTES: Final = 4 << 20
# More names than these make a message unreadable.
_MOST_NAMES_SHOWN: Final = 10
# Where the names of a group live; groups that are missing here cannot be checked.
_HOMES: Final = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "VF": "torch._VF",
    "NPU": "torch_npu",
}
# In lists that users have from mindstudio-probe, and nothing to warn of: named tensors, which later
# versions of PyTorch lack, an operator of TorchScript, and what `dir` shows beside operators.
_KNOWN_ELSEWHERE: Final = {
    "Tensor": frozenset({"align_as", "align_to"}),
    "Torch": frozenset({"align_tensors"}),
    "Aten": frozenset({"_dir", "_list_to_tensor", "name", *vars(types.ModuleType("aten"))}),
}


def read_api_list(path: Path) -> Mapping[str, frozenset[str]]:
    """Return the names that a user's file lists, by prefix.

    A function may have several names (``torch.conv2d`` is ``F.conv2d``): each listed name also
    counts under the one that records carry.

    Raises:
        ConfigError: the file cannot be read, or is not a mapping of groups to lists of names.
    """
    listed: dict[str, set[str]] = {}
    aliases: list[tuple[str, str]] = []
    for group, names in _read_groups(path).items():
        prefix = api_groups()[group]
        found = {name: _find(prefix, name) for name in names}
        entries = [describe_function(func) for func in found.values() if func is not None]
        aliases += [(entry.prefix, entry.api) for entry in entries]
        listed.setdefault(prefix, set()).update(name.rpartition(".")[2] for name in names)
        if _is_checkable(prefix):
            known = _KNOWN_ELSEWHERE.get(prefix, frozenset())
            unknown = [name for name, func in found.items() if func is None and name not in known]
            _warn_of_unknown(f"{path}: {group}", unknown, _known_names(prefix))
    for prefix, api in aliases:
        if prefix in listed:
            listed[prefix].add(api)
    return {prefix: frozenset(names) for prefix, names in listed.items()}


def warn_of_unknown_names(black_list: Iterable[str]) -> None:
    """Warn of names in a black list that match no API of this PyTorch."""
    unknown = []
    for entry in black_list:
        prefix, _, name = entry.rpartition(".")
        homes = [home for home in ([prefix] if prefix else _HOMES) if _is_checkable(home)]
        if homes and all(_find(home, name) is None for home in homes):
            unknown.append(entry)
    known = frozenset().union(*(_known_names(prefix) for prefix in _HOMES))
    _warn_of_unknown("black_list", unknown, known)


def _read_groups(path: Path) -> dict[str, list[str]]:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(_KEY, str(path), f"a file of at most {_LARGEST_FILE_BYTES} bytes")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(
            _KEY, str(path), "a readable YAML file of groups of API names", hint=_reason(exc)
        ) from exc
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(_KEY, content, "groups of API names", source=path)
    return {group: _names(group, names, path) for group, names in content.items()}


def _reason(exc: Exception) -> str:
    """Return the error in a file as one line; the parser's own text quotes half of the file."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        mark = exc.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {exc.problem or exc.context}"
    if isinstance(exc, UnicodeDecodeError):
        return "it is not UTF-8 text"
    reason = exc.strerror if isinstance(exc, OSError) else None
    return reason or str(exc).partition("\n")[0]


def _names(group: Any, names: Any, path: Path) -> list[str]:
    if group not in api_groups():
        nearest = get_close_matches(str(group), api_groups(), 1)
        hint = f'unknown group; the nearest is "{nearest[0]}"' if nearest else "unknown group"
        raise ConfigError(f"{_KEY}.{group}", names, tuple(api_groups()), source=path, hint=hint)
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{_KEY}.{group}", names, "a list of API names", source=path)
    return names


@cache
def _home(prefix: str) -> object | None:
    path = _HOMES.get(prefix)
    if path is None:
        return None
    if prefix == "Tensor":
        return torch.Tensor
    try:
        return importlib.import_module(path)
    except ImportError:
        return None


def _is_checkable(prefix: str) -> bool:
    return prefix == "Aten" or _home(prefix) is not None


def _find(prefix: str, name: str) -> Any:
    """Return the function with a listed name, or None."""
    if prefix == "Aten":
        return getattr(torch.ops.aten, name, None) if name in _known_names(prefix) else None
    return reduce(lambda owner, part: getattr(owner, part, None), name.split("."), _home(prefix))


@cache
def _known_names(prefix: str) -> frozenset[str]:
    if prefix == "Aten":
        operators = torch._C._dispatch_get_all_op_names()
        heads = (name.partition(".")[0] for name in operators if name.startswith("aten::"))
        return frozenset(head.removeprefix("aten::") for head in heads)
    if prefix == "VF":
        return frozenset(dir(torch._C._VariableFunctions))
    return frozenset(dir(_home(prefix)))


def _warn_of_unknown(where: str, unknown: list[str], known: frozenset[str]) -> None:
    if not unknown:
        return
    shown = []
    for name in unknown[:_MOST_NAMES_SHOWN]:
        nearest = get_close_matches(name.rpartition(".")[2], known, 1)
        shown.append(f"{name} (nearest: {nearest[0]})" if nearest else name)
    if len(unknown) > _MOST_NAMES_SHOWN:
        shown.append(f"and {len(unknown) - _MOST_NAMES_SHOWN} more")
    logger.warning("%s: this PyTorch has no API of these names: %s", where, ", ".join(shown))
