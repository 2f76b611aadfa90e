# SPDX-License-Identifier: Apache-2.0
"""A training that is monitored is the same training, to the last bit, and detaching undoes all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, REFERENCES, differences, train
from restoration import changes, snapshot
from torch import nn

from builders.monitor_runs import config
from msprobe.errors import UsageError
from msprobe.monitor.ops import Op
from msprobe.pytorch import TrainerMon

pytestmark = pytest.mark.torch

ALL_OPS = list(Op)
EVERYTHING: dict[str, Any] = {
    "ops": ALL_OPS,
    "xy_distribution": True,
    "wg_distribution": True,
    "monitor_mbs_grad": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "ur_distribution": True,
    "streams": {"state": {}},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_monitored_training_is_bit_identical(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = train(REFERENCES[family](7))
    case = FAMILIES[family](7)
    with TrainerMon(config(tmp_path, **EVERYTHING)) as monitor:
        monitor.set_monitor(case.modules, case.optimizers[0])
        found = train(case)
        with monitor.open() as run:
            names = run.names("actv")
            assert run.steps() == list(range(len(run.steps())))
            assert len(run.names("grad_reduced")) >= 1
    assert differences(expected, found) == []
    assert names or family == "compiled"  # only the compiled wrapper is called
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("msprobe")]
    problems = [message for message in ours if "failed" in message]
    assert [one for one in problems if "NestedTensorImpl" not in one] == []


def test_detaching_leaves_torch_as_it_was(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    before = snapshot(model)
    monitor = TrainerMon(config(tmp_path, **EVERYTHING))
    monitor.set_monitor(model, optimizer)
    with pytest.raises(UsageError):
        monitor.set_monitor(model, optimizer)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    model(torch.randn(3, 4)).sum().backward()  # in the middle of a step
    monitor.detach()
    monitor.detach()

    assert changes(before, snapshot(model)) == []
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


class UsersError(Exception):
    pass


def test_an_error_of_the_users_passes_and_monitoring_goes_on(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fails = True

    def hook(*_: object) -> None:
        if fails:
            raise UsersError

    model[1].register_forward_hook(hook)
    with TrainerMon(config(tmp_path, xy_distribution=True, ops=["norm"])) as monitor:
        monitor.set_monitor(model, optimizer)
        with pytest.raises(UsersError):
            model(torch.randn(3, 4))
        fails = False
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        with monitor.open() as run:
            assert "1.output" in run.names("actv")
            assert run.steps() == [0]
