# SPDX-License-Identifier: Apache-2.0
"""Programs with one constant, operator or statement changed are never proved equal where they part.

Losses and updated parameters tell whether they part, in float64 and by themselves.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from compare.programs import PROGRAMS, OneChange, changed, numbers, part, record
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LEVELS = ("L0", "L1", "mix")
SAME = ("equal", "rounding", "precision")


class Mutation(OneChange, ast.NodeTransformer):
    """Changes a constant, swaps an operator, or leaves a statement out."""

    def _say(self, node: Any, words: str) -> None:
        self.what = f"line {node.lineno}: {words}"

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, float) and self.is_here():
            self._say(node, f"{node.value} times 1.5")
            return ast.copy_location(ast.Constant(node.value * 1.5), node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        swapped = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
        if type(node.op) in swapped and self.is_here():
            self._say(node, f"{type(node.op).__name__} swapped")
            node.op = swapped[type(node.op)]()
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and self.is_here():
            self._say(node, f"without {ast.unparse(node)}")
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Subscript) and self.is_here():
            self._say(node, f"without {ast.unparse(node)}")
            return ast.copy_location(ast.Pass(), node)
        return node


@pytest.mark.filterwarnings("ignore:Detected call of")  # a schedule without its optimizer
@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, level) for name in ("queue", "players", "ahead") for level in LEVELS),
        *((name, "mix") for name in ("decoder", "actor")),
    ],
)
def test_runs_that_part_are_never_proved_the_same(tmp_path: Path, name: str, level: str) -> None:
    assert record(tmp_path / "base", ast.parse(PROGRAMS[name]), level)
    expected = numbers(tmp_path / "base")
    parted, wrong = 0, []
    for place, (what, tree) in enumerate(changed(PROGRAMS[name], Mutation)):
        folder = tmp_path / str(place)
        if not record(folder, tree, level) or not part(numbers(folder), expected):
            continue
        parted += 1
        summary = run_comparison(folder, tmp_path / "base", CompareOptions(workers=1)).summary
        verdict = summary["verdict"]
        if verdict["class"] in SAME:
            wrong.append(f"{what}: {verdict['confidence']} {verdict['sentence']}")
    assert not wrong, "\n".join(wrong)
    assert parted > 10  # or nothing was tested
