# SPDX-License-Identifier: Apache-2.0
"""Monitoring several ranks: one run, a file each, gradients before and after their reduction."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from families import differences
from families.process_group import DISTRIBUTED_FAMILIES, SHARDED_FAMILIES, run_ranks

import msprobe
from msprobe.cli import main
from msprobe.monitor.pictures import Pictures
from msprobe.monitor.reduction import clipping
from msprobe.monitor.reduction_check import check_reduction

pytestmark = pytest.mark.torch

FAMILIES = {**DISTRIBUTED_FAMILIES, **SHARDED_FAMILIES}
PLAIN = """
from restoration import changes, snapshot
families = {**DISTRIBUTED_FAMILIES, **SHARDED_FAMILIES}
case = families[options["family"]](7)
before = snapshot(*case.modules)
found = train(case)
report(found | {"left behind": "; ".join(changes(before, snapshot(*case.modules)))})
"""
MONITORED = """
import torch.distributed as dist
from restoration import changes, snapshot
from msprobe.pytorch import TrainerMon
families = {**DISTRIBUTED_FAMILIES, **SHARDED_FAMILIES}
case = families[options["family"]](7)
before = snapshot(*case.modules)
path = folder / f"monitor{rank}.json"
path.write_text(json.dumps({
    "ops": ["norm", "zeros", "nans"], "output_dir": str(folder / "runs"),
    "xy_distribution": True, "wg_distribution": True, "mv_distribution": True,
    "param_distribution": True, "ur_distribution": True,
    "cc_distribution": {"enable": True, "cc_pre_hook": True},
}))
monitor = TrainerMon(path)
monitor.set_monitor(case.modules, case.optimizers[0])
found = train(case)
monitor.close()
report(found | {"left behind": "; ".join(changes(before, snapshot(*case.modules)))})
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_monitored_distributed_training_is_bit_identical(family: str, tmp_path: Path) -> None:
    options = {"family": family}
    expected = run_ranks(PLAIN, tmp_path / "plain", options=options)
    found = run_ranks(MONITORED, tmp_path / "monitored", options=options)
    for rank, (plain, monitored) in enumerate(zip(expected, found, strict=True)):
        # FSDP2 itself leaves hooks behind.
        assert monitored.pop("left behind") == plain.pop("left behind"), rank
        assert differences(plain, monitored) == []
    runs = list((tmp_path / "monitored" / "runs").iterdir())
    assert len(runs) == 1
    with msprobe.open_monitor(runs[0]) as run:
        assert run.ranks == [0, 1]
        assert run.table("param_updated").height
        assert run.table("actv").height


REDUCED = """
import logging
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from msprobe.pytorch import TrainerMon
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
path = folder / f"monitor{rank}.json"
path.write_text(json.dumps({
    "ops": ["norm"], "output_dir": str(folder / "runs"), "wg_distribution": True,
    "cc_distribution": {"enable": True, "cc_pre_hook": True}, "param_distribution": True,
    "streams": {"param_origin": {"ranks": [1]}},
}))
told = []
absences = logging.getLogger("msprobe.monitor.collecting.absences")
absences.addFilter(lambda record: told.append(record.getMessage()) or True)
monitor = TrainerMon(path)
group = dist.new_group([0, 1]) if options["dp_group"] else None
monitor.set_monitor(model, optimizer, dp_group=group)
norms = []
for step in range(2):
    x = torch.full((1, 3), 1.0 + rank)
    model(x).square().sum().backward()
    norms.append(model.module.weight.grad.norm().item())
    flag = torch.tensor([float(rank)])
    dist.all_reduce(flag)
    optimizer.step()
    optimizer.zero_grad()
monitor.close()
report({"norms": repr(norms), "told": repr(told)})
"""


SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from msprobe.pytorch import TrainerMon
mesh = init_device_mesh("cpu", (2,))
model = nn.Linear(2, 4, bias=False)
model.weight = nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
path = folder / f"monitor{rank}.json"
path.write_text(json.dumps({"output_dir": str(folder / "runs"), "wg_distribution": True}))
monitor = TrainerMon(path)
monitor.set_monitor(model, optimizer)
for step in range(2):
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
with monitor.open() as run:
    table = run.rows("run", names=["grad_norm", "grad_norm_clipped"])
    found = table.filter(table["rank"] == rank).select("step", "name", "value").rows()
monitor.close()
report({"found": repr(found)})
"""


def test_the_norm_of_a_part_is_not_taken_for_that_of_all_gradients(tmp_path: Path) -> None:
    for found in run_ranks(SHARDED, tmp_path):
        assert found["found"] == "[]"
        with msprobe.open_monitor(tmp_path / "runs") as run:
            assert run.gradient_norms()["grad_norm"].to_list() == pytest.approx([8**0.5] * 2)


@pytest.mark.parametrize("dp_group", [False, True])
def test_gradients_before_and_after_reduction(dp_group: bool, tmp_path: Path) -> None:
    found = run_ranks(REDUCED, tmp_path, options={"dp_group": dp_group})
    assert [one["told"] for one in found] == ["[]", "[]"]  # rank 0 has what rank 1 leaves out
    name = "module.weight"
    with msprobe.open_monitor(tmp_path / "runs") as run:
        unreduced = run.series("grad_unreduced", name, "norm").filter(pl.col("step") == 0)
        reduced = run.table("grad_reduced", names=[name])
        sent = run.table("other", names=["all_reduce.pre_0"], steps=[0]).drop_nulls("norm")
        got = run.table("other", names=["all_reduce.post_0"], steps=[0])
        origin = run.table("param_origin")
        head = run.heads(1)[0]
    low, high = sorted(unreduced["value"])
    assert high > 1.5 * low
    expected = eval(found[0]["norms"])
    assert reduced["rank"].unique().sort().to_list() == ([0] if dp_group else [0, 1])
    of_first = reduced.filter(pl.col("rank") == 0)["norm"].to_list()
    np.testing.assert_allclose(of_first, expected, rtol=1e-6)
    assert sent.sort("rank")["norm"].to_list() == [0.0, 1.0]
    assert got["norm"].drop_nulls().to_list() == [1.0, 1.0]
    assert len(set(got["checksum"].drop_nulls())) == 1
    assert origin["rank"].unique().to_list() == [1]
    assert head["world_size"] == 2
    assert head["groups"] == ({"dp": [0, 1]} if dp_group else {})


FULLY_SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from contextlib import nullcontext
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from msprobe.pytorch import PrecisionDebugger, TrainerMon
def make():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(5, 5))
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), inner, nn.Linear(5, 2))
def inputs(step, micro):
    return torch.full((2, 3), 1.0 + rank + step + micro / 2)
model, plain = make(), make()
if options["form"] != 1:
    fully_shard(model[2])
    fully_shard(model)
else:
    wrap = lambda one: FullyShardedDataParallel(one, use_orig_params=True, device_id=cpu)
    cpu = torch.device("cpu")
    model[2] = wrap(model[2])
    model = wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
reference = torch.optim.SGD(plain.parameters(), lr=0.01)
path = folder / f"monitor{rank}.json"
path.write_text(json.dumps({
    "ops": ["norm", "absmax", "mean"], "output_dir": str(folder / "runs"), "wg_distribution": True,
}))
monitor = TrainerMon(path)
monitor.set_monitor(model, optimizer, grad_acc_steps=2, dp_group=dist.group.WORLD)
probe = PrecisionDebugger(task="grad_probe", dump_path=str(folder / "probe"))
probe.monitor(model)
norms = []
for step in range(3):
    for micro in range(2):
        if options["form"] == 2:
            model.set_requires_gradient_sync(micro == 1)
        with model.no_sync() if options["form"] == 1 and micro == 0 else nullcontext():
            model(inputs(step, micro)).square().mean().backward()
        plain(inputs(step, micro)).square().mean().backward()
        if micro == 0 and options["form"] == 3:  # what FSDP2 reduces is taken away each time
            first = [one.grad.clone() for one in plain.parameters()]
    with torch.no_grad():
        if options["form"] == 3:
            added = [one.grad.clone() for one in plain.parameters()]
            for one, before in zip(plain.parameters(), first):
                one.grad -= before
        norms.append({name: one.grad.norm().item() for name, one in plain.named_parameters()})
        if options["form"] == 3:
            for one, both in zip(plain.parameters(), added):
                one.grad.copy_(both)
        for one in plain.parameters():
            dist.all_reduce(one.grad)
            one.grad /= 2
    optimizer.step()
    reference.step()
    optimizer.zero_grad()
    if step < 2:
        reference.zero_grad()
monitor.close()
probe.stop()
means = {name: one.grad.square().sum().item() for name, one in plain.named_parameters()}
report({"norms": repr(norms), "means": repr(means)})
"""


