# SPDX-License-Identifier: Apache-2.0
"""Where in the source the cells of a compiled graph are called.

A graph runs without Python frames. But the call of a cell is written in the `construct` of the cell
that holds it: the calls of ``self.{attribute}``, or those in a loop over it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from mindspore import nn


class CallSites:
    """Call stacks of cells by name, innermost frame first, read from the source."""

    def __init__(self, cells: Mapping[str, nn.Cell], enclosing: Mapping[str, str]) -> None:
        """Create it; sources are read when asked for.

        Args:
            cells: the cells by name.
            enclosing: the name of the cell around each, where there is one.
        """
        self._cells = cells
        self._enclosing = enclosing
        self._known: dict[str, tuple[str, ...]] = {}

    def frames(self, name: str) -> tuple[str, ...]:
        """Return the frames of a cell's call, formatted as in ``stack.json``.

        Several places in one `construct` may call a cell; the first is named, with a hint to the
        others. A cell whose caller has no source has no frame for it.
        """
        if name not in self._known:
            found: list[str] = []
            inner, outer = name, self._enclosing.get(name)
            while outer is not None:
                attribute = _attribute(inner, outer)
                cell = self._cells[outer]
                if not isinstance(cell, nn.CellList | nn.CellDict):  # never called
                    found += _site(_construct_of(type(cell)), attribute)
                    inner = outer
                outer = self._enclosing.get(outer)
            self._known[name] = tuple(found)
        return self._known[name]


def _attribute(inner: str, outer: str) -> str:
    """Return the attribute of `outer` that leads to `inner`, from their names."""
    path, around = inner.rpartition(".")[0], outer.rpartition(".")[0]
    return path[len(around) + 1 :].partition(".")[0]


def _construct_of(kind: type[nn.Cell]) -> Callable[..., Any]:
    construct: Callable[..., Any] = inspect.unwrap(kind.construct)
    return construct


@cache
def _site(construct: Callable[..., Any], attribute: str) -> tuple[str, ...]:
    """Return the frame of the call of ``self.{attribute}``; none where there is no source."""
    try:
        lines, begin = inspect.getsourcelines(construct)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # made at run time, or a part of a line
        return ()
    numbers = sorted({node.lineno for node in _calls(tree, attribute)}) or [1]
    first = numbers[0]
    text = lines[first - 1].strip()
    if len(numbers) > 1:
        others = ", ".join(str(begin + number - 1) for number in numbers[1:])
        text += f"  # or line {others}"
    file = construct.__code__.co_filename
    return (f"File {file}, line {begin + first - 1}, in {construct.__name__}, \n {text}",)


def _calls(tree: ast.AST, attribute: str) -> Iterator[ast.Call]:
    """Yield the calls of ``self.{attribute}``, of its items, and of variables of loops over it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Subscript):
                called = called.value
            if _is_attribute(called, attribute):
                yield node
        elif isinstance(node, ast.For):
            is_over_it = any(_is_attribute(part, attribute) for part in ast.walk(node.iter))
            if is_over_it or attribute.isdigit():  # the items of a container, which loops over them
                yield from _calls_of(node, node.target)


def _calls_of(loop: ast.For, target: ast.expr) -> Iterator[ast.Call]:
    names = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in names:
            yield node


def _is_attribute(node: ast.AST, attribute: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == attribute
