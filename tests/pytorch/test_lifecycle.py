# SPDX-License-Identifier: Apache-2.0
"""From construction to the end of the run: what users do with start, stop and step."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from builders.recordings import recording
from msprobe.capture.call import Draft
from msprobe.capture.events import CallSink
from msprobe.capture.recording import Recording
from msprobe.capture.session import current_session, reset_session
from msprobe.capture.statistics import Summary
from msprobe.config import load_config
from msprobe.dump.records import TensorRecord
from msprobe.errors import ConfigError, UsageError
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.values.adapter import TorchAdapter

pytestmark = pytest.mark.torch


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


BATCH = torch.linspace(-1, 1, 8).view(2, 4)


def test_a_second_construction_returns_the_first_and_names_what_it_ignores(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, "L1") as run:
        config = str(tmp_path / "config.json")
        assert PrecisionDebugger(config_path=config) is run.debugger
        assert caplog.text == ""
        again = PrecisionDebugger(config_path=config, level="L0", dump_path="elsewhere")
        assert again is run.debugger
        assert "level='L0'" in caplog.text
        assert "dump_path='elsewhere'" in caplog.text
        assert "config_path" not in caplog.text


def test_no_argument_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reset_session()
    try:
        debugger = PrecisionDebugger()
        debugger.start()
        torch.relu(BATCH)
        debugger.stop()
        debugger.step()
    finally:
        reset_session()
    dump = json.loads((tmp_path / "dump_path" / "step0" / "rank" / "dump.json").read_text())
    assert (dump["task"], dump["level"]) == ("statistics", "L1")
    assert list(dump["data"]) == ["Torch.relu.0.forward"]


def test_the_gradient_probe_needs_its_task(tmp_path: Path) -> None:
    refusal = pytest.raises(UsageError, match=r'task grad_probe; the task is "statistics"')
    with recording(tmp_path, "L1") as run, refusal:
        run.debugger.monitor(small_model())


def test_methods_work_on_the_class_alone(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        PrecisionDebugger.start()
        torch.relu(BATCH)
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
        assert run.names() == ["Torch.relu.0.forward"]


@pytest.mark.parametrize("method", ["start", "stop", "step", "forward_backward_dump_end"])
def test_without_a_debugger_every_method_says_so(method: str) -> None:
    reset_session()
    with pytest.raises(UsageError, match="construct"):
        getattr(PrecisionDebugger, method)()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_levels_that_record_modules_ask_for_a_model(level: str, tmp_path: Path) -> None:
    with recording(tmp_path, level) as run:
        with pytest.raises(ConfigError, match="model"):
            run.debugger.start()
        assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("bad", [3, "model", [nn.Identity(), 3], torch.ones(1)])
def test_what_is_no_model_is_refused(bad: object, tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run, pytest.raises(ConfigError, match="model"):
        run.debugger.start(bad)


def test_an_empty_list_of_models_is_refused_at_l0(tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run, pytest.raises(ConfigError, match="model"):
        run.debugger.start([])


def test_an_empty_list_does_not_mean_the_model_given_before(tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run:
        run.debugger.start(nn.Identity())
        run.debugger.stop()
        with pytest.raises(ConfigError, match="at least one model"):
            run.debugger.start([])


def test_another_model_while_recording_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, "L0") as run:
        model = nn.Identity()
        run.debugger.start(model)
        run.debugger.start(model)
        assert "a recording has begun" not in caplog.text
        run.debugger.start(nn.Identity())
        assert "a recording has begun already" in caplog.text


@pytest.mark.parametrize("end", ["stop", "forward_backward_dump_end"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_an_end_before_backward_keeps_every_gradient(level: str, end: str, tmp_path: Path) -> None:
    def records(folder: Path, *, early: bool) -> dict[str, object]:
        folder.mkdir()
        with recording(folder, level) as run:
            model = small_model()
            run.debugger.start(model)
            loss = model(BATCH).mean()
            if early:
                getattr(run.debugger, end)()
                loss.backward()
                torch.relu(BATCH)  # not observed any more
            else:
                loss.backward()
                getattr(run.debugger, end)()
            run.debugger.step()
            found = run.records()
        return {name: value for name, value in found.items() if "ones_like" not in name}

    early, late = records(tmp_path / "early", early=True), records(tmp_path / "late", early=False)
    assert set(early) == set(late)
    assert [name for name in early if "backward" in name]
    for name in early:
        assert _statistics(early[name]) == _statistics(late[name])


def _statistics(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: _statistics(value) for key, value in tree.items() if key != "value_id"}
    return [_statistics(value) for value in tree] if isinstance(tree, list) else tree


def test_several_starts_in_one_step_go_on_counting(tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as run:
        model = small_model()
        for _ in range(2):
            run.debugger.start(model)
            model(BATCH).mean().backward()
            run.debugger.stop()
            model(BATCH)  # outside: neither recorded nor counted
        run.debugger.step()
        assert run.names("linear.3.") == [
            "Functional.linear.3.forward",
            "Functional.linear.3.backward",
        ]
        assert "Functional.linear.4.forward" not in run.records()
        assert "Module.0.Linear.forward.1" in run.records()


def test_start_twice_and_stop_twice_are_harmless(tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as run:
        model = small_model()
        for action in (run.debugger.start, run.debugger.start):
            action(model)
        model(BATCH)
        for action in (run.debugger.stop, run.debugger.stop, run.debugger.step):
            action()
        assert run.names("Module.0.Linear") == ["Module.0.Linear.forward.0"]
        assert run.account()["errors"] == {}


def test_step_without_stop_ends_the_step(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        run.debugger.start()
        torch.relu(BATCH)
        run.debugger.step()
        assert torch._C._len_torch_function_stack() == 0
        torch.relu(BATCH)
        with run.step_of():
            torch.tanh(BATCH)
        assert run.names(step=0) == ["Torch.relu.0.forward"]
        assert run.names(step=1) == ["Torch.tanh.0.forward"]


def test_a_rerun_into_the_same_folder_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "tensor") as run:
        with run.step_of():
            torch.relu(BATCH)
        (run.place() / "notes.txt").write_text("the user's")
    with recording(tmp_path, "L1", "tensor") as run:
        with run.step_of():
            torch.tanh(BATCH)
        files = {path.name for path in (run.place() / "dump_tensor_data").iterdir()}
        assert files == {"Torch.tanh.0.forward.input.0.pt", "Torch.tanh.0.forward.output.0.pt"}
        assert run.names() == ["Torch.tanh.0.forward"]
        assert (run.place() / "notes.txt").read_text() == "the user's"


def test_several_models_are_named_by_their_index(tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run:
        models = [nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 2)]
        with run.step_of(models):
            models[1](models[0](BATCH)).sum().backward()
        assert run.names("forward") == [
            "Module.0.0.Linear.forward.0",
            "Module.0.Sequential.forward.0",
            "Module.1.Linear.forward.0",
        ]


def test_the_model_may_be_given_to_the_constructor_and_replaced_by_start(tmp_path: Path) -> None:
    reset_session()
    try:
        first, second = nn.Linear(4, 4), nn.Linear(4, 3)
        debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", model=first)
        for model in (None, second):
            debugger.start(model)
            first(BATCH)
            second(BATCH)
            debugger.stop()
            debugger.step()
    finally:
        reset_session()
    shapes = [_output_shapes(tmp_path / f"step{step}" / "rank" / "dump.json") for step in range(2)]
    assert shapes == [[[2, 4]], [[2, 3]]]


def _output_shapes(path: Path) -> list[list[int]]:
    return [parts["output"][0]["shape"] for parts in json.loads(path.read_text())["data"].values()]


def test_copies_made_while_capturing_are_not_watched(tmp_path: Path) -> None:
    model = small_model()
    with recording(tmp_path, "mix") as run:
        run.debugger.start(model)
        model(BATCH).sum().backward()
        twin = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        run.debugger.stop()
        for other in (twin, loaded):
            assert not [p for p in other.parameters() if p._post_accumulate_grad_hooks]
            other(BATCH).sum().backward()
        run.debugger.step()
        assert run.names("0.Linear.forward") == ["Module.0.Linear.forward.0"]
        assert run.names("parameters_grad.1") == []


class HandsThrough(nn.Module):
    """Returns a parameter of its own and the leaf that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.scale.contiguous(), x.contiguous()


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
def test_a_leaf_is_copied_and_saved_without_our_hook_or_a_warning(
    level: str, tmp_path: Path
) -> None:
    model = nn.Sequential(HandsThrough())
    leaf = BATCH.clone().requires_grad_()
    with recording(tmp_path, level) as run:
        run.debugger.start(model)
        scale, x = model(leaf)
        run.debugger.save([leaf, *model.parameters()], "leaves")
        copies = [copy.deepcopy(leaf), *copy.deepcopy(model).parameters()]  # warnings are errors
        copies += [
            pickle.loads(pickle.dumps(leaf)),
            *pickle.loads(pickle.dumps(model)).parameters(),
        ]
        torch.save([leaf, model.state_dict(keep_vars=True)], tmp_path / "saved.pt")
        loaded, state = torch.load(tmp_path / "saved.pt")
        (scale * x).sum().backward()
        run.debugger.stop()
        run.debugger.step()
        if level in ("L0", "mix"):
            record = run.records()["Module.0.HandsThrough.backward.0"]
            largest = [entry["Max"] for entry in record["input"]]
            assert largest == [BATCH.sum(0).max().item(), 1.0]
    for one in (*copies, loaded, *state.values()):
        assert not one._backward_hooks
        assert not one._post_accumulate_grad_hooks


