# SPDX-License-Identifier: Apache-2.0
"""Hold `debugger.estimate` against recordings: ten models, records, time, disk and memory.

Estimates and recordings of a model, each in a process of its own, take turns: a busy machine
slows both. Rounds go on until both medians are known to 5 %. Times are CPU times of the training
thread.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from bench_models import build
from torch import Tensor, nn

# msprobe takes its clock when it is imported.
time.perf_counter = time.thread_time
from msprobe.dump.estimates import is_known, peak_memory, recorded_step  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

STEPS = 13
FEWEST_ROUNDS, ERROR = 5, 0.05
# Imported once, not in each process.
PRELOADED = ("torch._dynamo", "msprobe.pytorch.observer", "msprobe.pytorch.estimating")
KEYS = ("records", "capture_s", "size_bytes", "memory_bytes")


@dataclass(frozen=True)
class Case:
    """A model and what makes its loss."""

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]


def _of_workload(name: str) -> Case:
    workload = build(name)
    return Case(workload.model, lambda _model, _batch: workload.forward())


def _mlp() -> Case:
    widths = (64, 128, 128, 10)
    layers = [each for a, b in itertools.pairwise(widths) for each in (nn.Linear(a, b), nn.GELU())]
    batch = torch.randn(32, 64)
    return Case(nn.Sequential(*layers), lambda model, _: model(batch).square().mean())


def _lstm() -> Case:
    batch = torch.randn(8, 20, 32)
    model = nn.LSTM(32, 64, num_layers=2, batch_first=True)
    return Case(model, lambda model, _: model(batch)[0].square().mean())


class _Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(32, 256), nn.LeakyReLU(0.2), nn.Linear(256, 784), nn.Tanh()
        )
        self.critic = nn.Sequential(
            nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(256, 1)
        )


def _gan() -> Case:
    noise, real = torch.randn(64, 32), torch.rand(64, 784) * 2 - 1

    def loss(model: nn.Module, _: Any) -> Tensor:
        made = model.generator(noise)
        judged = [model.critic(each) for each in (real, made.detach(), made)]
        truths = (torch.ones, torch.zeros, torch.ones)
        pairs = zip(judged, truths, strict=True)
        return sum(F.binary_cross_entropy_with_logits(x, truth(64, 1)) for x, truth in pairs)

    return Case(_Gan(), loss)


def _of_transformers(name: str) -> Case:
    ids = torch.randint(0, 200, (4, 64))
    common = {"vocab_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3}
    small = {**common, "hidden_size": 64, "intermediate_size": 128}
    if name == "bert":
        config = transformers.BertConfig(**small)
        model = transformers.BertForMaskedLM(config)
        return Case(model, lambda model, _: model(input_ids=ids, labels=ids).loss)
    if name == "vit":
        vit = transformers.ViTConfig(**small, image_size=32, patch_size=4, num_labels=10)
        images, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
        model = transformers.ViTForImageClassification(vit)
        return Case(model, lambda model, _: model(pixel_values=images, labels=labels).loss)
    if name == "t5":
        t5 = transformers.T5Config(
            vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4
        )
        t5.decoder_start_token_id = 0
        model = transformers.T5ForConditionalGeneration(t5)
        return Case(model, lambda model, _: model(input_ids=ids, labels=ids).loss)
    moe = transformers.MixtralConfig(
        **small, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    )
    model = transformers.MixtralForCausalLM(moe)
    return Case(model, lambda model, _: model(input_ids=ids, labels=ids).loss)


MODELS: dict[str, Callable[[], Case]] = {
    "mlp": _mlp,
    "lstm": _lstm,
    "gan": _gan,
    "conv": lambda: _of_workload("conv"),
    "gpt": lambda: _of_workload("gpt"),
    "llama": lambda: _of_workload("llama"),
    "moe": lambda: _of_transformers("moe"),
    "vit": lambda: _of_transformers("vit"),
    "bert": lambda: _of_transformers("bert"),
    "t5": lambda: _of_transformers("t5"),
}


def _estimated(case: Case, folder: str, level: str, task: str) -> dict[str, Any]:
    debugger = PrecisionDebugger(dump_path=folder, level=level, task=task)
    optimizer = torch.optim.AdamW(case.model.parameters())
    (found,) = debugger.estimate(
        case.model, None, run_model=case.loss, optimizer=optimizer, levels=[level], tasks=[task]
    )
    return asdict(found)


def _recorded(case: Case, folder: str, level: str, task: str) -> dict[str, Any]:
    debugger = PrecisionDebugger(dump_path=folder, level=level, task=task)
    optimizer = torch.optim.AdamW(case.model.parameters())
    for _ in range(STEPS):
        debugger.start(case.model)
        case.loss(case.model, None).backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    steps = [recorded_step(Path(folder), number) for number in range(1, STEPS)]
    assert all(steps)
    return {
        "records": steps[-1].records,
        "capture_s": statistics.median(each.capture_s for each in steps),
        "size_bytes": steps[-1].size_bytes,
        "memory_bytes": peak_memory("self"),
    }


def measured(
    what: Callable[[Case, str, str, str], dict[str, Any]], name: str, level: str, task: str
) -> dict[str, Any]:
    """Return what a process of its own measures, which imports nothing again.

    Args:
        what: measures.
        name: of the model.
        level: to record at.
        task: to record.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.manual_seed(1)
                found = what(MODELS[name](), f"{folder}/dump", level, task)
                result.write_text(json.dumps(found))
                code = 0
            finally:
                os._exit(code)
        os.waitpid(child, 0)
        return json.loads(result.read_text())


def _are_known(rounds: list[list[dict[str, Any]]]) -> bool:
    """Return whether the median times of both sides are known."""
    if len(rounds) < FEWEST_ROUNDS:
        return False
    return all(is_known([each[side]["capture_s"] for each in rounds], ERROR) for side in (0, 1))


def main() -> None:
    """Print what was recorded, and how far the estimates are off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--levels", nargs="*", default=["mix"])
    parser.add_argument("--tasks", nargs="*", default=["statistics", "tensor"])
    parser.add_argument("--rounds", type=int, default=15, help="at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for module in PRELOADED:
        importlib.import_module(module)
    print(f"{'model':8}{'level':8}{'task':12}" + "".join(f"{key:>24}" for key in KEYS) + "  rounds")
    for name, level, task in itertools.product(options.models, options.levels, options.tasks):
        rounds: list[list[dict[str, Any]]] = []
        while len(rounds) < options.rounds and not _are_known(rounds):
            rounds.append([measured(what, name, level, task) for what in (_estimated, _recorded)])
        cells = []
        for key in KEYS:
            foretold, real = (
                statistics.median(each[side][key] for each in rounds) for side in (0, 1)
            )
            cells.append(f"{real:14.6g} {foretold / real - 1:+9.1%}")
        print(f"{name:8}{level:8}{task:12}{''.join(cells)}{len(rounds):8}", flush=True)


if __name__ == "__main__":
    main()
