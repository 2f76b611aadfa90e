# SPDX-License-Identifier: Apache-2.0
"""Level L2: every operator, its values, and the call that it belongs to."""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from restoration import changes, snapshot
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from builders.recordings import Recording, Setting, observed, read, recording

pytestmark = pytest.mark.torch

L2 = Setting("L2", "statistics")
TENSOR = Setting("L2", "tensor")


class Counting(TorchDispatchMode):
    """The oracle: which operators run, and in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        in_backward = torch._C._current_graph_task_id() != -1
        if func.namespace != "profiler":
            self.seen.append((str(func), in_backward))
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    """Small, with an in-place operator, a module called twice and a reused input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.first(self.first(x)), inplace=True)
        return F.softmax(self.last(hidden + x), dim=-1)


def train_once(model: nn.Module) -> None:
    """One step of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.linspace(0, 1, 12).view(3, 4)).square().sum().backward()
    optimizer.step()


def recorded(run: Recording) -> list[tuple[str, bool]]:
    """The operators of a dump, in the oracle's form."""
    found = []
    for name, record in run.records().items():
        _, op, _, _ = name.split(".")
        found.append((f"aten.{op}.{record['overload']}", record.get("phase") == "backward"))
    return found


def parents(run: Recording) -> dict[str, str | None]:
    """The content of construct.json."""
    return read(run.folder, 0, "rank", "construct.json")


def test_every_operator_is_recorded_in_order_forward_and_backward(tmp_path: Path) -> None:
    with Counting() as oracle:
        train_once(Model())
    model = Model()
    oracle_model_setup = Counting()
    with oracle_model_setup:
        Model()
    expected = oracle.seen[len(oracle_model_setup.seen) :]
    with observed(tmp_path, L2) as run:
        with run.step_of(model):
            train_once(model)
        assert recorded(run) == expected
        assert run.failures(1) == []
        assert {True, False} == {in_backward for _, in_backward in expected}


def test_numbers_count_each_operator_from_zero_in_each_step(tmp_path: Path) -> None:
    with observed(tmp_path, L2) as run:
        for _ in range(2):
            with run.step_of(None):
                torch.ones(2) + 1 + 2
    for step in (0, 1):
        assert list(run.records(step)) == [
            "Aten.ones.0.forward",
            "Aten.add.0.forward",
            "Aten.add.1.forward",
        ]


def test_kernels_belong_to_the_calls_that_level_mix_names(tmp_path: Path) -> None:
    trees = {}
    for level in ("L2", "mix"):
        with recording(tmp_path / level, level, optimizer_apis=True) as run:
            model = Model()
            with run.step_of(model):
                train_once(model)
            trees[level] = parents(run)
    at_l2 = {name: parent for name, parent in trees["L2"].items() if not name.startswith("Aten.")}
    forward = {name for name in trees["mix"] if ".backward" not in name}
    assert {name for name in at_l2 if ".backward" not in name} == forward
    for name, parent in at_l2.items():
        assert trees["mix"].get(name, parent) == parent
    kernels = {name: parent for name, parent in trees["L2"].items() if name.startswith("Aten.")}
    assert set(kernels.values()) - {None} <= set(trees["mix"])
    assert kernels["Aten.addmm.1.forward"] == "Functional.linear.1.forward"
    assert kernels["Aten.relu_.0.forward"] == "Functional.relu.0.forward"


def test_kernels_of_the_backward_pass_belong_to_the_call_whose_gradient_they_compute(
    tmp_path: Path,
) -> None:
    with observed(tmp_path, L2) as run:
        model = Model()
        with run.step_of(model):
            train_once(model)
        tree = parents(run)
        found = {
            (name.split(".")[1], tree[name])
            for name, record in run.records().items()
            if record.get("phase") == "backward"
        }
    assert ("_softmax_backward_data", "Functional.softmax.0.backward") in found
    assert ("threshold_backward", "Functional.relu.0.backward") in found
    assert ("mm", "Functional.linear.2.backward") in found
    assert ("mm", "Functional.linear.0.backward") in found
    assert tree["Functional.linear.2.backward"] == "Module.last.Linear.backward.0"


def test_values_are_those_before_and_after_an_operator_in_place(tmp_path: Path) -> None:
    with observed(tmp_path, TENSOR) as run:
        x = torch.tensor([1.0, 2.0])
        y = torch.empty(2)
        with run.step_of(None):
            x.add_(3)
            torch.mul(x, 2, out=y)
            torch._foreach_add_([x, y], 1)
        records = run.records()
    add = records["Aten.add_.0.forward"]
    assert (add["input_args"][0]["Max"], add["output"][0]["Max"]) == (2.0, 5.0)
    assert add["overload"] == "Tensor"
    mul = records["Aten.mul.0.forward"]
    assert mul["overload"] == "out"
    assert mul["output"][0]["Max"] == 10.0
    several = records["Aten._foreach_add_.0.forward"]
    assert [one["Max"] for one in several["input_args"][0]] == [5.0, 10.0]
    assert [one["Max"] for one in several["output"][0]] == [6.0, 11.0]
    folder = tmp_path / "step0" / "rank" / "dump_tensor_data"
    saved = torch.load(folder / add["output"][0]["data_name"], weights_only=True)
    assert saved.tolist() == [4.0, 5.0]


