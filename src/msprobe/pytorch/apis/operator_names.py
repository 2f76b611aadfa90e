# SPDX-License-Identifier: Apache-2.0
"""Distinguish ``a + b`` from ``a.add(b)``.

Both reach a function mode as the same C function. The caller's current instruction tells
them apart: an operator is an instruction of its own, a method call is a call. The instructions are
learnt by compiling each operator, so that nothing here depends on the Python version; one that is
not known yields the method's name.

Not told apart, because no instruction says so: ``1 + a`` and ``a + 1``; ``sum([a, b])``,
``operator.add(a, b)`` and ``a.__add__(b)``, which are calls.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType, FrameType
from typing import Final

from msprobe.pytorch.apis.api_rules import ApiEntry

_BINARY: Final = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}
_UNARY: Final = {"-": "neg", "+": "pos", "~": "invert"}
_COMPARISONS: Final = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
# A program that compiles code on the fly must not make the cache grow without end.
_MOST_SITES: Final = 50_000

# Per call site the operators that its instruction may run. A code object is held with its answer,
# so that no other one can take its address.
_sites: dict[tuple[int, int], tuple[CodeType, frozenset[str]]] = {}


def operator_path(entry: ApiEntry, frame: FrameType | None) -> str:
    """Return the name of a call's record, without its number: see `operator_name`."""
    return f"{entry.prefix}.{operator_name(entry, frame)}"


def operator_name(entry: ApiEntry, frame: FrameType | None) -> str:
    """Return the API name for a call of `entry` made from `frame`.

    Args:
        entry: the function called.
        frame: the Python frame that makes the call; None when it is not known.
    """
    operator = entry.operator_name
    if operator is None or frame is None:
        return entry.api
    code, offset = frame.f_code, frame.f_lasti
    site = _sites.get((id(code), offset))
    if site is None:
        site = _remember(code, offset)
    return operator if operator in site[1] else entry.api


def _remember(code: CodeType, offset: int) -> tuple[CodeType, frozenset[str]]:
    if len(_sites) >= _MOST_SITES:
        _sites.clear()
    site = _sites[id(code), offset] = (code, _operators_at(code, offset))
    return site


def _operators_at(code: CodeType, offset: int) -> frozenset[str]:
    if offset < 0:
        return frozenset()
    # `co_code` shows the instructions as compiled, not what the interpreter specialised them to.
    opcode, argument = code.co_code[offset : offset + 2]
    known = _instructions()
    return known.get((opcode, argument)) or known.get((opcode, None)) or frozenset()


@cache
def _instructions() -> dict[tuple[int, int | None], frozenset[str]]:
    """Return the dunder methods that an instruction (opcode, argument) may run."""
    table: dict[tuple[int, int | None], frozenset[str]] = {}
    for symbol, stem in _BINARY.items():
        plain = {f"__{stem}__", f"__r{stem}__"}
        table |= _learn(f"a {symbol} b", "eval", plain)
        table |= _learn(f"a {symbol}= b", "exec", plain | {f"__i{stem}__"})
    for symbol, stem in _UNARY.items():
        table |= _learn(f"{symbol}a", "eval", {f"__{stem}__"})
    # `1 < a` runs `a > 1`, and the argument also decides the comparison: any of the six.
    comparisons = {f"__{stem}__" for stem in _COMPARISONS.values()}
    for symbol in _COMPARISONS:
        for opcode, _ in _learn(f"a {symbol} b", "eval", comparisons):
            table[opcode, None] = frozenset(comparisons)
    return table


def _learn(source: str, mode: str, names: set[str]) -> dict[tuple[int, int | None], frozenset[str]]:
    """Return the one instruction of `source` that neither loads, stores nor returns."""
    found = [step for step in _steps(source, mode) if step.opcode not in _plumbing()]
    if len(found) != 1:
        return {}
    return {(found[0].opcode, found[0].arg or 0): frozenset(names)}


@cache
def _plumbing() -> frozenset[int]:
    steps = [*_steps("a", "eval"), *_steps("a = b", "exec")]
    return frozenset(step.opcode for step in steps)


def _steps(source: str, mode: str) -> list[dis.Instruction]:
    return list(dis.get_instructions(compile(source, "<operator>", mode)))
