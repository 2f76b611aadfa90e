# SPDX-License-Identifier: Apache-2.0
"""How each step of a recording ended: whole, interrupted or never stopped; also at exit."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

import msprobe
from builders.warm_python import run_warm
from msprobe.capture.session import reset_session
from msprobe.dump.facts import Ended, Ending
from msprobe.pytorch import PrecisionDebugger

WHOLE = Ended(how=Ending.WHOLE)
LEVELS = ["L0", "L1", "mix"]


class Picky(nn.Module):
    """A layer that refuses wide inputs, after it has computed something."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x[:, :4])
        if x.shape[1] > 4:
            raise ValueError("too wide")
        return torch.relu(y)


GOOD, BAD = torch.ones(2, 4), torch.ones(2, 5)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Picky()


@pytest.fixture(params=LEVELS)
def debugger(request, tmp_path):
    yield PrecisionDebugger(dump_path=tmp_path, level=request.param)
    reset_session()


def ending(tmp_path, step=0):
    rank = msprobe.open_dump(tmp_path).step(step).rank()
    ended = rank.facts.ended
    assert rank.account["complete"] is (ended.how is Ending.WHOLE)
    assert (rank.incomplete_reason is None) is (ended.how is Ending.WHOLE)
    return ended


def test_a_usual_step_is_whole(debugger, model, tmp_path):
    debugger.start(model)
    model(GOOD).sum().backward()
    debugger.stop()
    debugger.step()
    assert ending(tmp_path) == WHOLE


def test_a_step_without_stop(debugger, model, tmp_path):
    debugger.start(model)
    model(GOOD).sum().backward()
    debugger.step()
    assert ending(tmp_path).how is Ending.UNSTOPPED


@pytest.mark.parametrize("place", ["handler", "finally", "after"])
def test_a_skipped_batch_is_interrupted_and_the_next_step_is_whole(
    place, debugger, model, tmp_path
):
    for batch in (BAD, GOOD):
        debugger.start(model)
        try:
            model(batch).sum().backward()
        except ValueError:
            if place == "handler":
                debugger.stop()
                debugger.step()
                continue
        finally:
            if place == "finally":
                debugger.stop()
        debugger.stop()
        debugger.step()
    first = ending(tmp_path)
    assert (first.how, first.exception) == (Ending.INTERRUPTED, "ValueError: too wide")
    if msprobe.open_dump(tmp_path).step(0).rank().head.level != "L1":
        assert first.record == "Module.Picky.forward.0"
    assert ending(tmp_path, 1) == WHOLE


def test_a_batch_that_is_tried_again_in_the_same_step_makes_it_whole(debugger, model, tmp_path):
    for batch in (BAD, GOOD):
        debugger.start(model)  # the second one finds the recording open
        try:
            model(batch).sum().backward()
        except ValueError:
            continue
        debugger.stop()
        debugger.step()
    ended = ending(tmp_path)
    assert (ended.how, ended.exception) == (Ending.WHOLE, "ValueError: too wide")
    assert ended.begun_again == [1]


def test_a_start_that_follows_no_stop_of_its_own_step_begins_nothing_again(
    debugger, model, tmp_path
):
    for _ in range(2):
        debugger.start(model)
        model(GOOD).sum().backward()
        debugger.step()
    assert ending(tmp_path, 1).begun_again == []


def test_an_exception_that_the_model_catches_is_no_interruption(debugger, tmp_path):
    class Forgiving(Picky):
        def forward(self, x):
            try:
                y = self.layer(x)
            except RuntimeError:
                y = self.layer(x[:, :4])
            return y

    model = Forgiving()
    debugger.start(model)
    model(BAD).sum().backward()
    debugger.stop()
    debugger.step()
    assert ending(tmp_path).how is Ending.WHOLE


def test_an_exception_in_a_backward_pass(debugger, model, tmp_path):
    class Explodes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no gradient")

    debugger.start(model)
    loss = Explodes.apply(model(GOOD)).sum()
    try:
        loss.backward()
    except RuntimeError:
        model.zero_grad()
    debugger.stop()
    debugger.step()
    ended = ending(tmp_path)
    assert ended.how is Ending.INTERRUPTED
    assert "no gradient" in ended.exception


def test_an_exception_of_the_optimizer_while_the_step_ends(debugger, model, tmp_path):
    def train():
        try:
            debugger.start(model)
            model(GOOD).sum().backward()
            debugger.stop()
            raise ValueError("\nno such number\n---- C++ stack ----\nmain.cc:3")
        finally:
            debugger.step()

    with pytest.raises(ValueError, match="such number"):
        train()
    ended = ending(tmp_path)
    assert ended.how is Ending.INTERRUPTED
    assert ended.exception == "ValueError: no such number"