def test_the_account_says_what_was_kept_and_what_it_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, "L1", "tensor", risk_level="FOCUS") as run:
        with caplog.at_level("INFO"), run.step_of():
            torch.relu(BATCH)
            torch.cat([BATCH])
        account = run.account()
        size = sum(path.stat().st_size for path in run.place().rglob("*.pt"))
    assert account["step"] == 0
    assert account["complete"] is True
    assert account["records"] == 1
    assert account["tensors"] == 2
    assert account["bytes"] > size > 0
    assert account["capture_ms"] > 0
    assert account["skipped"] == {"risk_level FOCUS": 1}
    assert account["errors"] == {}
    assert "step 0: 1 record, 2 tensors" in caplog.text
    assert "skipped 1 (risk_level FOCUS)" in caplog.text


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_the_account_has_the_time_of_start_stop_and_gradients(level: str, tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(60)))
    with recording(tmp_path, level) as run:
        for with_backward in [False] * 6 + [True] * 5:  # the first step also walks stacks
            with run.step_of(model):
                loss = model(torch.ones(2, 4)).sum()
                for _ in range(5 * with_backward):
                    loss.backward(retain_graph=True)
        spent = [run.account(step)["capture_ms"] for step in range(11)]
    # Several passes, and the shortest of five: the machine may be busy with something else.
    assert min(spent[6:]) > min(spent[1:6]) > 0


