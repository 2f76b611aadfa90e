# SPDX-License-Identifier: Apache-2.0
"""Forked children record nothing and leave the parent's dump alone; other threads are counted."""

import os
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.utils.data import DataLoader, Dataset

from builders.recordings import Setting, observed, read
from builders.warm_python import run_warm
from msprobe.capture.call import Call
from msprobe.capture.session import current_session
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.values.memo import TENSORS, new_memo
from msprobe.pytorch.values.random_state import RandomWatch

pytestmark = pytest.mark.torch

MIX = Setting("mix", "tensor")


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Computing(Dataset):
    """Its items are made with modules, APIs and custom functions, in the worker."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 4

    def __getitem__(self, index):
        x = torch.full((2,), float(index), requires_grad=True)
        Doubled.apply(self.model(x)).sum().backward()
        return torch.erf(x.grad)


def load_with_forked_workers(folder):
    """Record one step that loads its data in forked workers; return its records and account."""
    model = nn.Linear(2, 2)
    with observed(folder, MIX) as run:
        with run.step_of(model):
            loader = DataLoader(Computing(model), num_workers=2, multiprocessing_context="fork")
            for batch in loader:
                model(batch)
        return run.records(), run.account()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_that_are_forked_while_capturing_record_nothing(tmp_path):
    # In a fresh process: after backward passes in several threads PyTorch refuses those of forks.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        records, account = fresh.submit(load_with_forked_workers, tmp_path).result(timeout=120)
    names = list(records)
    assert not [name for name in names if "erf" in name or "Doubled" in name]
    assert [name for name in names if name.startswith("Module.Linear.forward")] == [
        f"Module.Linear.forward.{n}" for n in range(4)
    ]
    assert account["complete"]
    assert sorted(one.name for one in tmp_path.glob("step*")) == ["step0"]
    assert not list(tmp_path.rglob("journal*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_uses_the_debugger_and_exits_normally_does_no_harm(tmp_path):
    script = textwrap.dedent(
        """
        import os, sys, torch
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1", task="statistics")
        debugger.start()
        torch.relu(torch.ones(2))
        child = os.fork()
        if child == 0:
            torch.erf(torch.ones(2))
            debugger.stop()
            debugger.step()
            debugger.start()
            torch.erf(torch.ones(2))
            sys.exit(0)  # runs what is registered for the exit
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        torch.sin(torch.ones(2))
        debugger.stop()
        debugger.step()
        """
    )
    done = run_warm("-c", script, tmp_path)
    assert done.returncode == 0, done.stderr
    names = list(read(tmp_path, 0, "rank", "dump.json")["data"])
    assert [name for name in names if "ones" not in name] == [
        "Torch.relu.0.forward",
        "Torch.sin.0.forward",
    ]
    assert read(tmp_path, 0, "rank", "account.json")["complete"]
    assert sorted(one.name for one in tmp_path.glob("step*")) == ["step0"]


def test_other_threads_run_unobserved_and_are_counted(tmp_path):
    model, other = nn.Linear(2, 2), nn.Linear(3, 3)

    def elsewhere():
        Doubled.apply(other(torch.ones(3))).sum().backward()

    with observed(tmp_path, MIX) as run:
        with run.step_of(nn.ModuleList([model, other])):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            model(torch.ones(2))
        names = list(run.records())
        account = run.account()
    assert "Module.0.Linear.forward.0" in names
    assert not [name for name in names if "Module.1" in name and "parameters_grad" not in name]
    assert not [name for name in names if "Doubled" in name]
    assert account["skipped"]["module calls in other threads"] == 1
    assert account["errors"] == {}
    assert other.weight.grad is not None


def test_backward_passes_in_many_threads_at_once_keep_their_gradients(tmp_path):
    # As on several devices, where the engine runs hooks in a thread for each.
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    with observed(tmp_path, MIX) as run:
        with run.step_of(model):
            losses = [model(torch.full((4, 8), 0.1 * k)).sum() * k for k in range(24)]
            threads = [threading.Thread(target=loss.backward) for loss in losses]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        records = run.records()
        account = run.account()
    assert account["errors"] == {}
    for k in range(24):
        (gradient,) = records[f"Functional.linear.{2 * k + 1}.backward"]["input"]
        assert gradient["Max"] == gradient["Min"] == k


def test_a_model_that_ran_in_another_thread_only_is_not_complete(tmp_path):
    model = nn.Linear(3, 3)
    with observed(tmp_path, Setting("L0", "statistics")) as run:
        with run.step_of(model):
            thread = threading.Thread(target=model, args=(torch.ones(3),))
            thread.start()
            thread.join()
        account = run.account()
    assert account["complete"] is False
    assert "a module in another thread ran, and no call of the model was seen" in account["notes"]


def test_gradients_alone_do_not_make_up_for_a_model_that_ran_in_another_thread(tmp_path):
    model, made = nn.Linear(3, 3), []
    with observed(tmp_path, Setting("L0", "statistics")) as run:
        with run.step_of(model):
            thread = threading.Thread(target=lambda: made.append(model(torch.ones(3))))
            thread.start()
            thread.join()
            made.pop().sum().backward()
        assert list(run.records()) == ["Module.Linear.parameters_grad"]
        assert run.account()["complete"] is False


@pytest.mark.parametrize("called", ["", "start", "start step", "refused"])
def test_the_end_of_the_program_says_what_was_never_called(called, tmp_path):
    script = """