def test_nothing_is_taken_from_a_memo(tmp_path: Path) -> None:
    with observed(tmp_path, L2) as run:
        x = torch.zeros(3)
        view = x.numpy()
        with run.step_of(None):
            x + 0
            view[:] = 7
            x + 0
        records = run.records()
    assert records["Aten.add.0.forward"]["input_args"][0]["Max"] == 0.0
    assert records["Aten.add.1.forward"]["input_args"][0]["Max"] == 7.0


@pytest.mark.parametrize(
    ("wanted", "expected", "phase"),
    [
        ("Functional.linear.1.forward", {"t": 1, "addmm": 1}, None),
        ("Functional.relu.0.backward", {"detach": 1, "threshold_backward": 1}, "backward"),
        ("Module.last.Linear.forward.0", {"t": 1, "addmm": 1}, None),
    ],
)
def test_a_list_keeps_only_the_kernels_inside_that_call(
    wanted: str, expected: dict[str, int], phase: str | None, tmp_path: Path
) -> None:
    with observed(tmp_path, L2, list=[wanted]) as run:
        model = Model()
        with run.step_of(model):
            train_once(model)
        records = run.records()
    assert Counter(name.split(".")[1] for name in records) == expected
    assert {record.get("phase") for record in records.values()} == {phase}


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (("Functional.linear.1.forward", "Functional.relu.0.forward"), "t addmm relu_ detach"),
        (("Module.last.Linear.forward.0", "Aten._softmax.0.forward"), "t addmm _softmax"),
        (("Functional.relu.0.backward", "Functional.relu.0.backward"), "detach threshold_backward"),
    ],
)
def test_a_scope_keeps_the_kernels_from_one_call_to_another(
    scope: tuple[str, str], expected: str, tmp_path: Path
) -> None:
    with observed(tmp_path, L2, scope=list(scope)) as run:
        model = Model()
        for step in range(2):
            with run.step_of(model):
                train_once(model)
            assert [name.split(".")[1] for name in run.records(step)] == expected.split()


def test_an_overflow_check_keeps_the_kernels_that_show_it(tmp_path: Path) -> None:
    with observed(tmp_path, Setting("L2", "overflow_check"), overflow_nums=-1) as run:
        x = torch.tensor([1.0, 2.0])
        with run.step_of(None):
            (x * 2 / (x - x) + 1).sum()
        records = run.records()
    assert list(records) == [f"Aten.{name}.0.forward" for name in ("div", "add", "sum")]
    assert [record["overflow"] for record in records.values()] == ["source", *2 * ["inherited"]]


def test_data_mode_chooses_the_phase_and_the_side(tmp_path: Path) -> None:
    with observed(tmp_path, L2, data_mode=["backward", "output"]) as run:
        model = Model()
        with run.step_of(model):
            train_once(model)
        records = run.records()
    assert records
    assert {record.get("phase") for record in records.values()} == {"backward"}
    assert all("output" in record and "input_args" not in record for record in records.values())


def test_excluded_operators_make_no_record(tmp_path: Path) -> None:
    with observed(tmp_path, L2, black_list=["add"]) as run:
        with run.step_of(None):
            torch.ones(2) + 1
        assert list(run.records()) == ["Aten.ones.0.forward"]


def test_custom_operators_have_the_name_of_their_library(tmp_path: Path) -> None:
    @torch.library.custom_op("msprobe_kernel_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with observed(tmp_path, L2) as run:
        with run.step_of(None):
            twice(torch.ones(2))
            torch.ops.aten.add(torch.ones(2), 1)
        records, tree = run.records(), parents(run)
    (name,) = (name for name in records if "twice" in name)
    assert name.endswith(".twice.0.forward")
    assert not name.startswith("Aten.")
    assert records[name]["output"][0]["Max"] == 2.0
    # An operator that is called by name is its own record, not its own parent.
    assert "Aten.add.0.forward" in records
    assert tree["Aten.add.0.forward"] is None


def test_an_operator_that_raises_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    with observed(tmp_path, L2) as run:
        with run.step_of(None):
            with pytest.raises(RuntimeError, match="shape"):
                torch.ones(2, 3) @ torch.ones(2, 3)
            torch.ones(1) + 1
        records = run.records()
    assert records["Aten.mm.0.forward"]["raised"] == "RuntimeError"
    assert parents(run)["Aten.add.0.forward"] == "Tensor.__add__.0.forward"


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_code_runs_and_its_recomputation_is_in_the_backward_phase(
    use_reentrant: bool, tmp_path: Path
) -> None:
    def step(model: nn.Module) -> list[torch.Tensor]:
        x = torch.linspace(0, 1, 8).view(2, 4).requires_grad_()
        checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]

    expected = step(Model())
    with observed(tmp_path, L2) as run:
        model = Model()
        with run.step_of(model):
            found = step(model)
        assert run.failures(1) == []
        tree = parents(run)
        again = [
            tree[name]
            for name, record in run.records().items()
            if ".addmm." in name and record.get("phase") == "backward"
        ]
    assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))
    assert again[0] == "Functional.linear.0.forward"


