# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of a shell over whole numbers and known variables."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

from msprobe.run_config.shell_variables import Variables, Word

_MOST: Final = 1 << 63
_MAX_LENGTH: Final = 400
_INTEGER: Final = re.compile(r"-?\d{1,9}")
_ARITHMETIC: Final = re.compile(r"[\d\s+\-*/%()<>=!]+")
_OCTAL: Final = re.compile(r"\b0\d|\*\*|//")
_COUNT: Final = re.compile(r"\s*(?:(\w+)(\+\+|--)|(\w+)\s*([-+*/%]?)=(?!=)(.+))\s*")
_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)\b")


def set_number(text: str, variables: Variables) -> int | None:
    """Follow ``i++``, ``i += 2`` or ``i = n * 4``; return the number, None if it is not known."""
    found = _COUNT.fullmatch(text)
    if found is None:
        return None
    name = found[1] or found[3]
    sign = found[2][:1] if found[2] else found[4]
    number = number_of(f"{name} {sign} ({found[5] or 1})" if sign else found[5], variables)
    if number is not None:
        variables.values[name] = (Word(str(number)),)
    return number


def number_of(text: str, variables: Variables) -> int | None:
    """Return the value of whole numbers and known variables under + - * / % and comparisons."""

    def value(found: re.Match[str]) -> str:
        known = variables.words(found[1] or found[2])
        is_number = known and not known[0].doubts and _INTEGER.fullmatch(known[0].text)
        return f"({known[0].text})" if known and is_number else found[0]

    plain = _VARIABLE.sub(value, text).strip()
    if not _ARITHMETIC.fullmatch(plain) or _OCTAL.search(plain) or len(plain) > _MAX_LENGTH:
        return None
    try:
        found = _number(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None
    return found if abs(found) < _MOST else None


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(operand=inner):
            return -_number(inner) if isinstance(node.op, ast.USub) else _number(inner)
        case ast.BinOp(left=left, right=right):
            return _OPERATIONS[type(node.op)](_number(left), _number(right))
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return int(_OPERATIONS[type(sign)](_number(left), _number(right)))
    raise ValueError(type(node).__name__)


def _quotient(one: int, other: int) -> int:
    return abs(one) // abs(other) * (1 if (one < 0) is (other < 0) else -1)


_OPERATIONS: Final[Mapping[type[ast.AST], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda one, other: one - other * _quotient(one, other),
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
