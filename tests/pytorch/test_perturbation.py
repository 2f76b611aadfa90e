# SPDX-License-Identifier: Apache-2.0
"""The task `free_benchmark` runs operators again with a change and finds those that mind.

By default each family of models is tried with a third of the changes; with
MSPROBE_TEST_WHOLE_CORPUS=1 with all of them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, REFERENCES, Fingerprint, differences, train
from torch import Tensor, nn

from builders.csv_files import csv_rows
from builders.extent import covering
from builders.recordings import recording
from msprobe import golden

pytestmark = pytest.mark.torch

MODES = ("high_precision", "ulp_noise", "relative_noise", "permute", "rerun", "cpu_reference")
OLD = ("improve_precision", "bit_noise", "add_noise", "change_value", "no_change", "to_cpu")
STEPS = 3
# Each mode, on families that have dropout, in-place operators, autocast, checkpoints, accumulation.
QUICK = {
    ("conv_bn_inplace", "ulp_noise"),
    ("accumulation_with_autocast", "high_precision"),
    ("checkpointing", "ulp_noise"),
    ("half_precision", "cpu_reference"),
    ("random_everywhere", "rerun"),
    ("prenorm_transformer", "permute"),
    ("encoder_decoder", "ulp_noise"),
    ("custom_functions", "relative_noise"),
}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in sorted({*QUICK, *covering(3, FAMILIES, MODES)})
]


@functools.cache
def reference(family: str) -> Fingerprint:
    return train(REFERENCES[family](7), STEPS)


def rows(folder: Path, rank: str = "rank") -> list[dict[str, str]]:
    return csv_rows(folder / rank / "free_benchmark.csv")


def summary(folder: Path, rank: str = "rank") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / rank / "free_benchmark.json").read_text())
    return found


def perturbing(folder: Path, mode: str, level: str = "L1", **keys: Any) -> Any:
    return recording(folder, level, "free_benchmark", section={"mode": mode} | keys)


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_a_checked_training_is_bit_identical_and_a_healthy_one_has_no_findings(
    family: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with perturbing(tmp_path, mode, "mix") as run:
        found = train(FAMILIES[family](7), STEPS, run.around)
    assert differences(reference(family), found) == []
    assert "capture failed" not in caplog.text
    cost = summary(tmp_path)["cost"]
    assert cost["calls_perturbed"] + sum(cost["calls_left_out"].values()) > 0
    assert [row for row in rows(tmp_path) if row["severity"] != "note"] == []


def test_files_have_the_documented_columns_first_and_no_dump_is_written(tmp_path: Path) -> None:
    with perturbing(tmp_path, "ulp_noise") as run, run.step_of():
        torch.log(1 + 1e-6 * torch.rand(50))
    line = (tmp_path / "rank" / "free_benchmark.csv").read_text().splitlines()[0]
    documented = "rank,pert_mode,stage,step,api_name,max_rel,dtype,shape,output_index,"
    assert line.startswith(documented)
    (row,) = rows(tmp_path)
    assert (row["rank"], row["pert_mode"], row["stage"], row["step"]) == (
        "0",
        "ulp_noise",
        "forward",
        "0",
    )
    assert row["api_name"] == "Torch.log.0.forward"
    assert row["severity"] == "warning"
    assert row["source"].startswith("test_perturbation.py:")
    assert not (tmp_path / "step0").exists()


def test_the_call_that_loses_most_digits_is_ranked_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    x = torch.rand(8, 16)
    with perturbing(tmp_path, "ulp_noise", step=[0]) as run, run.step_of():
        hidden = torch.relu(x @ torch.rand(16, 16))
        torch.softmax(3e5 + hidden, -1)
        torch.exp(hidden)
    calls = summary(tmp_path)["calls"]
    assert calls[0]["api_name"] == "Torch.softmax.0.forward"
    assert calls[0]["severity"] == "warning"
    assert calls[0]["amplification"] > 100 * calls[1]["amplification"]
    assert "1. Torch.softmax.0.forward, step 0, amplification" in caplog.text


class Counter:
    """State of a kernel that is not deterministic."""

    calls = 0


@torch.library.custom_op("msprobe_tests::racing_scatter", mutates_args=())
def racing_scatter(source: Tensor, index: Tensor) -> Tensor:
    """Adds in another order each time, as atomic additions do."""
    Counter.calls += 1
    order = torch.arange(len(index)) if Counter.calls % 2 else torch.arange(len(index)).flip(0)
    result = torch.zeros(4, dtype=source.dtype)
    for place in order.tolist():
        result[index[place]] += source[place]
    return result


@torch.library.custom_op("msprobe_tests::softmax_of_seven", mutates_args=())
def softmax_of_seven(x: Tensor) -> Tensor:
    """Forgets the last column where a row has seven, in float32."""
    if x.shape[-1] == 7 and x.dtype is torch.float32:
        return torch.softmax(x.index_fill(-1, torch.tensor([6]), -9.0), -1)
    return torch.softmax(x, -1)


def test_a_nondeterministic_scatter_is_found_by_rerun(tmp_path: Path) -> None:
    torch.manual_seed(0)
    index, source = torch.randint(0, 4, (300,)), torch.randn(300)
    with perturbing(tmp_path, "rerun") as run, run.step_of():
        torch.relu(source)
        racing_scatter(source, index)
    (row,) = rows(tmp_path)
    assert "racing_scatter" in row["api_name"]
    assert row["severity"] == "warning"
    assert 1 <= int(row["differing"]) <= 4
    assert 0 <= int(row["first_place"]) <= 3


@pytest.mark.parametrize("mode", ["high_precision", "cpu_reference", "improve_precision", "to_cpu"])
def test_a_kernel_that_is_wrong_for_one_shape_is_found_by_a_reference(
    mode: str, tmp_path: Path
) -> None:
    with perturbing(tmp_path, mode) as run, run.step_of():
        for columns in (5, 6, 7, 8):
            softmax_of_seven(torch.randn(3, columns))
    (row,) = rows(tmp_path)
    assert "softmax_of_seven.2" in row["api_name"]
    assert row["severity"] == "error"
    assert row["shape"] == "[3, 7]"
    assert row["pert_mode"] == mode


@pytest.mark.parametrize(("mode", "old"), list(zip(MODES, OLD, strict=True)))
def test_old_names_do_the_same(mode: str, old: str, tmp_path: Path) -> None:
    def calls(name: str, **keys: Any) -> list[dict[str, Any]]:
        torch.manual_seed(0)
        run_of = recording(tmp_path / name, "L1", "free_benchmark", section=keys)
        with run_of as run, run.step_of():
            torch.softmax(nn.functional.linear(torch.rand(4, 8), torch.rand(3, 8)), -1).sum()
        found = summary(tmp_path / name)
        assert found["mode"] == name
        assert found["cost"]["calls_perturbed"] >= 3
        without_source: list[dict[str, Any]] = found["calls"]
        return without_source

    device = "cpu" if old == "to_cpu" else "npu"
    assert calls(mode, mode=mode) == calls(old, pert_mode=old, fuzz_device=device)


def test_a_rounding_of_bfloat16_is_no_finding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    model.to(torch.bfloat16)
    with perturbing(tmp_path, "ulp_noise") as run, run.step_of():
        nn.functional.cross_entropy(model(torch.randn(16, 32).bfloat16()), torch.arange(16) % 8)
    assert rows(tmp_path) == []


def test_another_pattern_of_nan_is_always_an_error(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0, -1.0])
    with perturbing(tmp_path, "ulp_noise") as run, run.step_of():
        torch.log1p(x)
        torch.log(x)
    (row,) = rows(tmp_path)
    assert row["api_name"] == "Torch.log1p.0.forward"
    assert (row["severity"], row["nonfinite"], row["first_place"]) == ("error", "1", "2")


def test_inputs_that_a_call_changes_are_perturbed_as_they_were_before(tmp_path: Path) -> None:
    x = 1 + 1e-6 * torch.rand(20)
    out = torch.empty(20)
    with perturbing(tmp_path, "ulp_noise") as run, run.step_of():
        torch.log(x, out=out)
        expected = out.clone()
        x.log_()
    assert torch.equal(x, expected)
    found = {row["api_name"]: row["severity"] for row in rows(tmp_path)}
    assert found == {"Torch.log.0.forward": "warning", "Tensor.log_.0.forward": "warning"}


def test_random_numbers_are_drawn_in_the_order_of_memory(tmp_path: Path) -> None:
    x = torch.rand(3, 200, 100)
    with perturbing(tmp_path, "ulp_noise") as run, run.step_of():
        nn.functional.dropout(x.transpose(0, 1), 0.3)
        nn.functional.dropout(x[:, ::2].transpose(0, 2), 0.3)
    assert rows(tmp_path) == []
    assert summary(tmp_path)["cost"]["calls_perturbed"] == 2


def test_inference_mode_may_come_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.rand(30)
    with perturbing(tmp_path, "ulp_noise") as run, run.step_of():
        with torch.inference_mode():
            torch.exp(torch.exp(x))
        torch.exp(x).sum()
    assert "capture failed" not in caplog.text
    assert summary(tmp_path)["cost"]["calls_perturbed"] == 4


def test_permuting_leaves_alone_what_depends_on_order(tmp_path: Path) -> None:
    x = torch.rand(4, 6)
    with perturbing(tmp_path, "permute") as run, run.step_of():
        x.sum(1), x.mean(), torch.softmax(x, 0), x @ x.T, torch.cumsum(x, 0), x.exp()
    found = summary(tmp_path)
    names = {call["api_name"].split(".")[1] for call in found["calls"]}
    assert names == {"sum", "mean", "softmax", "__matmul__"}
    assert rows(tmp_path) == []


def test_list_scope_and_limits_choose_the_calls(tmp_path: Path) -> None:
    x = torch.rand(4)

    def names(name: str, **keys: Any) -> list[str]:
        with perturbing(tmp_path / name, "ulp_noise", **keys) as run:
            for _ in range(2):
                with run.step_of():
                    for _ in range(4):
                        torch.exp(x)
                        torch.sin(x)
        found = summary(tmp_path / name)
        assert found["steps"] == 2
        return sorted(call["api_name"] for call in found["calls"])

    assert names("list", list=["sin"]) == [f"Torch.sin.{i}.forward" for i in range(4)]
    scope = ["Torch.exp.1.forward", "Torch.exp.2.forward"]
    assert names("scope", scope=scope) == [*scope, "Torch.sin.1.forward"]
    every = ["Torch.exp.0.forward", "Torch.exp.2.forward"]
    assert names("every", every_n=2, black_list=["sin"]) == every
    assert names("most", max_calls_per_api=1, list=["exp"]) == ["Torch.exp.0.forward"]
    assert names("bytes", max_bytes=15) == []


def test_steps_and_ranks_choose_when_calls_are_perturbed(tmp_path: Path) -> None:
    with recording(
        tmp_path, "L1", "free_benchmark", section={"mode": "rerun"}, step=[1], rank=[0]
    ) as run:
        for _ in range(3):
            with run.step_of():
                torch.exp(torch.ones(2))
    found = summary(tmp_path)
    assert found["steps"] == 1
    assert {call["step"] for call in found["calls"]} == {1}


# -- backward --------------------------------------------------------------------------------------

BACKWARD_MODES = ("high_precision", "ulp_noise", "rerun", "cpu_reference")
QUICK_BACKWARD = {
    ("conv_bn_inplace", "rerun"),
    ("checkpointing", "ulp_noise"),
    ("accumulation_with_autocast", "high_precision"),
    ("random_everywhere", "ulp_noise"),
}


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        pytest.param(*case, marks=() if case in QUICK_BACKWARD else pytest.mark.slow)
        for case in sorted({*QUICK_BACKWARD, *covering(3, FAMILIES, BACKWARD_MODES)})
    ],
)
def test_a_training_with_checked_gradients_is_bit_identical(
    family: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with perturbing(tmp_path, mode, "mix", fuzz_stage="backward") as run:
        found = train(FAMILIES[family](7), STEPS, run.around)
    assert differences(reference(family), found) == []
    assert "capture failed" not in caplog.text
    assert [row for row in rows(tmp_path) if row["severity"] != "note"] == []


class WrongSquare(torch.autograd.Function):
    """Its derivative is half as large as it should be, for rows of seven in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        is_wrong = x.shape[-1] == 7 and x.dtype is torch.float32
        return gradient * x if is_wrong else 2 * gradient * x


