# SPDX-License-Identifier: Apache-2.0
"""`live_compare`: planted faults are named, healthy models are not, the training stays the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from families import FAMILIES, REFERENCES, differences, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from builders.csv_files import csv_rows
from builders.operator_calls import replaced_kernel
from builders.recordings import Setting, observed
from msprobe.errors import UsageError
from msprobe.pytorch import PtdbgDispatch, live_compare

pytestmark = pytest.mark.torch


def faults(check: Any) -> list[dict[str, str]]:
    return [row for row in csv_rows(check.table_path) if row["faults"] != "0"]


def wrong_mm(a: Tensor, b: Tensor) -> Tensor:
    out = torch.bmm(a[None], b[None])[0]
    if a.dtype is torch.float32 and b.shape == (6, 5):
        out[1, 2] *= 1.001
    return out


class Scorer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, width))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight  # the line of the fault


def test_a_kernel_that_is_wrong_for_one_shape_is_named_with_module_and_line(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Scorer(4), nn.Linear(4, 6), Scorer(5))
    x = torch.randn(8, 6)
    check = live_compare(dump_path=tmp_path)
    with replaced_kernel("mm", wrong_mm), check:
        model(x).sum().backward()
    (found,) = faults(check)
    line = Scorer.forward.__code__.co_firstlineno + 1
    assert found["operator"] == "aten.mm.default"
    assert (found["direction"], found["module"], found["verdict"]) == ("forward", "2", "wrong")
    assert found["source"] == f"test_live_compare.py:{line}"
    assert int(found["element"]) == 7
    assert "1 suspicious or wrong; first: aten.mm.default (forward of 2, test" in check.summary()
    summary = json.loads(check.table_path.with_suffix(".json").read_text())
    assert [one["module"] for one in summary["findings"]] == ["2"]
    saved = tmp_path / found["saved"]
    expected = torch.load(next(saved.glob("*.output.bench.0.pt")))
    wrong = torch.load(next(saved.glob("*.output.device.0.pt")))
    assert expected.dtype is torch.float64
    assert (wrong - expected).abs().argmax() == 7
    given = [torch.load(saved / f"Aten.mm.{found['call'].split('.')[2]}.forward.input.{i}.pt")
             for i in (0, 1)]  # fmt: skip
    assert torch.allclose(given[0].double() @ given[1].double(), expected)


def test_only_failing_calls_have_tensors(tmp_path: Path) -> None:
    check = live_compare(dump_path=tmp_path)
    with check:
        nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "live_compare_rank0.csv",
        "live_compare_rank0.json",
    ]


def test_values_below_one_are_judged(tmp_path: Path) -> None:
    def half_more(x: Tensor) -> Tensor:
        exact = 1 / (1 + torch.exp(-x))
        return exact * 1.5 if x.dtype is torch.float32 else exact

    check = live_compare(dump_path=tmp_path)
    with replaced_kernel("sigmoid", half_more), check:
        torch.sigmoid(torch.linspace(-3, 3, 1000) * 0.1)
    (found,) = faults(check)
    assert (found["operator"], found["verdict"]) == ("aten.sigmoid.default", "wrong")
    assert "1.5" in found["remark"]


@pytest.mark.parametrize("bias", [-1e-3, 1e-3])
def test_a_bias_is_judged_in_both_directions(tmp_path: Path, bias: float) -> None:
    def biased(x: Tensor) -> Tensor:
        exact = 2 / (1 + torch.exp(-2 * x)) - 1
        return exact + bias if x.dtype is torch.float32 else exact

    check = live_compare(dump_path=tmp_path)
    with replaced_kernel("tanh", biased), check:
        torch.tanh(torch.randn(500))
    assert [found["verdict"] for found in faults(check)] == ["wrong"]


def test_a_fault_in_backward_is_named_by_the_place_of_the_forward_call(tmp_path: Path) -> None:
    def wrong(grad: Tensor, out: Tensor) -> Tensor:
        exact = grad * (1 - out * out)
        return -exact if grad.dtype is torch.float32 else exact

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    check = live_compare(dump_path=tmp_path)
    with replaced_kernel("tanh_backward", wrong), check:
        model(torch.randn(3, 4)).sum().backward()
    found = faults(check)[0]
    assert found["operator"] == "aten.tanh_backward.default"
    assert (found["direction"], found["module"]) == ("backward", "1")
    assert found["source"].startswith("test_live_compare.py:")


def test_an_in_place_operator_is_judged_by_its_inputs_before(tmp_path: Path) -> None:
    def wrong(x: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
        return x.copy_(torch.sub(x, other, alpha=-alpha) * (2 if x.dtype is torch.float32 else 1))

    x = torch.randn(5)
    check = live_compare(dump_path=tmp_path)
    with check:
        x.mul_(3).add_(x).clamp_(0)
    assert faults(check) == []
    with replaced_kernel("add_.Tensor", wrong), check:
        x.add_(torch.ones(5))
    assert [found["operator"] for found in faults(check)] == ["aten.add_.Tensor"]


def test_a_registered_reference_judges_a_custom_operator(tmp_path: Path) -> None:
    from msprobe import golden

    @torch.library.custom_op("live_tests::scale", mutates_args=())
    def scale(x: Tensor, factor: float) -> Tensor:
        return x * factor * 1.01

    @golden("torch.ops.live_tests.scale")
    def exact(x: Tensor, factor: float) -> Tensor:
        return x * factor

    check = live_compare(dump_path=tmp_path)
    with check:
        scale(torch.randn(10), 2.0)
    (found,) = faults(check)
    assert found["operator"] == "live_tests.scale.default"


def test_samples_filters_and_caps(tmp_path: Path) -> None:
    def judged(**options: Any) -> tuple[int, Mapping[str, int]]:
        check = live_compare(dump_path=tmp_path, **options)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        with check:
            for _ in range(10):
                model(torch.randn(2, 4))
        return check.results.judged, check.results.left_out

    assert judged()[0] == 30
    assert judged(every_n=10)[0] == 3
    assert judged(max_calls=2)[0] == 4
    assert judged(operators=["addmm"])[0] == 20
    assert judged(modules=["2"])[0] == 10
    assert judged(device="cuda")[0] == 0
    assert judged(max_bytes=100)[1]["above the memory cap"] == 30
    with pytest.raises(UsageError, match="cpu-float64"):
        live_compare("float64")
    with pytest.raises(UsageError, match="list of patterns"):
        live_compare(operators="mm")


def test_operators_are_left_out_by_their_schema(tmp_path: Path) -> None:
    check = live_compare(dump_path=tmp_path)
    with check:
        x = torch.randn(4, 4)
        torch.rand_like(x), torch.empty_like(x), x.t(), x.sum().item()
        F.dropout(x, 0.5)
    names = {row["operator"] for row in csv_rows(check.table_path)}
    assert names == {"aten.sum.default", "aten.div_.Scalar", "aten.mul.Tensor"}
    assert check.results.left_out["drew random numbers"] >= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_healthy_training_has_no_finding_and_keeps_its_bits(family: str, tmp_path: Path) -> None:
    expected = train(REFERENCES[family](7), 2)
    case = FAMILIES[family](7)
    check = live_compare(dump_path=tmp_path, every_n=3)
    with check:
        found = train(case, 2)
    assert check.results.judged >= 15
    assert check.results.left_out.get("an error of msprobe", 0) == 0
    assert faults(check) == []
    assert differences(expected, found) == []


def training(check: Any, *, autocast: bool) -> list[Tensor]:
    torch.manual_seed(3)
    inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.3))
    model = nn.Sequential(nn.LayerNorm(8), inner, nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        x = torch.randn(6, 8)
        with check, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = checkpoint(inner, model[0](x), use_reentrant=False)
            model[2](hidden).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), torch.get_rng_state(), torch.randn(3)]


@pytest.mark.parametrize("autocast", [False, True])
def test_dropout_checkpoints_and_autocast_keep_their_bits(tmp_path: Path, autocast: bool) -> None:
    expected = training(nullcontext(), autocast=autocast)
    check = live_compare(dump_path=tmp_path)
    found = training(check, autocast=autocast)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert check.results.judged > 60
    assert faults(check) == []


def test_beside_a_debugger_both_do_their_work(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    check = live_compare(dump_path=tmp_path / "live")
    with observed(tmp_path / "dump", Setting("L1", "statistics")) as run:
        for context in (nullcontext(), check):
            with run.step_of(model), context:
                model(torch.ones(2, 4)).sum().backward()
    assert check.results.judged > 3
    assert check.results.left_out.get("an error of msprobe", 0) == 0
    assert list(run.records(0)) == list(run.records(1))


def test_an_error_in_the_training_passes_and_the_table_is_written(tmp_path: Path) -> None:
    check = live_compare(dump_path=tmp_path)

    def step() -> None:
        with check:
            torch.randn(2, 3) @ torch.randn(3, 2)
            torch.randn(2, 3) @ torch.randn(2, 3)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        step()
    assert [row["operator"] for row in csv_rows(check.table_path)] == ["aten.mm.default"]


def half(x: Tensor) -> Tensor:
    exact = 1 / (1 + torch.exp(-x))
    return exact * 0.5 if x.dtype is torch.float32 else exact


def disreplaced_kernel(folder: Path, **options: Any) -> tuple[PtdbgDispatch, list[dict[str, str]]]:
    """Run a small model with a wrong sigmoid; return the object and the rows of results."""
    found = PtdbgDispatch(dump_path=str(folder), **options)
    with replaced_kernel("sigmoid", half), found:
        nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())(torch.randn(2, 4)).sum().backward()
    return found, csv_rows(next(found.folder.glob("accuracy_checking_result_*.csv")))


def test_the_documented_dispatch_writes_its_files(tmp_path: Path) -> None:
    from msprobe.pytorch.online_dispatch import PtdbgDispatch as Documented

    assert Documented is PtdbgDispatch
    found, results = disreplaced_kernel(tmp_path, dump_mode="auto", tag="first", process_num=2)
    assert found.folder.name.startswith("atat_first_rank0_2")
    assert list(results[0]) == [
        *("API name", "Forward Test Success", "Backward Test Success", "Message"),
    ]
    by_name = {row["API name"]: row for row in results}
    assert by_name["addmm_0"]["Forward Test Success"] == "TRUE"
    assert by_name["sigmoid_0"]["Forward Test Success"] == "FALSE"
    assert "0.5" in by_name["sigmoid_0"]["Message"]
    assert by_name["sigmoid_backward_0"]["Backward Test Success"] == "TRUE"
    (sigmoid,) = [
        row
        for row in csv_rows(next(found.folder.glob("accuracy_checking_details_*.csv")))
        if row["Npu Name"].startswith("sigmoid_0")
    ]
    assert list(sigmoid) == [
        *("Npu Name", "Bench Dtype", "NPU Dtype", "Shape", "error_balance", "max_abs_diff"),
        *("max_abs_idx", "max_rel_diff", "max_rel_idx", "eb_thd", "error_thd", "Status", "Message"),
    ]
    assert sigmoid["Bench Dtype"] == "torch.float64"
    assert float(sigmoid["max_rel_diff"]) == pytest.approx(0.5, abs=1e-6)
    assert float(sigmoid["error_balance"]) < -0.1
    assert sigmoid["Status"] == "FALSE"
    assert sorted(
        path.relative_to(found.folder).as_posix() for path in found.folder.rglob("*.npy")
    ) == [
        *("cpu/sigmoid_0_input.npy", "cpu/sigmoid_0_output.npy"),
        *("npu/sigmoid_0_input.npy", "npu/sigmoid_0_output.npy"),
    ]


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({}, set()),
        ({"dump_mode": "list", "api_list": ["aten.addmm"]}, {"addmm_0"}),
        ({"dump_mode": "all"}, {"addmm_0", "sigmoid_0", "sigmoid_backward_0"}),
    ],
)
def test_the_dump_mode_says_whose_tensors_are_saved(
    tmp_path: Path, options: dict[str, Any], saved: set[str]
) -> None:
    found, _ = disreplaced_kernel(tmp_path, **options)
    names = {path.name.partition("_input")[0] for path in found.folder.rglob("npu/*_input*.npy")}
    assert names >= saved
    assert saved or not names


@pytest.mark.parametrize(
    "options",
    [{"dump_mode": "some"}, {"dump_mode": "list"}, {"api_list": "add"}, {"process_num": -1}],
)
def test_wrong_arguments_of_the_dispatch_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="PtdbgDispatch"):
        PtdbgDispatch(**options)


def test_elements_that_are_added_up_may_be_rounded(tmp_path: Path) -> None:
    x = torch.randn(12, 8, requires_grad=True)
    with live_compare(dump_path=tmp_path) as check:
        (x[torch.randint(12, (200,))] * torch.randn(200, 8)).sum().backward()
        torch.zeros(4).index_put_((torch.zeros(50, dtype=torch.long),), torch.rand(50), True)
        torch.rand(4).scatter_(0, torch.zeros(50, dtype=torch.long), 0.1, reduce="add")
    assert faults(check) == []
    exact = {row["operator"]: row["verdict"] for row in csv_rows(check.table_path)}
    assert exact["aten.index_put.default"] in ("exact", "rounding")


def test_a_copied_element_must_be_exact(tmp_path: Path) -> None:
    def rounds(x: Tensor, places: Any, values: Tensor, accumulate: bool = False) -> Tensor:
        result = x.clone()
        result[places[0]] = values * (1 + 2**-22 if x.dtype is torch.float32 else 1)
        return result

    with replaced_kernel("index_put", rounds), live_compare(dump_path=tmp_path) as check:
        torch.zeros(4).index_put((torch.arange(3),), torch.rand(3))
    assert [row["operator"] for row in faults(check)] == ["aten.index_put.default"]


def test_memory_that_a_kernel_leaves_alone_is_not_judged(tmp_path: Path) -> None:
    losses = torch.randn(20, 3, 7).log_softmax(-1)
    with live_compare(dump_path=tmp_path) as check:
        lengths = torch.tensor([5, 3, 4])
        nn.functional.ctc_loss(losses, torch.randint(1, 7, (3, 5)), torch.tensor([9] * 3), lengths)
    found = {row["result"]: row for row in csv_rows(check.table_path) if "ctc" in row["operator"]}
    assert found["output.0"]["verdict"] in ("exact", "rounding")
    assert not found["output.1"]["verdict"]
