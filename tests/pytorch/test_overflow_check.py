# SPDX-License-Identifier: Apache-2.0
"""The overflow check keeps the calls that saw NaN or infinity, with the values they had then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from builders.recordings import recording

pytestmark = pytest.mark.torch

INFINITY = float("inf")


class Burst(nn.Module):
    """Divides by zero in its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Identity()
        self.second = Divide()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x + 1))


class Divide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.zeros(3)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_only_overflowing_calls_are_kept_and_the_sources_counted(
    level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, level, "overflow_check", section={"overflow_nums": -1}) as run:
        with run.step_of(Burst()):
            pass
        model = Burst()
        with run.step_of(model):
            torch.relu(model(torch.ones(3)))
        kept = {name: parts["overflow"] for name, parts in run.records(1).items()}
        account = run.account(1)
        assert run.records(0) == {}
    modules = {"Module.second.Divide.forward.0": "source", "Module.Burst.forward.0": "source"}
    apis = {"Tensor.__truediv__.0.forward": "source", "Torch.relu.0.forward": "inherited"}
    expected = {"L0": modules, "L1": apis, "mix": modules | apis}[level]
    assert kept == expected
    assert account["overflows"] == len(expected)
    assert account["overflow_sources"] == list(expected.values()).count("source")
    first = "Module.second.Divide.forward.0" if level == "L0" else "Tensor.__truediv__.0.forward"
    assert f"first overflow: {first}" in caplog.text
    assert ("\n  in Module.second.Divide.forward.0" in caplog.text) == (level == "mix")


def test_nan_and_infinity_count_in_inputs_keywords_and_nested_outputs(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "overflow_check", section={"overflow_nums": -1}) as run:
        bad, good = torch.tensor([1.0, INFINITY]), torch.ones(2)
        with run.step_of():
            torch.isnan(bad)
            torch.relu(good)
            torch.add(good, other=bad)
            torch.stack([-bad, bad])
            (bad - bad).chunk(2)
        assert set(run.records()) == {
            "Torch.isnan.0.forward",
            "Torch.add.0.forward",
            "Tensor.__neg__.0.forward",
            "Torch.stack.0.forward",
            "Tensor.__sub__.0.forward",
            "Tensor.chunk.0.forward",
        }


def test_an_overflowing_gradient_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recording(tmp_path, "L1", "overflow_check", section={"overflow_nums": -1}) as run:
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        with run.step_of():
            torch.sqrt(x).sum().backward()
        records = run.records()
    assert list(records) == ["Torch.sqrt.0.backward"]
    assert records["Torch.sqrt.0.backward"]["overflow"] == "source"
    assert "first overflow: Torch.sqrt.0.backward" in caplog.text
    assert "torch.sqrt(x).sum().backward()" in caplog.text


def test_gradients_of_parameters_are_no_source_when_something_overflowed_before(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 1, bias=False)
    with recording(tmp_path, "mix", "overflow_check", section={"overflow_nums": -1}) as run:
        with run.step_of(model):
            (model(torch.ones(1, 2)) * INFINITY).sum().backward()
        records = run.records(0)
        assert records["Module.Linear.parameters_grad"]["overflow"] == "inherited"
        with run.step_of(model):  # the gradient of the first step is still there
            model(torch.ones(1, 2)).sum().backward()
        records = run.records(1)
        assert {name: parts["overflow"] for name, parts in records.items()} == {
            "Module.Linear.parameters_grad": "source"
        }
        assert run.account(1)["overflows"] == run.account(1)["overflow_sources"] == 1


def test_saved_inputs_are_those_that_the_call_received(tmp_path: Path) -> None:
    class Overwrites(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(INFINITY)

    with recording(tmp_path, "mix", "overflow_check", section={"overflow_nums": -1}) as run:
        model = Overwrites()
        with run.step_of(model):
            model(torch.ones(3))
        for name in ("Tensor.mul_.0.forward", "Module.Overwrites.forward.0"):
            record = run.records()[name]
            before, after = record["input_args"][0], record["output"][0]
            files = run.place() / "dump_tensor_data"
            assert before["Max"] == torch.load(files / before["data_name"]).max().item() == 1.0
            assert torch.load(files / after["data_name"]).tolist() == [INFINITY] * 3


def test_saved_gradients_are_those_that_arrived(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "overflow_check", section={"overflow_nums": -1}) as run:
        x = torch.zeros(2, requires_grad=True)
        with run.step_of():
            torch.sqrt(x).sum().backward()
            x.grad.zero_()
        record = run.records()["Torch.sqrt.0.backward"]["output"][0]
        saved = torch.load(run.place() / "dump_tensor_data" / record["data_name"])
        assert saved.tolist() == [INFINITY] * 2


def test_the_check_ends_after_the_wanted_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, "L1", "overflow_check", section={"overflow_nums": 2}) as run:
        bad = torch.tensor([INFINITY])
        with caplog.at_level("INFO"), run.step_of():
            for _ in range(5):
                torch.relu(bad)
        assert list(run.records()) == ["Torch.relu.0.forward", "Torch.relu.1.forward"]
        run.debugger.start()
        assert torch._C._len_torch_function_stack() == 0
        run.debugger.stop()
        run.debugger.step()
        assert run.steps() == ["step0"]
    assert "2 overflowing calls" in caplog.text


def test_finite_numbers_near_the_limits_are_no_overflow(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "overflow_check", section={"overflow_nums": -1}) as run:
        with run.step_of():
            torch.relu(torch.full((1000,), 3e38))  # its sum and norm exceed float32
            torch.relu(torch.full((1000,), 6e4, dtype=torch.float16))
        assert run.records() == {}


def test_masks_of_minus_infinity_are_no_hits(tmp_path: Path) -> None:
    with recording(tmp_path, "mix", "overflow_check", section={"overflow_nums": 1}) as run:
        model, scores = Burst(), torch.ones(3, 3, requires_grad=True)
        allowed = torch.tril(torch.ones(3, 3))
        with run.step_of(model):
            masked = scores.masked_fill(allowed == 0, -INFINITY)
            mask = torch.full((3, 3), -INFINITY).triu(1)
            weights = (masked + mask).softmax(-1) @ (scores + allowed.log()).softmax(-1)
            torch.nn.functional.scaled_dot_product_attention(scores, scores, scores, mask)
            weights.sum().backward()
        assert {name: one["overflow"] for name, one in run.records(0).items()} == {
            "Tensor.log.0.forward": "only -Inf"
        }
        assert run.account(0)["overflows"] == 0
        with run.step_of(model):
            allowed.log()
            model(torch.ones(3))
        assert {name: one["overflow"] for name, one in run.records(1).items()} == {
            "Tensor.__truediv__.0.forward": "source"
        }
        assert run.account(1)["overflows"] == run.account(1)["overflow_sources"] == 1


def test_nan_made_of_a_mask_is_a_source(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "overflow_check", section={"overflow_nums": 1}) as run:
        with run.step_of():
            torch.full((2, 2), -INFINITY).softmax(-1)
        assert run.records()["Tensor.softmax.0.forward"]["overflow"] == "source"
