# SPDX-License-Identifier: Apache-2.0
"""Programs with one expression written in another way accuse nobody, in any type."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from compare.programs import PROGRAMS, OneChange, changed, record  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAME = ("equal", "rounding", "precision")
PROVED = 0.95
# Expressions and the same in another way; `a` and `b` stand for any.
OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "b + a",
    ast.Mult: "b * a",
    ast.Sub: "a + (-b)",
    ast.Div: "a * (1.0 / b)",
    ast.MatMult: "(b.transpose(-1, -2) @ a.transpose(-1, -2)).transpose(-1, -2)",
}
METHODS = {
    "square": "a ** 2",
    "pow": "a * a",
    "exp": "torch.exp(a)",
    "mean": "a.sum() / a.numel()",
    "backward": "torch.autograd.backward(a)",
    "softmax": "(a - a.logsumexp(b, keepdim=True)).exp()",
}
FUNCTIONS = {
    "F.silu": "a * torch.sigmoid(a)",
    "F.normalize": "a / a.norm(dim=-1, keepdim=True).clamp(min=1e-12)",
    "F.log_softmax": "a - a.logsumexp(b, keepdim=True)",
    "F.cross_entropy": "F.nll_loss(F.log_softmax(a, 1), b)",
    "torch.rsqrt": "1.0 / torch.sqrt(a)",
}
# Numbers that say which samples, dimensions or parts are meant. One that scales all values, as a
# standard deviation, moves them as a whole where it is rounded otherwise.
COUNTED = ("number", "part", "shape", "first", "arange", "heads", "std")


class Rewriting(OneChange, ast.NodeTransformer):
    """Writes one expression of the steps and modules of a program in another way."""

    def _written(self, node: ast.expr, text: str, **names: ast.expr) -> ast.expr:
        self.what = f"line {node.lineno}: {text} for {ast.unparse(node)}"
        made = _Filled(names).visit(ast.parse(text, mode="eval").body)
        for each in ast.walk(made):
            ast.copy_location(each, node)
        return made  # type: ignore[no-any-return]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node if node.name == "__init__" else self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        text = OPERATORS.get(type(node.op))
        is_counted = any(word in ast.unparse(node) for word in COUNTED)
        is_list = isinstance(node.left, ast.List)
        if text is None or is_counted or is_list or not self.is_here():
            return node
        return self._written(node, text, a=node.left, b=node.right)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        text = FUNCTIONS.get(ast.unparse(function))
        given = list(node.args)
        if text is None and isinstance(function, ast.Attribute):
            text, given = METHODS.get(function.attr), [function.value, *given]
            # Of numbers, and of a mean along a dimension, it is something else.
            if isinstance(function.value, ast.Name) and function.value.id in ("torch", "F"):
                text = None
            if function.attr == "mean" and len(given) > 1:
                text = None
        if text is None or node.keywords or not given:
            return node
        # What is written twice must not call a model twice.
        is_twice = len(re.findall(r"\ba\b", text)) > 1
        if (is_twice and isinstance(given[0], ast.Call)) or not self.is_here():
            return node
        return self._written(node, text, **dict(zip("ab", given, strict=False)))


class _Filled(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._names.get(node.id, node)


@pytest.mark.parametrize(
    ("level", "dtype"),
    [
        *((level, torch.float32) for level in ("L0", "L1", "mix")),
        ("mix", torch.bfloat16),
    ],
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_in_another_way_accuses_nobody(
    tmp_path: Path, name: str, level: str, dtype: torch.dtype
) -> None:
    found: Counter[str] = Counter()
    wrong = []
    torch.set_default_dtype(dtype)
    try:
        assert record(tmp_path / "base", ast.parse(PROGRAMS[name]), level)
        for place, (what, tree) in enumerate(changed(PROGRAMS[name], Rewriting)):
            folder = tmp_path / str(place)
            assert record(folder, tree, level), what
            options = CompareOptions(workers=1)
            verdict = run_comparison(folder, tmp_path / "base", options).summary["verdict"]
            found[verdict["confidence"] if verdict["class"] in SAME else "accused"] += 1
            if verdict["class"] not in (*SAME, "unexplained"):
                wrong.append(f"{what}: {verdict['sentence']}")
    finally:
        torch.set_default_dtype(torch.float32)
    assert not wrong, "\n".join(wrong)
    assert found.total() > 3  # or nothing was tested
    assert found["proved"] >= PROVED * found.total() - 1, found
