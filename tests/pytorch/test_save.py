# SPDX-License-Identifier: Apache-2.0
"""Level debug: what `save` writes, its gradients, and what it leaves alone."""

from __future__ import annotations

import logging
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from builders.recordings import Recording, Setting, observed, read
from msprobe import open_dump
from msprobe.capture.session import reset_session
from msprobe.log import reset_warn_once
from msprobe.pytorch import PrecisionDebugger

pytestmark = pytest.mark.torch

TENSOR = Setting("debug", "tensor")
STATISTICS = Setting("debug", "statistics")


def load(run: Recording, name: str, step: int = 0) -> torch.Tensor:
    """The value in a tensor file of a dump."""
    path = run.folder / f"step{step}" / "rank" / "dump_tensor_data" / name
    value: torch.Tensor = torch.load(path, weights_only=True)
    return value


def test_a_tensor_and_its_gradient_are_recorded_under_the_documented_names(tmp_path: Path) -> None:
    with observed(tmp_path, TENSOR) as run:
        x = torch.randn(3, 2, requires_grad=True)
        y = x * 3
        run.debugger.save(y, "y")
        (y**2).sum().backward()
        run.debugger.step()
        records = run.records()
        assert list(records) == ["y.0.debug", "y_grad.0.debug"]
        assert records["y.0.debug"]["data_name"] == "y.0.tensor.pt"
        assert records["y_grad.0.debug"]["data_name"] == "y_grad.0.tensor.pt"
        assert records["y.0.debug"]["Max"] == pytest.approx(y.max().item())
        assert records["y.0.debug"]["requires_grad"] is True
        assert torch.equal(load(run, "y.0.tensor.pt"), y)
        assert torch.equal(load(run, "y_grad.0.tensor.pt"), 2 * y)
        head = read(run.folder, 0, "rank", "debug.json")
        assert (head["level"], head["task"], head["framework"]) == ("debug", "tensor", "pytorch")


def test_a_nested_value_keeps_its_shape_and_its_indexes_name_the_files(tmp_path: Path) -> None:
    with observed(tmp_path, TENSOR) as run:
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        run.debugger.save({"a": [y, 5, None], "b": {"c": (torch.zeros(3), "text", True)}}, "pair")
        y.sum().backward()
        run.debugger.step()
        value = run.records()["pair.0.debug"]
        gradient = run.records()["pair_grad.0.debug"]
    assert value["a"][0]["data_name"] == "pair.0.tensor.a.0.pt"
    assert value["a"][1:] == [{"type": "int", "value": 5}, None]
    assert value["b"]["c"][0]["data_name"] == "pair.0.tensor.b.c.0.pt"
    assert value["b"]["c"][1:] == [
        {"type": "str", "value": "text"},
        {"type": "bool", "value": True},
    ]
    assert gradient["a"][0]["data_name"] == "pair_grad.0.tensor.a.0.pt"
    assert gradient["a"][0]["Mean"] == 1.0
    assert gradient["a"][1:] == [None, None]
    assert gradient["b"] == {"c": [None, None, None]}


def test_what_cannot_be_recorded_is_null_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    circle: list[object] = [torch.ones(1)]
    circle.append(circle)
    keyed = {1: torch.ones(2), "1": torch.zeros(2), (2, 3): object(), None: torch.ones(3)}
    value = keyed | {"circle": circle}
    with observed(tmp_path, STATISTICS) as run, caplog.at_level(logging.WARNING, "msprobe"):
        run.debugger.save(value, "odd")
        run.debugger.step()
        record = run.records()["odd.0.debug"]
        assert run.failures(1) == []
    # Keys are written as in the records of calls.
    assert record["1"]["Max"] == 0.0
    assert record["1_1"]["Max"] == 1.0
    assert record["(2, 3)"] is None
    assert record["None"]["shape"] == [3]
    assert record["circle"][0]["Max"] == 1.0
    assert record["circle"][1] == {"type": "list", "value": "same as tensor.circle"}
    assert "object" in caplog.text


