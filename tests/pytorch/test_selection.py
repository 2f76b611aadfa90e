# SPDX-License-Identifier: Apache-2.0
"""Which calls are recorded, and what of them: every filter of config.json, as a user sets it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from builders.recordings import Json, recording

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = Block()
        self.b = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


BATCH = torch.linspace(-1, 1, 8).view(2, 4)


def recorded(folder: Path, level: str, section: Json | None = None, **common: Any) -> Json:
    """The records of one step of `Net`."""
    with recording(folder, level, section=section, **common) as run:
        torch.manual_seed(0)
        model, x = Net(), BATCH.clone().requires_grad_()
        with run.step_of(model):
            model(x).sum().backward()
        assert run.account()["errors"] == {}
        return run.records()


def test_a_scope_at_l1_keeps_the_calls_from_its_first_to_its_last_name(tmp_path: Path) -> None:
    ends = ["Functional.relu.0.forward", "Functional.linear.1.backward"]
    assert list(recorded(tmp_path, "L1", {"scope": ends})) == [
        "Functional.relu.0.forward",
        "Functional.linear.1.forward",
        "Functional.relu.1.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Functional.relu.1.backward",
        "Functional.linear.1.backward",
    ]


def test_a_scope_at_l0_keeps_modules_and_outputs_only_of_a_parent_that_began_before(
    tmp_path: Path,
) -> None:
    ends = ["Module.a.Block.forward.0", "Module.b.Block.backward.0"]
    records = recorded(tmp_path, "L0", {"scope": ends})
    assert list(records)[:4] == [
        "Module.a.fc.Linear.forward.0",
        "Module.a.act.ReLU.forward.0",
        "Module.a.Block.forward.0",
        "Module.b.fc.Linear.forward.0",
    ]
    assert "input_args" not in records["Module.Net.forward.0"]
    assert "output" in records["Module.Net.forward.0"]
    assert "Module.b.fc.Linear.parameters_grad" in records
    assert "Module.a.fc.Linear.backward.0" not in records
    assert "Module.a.fc.Linear.parameters_grad" not in records


def test_a_scope_of_backward_names_keeps_no_forward_record(tmp_path: Path) -> None:
    ends = ["Module.b.Block.backward.0", "Module.b.fc.Linear.backward.0"]
    records = recorded(tmp_path, "mix", {"scope": ends})
    assert records
    assert not [name for name in records if "forward" in name]
    assert "Module.b.act.ReLU.backward.0" in records
    assert "Module.a.act.ReLU.backward.0" not in records


def test_a_scope_ends_also_when_only_inputs_are_recorded(tmp_path: Path) -> None:
    ends = ["Functional.linear.0.forward", "Functional.relu.0.forward"]
    records = recorded(tmp_path, "L1", {"scope": ends, "data_mode": ["forward", "input"]})
    assert list(records) == ["Functional.linear.0.forward", "Functional.relu.0.forward"]


def test_a_scope_ends_with_a_call_that_raises(tmp_path: Path) -> None:
    ends = ["Functional.linear.0.forward", "Functional.linear.1.forward"]
    fits, does_not = torch.ones(4, 4), torch.ones(3, 3)
    with recording(tmp_path, "L1", section={"scope": ends}) as run:
        with run.step_of():
            F.linear(BATCH, fits)
            with pytest.raises(RuntimeError):
                F.linear(BATCH, does_not)
            F.relu(BATCH)
        assert run.names() == ["Functional.linear.0.forward", "Functional.linear.1.forward"]


def test_a_list_element_is_a_part_of_a_name(tmp_path: Path) -> None:
    names = list(recorded(tmp_path, "L1", {"list": ["relu"]}))
    assert sorted(names) == [
        "Functional.relu.0.backward",
        "Functional.relu.0.forward",
        "Functional.relu.1.backward",
        "Functional.relu.1.forward",
    ]


def test_at_mix_a_listed_module_is_expanded_in_its_direction(tmp_path: Path) -> None:
    (tmp_path / "forward").mkdir()
    (tmp_path / "backward").mkdir()
    assert sorted(
        recorded(tmp_path / "forward", "mix", {"list": ["Module.a.Block.forward.0"]})
    ) == [
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
        "Module.a.Block.forward.0",
        "Module.a.act.ReLU.forward.0",
        "Module.a.fc.Linear.forward.0",
    ]
    found = recorded(tmp_path / "backward", "mix", {"list": ["Module.a.Block.backward.0"]})
    assert sorted(found) == [
        "Functional.linear.0.backward",
        "Functional.relu.0.backward",
        "Module.a.Block.backward.0",
        "Module.a.act.ReLU.backward.0",
        "Module.a.fc.Linear.backward.0",
        "Module.a.fc.Linear.parameters_grad",
    ]


def test_at_l0_a_listed_module_is_not_expanded(tmp_path: Path) -> None:
    names = list(recorded(tmp_path, "L0", {"list": ["Module.a.Block.forward"]}))
    assert names == ["Module.a.Block.forward.0"]


def test_parameter_gradients_follow_the_list(tmp_path: Path) -> None:
    names = list(recorded(tmp_path, "L0", {"list": ["b.fc.Linear.parameters_grad"]}))
    assert names == ["Module.b.fc.Linear.parameters_grad"]


def test_a_tied_parameter_is_recorded_under_the_listed_owner(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    with recording(tmp_path, "L0", section={"list": ["Module.1."]}) as run:
        with run.step_of(model):
            model(BATCH).sum().backward()
        assert run.names("parameters_grad") == ["Module.1.Linear.parameters_grad"]


def test_scope_and_list_must_both_hold(tmp_path: Path) -> None:
    ends = ["Functional.linear.1.forward", "Functional.linear.1.backward"]
    names = list(recorded(tmp_path, "L1", {"scope": ends, "list": ["relu"]}))
    assert names == ["Functional.relu.1.forward", "Functional.relu.1.backward"]


SIDES = {
    "input": {("forward", "input_args"), ("forward", "input_kwargs"), ("backward", "input")},
    "output": {("forward", "output"), ("backward", "output")},
}


@pytest.mark.parametrize(
    "mode",
    [
        ["all"],
        ["forward"],
        ["backward"],
        ["input"],
        ["output"],
        ["forward", "input"],
        ["forward", "output"],
        ["backward", "input"],
        ["backward", "output"],
    ],
    ids="-".join,
)
def test_data_mode_keeps_directions_and_sides(mode: list[str], tmp_path: Path) -> None:
    records = recorded(tmp_path, "L1", {"data_mode": mode})
    directions = {"forward", "backward"} & set(mode) or {"forward", "backward"}
    sides = {"input", "output"} & set(mode) or {"input", "output"}
    wanted = {pair for side in sides for pair in SIDES[side] if pair[0] in directions}
    found = {(name.rpartition(".")[2], part) for name, parts in records.items() for part in parts}
    assert {pair for pair in found if pair[1] != "rng"} == wanted


def test_forward_only_records_no_parameter_gradients(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    forward = recorded(tmp_path, "L0", {"data_mode": ["forward"]})
    assert not [name for name in forward if "grad" in name]
    side = recorded(tmp_path / "other", "L0", {"data_mode": ["input"]})
    assert "Module.a.fc.Linear.parameters_grad" in side


def test_tensor_list_saves_the_tensors_of_matching_records_alone(tmp_path: Path) -> None:
    with recording(tmp_path, "mix", section={"tensor_list": ["relu"]}) as run:
        model = Net()
        with run.step_of(model):
            model(BATCH).sum().backward()
        records = run.records()
        files = {path.name for path in (run.place() / "dump_tensor_data").iterdir()}
    assert files == {
        f"Functional.relu.{i}.{part}.0.pt"
        for i in range(2)
        for part in ("forward.input", "forward.output", "backward.input", "backward.output")
    }
    assert "data_name" not in records["Functional.linear.0.forward"]["output"][0]


def test_the_black_list_removes_an_api_and_keeps_the_rest(tmp_path: Path) -> None:
    names = list(recorded(tmp_path, "mix", {"black_list": ["relu"]}))
    assert not [name for name in names if "relu" in name]
    assert "Module.a.act.ReLU.forward.0" in names
    assert "Functional.linear.1.backward" in names


def test_risk_levels_are_nested_and_say_what_they_left_out(tmp_path: Path) -> None:
    def names(level: str) -> set[str]:
        folder = tmp_path / level
        folder.mkdir()
        with recording(folder, "L1", risk_level=level) as run:
            with run.step_of():
                F.linear(torch.cat([BATCH, BATCH]).reshape(4, 4), torch.ones(4, 4)).tanh()
            if level != "ALL":
                assert run.account()["skipped"] == {
                    f"risk_level {level}": 4 if level == "CORE" else 3
                }
            return set(run.names())

    core, focus, everything = names("CORE"), names("FOCUS"), names("ALL")
    assert core < focus < everything
    assert core == {"Functional.linear.0.forward"}


def test_by_default_everything_is_recorded(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            torch.stack([BATCH, BATCH]).view(-1).clamp(0).flatten()
        assert run.names() == [
            "Torch.stack.0.forward",
            "Tensor.view.0.forward",
            "Tensor.clamp.0.forward",
            "Tensor.flatten.0.forward",
        ]


def test_an_api_list_says_what_is_recorded(tmp_path: Path) -> None:
    listed = tmp_path / "apis.yaml"
    listed.write_text("functional: [relu]\ntensor: [sum]\ntorch: []\n")
    names = list(recorded(tmp_path, "L1", api_list=str(listed)))
    assert {name.rpartition(".")[0] for name in names} == {
        "Functional.relu.0",
        "Functional.relu.1",
        "Tensor.sum.0",
    }


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_token_range_records_those_forward_calls_of_the_model(level: str, tmp_path: Path) -> None:
    with recording(tmp_path, level) as run:
        model = Block()
        run.debugger.start(model, token_range=[1, 2])
        for number in range(5):
            model(torch.full((1, 4), float(number)))
        run.debugger.stop()
        run.debugger.step()
        records = run.records()
    name = "Functional.linear.{}.forward" if level == "L1" else "Module.Block.forward.{}"
    inputs = [records[name.format(i)]["input_args"][0]["Max"] for i in range(2)]
    assert inputs == [1.0, 2.0]
    assert name.format(2) not in records


def test_dump_enable_switches_a_running_job(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", dump_enable=False) as run:
        config = tmp_path / "config.json"
        for step, wanted in enumerate([False, True, False]):
            keys = json.loads(config.read_text())
            config.write_text(json.dumps(keys | {"dump_enable": wanted}))
            os.utime(config, ns=(step * 10**9, step * 10**9))
            with run.step_of():
                torch.relu(BATCH)
        assert run.steps() == ["step1"]


def test_only_wanted_steps_are_recorded_and_the_last_one_ends_capture(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, "L1", step=[1, "3-4"]) as run:
        with caplog.at_level("INFO"):
            for _ in range(7):
                with run.step_of():
                    torch.relu(BATCH)
        assert run.steps() == ["step1", "step3", "step4"]
        assert caplog.text.count("all wanted steps are recorded") == 1
        assert run.names(step=3) == ["Torch.relu.0.forward"]


def test_set_init_step_counts_from_there(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", step=[1, "3-4"]) as run:
        run.debugger.set_init_step(2)
        for _ in range(4):
            with run.step_of():
                torch.relu(BATCH)
        assert run.steps() == ["step3", "step4"]


def test_the_programs_own_time_after_a_late_first_step_is_not_in_the_account(
    tmp_path: Path,
) -> None:
    with recording(tmp_path, "L1") as run:
        run.debugger.start()
        run.debugger.set_init_step(2)
        time.sleep(1)
        with run.step_of():
            torch.relu(BATCH)
        assert run.account(2)["capture_ms"] < 1000


@pytest.mark.parametrize("bad", [-1, 1.0, "1", True, None])
def test_set_init_step_refuses_what_is_no_step(bad: Any, tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run, pytest.raises(Exception, match="step"):
        run.debugger.set_init_step(bad)


def test_without_a_process_group_this_process_is_rank_0_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, "L1", rank=[0]) as run:
        with run.step_of():
            torch.relu(BATCH)
        assert run.steps() == ["step0"]
        assert "counts as rank 0" in caplog.text


def test_an_unwanted_rank_records_nothing_and_installs_nothing(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", rank=[1]) as run:
        run.debugger.start()
        assert torch._C._len_torch_function_stack() == 0
        run.debugger.stop()
        run.debugger.step()
        assert run.steps() == []


def test_a_given_rank_names_the_folder(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        run.debugger.start(rank_id=3)
        torch.relu(BATCH)
        run.debugger.stop()
        run.debugger.step()
        assert list(run.records(rank="rank3")) == ["Torch.relu.0.forward"]


def test_slices_crop_before_statistics_and_saving(tmp_path: Path) -> None:
    cut = [{"dim": 1, "size": 4, "begin": 1, "end": 3}]
    with recording(tmp_path, "L1", "tensor", section={"slice": cut}) as run:
        x = torch.arange(8.0).view(2, 4)
        with run.step_of():
            y = torch.relu(x)
            torch.relu(torch.ones(2, 5))
        assert y.shape == (2, 4)
        record = run.records()["Torch.relu.0.forward"]["output"][0]
        assert (record["shape"], record["Max"], record["Min"]) == ([2, 2], 6.0, 1.0)
        saved = torch.load(run.place() / "dump_tensor_data" / record["data_name"])
        assert torch.equal(saved, x[:, 1:3])
        assert run.records()["Torch.relu.1.forward"]["output"][0]["shape"] == [2, 5]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("mode", ["statistics", "md5"])
def test_async_dump_gives_the_same_records(task: str, mode: str, tmp_path: Path) -> None:
    def run_once(name: str, **common: bool) -> Json:
        (tmp_path / name).mkdir()
        section = {"summary_mode": mode}
        with recording(tmp_path / name, "mix", task, section=section, **common) as run:
            torch.manual_seed(0)
            model = Net()
            with run.step_of(model):
                model(BATCH).sum().backward()
            return run.records()

    assert run_once("async", async_dump=True) == run_once("plain")


def test_extra_info_false_writes_no_stacks_and_no_tree(tmp_path: Path) -> None:
    with recording(tmp_path, "mix", extra_info=False) as run:
        model = Net()
        with run.step_of(model):
            model(BATCH)
        names = {path.name for path in run.place().iterdir()}
    assert "dump.json" in names
    assert not {"stack.json", "construct.json"} & names


@pytest.mark.parametrize("precision", ["low", "high"])
def test_every_numeric_type_has_four_statistics_at_either_precision(
    precision: str, tmp_path: Path
) -> None:
    types = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8]
    with recording(tmp_path, "L1", precision=precision) as run:
        with run.step_of():
            for dtype in types:
                torch.add(torch.arange(6).to(dtype), 0)
        for index in range(len(types)):
            record = run.records()[f"Torch.add.{index}.forward"]["output"][0]
            found = [record[key] for key in ("Max", "Min", "Mean", "Norm")]
            assert found == pytest.approx([5, 0, 2.5, 55**0.5], rel=1e-12)
