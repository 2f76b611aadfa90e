# SPDX-License-Identifier: Apache-2.0
"""Rows of optimizers that keep gradients and states in partitions, against what these tell."""

from __future__ import annotations

import ast
import json
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from families.process_group import run_ranks

import msprobe

pytestmark = [pytest.mark.torch, pytest.mark.slow]

DEEPSPEED = """
import math
import os
import torch
from torch import nn
os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK=str(rank))
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled
from deepspeed.utils import safe_get_full_grad, safe_get_full_optimizer_state
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger, TrainerMon

def train(stage, kind, monitored):
    is_half = kind == "fp16"  # its first scale, 2^18, overflows: the first steps are skipped
    scaling = {"initial_scale_power": 18, "hysteresis": 1} if is_half else {}
    accumulates = {"data_types": {"grad_accum_dtype": "fp32"}} if stage == 1 else {}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    names = [name for name, _ in model.named_parameters()]
    config = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage}, "gradient_clipping": 0.01,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False, kind: {"enabled": True, **scaling}, **accumulates,
    }
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, config=config, model_parameters=model.parameters()
    )
    parameters = dict(zip(names, model.parameters(), strict=True))
    micro_gradients = {} if monitored else {name: [] for name in names}
    for name, found in micro_gradients.items():
        parameters[name].register_hook(lambda gradient, found=found: found.append(gradient.float()))
    if monitored:
        path = folder / f"monitor{rank}.json"
        path.write_text(json.dumps({
            "ops": ["norm"], "output_dir": str(folder / "runs"), "run": f"zero{stage}_{kind}",
            "wg_distribution": True, "mv_distribution": True, "param_distribution": True,
            "ur_distribution": True, "mg_direction": True, "xy_distribution": True,
        }))
        monitor = TrainerMon(path)
        monitor.set_monitor(model, optimizer, 2, dp_group=torch.distributed.group.WORLD)
        reset_session()
        probe = PrecisionDebugger(task="grad_probe", dump_path=str(folder / f"{stage}_{kind}"))
        probe.monitor(engine)
    torch.manual_seed(rank + 1)
    losses, expected, unreduced, norms = [], {}, {}, {}
    for step in range(3):
        for micro in range(2):
            x = torch.randn(2, 7).to(torch.float16 if is_half else torch.bfloat16)
            loss = engine(x).float().square().mean()
            losses.append(loss.item().hex())
            engine.backward(loss)
            if micro == 1 and not monitored and not is_half:  # its scale would be in them
                for name, one in parameters.items():
                    full = one.grad if stage == 0 else safe_get_full_grad(one)
                    expected[f"grad_reduced {name} {step}"] = full.float().norm().item()
                    if step == 2 and stage:
                        state = safe_get_full_optimizer_state(one, "exp_avg_sq")
                        expected[f"exp_avg_sq {name} {step}"] = state.float().norm().item()
            engine.step()
        for name, found in micro_gradients.items():
            added = sum(found) if stage < 2 else found[-1]
            found.clear()
            if added.isfinite().all():
                unreduced[f"{name} {step}"] = added.norm().item()
        if math.isfinite(optimizer._global_grad_norm):
            norms[step] = float(optimizer._global_grad_norm)
    if monitored:
        monitor.close()
        probe.stop()
    return {"losses": losses, "expected": expected, "unreduced": unreduced, "norms": norms}

cases = {}
for stage, kind in options["cases"]:
    for monitored in (False, True):
        cases[f"{stage} {kind} {monitored}"] = train(stage, kind, monitored)
report({"cases": repr(cases)})
"""


def probed(folder: Path, name: str, step: str, *, ranks: int) -> tuple[float, str]:
    """Return the norm of a gradient in files of `grad_probe`, and which part a rank has of it."""
    norms, shard = [], ""
    for path in sorted(folder.glob(f"rank*/step{step}/gradients.npz"))[:ranks]:
        with np.load(path) as file:
            if f"module.{name}/facts" in file:
                facts = json.loads(bytes(file[f"module.{name}/facts"]))
                norms.append(facts["norm"])
                shard = shard or facts["shard"]
    return math.hypot(*norms), shard


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_zero_of_deepspeed(tmp_path: Path) -> None:
    cases = [(0, "bf16"), (1, "bf16"), (2, "bf16"), (3, "bf16")]
    if torch.ops.mkldnn._is_mkldnn_fp16_supported():  # DeepSpeed refuses other CPUs
        cases += [(0, "fp16"), (1, "fp16"), (2, "fp16"), (3, "fp16")]
    reported = run_ranks(DEEPSPEED, tmp_path, options={"cases": cases})
    found = [ast.literal_eval(one["cases"]) for one in reported]
    for stage, kind in cases:
        for of_rank in found:
            plain, monitored = (of_rank[f"{stage} {kind} {one}"] for one in (False, True))
            assert plain["losses"] == monitored["losses"], (stage, kind)
        with msprobe.open_monitor(tmp_path / "runs" / f"zero{stage}_{kind}") as run:
            for key, expected in plain["expected"].items():
                stream, name, step = key.split()
                parts = run.table(stream, steps=[int(step)], names=[name])["norm"].to_list()
                whole = parts[:1] if stage < 2 and stream == "grad_reduced" else parts
                got = math.sqrt(sum(part * part for part in whole))
                assert got == pytest.approx(expected, rel=1e-5), (stage, key)
                if stream == "grad_reduced":
                    got, shard = probed(
                        tmp_path / f"{stage}_{kind}", name, step, ranks=1 + (stage > 1)
                    )
                    assert got == pytest.approx(expected, rel=1e-5), (stage, key)
                    # Others may lie on one rank as a whole.
                    assert name != "0.weight" or bool(shard) == (stage > 1), (stage, key)
            run_rows = run.table("run", ranks=[0])
            told = {
                name: run_rows.filter(pl.col("name") == name) for name in run_rows["name"].unique()
            }
            norms = dict(told["grad_norm"].select("step", "value").iter_rows())
            assert norms == {
                step: pytest.approx(norm, rel=1e-6) for step, norm in plain["norms"].items()
            }
            losses = found[0][f"{stage} {kind} False"]["losses"]
            halves = [float.fromhex(loss) / 2 for loss in losses]  # of two micro steps
            assert told["loss"]["value"].to_list() == halves
            if kind == "fp16":
                skipped = told["skipped"]["value"].to_list()
                assert skipped == [float(step not in plain["norms"]) for step in range(3)]
                scale = 2.0 ** (17 if 1.0 in skipped else 18)
                assert set(told["loss_scale"]["value"]) == {scale}
            clipped = run.series("run", "grad_norm_clipped", "value")["value"]
            assert clipped.max() == pytest.approx(0.01, rel=1e-3)
            assert run.table("exp_avg_sq", steps=[2], ranks=[0]).height
            updated = run.table("param_updated", steps=[2], ranks=[0])
            assert updated["name"].to_list() == ["0.weight", "0.bias", "2.weight", "2.bias"]
            # What ZeRO 0 adds up in low precision is rounded; 2 and 3 reduce each micro batch.
            close = 1e-2 if stage == 0 else 1e-5
            for rank, of_rank in enumerate(found):
                added = of_rank[f"{stage} {kind} False"]["unreduced"]
                assert len(added) >= 4
                for key, expected in added.items():
                    name, step = key.split()
                    rows = run.table(
                        "grad_unreduced", steps=[int(step)], names=[name], ranks=[rank]
                    )
                    assert rows["norm"].to_list() == [pytest.approx(expected, rel=close)], key