@pytest.mark.parametrize("form", [1, 2, 3])
def test_gradients_before_fsdp_reduces_them(form: int, tmp_path: Path) -> None:
    reported = run_ranks(FULLY_SHARDED, tmp_path, options={"form": form})
    with msprobe.open_monitor(tmp_path / "runs") as run:
        for rank, found in enumerate(reported):
            for step, norms in enumerate(ast.literal_eval(found["norms"])):
                table = run.table("grad_unreduced", ranks=[rank], steps=[step])
                norm_of, shape_of = (
                    {name.replace("_fsdp_wrapped_module.", ""): one for name, one in rows}
                    for rows in (table.select("name", each).rows() for each in ("norm", "shape"))
                )
                assert norm_of == pytest.approx(norms, 1e-5)
                assert shape_of["2.0.weight"] == "[5, 5]"
        # Those of parts are not that of all gradients.
        assert "grad_norm" not in run.names("run")
        # Each rank has its part, and no check or noise takes a part for the whole.
        if form != 1:
            sizes = [run.shapes("grad_reduced", rank)["2.0.weight"] for rank in range(2)]
            assert sizes == ["[3, 5]", "[2, 5]"]
        assert not any(one.apart for one in check_reduction(run))
        assert run.gradient_noise().height == 0
    parts: dict[str, float] = {}
    for rank in range(2):
        with np.load(tmp_path / "probe" / f"rank{rank}" / "step2" / "gradients.npz") as file:
            for key in file.files:
                name, _, what = key.replace("_fsdp_wrapped_module.", "").partition("/")
                if what == "facts":
                    facts = json.loads(bytes(file[key]))
                    assert facts["shard"] or name != "2.0.weight"  # others lie on one rank
                    parts[name] = parts.get(name, 0.0) + facts["norm"] ** 2
    assert parts == pytest.approx(ast.literal_eval(reported[0]["means"]), 1e-4)


CLIPPED_PARTS = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from msprobe.pytorch import TrainerMon
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
names = ("replicate", "shard")[-len(options["mesh"]):]
mesh = init_device_mesh("cpu", options["mesh"], mesh_dim_names=names)
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
path = folder / f"monitor{rank}.json"
path.write_text(json.dumps({"output_dir": str(folder / "runs"), "wg_distribution": True}))
monitor = TrainerMon(path)
monitor.set_monitor(model, optimizer)
totals, clipped = [], []
for step, limit in enumerate([0.01, 1e6, None]):
    model(torch.full((2, 3), 1.0 + rank + step)).square().mean().backward()
    total = nn.utils.get_total_norm([one.grad for one in model.parameters()])
    totals.append(total.full_tensor().item())
    if limit is not None:
        nn.utils.clip_grad_norm_(model.parameters(), limit, options["norm_type"])
    total = nn.utils.get_total_norm([one.grad for one in model.parameters()])
    clipped.append(total.full_tensor().item())
    optimizer.step()
    optimizer.zero_grad()
