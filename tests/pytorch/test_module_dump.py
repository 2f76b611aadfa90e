# SPDX-License-Identifier: Apache-2.0
"""`module_dump`: one module alone, at every level."""

import pytest
import torch
from torch import nn

from builders.recordings import Setting, observed
from msprobe.errors import ConfigError, UsageError
from msprobe.pytorch import module_dump, module_dump_end

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.inner(x)) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = Block()
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        x = self.first(x)
        module_dump(self.block, "chosen")
        try:
            x = self.block(x)
        finally:
            module_dump_end()
        return self.last(x)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_only_the_module_is_recorded_and_recording_resumes(level, tmp_path):
    model = Net()
    with observed(tmp_path, Setting(level, "statistics")) as run:
        with run.step_of(model):
            model(torch.randn(2, 4)).sum().backward()
        records = run.records()
        assert run.account()["errors"] == {}
    inside = records["Module.chosen.Block.forward.0"]
    assert list(inside["parameters"]) == ["scale"]
    assert {"input_args", "output"} <= set(inside)
    backward = records["Module.chosen.Block.backward.0"]
    assert backward["input"][0]["shape"] == backward["output"][0]["shape"] == [2, 4]
    gradients = records["Module.chosen.Block.parameters_grad"]
    assert gradients["scale"][0]["Norm"] == pytest.approx(model.block.scale.grad.norm().item())
    names = list(records)
    assert not [name for name in names if "relu" in name or "__mul__" in name]
    assert not [name for name in names if "inner" in name and "parameters_grad" not in name]
    expected = "Functional.linear.1.forward" if level == "L1" else "Module.last.Linear.forward.0"
    assert expected in names


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_nothing_of_its_children_is_written_not_even_gradients(level, tmp_path):
    model = Net()
    with observed(tmp_path, Setting(level, "tensor")) as run:
        with run.step_of(model):
            model(torch.randn(2, 4)).sum().backward()
        names = list(run.records())
        files = [path.name for path in (run.folder / "step0").rglob("*.pt")]
    gradients = [name for name in names if "parameters_grad" in name]
    assert sorted(gradients) == [
        "Module.chosen.Block.parameters_grad",
        "Module.first.Linear.parameters_grad",
        "Module.last.Linear.parameters_grad",
    ]
    assert not [name for name in names + files if ".block." in name or ".inner." in name]


def test_other_modules_inside_are_left_out_and_those_that_also_run_outside_are_not(tmp_path):
    shared, hidden = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.ModuleDict({"shared": shared, "hidden": hidden, "chosen": nn.Tanh()})
    with observed(tmp_path, Setting("L0", "statistics")) as run:
        with run.step_of(model):
            x = shared(torch.ones(2, 3))
            module_dump(model["chosen"], "alone")
            x = model["chosen"](hidden(shared(x)))
            module_dump_end()
            x.sum().backward()
        with run.step_of(model):
            hidden(torch.ones(2, 3)).sum().backward()
        first, second = list(run.records()), list(run.records(1))
    assert "Module.shared.Linear.parameters_grad" in first
    assert "Module.shared.Linear.forward.1" not in first
    assert not [name for name in first if "hidden" in name]
    assert "Module.hidden.Linear.parameters_grad" in second


@pytest.mark.parametrize("keyword", ["module_name", "dump_name"])
def test_both_names_of_the_second_argument_are_known(keyword, tmp_path):
    layer = nn.Linear(3, 3)
    with observed(tmp_path, Setting("L1", "statistics")) as run:
        with run.step_of(None):
            module_dump(module=layer, **{keyword: "mine"})
            layer(torch.ones(1, 3))
            module_dump_end()
        assert list(run.records()) == ["Module.mine.Linear.forward.0"]
        with pytest.raises(UsageError, match="module_name and dump_name"):
            module_dump(layer, "a", dump_name="b")


def test_each_call_has_its_number_and_a_name_of_ones_own(tmp_path):
    layer = nn.Linear(3, 3)
    with observed(tmp_path, Setting("L1", "statistics")) as run:
        with run.step_of(None):
            module_dump(layer, "a.b")
            layer(layer(torch.ones(1, 3)))
            module_dump_end()
        names = list(run.records())
    assert names == ["Module.a.b.Linear.forward.0", "Module.a.b.Linear.forward.1"]


def test_fused_modules_inside_make_no_record(tmp_path):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x):
            return self.layer(x)

    outer = Outer().eval()
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        plain = outer(x)
    with observed(tmp_path, Setting("L1", "statistics")) as run:
        with run.step_of(None), torch.no_grad():
            module_dump(outer, "outer")
            seen = outer(x)
            module_dump_end()
        assert list(run.records()) == ["Module.outer.Outer.forward.0"]
    assert torch.equal(plain, seen)


def test_outside_of_capture_nothing_is_recorded_and_nothing_breaks(tmp_path):
    layer = nn.Linear(3, 3)
    with observed(tmp_path, Setting("L1", "statistics")) as run:
        module_dump(layer, "early")
        layer(torch.ones(1, 3))
        with run.step_of(None):
            layer(torch.ones(1, 3))
            module_dump_end()
            torch.relu(torch.ones(1))
        names = list(run.records())
    assert names[0] == "Module.early.Linear.forward.0"
    assert "Torch.relu.0.forward" in names
    assert "Functional.linear.0.forward" not in names


def test_an_exception_in_the_module_leaves_a_clean_state(tmp_path):
    layer = nn.Linear(3, 3)
    with observed(tmp_path, Setting("mix", "statistics")) as run:
        with run.step_of(nn.Identity()):
            module_dump(layer, "broken")
            with pytest.raises(RuntimeError):
                layer(torch.ones(1, 5))
            module_dump_end()
            layer(torch.ones(1, 3))
        records = run.records()
    assert records["Module.broken.Linear.forward.0"]["raised"]
    assert "Functional.linear.0.forward" in records


@pytest.mark.parametrize(
    ("module", "name", "key"),
    [
        (3, "a", "module"),
        (nn.Identity(), 3, "module_name"),
        (nn.Identity(), "", "module_name"),
        (nn.Identity(), None, "module_name"),
    ],
)
def test_wrong_arguments_are_refused(module, name, key, tmp_path):
    with observed(tmp_path, Setting("L1", "statistics")):
        with pytest.raises(ConfigError) as caught:
            module_dump(module, name)
        assert caught.value.key == key


def test_order_and_a_missing_debugger_are_refused(tmp_path):
    with pytest.raises(UsageError, match="PrecisionDebugger"):
        module_dump(nn.Identity(), "a")
    with pytest.raises(UsageError, match="PrecisionDebugger"):
        module_dump_end()
    with observed(tmp_path, Setting("L1", "statistics")):
        with pytest.raises(UsageError, match="no module_dump"):
            module_dump_end()
        module_dump(nn.Identity(), "a")
        with pytest.raises(UsageError, match="module_dump_end"):
            module_dump(nn.Identity(), "b")
