# SPDX-License-Identifier: Apache-2.0
"""Task `diff_check`: a run is compared with a recorded one while it goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, REFERENCES, TrainCase, differences, train
from torch import Tensor, nn
from torch.nn import functional

from msprobe import open_dump
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

pytestmark = pytest.mark.torch

QUICK = ("weight_tying", "checkpointing", "user_hooks", "accumulation_with_autocast")
REST = (
    "mixture_of_experts",
    "recurrent",
    "custom_functions",
    "adversarial",
    "sparse_and_complex",
    "random_everywhere",
    "conv_bn_inplace",
    "prenorm_transformer",
    "gradient_penalty",
)
CHECKSUMS = {"statistics": {"summary_mode": "md5"}}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    reset_session()


def make_debugger(
    folder: Path, name: str, content: dict[str, Any], task: str = "statistics", level: str = "mix"
) -> PrecisionDebugger:
    config = folder / f"{name}.json"
    config.write_text(json.dumps(content))
    return PrecisionDebugger(str(config), task=task, dump_path=str(folder / name), level=level)


def check(reference: Path, **keys: Any) -> dict[str, Any]:
    return {"diff_check": {"reference": str(reference), **keys}}


def report(dump: Path) -> dict[str, Any]:
    (path,) = dump.glob("diff_check_*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    "family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)]
)
def test_a_healthy_run_is_silent_and_stays_bit_identical(family: str, tmp_path: Path) -> None:
    plain = train(REFERENCES[family](7), 2)
    for name, task, content in (
        ("reference", "statistics", CHECKSUMS),
        ("checked", "diff_check", check(tmp_path / "reference")),
    ):
        debugger = make_debugger(tmp_path, name, content, task)
        assert differences(plain, train(FAMILIES[family](7), 2, around(debugger))) == []
        reset_session()
    found = report(tmp_path / "checked")
    assert found["findings"] == []
    recorded = open_dump(tmp_path / "reference")
    views = [view for step in recorded.steps.values() for view in step.ranks.values()]
    assert found["compared"] == sum(len(view.records) for view in views)


def around(debugger: PrecisionDebugger) -> Callable[[TrainCase, int], AbstractContextManager[None]]:
    @contextmanager
    def one_step(case: TrainCase, _: int) -> Iterator[None]:
        debugger.start(case.model)
        yield
        debugger.stop()
        debugger.step()

    return one_step


class Net(nn.Module):
    """Layers with something between them, which knows how often it was called."""

    def __init__(self, between: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)
        self.between = between
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.between(functional.gelu(self.first(x)), self.calls - 1)
        return self.second(torch.tanh(hidden))


def run(
    debugger: PrecisionDebugger,
    between: Callable[[Tensor, int], Tensor],
    *,
    shift: float = 0.0,
    seed: int = 0,
) -> None:
    """Train for three steps."""
    torch.manual_seed(0)
    net = Net(between)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.randn(12, 6)
    torch.manual_seed(seed)
    for step in range(3):
        rows = data[4 * step : 4 * step + 4] + shift * step
        debugger.start(net)
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        debugger.stop()
        optimizer.step()
        debugger.step()
    reset_session()


Between = Callable[[Tensor, int], Tensor]


def watch(
    folder: Path,
    reference: Between,
    target: Between,
    *,
    content: dict[str, Any] = CHECKSUMS,
    task: str = "statistics",
    level: str = "mix",
    keys: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    run(make_debugger(folder, "reference", content, task, level), reference)
    keys = keys or {}
    debugger = make_debugger(
        folder, "run", check(folder / "reference", **keys), "diff_check", level
    )
    run(debugger, target, **changes)
    return report(folder / "run")


def scaled(x: Tensor, call: int) -> Tensor:
    return torch.ops.diff_check_test.scale(x)


@pytest.fixture
def wrong_call() -> Iterator[list[int]]:
    """A custom operator `diff_check_test.scale`; it errs in the calls of this list."""
    wrong: list[int] = []
    calls = iter(range(1000))

    def scale(x: Tensor) -> Tensor:
        return x * (1.5 + 1e-6 * (next(calls) in wrong))

    with torch.library._scoped_library("diff_check_test", "DEF") as library:
        library.define("scale(Tensor x) -> Tensor")
        library.impl("scale", scale, "CompositeExplicitAutograd")
        library.impl("scale", lambda x: Scale.apply(x, scale), "Autograd")
        yield wrong


class Scale(torch.autograd.Function):
    """The operator `scale`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return function(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * 1.5, None


@pytest.mark.parametrize("level", ["mix", "L1"])
def test_a_kernel_that_is_wrong_in_one_call_is_named_with_both_tensors(
    level: str, wrong_call: list[int], tmp_path: Path
) -> None:
    wrong_call.append(4)  # the second one of the checked run
    found = watch(tmp_path, scaled, scaled, content={}, task="tensor", level=level)
    assert found["without_checksum"] > 0
    (finding,) = found["findings"]
    assert finding["kind"] == "call"
    assert (finding["step"], finding["record"]) == (1, "diff_check_test.scale.0.forward")
    assert finding["line"].startswith("test_diff_check.py:")
    assert [value["value"] for value in finding["values"]] == ["output.0"]
    folder = next((tmp_path / "run/step1").iterdir())
    name = "diff_check_test.scale.0.forward.output.0.pt"
    ours = torch.load(folder / "dump_tensor_data" / name)
    others = torch.load(folder / "reference_tensor_data" / name)
    assert 0 < (ours - others).abs().max() < 1e-5
    assert not (tmp_path / "run/step2").exists()  # one was asked for


def test_the_table_has_a_row_for_each_value(wrong_call: list[int], tmp_path: Path) -> None:
    wrong_call.append(3)
    watch(tmp_path, scaled, scaled)
    (path,) = (tmp_path / "run").glob("diff_check_*.csv")
    title, row = path.read_text().splitlines()
    assert title.startswith("step,api_name,reference_name,kind,module,source,value,difference")
    assert row.startswith("0,diff_check_test.scale.0.forward,diff_check_test.scale.0.forward,call,")


def test_further_differences_are_found_up_to_the_wanted_number(
    wrong_call: list[int], tmp_path: Path
) -> None:
    def twice(x: Tensor, call: int) -> Tensor:
        return scaled(x.detach() * 0 + 1, call) + scaled(x.detach() * 0 + 2, call) + x

    wrong_call += [6, 7, 9]
    found = watch(tmp_path, twice, twice, keys={"diff_nums": 2})
    assert [each["record"] for each in found["findings"]] == [
        "diff_check_test.scale.0.forward",
        "diff_check_test.scale.1.forward",
    ]


def test_an_error_below_the_tolerance_is_no_difference_by_statistics(
    wrong_call: list[int], tmp_path: Path
) -> None:
    wrong_call += [3, 4, 5]
    found = watch(tmp_path, scaled, scaled, keys={"compare": "statistics"})
    assert found["findings"] == []
    assert found["compared"] > 30


def test_a_large_error_differs_by_statistics(tmp_path: Path) -> None:
    def other(x: Tensor, call: int) -> Tensor:
        return functional.dropout(x, 0.5)

    found = watch(tmp_path, other, other, content={}, keys={"compare": "statistics"}, seed=1)
    assert [each["record"] for each in found["findings"]] == ["Functional.dropout.0.forward"]
    assert found["findings"][0]["draws_random"]


@pytest.mark.parametrize("compare", ["checksum", "statistics"])
def test_values_that_are_not_finite_are_compared(compare: str, tmp_path: Path) -> None:
    """A mask, an overflow in a nested result, and gradients that are NaN."""

    def step(x: Tensor) -> None:
        scores = x.masked_fill(x > 0, -torch.inf)
        torch.stack(torch.unbind(torch.exp(x * 1e4) - scores.softmax(-1))).sum().backward()

    for name, task, content in (
        ("reference", "statistics", CHECKSUMS),
        ("checked", "diff_check", check(tmp_path / "reference", compare=compare)),
    ):
        debugger = make_debugger(tmp_path, name, content, task, "L1")
        torch.manual_seed(1)
        debugger.start()
        step(torch.randn(3, 4, requires_grad=True))
        debugger.stop()
        debugger.step()
        reset_session()
    found = report(tmp_path / "checked")
    assert found["findings"] == []
    assert found["compared"] >= 12
    assert not list(tmp_path.rglob("dump_error_info.log"))


def test_data_that_differs_is_said_once_and_is_no_call(
    wrong_call: list[int], tmp_path: Path
) -> None:
    found = watch(tmp_path, scaled, scaled, shift=1e-3)
    (finding,) = found["findings"]
    assert (finding["kind"], finding["step"]) == ("input", 1)
    assert finding["record"] == "Functional.linear.0.forward"


def test_another_argument_is_named_though_a_further_call_was_told_before(tmp_path: Path) -> None:
    def exact(x: Tensor, call: int) -> Tensor:
        return functional.gelu(x)

    def sometimes_rough(x: Tensor, call: int) -> Tensor:
        x.detach().sum()
        return functional.gelu(x, approximate="tanh" if call else "none")

    found = watch(tmp_path, exact, sometimes_rough)
    alone, argument = found["findings"]
    assert (alone["kind"], alone["step"]) == ("alone", 0)
    assert (argument["kind"], argument["step"]) == ("argument", 1)
    assert argument["record"] == "Functional.gelu.1.forward"
    assert [value["value"] for value in argument["values"]] == ["input.approximate"]


def test_an_argument_without_an_effect_is_no_finding_and_not_equal(tmp_path: Path) -> None:
    def plain(x: Tensor, call: int) -> Tensor:
        return functional.dropout(x, 0.5, training=False)

    def other(x: Tensor, call: int) -> Tensor:
        return functional.dropout(x, 0.25, training=False)

    found = watch(tmp_path, plain, other)
    assert found["findings"] == []
    assert not found["equal"]


class Squashed(torch.autograd.Function):
    """A call that makes another one, which ends before it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unused: int) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def test_a_call_around_others_with_another_argument_is_made_by_both(tmp_path: Path) -> None:
    def with_zero(x: Tensor, call: int) -> Tensor:
        return Squashed.apply(x, 0)  # type: ignore[no-any-return]

    def with_one(x: Tensor, call: int) -> Tensor:
        return Squashed.apply(x, 1)  # type: ignore[no-any-return]

    found = watch(tmp_path, with_zero, with_one)
    assert found["findings"] == []
    assert not found["equal"]


def test_a_further_call_shifts_no_numbers(tmp_path: Path) -> None:
    def product(x: Tensor, call: int) -> Tensor:
        return torch.mul(x, 2.0)

    def with_one_more(x: Tensor, call: int) -> Tensor:
        torch.mul(x.detach().sum(), 3.0)
        return torch.mul(x, 2.0)

    found = watch(tmp_path, product, with_one_more)
    (finding,) = found["findings"]
    assert finding["kind"] == "alone"
    assert finding["record"] in ("Tensor.sum.0.forward", "Torch.mul.0.forward")


def test_another_function_in_its_place_is_named(tmp_path: Path) -> None:
    found = watch(
        tmp_path,
        lambda x, call: functional.relu(x),
        lambda x, call: functional.silu(x) if call == 1 else functional.relu(x),
    )
    (finding,) = found["findings"]
    assert (finding["step"], finding["record"]) == (1, "Functional.silu.0.forward")


def test_a_step_that_the_reference_lacks_is_said(
    wrong_call: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = watch(tmp_path, scaled, scaled, content={**CHECKSUMS, "step": [0, 1]})
    assert found["findings"] == []
    assert "step 2 of rank 0 is not in" in caplog.text
