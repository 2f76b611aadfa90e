# SPDX-License-Identifier: Apache-2.0
"""`debugger.estimate`: the cost of a recording, before it is made, and without a trace of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.dump.estimates import recorded_step  # noqa: E402
from msprobe.errors import ConfigError, UsageError  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402


@pytest.fixture(autouse=True)
def own_session() -> Iterator[None]:
    reset_session()
    yield
    reset_session()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.head(self.body(x)) * scale


def make(seed: int = 3) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = Net()
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)


def train(net: Net, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    loss(net, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (net(batch) * 3).square().mean()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_records_and_disk_are_those_of_the_recording_that_follows(
    task: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    net, optimizer = make()
    batch = torch.randn(16, 8)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix", task=task)
    found = debugger.estimate(net, batch, run_model=loss, optimizer=optimizer, tasks=[task])
    assert not list(tmp_path.iterdir())
    assert "recording to" not in caplog.text
    assert "each recorded step costs" in caplog.text
    assert [each.level for each in found] == ["L0", "L1", "mix"]
    for _ in range(2):
        debugger.start(net)
        train(net, optimizer, batch)
        debugger.stop()
        debugger.step()
    (own,) = [each for each in found if each.is_for("mix", task)]
    recorded = recorded_step(tmp_path, 1)
    assert recorded is not None
    assert own.records == recorded.records
    assert own.size_bytes == pytest.approx(recorded.size_bytes, rel=0.2)
    assert 0 < own.capture_s < 5


def test_the_training_goes_on_as_if_nothing_had_been_measured(tmp_path: Path) -> None:
    results = []
    for is_measured in (False, True):
        net, optimizer = make()
        random.seed(4)
        batch = torch.randn(16, 8)
        train(net, optimizer, batch)  # the optimizer has states of its own
        loss(net, batch).backward()  # gradients that are not used yet
        gradient = net.head.weight.grad
        mode = net.training
        if is_measured:
            debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
            debugger.estimate(net, batch, optimizer=optimizer, levels=["L0"], tasks=["statistics"])
        assert net.head.weight.grad is gradient
        assert net.training is mode
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(2):
            train(net, optimizer, batch)
        states = [value for state in optimizer.state.values() for value in state.values()]
        results.append([*net.state_dict().values(), *states, torch.tensor(random.random())])
    for plain, measured in zip(*results, strict=True):
        assert torch.equal(plain, measured)


def test_a_batch_is_handed_over_as_loaders_give_it(tmp_path: Path) -> None:
    net, _ = make()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    data = torch.randn(4, 8)
    counts = {
        debugger.estimate(net, batch, levels=["L0"], tasks=["statistics"])[0].records
        for batch in (data, [data, 2.0], {"x": data, "scale": 2.0})
    }
    # 7 modules forward and backward, and the gradients of two linear layers and a norm
    assert counts == {17}


def test_filters_of_the_debugger_count(tmp_path: Path) -> None:
    import json

    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "level": "L1",
                                  "statistics": {"list": ["linear"]}}))  # fmt: skip
    net, _ = make()
    debugger = PrecisionDebugger(config)
    found = debugger.estimate(net, torch.randn(4, 8), levels=["L1"])
    assert [each.records for each in found] == [4, 4]


def test_a_disk_that_does_not_suffice_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net, _ = make()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor", step=["0-999999"])
    # 7 MB of tensors in each of a million steps
    with pytest.raises(UsageError, match=r"left, and 1,000,000 steps of L0 tensor need up to"):
        debugger.estimate(net, torch.randn(20_000, 8), levels=["L0"], tasks=["tensor"])


def test_what_cannot_be_estimated_is_named(tmp_path: Path) -> None:
    net, _ = make()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    batch = torch.randn(4, 8)
    with pytest.raises(ConfigError, match="one of L0, L1, mix"):
        debugger.estimate(net, batch, levels=["L3"])
    with pytest.raises(ConfigError, match="one of statistics, tensor, structure"):
        debugger.estimate(net, batch, tasks=["tensors"])
    debugger.start(net)
    with pytest.raises(UsageError, match=r"call it before start\(\)"):
        debugger.estimate(net, batch)
    debugger.stop()


def test_it_does_nothing_while_msprobe_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSPROBE", "off")
    net, _ = make()
    assert PrecisionDebugger(dump_path=tmp_path).estimate(net, torch.randn(4, 8)) == []