class Doubling(TorchDispatchMode):
    """A mode of the user's that changes what runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.neg.default:
            return args[0] * 2
        return func(*args, **(kwargs or {}))


def test_what_the_users_own_mode_lets_through_is_recorded(tmp_path: Path) -> None:
    with observed(tmp_path, L2) as run:
        x = torch.ones(2)
        with Doubling():
            run.debugger.start()
            assert torch.neg(x).tolist() == [2.0, 2.0]
        assert torch.neg(x).tolist() == [-1.0, -1.0]
        run.debugger.stop()
        assert torch._C._len_torch_dispatch_stack() == 0
        run.debugger.step()
        assert list(run.records()) == ["Aten.mul.0.forward", "Aten.neg.0.forward"]


def test_a_flop_counter_counts_the_same(tmp_path: Path) -> None:
    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            train_once(Model())
        return int(counter.get_total_flops())

    expected = flops()
    with observed(tmp_path, L2) as run:
        with run.step_of(None):
            found = flops()
        assert run.failures(1) == []
        assert any(".addmm." in name for name in run.records())
    assert found == expected > 0


def test_a_double_backward_is_recorded(tmp_path: Path) -> None:
    with observed(tmp_path, L2) as run:
        with run.step_of(None):
            x = torch.ones(3, requires_grad=True)
            (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
            slope.sum().backward()
        assert run.failures(1) == []
        powers = [name for name in run.records() if ".pow." in name]
        tree = parents(run)
    assert tree[powers[0]] == "Tensor.__pow__.0.forward"
    assert tree[powers[1]] == "Tensor.__pow__.0.backward"
    assert x.grad is not None
    assert x.grad.tolist() == [6.0] * 3


def test_everything_is_restored_also_after_an_exception(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    model = nn.Sequential(nn.Linear(2, 2), Failing())
    with observed(tmp_path, L2) as run:
        with run.step_of(model):  # what torch and the logging make at their first use
            model[0](torch.ones(1, 2)).sum().backward()
        before = snapshot(model)
        with pytest.raises(ZeroDivisionError), run.step_of(model):
            model(torch.ones(1, 2))
        assert changes(before, snapshot(model)) == []


def test_a_stop_inside_a_backward_pass_leaves_no_mode(tmp_path: Path) -> None:
    with observed(tmp_path, L2) as run:
        run.debugger.start()
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(lambda _: run.debugger.stop())
        y.sum().backward()
        run.debugger.step()
        assert torch._C._len_torch_dispatch_stack() == 0
        count = len(run.records())
        x * 2
    assert len(run.records()) == count


def test_traced_and_fake_code_is_left_alone(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with observed(tmp_path, L2) as run:
        with run.step_of(None):
            with FakeTensorMode():
                torch.ones(2) + 1
            graph = make_fx(lambda x: x + 1)(torch.ones(2))
            torch.ones(3).neg()
        records = run.records()
        assert run.failures(1) == []
    assert "aten.add.Tensor" in str(graph.graph)
    assert "Aten.neg.0.forward" in records
    assert "Aten.add.0.forward" not in records


@contextmanager
def npu_that_logs(names: tuple[str, ...], log: list[str]) -> Iterator[None]:
    """A stand-in for the device package, which no machine of ours has."""
    package, device = types.ModuleType("torch_npu"), types.ModuleType("torch_npu.npu")
    for name in names:
        setattr(device, name, lambda *_args, name=name: log.append(name))
    package.npu = device  # type: ignore[attr-defined]
    sys.modules["torch_npu"] = package
    try:
        yield
    finally:
        del sys.modules["torch_npu"]


@pytest.mark.parametrize("wanted", ["Functional.linear.1.forward", "Functional.linear.1.backward"])
def test_the_devices_own_dump_is_switched_on_for_one_call(wanted: str, tmp_path: Path) -> None:
    log: list[str] = []
    functions = ("init_dump", "set_dump", "finalize_dump", "synchronize", "current_device")
    with npu_that_logs(functions, log), observed(tmp_path, TENSOR, list=[wanted]) as run:
        model = Model()
        with run.step_of(model):
            train_once(model)
        assert run.failures(1) == []
    assert log == ["init_dump", "set_dump", "synchronize", "finalize_dump"]
    ((path,),) = [list((tmp_path / "step0").glob("kernel_config_*.json"))]
    dump = read(tmp_path, 0, ".", path.name)["dump"]
    assert dump == {
        "dump_list": [],
        "dump_path": str(tmp_path / "step0"),
        "dump_mode": "all",
        "dump_op_switch": "on",
    }


def test_without_the_devices_functions_there_is_no_device_dump(tmp_path: Path) -> None:
    log: list[str] = []
    with (
        npu_that_logs(("init_dump",), log),
        observed(tmp_path, TENSOR, list=["Functional.linear.1.forward"]) as run,
    ):
        model = Model()
        with run.step_of(model):
            train_once(model)
        assert len(run.records()) == 2
    assert log == []
