# SPDX-License-Identifier: Apache-2.0
"""`record_training` around loops of the user's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from msprobe import open_dump  # noqa: E402
from msprobe.dump.facts import Ending  # noqa: E402
from msprobe.integrations import record_training  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402


def parts():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    return net, torch.optim.AdamW(net.parameters())


def train(net, optimizer, *, micro_batches=1, breaks=False):
    for _ in range(micro_batches):
        net(torch.randn(2, 3)).sum().backward()
    if breaks:
        raise RuntimeError("planted")
    optimizer.step()
    optimizer.zero_grad()


def steps(folder):
    return {
        number: (len([n for n in view.records if n.startswith("Module.0.Linear.forward")]), view)
        for number, step in open_dump(folder).steps.items()
        for view in step.ranks.values()
    }


def test_bodies_are_counted_on_and_nothing_else_is_recorded(tmp_path):
    net, optimizer = parts()
    with record_training(dump_path=tmp_path, step=["0-9"]):
        train(net, optimizer, micro_batches=2)
        train(net, optimizer)
    train(net, optimizer)
    with record_training(dump_path=tmp_path, step=["0-9"]):
        train(net, optimizer, micro_batches=3)
    assert [(number, calls) for number, (calls, _) in steps(tmp_path).items()] == [
        (0, 2),
        (1, 1),
        (2, 3),
    ]


def test_the_evaluation_of_a_wrapped_model_makes_no_step(tmp_path):
    class Engine(torch.nn.Module):
        """Hands `train` and `eval` to its module and keeps its own flag, as DeepSpeed's does."""

        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, inputs):
            return self.module(inputs)

        def train(self, mode=True):
            self.module.train(mode)

        def eval(self):
            self.module.eval()

    net, optimizer = parts()
    engine = Engine(net)
    with record_training(dump_path=tmp_path, step=["0-9"]):
        for _ in range(3):
            train(engine, optimizer, micro_batches=2)
            engine.eval()
            with torch.no_grad():
                engine(torch.randn(2, 3))
            engine.train()
        with torch.no_grad():  # in training mode it is no evaluation
            engine(torch.randn(2, 3))
    found = {
        number: sum("0.Linear.forward" in name for name in view.records)
        for number, (_, view) in steps(tmp_path).items()
    }
    assert found == {0: 2, 1: 2, 2: 2, 3: 1}


def test_training_is_bit_identical(tmp_path):
    def weights(*, records):
        net, optimizer = parts()
        if records:
            with record_training(dump_path=tmp_path):
                for _ in range(4):
                    train(net, optimizer)
        else:
            for _ in range(4):
                train(net, optimizer)
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    assert torch.equal(weights(records=True), weights(records=False))
    assert list(steps(tmp_path)) == [0, 1]


def test_an_exception_leaves_the_body_and_marks_its_step(tmp_path):
    net, optimizer = parts()

    def body():
        with record_training(dump_path=tmp_path):
            train(net, optimizer)
            train(net, optimizer, breaks=True)

    with pytest.raises(RuntimeError, match="planted"):
        body()
    endings = [view.facts.ended.how for _, view in steps(tmp_path).values()]
    assert endings[0] is Ending.WHOLE
    assert endings[1] is not Ending.WHOLE


def test_a_resumed_training_names_its_first_step(tmp_path):
    net, optimizer = parts()
    with record_training(dump_path=tmp_path, step=[100]):
        PrecisionDebugger.set_init_step(100)
        train(net, optimizer)
        train(net, optimizer)
    assert list(steps(tmp_path)) == [100]