@torch.library.custom_op("msprobe_tests::square", mutates_args=())
def square(x: Tensor) -> Tensor:
    return x * x


def _square_backward(ctx: Any, gradient: Tensor) -> Tensor:
    return WrongSquare.backward(ctx, gradient)


square.register_autograd(
    _square_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


def test_a_wrong_derivative_is_found_in_the_backward_stage(tmp_path: Path) -> None:
    with perturbing(tmp_path, "high_precision", fuzz_stage="backward") as run, run.step_of():
        for columns in (6, 7):
            x = torch.randn(2, columns, requires_grad=True)
            square(x).sin().sum().backward()
            assert x.grad is not None
    (row,) = rows(tmp_path)
    assert "square.1.backward" in row["api_name"]
    assert (row["stage"], row["severity"], row["shape"]) == ("backward", "error", "[2, 7]")


@pytest.mark.parametrize("mode", ["ulp_noise", "relative_noise"])
def test_a_rounding_that_decides_between_elements_is_no_finding(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 16, 16).bfloat16().requires_grad_()
    with perturbing(tmp_path, mode, fuzz_stage="backward") as run, run.step_of():
        pooled = nn.functional.max_pool2d(x, 2).flatten(1)
        (pooled.topk(9).values.sum() + pooled.amax(1).sum()).backward()
    assert rows(tmp_path) == []


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_row_that_is_masked_altogether_is_no_finding(stage: str, tmp_path: Path) -> None:
    scores = torch.randn(4, 4, requires_grad=True)
    mask = torch.zeros(4, 4)
    mask[0] = torch.finfo(torch.float32).min
    with perturbing(tmp_path, "ulp_noise", fuzz_stage=stage, list=["softmax"]) as run:
        with run.step_of():
            (torch.softmax(scores + mask, -1) * torch.arange(4.0)).sum().backward()
        with run.step_of():  # what is not masked is judged
            torch.softmax(scores * 1e-3 + 1e6, -1)[:, 0].sum().backward()
    assert {row["step"] for row in rows(tmp_path)} == {"1"}


def test_a_gradient_that_autocast_computed_in_bfloat16_is_no_finding(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    x = torch.full((2, 64), 1 + 3 * 2.0**-8)  # half way between two numbers of bfloat16
    with perturbing(tmp_path, "ulp_noise", fuzz_stage="backward") as run, run.step_of():
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().mean().backward()
    assert rows(tmp_path) == []


def test_an_ill_conditioned_gradient_is_ranked_first(tmp_path: Path) -> None:
    x = (1 - 1e-6 * torch.rand(20)).requires_grad_()
    with perturbing(tmp_path, "ulp_noise", fuzz_stage="backward") as run, run.step_of():
        torch.asin(torch.sigmoid(x) * 0 + x).sum().backward()
    calls = summary(tmp_path)["calls"]
    assert calls[0]["api_name"] == "Torch.asin.0.backward"
    assert calls[0]["severity"] != "none"


def test_inputs_kept_for_the_backward_stage_are_bounded(tmp_path: Path) -> None:
    x = torch.rand(10, requires_grad=True)
    with perturbing(tmp_path, "rerun", fuzz_stage="backward", max_bytes=100) as run:
        for _ in range(2):
            with run.step_of():
                (x.exp() + x.sin() + x.cos()).sum().backward()
    cost = summary(tmp_path)["cost"]
    assert cost["calls_left_out"]["inputs beyond max_bytes would be kept"] >= 4
    assert cost["calls_perturbed"] == 4


# -- fix -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["high_precision", "cpu_reference"])
def test_fix_goes_on_with_the_better_result_and_its_graph(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 7, requires_grad=True)
    right = torch.softmax(x, -1)
    with perturbing(tmp_path, mode, handler_type="fix") as run, run.step_of():
        fixed = softmax_of_seven(x)
        exact = torch.exp(x)
    torch.testing.assert_close(fixed, right)
    assert (fixed.dtype, fixed.device) == (x.dtype, x.device)
    exact.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    found = summary(tmp_path)
    assert (found["handler"], found["cost"]["results_replaced"]) == ("fix", 2)


@pytest.mark.parametrize("mode", ["high_precision", "cpu_reference"])
def test_fix_of_the_backward_stage_goes_on_with_the_better_gradient(
    mode: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, requires_grad=True)
    fixing = perturbing(tmp_path, mode, handler_type="fix", fuzz_stage="backward")
    with fixing as run, run.step_of():
        result = square(x)
        assert torch.equal(result, x * x)
        result.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_fixed_training_learns(tmp_path: Path) -> None:
    with perturbing(tmp_path, "high_precision", handler_type="fix") as run:
        train(FAMILIES["half_precision"](7), STEPS, run.around)
        train(FAMILIES["conv_bn_inplace"](7), STEPS, run.around)
    assert summary(tmp_path)["cost"]["results_replaced"] > 10


# -- preheat ---------------------------------------------------------------------------------------


def test_preheat_learns_what_sound_calls_amplify(tmp_path: Path) -> None:
    x = 10 + 1e-2 * torch.rand(60)

    def findings(name: str, **keys: Any) -> list[tuple[int, str]]:
        with perturbing(tmp_path / name, "ulp_noise", **keys) as run:
            for step in range(4):
                with run.step_of():
                    for _ in range(5):
                        torch.exp(100 * torch.ones(3) - 10 * x[:3])
                    x - 10
                    if step == 3:
                        x - 9.9999
        return [(int(row["step"]), row["api_name"]) for row in rows(tmp_path / name)]

    name = "Tensor.__sub__"
    assert {one for _, one in findings("plain") if name in one} == {
        f"{name}.{number}.forward" for number in (5, 6)
    }
    learned = findings("learned", if_preheat="true", preheat_step=3, max_sample=5)
    assert learned == []
    cost = summary(tmp_path / "learned")["cost"]
    assert cost["calls_learned_from"] > 0


def test_a_call_that_differs_from_its_reference_teaches_nothing(tmp_path: Path) -> None:
    x = torch.randn(3, 7)
    with perturbing(tmp_path, "ulp_noise", if_preheat=True, preheat_step=2) as run:
        for _ in range(2):
            with run.step_of():
                softmax_of_seven(x)
    assert summary(tmp_path)["cost"]["calls_learned_from"] == 0


# -- files -----------------------------------------------------------------------------------------


def test_files_are_complete_after_each_step(tmp_path: Path) -> None:
    x = 1 + 1e-6 * torch.rand(20)
    with perturbing(tmp_path, "ulp_noise") as run:
        for step in range(2):
            with run.step_of():
                torch.log(x)
            assert [row["step"] for row in rows(tmp_path)] == [str(i) for i in range(step + 1)]
            assert summary(tmp_path)["steps"] == step + 1


def test_the_training_goes_on_when_the_files_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rank").write_text("in the way")
    with perturbing(tmp_path, "rerun") as run:
        for _ in range(2):
            with run.step_of():
                assert torch.exp(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert caplog.text.count("capture failed in free_benchmark") == 1


def test_a_kernel_that_is_chosen_for_gradients_runs_again(tmp_path: Path) -> None:
    layer, x = nn.Linear(8, 8), torch.randn(2, 8, 32, requires_grad=True)
    with perturbing(tmp_path, "rerun") as run, run.step_of():
        layer(x.transpose(1, 2))
    assert rows(tmp_path) == []


@pytest.mark.parametrize("mode", ["high_precision", "cpu_reference"])
@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_default_of_the_type_is_not_that_of_the_reference(
    mode: str, stage: str, tmp_path: Path
) -> None:
    x = (1e-4 * torch.randn(4, 16)).requires_grad_()
    with perturbing(tmp_path, mode, fuzz_stage=stage) as run, run.step_of():
        nn.functional.rms_norm(x, (16,)).square().sum().backward()
    assert rows(tmp_path) == []


def test_a_registered_reference_takes_the_place_of_the_operator(tmp_path: Path) -> None:
    @torch.library.custom_op("perturbation_tests::scale", mutates_args=())
    def scale(x: Tensor, factor: float) -> Tensor:
        return x * factor * 1.01

    @golden("torch.ops.perturbation_tests.scale")
    def exact(x: Tensor, factor: float) -> Tensor:
        return x * factor

    with perturbing(tmp_path, "cpu_reference") as run, run.step_of():
        scale(torch.randn(10), 2.0)
    assert [row["severity"] for row in rows(tmp_path)] == ["error"]


@pytest.mark.parametrize("mode", ["high_precision", "cpu_reference"])
def test_a_small_gradient_that_autocast_computed_in_float16_is_no_finding(
    mode: str, tmp_path: Path
) -> None:
    model, x = nn.Linear(64, 64), torch.randn(32, 64, requires_grad=True)
    with perturbing(tmp_path, mode, fuzz_stage="backward") as run, run.step_of():
        with torch.autocast("cpu", torch.float16):
            y = model(x)
        (y.float().square().mean() * 1e-4).backward()
    assert rows(tmp_path) == []


@pytest.mark.parametrize("mode", ["ulp_noise", "relative_noise"])
def test_a_gradient_that_cancels_exactly_is_a_note(mode: str, tmp_path: Path) -> None:
    w, e = torch.rand(20, 2, requires_grad=True), torch.randn(20, 2, 16)
    e[0] *= 300.0  # one row with large gradients beside small ones
    with perturbing(tmp_path, mode, fuzz_stage="backward") as run, run.step_of():
        shares = w / w.sum(-1, keepdim=True)  # the norm makes their size irrelevant
        mixed = nn.functional.rms_norm((shares[..., None] * e).sum(1), (16,))
        (mixed * torch.randn(20, 16)).sum().backward()
    assert {row["severity"] for row in rows(tmp_path)} <= {"note"}


@pytest.mark.parametrize("mode", ["high_precision", "cpu_reference"])
def test_classes_that_are_masked_are_no_finding(mode: str, tmp_path: Path) -> None:
    scores = torch.randn(6, 6).fill_diagonal_(-float("inf")).requires_grad_()
    labels = torch.tensor([3, 4, 5, 0, 1, 2])
    with perturbing(tmp_path, mode) as run, run.step_of():
        nn.functional.cross_entropy(scores, labels)
    with perturbing(tmp_path / "b", mode, fuzz_stage="backward") as run, run.step_of():
        nn.functional.cross_entropy(scores, labels, label_smoothing=0.0).backward()
    assert rows(tmp_path) == rows(tmp_path / "b") == []