MEGATRON = """
import torch

def on_cpu(make):
    def made(*args, **kwargs):
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return make(*args, **kwargs)
    return made

# Megatron-core asks for CUDA by name; its own classes then compute on the CPU.
for name in ("tensor", "zeros", "empty", "full", "ones", "zeros_like", "empty_like"):
    setattr(torch, name, on_cpu(getattr(torch, name)))
plain_type = torch.Tensor.type
torch.Tensor.type = lambda tensor, *args, **kwargs: (
    plain_type(tensor, *args, **kwargs)
    if args or kwargs
    else plain_type(tensor).replace("torch.", "torch.cuda.")
)
torch.Tensor.cuda = lambda tensor, *_, **__: tensor
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *_: None

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from torch import nn
from msprobe.pytorch import TrainerMon

parallel_state.initialize_model_parallel()

def train(cut, monitored):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)).bfloat16()
    shape = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    ways = DistributedDataParallelConfig(use_distributed_optimizer=cut, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(shape, ways, model)
    settings = OptimizerConfig(
        optimizer="adam", lr=0.01, min_lr=0.001, bf16=True, clip_grad=0.05,
        use_distributed_optimizer=cut, params_dtype=torch.bfloat16,
    )
    optimizer = get_megatron_optimizer(settings, [model])
    if monitored:
        path = folder / f"monitor{rank}.json"
        path.write_text(json.dumps({
            "ops": ["norm"], "output_dir": str(folder / "runs"), "run": f"cut{cut}",
            "wg_distribution": True, "mv_distribution": True, "param_distribution": True,
            "mg_direction": True,
        }))
        monitor = TrainerMon(path)
        monitor.set_monitor(model, optimizer, 2, dp_group=torch.distributed.group.WORLD)
    torch.manual_seed(rank)
    losses, norms, unreduced = [], [], []
    for step in range(3):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        for micro in range(2):
            loss = model(torch.randn(2, 7).bfloat16()).float().square().mean()
            loss.backward()
            losses.append(loss.item().hex())
        unreduced.append(model.module[0].weight.main_grad.norm().item())
        model.finish_grad_sync()
        norms.append(optimizer.step()[1])
    if monitored:
        monitor.close()
    return {"losses": losses, "norms": norms, "unreduced": unreduced}

cases = {}
for cut in (False, True):
    for monitored in (False, True):
        cases[f"{cut} {monitored}"] = train(cut, monitored)
report({"cases": repr(cases)})
"""


@pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed")
def test_optimizers_of_megatron(tmp_path: Path) -> None:
    found = [ast.literal_eval(one["cases"]) for one in run_ranks(MEGATRON, tmp_path)]
    for cut in (False, True):
        with msprobe.open_monitor(tmp_path / "runs" / f"cut{cut}") as run:
            for rank, of_rank in enumerate(found):
                plain = of_rank[f"{cut} False"]
                assert plain["losses"] == of_rank[f"{cut} True"]["losses"]
                rows = run.table("grad_unreduced", names=["module.0.weight"], ranks=[rank])
                assert rows["norm"].to_list() == pytest.approx(plain["unreduced"], rel=1e-6)
            for step, norm in enumerate(plain["norms"]):
                # Of the distributed optimizer each rank has its part, of the other all of it.
                rows = run.table("grad_reduced", steps=[step], ranks=None if cut else [0])
                assert math.hypot(*rows["norm"]) == pytest.approx(norm, rel=1e-6)
                told = run.table("run", names=["grad_norm"], steps=[step], ranks=[1])
                assert told["value"].to_list() == [norm]
            moments = run.table("exp_avg", steps=[2], ranks=None if cut else [0])
            assert sorted(moments["name"]) == sorted(
                f"module.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")
            )
