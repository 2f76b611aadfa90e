# SPDX-License-Identifier: Apache-2.0
"""JSON: the parser and the writer of all files for people.

Written for people and programs of any language, JSON is strict: NaN and infinities are the strings
``NaN``, ``Infinity`` and ``-Infinity``, which protobuf's JSON has, too, and which both Python's
`float` and JavaScript's `Number` understand. The files of a dump and of a pack have them bare, as
Python's `json` writes them, because that is their documented form; both forms are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

JSON_ERRORS: Final = (ValueError, RecursionError)
"""Errors of `parse_json`: text that is not JSON or not UTF-8, huge numbers, deep nesting."""
NONFINITE_WORDS: Final = ("NaN", "Infinity", "-Infinity")
"""What stands for numbers that strict JSON lacks; `float` reads them."""


_UNCHANGED: Final = frozenset({str, int, bool, type(None)})


def parse_json(text: bytes) -> Any:
    """Return parsed JSON, where bare NaN and Infinity are allowed."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        # Five times faster, but it refuses NaN and Infinity.
        return json.loads(text)


def json_problem(exc: BaseException) -> str:
    """Return the error of the text, in one line."""
    if isinstance(exc, RecursionError):
        return "nested too deeply"
    if isinstance(exc, json.JSONDecodeError) and is_truncated(exc):
        # One literal: its Chinese is found by it.
        return (
            f"truncated JSON (line {exc.lineno}, column {exc.colno}): the file was not written or "
            "copied to its end"
        )
    from msprobe.plain_text import reason

    return f"not valid JSON ({reason(exc).splitlines()[0][:200]})"


def is_truncated(exc: BaseException) -> bool:
    """Return whether the text, which could not be parsed, ends too early."""
    if not isinstance(exc, json.JSONDecodeError):
        return False
    # In the middle of a text, or of a word such as "null".
    return exc.msg.startswith("Unterminated") or exc.pos > len(exc.doc.rstrip()) - len("Infinity")


def strict(tree: Any) -> Any:
    """Return the tree with words in place of NaN and infinities."""
    if type(tree) in _UNCHANGED:
        return tree
    if isinstance(tree, float) and not math.isfinite(tree):
        if math.isnan(tree):
            return "NaN"
        return "Infinity" if tree > 0 else "-Infinity"
    if isinstance(tree, Mapping):
        return {str(key): strict(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [strict(value) for value in tree]
    return tree


def strict_json(tree: Any, *, indent: int | None = 1, ensure_ascii: bool = False) -> str:
    """Return a tree as strict JSON, with a line break at the end.

    Args:
        tree: dicts, lists, tuples, scalars, None.
        indent: as in `json.dumps`.
        ensure_ascii: whether to escape all other characters, for a stream that lacks them.
    """
    text = json.dumps(strict(tree), indent=indent, allow_nan=False, ensure_ascii=ensure_ascii)
    return text + "\n"
