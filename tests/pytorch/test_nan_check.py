# SPDX-License-Identifier: Apache-2.0
"""The task nan_check names the call in which a NaN or an infinity begins."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from families import FAMILIES, REFERENCES, differences, train
from torch import Tensor, nn

from builders.csv_files import csv_rows
from builders.recordings import Recording, recording
from builders.warm_python import run_warm
from msprobe import open_dump

pytestmark = pytest.mark.torch

INFINITY = float("inf")
NAN = float("nan")


class Root(nn.Module):
    """Takes a root, whose slope is infinite at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = Root()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).abs() * 0).sum()


def rows(run: Recording) -> list[dict[str, str]]:
    """The table of results."""
    return csv_rows(run.folder / "nan_check_rank.csv")


def test_healthy_steps_record_nothing_and_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.LayerNorm(4))
    with recording(tmp_path, "mix", "nan_check") as run:
        for _ in range(2):
            with run.step_of(model):
                model(torch.randn(2, 4)).sum().backward()
        assert run.records(0) == run.records(1) == {}
        assert set(run.account(1)["nan_check"].values()) == {0}
    assert not (tmp_path / "nan_check_rank.csv").exists()
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


def test_the_first_source_is_told_with_module_line_and_what_went_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Logs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x - 2)

    model = nn.Sequential(nn.Identity(), Logs())
    with recording(tmp_path, "mix", "nan_check") as run:
        with run.step_of(model):
            torch.relu(model(torch.tensor([[1.0, 3.0], [4.0, -5.0]])))
        records, found = run.records(), rows(run)
    assert next(iter(records)) == "Torch.log.0.forward"
    output = records["Torch.log.0.forward"]["output"][0]
    assert output["is_nan"] is True
    assert output["nan_count"] == 2
    assert output["first_nonfinite"] == {"nan": [0, 0]}
    assert output["requires_grad"] is False
    given = records["Torch.log.0.forward"]["input_args"][0]
    assert given["is_nan"] is False
    assert (given["Max"], given["Min"]) == (2.0, -7.0)
    assert found[0]["kind"] == "source"
    assert found[0]["module"] == "Module.1.Logs.forward.0"
    assert "test_nan_check.py" in found[0]["line"]
    assert {one["kind"] for one in found[3:]} == {"inherited"}
    assert "NaN or Inf begins here" in caplog.text
    assert "output.0: 2 NaN, the first at [0, 0]" in caplog.text
    assert "from -7.0 to 2.0" in caplog.text
    summary = json.loads((tmp_path / "nan_check_rank.json").read_text())
    assert summary["first"]["name"] == "Torch.log.0.forward"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_nan_that_is_born_in_backward_is_found(level: str, tmp_path: Path) -> None:
    with recording(tmp_path, level, "nan_check") as run:
        model = Net()
        with run.step_of(model):
            model(torch.ones(2, 4)).backward()
        found = rows(run)
    source = "Module.second.Root.backward.0" if level == "L0" else "Torch.sqrt.0.backward"
    assert (found[0]["name"], found[0]["kind"], found[0]["value"]) == (source, "source", "output.0")
    assert found[0]["pos_inf"] == "8"
    assert {one["kind"] for one in found[1:]} <= {"inherited", "source"}


def test_a_gradient_of_a_keyword_argument_alone_overflows(tmp_path: Path) -> None:
    weight = torch.full((4,), 1e-10, requires_grad=True)
    x = torch.tensor([[0.1, 0.2, 0.4, 0.8]] * 16)
    with recording(tmp_path, "L1", "nan_check") as run:
        with run.step_of():
            normed = nn.functional.layer_norm(x, (4,), weight=weight)
            (normed * 1e38).sum().backward()
        found = rows(run)
    [first] = [one for one in found if one["kind"] == "source"]
    assert first["name"] == "Functional.layer_norm.0.backward"
    assert weight.grad is not None
    assert int(first["pos_inf"]) + int(first["neg_inf"]) == weight.grad.isinf().sum() > 0


def test_a_gradient_of_one_of_several_results_is_looked_at(tmp_path: Path) -> None:
    x = torch.ones(2, 4, requires_grad=True)
    with recording(tmp_path, "L1", "nan_check") as run:
        with run.step_of():
            first, second = (x * 1e-38).split(2, dim=1)
            (first.sum() + (second * 1e38 * 5e37).sum()).backward()
        found = rows(run)
    assert [one["name"] for one in found if one["kind"] == "source"] == [
        "Tensor.__mul__.1.backward"
    ]
    assert {"Tensor.split.0.backward"} <= {one["name"] for one in found}


