# SPDX-License-Identifier: Apache-2.0
"""The edges of a graph in another order: sums over them are rounded otherwise, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]

WIDTH, NODES, EDGES = 16, 24, 90


class Way(NamedTuple):
    """How a program sums over edges.

    Attributes:
        kind: by which calls.
        order: of the edges: "" as they come, "random", "sorted"; "torn" for their first ends alone.
    """

    kind: str
    order: str = ""


class Network(nn.Module):
    """Two rounds of messages in bfloat16."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        self.enter, self.message = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.update, self.norm = nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def gathered(self, x: Tensor, source: Tensor, end: Tensor) -> Tensor:
        """Return the sum of messages for each node."""
        if self.way.kind == "sparse":
            values = torch.ones(EDGES, dtype=x.dtype)
            edges = torch.sparse_coo_tensor(torch.stack([end, source]), values, (NODES, NODES))
            return torch.sparse.mm(edges, self.message(x))
        made = self.message(x[source])
        if self.way.kind == "weighted":
            made = torch.sigmoid((x[source] * x[end]).sum(-1, keepdim=True)) * made
        return torch.zeros_like(x).index_add(0, end, made)

    def forward(self, x: Tensor, source: Tensor, end: Tensor) -> Tensor:
        """Return scores of classes for each node."""
        x = F.relu(self.enter(x))
        for _ in range(2):
            gathered = self.gathered(x, source, end)
            x = self.norm(x + F.relu(self.update(torch.cat([x, gathered], -1))))
        return self.head(x)


def run(debugger: PrecisionDebugger, way: Way) -> None:
    """Train on three graphs."""
    model = Network(way).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-6)
    nodes, labels = torch.randn(3, NODES, 8).bfloat16(), torch.randint(0, 5, (3, NODES))
    edges, order = torch.randint(0, NODES, (3, 2, EDGES)), torch.randperm(EDGES)

    def loss(number: int) -> Tensor:
        source, end = edges[number]
        if way.order in ("random", "sorted"):
            by = order if way.order == "random" else end.argsort()
            source, end = source[by], end[by]
        elif way.order == "torn":
            source = source[order]
        return F.cross_entropy(model(nodes[number], source, end).float(), labels[number])

    fit(debugger, model, optimizer, loss, zero_first=False)


LEGAL = [(kind, order) for kind in ("plain", "weighted") for order in ("random", "sorted")]
LEGAL += [("sparse", ""), ("sparse", "random")]


@pytest.mark.parametrize(("kind", "order"), LEGAL)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_edges_in_another_order_are_rounding(
    tmp_path: Path, level: str, kind: str, order: str
) -> None:
    reference = Way("plain" if kind == "sparse" else kind)
    verdict = verdict_on(tmp_path, run, Way(kind, order), reference, level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_other_edges_are_other_data(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, run, Way("plain", "torn"), Way("plain"), level)

    assert verdict["class"] == "data", verdict["sentence"]
