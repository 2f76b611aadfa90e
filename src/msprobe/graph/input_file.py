# SPDX-License-Identifier: Apache-2.0
"""``compare.json`` of graphs: one dump or two, as mindstudio-probe's ``graph -i`` has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.dump.record_index import read_json_object
from msprobe.errors import ConfigError, ConfigFileError, DumpFormatError

_TARGET: Final = ("npu_path", "target_path")
_REFERENCE: Final = ("bench_path", "golden_path")
_ALLOWED: Final = (*_TARGET, *_REFERENCE, "is_print_compare_log", "parallel_merge")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """The dumps that the file names.

    Attributes:
        target: path of the dump.
        reference: path of the trusted one; None for a single graph.
    """

    target: Path
    reference: Path | None


def read_graph_input(path: Path) -> GraphInput:
    """Read the file.

    Raises:
        ConfigFileError: it cannot be read or is no JSON object.
        ConfigError: a key is unknown, missing, or of a wrong type.
    """
    try:
        tree = read_json_object(path)
    except DumpFormatError as exc:
        raise ConfigFileError(path, exc.problem) from exc
    for key in tree:
        if key not in _ALLOWED:
            raise ConfigError(key, tree[key], f"only the keys {', '.join(_ALLOWED)}", source=path)
    target = _path(tree, _TARGET, path)
    if target is None:
        raise ConfigError(_TARGET[0], None, "the path of a dump", source=path)
    return GraphInput(target=target, reference=_path(tree, _REFERENCE, path))


def _path(tree: dict[str, Any], keys: tuple[str, ...], source: Path) -> Path | None:
    key = next((key for key in keys if tree.get(key) not in (None, "")), None)
    if key is None:
        return None
    if not isinstance(tree[key], str):
        raise ConfigError(key, tree[key], "the path of a dump", source=source)
    return Path(tree[key])