def test_an_error_of_ours_stays_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every part of capture breaks; the user's program does not notice."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("on purpose")

    # The last one is what records that are made in C ask for.
    for name in ("begin", "inputs", "outputs", "end", "write_place"):
        with monkeypatch.context() as patch:
            patch.setattr(Recording, name, broken)
            folder = tmp_path / name
            folder.mkdir()
            with recording(folder, "mix") as run:
                model = small_model()
                if name != "write_place":  # a second sink has all records made in Python
                    session = current_session()
                    assert session is not None
                    session.calls.add(CallSink())
                with run.step_of(model):
                    loss = model(BATCH).sum()
                    loss.backward()
                account = run.account()
                log = (run.place() / "dump_error_info.log").read_text()
            expected = small_model()(BATCH).sum()
            assert torch.equal(loss, expected)
            assert account["complete"] is False
            assert sum(account["errors"].values()) > 0
            assert "on purpose" in log
    assert "the run goes on" in caplog.text


@pytest.mark.parametrize("keeps", [False, True])
def test_random_calls_say_so_and_keep_the_state_on_demand(keeps: bool, tmp_path: Path) -> None:
    with recording(tmp_path, "L1", record_rng=keeps) as run:
        with run.step_of():
            torch.manual_seed(5)
            state = torch.get_rng_state()
            torch.nn.functional.dropout(BATCH, 0.5)
            torch.nn.functional.dropout(BATCH, 0.5, training=False)
            torch.relu(BATCH)
        records = run.records()
        drawn = records["Functional.dropout.0.forward"]["rng"]
        assert list(drawn) == ["cpu"]
        if keeps:
            saved = torch.load(run.place() / "dump_tensor_data" / drawn["cpu"]["data_name"])
            assert torch.equal(saved, state)
        else:
            assert drawn["cpu"] is None
    assert "rng" not in records["Functional.dropout.1.forward"]
    assert "rng" not in records["Torch.relu.0.forward"]


