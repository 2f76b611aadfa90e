# SPDX-License-Identifier: Apache-2.0
"""`msprobe verify` on a CPU, of what was recorded on an accelerator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from builders.recordings import recording
from msprobe import open_dump
from msprobe.checks.judging import Verdict
from msprobe.checks.verify_dump import VerifiedDump, verify_dump

pytestmark = pytest.mark.torch


def recorded(folder: Path, program: Callable[[], object], **common: object) -> Path:
    torch.manual_seed(0)
    with recording(folder, "L1", "tensor", **common) as run:
        run.debugger.start()
        program()
        run.debugger.stop()
        run.debugger.step()
    return folder / "step0" / "rank"


def changed(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


def verdicts(rank: Path) -> dict[str, Verdict | None]:
    return {call.report.name: call.report.verdict for call in verified(rank).calls}


def verified(rank: Path) -> VerifiedDump:
    return verify_dump(open_dump(rank), workers=0)


def with_factors_of(bits: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rounds float32 numbers to so many bits of mantissa, as an accelerator does with factors."""
    drop = 23 - bits

    def rounded(values: torch.Tensor) -> torch.Tensor:
        patterns = values.view(torch.int32) + (1 << (drop - 1))
        return (patterns & ~((1 << drop) - 1)).view(torch.float32)

    return rounded


@pytest.mark.parametrize(
    ("api", "on_cuda", "precision", "verdict"),
    [
        ("conv1d", True, "highest", Verdict.ROUNDING),  # cuDNN has TF32 by default
        ("conv1d", False, "highest", Verdict.WRONG),
        ("linear", True, "high", Verdict.ROUNDING),
        ("linear", True, "highest", Verdict.WRONG),
    ],
)
def test_products_of_tf32_are_right_where_the_settings_allow_them(
    tmp_path: Path, api: str, on_cuda: bool, precision: str, verdict: Verdict
) -> None:
    function: Any = getattr(F, api)
    shapes = {"conv1d": ((2, 16, 30), (8, 16, 3)), "linear": ((30, 48), (8, 48))}[api]
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in shapes]
    rank = recorded(tmp_path, lambda: function(*args))
    path = next((rank / "dump_tensor_data").glob("*output.0.pt"))
    torch.save(function(*map(with_factors_of(10), args)), path)

    def settings(text: str) -> str:
        facts = json.loads(text)
        facts["settings"]["torch.float32_matmul_precision"] = precision
        if on_cuda:
            facts["random"]["cuda:0"] = "0"
        return json.dumps(facts)

    changed(rank / "facts.json", settings)
    assert set(verdicts(rank).values()) == {verdict}


def test_devices_and_types_of_an_accelerator_are_taken_for_those_of_the_cpu(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(4, 8, device="cpu") / 3
        x.to(torch.device("cpu"), torch.bfloat16)
        x.to(device="cpu", dtype=torch.float16, non_blocking=True)
        x.type("torch.DoubleTensor")
        x.new_zeros((2, 2), device="cpu")
        torch.arange(5, device=torch.device("cpu"))

    rank = recorded(tmp_path, program)

    def on_cuda(text: str) -> str:
        return text.replace('"cpu"', '"cuda:0"').replace("torch.Double", "torch.cuda.Double")

    changed(rank / "dump.json", on_cuda)
    assert '"cuda:0"' in (rank / "dump.json").read_text()
    found = verdicts(rank)
    assert len(found) == 7
    assert set(found.values()) == {Verdict.EXACT}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_of_fused_and_foreach_optimizers_are_judged(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 5), torch.randn(5)]
    params = [one.to(dtype).requires_grad_() for one in weights]
    optimizers = [
        torch.optim.AdamW(params, fused=True),
        torch.optim.Adam(params, fused=True, amsgrad=True),
        torch.optim.AdamW(params, foreach=True),
    ]

    def program() -> None:
        for one in params:
            one.grad = torch.ones_like(one) / 3
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for one in optimizers:
            one.step()

    found = verified(recorded(tmp_path, program, optimizer_apis=True))
    names = {call.report.name.rsplit(".", 2)[0] for call in found.calls}
    assert {"Torch._fused_adamw_", "Torch._fused_adam_", "Torch._foreach_div_"} <= names
    assert found.judged == len(found.calls), found.not_judged
    assert not [call for call in found.calls if call.is_fault]


def test_flash_attention_of_cuda_is_judged_by_its_reference(tmp_path: Path) -> None:
    """An operator that no CPU has, as its record looks: nine outputs, one of them judged."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 16, 8).bfloat16() for _ in range(3))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    rank = recorded(tmp_path, lambda: kernel(query, key, value, 0.0, True))

    def as_on_cuda(text: str) -> str:
        tree = json.loads(text)
        ((name, record),) = tree["data"].items()
        tree["data"] = {name.replace("_for_cpu", ""): record}
        record["output"] += [None, None, {"type": "int", "value": 16}, {"type": "int", "value": 16}]
        return json.dumps(tree)

    changed(rank / "dump.json", as_on_cuda)
    (call,) = verified(rank).calls
    assert call.report.name == "Aten._scaled_dot_product_flash_attention.0.forward"
    judged = [row for row in call.report.rows if row.judgement is not None]
    assert [row.slot for row in judged] == ["output.0", "output.1"]
    assert not call.is_fault
    damaged = next((rank / "dump_tensor_data").glob("*output.0.pt"))
    torch.save(torch.load(damaged) * 1.25, damaged)
    (call,) = verified(rank).calls
    assert call.is_fault
