# SPDX-License-Identifier: Apache-2.0
"""`MsprobeCallback` of Lightning: kinds of optimization, validations, and all ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from msprobe import open_dump
from msprobe.dump.facts import Ending, OptimizerStep

lightning = pytest.importorskip("lightning")
from msprobe.integrations.lightning import MsprobeCallback  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Net(lightning.LightningModule):
    def __init__(self, *, is_manual: bool = False):
        super().__init__()
        self.fc, self.critic = torch.nn.Linear(4, 1), torch.nn.Linear(1, 1)
        self.automatic_optimization = not is_manual

    def training_step(self, batch, index):
        loss = self.critic(self.fc(batch[0])).square().mean()
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        return None

    def validation_step(self, batch, index):
        self.fc(batch[0])

    def configure_optimizers(self):
        if self.automatic_optimization:
            return torch.optim.SGD(self.parameters(), lr=0.1)
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.fc, self.critic)]


def fit(folder: Path, net: Net, *, probes=None, **settings):
    if probes is None:
        probes = [MsprobeCallback(dump_path=folder / "dump", step=["0-9"])]
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=probes,
        **{"max_steps": 4, **settings},
    )
    data = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=1)
    trainer.fit(net, data, data)
    return trainer


def steps(folder: Path) -> dict[int, tuple[int, int, Ending]]:
    """Return calls of the layer, optimizer steps and the ending of each step."""
    found = {}
    for number, step in open_dump(folder / "dump").steps.items():
        (view,) = step.ranks.values()
        names = [name for name in view.records if re.match(r"Module\.fc\.Linear\.forward", name)]
        events = [type(event) for event in view.facts.events]
        found[number] = len(names), events.count(OptimizerStep), view.facts.ended.how
    return found


def test_accumulated_batches_are_one_step_and_validations_none(tmp_path):
    fit(
        tmp_path, Net(), accumulate_grad_batches=3, max_epochs=1, max_steps=-1, val_check_interval=1
    )
    assert steps(tmp_path) == {
        0: (3, 1, Ending.WHOLE),
        1: (3, 1, Ending.WHOLE),
        2: (2, 1, Ending.WHOLE),
    }


def test_manual_optimization_with_two_optimizers(tmp_path):
    fit(tmp_path, Net(is_manual=True))
    assert steps(tmp_path) == {0: (1, 2, Ending.WHOLE), 1: (1, 2, Ending.WHOLE)}


class Dividing(Net):
    """A model that divides by zero for one batch."""

    def training_step(self, batch, index):
        loss = (self.fc(torch.nn.functional.dropout(batch[0])) / (index != 5)).square().mean()
        self.log("loss", loss)
        return loss


def test_the_step_with_a_bad_batch_is_replayed(tmp_path):
    config = tmp_path / "config.json"
    keys = {"keep_last": 2, "replay_step": True}
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "statistics": keys}))
    results = []
    for probes in ([], [MsprobeCallback(config, dump_path=tmp_path / "dump")]):
        torch.manual_seed(0)
        net = Dividing()
        trainer = fit(tmp_path, net, probes=probes, max_steps=7, precision="bf16-mixed")
        metrics = trainer.callback_metrics["loss"]
        results.append([*net.state_dict().values(), torch.get_rng_state(), metrics])
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*results, strict=True))
    (found,) = (tmp_path / "dump" / "replay").glob("step5/rank/replay.json")
    replay = json.loads(found.read_text())
    assert replay["differ"] == []
    assert any("__truediv__" in call for call in replay["calls"])
    assert replay["records"] >= 2