import os, sys
from msprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1")
for method in sys.argv[2].split():
    try:
        debugger.start("no model") if method == "refused" else getattr(debugger, method)()
    except ValueError:
        pass
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""
    done = run_warm("-c", script, tmp_path, called)
    assert done.returncode == 0
    assert done.stderr.count("start() was never called") == (called == "")
    assert done.stderr.count("step() was never called") == (called == "start")
    assert "nothing was recorded: " not in done.stderr


class InTwoThreads(nn.Module):
    """Its forward lets another thread run the same module from begin to end."""

    def forward(self, x, *, alone=False):
        if not alone:
            other = threading.Thread(target=self, args=(x + 1,), kwargs={"alone": True})
            other.start()
            other.join()
        return torch.erf(x) * 2


def test_a_module_that_another_thread_runs_meanwhile_keeps_its_own_record(tmp_path):
    model = InTwoThreads()
    with observed(tmp_path, MIX) as run:
        with run.step_of(model):
            out = model(torch.zeros(3) + 0.5)
        records = run.records()
        account = run.account()
        parents = read(tmp_path, 0, "rank", "construct.json")
    assert account["skipped"] == {"module calls in other threads": 1}
    assert records["Module.InTwoThreads.forward.0"]["output"][0]["Max"] == out.max().item()
    assert parents["Torch.erf.0.forward"] == "Module.InTwoThreads.forward.0"


def modes_here():
    """How many modes of functions and of operators this thread has on its stacks."""
    return torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()


@pytest.mark.parametrize("level", ["L1", "mix", "L2"])
def test_a_recording_of_the_main_thread_that_another_thread_stops_leaves_no_mode(level, tmp_path):
    model = nn.Linear(2, 2)
    with observed(tmp_path, Setting(level, "statistics")) as run:
        for _ in range(2):
            run.debugger.start(model)
            model(torch.ones(2))
            stopping = threading.Thread(target=run.debugger.stop)
            stopping.start()
            stopping.join()
            assert modes_here() == 0
            assert sys.getprofile() is None
            torch.erf(torch.ones(2))
            run.debugger.step()
        assert [len([n for n in run.records(step) if "erf" in n]) for step in (0, 1)] == [0, 0]
        assert len(run.records(0)) == len(run.records(1)) > 0


@pytest.mark.parametrize("level", ["L1", "mix", "L2"])
def test_a_recording_of_a_thread_that_the_main_thread_stops_leaves_no_mode(level, tmp_path):
    model = nn.Linear(2, 2)
    started, stopped, seen = threading.Event(), threading.Event(), []

    def training(run):
        run.debugger.start(model)
        model(torch.ones(2))
        started.set()
        stopped.wait()
        x = torch.erf(torch.ones(2))
        seen.append(modes_here())
        seen.append(x + x)
        seen.append(sys.getprofile())

    with observed(tmp_path, Setting(level, "statistics")) as run:
        thread = threading.Thread(target=training, args=(run,))
        thread.start()
        started.wait()
        run.debugger.stop()
        if level == "mix":  # the main thread records on
            run.debugger.start(model)
            torch.sin(torch.ones(2))
        stopped.set()
        thread.join()
        run.debugger.stop()
        run.debugger.step()
        names = list(run.records())
    assert seen[0] == 0
    assert seen[2] is None
    assert not [name for name in names if "erf" in name]
    assert ("Torch.sin.0.forward" in names) == (level == "mix")


def test_a_profiler_of_the_users_is_left_alone(tmp_path):
    events = []
    started, stopped = threading.Event(), threading.Event()

    def training(run):
        run.debugger.start()
        started.set()
        stopped.wait()
        sys.setprofile(lambda *_: events.append(1))
        torch.erf(torch.ones(2))
        own = sys.getprofile()
        sys.setprofile(None)
        events.append(own is not None)
        torch.erf(torch.ones(2))
        events.append(modes_here())

    with observed(tmp_path, Setting("L1", "statistics")) as run:
        thread = threading.Thread(target=training, args=(run,))
        thread.start()
        started.wait()
        run.debugger.stop()
        stopped.set()
        thread.join()
    assert events[-2:] == [True, 0]


@pytest.mark.skipif(TENSORS is None, reason="there is no memo without the C extension")
def test_what_is_forgotten_while_another_thread_reads_it_is_not_remembered():
    memo, tensor, ids = new_memo(), torch.arange(1 << 20), []
    memo.active = True

    def read():
        for _ in range(500):
            memo.clear()
            memo.born(tensor)
            ids.append(memo.look(tensor).id)
            if not ids[-1]:
                return

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)  # Python's lock changes hands only while the elements are read
    try:
        reader = threading.Thread(target=read)
        reader.start()
        while reader.is_alive():
            time.sleep(0)
            memo.clear()
        reader.join()
    finally:
        sys.setswitchinterval(before)
    assert ids[-1] == 0


def test_a_step_does_not_end_while_a_hook_of_another_thread_is_at_work(tmp_path):
    with observed(tmp_path, MIX) as run:
        with run.step_of(nn.Linear(2, 2)):
            pass
        session = current_session()
        assert session is not None
        ends = threading.Thread(target=PrecisionDebugger.set_init_step, args=(5,))
        with session.lock:  # as a hook holds it
            ends.start()
            ends.join(0.2)
            during = session.step_number
        ends.join()
        assert (during, session.step_number) == (1, 5)


def test_random_numbers_that_a_call_drew_are_asked_for_twice_and_found_once():
    state = torch.get_rng_state()
    watch = RandomWatch((), {}, keeps_state=False)
    torch.rand(1)
    call = Call("Torch.rand.0.forward", "Torch.rand.0.backward", False, 0, None, None, None, 0)
    first = watch.drawn(call, None)
    torch.set_rng_state(state)
    assert watch.drawn(call, None) == first == {"cpu": None}
