# SPDX-License-Identifier: Apache-2.0
"""`msprobe verify` finds the faults that kernels have: each planted in a sound recording."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from builders.recordings import recording
from msprobe import open_dump
from msprobe.checks.verify_dump import verify_dump

pytestmark = pytest.mark.torch

Tensor = torch.Tensor


class Fault(NamedTuple):
    """A call that is right, and what a faulty kernel would have returned.

    Attributes:
        right: makes the call.
        wrong: returns the faulty result in float64, to be rounded to the type of the recorded one.
        record: whose result is replaced; empty for the forward record of the call.
    """

    right: Callable[[Tensor, Tensor], Tensor]
    wrong: Callable[[Tensor, Tensor], Tensor]
    record: str = ""


def _added_up(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the last axis in a narrow type, one term after another."""
    total = torch.zeros(terms.shape[:-1], dtype=dtype)
    for one in terms.to(dtype).unbind(-1):
        total += one
    return total.double()


def _rms(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


FAULTS: Final = {
    "accumulated in bfloat16": Fault(
        lambda x, w: F.linear(x.abs(), w.abs()),
        lambda x, w: _added_up(x.abs()[:, None] * w.abs()[None], torch.bfloat16),
    ),
    "missing eps": Fault(
        lambda x, w: F.rms_norm(x * 2**-9, x.shape[-1:], eps=1e-5), lambda x, w: _rms(x * 2**-9, 0)
    ),
    "sum instead of mean": Fault(lambda x, w: x.mean(0), lambda x, w: x.sum(0)),
    "one row left out of a reduction": Fault(lambda x, w: x.sum(0), lambda x, w: x[:-1].sum(0)),
    "softmax over another axis": Fault(lambda x, w: x.softmax(-1), lambda x, w: x.softmax(0)),
    "attention without its scale": Fault(
        lambda x, w: F.scaled_dot_product_attention(x[None, :, :8], x[None, :, 8:16], w[None]),
        lambda x, w: (x[:, :8] @ x[:, 8:16].T).softmax(-1)[None] @ w[None],
    ),
    "stale buffer": Fault(lambda x, w: torch.exp(x), lambda x, w: torch.exp(x.roll(1, 0))),
    "biased variance": Fault(lambda x, w: x[:4].var(0), lambda x, w: x[:4].var(0, correction=0)),
    "another approximation of gelu": Fault(
        lambda x, w: F.gelu(2 * x), lambda x, w: (2 * x) * torch.sigmoid(1.702 * 2 * x)
    ),
    "gradient times the world size": Fault(
        lambda x, w: F.silu(x), lambda x, w: torch.full_like(x, math.nan), "backward"
    ),
}


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = getattr(torch, request.param)
    return found


def test_planted_faults_are_found(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 512).to(dtype)
    w = torch.randn(16, 512).to(dtype)
    with recording(tmp_path, "L1", "tensor") as run:
        for fault in FAULTS.values():
            with run.step_of():
                leaf = x.clone().requires_grad_()
                result = fault.right(leaf, w)
                result.backward(torch.ones_like(result))
    sound = verify_dump(open_dump(tmp_path), workers=0)
    assert [call.report.name for call in sound.calls if call.is_fault] == []

    for fault, path in zip(FAULTS.values(), _results(tmp_path), strict=True):
        recorded = torch.load(path)
        faulty = recorded.double() * 8 if fault.record else fault.wrong(x.double(), w.double())
        assert faulty.shape == recorded.shape
        path.unlink()  # others may share the file
        torch.save(faulty.to(dtype), path)

    damaged = verify_dump(open_dump(tmp_path), workers=0)
    found = {call.step for call in damaged.calls if call.is_fault}
    assert [name for step, name in enumerate(FAULTS) if step not in found] == []
    last = next(call for call in damaged.calls if call.step == len(FAULTS) - 1 and call.is_fault)
    assert last.worst is not None
    assert last.worst.judgement is not None
    assert last.worst.judgement.factor == 8


def _results(folder: Path) -> Iterator[Path]:
    """Yield the file of the result that each fault replaces."""
    for step, fault in enumerate(FAULTS.values()):
        data = folder / f"step{step}" / "rank" / "dump_tensor_data"
        kind = fault.record or "forward"
        files = sorted(data.glob(f"*.{kind}.output.0.pt"), key=lambda path: path.stat().st_mtime_ns)
        names = [path for path in files if ".clone." not in path.name and "ones" not in path.name]
        yield names[0] if kind == "backward" else names[-1]
