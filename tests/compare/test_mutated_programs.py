# SPDX-License-Identifier: Apache-2.0
"""Programs with one constant, operator or statement changed are never proved equal where they part.

Losses and updated parameters tell whether they part, in float64 and by themselves.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import msprobe  # noqa: E402
from builders.two_runs import train  # noqa: E402
from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAME = ("equal", "rounding", "precision")
NEAR = 1e-4

QUEUE = """
import torch
from torch import nn
from torch.nn import functional as F

query, key = nn.Linear(8, 6), nn.Linear(8, 6)
optimizer = torch.optim.SGD(query.parameters(), 0.1, momentum=0.9)
inputs, queue = torch.randn(4, 8, 8), F.normalize(torch.randn(6, 16), dim=0)

def step(number):
    x = inputs[number]
    found = F.normalize(query(x), dim=-1)
    with torch.no_grad():
        wanted = F.normalize(key(x + 0.1), dim=-1)
    near = (found * wanted).sum(-1, keepdim=True)
    scores = torch.cat([near, found @ queue.clone()], 1) / 0.2
    loss = F.cross_entropy(scores, torch.zeros(8, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue[:, 8 * (number % 2) : 8 * (number % 2) + 8] = wanted.T
    with torch.no_grad():
        for leading, parameter in zip(query.parameters(), key.parameters()):
            parameter.mul_(0.9).add_(leading, alpha=0.1)

models = [query, key]
"""

PLAYERS = """
import torch
from torch import nn
from torch.nn import functional as F

made, judge = nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
optimizers = [torch.optim.Adam(m.parameters(), 1e-2, betas=(0.5, 0.99)) for m in (judge, made)]
inputs = torch.randn(4, 8, 8)

def step(number):
    drawn = made(torch.randn(8, 3))
    optimizers[0].zero_grad()
    wrong = F.softplus(judge(drawn.detach())).mean()
    right = F.softplus(-judge(inputs[number])).mean()
    (wrong + 0.9 * right).backward()
    nn.utils.clip_grad_norm_(judge.parameters(), 0.1)
    optimizers[0].step()
    optimizers[1].zero_grad()
    F.softplus(-judge(drawn)).mean().backward()
    optimizers[1].step()

models = [made, judge]
"""

AHEAD = """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 3))
inputs, labels = torch.randn(40, 8), torch.arange(40) % 4
labels[17] = 0
ahead, base = [(inputs[:8], labels[:8])], [0.5]

def step(number):
    first = 8 * number + 8
    rows = range(first, first + 8)
    ahead.append((inputs[first : first + 8], torch.tensor([int(labels[i]) for i in rows])))
    x, y = ahead.pop(0)
    scores = model(x + 0.05 * torch.randn(8, 8))
    loss = F.cross_entropy(scores, y, label_smoothing=0.1) + 1e-2 * scores.square().mean() - base[0]
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.2)
    optimizer.step()
    schedule.step()
    base[0] = 0.9 * base[0] + 0.1 * loss.item()

models = [model]
"""

PROGRAMS = {"queue": QUEUE, "players": PLAYERS, "ahead": AHEAD}


class Mutation(ast.NodeTransformer):
    """Changes one place of a program.

    Attributes:
        what: the change in words; empty if the program has no such place.
    """

    def __init__(self, place: int) -> None:
        self._left = place
        self.what = ""

    def _is_here(self) -> bool:
        self._left -= 1
        return self._left == -1

    def _say(self, node: Any, words: str) -> None:
        self.what = f"line {node.lineno}: {words}"

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, float) and self._is_here():
            self._say(node, f"{node.value} times 1.5")
            return ast.copy_location(ast.Constant(node.value * 1.5), node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        swapped = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
        if type(node.op) in swapped and self._is_here():
            self._say(node, f"{type(node.op).__name__} swapped")
            node.op = swapped[type(node.op)]()
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and self._is_here():
            self._say(node, f"without {ast.unparse(node)}")
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Subscript) and self._is_here():
            self._say(node, f"without {ast.unparse(node)}")
            return ast.copy_location(ast.Pass(), node)
        return node


def mutated(source: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield each change of a program in words, and the program."""
    for place in range(200):
        mutation = Mutation(place)
        tree = mutation.visit(ast.parse(source))
        if not mutation.what:
            return
        yield mutation.what, ast.fix_missing_locations(tree)


def record(folder: Path, tree: ast.Module, level: str) -> bool:
    """Record three steps of a program; return whether it ran."""
    reset_session()
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    try:
        exec(compile(copy.deepcopy(tree), "program.py", "exec"), names)
        debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level=level)
        train(debugger, names["models"], names["step"])
    except (ArithmeticError, IndexError, RuntimeError, ValueError):
        return False
    finally:
        reset_session()
    return True


def numbers(folder: Path) -> list[float]:
    """Return the losses and the norms of updated parameters, by their steps."""
    found: list[float] = []
    for number in range(3):
        facts = msprobe.open_dump(folder).step(number).rank().facts
        assert facts is not None
        found += [math.nan if loss.value is None else loss.value for loss in facts.loss]
        for step in facts.optimizer_steps():
            found += [norm or 0.0 for norm in step.parameters.after.norm]
    return found


def part(target: Sequence[float], reference: Sequence[float]) -> bool:
    """Return whether two runs part by more than rounding."""
    if len(target) != len(reference):
        return True
    return not all(
        math.isclose(own, other, rel_tol=NEAR, abs_tol=1e-9)
        for own, other in zip(target, reference, strict=True)
    )


@pytest.mark.filterwarnings("ignore:Detected call of")  # a schedule without its optimizer
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_that_part_are_never_proved_the_same(tmp_path: Path, name: str, level: str) -> None:
    assert record(tmp_path / "base", ast.parse(PROGRAMS[name]), level)
    expected = numbers(tmp_path / "base")
    parted, wrong = 0, []
    for place, (what, tree) in enumerate(mutated(PROGRAMS[name])):
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
