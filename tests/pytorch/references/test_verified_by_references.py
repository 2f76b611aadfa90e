# SPDX-License-Identifier: Apache-2.0
"""Recorded calls of operators without a plain implementation are judged by their references."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

import msprobe  # noqa: E402
from builders.recordings import recording  # noqa: E402
from msprobe.checks.judging import Verdict  # noqa: E402
from msprobe.checks.verify_call import VerifyOptions, verify_call  # noqa: E402
from msprobe.dump.rank_view import RankView  # noqa: E402
from msprobe.replay import references  # noqa: E402
from msprobe.replay.recorded_calls import call_names, recorded_call  # noqa: E402
from msprobe.replay.runner import runner_for  # noqa: E402
from msprobe.replay.tensors import TensorSource  # noqa: E402

pytestmark = pytest.mark.torch


@torch.library.custom_op("golden_tests::rms_norm", mutates_args=())
def fused_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A kernel; on the device that it is for, nothing of it can be run on the CPU."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


@torch.library.custom_op("golden_tests::without_eps", mutates_args=())
def without_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A kernel that forgets epsilon."""
    return functional.rms_norm(x, (x.shape[-1],), weight, 0.0)


class Halved(torch.autograd.Function):
    """x·factor whose gradient lacks the half of it."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor / 2, None


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(references, "REGISTERED", {})
    torch.manual_seed(23)


def record(program, folder):
    with recording(folder, "L1", "tensor") as run, run.step_of():
        program()
    return RankView(folder / "step0" / "rank")


def verdicts(view):
    """Return the verdict of each record, and the reason where there is none."""
    runner, found = runner_for("pytorch"), {}
    for name in call_names(view):
        call = recorded_call(view, name)
        report = verify_call(call, runner, TensorSource(view), VerifyOptions())
        found[call.name] = report.reason
        for row in report.rows:
            found[row.record] = row.judgement and row.judgement.verdict
    return found


def test_a_kernel_of_ones_own(tmp_path):
    @msprobe.golden("torch.ops.golden_tests.rms_norm", "torch.ops.golden_tests.without_eps")
    def rms_norm(x, weight, eps):
        return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()

    def program():
        x, weight = torch.randn(4, 8) * 0.01, torch.randn(8)
        fused_rms_norm(x, weight, 1e-5)
        without_eps(x, weight, 1e-5)

    found = verdicts(record(program, tmp_path))
    assert found["golden_tests.rms_norm.0.forward"] in (Verdict.EXACT, Verdict.ROUNDING)
    assert found["golden_tests.without_eps.0.forward"] is Verdict.WRONG


def test_a_function_whose_backward_is_wrong(tmp_path):
    @msprobe.golden(Halved)
    def scaled(x, factor):
        return x * factor

    def program():
        x = torch.randn(4, requires_grad=True)
        Halved.apply(x, 3.0).sum().backward()

    found = verdicts(record(program, tmp_path))
    assert found["Autograd.Halved.0.forward"] is Verdict.EXACT
    assert found["Autograd.Halved.0.backward"] is Verdict.WRONG


class Doubled(torch.nn.Module):
    """A module that nothing is recorded inside of."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x * self.weight * 2


def test_a_module_by_its_parameters(tmp_path):
    model = Doubled()
    with recording(tmp_path, "L0", "tensor") as run, run.step_of(model):
        model(torch.randn(3, 4, requires_grad=True)).sum().backward()
    view = RankView(tmp_path / "step0" / "rank")
    msprobe.golden(Doubled)(lambda x, weight: x * weight * 2)
    found = verdicts(view)
    assert found["Module.Doubled.forward.0"] in (Verdict.EXACT, Verdict.ROUNDING), found
    assert found["Module.Doubled.backward.0"] in (Verdict.EXACT, Verdict.ROUNDING)
    msprobe.golden(Doubled)(lambda x, weight: x * weight)
    assert verdicts(view)["Module.Doubled.forward.0"] is Verdict.WRONG


def test_functions_of_torch_are_judged_by_references_that_come_with_msprobe(tmp_path):
    def program():
        q = torch.randn(2, 4, 5, 8, dtype=torch.bfloat16, requires_grad=True)
        out = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        normed = functional.rms_norm(out, (8,), torch.ones(8, dtype=torch.bfloat16))
        target = torch.randint(0, 8, (40,))
        target[3] = -100
        logits = normed.reshape(40, 8).float()
        functional.cross_entropy(logits, target, label_smoothing=0.1).backward()

    found = verdicts(record(program, tmp_path))
    good = (Verdict.EXACT, Verdict.ROUNDING)
    for name in ("scaled_dot_product_attention", "rms_norm", "cross_entropy"):
        assert found[f"Functional.{name}.0.forward"] in good, (name, found)
        assert found[f"Functional.{name}.0.backward"] in good, (name, found)


def test_a_fused_update_is_judged_by_what_it_wrote(tmp_path):
    def program():
        params = [torch.randn(5) for _ in range(2)]
        states = [[torch.rand(5) for _ in params] for _ in range(2)]
        torch._fused_adamw_(
            params, [torch.randn(5) for _ in params], *states, [], [torch.tensor(3.0)] * 2,
            lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.01, eps=1e-8, amsgrad=False,
            maximize=False,
        )  # fmt: skip

    found = verdicts(record(program, tmp_path))
    assert found["Torch._fused_adamw_.0.forward"] in (Verdict.EXACT, Verdict.ROUNDING), found
