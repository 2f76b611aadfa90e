# SPDX-License-Identifier: Apache-2.0
"""The hooks of the task `signature`: which calls they see, and when they are away."""

from __future__ import annotations

import copy
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_code
from torch.optim import optimizer as optimizer_code

from msprobe.capture.session import reset_session
from msprobe.dump.signature_file import FOLDER, SignatureFile
from msprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    reset_session()


class Net(nn.Module):
    """A model that looks at torch's hooks while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, fails: type[BaseException] | None = None) -> torch.Tensor:
        x = self.first(x)
        self.seen.append(len(module_code._global_forward_pre_hooks))
        if fails is not None:
            raise fails
        return self.second(x)


def debugger(folder: Path, **settings: Any) -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=folder, task="signature", **settings)


def data_of(folder: Path, step: int = 0) -> int:
    reset_session()
    with SignatureFile(folder / FOLDER / "rank.msig") as file:
        return int(file.step(step).head["data"])


def checksum_of(*batches: torch.Tensor) -> int:
    """Return what a step's data should be, made anew from the documented form."""
    found = 0
    for batch in batches:
        content = f"{zlib.crc32(batch.numpy().tobytes()):08x}"
        text = repr(("input.0", list(batch.shape), str(batch.dtype), content))
        found = zlib.crc32(text.encode(), found)
    return found


def test_no_hook_of_torch_slows_the_modules_of_a_model(tmp_path: Path) -> None:
    model, batch = Net(), torch.randn(2, 4)
    probe = debugger(tmp_path)
    for _ in range(2):
        probe.start(model)
        model(batch).sum().backward()
        model(batch).sum().backward()
        assert not model._forward_hooks
        probe.stop()
        assert not module_code._global_forward_pre_hooks
        probe.step()
    assert model.seen == [0, 0, 0, 0]


@pytest.mark.parametrize("has_hooks", [False, True])
def test_every_call_of_the_model_is_seen_also_after_an_exception(
    tmp_path: Path, has_hooks: bool
) -> None:
    model = Net()
    if has_hooks:
        model.register_forward_pre_hook(lambda *_: None)
        model.register_forward_hook(lambda *_: None)
    batches = torch.randn(5, 2, 4).unbind()
    probe = debugger(tmp_path)
    probe.start(model)
    model(batches[0])
    try:
        model(batches[1], fails=RuntimeError)
    except RuntimeError:
        model(batches[2])  # while the exception, and torch's frames with it, is alive
    with pytest.raises(KeyboardInterrupt):
        model(batches[3], fails=KeyboardInterrupt)
    probe.start(model)  # a cell of a notebook, run again
    model(batches[4])
    probe.stop()
    assert len(model._forward_hooks) == has_hooks
    probe.step()
    assert data_of(tmp_path) == checksum_of(*batches)


def test_several_models_of_which_one_is_in_another_are_all_seen(tmp_path: Path) -> None:
    model, batch = Net(), torch.randn(2, 4)
    probe = debugger(tmp_path)
    with torch.no_grad():
        probe.start([model, model.first])
        model(batch)
        probe.step()
    assert data_of(tmp_path) == checksum_of(batch, batch)


def test_copies_of_a_model_that_are_made_while_it_runs_work(tmp_path: Path) -> None:
    copies: list[nn.Module] = []

    class Copying(Net):
        def forward(self, x: torch.Tensor, fails: None = None) -> torch.Tensor:
            if not copies:
                copies.append(copy.deepcopy(self.first))
                copies.append(copy.deepcopy(self))
                copies.append(pickle.loads(pickle.dumps(self._forward_hooks)))
            return super().forward(x, fails)

    model, batch = Copying(), torch.randn(2, 4)
    probe = debugger(tmp_path)
    probe.start(model)
    expected = model(batch)
    assert torch.equal(copies[1](batch), expected)
    model(batch)
    probe.step()
    assert data_of(tmp_path) == checksum_of(batch, batch)


def hooks_of_torch() -> tuple[int, Any, Any]:
    return (
        len(optimizer_code._global_optimizer_pre_hooks),
        torch.nn.utils.clip_grad_norm_.__wrapped__.__code__,
        torch.autograd._engine_run_backward.__code__,
    )


@pytest.mark.parametrize("steps", [[], [1, 2]])
def test_hooks_stay_between_the_wanted_steps_and_go_with_the_last(
    tmp_path: Path, steps: list[int]
) -> None:
    before = hooks_of_torch()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = debugger(tmp_path, step=steps)
    stay = []
    for _ in range(5):
        probe.start(model)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        probe.stop()
        probe.step()
        stay.append(hooks_of_torch() != before)
    assert stay == [not steps or step == 1 for step in range(5)]
    reset_session()
    assert hooks_of_torch() == before


def test_what_happens_between_steps_is_no_part_of_them(tmp_path: Path) -> None:
    def train(folder: Path, evaluates: bool) -> list[bytes]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        probe = debugger(folder)
        for _ in range(3):
            probe.start(model)
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            probe.stop()
            probe.step()
            optimizer.zero_grad()
            if evaluates:
                model(torch.zeros(2, 4)).sum().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.zero_grad()
                with pytest.raises(ValueError, match="planted"):
                    optimizer.step(planted)
        reset_session()
        with SignatureFile(folder / FOLDER / "rank.msig") as file:
            return [
                file.step(step).entries.tobytes() + file.heads[step].tobytes() for step in (0, 1)
            ]

    def planted() -> float:
        raise ValueError("planted")

    assert train(tmp_path / "with", True) == train(tmp_path / "without", False)


def test_steps_that_begin_in_the_closure_of_an_optimizer_have_its_gradients(
    tmp_path: Path,
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = debugger(tmp_path)

    def closure() -> torch.Tensor:
        probe.start(model)
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        probe.stop()
        probe.step()
    reset_session()
    with SignatureFile(tmp_path / FOLDER / "rank.msig") as file:
        for step in range(3):
            assert (file.step(step).entries["checksum"][1] != 0).all()
            assert set(file.step(step).settings) == {"0.SGD", "autocast", "clipping"}
