# SPDX-License-Identifier: Apache-2.0
"""Plain calls are recorded in C, all others in Python: the files are the same either way.

A further sink of the session, which does nothing, has every call recorded in Python.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import weakref
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

from builders.recordings import Recording, recording
from msprobe.capture.events import CallSink
from msprobe.capture.session import current_session
from msprobe.pytorch.interception.function_mode import ApiObserver

pytestmark = pytest.mark.torch


def _several_results(x: Tensor) -> Tensor:
    """Make calls with several results, with keywords, and attention with and without chance."""
    parts = [*torch.unbind(x, 1), *torch.split(x, 1)]
    used, _unused = (x * 1).chunk(2)
    own, _shown = (x * 2).view(-1).split([3, 5])
    spread, middle = torch.var_mean(x, 1)
    size = torch.linalg.slogdet(x[:, :2] + 10 * torch.eye(2))[1]
    weight = torch.ones(4, requires_grad=True)
    normed = nn.functional.layer_norm(input=x, normalized_shape=(4,), weight=weight)
    heads = x.view(1, 1, 2, 4)
    attention = nn.functional.scaled_dot_product_attention
    outputs = [attention(heads, heads, heads, None, 0.0), attention(heads, heads, heads)]
    outputs += [attention(heads, heads, heads, dropout_p=p) for p in (0.0, 0.5)]
    total = torch.zeros(())
    for part in (
        *parts,
        used,
        own,
        spread,
        middle,
        size,
        *torch.linalg.qr(x.t()),
        normed,
        *outputs,
    ):
        total = total + part.sum()
    return total


class Odd(nn.Module):
    """Calls that are plain, calls that are not, and calls that turn out not to be."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5)
        self.register_parameter("none", None)
        self.raises = nn.Bilinear(4, 4, 2)

    def forward(self, x: Tensor, *, scale: float, note: str) -> Tensor:
        hidden = self.drop(self.norm(self.fc(x)))
        first, second = hidden.chunk(2, dim=-1)
        joined = torch.cat([first, (second * 1).relu_()], dim=-1)
        torch.nan_to_num(torch.tensor([scale, 1.0, float("inf")]), nan=0.0, posinf=float("inf"))
        with contextlib.suppress(RuntimeError):
            self.raises(x, torch.ones(3))
        with contextlib.suppress(RuntimeError):
            torch.matmul(x, torch.ones(3, 3))
        several = _several_results(joined)
        imaginary = torch.complex(joined.detach(), joined.detach()).conj()
        torch.abs(imaginary)
        torch.add(torch.ones(2, device="meta"), 1)
        torch.max(joined.detach(), 0)
        with torch.no_grad():
            torch.mul(joined, joined.t().contiguous().t())
        out = torch.empty(2, 4)
        torch.add(x.detach(), 1, out=out)
        x.view(-1).view((2, 4)).expand([3, 2, 4]).reshape(torch.Size((6, 4)))
        return joined.sum() + several + torch.nn.functional.mse_loss(joined, x, reduction="mean")


def files_of(
    folder: Path, level: str, task: str = "statistics", *, in_python: bool
) -> dict[str, bytes]:
    """The files of two steps, without the folder's name."""
    torch.manual_seed(0)
    model = Odd()
    data = torch.randn(2, 4)
    with recording(folder, level, task) as run:
        if in_python:
            session = current_session()
            assert session is not None
            session.calls.add(CallSink())
        for _ in range(2):
            model.zero_grad()
            with run.step_of(model):
                loss = model(data, scale=float("nan"), note="π\ud800")
                loss.backward(retain_graph=True)
                loss.backward()
    found = {}
    for path in sorted(folder.glob("step*/rank/*.json")):
        if path.name in ("dump.json", "construct.json", "stack.json"):
            content = path.read_bytes().replace(str(folder).encode(), b"")
            found[str(path.relative_to(folder))] = content
    return found


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_records_are_the_same_in_c_and_in_python(level: str, tmp_path: Path) -> None:
    quick, slow = (  # in one line, as their stacks name it
        files_of(tmp_path / name, level, in_python=name == "slow") for name in ("quick", "slow")
    )
    assert len(quick) == 6
    assert quick == slow


@pytest.mark.parametrize("task", ["nan_check", "overflow_check"])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_same_is_found_in_c_and_in_python(level: str, task: str, tmp_path: Path) -> None:
    quick, slow = (  # in one line, as their stacks name it
        {
            path: sorted(json.loads(content).get("data", ()))
            for path, content in files_of(
                tmp_path / name, level, task, in_python=name == "slow"
            ).items()
            if path.endswith("dump.json")
        }
        for name in ("quick", "slow")
    )
    assert any(quick.values())
    assert quick == slow