def test_a_bfloat16_overflow_is_found(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check") as run:
        with run.step_of():
            large = torch.full((4,), 3e38, dtype=torch.bfloat16)
            torch.relu(large * 0.5) * 4
        found = rows(run)
    kinds = [(one["name"], one["kind"]) for one in found if one["kind"] == "source"]
    assert kinds == [("Tensor.__mul__.1.forward", "source")]


def test_bad_data_and_bad_parameters_came_in(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check", section={"stop_on": "never"}) as run:
        model = nn.Linear(2, 2)
        with run.step_of():
            torch.nn.functional.linear(torch.tensor([[NAN, 1.0]]), model.weight)
        with torch.no_grad():
            model.weight[0, 0] = NAN
        with run.step_of():
            model(torch.ones(1, 2))
        kinds = {(one["step"], one["name"], one["kind"]) for one in rows(run)}
    assert kinds == {
        ("0", "Functional.linear.0.forward", "came in"),
        ("1", "Functional.linear.0.forward", "came in"),
    }


def test_masks_and_infinities_that_were_asked_for_are_no_findings(tmp_path: Path) -> None:
    with recording(tmp_path, "mix", "nan_check", section={"stop_on": "never"}) as run:
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        with run.step_of(model):
            scores = torch.randn(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -INFINITY)
            torch.softmax(scores + torch.full((4, 4), torch.finfo(torch.float32).min), -1)
            model(torch.randn(2, 4, 8), src_mask=mask).sum().backward()
        assert run.records() == {}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: x * 2, "source"),
        (lambda x: x[:, None] @ torch.full((1, 3), 300.0, dtype=x.dtype), "source"),
        (lambda x: (x * 0 - 1) / (x * 0).abs(), "source"),
        (lambda x: x.clamp(min=0) * -INFINITY, "source"),
        (lambda x: torch.log(x * 0), "only -Inf"),
        (lambda x: (x * 0 + 1) * -1e9, "only -Inf"),
        (lambda x: torch.full_like(x, -65504.0) + x, "only -Inf"),
        (lambda x: torch.full_like(x, -65504.0) * 2, "only -Inf"),
        (lambda x: torch.full_like(x, -3e38, dtype=torch.float32).to(x.dtype), "only -Inf"),
    ],
    ids=[
        "product",
        "sum",
        "quotient",
        "0 * -inf",
        "log of 0",
        "number",
        "mask plus",
        "mask times",
        "cast",
    ],
)
def test_minus_infinity_that_is_no_mask_is_a_source(
    make: Callable[[Tensor], Tensor], kind: str, tmp_path: Path
) -> None:
    with recording(tmp_path, "L1", "nan_check", section={"near_overflow": 0}) as run:
        with run.step_of():
            make(torch.tensor([-40000.0, -40000.0], dtype=torch.float16))
        assert [one["kind"] for one in rows(run)] == [kind]


