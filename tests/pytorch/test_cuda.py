# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: bits, numbers and waiting, with everything on the device."""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from families import FAMILIES, Fingerprint, TrainCase, differences, train
from oracle import Statistics
from torch import Tensor, nn

import msprobe
from builders.recordings import Setting, observed, recording
from msprobe.cli import main
from msprobe.pytorch import TrainerMon, live_compare
from msprobe.pytorch.values.device_statistics import DeviceBatch
from msprobe.pytorch.values.statistics import summarise

if torch.cuda.is_available():
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SETTINGS = [
    Setting("L0", "statistics"),
    Setting("L1", "statistics"),
    Setting("mix", "statistics"),
    Setting("mix", "tensor"),
    Setting("L1", "md5"),
    Setting("L1", "nan_check"),
    Setting("mix", "overflow_check"),
]
ELSEWHERE = {
    "nested_and_quantised",  # quantised kernels are the CPU's
    "compiled",  # compared with eager code, which needs a reference of its own
}
ON_DEVICE = sorted(set(FAMILIES) - ELSEWHERE)


@pytest.fixture
def on_gpu() -> Iterator[None]:
    """New tensors lie on the GPU, and its kernels give the same bits each time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_device("cuda")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)


@functools.cache
def reference(family: str) -> Fingerprint | str:
    """The run without the tool; why a family does not run on a GPU, or not twice the same."""
    try:
        first = train(FAMILIES[family](7), 3)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    again = train(FAMILIES[family](7), 3)
    return first if first == again else "differs from run to run"


def test_a_nan_on_the_device_writes_the_steps_that_are_kept(tmp_path: Path, on_gpu: None) -> None:
    model = nn.Linear(4, 4)
    with recording(tmp_path, "L1", section={"keep_last": 2}) as run:
        for factor in (1.0, 1.0, math.nan, 1.0):
            with run.step_of(model):
                (model(torch.ones(2, 4)).sum() * factor).backward()
            model.zero_grad()
        assert run.steps() == ["step1", "step2"]
        assert run.account(2)["written_because"] == "NaN or Inf"


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("family", ON_DEVICE)
def test_a_recorded_training_is_bit_identical(
    family: str, setting: Setting, tmp_path: Path, on_gpu: None
) -> None:
    expected = reference(family)
    if isinstance(expected, str):
        pytest.skip(expected[:100])
    with observed(tmp_path, setting) as run:
        found = train(FAMILIES[family](7), 3, run.around)
    assert differences(expected, found) == []
    assert run.failures(3) == []
    assert run.account(0)["complete"]


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]


def values_of(dtype: torch.dtype, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    shape = {"scalar": (), "empty": (0, 3), "large": (1 << 21,)}.get(kind, (37, 129))
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 1
        if kind == "nonfinite":
            wide.view(-1)[::7] = math.inf
            wide.view(-1)[1::11] = -math.inf
        if kind == "nan":
            wide.view(-1)[5] = math.nan
        if kind == "huge":
            wide = wide * (torch.finfo(dtype).max / 32)
        t = wide.to(dtype)
    elif dtype is torch.bool:
        t = torch.rand(shape, generator=generator) > 0.5
    else:
        info = torch.iinfo(dtype)
        t = torch.randint(info.min, info.max, shape, generator=generator, dtype=dtype)
    return t.t() if kind == "transposed" else t[:, ::2] if kind == "strided" else t


@pytest.mark.parametrize(
    "kind",
    ["plain", "scalar", "empty", "large", "nonfinite", "nan", "huge", "transposed", "strided"],
)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64], ids=str)
def test_statistics_of_the_device_are_those_of_the_host(dtype: torch.dtype, kind: str) -> None:
    if kind in ("nonfinite", "nan", "huge") and dtype not in FLOATS:
        pytest.skip("has no such values")
    host = values_of(dtype, kind)
    expected = summarise(host)
    on_gpu = torch.empty_strided(host.shape, host.stride(), dtype=dtype, device="cuda").copy_(host)
    batch = DeviceBatch()
    found, again = batch.add(on_gpu), batch.add(on_gpu)  # the second launch goes another way
    assert kind == "empty" or not found.ready
    batch.collect()
    assert found.ready
    assert repr(found) == repr(again)
    if dtype not in (torch.float64, torch.complex64):  # which no kernel of ours reads
        assert (found.projections is None) == (expected.projections is None)
        if found.projections is not None:
            scale = host.double().nan_to_num(0.0, 0.0, 0.0).abs().sum().item()
            assert found.projections == pytest.approx(expected.projections, abs=1e-13 * scale)
    assert found.note == expected.note
    assert found.nonfinite == expected.nonfinite
    for name in ("max", "min"):
        one, other = getattr(found, name), getattr(expected, name)
        assert type(one) is type(other)
        assert one is other or one == pytest.approx(other, rel=1e-15, nan_ok=True)
    if expected.norm is None:
        assert found.norm is None
    else:
        assert found.norm == pytest.approx(expected.norm, rel=1e-13, nan_ok=True)
    if expected.mean is None:
        assert found.mean is None
    elif not math.isfinite(expected.mean):
        assert found.mean == pytest.approx(expected.mean, nan_ok=True)
    else:
        scale = Statistics.of(host).mean_scale  # type: ignore[union-attr]
        assert abs(found.mean - expected.mean) <= 1e-14 * scale


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (12, 16)).transpose(1, 2)
        q, k, v = heads.chunk(3, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


def transformer(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(50, 64), Block(), Block(), nn.Linear(64, 50))
    model.to("cuda", dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def loss_of(model: nn.Module) -> Tensor:
    ids = torch.arange(96, device="cuda").view(4, 24) % 50
    return F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())


def trained(steps: int, around: Callable[[nn.Module], Any] | None = None) -> Fingerprint:
    """Train the transformer with autocast and a scaler of gradients; what the run left behind."""
    model, optimizer = transformer()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    case = TrainCase(model, lambda _: torch.zeros(()), [optimizer])
    for _ in range(steps):
        with around(model) if around else nullcontext():
            with torch.autocast("cuda", torch.float16):
                loss = loss_of(model)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        case.extra["gpu"] = torch.cuda.get_rng_state()
        case.snapshot(loss)
        optimizer.zero_grad()
    return case.state()


@pytest.mark.parametrize(
    ("level", "task", "section"),
    [
        ("mix", "statistics", {}),
        ("L1", "statistics", {"keep_last": 2}),
        ("L1", "statistics", {"summary_mode": "md5"}),
        ("L2", "statistics", {}),
        ("mix", "tensor", {}),
        ("L1", "nan_check", {}),
        ("mix", "overflow_check", {}),
        ("L1", "free_benchmark", {"fuzz_stage": "forward", "pert_mode": "improve_precision"}),
        ("L1", "free_benchmark", {"fuzz_stage": "backward", "pert_mode": "add_noise"}),
        ("L1", "grad_probe", {"grad_level": "L1"}),
        ("L1", "signature", {}),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_every_task_leaves_mixed_precision_training_as_it_is(
    level: str, task: str, section: dict[str, Any], tmp_path: Path, on_gpu: None
) -> None:
    expected = trained(3)
    with recording(tmp_path, level, task, section=section) as run:
        found = trained(3, run.step_of)
    assert differences(expected, found) == []
    for path in tmp_path.rglob("account.json"):
        assert json.loads(path.read_text())["errors"] == {}, path


def test_the_monitor_reads_on_the_gpu_what_torch_says(tmp_path: Path) -> None:
    config = tmp_path / "monitor.json"
    keys = ("wg_distribution", "mv_distribution", "param_distribution")
    ops = ["norm", "min", "max", "mean", "nans"]
    config.write_text(
        json.dumps({"output_dir": str(tmp_path / "runs"), "ops": ops} | dict.fromkeys(keys, True))
    )
    runs: dict[bool, list[Tensor]] = {}
    norms: list[float] = []
    for is_watched in (False, True):
        model, optimizer = transformer(torch.bfloat16)
        with TrainerMon(config) if is_watched else nullcontext() as monitor:
            if monitor is not None:
                monitor.set_monitor(model, optimizer, grad_acc_steps=1)
                path = monitor.path
            for _ in range(3):
                loss_of(model).backward()
                if is_watched:
                    norms.append(model[1].up.weight.grad.double().norm().item())
                optimizer.step()
                optimizer.zero_grad()
            runs[is_watched] = [parameter.detach().clone() for parameter in model.parameters()]
    assert all(map(torch.equal, runs[False], runs[True]))
    series = msprobe.open_monitor(path).series("grad_reduced", "1.up.weight", "norm")
    assert series["value"].to_list() == pytest.approx(norms, rel=1e-12)


def test_a_graph_that_is_captured_while_recording_computes_the_same(tmp_path: Path) -> None:
    def run_graph(around: Callable[[], Any]) -> Tensor:
        model, _ = transformer()
        x = torch.arange(24, device="cuda").view(1, 24)
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                model(x)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with around(), torch.cuda.graph(graph):
                y = model(x)
            graph.replay()
            torch.cuda.synchronize()
        return y.clone()

    expected = run_graph(nullcontext)
    with recording(tmp_path, "L1") as run:
        found = run_graph(run.step_of)
        assert run.failures(1) == []
    assert torch.equal(expected, found)


def test_values_of_a_side_stream_have_their_numbers(tmp_path: Path) -> None:
    stream = torch.cuda.Stream()
    with recording(tmp_path, "L1") as run, run.step_of():
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            x = torch.full((1000,), 3.0, device="cuda")
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        z = y + 1
        del x, y, z
    outputs = {name: r["output"][0]["Max"] for name, r in run.records().items() if "output" in r}
    assert outputs["Tensor.__mul__.0.forward"] == 6.0
    assert outputs["Tensor.__add__.0.forward"] == 7.0


def test_nan_check_names_the_call_that_made_a_nan(tmp_path: Path) -> None:
    x = torch.zeros(8, device="cuda", requires_grad=True)
    section = {"stop_on": "never"}
    with recording(tmp_path, "L1", "nan_check", section=section) as run, run.step_of():
        (x.abs() - 1).sqrt().sum().backward()
    table = (tmp_path / "nan_check_rank.csv").read_text()
    assert "sqrt" in table.splitlines()[1]


def test_live_comparison_finds_no_fault_of_the_gpu(tmp_path: Path) -> None:
    model, _ = transformer()
    with live_compare(dump_path=tmp_path) as check:
        loss_of(model).backward()
    report = json.loads(check.table_path.with_suffix(".json").read_text())
    assert report["findings"] == []


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gpu_against_cpu_accuses_nobody(
    tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for device in ("cuda", "cpu"):
        model, _ = transformer()
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = (torch.arange(96) % 50).view(4, 24).to(device)
        with recording(tmp_path / device, level) as run:
            for _ in range(2):
                with run.step_of(model):
                    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
                    optimizer.step()
                    optimizer.zero_grad()
    main(["compare", str(tmp_path / "cuda"), str(tmp_path / "cpu"), "-o", str(tmp_path / "out")])
    summary = json.loads(next((tmp_path / "out").rglob("*summary*.json")).read_text())
    shown = capsys.readouterr().out
    assert summary["verdict"]["class"] in ("rounding", "equal", "precision"), shown
    assert summary["introduced"] == [], shown


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_recorded_step_waits_at_most_once_for_the_device(tmp_path: Path, level: str) -> None:
    model, optimizer = transformer(torch.bfloat16)
    with recording(tmp_path, level) as run:
        for step in range(3):
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    if step == 2:
                        torch.cuda.set_sync_debug_mode("warn")
                    run.debugger.start(model)
                    loss_of(model).backward()
                    optimizer.step()
                    run.debugger.stop()
                    run.debugger.step()
            finally:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    torch.cuda.set_sync_debug_mode("default")
        assert run.account(2)["complete"]
    waits = [one for one in caught if "called a synchronizing" in str(one.message)]
    assert len(waits) <= 1, "\n".join(f"{one.filename}:{one.lineno}" for one in waits)


def test_numbers_of_a_recording_are_those_of_the_host(tmp_path: Path) -> None:
    model, _ = transformer()
    with recording(tmp_path, "L1", "tensor") as run, run.step_of(model):
        loss_of(model).backward()
    folder = run.place() / "dump_tensor_data"
    checked = 0
    for record in run.records().values():
        for values in (record.get("input_args", []), record.get("output", [])):
            for value in values:
                name = isinstance(value, dict) and value.get("data_name")
                if name:
                    saved = torch.load(folder / name, map_location="cpu", weights_only=True)
                    expected = Statistics.of(saved)
                    assert expected is not None
                    assert expected.disagreements(value, 1e-12) == []
                    checked += 1
    assert checked > 30


def test_two_recordings_of_the_same_training_are_equal(tmp_path: Path) -> None:
    for name in ("one", "two"):
        model, optimizer = transformer(torch.bfloat16)
        with recording(tmp_path / name, "mix") as run:
            for _ in range(2):
                with run.step_of(model):
                    loss_of(model).backward()
                    optimizer.step()
                    optimizer.zero_grad()
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--exit-code"]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_recording_of_the_gpu_is_verified_on_the_cpu(
    tmp_path: Path, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = transformer(dtype)
    with recording(tmp_path / "dump", "L1", "tensor") as run, run.step_of(model):
        loss_of(model).backward()
        optimizer.step()
    code = main(["verify", str(tmp_path / "dump"), "-o", str(tmp_path / "verified"), "--exit-code"])
    assert code == 0, capsys.readouterr().out