def test_a_sink_that_comes_in_the_middle_of_a_step_sees_the_calls_from_then_on(
    tmp_path: Path,
) -> None:
    class Names(CallSink):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def begin(self, call: object, stack: object) -> None:
            self.seen.append(call.forward_name)  # type: ignore[attr-defined]

    names = Names()
    with recording(tmp_path, "L1") as run:
        session = current_session()
        assert session is not None
        with run.step_of(nn.Identity()):
            value = torch.ones(2).relu()
            session.calls.add(names)
            value = value.relu()
            session.calls.remove(names)
            value.relu()
        assert [name for name in run.records() if "relu" in name] == [
            f"Tensor.relu.{number}.forward" for number in range(3)
        ]
    assert names.seen == ["Tensor.relu.1.forward"]


def test_a_call_that_raised_is_collected_with_an_argument_that_holds_its_exception(
    tmp_path: Path,
) -> None:
    class Owner:
        error: RuntimeError | None = None

    def call_and_fail() -> weakref.ref[Owner]:
        weight, owner = torch.ones(3, 3), Owner()
        weight.owner = owner  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError):
            try:
                torch.matmul(torch.ones(2, 5), weight)
            except RuntimeError as error:
                owner.error = error
                raise
        return weakref.ref(owner)

    with recording(tmp_path, "L1") as run, run.step_of(nn.Identity()):
        owners = [call_and_fail()]
        with torch.no_grad():
            owners.append(call_and_fail())
        gc.collect()
        assert [owner() for owner in owners] == [None, None]


def test_an_interruption_while_a_line_is_added_is_not_swallowed(tmp_path: Path) -> None:
    class Interrupted:
        def record(self, *_ignored: object) -> int:
            raise KeyboardInterrupt

    with recording(tmp_path, "L1") as run, run.step_of(nn.Identity()):
        session = current_session()
        assert session is not None
        assert session.dump is not None
        torch.ones(2).relu()
        lines, session.dump.lines = session.dump.lines, Interrupted()  # type: ignore[assignment]
        try:
            with pytest.raises(KeyboardInterrupt):
                torch.ones(2)
        finally:
            session.dump.lines = lines


def in_python(run: Recording, model: nn.Module, data: Tensor) -> list[str]:
    """Return the functions whose calls the handler in Python is given in a step."""
    seen: list[str] = []
    code = ApiObserver.__torch_function__.__code__

    def look(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is code:
            seen.append(frame.f_locals["func"].__name__)

    with run.step_of(model):
        sys.setprofile(look)
        try:
            model(data)
        finally:
            sys.setprofile(None)
    return seen


def test_plain_calls_that_were_seen_before_do_not_reach_python(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.grad = None
            hidden = torch.nn.functional.layer_norm(x * 2, [x.shape[-1]])
            if self.training:
                hidden = torch.relu_(hidden)
            return torch.nn.functional.dropout(hidden.t(), 0.5, self.training)

    model, data = Plain(), torch.randn(2, 4)
    with recording(tmp_path, "L1") as run:
        seen = []
        for training in (True, True, False, False, False):
            model.train(training)
            seen.append(in_python(run, model, data))
    assert set(seen[0]) > {"layer_norm", "mul", "t"}
    assert seen[1] == ["relu_", "dropout"]
    assert seen[-1] == ["dropout"]


@pytest.mark.parametrize("task", ["statistics", "nan_check"])
def test_an_exception_leaves_a_plain_call_as_it_was_raised(task: str, tmp_path: Path) -> None:
    data = torch.ones(2, 3)
    with recording(tmp_path, "L1", task) as run, run.step_of(nn.Identity()):
        for _ in range(2):  # in Python the first time
            with pytest.raises(RuntimeError, match="cannot be multiplied") as raised:
                torch.matmul(data, data)
            assert raised.value.__context__ is None
            assert sys.exc_info() == (None, None, None)
        session = current_session()
        assert session is not None
        ended = session.current.ending.judge()
        assert ended.record == "Torch.matmul.1.forward"
        assert ended.exception is not None
        assert ended.exception.startswith("RuntimeError: mat1 and mat2")
        assert raised.traceback[-1].path == Path(__file__)


def test_a_failure_before_a_plain_call_is_noted_and_the_call_runs(tmp_path: Path) -> None:
    data = torch.ones(2)
    with recording(tmp_path, "L1") as run, run.step_of(nn.Identity()):
        session = current_session()
        assert session is not None
        for number in range(3):
            if number == 2:
                del session.muted
            assert torch.mul(data, 2).tolist() == [2.0, 2.0]
        session.muted = 0
        assert session.account.errors