def test_a_value_near_the_largest_number_is_noted(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check") as run:
        with run.step_of():
            torch.relu(torch.tensor([600.0], dtype=torch.float16) * 100)
        with run.step_of():
            torch.relu(torch.tensor([500.0], dtype=torch.float16) * 100)
        found = rows(run)
    assert [(one["name"], one["kind"]) for one in found] == [
        ("Tensor.__mul__.0.forward", "near overflow")
    ]
    assert found[0]["max"] == "60000.0"


def test_the_search_ends_with_the_step_of_the_first_source(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check") as run:
        with run.step_of():
            torch.log(torch.tensor([-1.0]))
        run.debugger.start()
        assert torch._C._len_torch_function_stack() == 0
        run.debugger.stop()
        run.debugger.step()
        assert run.steps() == ["step0"]


def test_a_callback_gets_the_first_source_and_may_end_the_training(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check") as run:
        told = []
        run.debugger.on_nan(told.append)
        with run.step_of():
            torch.log(torch.tensor([-1.0]))
        assert [(one.name, one.step) for one in told] == [("Torch.log.0.forward", 0)]

    def stop(finding: object) -> None:
        raise ArithmeticError(finding)

    with recording(tmp_path / "second", "L1", "nan_check") as run:
        run.debugger.on_nan(stop)
        with pytest.raises(ArithmeticError), run.step_of():
            torch.log(torch.tensor([-1.0]))


def test_listed_calls_are_always_recorded_with_their_tensors(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check", section={"tensor_list": ["relu"]}) as run:
        with run.step_of():
            x = torch.ones(3, requires_grad=True)
            torch.relu(torch.tanh(x)).sum().backward()
        records = run.records()
        assert list(records) == ["Torch.relu.0.forward", "Torch.relu.0.backward"]
        given = records["Torch.relu.0.forward"]["input_args"][0]
        assert given["is_nan"] is False
        saved = torch.load(run.place() / "dump_tensor_data" / given["data_name"])
        assert torch.equal(saved, torch.tanh(x.detach()))


def test_writes_that_are_not_announced_are_seen(tmp_path: Path) -> None:
    """A value that was sound once is read again when it may have been written."""
    with recording(tmp_path, "L1", "nan_check") as run:
        with run.step_of():
            x = torch.ones(4) + 0
            torch.relu(x)
            x.numpy()[2] = NAN
            torch.tanh(x)
        found = rows(run)
    assert [(one["name"], one["kind"]) for one in found] == [("Torch.tanh.0.forward", "came in")]
    assert found[0]["first"] == "(2,)"


def test_in_place_calls_show_what_they_received(tmp_path: Path) -> None:
    with recording(tmp_path, "mix", "nan_check") as run:
        with run.step_of(nn.Identity()):
            torch.full((3,), -1.0).sqrt_()
        record = run.records()["Tensor.sqrt_.0.forward"]
    assert record["finding"] == "source"
    assert record["input_args"][0]["Max"] == -1.0


@pytest.mark.parametrize("task", ["nan_check", "overflow_check"])
@pytest.mark.parametrize(
    ("name", "run_it"),
    [
        ("relu", lambda x: nn.functional.relu(x, inplace=True)),
        ("relu", lambda x: nn.functional.relu(x, True)),
        ("dropout", nn.Dropout(0.5, inplace=True)),
        ("hardtanh", nn.ReLU6(inplace=True)),
    ],
)
def test_calls_that_are_told_to_write_in_place_show_what_they_received(
    task: str, name: str, run_it: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    settings = {"stop_on": "never"} if task == "nan_check" else {"overflow_nums": -1}
    with recording(tmp_path, "L1", task, section=settings) as run, run.step_of(nn.Identity()):
        run_it(torch.tensor([INFINITY, -4.0, 2.0]))
    given = run.records(0)[f"Functional.{name}.0.forward"]["input_args"][0]
    assert given["Min"] == -4.0


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[pytest.mark.slow] if number % 4 else [])
        for number, name in enumerate(FAMILIES)
    ],
)
def test_healthy_trainings_are_bit_identical_and_have_no_source(
    family: str, tmp_path: Path
) -> None:
    expected = train(REFERENCES[family](7), 2)
    section = {"stop_on": "never"}
    with recording(tmp_path, "mix", "nan_check", section=section) as run:
        found = train(FAMILIES[family](7), 2, run.around)
        assert run.failures(2) == []
        counts = [run.account(step)["nan_check"] for step in range(2)]
    assert differences(expected, found) == []
    assert [(one["source"], one["came in"]) for one in counts] == [(0, 0), (0, 0)]


def test_recomputed_and_accumulated_passes_and_autocast_are_looked_at(tmp_path: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
            return torch.sqrt((x - x).relu())

    model = Checkpointed()
    with recording(tmp_path, "mix", "nan_check") as run:
        with run.step_of(model):
            for weight in (0.0, 1.0):  # the second micro-batch has the infinite slope
                with torch.autocast("cpu", torch.bfloat16):
                    output = model(torch.randn(2, 4))
                (output + 1).mul(weight).pow(2).sum().backward()
        found = rows(run)
    assert (found[0]["name"], found[0]["kind"]) == ("Torch.sqrt.0.backward", "source")
    assert found[0]["nan"] != "0"
    assert {one["kind"] for one in found[1:]} <= {"inherited", "source"}


KILLED = """
import os, signal, sys, time
import torch
from msprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(dump_path=sys.argv[1], task="nan_check", level="L1")
for value in (-1.0, -2.0):
    debugger.start()
    torch.log(torch.tensor([value]))
    debugger.stop()
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_keeps_what_was_found(tmp_path: Path) -> None:
    assert run_warm("-c", KILLED, tmp_path).returncode == -signal.SIGKILL
    record = open_dump(tmp_path).step(0).rank().records["Torch.log.0.forward"]
    assert record.notes["finding"] == "source"


def scaled_step(run: Recording, scale: float, weight: float = 1.0) -> None:
    """One step of a model in float16 gradients under a scaler."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    run.debugger.start(model)
    output = model(torch.ones(2, 4)).half() * 100
    scaler.scale(output.float().pow(weight).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    run.debugger.stop()
    run.debugger.step()


def test_an_overflow_that_the_gradient_scaler_skips_is_no_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []
    with recording(tmp_path, "L1", "nan_check") as run:
        run.debugger.on_nan(told.append)
        scaled_step(run, 2.0**16)
        scaled_step(run, 2.0**2)
        kinds = [row["kind"] for row in rows(run)]
        assert kinds
        assert set(kinds) == {"scaled gradient"}
        assert not told
        assert "NaN or Inf begins" not in caplog.text
        with run.step_of():  # the search goes on
            torch.log(torch.tensor([-1.0]))
    assert len(told) == 1


def test_a_scaler_that_skips_every_update_hides_nothing(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check") as run:
        for _ in range(9):
            scaled_step(run, 2.0**16)
        kinds = [(row["step"], row["kind"]) for row in rows(run)]
    assert ("7", "scaled gradient") in kinds
    assert ("8", "source") in kinds


def test_a_nan_in_backward_is_a_source_though_the_scaler_skips_the_update(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], 0.01)
    with recording(tmp_path, "L1", "nan_check") as run:
        with run.step_of():
            scaler.scale((torch.sqrt(weight) * torch.zeros(2)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert next(row["kind"] for row in rows(run)) == "source"


def test_underflow_and_subnormal_numbers_are_found_on_demand(tmp_path: Path) -> None:
    small = torch.tensor([1e-9, 2e-9, 1.0])
    with recording(tmp_path, "L1", "nan_check", section={"underflow": 0.5}) as run:
        with run.step_of():
            small.half()
            torch.relu(torch.tensor([-1.0, -2.0, 3.0]))  # zeros that are right
            product = torch.tensor([1e-3, 1e-3], dtype=torch.float16) * 1e-2
            torch.relu(product)  # received
        found = rows(run)
    assert [(row["name"], row["kind"]) for row in found] == [
        ("Tensor.half.0.forward", "underflow"),
        ("Tensor.__mul__.0.forward", "underflow"),
    ]
    assert float(found[0]["zeros"]) == pytest.approx(2 / 3)
    assert found[1]["subnormal"] == "1.0"


def test_zeros_among_integers_are_no_underflow(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "nan_check", section={"underflow": 0.5}) as run:
        with run.step_of():
            torch.zeros(8, dtype=torch.int64).float()
        assert run.records() == {}


def test_gradients_underflow_too(tmp_path: Path) -> None:
    x = torch.ones(4, dtype=torch.float16, requires_grad=True)
    with recording(tmp_path, "L1", "nan_check", section={"underflow": 0.5}) as run:
        with run.step_of():
            (x * 1e-3 * 1e-3).sum().backward()
        found = {row["name"]: row["subnormal"] for row in rows(run)}
    assert any(name.endswith("backward") for name in found)


@pytest.mark.parametrize("optimizer_apis", [False, True])
def test_a_nan_that_an_optimizer_makes_is_found(tmp_path: Path, *, optimizer_apis: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=3e38, foreach=False)
    section = {"stop_on": "never"}
    more = {"optimizer_apis": True} if optimizer_apis else {}
    with recording(tmp_path, "L1", "nan_check", section=section, **more) as run:
        for _ in range(2):
            optimizer.zero_grad()
            with run.step_of(model):
                (model(torch.ones(4, 3)).sum() * -100).backward()
                optimizer.step()
        steps = {step for step in run.steps() if run.records(int(step[4:]))}
        first = next(iter(run.records(0 if optimizer_apis else 1).items()))
    assert ("step0" in steps) is optimizer_apis
    if not optimizer_apis:
        assert first[0] == "Functional.linear.0.forward"
        assert first[1]["finding"] == "came in"


def test_the_line_is_the_one_of_the_program_not_of_the_framework(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    nn.init.constant_(model[0].weight, 3e38)
    with recording(tmp_path, "mix", "nan_check") as run:
        with run.step_of(model):
            model(torch.ones(1, 2))
        found = rows(run)
    assert [one["name"] for one in found[:2]] == [
        "Functional.linear.0.forward",
        "Module.0.Linear.forward.0",
    ]
    assert all("test_nan_check.py" in one["line"] for one in found)