def test_value_ids_follow_a_value_from_call_to_call(tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as run:
        model = small_model()
        with run.step_of(model):
            model(BATCH).sum().backward()
        records = run.records()

    def value(name: str, part: str) -> int:
        found: int = records[name][part][0]["value_id"]
        return found

    assert value("Functional.linear.0.forward", "output") == value(
        "Functional.relu.0.forward", "input_args"
    )
    assert value("Functional.linear.0.forward", "output") == value(
        "Module.0.Linear.forward.0", "output"
    )
    assert value("Functional.linear.1.backward", "output") == value(
        "Functional.relu.0.backward", "input"
    )
    assert value("Functional.relu.0.forward", "output") != value(
        "Functional.relu.0.forward", "input_args"
    )


def test_structure_keeps_the_tree_and_the_stacks_without_records(tmp_path: Path) -> None:
    with recording(tmp_path, "mix", "structure") as run:
        model = small_model()
        with run.step_of(model):
            model(BATCH).sum().backward()
        assert run.records() == {}
        parents = run.parents()
        assert parents["Functional.linear.0.forward"] == "Module.0.Linear.forward.0"
        assert parents["Module.0.Linear.forward.0"] == "Module.Sequential.forward.0"
        assert run.read("stack.json")["0"][0]


def test_start_and_stop_inside_forward_record_that_part(tmp_path: Path) -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(x)
            PrecisionDebugger.start(self)
            x = self.fc(x)
            PrecisionDebugger.stop()
            return torch.relu(x)

    with recording(tmp_path, "mix") as run:
        Partly()(BATCH).sum().backward()
        run.debugger.step()
        names = run.names()
    assert names[:2] == ["Functional.linear.0.forward", "Module.fc.Linear.forward.0"]
    assert "Functional.linear.0.backward" in names
    assert not [name for name in names if "tanh" in name or "relu" in name]


class Twice(nn.Module):
    """Two results, each with a share of the gradient of the one input."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x), torch.sin(x)


class SeenOperators(TorchDispatchMode):
    """A mode of the user's that notes what runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_of_the_user_see_nothing_of_stop_and_step(tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 4).requires_grad_()
    with recording(tmp_path, "L0", "tensor") as run:
        model = Twice()
        run.debugger.start(model)
        first, _ = model(x * 1)
        first.sum().backward()  # the share of the second result never comes: `stop` writes this one
        with SeenOperators() as mode:
            run.debugger.stop()
            run.debugger.step()
        assert mode.seen == []
        record = run.records()["Module.Twice.backward.0"]
        assert run.account()["errors"] == {}
    assert record["output"][0]["data_name"]


def test_statistics_that_a_device_never_delivers_leave_a_note(tmp_path: Path) -> None:
    adapter = TorchAdapter(load_config(None, dump_path=tmp_path))
    record = TensorRecord("torch.Tensor", "torch.float32", (2,))
    draft = Draft("Functional.relu.0.forward", 0)
    draft.waiting = [(record, Summary(ready=False))]
    adapter.fill(draft)
    assert record.note == "the device did not deliver the statistics"
    assert record.max is None


def test_a_model_that_the_user_lets_go_is_not_kept_alive(tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as run:
        model = small_model()
        with run.step_of(model):
            model(BATCH).sum().backward()
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
        with pytest.raises(ConfigError, match="model"):
            run.debugger.start()
