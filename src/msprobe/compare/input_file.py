# SPDX-License-Identifier: Apache-2.0
"""``compare.json``: the two paths and a few options in one file, as mindstudio-probe has them.

{"npu_path": "new/dump.json", "bench_path": "old/dump.json", "rank_id": [0], "step_id": []}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.dump.layout import STACK_JSON
from msprobe.errors import ConfigError, ConfigFileError, UnsupportedError
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json
from msprobe.plain_text import reason

_TARGET_KEYS: Final = ("npu_path", "target_path", "npu_json_path")
_REFERENCE_KEYS: Final = ("bench_path", "golden_path", "bench_json_path")
_STACK_KEYS: Final = ("stack_path", "stack_json_path")
_SINGLE_POINT_KEYS: Final = ("common", "map_dict")
_ALLOWED: Final = (
    *_TARGET_KEYS,
    *_REFERENCE_KEYS,
    *_STACK_KEYS,
    *_SINGLE_POINT_KEYS,
    "is_print_compare_log",
    "rank_id",
    "step_id",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareInput:
    """The paths and options of a comparison.

    Attributes:
        target: path of the dump under test.
        reference: path of the trusted one.
        ranks: only these; None for all.
        steps: only these; None for all.
        names_stacks: whether the file names the target's ``stack.json``; the user then says if
            tables have a column with call stacks.
        notes: notes on keys of the file that have no effect.
    """

    target: Path
    reference: Path
    ranks: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None
    names_stacks: bool = False
    notes: tuple[str, ...] = ()


def read_compare_input(path: Path) -> CompareInput:
    """Read a ``compare.json``.

    Raises:
        ConfigFileError: the file cannot be read or is no JSON object.
        ConfigError: a key is unknown, missing, or of a wrong type.
        UnsupportedError: it asks for a comparison of single points of a static graph.
    """
    try:
        tree = parse_json(path.read_bytes())
    except OSError as exc:
        raise ConfigFileError(path, f"cannot be read: {reason(exc)}") from exc
    except JSON_ERRORS as exc:
        raise ConfigFileError(path, json_problem(exc)) from exc
    if not isinstance(tree, dict):
        raise ConfigFileError(path, "holds no JSON object")
    return parse_compare_input(tree, source=str(path))


def parse_compare_input(tree: Mapping[str, Any], *, source: str) -> CompareInput:
    """Check the content of a ``compare.json``, or of ``input_param`` of the Python function.

    Args:
        tree: the content.
        source: where it came from, for messages.

    Raises:
        ConfigError: a key is unknown, missing, or of a wrong type.
        UnsupportedError: it asks for a comparison of single points of a static graph.
    """
    for key in tree:
        if key not in _ALLOWED:
            raise ConfigError(key, tree[key], f"only the keys {', '.join(_ALLOWED)}", source=source)
    if any(tree.get(key) for key in _SINGLE_POINT_KEYS):
        raise UnsupportedError(
            f'{source}: "common" and "map_dict" compare single points of a static graph, which '
            "msprobe does not do; compare whole kernel dumps instead"
        )
    target = _one_path(tree, _TARGET_KEYS, source)
    stacks = next((key for key in _STACK_KEYS if tree.get(key)), None)
    return CompareInput(
        target=target,
        reference=_one_path(tree, _REFERENCE_KEYS, source),
        ranks=_numbers(tree, "rank_id", source),
        steps=_numbers(tree, "step_id", source),
        names_stacks=stacks is not None,
        notes=() if stacks is None else tuple(_stack_notes(tree, stacks, target, source)),
    )


def _stack_notes(tree: Mapping[str, Any], key: str, target: Path, source: str) -> Iterator[str]:
    """Check the path of a ``stack.json``; yield notes on it."""
    path = tree[key]
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        raise ConfigError(key, path, "the path of the target's stack.json", source=source)
    if target.is_file() and Path(path).resolve() != target.resolve().with_name(STACK_JSON):
        yield f'{source}: "{key}" is not beside the target; call stacks are read from there'


def _one_path(tree: Mapping[str, Any], keys: tuple[str, ...], source: str) -> Path:
    found = [key for key in keys if tree.get(key) is not None]
    if not found:
        raise ConfigError(keys[0], None, "the path of a dump", source=source)
    path = tree[found[0]]
    if not isinstance(path, (str, Path)) or not str(path):
        raise ConfigError(found[0], path, "the path of a dump", source=source)
    return Path(path)


def _numbers(tree: Mapping[str, Any], key: str, source: str) -> tuple[int, ...] | None:
    """Return a list of numbers; None where it is absent or empty, which means all."""
    found = tree.get(key)
    if found is None or found == []:
        return None
    if not isinstance(found, list) or not all(type(item) is int and item >= 0 for item in found):
        raise ConfigError(key, found, "a list of numbers >= 0", source=source)
    return tuple(found)
