# SPDX-License-Identifier: Apache-2.0
"""Where NaN begins in models that were really run: the planted place is the answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from overflow_dumps import tensor

from builders.dumps import write_rank
from msprobe.dump.reader import open_dump
from msprobe.overflow.analysis import analyze_overflow
from msprobe.overflow.answer_lines import answer_lines
from msprobe.overflow.findings import Finding, Source

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Block(torch.nn.Module):
    """Two layers; `between` runs after the first one."""

    def __init__(self, between: Callable) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.second = torch.nn.Linear(4, 4)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self.norm(self.first(x))))


class Model(torch.nn.Module):
    def __init__(self, between: Callable = torch.relu) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(4, 4)
        self.block = Block(between)

    def forward(self, x):
        return self.block(self.stem(x))


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., Path]:
    """Run a forward and backward pass of a model under the debugger and return the dump path."""
    from msprobe.capture.session import reset_session
    from msprobe.pytorch import PrecisionDebugger

    def run(model, x=None, *, level="mix", target=None, loss=None) -> Path:
        reset_session()
        torch.manual_seed(3)
        debugger = PrecisionDebugger(dump_path=str(tmp_path / level), level=level)
        x = torch.randn(5, 4) if x is None else x
        debugger.start(model)
        y = model(x)
        if loss is not None:
            loss(y).backward()
        elif target is not None:
            torch.nn.functional.mse_loss(y, target).backward()
        else:
            y.sum().backward()
        debugger.stop()
        reset_session()
        return tmp_path / level

    yield run
    reset_session()


def only(path: Path) -> Finding:
    """Return the one finding that the answer puts first."""
    (step,) = analyze_overflow(path)
    (first,) = step.first
    return first


def test_a_finite_run_has_no_finding(capture) -> None:
    (step,) = analyze_overflow(capture(Model()))
    assert step.findings == step.first == ()
    assert step.records > 10
    assert set(step.affected.values()) == {0}


def test_a_recording_tells_when_its_process_began_and_the_step_ended(capture) -> None:
    before = time.time()
    (view,) = open_dump(capture(Model())).rank_views()
    assert view.account["run"]["began"] <= before <= view.account["run"]["ended"] <= time.time()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_call_that_makes_nan_is_named(capture, level: str) -> None:
    found = only(capture(Model(lambda x: torch.log(x - 1e3)), level=level))
    assert found.place.name == "Torch.log.0.forward"
    assert found.source is Source.OPERATION
    assert found.slots == ("output.0",)
    assert found.contents == "20 NaN"
    assert found.severity == "critical"
    assert any(__file__ in frame for frame in found.frames)


def test_the_module_stands_for_the_call_where_only_modules_are_recorded(capture) -> None:
    class Log(torch.nn.Module):
        def forward(self, x):
            return torch.log(x - 1e3)

    found = only(capture(Model(Log()), level="L0"))
    assert found.place.name == "Module.block.between.Log.forward.0"
    assert found.source is Source.OPERATION
    assert found.modules == ("Module.block.Block.forward.0", "Module.Model.forward.0")


def test_nan_of_unrecorded_code_is_told_from_nan_from_outside(capture) -> None:
    found = only(capture(Model(lambda x: torch.log(x - 1e3)), level="L0"))
    assert found.place.name == "Module.block.second.Linear.forward.0"
    assert found.source is Source.UNRECORDED
    assert "Module.block.Block.forward.0" in found.detail


@pytest.mark.parametrize(
    ("level", "name"),
    [
        ("mix", "Module.Model.forward.0"),
        ("L0", "Module.Model.forward.0"),
        ("L1", "Functional.linear.0.forward"),
    ],
)
def test_a_bad_model_input_came_in_from_outside(capture, level: str, name: str) -> None:
    x = torch.randn(5, 4)
    x[2, 1] = math.nan
    path = capture(Model(), x, level=level)
    found = only(path)
    assert (found.place.name, found.source) == (name, Source.INPUT)
    assert found.slots == ("input.0",)
    assert found.contents == "1 NaN"
    assert len(analyze_overflow(path)[0].findings) == 1


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_bad_weight_is_a_parameter(capture, level: str) -> None:
    model = Model()
    with torch.no_grad():
        model.block.second.weight[0, 0] = math.inf
        model.block.second.weight[1, 0] = -math.inf
    path = capture(model, level=level)
    found = only(path)
    assert found.place.name == "Module.block.second.Linear.forward.0"
    assert (found.source, found.slots) == (Source.PARAMETER, ("parameters.weight",))
    assert found.contents == "1 +Inf, 1 -Inf"


def test_a_bad_buffer_is_seen_between_recorded_calls(capture) -> None:
    model = Model().eval()
    model.block.norm.running_mean[0] = math.nan
    found = only(capture(model))
    assert found.place.name == "Functional.batch_norm.0.forward"
    assert (found.source, found.slots) == (Source.UNRECORDED, ("input.1",))


def test_a_bad_target_came_in_from_outside_after_a_finite_model(capture) -> None:
    target = torch.zeros(5, 4)
    target[0, 0] = math.nan
    found = only(capture(Model(), target=target))
    assert found.place.name == "Functional.mse_loss.0.forward"
    assert (found.source, found.slots) == (Source.INPUT, ("input.1",))


def test_a_gradient_that_is_made_bad_in_backward_is_named(capture) -> None:
    # sqrt(0) is finite, its slope is not.
    found = only(capture(Model(lambda x: torch.sqrt(x * 0.0))))
    assert found.place.name == "Torch.sqrt.0.backward"
    assert found.source is Source.OPERATION
    assert found.slots == ("output.0",)


def test_a_gradient_that_arrives_bad_came_in_from_outside(capture) -> None:
    found = only(capture(Model(), loss=lambda y: (y.detach() + y).sum() * math.inf, level="L0"))
    assert found.place.name.endswith(".backward.0")
    assert found.source is Source.INPUT


def test_a_mask_stands_back_behind_the_nan_that_it_leads_to(capture) -> None:
    def masked_softmax(x):
        # A row of nothing but -inf: softmax gives NaN.
        mask = torch.zeros(5, 4, dtype=torch.bool)
        mask[1] = True
        return torch.softmax(x.masked_fill(mask, -math.inf), dim=-1)

    path = capture(Model(masked_softmax))
    (step,) = analyze_overflow(path)
    (first,) = step.first
    assert first.place.name == "Torch.softmax.0.forward"
    assert "infinities among its arguments" in first.detail
    assert first.contents == "4 NaN"
    mask = step.findings[0]
    assert mask.place.name == "Tensor.masked_fill.0.forward"
    assert mask.is_deliberate


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: torch.matmul(x * 0 - 300, x.new_full((4, 4), 300.0)), "Torch.matmul.0.forward"),
        (lambda x: (x * 0 - 40000) * 2, "Tensor.__mul__.1.forward"),
        (lambda x: (x * 0 - 40000) + -40000, None),  # scores that a mask is added to
        (lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min) * 2, None),
    ],
    ids=["sum of products", "product", "sum", "mask times"],
)
def test_minus_infinity_of_an_overflow_is_no_mask(capture, make: Callable, name: str) -> None:
    def scores(x):
        y = make(x.half())
        keep = torch.zeros(4, dtype=torch.bool)
        keep[0] = True
        return torch.where(keep, torch.zeros_like(y), y).softmax(-1).float()

    (step,) = analyze_overflow(capture(Model(scores)))
    assert [found.place.name for found in step.first] == ([name] if name else [])


@pytest.mark.parametrize("written", [-math.inf, "-inf", "-Infinity"])
def test_an_infinite_number_among_the_arguments_is_understood_as_it_is_written(
    write_dump, written: float | str
) -> None:
    argument = {"type": "float", "value": written}
    data = {"input_args": [tensor(1.0), argument], "output": [tensor(-math.inf)]}
    (step,) = analyze_overflow(write_dump({"rank": [("Torch.full_like.0.forward", None, data)]}))
    (found,) = step.findings
    assert found.is_deliberate


@pytest.mark.parametrize("number", [math.nan, math.inf, 2.0])
def test_a_call_with_a_number_that_is_not_finite_says_so(write_dump, number: float) -> None:
    data = {
        "input_args": [tensor(1.0), {"type": "float", "value": number}],
        "output": [tensor(math.nan)],
    }
    (step,) = analyze_overflow(write_dump({"rank": [("Tensor.__mul__.0.forward", None, data)]}))
    (found,) = step.first
    expected = "" if math.isfinite(number) else "NaN or Inf is a number among the arguments"
    assert (found.source, found.detail) == (Source.OPERATION, expected)
    assert not found.is_deliberate


def test_a_mask_alone_is_reported_and_no_source(capture) -> None:
    mask = torch.triu(torch.full((4, 4), -math.inf), 1)[:1].expand(5, 4)
    (step,) = analyze_overflow(capture(Model(lambda x: torch.softmax(x + mask, dim=-1))))
    assert step.findings
    assert step.first == ()
    assert all(found.is_deliberate for found in step.findings)


def test_uninitialized_memory_says_nothing(write_dump) -> None:
    garbage = tensor(math.nan)
    path = write_dump(
        {
            "rank": [
                ("Torch.empty.0.forward", None, {"input_args": [], "output": [garbage]}),
                (
                    "Tensor.copy_.0.forward",
                    None,
                    {"input_args": [garbage, tensor()], "output": [tensor()]},
                ),
                ("Tensor.resize_.0.forward", None, {"input_args": [], "output": [garbage]}),
                (
                    "Torch._foreach_copy_.0.forward",
                    None,
                    {"input_args": [[garbage], [tensor()]], "output": [[tensor()]]},
                ),
            ]
        }
    )
    (step,) = analyze_overflow(path)
    assert step.findings == ()


def test_copying_a_nan_into_memory_is_no_beginning_of_its_own(write_dump) -> None:
    path = write_dump(
        {
            "rank": [
                (
                    "Tensor.copy_.0.forward",
                    None,
                    {"input_args": [tensor(), tensor(math.nan)], "output": [tensor(math.nan)]},
                ),
            ]
        }
    )
    found = only(path)
    assert (found.source, found.slots) == (Source.INPUT, ("input.1",))


def test_damaged_records_are_passed_over(write_dump) -> None:
    path = write_dump(
        {
            "rank": [
                ("Torch.log.0.forward", None, {"output": [{"type": "t", "shape": "NaN"}]}),
                (
                    "Torch.log.1.forward",
                    None,
                    {"input_args": [tensor()], "output": [tensor(-math.inf), tensor(math.nan)]},
                ),
            ]
        }
    )
    assert only(path).place.name == "Torch.log.1.forward"


def test_parameter_gradients_alone_are_named_where_no_call_shows_them(write_dump) -> None:
    weight = {"weight": [tensor(math.nan)]}
    path = write_dump({"rank": [("Module.fc.Linear.parameters_grad", None, weight)]})
    found = only(path)
    assert found.place.name == "Module.fc.Linear.parameters_grad"
    assert found.slots == ("weight.0",)


def test_records_of_mindspore_are_understood(write_dump) -> None:
    def value_of(value: float | str) -> dict:
        return {
            "type": "mindspore.Tensor",
            "dtype": "Float32",
            "shape": [2],
            "Max": value,
            "Min": value,
            "Mean": value,
            "Norm": value,
        }

    cell = "Cell.network.Net.forward.0"
    path = write_dump(
        {
            "rank0": [
                (
                    "Mint.log.0.forward",
                    cell,
                    {
                        "input_args": [value_of(1.0)],
                        "output": [value_of("nan")],
                    },
                ),
                (cell, None, {"input_args": [], "output": [value_of("nan")]}),
            ]
        },
        framework="mindspore",
    )
    found = only(path)
    assert (found.place.name, found.place.rank) == ("Mint.log.0.forward", 0)
    assert found.modules == (cell,)


def test_a_dump_without_statistics_is_not_called_finite(write_dump) -> None:
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": "00000000"}
    path = write_dump({"rank": [("Torch.log.0.forward", None, {"output": [leaf]})]})
    (step,) = analyze_overflow(path)
    assert step.findings == ()
    assert "no statistics" in step.notes[0]
    text = "\n".join(str(line) for line in answer_lines(step))
    assert "cannot be seen" in text


def test_a_dump_of_the_structure_says_so(write_dump) -> None:
    path = write_dump({"rank": [("Torch.log.0.forward", None, {})]})
    folder = path / "step0" / "rank"
    (folder / "dump.json").write_text('{"task": "structure", "level": "mix", "data": {}}')
    (step,) = analyze_overflow(path)
    assert "structure" in step.notes[0]


def test_a_step_that_kept_nothing_is_told_as_such(tmp_path: Path) -> None:
    """The tasks that look for NaN keep records of findings alone."""
    write_rank(tmp_path / "step0" / "rank", {})

    (step,) = analyze_overflow(open_dump(tmp_path))
    lines = list(map(str, answer_lines(step)))
    assert any("no NaN or Inf seen; the step kept no record" in line for line in lines)
