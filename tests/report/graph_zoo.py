# SPDX-License-Identifier: Apache-2.0
"""Record real models of many families, as graphs for the pictures of `test_graph_pictures`.

    python graph_zoo.py FOLDER            the graphs of PyTorch
    python graph_zoo.py FOLDER mindspore  those of MindSpore, in an environment that has it

Each graph is written as ``NAME.json.gz``: what a page of it shows, without the values of calls.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "graph"), str(TESTS / "mindspore")]


def write(folder: Path, name: str, *dumps: Path) -> None:
    """Write the graphs of a dump, or of two."""
    from msprobe.graph.page_json import whole
    from msprobe.graph.sources import open_graphs

    made = whole(open_graphs(*dumps))
    for graph in made["graphs"]:
        graph.pop("details")
        graph["nodes"].pop("source", None)
        graph["nodes"].pop("device", None)
    named = {"title": name, "target": name, "reference": made["reference"] and f"{name} before"}
    text = json.dumps({**made, **named}, allow_nan=False, separators=(",", ":"))
    (folder / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def record(folder: Path, train: Callable[[], Any], model: Any) -> Path:
    """Record one training step; return the dump."""
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=str(folder), level="mix", task="statistics")
    debugger.start(model)
    train()
    debugger.stop()
    debugger.step()
    from msprobe.capture.session import reset_session

    reset_session()
    return folder


def ddp(rank: int, place: str) -> None:
    """One rank of a data-parallel run."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters())

    def train() -> None:
        wrapped(torch.randn(4, 8) + rank).square().mean().backward()
        optimizer.step()
        dist.all_reduce(torch.ones(1))

    record(Path(place) / "dump", train, wrapped)
    dist.destroy_process_group()


def of_torch(folder: Path, work: Path) -> None:
    import torch
    from zoo_models import torch_models, transformers_models

    torch.manual_seed(0)
    made = transformers_models() | torch_models()

    def trained(name: str, place: Path) -> Path:
        model, loss = made[name]
        torch.manual_seed(0)
        return record(place, lambda: loss(model).backward(), model)

    for name in made:
        if name != "gpt2":
            write(folder, name, trained(name, work / name))
    old = trained("gpt2", work / "old")
    with torch.no_grad():
        weight = made["gpt2"][0].transformer.h[2].mlp.c_fc.weight
        weight += 0.02 * torch.randn_like(weight)
    write(folder, "gpt2-compared", trained("gpt2", work / "new"), old)
    for name, words in (("data-parallel", None), ("pipeline", "pp2"), ("layers-shared", "tp2")):
        place = work / name
        place.mkdir()
        program = TESTS / "graph" / "parallel_program.py"
        own = [str(Path(__file__).resolve()), str(place), "ddp"]
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    *(
                        [*own, str(rank)]
                        if words is None
                        else [str(program), str(place), words, str(rank), "2"]
                    ),
                ],
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
            )
            for rank in range(2)
        ]
        assert [process.wait() for process in processes] == [0, 0]
        write(folder, name, place / "dump")


def of_mindspore(folder: Path, work: Path) -> None:
    import nets

    from msprobe.mindspore import PrecisionDebugger

    for name, case in {
        "mindspore-convolutions": nets.Case(nets.ConvNet, (nets.random(2, 1, 8, 8),)),
        "mindspore-transformer": nets.Case(nets.Transformer, (nets.random(2, 5, 16),)),
        "mindspore-lstm": nets.Case(nets.Lstm, (nets.random(2, 5, 6),)),
    }.items():
        place = str(work / name)
        debugger = PrecisionDebugger(dump_path=place, level="mix", task="statistics", step=[0])
        nets.train(case, 1, debugger)
        from msprobe.capture.session import reset_session

        reset_session()
        write(folder, name, Path(place))


def main() -> None:
    folder = Path(sys.argv[1])
    kind = sys.argv[2] if len(sys.argv) > 2 else "torch"
    if kind == "ddp":
        ddp(int(sys.argv[3]), sys.argv[1])
        return
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        (of_mindspore if kind == "mindspore" else of_torch)(folder, Path(work))


if __name__ == "__main__":
    main()
