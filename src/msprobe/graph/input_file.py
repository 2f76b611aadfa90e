# SPDX-License-Identifier: Apache-2.0
"""``compare.json`` of graphs: one dump or two, as mindstudio-probe's ``graph -i`` has it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from msprobe.dump.record_index import read_json_object
from msprobe.errors import ConfigError, ConfigFileError, DumpFormatError
from msprobe.graph.merging import Layout

_TARGET: Final = ("npu_path", "target_path")
_REFERENCE: Final = ("bench_path", "golden_path")
_MERGE: Final = "parallel_merge"
_ALLOWED: Final = (*_TARGET, *_REFERENCE, "is_print_compare_log", _MERGE)
_SIDES: Final = ("npu", "bench")
_LAYOUT: Final = tuple(field.name for field in fields(Layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """The dumps that the file names.

    Attributes:
        target: path of the dump.
        reference: path of the trusted one; None for a single graph.
        layouts: how the ranks of the target, and of the reference, share the model; empty where
            ranks are not merged.
    """

    target: Path
    reference: Path | None
    layouts: tuple[Layout, ...] = ()


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
    reference = _path(tree, _REFERENCE, path)
    layouts = _layouts(tree.get(_MERGE), path, sides=1 if reference is None else 2)
    return GraphInput(target=target, reference=reference, layouts=layouts)


def _layouts(tree: Any, source: Path, *, sides: int) -> tuple[Layout, ...]:
    """Return the layouts of the target and the reference; none without the key."""
    if tree is None:
        return ()
    if not isinstance(tree, dict) or tree.keys() - {*_SIDES}:
        raise ConfigError(
            _MERGE, tree, f"an object with the keys {', '.join(_SIDES)}", source=source
        )
    return tuple(_layout(tree.get(side), f"{_MERGE}.{side}", source) for side in _SIDES[:sides])


def _layout(tree: Any, key: str, source: Path) -> Layout:
    if not isinstance(tree, dict) or "rank_size" not in tree:
        raise ConfigError(key, tree, 'an object with "rank_size", tp, pp …', source=source)
    for name, size in tree.items():
        if name not in _LAYOUT:
            allowed = f"only the keys {', '.join(_LAYOUT)}"
            raise ConfigError(f"{key}.{name}", size, allowed, source=source)
        if type(size) is not (str if name == "order" else int):
            kind = "axes, as tp-cp-ep-dp-pp" if name == "order" else "a whole number"
            raise ConfigError(f"{key}.{name}", size, kind, source=source)
    return Layout(**tree)


def _path(tree: dict[str, Any], keys: tuple[str, ...], source: Path) -> Path | None:
    key = next((key for key in keys if tree.get(key) not in (None, "")), None)
    if key is None:
        return None
    if not isinstance(tree[key], str):
        raise ConfigError(key, tree[key], "the path of a dump", source=source)
    return Path(tree[key])
