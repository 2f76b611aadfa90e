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
LEFT_OUT = ("details", "source")


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
    print(name, *(graph["count"] for graph in made["graphs"]), len(text), flush=True)


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


def transformers_models() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    import torch
    import transformers as tf

    ids = torch.arange(12).reshape(2, 6) + 1
    small = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4}
    wide = {**small, "intermediate_size": 64, "vocab_size": 40}
    made: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "gpt2": (
            tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=4, n_head=2, vocab_size=40)),
            lambda model: model(ids, labels=ids).loss,
        ),
        "llama": (
            tf.LlamaForCausalLM(tf.LlamaConfig(**wide, num_key_value_heads=1)),
            lambda model: model(ids, labels=ids).loss,
        ),
        "bert": (
            tf.BertForMaskedLM(tf.BertConfig(**wide)),
            lambda model: model(ids, labels=ids).loss,
        ),
        "t5": (
            tf.T5ForConditionalGeneration(
                tf.T5Config(
                    **{"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 3, "num_heads": 2},
                    **{"vocab_size": 40, "pad_token_id": 0, "decoder_start_token_id": 0},
                )
            ),
            lambda model: model(ids, labels=ids).loss,
        ),
        "mixtral": (
            tf.MixtralForCausalLM(
                tf.MixtralConfig(**wide, num_key_value_heads=1, num_local_experts=4)
            ),
            lambda model: model(ids, labels=ids).loss,
        ),
        "vit": (
            tf.ViTForImageClassification(tf.ViTConfig(**small, image_size=32, patch_size=8)),
            lambda model: model(torch.randn(2, 3, 32, 32)).logits.square().mean(),
        ),
    }
    return made


def torch_models() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from traced_models import (
        DenseConvolutions,
        Experts,
        Recurrent,
        Residual,
        Transformer,
    )

    def convolution(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU()
        )

    class BasicBlock(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.conv2 = (
                convolution(inside, outside, stride),
                convolution(outside, outside),
            )
            self.downsample = nn.Conv2d(inside, outside, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.conv2(self.conv1(x)) + self.downsample(x))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = convolution(3, 8)
            self.stages = nn.ModuleList(
                nn.Sequential(BasicBlock(a, b, s), BasicBlock(b, b, 1))
                for a, b, s in ((8, 8, 1), (8, 16, 2), (16, 16, 2))
            )
            self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for stage in self.stages:
                x = stage(x)
            return self.head(self.pool(x).flatten(1))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList(convolution(a, b) for a, b in ((3, 4), (4, 8), (8, 8)))
            self.middle = convolution(8, 8)
            self.up = nn.ModuleList(nn.ConvTranspose2d(8, 8, 2, 2) for _ in range(3))
            self.join = nn.ModuleList(convolution(a, 8) for a in (16, 16, 12))
            self.out = nn.Conv2d(8, 3, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for layer in self.down:
                x = layer(x)
                kept.append(x)
                x = nn.functional.max_pool2d(x, 2)
            x = self.middle(x)
            for up, join in zip(self.up, self.join, strict=True):
                x = join(torch.cat([up(x), kept.pop()], 1))
            return self.out(x)

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(16, 20)
            self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(self.embedding(x))[0])

    class EncoderDecoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = nn.Transformer(16, 2, 2, 2, 32, 0.0, batch_first=True)
            self.head = nn.Linear(16, 9)

        def forward(self, source: Any, wanted: Any) -> Any:
            return self.head(self.core(source, wanted))

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
                for _ in range(4)
            )

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + checkpoint(layer, x, use_reentrant=False)
            return x

    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(
                nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 16), nn.Tanh()
            )
            self.judge = nn.Sequential(nn.Linear(16, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def gan_loss(model: Any) -> Any:
        noise, real, loss = torch.randn(4, 6), torch.randn(4, 16), nn.BCEWithLogitsLoss()
        made = model.generator(noise)
        judged = loss(model.judge(real), torch.ones(4, 1))
        judged = judged + loss(model.judge(made.detach()), torch.zeros(4, 1))
        judged.backward()
        return loss(model.judge(made), torch.ones(4, 1))

    def square(*inputs: Any) -> Callable[[Any], Any]:
        return lambda model: model(*inputs).square().mean()

    images = torch.randn(2, 3, 16, 16)
    ids = torch.arange(12).reshape(2, 6) + 1
    return {
        "resnet": (ResNet(), square(images)),
        "unet": (UNet(), square(images)),
        "densenet": (DenseConvolutions(), square(images)),
        "lstm": (Lstm(), square(ids)),
        "unrolled": (Recurrent(), square(torch.randn(2, 3, 6))),
        "experts": (Experts(), square(torch.randn(4, 8))),
        "encoder-decoder": (EncoderDecoder(), square(torch.randn(2, 5, 16), torch.randn(2, 4, 16))),
        "gan": (Gan(), gan_loss),
        "recomputed": (Recomputed(), square(torch.randn(3, 8))),
        "residual": (Residual(), square(torch.randn(3, 8))),
        "shared-weights": (Transformer(), square(ids)),
    }


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

    for name, (model, loss) in (transformers_models() | torch_models()).items():
        torch.manual_seed(0)
        write(folder, name, record(work / name, lambda: loss(model).backward(), model))
        if name == "gpt2":
            with torch.no_grad():
                weight = model.transformer.h[2].mlp.c_fc.weight
                weight += 0.02 * torch.randn_like(weight)
            torch.manual_seed(0)
            new = record(work / "changed", lambda: loss(model).backward(), model)
            write(folder, "gpt2-compared", new, work / name)
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
