# SPDX-License-Identifier: Apache-2.0
"""Odd values, odd modules and odd names: recorded as they are, and never a burden to the user."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from builders.recordings import recording

pytestmark = pytest.mark.torch

BATCH = torch.linspace(-1, 1, 8).view(2, 4)


class Takes(nn.Module):
    """Takes anything and returns what it was told to."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.result = result

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if self.result is None else self.result


def described(folder: Path, *values: Any, task: str = "statistics", **keywords: Any) -> list[Any]:
    """What a record says of these arguments."""
    with recording(folder, "mix", task) as run:
        model = Takes()
        with run.step_of(model):
            model(*values, **keywords)
        assert run.account()["errors"] == {}
        assert run.account()["complete"] is True
        record = run.records()["Module.Takes.forward.0"]
    return [*record["input_args"], *record["input_kwargs"].values()]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_every_layout_is_recorded_and_left_alone(task: str, tmp_path: Path) -> None:
    values = {
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "strided nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "meta": torch.ones(3, device="meta"),
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
        "float8": torch.ones(6).to(torch.float8_e4m3fn),
        "complex": torch.ones(3, dtype=torch.complex64) * 3j,
        "empty": torch.ones(0, 3),
        "expanded": torch.ones(1).expand(5),
    }
    for name, value in values.items():
        folder = tmp_path / name
        folder.mkdir()
        (record,) = described(folder, value, task=task)
        assert record["type"].startswith("torch."), name
        if name == "float8":
            assert value.float().sum() == 6
            assert record["Norm"] == pytest.approx(6**0.5)
        if name == "complex":
            assert record["Norm"] == pytest.approx(27**0.5)


def test_an_api_and_a_module_may_return_an_empty_dict(tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as run:
        model = Takes({})
        with run.step_of(model):
            assert model(BATCH) == {}
        assert run.records()["Module.Takes.forward.0"]["output"] == [{}]


def test_keys_that_are_no_text_and_texts_that_are_no_utf8(tmp_path: Path) -> None:
    odd = {("a", 1): BATCH, 2: 3, None: 4, "\ud800": "\udfff", "big": 10**40, "negative": -(10**30)}
    (record,) = described(tmp_path, odd)
    assert record["('a', 1)"]["type"] == "torch.Tensor"
    assert record["2"] == {"type": "int", "value": 3}
    assert record["None"] == {"type": "int", "value": 4}
    assert record["\ud800"]["value"] == "\udfff"
    assert record["big"]["value"] == 10**40
    assert record["negative"]["value"] == -(10**30)


def test_keys_of_equal_text_keep_their_values_and_files_apart(tmp_path: Path) -> None:
    odd = {1: 1.0, "1": 2.0, torch.float16: 3.0, torch.float32: 4.0, "a.b": 5.0, "a_b": 6.0}
    values: dict[Any, Any] = {key: torch.tensor(number) for key, number in odd.items()}
    values |= {"a": {"b": torch.tensor(7.0)}, "c.d": torch.tensor(8.0)}
    (record,) = described(tmp_path, values, task="tensor")
    files = tmp_path / "step0" / "rank" / "dump_tensor_data"
    leaves = [*record.values(), record["a"]["b"]]
    found = {leaf["Max"]: leaf["data_name"] for leaf in leaves if "data_name" in leaf}
    assert sorted(found) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    for number, name in found.items():
        assert torch.load(files / name).item() == number, name
    assert record["1"]["Max"] == 2.0
    assert found[8.0].endswith(".input.0.c.d.pt")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (iter([1]), {"type": "list_iterator", "value": "<list_iterator>"}),
        ((number for number in [1]), {"type": "generator", "value": "<generator>"}),
        (torch.float16, {"type": "torch.dtype", "value": "torch.float16"}),
        (torch.device("cpu"), {"type": "torch.device", "value": "cpu"}),
        (1j, {"type": "complex", "value": "1j"}),
        (b"x", {"type": "bytes", "value": "b'x'"}),
        ({1}, {"type": "set", "value": "{1}"}),
        (range(3), {"type": "range", "value": "range(0, 3)"}),
        (slice(1, None, 2), {"type": "slice", "value": [1, None, 2]}),
        (..., {"type": "ellipsis", "value": "..."}),
        (torch.Size([2, 3]), {"type": "torch.Size", "value": [2, 3]}),
        (np.float32(1.5), {"type": "float32", "value": 1.5}),
        (True, {"type": "bool", "value": True}),
        (None, None),
    ],
    # Not by repr: it may hold an address, and test processes must agree on the names.
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_value_has_a_type(value: Any, expected: Any, tmp_path: Path) -> None:
    first, second = described(tmp_path, value, named=value)
    assert first == second == expected


