# SPDX-License-Identifier: Apache-2.0
"""`ConfigChecker` in a training: it sees what runs, and the training is the same with it."""

from __future__ import annotations

import argparse
import functools
import gc
import random
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from msprobe.config_check import ConfigChecker  # noqa: E402
from msprobe.errors import ConfigError, MsprobeError, UnsupportedError  # noqa: E402
from msprobe.run_config.comparing import compare_packs  # noqa: E402
from msprobe.run_config.levels import Level  # noqa: E402
from msprobe.run_config.pack import read_pack  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def restored():
    yield
    ConfigChecker.remove_patches()


def seed(value: int = 7) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - what scripts share


def train(path: Path | None, *, steps: int = 3, value: int = 7, lr: float = 0.1, **options):
    """Train a small model; return its losses, parameters and generator state."""
    seed(value)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if path is not None:
        ConfigChecker(model, None, path, **options)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() + random.random() + float(np.random.rand()))  # noqa: NPY002
    return losses, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()


def test_the_training_is_bit_identical(tmp_path: Path) -> None:
    plain = train(None)
    ConfigChecker.apply_patches("pytorch")
    watched = train(tmp_path / "a.zip")
    assert plain[0] == watched[0]
    assert all(map(torch.equal, plain[1], watched[1]))
    assert torch.equal(plain[2], watched[2])


def test_data_and_weights_of_every_micro_step_are_there(tmp_path: Path) -> None:
    train(tmp_path / "a.zip")
    pack = read_pack(tmp_path / "a.zip")
    assert sorted(pack.weights) == sorted(pack.dataset) == [(0, 0), (1, 0), (2, 0)]
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    x = torch.randn(5, 4)
    for found, tensor in (
        (pack.dataset[0, 0]["args"]["0"], x),
        (pack.weights[0, 0]["0.weight"], model[0].weight.detach()),
    ):
        assert found["max"] == tensor.max().item()
        assert found["min"] == tensor.min().item()
        assert found["mean"] == pytest.approx(tensor.double().mean().item(), rel=1e-6)
        assert found["norm"] == pytest.approx(tensor.double().norm().item(), rel=1e-6)
        assert found["shape"] == list(tensor.shape)
        assert found["crc32"] == f"{zlib.crc32(tensor.numpy().tobytes()):08x}"
    assert pack.weights[0, 0] != pack.weights[1, 0]


def test_equal_runs_compare_equal_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, value in (("a", 7), ("b", 7), ("c", 8)):
        ConfigChecker.apply_patches()
        train(tmp_path / f"{name}.zip", value=value)
        ConfigChecker.remove_patches()
    same = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip")
    assert same.level is Level.PASS, same.differences()
    other = compare_packs(tmp_path / "a.zip", tmp_path / "c.zip")
    assert {name for name, item in other.items.items() if item.level is Level.ERROR} == {
        "dataset",
        "weights",
        "random",
        "generators",
    }


def test_a_step_with_another_learning_rate_shows_in_the_next_weights(tmp_path: Path) -> None:
    train(tmp_path / "a.zip")
    train(tmp_path / "b.zip", lr=0.2)
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip").items["weights"]
    assert found.differences[0].name.startswith("step 1 ")


def test_random_calls_are_noted_with_place_and_seed(tmp_path: Path) -> None:
    ConfigChecker.apply_patches()
    train(tmp_path / "a.zip")
    calls = read_pack(tmp_path / "a.zip").random[0]
    assert calls["torch.manual_seed"][0]["seeds"] == ["7"]
    assert calls["torch.randn"][0]["count"] == 1
    assert "torch.Tensor.uniform_" in calls  # the initialisation of the layers
    assert f"File {__file__}" in calls["random.seed"][0]["stack"][-1]
    assert calls["random.seed"][0]["stack"][-1].endswith("in seed, random.seed(value)")


def test_patches_leave_no_trace_once_removed() -> None:
    owners = (random, np.random, torch, torch.cuda, torch.Tensor)
    before = [dict(vars(owner)) for owner in owners]
    ConfigChecker.apply_patches()
    ConfigChecker.apply_patches()
    assert torch.randn is not before[2]["randn"]
    ConfigChecker.remove_patches()
    for owner, names in zip(owners, before, strict=True):
        now = vars(owner)
        assert now.keys() == names.keys()
        assert all(now[name] is value for name, value in names.items())


def test_somebody_elses_patch_is_left_alone(monkeypatch) -> None:
    ConfigChecker.apply_patches()
    theirs = functools.partial(torch.randn)
    monkeypatch.setattr(torch, "randn", theirs)
    ConfigChecker.remove_patches()
    assert torch.randn is theirs


def test_random_functions_still_compile() -> None:
    ConfigChecker.apply_patches()

    def noise(x):
        return x + torch.rand_like(x) * 0

    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(noise)
    assert torch.equal(scripted(torch.ones(3)), torch.ones(3))


def test_ranks_of_a_launcher_write_files_of_their_own(tmp_path: Path, monkeypatch) -> None:
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        train(tmp_path / "a.zip", steps=1, value=rank)
    pack = read_pack(tmp_path / "a.zip")
    assert sorted(pack.weights) == [(0, 0), (0, 1)]
    assert pack.weights[0, 0] != pack.weights[0, 1]
    assert pack.missing_ranks == []


