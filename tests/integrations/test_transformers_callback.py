# SPDX-License-Identifier: Apache-2.0
"""`MsprobeCallback` of transformers: numbers of steps, evaluations, and ends of all kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from msprobe import open_dump
from msprobe.dump.facts import Ending

transformers = pytest.importorskip("transformers")
from msprobe.integrations.transformers import MsprobeCallback  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Net(torch.nn.Module):
    def __init__(self, breaks_at: int = -1):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.breaks_at, self.calls = breaks_at, 0

    def forward(self, x, labels=None):
        if self.training:
            self.calls += 1
            if self.calls == self.breaks_at:
                raise RuntimeError("planted")
        found = self.fc(x)
        return {"loss": torch.nn.functional.cross_entropy(found, labels), "logits": found}


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"x": torch.arange(4.0) + index, "labels": index % 2}


def trainer(folder: Path, net: Net, *callbacks, probe: MsprobeCallback | None = None, **arguments):
    return transformers.Trainer(
        net,
        transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **{"max_steps": 4, "save_strategy": "no", **arguments},
        ),
        train_dataset=Samples(),
        eval_dataset=Samples(),
        callbacks=[*([] if probe is None else [probe]), *callbacks],
    )


def calls(folder: Path) -> dict[int, int]:
    """Return the number of calls of the model in each recorded step."""
    return {
        number: sum(name.startswith("Module.fc.Linear.forward") for name in view.records)
        for number, step in open_dump(folder / "dump").steps.items()
        for view in step.ranks.values()
    }


def endings(folder: Path) -> dict[int, Ending]:
    return {
        number: view.facts.ended.how
        for number, step in open_dump(folder / "dump").steps.items()
        for view in step.ranks.values()
    }


def test_a_step_has_all_its_micro_batches_and_no_evaluation(tmp_path):
    probe = MsprobeCallback(dump_path=tmp_path / "dump", step=[0, 1, 2, 3])
    trained = trainer(
        tmp_path,
        Net(),
        probe=probe,
        gradient_accumulation_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
    )
    trained.train()
    assert calls(tmp_path) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert set(endings(tmp_path).values()) == {Ending.WHOLE}


def test_an_exception_leaves_the_trainer_and_a_further_training_is_counted_on(tmp_path):
    probe = MsprobeCallback(dump_path=tmp_path / "dump", step=["0-9"])
    trained = trainer(tmp_path, Net(breaks_at=2), probe=probe, max_steps=3)
    with pytest.raises(RuntimeError, match="planted"):
        trained.train()
    trained.train()
    assert endings(tmp_path)[0] is Ending.WHOLE
    assert endings(tmp_path)[1] is not Ending.WHOLE
    assert [number for number in calls(tmp_path) if number > 1] == [2, 3, 4]


class Dividing(Net):
    """A model that divides by zero for one sample."""

    def forward(self, x, labels=None):
        found = self.fc(torch.nn.functional.dropout(x)) / (x[:, :1] != 11)
        return {"loss": torch.nn.functional.cross_entropy(found, labels), "logits": found}


def test_the_step_with_a_bad_sample_is_replayed(tmp_path):
    config = tmp_path / "config.json"
    keys = {"keep_last": 2, "replay_step": True}
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "statistics": keys}))
    results = []
    for probe in (None, MsprobeCallback(config, dump_path=tmp_path / "dump")):
        torch.manual_seed(0)
        net = Dividing()
        trainer(tmp_path, net, probe=probe, max_steps=20, gradient_accumulation_steps=2).train()
        results.append([*net.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*results, strict=True))
    (found,) = (tmp_path / "dump" / "replay").glob("step*/rank/replay.json")
    replay = json.loads(found.read_text())
    # The trainer divides the loss outside of the model, which shifts numbers of this one API.
    assert all("__truediv__" in name for name in replay["differ"])
    assert any("__truediv__" in call for call in replay["calls"])
    assert replay["records"] >= 2