def test_a_keyboard_interrupt_that_the_program_catches(debugger, model, tmp_path):
    model.layer.register_forward_hook(interrupt)
    debugger.start(model)
    try:
        model(GOOD)
    except KeyboardInterrupt:
        debugger.stop()
        debugger.step()
    ended = ending(tmp_path)
    assert (ended.how, ended.exception) == (Ending.INTERRUPTED, "KeyboardInterrupt")


def interrupt(*_args):
    raise KeyboardInterrupt


def test_training_inside_a_handler_is_whole(debugger, model, tmp_path):
    try:
        int("a fast way")
    except ValueError:
        debugger.start(model)
        model(GOOD).sum().backward()
        debugger.stop()
        debugger.step()
    assert ending(tmp_path) == WHOLE


def test_a_loop_that_ends_by_stop_iteration_is_whole(debugger, model, tmp_path):
    batches = iter([GOOD])
    while True:
        debugger.start(model)
        try:
            batch = next(batches)
        except StopIteration:
            debugger.stop()
            break
        model(batch).sum().backward()
    debugger.step()
    assert ending(tmp_path) == Ended(how=Ending.WHOLE, begun_again=[1])


def test_an_api_that_fails_before_another_way_is_taken(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    try:
        torch.linalg.cholesky(-torch.eye(2))
    except RuntimeError:
        torch.linalg.eigh(torch.eye(2))
    debugger.stop()
    debugger.step()
    debugger.start()
    torch.linalg.eigh(torch.eye(2))
    with suppress(RuntimeError):
        torch.linalg.cholesky(-torch.eye(2))
    debugger.stop()
    debugger.step()
    reset_session()
    assert ending(tmp_path).how is Ending.WHOLE
    last = ending(tmp_path, 1)
    assert (last.how, last.record) == (Ending.INTERRUPTED, "Torch.cholesky.0.forward")


_SCRIPT = """
import sys, torch
from msprobe.pytorch import PrecisionDebugger
torch.set_num_threads(1)
model = torch.nn.Linear(2, 2)
debugger = PrecisionDebugger(config_path=sys.argv[1], dump_path=sys.argv[2])
for number in range(3):
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    {inside}
    debugger.stop()
    {after}
    debugger.step()
"""


# The journal is flushed once a second.
_KILL = "import os, signal, time; time.sleep(1.5); os.kill(os.getpid(), signal.SIGKILL)"

# No hook of torch sees how the call of the module ends.
_INTERRUPT = (
    "model.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)); "
    "model(torch.ones(1, 2))"
)


def run_script(tmp_path, *, inside="pass", after="pass", config="{}"):
    (tmp_path / "config.json").write_text(config)
    program = _SCRIPT.format(inside=inside, after=after)
    return run_warm("-c", program, tmp_path / "config.json", tmp_path / "dump").stderr


@pytest.mark.parametrize(
    ("inside", "after", "how", "exception"),
    [
        ("1 / 0", "pass", Ending.INTERRUPTED, "ZeroDivisionError: division by zero"),
        ("pass", "1 / 0", Ending.INTERRUPTED, "ZeroDivisionError: division by zero"),
        ("raise KeyboardInterrupt", "pass", Ending.INTERRUPTED, "KeyboardInterrupt"),
        ("sys.exit(0)", "pass", Ending.UNSTOPPED, None),
        ("pass", "sys.exit(0)", Ending.WHOLE, None),
        (_INTERRUPT, "pass", Ending.INTERRUPTED, "KeyboardInterrupt"),
        (_KILL, "pass", Ending.KILLED, None),
    ],
)
def test_the_end_of_the_process(inside, after, how, exception, tmp_path):
    run_script(tmp_path, inside=inside, after=after, config='{"level": "mix"}')
    ended = msprobe.open_dump(tmp_path / "dump").step(0).rank().facts.ended
    assert (ended.how, ended.exception) == (how, exception)
    assert not ended.stepped or how is Ending.KILLED


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            '{"step": [5, "7-9"]}',
            "nothing was recorded: the configuration wants step 5, 7-9, "
            "and start() was called in steps 0 to 2",
        ),
        (
            '{"dump_enable": false}',
            "nothing was recorded: dump_enable was not true in steps 0 to 2, "
            "and no one asked (msprobe attach, SIGUSR1)",
        ),
        (
            '{"statistics": {"list": ["nothing"]}}',
            "nothing was recorded: no call was kept: ",
        ),
        ('{"rank": [3]}', ""),
        ("{}", ""),
    ],
)
def test_a_run_that_recorded_nothing_says_why(config, text, tmp_path):
    stderr = run_script(tmp_path, config=config)
    assert stderr.count("nothing was recorded") == bool(text), stderr
    assert text in stderr