def test_arrays_have_files_too(tmp_path: Path) -> None:
    numbers = np.arange(6.0).reshape(2, 3)
    with observed(tmp_path, TENSOR) as run:
        run.debugger.save(numbers[:, ::2], "array")
        run.debugger.save({"words": np.array(["a", "bc"]), "none": np.zeros(0)}, "more")
        numbers += 100
        run.debugger.step()
        records = run.records()
        assert records["array.0.debug"]["data_name"] == "array.0.tensor.pt"
        assert load(run, "array.0.tensor.pt").tolist() == [[0.0, 2.0], [3.0, 5.0]]
        assert records["more.0.debug"]["words"]["data_name"] == "more.0.tensor.words.npy"
        assert "data_name" not in records["more.0.debug"]["none"]
        folder = run.folder / "step0" / "rank" / "dump_tensor_data"
        assert np.load(folder / "more.0.tensor.words.npy").tolist() == ["a", "bc"]
    view = open_dump(tmp_path).step(0).rank()
    (value,) = view.records["array.0.debug"].values()
    assert view.tensor(value).values().tolist() == [[0.0, 2.0], [3.0, 5.0]]


def test_with_task_statistics_arrays_have_none(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        run.debugger.save(np.ones(2), "array")
        run.debugger.step()
        assert run.records()["array.0.debug"]["Max"] == 1.0
        assert not (run.folder / "step0" / "rank" / "dump_tensor_data").exists()


def test_names_are_counted_per_step(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        for value in (1, 2):
            run.debugger.save(value, "n", save_backward=False)
        run.debugger.save(3, "m")
        run.debugger.step()
        run.debugger.save(4, "n", save_backward=False)
        run.debugger.step()
        assert run.records(0) == {
            "n.0.debug": {"type": "int", "value": 1},
            "n.1.debug": {"type": "int", "value": 2},
            "m.0.debug": {"type": "int", "value": 3},
            "m_grad.0.debug": None,
        }
        assert run.records(1) == {"n.0.debug": {"type": "int", "value": 4}}


def test_a_value_with_the_name_of_a_gradient_replaces_nothing(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        y = torch.ones(2, requires_grad=True) * 2
        run.debugger.save(y, "y")
        run.debugger.save(7, "y_grad", save_backward=False)
        y.sum().backward()
        run.debugger.step()
        records = run.records()
    assert records["y_grad.0.debug"]["Mean"] == 1.0
    assert records["y_grad.1.debug"] == {"type": "int", "value": 7}


def test_a_name_never_leads_out_of_the_folder_and_agrees_with_its_file(tmp_path: Path) -> None:
    with observed(tmp_path / "dump", TENSOR) as run:
        run.debugger.save(torch.ones(2), "bad/../../name with blanks", save_backward=False)
        run.debugger.step()
        ((name, record),) = run.records().items()
        assert record["data_name"] == name.replace(".debug", ".tensor.pt")
        assert torch.equal(load(run, record["data_name"]), torch.ones(2))
    assert {path.name for path in tmp_path.iterdir()} == {"dump"}


@pytest.mark.parametrize(
    ("name", "save_backward"), [(3, True), (None, True), ("x", 1), ("x", None)]
)
def test_wrong_arguments_are_a_warning_and_skip_the_call(
    name: object, save_backward: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with observed(tmp_path, STATISTICS) as run, caplog.at_level(logging.WARNING, "msprobe"):
        run.debugger.save(torch.ones(1), name, save_backward)
        run.debugger.save(torch.ones(1), "right", save_backward=False)
        run.debugger.step()
        assert list(run.records()) == ["right.0.debug"]
    assert "nothing is saved" in caplog.text


@pytest.mark.parametrize(
    ("level", "task", "named"),
    [
        ("L1", "statistics", "level L1 with task statistics"),
        ("mix", "tensor", "level mix with task tensor"),
        ("debug", "structure", "level mix with task structure"),
    ],
)
def test_where_it_records_nothing_it_says_so_once(
    level: str, task: str, named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reset_warn_once()
    with observed(tmp_path, Setting(level, task)) as run, caplog.at_level(logging.WARNING):
        for _ in range(3):
            run.debugger.save(torch.ones(1), "x")
            run.debugger.step()
    assert not (tmp_path / "step0").exists()
    said = [line for line in caplog.messages if "save()" in line]
    assert said == [
        f"save() records nothing at {named}; it needs level debug, and task statistics or tensor"
    ]


def test_only_wanted_steps_are_opened(tmp_path: Path) -> None:
    reset_session()
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="debug", step=[1])
    for _ in range(3):
        debugger.save(1, "n")
        debugger.step()
    reset_session()
    assert [path.name for path in (tmp_path / "dump").iterdir() if path.is_dir()] == ["step1"]


def test_a_backward_pass_that_ends_at_the_tensor_is_seen(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        x = torch.ones(4, requires_grad=True)
        first, second = (x * 2).split([1, 3])
        run.debugger.save(second, "second")
        (found,) = torch.autograd.grad((second * 5).sum() + first.sum(), second)
        run.debugger.step()
        assert run.records()["second_grad.0.debug"]["shape"] == [3]
        assert run.records()["second_grad.0.debug"]["Mean"] == found.mean().item() == 5.0


def test_the_first_backward_pass_gives_the_gradient(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        y = torch.ones(2, requires_grad=True) * 2
        run.debugger.save(y, "y")
        (y * 3).sum().backward(retain_graph=True)
        (y * 7).sum().backward()
        run.debugger.step()
        assert run.records()["y_grad.0.debug"]["Mean"] == 3.0


def test_leaves_and_values_changed_in_place_later_have_their_own_gradients(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        weight = nn.Parameter(torch.full((2,), 3.0))
        y = weight * 2
        run.debugger.save(weight, "weight")
        run.debugger.save(y, "before")
        y *= 5
        run.debugger.save(y, "after")
        y.sum().backward()
        run.debugger.step()
        means = {name: record["Mean"] for name, record in run.records().items() if "grad" in name}
        values = {name: run.records()[name]["Mean"] for name in ("before.0.debug", "after.0.debug")}
    assert means == {
        "weight_grad.0.debug": 10.0,
        "before_grad.0.debug": 5.0,
        "after_grad.0.debug": 1.0,
    }
    assert values == {"before.0.debug": 6.0, "after.0.debug": 30.0}
    assert not weight._backward_hooks


def test_a_computed_tensor_shows_no_hook_and_late_gradients_are_dropped(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        y = torch.ones(2, requires_grad=True) * 2
        run.debugger.save(y, "y")
        assert y._backward_hooks is None
        run.debugger.step()
        y.sum().backward()
        run.debugger.save(1, "next", save_backward=False)
        run.debugger.step()
        assert run.records(0)["y_grad.0.debug"] is None
        assert list(run.records(1)) == ["next.0.debug"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_there_is_no_gradient(mode: type, tmp_path: Path) -> None:
    outside = torch.ones(4, requires_grad=True).split(2)
    with observed(tmp_path, STATISTICS) as run:
        with mode():
            run.debugger.save(torch.ones(2, requires_grad=True) * 2, "y")
            run.debugger.save(outside[1], "outside")
        (outside[1] * 4).sum().backward()
        run.debugger.step()
        assert run.records()["y_grad.0.debug"] is None
        assert run.records()["outside_grad.0.debug"]["Mean"] == 4.0
        assert run.failures(1) == []


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.float8_e4m3fn,
        torch.int64,
        torch.bool,
        torch.complex64,
    ],
)
def test_any_dtype_with_checksum(dtype: torch.dtype, tmp_path: Path) -> None:
    with observed(tmp_path, TENSOR, summary_mode="md5") as run:
        value = torch.ones(5).to(dtype)
        run.debugger.save(value, "x", save_backward=False)
        run.debugger.step()
        record = run.records()["x.0.debug"]
        assert run.failures(1) == []
        assert record["dtype"] == str(dtype)
        assert len(record["md5"]) == 8
        assert torch.equal(
            load(run, record["data_name"]).view(torch.uint8), value.view(torch.uint8)
        )


def test_our_reader_finds_values_and_gradients(tmp_path: Path) -> None:
    with observed(tmp_path, TENSOR) as run:
        y = torch.arange(3.0, requires_grad=True) * 2
        run.debugger.save([y], "y")
        (y**2).sum().backward()
        run.debugger.step()
    view = open_dump(tmp_path).steps[0].ranks["rank"]
    assert set(view.records) == {"y.0.debug", "y_grad.0.debug"}
    assert view.head.level == "debug"


def test_a_container_is_read_past_its_own_methods_and_an_object_not_at_all(tmp_path: Path) -> None:
    class Mean(dict[str, object]):
        def items(self) -> object:  # type: ignore[override]
            raise ZeroDivisionError

    with observed(tmp_path, STATISTICS) as run:
        run.debugger.save(Mean(a=1), "mean", save_backward=False)
        run.debugger.save(SimpleNamespace(a=1), "other", save_backward=False)
        run.debugger.save(2, "two", save_backward=False)
        run.debugger.step()
        assert run.records()["two.0.debug"] == {"type": "int", "value": 2}
        assert run.records()["other.0.debug"] is None
        assert run.records()["mean.0.debug"] == {"a": {"type": "int", "value": 1}}
        assert run.account()["errors"] == {}


def test_gradients_stay_bit_identical_and_no_graph_is_kept(tmp_path: Path) -> None:
    def train(save: object) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 1))
        for _ in range(3):
            hidden = model[0](torch.randn(4, 5))
            save({"h": hidden, "w": model[0].weight}, "hidden")  # type: ignore[operator]
            model[2](model[1](hidden) + hidden).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    expected = train(lambda *_: None)
    with observed(tmp_path, TENSOR) as run:
        found = train(run.debugger.save)
        run.debugger.step()
        assert len(run.records()) == 6
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_values_may_come_from_other_threads_hooks_and_transforms(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        save = run.debugger.save
        thread = threading.Thread(target=save, args=(torch.ones(2), "thread", False))
        thread.start()
        thread.join()
        y = torch.ones(2, requires_grad=True) * 2
        y.register_hook(lambda gradient: save(gradient * 3, "hook", False))
        y.sum().backward()
        torch.func.vmap(lambda row: (save(row, "vmap"), row * 2)[1])(torch.ones(2, 3))
        torch.func.grad(lambda x: (save(x, "grad"), (x * 2).sum())[1])(torch.ones(3))
        run.debugger.step()
        assert run.failures(1) == []
        records = run.records()
    assert records["thread.0.debug"]["Mean"] == 1.0
    assert records["hook.0.debug"]["Mean"] == 3.0
    assert records["vmap.0.debug"]["Max"] == 1.0
    assert records["grad.0.debug"]["Max"] == 1.0


def test_neither_the_value_nor_its_graph_is_kept_alive(tmp_path: Path) -> None:
    with observed(tmp_path, STATISTICS) as run:
        for seen in range(2):
            y = torch.ones(2, requires_grad=True) * 2
            value, input_ = weakref.ref(y), weakref.ref(y.grad_fn.next_functions[0][0].variable)
            run.debugger.save([y], "y")
            if seen:
                y.sum().backward()
            del y
            assert value() is None
            assert input_() is None
        run.debugger.step()
        assert run.records()["y_grad.0.debug"] == [None]
        assert run.records()["y_grad.1.debug"][0]["Mean"] == 1.0
