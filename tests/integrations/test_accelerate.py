# SPDX-License-Identifier: Apache-2.0
"""`MsprobeAccelerator`: accumulation, evaluation, checkpoints, resumption, exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402

from msprobe import open_dump  # noqa: E402
from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.dump.facts import Ending  # noqa: E402
from msprobe.integrations.accelerate import MsprobeAccelerator  # noqa: E402

MICRO_BATCHES = 2


class Training:
    """A training of a small net, with an evaluation every other step."""

    def __init__(self, kind=Accelerator, **settings):
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        torch.manual_seed(0)
        self.accelerator = kind(cpu=True, gradient_accumulation_steps=MICRO_BATCHES, **settings)
        net = torch.nn.Sequential(
            torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)
        )
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
        data = torch.utils.data.DataLoader(torch.randn(24, 3), batch_size=2)
        self.net, self.optimizer, self.schedule, self.data = self.accelerator.prepare(
            net, optimizer, schedule, data
        )

    def evaluate(self):
        self.net.eval()
        with torch.no_grad():
            self.net(next(iter(self.data)))
        self.net.train()

    def train(self, micro_batches=8, *, breaks_at=None):
        for number, batch in zip(range(micro_batches), self.data, strict=False):
            with self.accelerator.accumulate(self.net):
                loss = self.net(batch).square().mean()
                if number == breaks_at:
                    raise RuntimeError("planted")
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            if number % 4 == 3:
                self.evaluate()
        return torch.cat([each.detach().flatten() for each in self.net.parameters()])


def steps(folder: Path):
    """Return the calls of the first layer in each recorded step, and how the step ended."""
    return {
        number: (
            len([name for name in view.records if name.startswith("Module.0.Linear.forward")]),
            view.facts.ended.how,
        )
        for number, step in open_dump(folder).steps.items()
        for view in step.ranks.values()
    }


def test_accumulated_batches_are_one_step_and_evaluations_none(tmp_path):
    plain = Training().train()
    training = Training(MsprobeAccelerator, dump_path=tmp_path, step=["0-9"])
    assert isinstance(training.accelerator, Accelerator)
    recorded = training.train()
    training.accelerator.end_training()
    training.train(2)
    assert torch.equal(plain, recorded)
    assert steps(tmp_path) == dict.fromkeys(range(4), (MICRO_BATCHES, Ending.WHOLE))


@pytest.mark.parametrize("wanted", [["0-9"], [0]], ids=["all steps", "the first"])
def test_a_training_that_is_resumed_keeps_its_numbers(tmp_path, wanted):
    first = Training(MsprobeAccelerator, dump_path=tmp_path / "first", step=wanted)
    first.train(6)
    first.accelerator.save_state(str(tmp_path / "checkpoint"))
    first.accelerator.end_training()
    reset_session()
    resumed = Training(MsprobeAccelerator, dump_path=tmp_path / "resumed", step=[3, 4])
    resumed.accelerator.load_state(str(tmp_path / "checkpoint"))
    resumed.train(6)
    resumed.accelerator.end_training()
    assert list(steps(tmp_path / "resumed")) == [3, 4]


def test_a_checkpoint_without_a_number_resumes_at_none(tmp_path):
    plain = Training()
    plain.train(4)
    plain.accelerator.save_state(str(tmp_path / "checkpoint"))
    resumed = Training(MsprobeAccelerator, dump_path=tmp_path / "dump")
    resumed.accelerator.load_state(str(tmp_path / "checkpoint"))
    resumed.train(2)
    resumed.accelerator.end_training()
    assert list(steps(tmp_path / "dump")) == [0]


def test_an_early_stop_and_an_exception_end_the_step(tmp_path):
    training = Training(MsprobeAccelerator, dump_path=tmp_path, step=["0-9"])
    training.train(2)

    def breaks():
        try:
            training.train(4, breaks_at=1)
        finally:
            training.accelerator.end_training()

    with pytest.raises(RuntimeError, match="planted"):
        breaks()
    found = steps(tmp_path)
    assert found[0] == (MICRO_BATCHES, Ending.WHOLE)
    assert list(found) == [0, 1]
    assert found[1][1] is not Ending.WHOLE


def test_nothing_is_recorded_or_written_when_it_is_off(tmp_path, monkeypatch):
    monkeypatch.setenv("MSPROBE", "off")
    plain = Training().train()
    training = Training(MsprobeAccelerator, dump_path=tmp_path / "dump")
    assert torch.equal(training.train(), plain)
    training.accelerator.save_state(str(tmp_path / "checkpoint"))
    training.accelerator.end_training()
    assert not (tmp_path / "dump").exists()
    assert not (tmp_path / "checkpoint" / "msprobe_step.json").exists()