monitor.close()
report({"totals": repr(totals), "clipped": repr(clipped)})
"""


@pytest.mark.parametrize("mesh", [(2,), (2, 1), (2, 2)])
def test_parts_of_the_gradient_norm_on_all_ranks_are_the_whole(
    mesh: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reported = run_ranks(
        CLIPPED_PARTS, tmp_path, ranks=math.prod(mesh), options={"mesh": mesh, "norm_type": 2.0}
    )
    totals, clipped = (ast.literal_eval(reported[0][name]) for name in ("totals", "clipped"))
    with msprobe.open_monitor(tmp_path / "runs") as run:
        found = run.gradient_norms()
        if mesh == (2, 1):  # each rank has all
            assert found.is_empty()
            for name, expected in (("grad_norm", totals), ("grad_norm_clipped", clipped)):
                for rank in range(2):
                    values = run.series("run", name, "value", ranks=[rank])["value"].to_list()
                    assert values == pytest.approx(expected, 1e-6)
            return
        assert "grad_norm" not in run.names("run")  # no rank knows it alone
        (line,) = Pictures([run]).answer(
            "series", {"stream": "run", "name": "grad_norm", "op": "value"}
        )["lines"]
        factors = clipping(run)
        path = run.path
    assert [factors[0], factors[1]] == pytest.approx([totals[0] / clipped[0], 1.0], 1e-6)
    assert found["step"].to_list() == [0, 1, 2]
    assert found["grad_norm"].to_list() == pytest.approx(totals, 1e-6)
    assert found["grad_norm_clipped"].to_list() == pytest.approx(clipped, 1e-6)
    assert line["values"] == pytest.approx(totals, 1e-5)
    assert main(["monitor", "show", str(path)]) == 0
    assert "grad_norm" in capsys.readouterr().out
    (path / "rank1.rows").unlink()
    (path / "rank1.index").unlink()
    with msprobe.open_monitor(path) as run:
        assert run.gradient_norms().is_empty()


def test_parts_are_unknown_where_another_norm_is_clipped(tmp_path: Path) -> None:
    run_ranks(CLIPPED_PARTS, tmp_path, ranks=2, options={"mesh": (2,), "norm_type": 1.0})
    with msprobe.open_monitor(tmp_path / "runs") as run:
        assert run.gradient_norms()["step"].to_list() == [2]  # in which nothing is clipped


CLIPPED = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from msprobe.pytorch import TrainerMon
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
path = folder / f"monitor{rank}.json"
path.write_text(json.dumps({
    "ops": ["norm"], "output_dir": str(folder / "runs"), "wg_distribution": True,
}))
monitor = TrainerMon(path)
monitor.set_monitor(model, optimizer)
totals = []
for step in range(2):
    model(torch.full((2, 3), 1.0 + rank + step)).square().mean().backward()
    totals.append(model.clip_grad_norm_(0.01).item())
    optimizer.step()
    optimizer.zero_grad()
monitor.close()
report({"totals": repr(totals)})
"""


def test_the_norm_by_which_fsdp_clips_is_the_gradient_norm(tmp_path: Path) -> None:
    reported = run_ranks(CLIPPED, tmp_path)
    with msprobe.open_monitor(tmp_path / "runs") as run:
        for rank, found in enumerate(reported):
            table = run.table("run", names=["grad_norm", "grad_norm_clipped"], ranks=[rank])
            values = {
                (name, step): one
                for name, step, one in table.select("name", "step", "value").rows()
            }
            totals = ast.literal_eval(found["totals"])
            assert [values["grad_norm", step] for step in range(2)] == pytest.approx(totals)
            assert values["grad_norm_clipped", 1] == pytest.approx(0.01, 1e-3)
