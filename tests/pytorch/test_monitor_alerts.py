# SPDX-License-Identifier: Apache-2.0
"""Alerts of a run that trains: written beside it, and able to end it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from msprobe.errors import ConfigError, MonitorStop
from msprobe.monitor.alerts.actions import read_incidents
from msprobe.pytorch import TrainerMon

BAD = 30


def config(folder: Path, **keys: object) -> str:
    path = folder / "monitor.json"
    path.write_text(
        json.dumps(
            {"output_dir": str(folder / "out"), "wg_distribution": True, "ops": ["norm"], **keys}
        )
    )
    return str(path)


def train(monitor: TrainerMon, steps: int) -> int:
    """Return the number of steps that were trained; from step `BAD` on a weight is NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    monitor.set_monitor(model, optimizer)
    for step in range(steps):
        if step == BAD:
            with torch.no_grad():
                model[2].weight[0, 0] = float("nan")
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        if step >= BAD:
            time.sleep(0.05)  # the rules run on another thread
    return steps


def test_incidents_are_written_beside_the_run(tmp_path, caplog):
    with TrainerMon(config(tmp_path, param_distribution=True)) as monitor:
        train(monitor, BAD + 3)
    (folder,) = (one.parent for one in (tmp_path / "out").rglob("*.rows"))
    (found,) = read_incidents(folder)
    assert (found["cause"], found["start"], found["severity"]) == ("not_finite", BAD, "critical")
    assert (found["lead"]["stream"], found["lead"]["name"]) == ("param_origin", "2.weight")
    assert any(f"step {BAD}: critical: NaN or Inf" in one.message for one in caplog.records)


def test_an_incident_ends_the_training_where_asked_to(tmp_path):
    stopped = pytest.raises(MonitorStop, match=f"step {BAD}: NaN or Inf")
    with TrainerMon(config(tmp_path, alert={"stop_on": "critical"})) as monitor, stopped:
        train(monitor, BAD + 100)


def test_documented_rules_write_their_file(tmp_path):
    rules = [{"rule_name": "AnomalyNan"}]
    with TrainerMon(config(tmp_path, alert={"rules": rules, "dump": True})) as monitor:
        train(monitor, BAD + 1)
    records = json.loads(
        (tmp_path / "out" / "anomaly_detected" / "rank0" / "anomaly.json").read_text()
    )
    assert {record["step"] for record in records.values()} == {BAD}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"alert": {"stopon": "critical"}}, 'did you mean "stop_on"'),
        ({"alert": {"stop_on": "criticl"}}, 'm.*"alert.stop_on" is "criticl"; use one of warning'),
        (
            {"streams": {"run": {}, "actv": {"ops": ["mx"]}}},
            r'"streams.actv.ops\[0\]" is "mx"; use',
        ),
        (
            {"streams": {"actv": {"include": ["re:("]}}},
            '"streams.actv.include" is "\\("; use a reg',
        ),
        ({"eps": "small"}, '"eps" is "small"; use a number'),
    ],
)
def test_wrong_settings_are_refused_when_they_are_read(keys, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        TrainerMon(config(tmp_path, **keys))


def test_changed_alerts_hold_from_the_next_step(tmp_path):
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor(net, optimizer)
        for step in range(6):
            net(torch.ones(3, 4)).mean().backward()
            if step == 2:
                rule = {"rule_name": "AnomalyNan", "args": {"threshold": 1e-9}}
                monitor.configure(alert={"rules": [rule], "dump": True})
            optimizer.step()
        with pytest.raises(ConfigError, match=r'did you mean "rules"'):
            monitor.configure(alert={"rule": []})
        with pytest.raises(ConfigError, match="rule_name"):
            monitor.configure(alert={"rules": [{"rule_name": "AnomalyNaN"}]})
    (file,) = tmp_path.rglob("anomaly.json")
    assert min(one["step"] for one in json.loads(file.read_text()).values()) == 3


def test_a_resumed_run_forgets_the_incidents_that_it_undoes(tmp_path):
    alert = {"incidents": True}
    with TrainerMon(config(tmp_path, run="one", alert=alert)) as monitor:
        train(monitor, BAD + 2)
    (folder,) = (one.parent for one in (tmp_path / "out").rglob("*.rows"))
    assert [one["start"] for one in read_incidents(folder)] == [BAD]
    with TrainerMon(config(tmp_path, run="one", alert=alert)) as monitor:
        monitor.set_monitor(
            net := nn.Linear(2, 2), torch.optim.SGD(net.parameters()), 1, None, None, 5
        )
    assert read_incidents(folder) == []