def test_only_some_steps_are_looked_at(tmp_path: Path) -> None:
    train(tmp_path / "a.zip", max_steps=2)
    assert sorted(read_pack(tmp_path / "a.zip").weights) == [(0, 0), (1, 0)]


def test_buffers_are_read_and_compared(tmp_path: Path) -> None:
    for name, mean in (("a", 0.0), ("b", 0.5)):
        model = torch.nn.BatchNorm1d(2)
        model.running_mean.fill_(mean)
        ConfigChecker(model, None, tmp_path / f"{name}.zip", max_steps=1)
        model(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    (difference,) = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip").differences()
    assert (difference.item, difference.name) == ("buffers", "step 0 rank 0 running_mean")


def test_nested_inputs_and_several_model_parts(tmp_path: Path) -> None:
    class Part(torch.nn.Linear):
        def forward(self, batch, *, mask=None, flag=True):
            return super().forward(batch["x"][0])

    parts = [Part(2, 2), torch.nn.Linear(2, 2)]
    ConfigChecker(parts, None, tmp_path / "a.zip")
    parts[0]({"x": [torch.ones(1, 2)], "name": "n"}, mask=torch.tensor([True]))
    pack = read_pack(tmp_path / "a.zip")
    inputs = pack.dataset[0, 0]
    assert inputs["args"]["0"]["x"]["0"]["norm"] == pytest.approx(2**0.5)
    assert inputs["kwargs"]["mask"]["dtype"] == "torch.bool"
    assert set(pack.weights[0, 0]) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_an_error_while_watching_does_not_reach_the_training(tmp_path: Path, caplog) -> None:
    model = torch.nn.Linear(2, 2)
    ConfigChecker(model, None, tmp_path / "a.zip")
    (tmp_path / "a.zip").unlink()
    (tmp_path / "a.zip").mkdir()
    assert model(torch.ones(1, 2)).shape == (1, 2)
    assert "stops watching" in caplog.text
    caplog.clear()
    model(torch.ones(1, 2))
    assert caplog.text == ""


def test_arguments_of_files_and_of_megatron(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "run.sh").write_text("torchrun t.py --lr 1e-4")
    fake = types.ModuleType("megatron.training")
    fake.get_args = lambda: types.SimpleNamespace(hidden_size=64, hf_token="hf-secret-value")
    monkeypatch.setitem(sys.modules, "megatron.training", fake)
    model = torch.nn.Linear(2, 2)
    ConfigChecker(model, str(tmp_path / "run.sh"), tmp_path / "a.zip")
    model(torch.ones(1, 2))
    arguments = read_pack(tmp_path / "a.zip").arguments
    assert arguments["hyperparameters_static.json"] == {"script": "t.py", "lr": "1e-4"}
    assert arguments["hyperparameters_dynamic.json"]["hidden_size"] == 64
    assert "secret" not in str(arguments)


def test_arguments_that_the_program_has_dropped_are_none(tmp_path: Path) -> None:
    ring: list[object] = [argparse.Namespace(steps=3)]
    ring.append(ring)  # so that it waits for the garbage collector
    model = torch.nn.Linear(2, 2)
    gc.disable()
    try:
        del ring
        ConfigChecker(model, None, tmp_path / "a.zip")
        model(torch.ones(1, 2))
    finally:
        gc.enable()
    arguments = read_pack(tmp_path / "a.zip").arguments
    assert "steps" not in arguments.get("hyperparameters_dynamic.json", {})


def test_settings_of_torch_are_part_of_the_system(tmp_path: Path) -> None:
    ConfigChecker(None, None, tmp_path / "a.zip")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        ConfigChecker(None, None, tmp_path / "b.zip")
    finally:
        torch.set_float32_matmul_precision(before)
    (difference,) = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip").differences()
    assert difference.name == "torch.float32_matmul_precision"
    assert difference.level is Level.ERROR


def test_the_documented_import_path() -> None:
    from msprobe.core.config_check import ConfigChecker as Documented

    assert Documented is ConfigChecker


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"fmk": "jax"}, UnsupportedError),
        ({"model": "model"}, ConfigError),
        ({"shell_path": 3}, ConfigError),
        ({"shell_path": ["gone.sh"]}, ConfigError),
        ({"max_steps": 0}, ConfigError),
        ({"output_zip_path": "/proc/none/x.zip"}, MsprobeError),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, arguments: dict, error: type) -> None:
    with pytest.raises(error):
        ConfigChecker(**{"output_zip_path": tmp_path / "a.zip", **arguments})


def test_a_dump_at_the_same_time_holds_nothing_of_the_watching(tmp_path: Path) -> None:
    from msprobe import open_dump
    from msprobe.capture.session import reset_session
    from msprobe.pytorch import PrecisionDebugger

    def dump(name: str, *, watched: bool) -> list[str]:
        reset_session()
        seed()
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
        if watched:
            ConfigChecker.apply_patches()
            ConfigChecker(model, None, tmp_path / "a.zip")
        debugger = PrecisionDebugger(dump_path=str(tmp_path / name), level="mix")
        debugger.start(model)
        (model(torch.randn(3, 4)) + torch.rand(4)).sum().backward()
        debugger.stop()
        reset_session()
        view = open_dump(tmp_path / name).step().rank()
        return [f"{key}: {view.records[key].data}" for key in view.records]

    try:
        assert dump("plain", watched=False) == dump("watched", watched=True)
    finally:
        reset_session()
