# SPDX-License-Identifier: Apache-2.0
"""Recomputation inside a backward is seen, also where torch cannot redispatch a call."""

import functools
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from builders.recordings import read
from msprobe.capture.session import reset_session, use_session
from msprobe.config import load_config
from msprobe.pytorch.run import Run

pytestmark = pytest.mark.torch

ENTRY = torch.autograd._engine_run_backward


@pytest.fixture
def without_redispatch(tmp_path):
    """A run on a torch that is taken to have no `redispatch_function`."""
    reset_session()
    config = load_config(None, task="statistics", dump_path=str(tmp_path), level="mix")
    run = Run(config, redispatch=None)
    use_session(run.session)
    yield run
    reset_session()


def step(run, model, action):
    run.start((model,), None, None)
    action()
    run.stop()
    run.step()


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant) * 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_calls_are_recognised_and_gradients_belong_to_the_first_run(
    reentrant, without_redispatch, tmp_path
):
    model = Checkpointed(reentrant=reentrant)
    x = torch.randn(2, 4, requires_grad=True)
    step(without_redispatch, model, lambda: model(x).sum().backward())
    records = read(tmp_path, 0, "rank", "dump.json")["data"]
    linear = records["Functional.linear.0.forward"]
    assert linear["recomputed"] == 1
    assert "Functional.linear.1.forward" not in records
    backward = records["Functional.linear.0.backward"]
    assert backward["output"][0]["Norm"] == pytest.approx(x.grad.norm().item())
    assert "Module.inner.0.Linear.backward.0" in records
    assert read(tmp_path, 0, "rank", "account.json")["errors"] == {}


def test_all_three_ways_to_start_a_backward_are_observed(without_redispatch, tmp_path):
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return torch.tanh(gradient)

    x = torch.ones(2, requires_grad=True)

    def three():
        Noisy.apply(x).sum().backward()
        torch.autograd.backward(Noisy.apply(x).sum())
        torch.autograd.grad(Noisy.apply(x).sum(), x)

    step(without_redispatch, nn.Identity(), three)
    records = read(tmp_path, 0, "rank", "dump.json")["data"]
    assert len([name for name in records if name.startswith("Torch.tanh")]) == 3


def test_the_function_and_its_replacements_by_others_stay(without_redispatch):
    run, code = without_redispatch, ENTRY.__code__

    @functools.wraps(ENTRY)
    def theirs(*args, **kwargs):
        return ENTRY(*args, **kwargs)

    run.start((nn.Identity(),), None, None)
    assert torch.autograd._engine_run_backward is ENTRY
    assert ENTRY.__code__ is not code
    torch.autograd._engine_run_backward = theirs
    try:
        run.stop()
        run.step()
        assert torch.autograd._engine_run_backward is theirs
        assert ENTRY.__code__ is code
    finally:
        torch.autograd._engine_run_backward = ENTRY


def test_it_is_not_diverted_where_torch_can_redispatch_and_no_loss_is_wanted(tmp_path):
    reset_session()
    code = ENTRY.__code__
    config = load_config(None, task="statistics", dump_path=str(tmp_path), level="L1")
    run = Run(replace(config, facts=False))
    use_session(run.session)
    try:
        run.start((), None, None)
        assert ENTRY.__code__ is code
    finally:
        reset_session()


def test_backward_passes_of_other_threads_run_unobserved(without_redispatch, tmp_path):
    x = torch.ones(2, requires_grad=True)
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def elsewhere():
        checkpoint(inner, x, use_reentrant=False).sum().backward()

    def both():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        torch.sin(x).sum().backward()

    step(without_redispatch, inner, both)
    records = read(tmp_path, 0, "rank", "dump.json")["data"]
    account = read(tmp_path, 0, "rank", "account.json")
    assert not [name for name in records if "linear" in name or "Linear.forward" in name]
    assert "Torch.sin.0.backward" in records
    assert account["errors"] == {}
    assert account["skipped"]["module calls in other threads"] >= 3