def test_an_object_is_named_without_being_asked(tmp_path: Path) -> None:
    class Touchy:
        def __repr__(self) -> str:
            raise RuntimeError("do not look at me")

    (record,) = described(tmp_path, Touchy())
    assert "Touchy" in record["value"]


def test_a_numpy_array_has_statistics_and_object_arrays_are_left_alone(tmp_path: Path) -> None:
    numbers, objects = described(tmp_path, np.arange(3.0), np.array([object()], dtype=object))
    assert [numbers[key] for key in ("Max", "Min", "Mean", "Norm")] == [2.0, 0.0, 1.0, 5**0.5]
    assert objects["Max"] is None


def test_half_precision_sums_do_not_overflow_and_scalars_have_a_positive_norm(
    tmp_path: Path,
) -> None:
    half, scalar = described(
        tmp_path, torch.full((1000,), 3000.0, dtype=torch.float16), torch.tensor(-2.5)
    )
    assert half["Norm"] == pytest.approx(94868.3, rel=1e-6)
    assert (scalar["Max"], scalar["Norm"]) == (-2.5, 2.5)


def test_nan_is_kept_and_counted_beside_the_finite_extremes(tmp_path: Path) -> None:
    (record,) = described(tmp_path, torch.tensor([float("nan"), float("inf"), 1.0, -2.0]))
    assert np.isnan([record[key] for key in ("Max", "Min", "Mean", "Norm")]).all()
    assert (record["nan_count"], record["pos_inf_count"], record["neg_inf_count"]) == (1, 1, 0)
    assert (record["finite_max"], record["finite_min"]) == (1.0, -2.0)


def test_functions_keep_their_identity_signature_and_pickle(tmp_path: Path) -> None:
    before = (F.relu, inspect.signature(F.relu), pickle.dumps(F.relu))
    with recording(tmp_path, "mix") as run, run.step_of(nn.Identity()):
        assert (F.relu, inspect.signature(F.relu), pickle.dumps(F.relu)) == before
        assert pickle.loads(pickle.dumps(torch.relu)) is torch.relu


