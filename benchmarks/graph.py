# SPDX-License-Identifier: Apache-2.0
"""Cost and size of graphs: synthetic dumps of a GPT built, compared, and written as .vis.db.

    python benchmarks/graph.py --layers 24 --ranks 1
    python benchmarks/graph.py --layers 24 --ranks 1 --peer /path/to/python-with-mindstudio-probe

Each case runs in a process of its own. CPU seconds are those after the imports; the second figure
is the whole process.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MEASURE = """
import resource, sys, time
from pathlib import Path
from msprobe.graph.sources import open_graphs
from msprobe.graph.vis_writer import write_vis_db
import msprobe.compare.verdicts.summary
began = time.process_time()
graphs = open_graphs(*sys.argv[2:])
opened = time.process_time()
write_vis_db(Path(sys.argv[1]), graphs)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(opened - began, time.process_time() - opened, time.process_time(), usage.ru_maxrss / 1024)
"""
WIDTH = 64


def tensor(shape: tuple[int, ...], seed: float, value_id: int | None = None) -> dict[str, object]:
    """Return what a record says of a tensor; equal seeds make equal tensors."""
    spread = 1 + math.sin(seed) / 3
    found: dict[str, object] = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(shape),
        "Max": 3.1 * spread,
        "Min": -3.2 * spread,
        "Mean": 0.01 * math.cos(seed),
        "Norm": math.sqrt(math.prod(shape)) * spread,
        "requires_grad": True,
    }
    return found if value_id is None else found | {"value_id": value_id}


class Gpt:
    """The records of one rank: a chain of layers, each of modules and APIs, then backward."""

    def __init__(self, layers: int, spoiled: int | None, stages: int = 1) -> None:
        self.records: dict[str, object] = {}
        self.parents: dict[str, str | None] = {}
        self._calls: dict[str, int] = {}
        self._seed = 0.0
        self._value = 0
        self._spoiled = spoiled
        self._root(layers, stages)

    def _root(self, layers: int, stages: int) -> None:
        root = "Module.model.GPT.{}.0"
        self._begin(root, None)
        first = self._value
        for stage in range(stages):
            around, begin = f"Module.model.stages.{stage}.Stage.{{}}.0", self._value
            self._begin(around, root)
            for layer in range(stage * layers // stages, (stage + 1) * layers // stages):
                self._layer(layer, around, is_spoiled=layer == self._spoiled)
            self._end(around, begin)
        self._end(root, first)

    def _layer(self, number: int, root: str, *, is_spoiled: bool) -> None:
        path = f"Module.model.layers.{number}"
        block = f"{path}.Block.{{}}.0"
        self._begin(block, root)
        first = self._value
        self._module(f"{path}.ln1.LayerNorm", block, "Functional.layer_norm")
        attention = f"{path}.attn.Attention.{{}}.0"
        self._begin(attention, block)
        inside = self._value
        self._module(f"{path}.attn.qkv.Linear", attention, "Functional.linear")
        for api in ("view", "permute", "unbind", "transpose", "__matmul__", "__truediv__"):
            self._api(f"Tensor.{api}", attention)
        self._api("Torch.softmax", attention)
        for api in ("__matmul__", "transpose", "reshape"):
            self._api(f"Tensor.{api}", attention)
        self._module(f"{path}.attn.out.Linear", attention, "Functional.linear")
        self._end(attention, inside)
        self._api("Tensor.__add__", block)
        self._module(f"{path}.ln2.LayerNorm", block, "Functional.layer_norm")
        mlp = f"{path}.mlp.MLP.{{}}.0"
        self._begin(mlp, block)
        inside = self._value
        self._module(f"{path}.mlp.fc1.Linear", mlp, "Functional.linear", is_spoiled=is_spoiled)
        self._api("Functional.gelu", mlp)
        self._module(f"{path}.mlp.fc2.Linear", mlp, "Functional.linear")
        self._end(mlp, inside)
        self._api("Tensor.__add__", block)
        self._end(block, first)

    def _begin(self, name: str, parent: str | None) -> None:
        for direction in ("forward", "backward"):
            around = None if parent is None else parent.format(direction)
            self.parents[name.format(direction)] = around

    def _end(self, name: str, first: int) -> None:
        self._put(name, [self._tensor(first)], [self._tensor(self._value)])

    def _module(self, path: str, parent: str, api: str, *, is_spoiled: bool = False) -> None:
        name = f"{path}.{{}}.0"
        self._begin(name, parent)
        first = self._value
        self._seed += 0.009 * is_spoiled
        weight = tensor((4 * WIDTH, WIDTH), len(self.records) + 0.5 * is_spoiled)
        self._api(api, name, weight)
        self._put(name, [self._tensor(first)], [self._tensor(self._value)], weight)
        self.records[f"{path}.parameters_grad"] = {"weight": [tensor((WIDTH,), self._seed)]}

    def _api(self, api: str, parent: str, weight: dict[str, object] | None = None) -> None:
        number = self._calls.get(api, 0)
        self._calls[api] = number + 1
        name = f"{api}.{number}.{{}}"
        self._begin(name, parent)
        before = self._tensor(self._value)
        self._value += 1
        inputs = [before] if weight is None else [before, weight]
        self._put(name, inputs, [self._tensor(self._value)])

    def _tensor(self, value: int) -> dict[str, object]:
        return tensor((2, 16, WIDTH), self._seed + value, value + 1)

    def _put(
        self,
        name: str,
        inputs: list[dict[str, object]],
        outputs: list[dict[str, object]],
        weight: dict[str, object] | None = None,
    ) -> None:
        record: dict[str, object] = {"input_args": inputs, "input_kwargs": {}, "output": outputs}
        if weight is not None:
            record["parameters"] = {"weight": weight}
        self.records[name.format("forward")] = record
        gradients = [tensor((2, 16, WIDTH), self._seed + 0.1 * len(self.records))]
        self.records[name.format("backward")] = {"input": gradients, "output": gradients}


def write_dump(
    folder: Path, layers: int, ranks: int, *, is_spoiled: bool = False, stages: int = 1
) -> Path:
    """Write a dump; with `is_spoiled`, with another weight in the layer in the middle."""
    stack = ["File train.py, line 12, in forward, \n y = self.fc(x)"]
    for rank in range(ranks):
        made = Gpt(layers, layers // 2 if is_spoiled else None, stages)
        place = folder / "step0" / f"rank{rank}"
        place.mkdir(parents=True)
        head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
        lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in made.records.items())
        text = json.dumps(head)[:-1] + ', "data": {\n' + ",\n".join(lines) + "\n}}"
        (place / "dump.json").write_text(text)
        (place / "construct.json").write_text(json.dumps(made.parents))
        (place / "stack.json").write_text(json.dumps({"0": [[*made.parents], stack]}))
    return folder


def measure(output: Path, dumps: list[Path]) -> str:
    """Return the cost of building, or of comparing, and the size of the file."""
    words = [sys.executable, "-c", MEASURE, str(output), *map(str, dumps)]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    opened, written, whole, peak = map(float, ran.stdout.split())
    size = output.stat().st_size / 1e6
    return (
        f"{opened:5.2f} + {written:4.2f} CPU s ({whole:5.2f} in all), {peak:4.0f} MB peak, "
        f"{size:5.2f} MB written"
    )


def measure_peer(python: Path, output: Path, dumps: list[Path]) -> str:
    """Return the cost of the same with mindstudio-probe."""
    words = [str(python.with_name("msprobe")), "graph_visualize", "-o", str(output)]
    for option, dump in zip(("-tp", "-gp"), dumps, strict=False):
        words += [option, str(dump)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, capture_output=True, check=True)
    after, elapsed = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = sum(file.stat().st_size for file in output.glob("*.vis.db")) / 1e6
    return f"{cpu:5.2f} CPU s, {elapsed:5.2f} s wall, {size:5.2f} MB written"


def cases(folder: Path, layers: int, ranks: int) -> Iterator[tuple[str, list[Path]]]:
    new = write_dump(folder / "new", layers, ranks, is_spoiled=True)
    old = write_dump(folder / "old", layers, ranks, is_spoiled=False)
    yield "build", [new]
    yield "compare", [new, old]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[24, 96])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--peer", type=Path, help="a Python with mindstudio-probe")
    options = parser.parse_args()
    for layers in options.layers:
        folder = Path(tempfile.mkdtemp())
        try:
            for name, dumps in cases(folder, layers, options.ranks):
                title = f"{options.ranks} x {layers} layers, {name}:"
                print(title, measure(folder / f"{name}.vis.db", dumps), flush=True)
                if options.peer is not None:
                    print("  peer:", measure_peer(options.peer, folder / f"peer_{name}", dumps))
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