def test_indexing_with_a_tensor_runs_the_users_own_operator(tmp_path: Path) -> None:
    x = torch.ones(4, requires_grad=True)
    with recording(tmp_path, "L1") as run, run.step_of():
        nodes = [
            type(x[index].grad_fn).__name__
            for index in (torch.tensor([0, 2]), torch.tensor([True, False, True, True]))
        ]
    assert nodes == ["IndexBackward0", "IndexBackward0"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_are_api_calls_with_gradients(kind: Any, tmp_path: Path) -> None:
    with recording(tmp_path, "mix") as run:
        model = kind(4, 3)
        x = torch.ones(5, 2, 4, requires_grad=True)
        with run.step_of(model):
            model(x)[0].sum().backward()
        records = run.records()
    (name,) = [name for name in records if name.startswith("VF.") and "forward" in name]
    backward = records[name.replace("forward", "backward")]
    assert backward["output"][0]["Norm"] == pytest.approx(x.grad.norm().item(), rel=1e-5)
    assert f"Module.{kind.__name__}.backward.0" in records


def test_the_root_model_is_recorded_under_its_class(tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run:
        model = nn.Linear(4, 4)
        with run.step_of(model):
            model(BATCH).sum().backward()
        assert set(run.names()) == {
            "Module.Linear.forward.0",
            "Module.Linear.parameters_grad",
            "Module.Linear.backward.0",
        }


def test_module_names_of_any_characters_make_readable_dumps(tmp_path: Path) -> None:
    names = ["a b", "x/y", "é中", "q\"'\\", "\ud800", "a..b".replace(".", "_") * 60]
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
    with recording(tmp_path, "mix", "tensor") as run:
        with run.step_of(model):
            for name in names:
                model[name](BATCH).sum().backward()
        records = run.records()
        files = run.place() / "dump_tensor_data"
        for name in names:
            record = records[f"Module.{name}.Linear.forward.0"]
            saved = files / record["output"][0]["data_name"]
            assert saved.parent == files
            assert torch.load(saved).shape == (2, 4)
        assert run.account()["complete"] is True


def test_parameter_gradients_are_counted_as_they_accumulate(tmp_path: Path) -> None:
    model = nn.Linear(4, 1, bias=False)
    with recording(tmp_path, "L0") as run:
        with run.step_of(model):
            for _ in range(2):
                model(torch.ones(1, 4)).sum().backward()
        records = run.records()
    assert records["Module.Linear.parameters_grad"]["weight"][0]["Max"] == 1.0
    assert records["Module.Linear.parameters_grad.1"]["weight"][0]["Max"] == 2.0


def test_parameters_that_get_their_first_gradients_in_different_passes_are_all_recorded(
    tmp_path: Path,
) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2))
            self.b = nn.Parameter(torch.ones(2))

        def forward(self, name: str) -> torch.Tensor:
            return (getattr(self, name) * 3).sum()

    model = Branches()
    with recording(tmp_path, "L0") as run:
        for name in ("a", "b", "b"):
            run.debugger.start(model)
            model(name).backward()
            run.debugger.stop()
        run.debugger.step()
        records = run.records()
        assert run.account()["records"] == len(records)
    first, second = (records[f"Module.Branches.parameters_grad{k}"] for k in ("", ".1"))
    assert {name: value[0]["Max"] for name, value in first.items()} == {"a": 3.0, "b": 3.0}
    assert {name: value[0]["Max"] for name, value in second.items()} == {"b": 6.0}


class Unreadable:
    """What must not be shown or compared, as a tensor on a device must not be."""

    def __repr__(self) -> str:
        raise AssertionError("shown")

    def __lt__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        return id(self)


def test_what_lies_in_odd_containers_is_neither_shown_nor_compared(tmp_path: Path) -> None:
    views, sets, error, plain = described(
        tmp_path,
        {"a": Unreadable()}.values(),
        {Unreadable(), Unreadable()},
        ValueError(Unreadable()),
        {3, 1.5, True},
    )
    assert views == {"type": "dict_values", "value": "<dict_values>"}
    assert sets == {"type": "set", "value": "<set of 2>"}
    assert error == {"type": "ValueError", "value": "<ValueError>"}
    assert plain == {"type": "set", "value": "{True, 1.5, 3}"}


def test_arrays_with_infinities_are_described_without_a_warning(tmp_path: Path) -> None:
    (record,) = described(tmp_path, np.array([np.inf, -np.inf]))
    assert record["Max"] == np.inf
    assert np.isnan(record["Mean"])


def test_three_hundred_lists_inside_each_other_are_no_problem(tmp_path: Path) -> None:
    nested: Any = BATCH
    for _ in range(300):
        nested = [nested]
    (record,) = described(tmp_path, nested)
    for _ in range(300):
        (record,) = record
    assert record["shape"] == [2, 4]


def test_optimisers_and_clipping_own_their_calls(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with recording(tmp_path, "mix", optimizer_apis=True) as run:
        with run.step_of(model):
            model(BATCH).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
        owners = set(run.parents().values())
    assert {"optimizer", "clip_grad"} <= owners


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_without_gradients_there_are_forward_records_only(level: str, tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with recording(tmp_path, level) as run:
        with run.step_of(model), torch.inference_mode():
            model(BATCH)
        assert run.names()
        assert all("forward" in name for name in run.names())
        assert run.account()["errors"] == {}
