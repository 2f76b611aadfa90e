# SPDX-License-Identifier: Apache-2.0
"""facts.json: steps of optimizers, clipping, scaling and schedules, as torch itself has them."""

from __future__ import annotations

import copy
import gc
import json
import math
import signal
import zlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import msprobe
from builders.warm_python import run_warm
from msprobe.capture.session import reset_session
from msprobe.dump.facts import Clip, Ending, OptimizerStep, Scaler, Schedule
from msprobe.pytorch import PrecisionDebugger

BATCH = torch.linspace(-1, 1, 20).view(5, 4)


class Lion(torch.optim.Optimizer):
    """An optimizer of the user's own, written as such are."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group["lr"], *group["betas"])
        return loss

    def _update(self, p, lr, beta1, beta2):
        state = self.state[p]
        if not state:
            state["exp_avg"] = torch.zeros_like(p)
        average = state["exp_avg"]
        p.add_((average * beta1 + p.grad * (1 - beta1)).sign_(), alpha=-lr)
        average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95)),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "lion": Lion,
    "tensor-lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3))


def checksum(tensor: torch.Tensor) -> str:
    return f"{zlib.crc32(tensor.detach().contiguous().numpy().tobytes()):08x}"


def norm(tensor: torch.Tensor) -> float:
    return tensor.detach().double().norm().item()


@pytest.fixture
def debugger(tmp_path):
    def make(level="mix", **keys):
        reset_session()
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"level": level, "dump_path": str(tmp_path), **keys}))
        return PrecisionDebugger(config_path=path)

    yield make
    reset_session()


def facts_of(tmp_path, step=0):
    return msprobe.open_dump(tmp_path).step(step).rank().facts


def records_of(tmp_path, step=0) -> list[str]:
    return list(msprobe.open_dump(tmp_path).step(step).rank().records)


def check(column, tensors) -> None:
    """Compare a column of fingerprints with the tensors, as torch has them in float64."""
    for place, tensor in enumerate(tensors):
        if tensor is None:
            assert column.checksum[place] is None
            assert column.norm[place] is None
        else:
            assert column.checksum[place] == checksum(tensor)
            assert column.norm[place] == pytest.approx(norm(tensor), rel=1e-12, abs=1e-300)


class Counting(torch.optim.Optimizer):
    """Keeps a state of each element type, and changes nothing."""

    TYPES = (
        *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )

    def __init__(self, params):
        super().__init__(params, {})
        for group in self.param_groups:
            for p in group["params"]:
                numbers = torch.arange(p.numel()).view(p.shape) - 3.25
                self.state[p] = {str(kind): numbers.abs().to(kind) for kind in self.TYPES}

    def step(self, closure=None):
        pass


def test_samples_are_the_elements_of_any_type(tmp_path, debugger):
    run = debugger("L0")
    model = network()
    optimizer = Counting(model.parameters())
    run.start(model)
    model(BATCH).square().sum().backward()
    optimizer.step()
    run.stop()
    run.step()
    (step,) = facts_of(tmp_path).optimizer_steps()
    samples = step.parameters.samples
    for place, parameter in enumerate(model.parameters()):
        for name, state in optimizer.state[parameter].items():
            flat = state.flatten().tolist()
            assert samples[name][place] == [flat[at] for at in samples["index"][place]]


def test_names_do_not_tell_of_compilation(tmp_path, debugger):
    run = debugger("L1")
    model = torch.compile(network(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.start(model)
    model(BATCH).square().sum().backward()
    optimizer.step()
    run.stop()
    run.step()
    facts = facts_of(tmp_path)
    (step,) = facts.optimizer_steps()
    assert (
        step.parameters.name
        == facts.parameters.name
        == [n for n, _ in network().named_parameters()]
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("stops", ["before", "after"])
def test_a_step_is_recorded_as_torch_has_it(tmp_path, debugger, name, stops):
    run = debugger()
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())
    parameters = list(model.parameters())
    seen = []
    for _ in range(3):
        run.start(model)
        optimizer.zero_grad()
        model(BATCH).square().sum().backward()
        if stops == "before":
            run.stop()
        seen.append(
            copy.deepcopy([(p, p.grad, dict(optimizer.state.get(p, {}))) for p in parameters])
        )
        optimizer.step()
        if stops == "after":
            run.stop()
        run.step()
    reset_session()
    for number, known in enumerate(seen):
        (step,) = facts_of(tmp_path, number).optimizer_steps()
        found = step.parameters
        assert (step.number, step.call) == (0, 0)
        assert step.class_name.endswith(type(optimizer).__name__)
        assert found.name == [name for name, _ in model.named_parameters()]
        check(found.before, [p for p, _, _ in known])
        check(found.gradient, [gradient for _, gradient, _ in known])
        after = seen[number + 1] if number + 1 < len(seen) else [(p,) for p in parameters]
        check(found.after, [one[0] for one in after])
        states = {key for _, _, state in known for key in state} - {"step"}
        assert set(found.state) == states
        for key in states:
            check(found.state[key], [state.get(key) for _, _, state in known])
        if "step" in known[0][2]:
            assert found.steps == [float(state["step"]) for _, _, state in known]
        for place, (parameter, gradient, _) in enumerate(known):
            index = found.samples["index"][place]
            assert len(index) == len(set(index)) == min(8, parameter.numel())
            assert found.samples["before"][place] == parameter.flatten()[index].tolist()
            assert found.samples["gradient"][place] == gradient.flatten()[index].tolist()


def test_every_setting_of_every_group_is_there(tmp_path, debugger):
    run = debugger("L0")
    model = network()
    head = list(model[3].parameters())
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.5, "betas": (0.5, 0.6)},
        {"params": head, "weight_decay": math.inf, "mine": {"a": [1, None]}, "odd": object()},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.25)
    run.start(model)
    model[0](BATCH).sum().backward()
    run.stop()
    head[0].grad = None
    optimizer.param_groups[1]["lr"] = 0.125
    optimizer.param_groups[1]["weight_decay"] = math.inf
    with torch.no_grad():
        optimizer.step()
    run.step()
    (step,) = facts_of(tmp_path).optimizer_steps()
    first, second = step.groups
    assert (first.parameters, second.parameters) == ([0, 1], [2, 3])
    assert first.options["lr"] == 0.5
    assert first.options["betas"] == [0.5, 0.6]
    assert first.options["maximize"] is False
    assert first.options["fused"] is None
    assert second.options["lr"] == 0.125
    assert second.options["weight_decay"] == math.inf
    assert second.options["mine"] == {"a": [1, None]}
    assert second.options["odd"] == "<object>"
    assert step.parameters.has_gradient == [True, True, False, False]
    assert step.parameters.gradient.norm[2:] == [None, None]
    assert step.parameters.name == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_parameters_of_no_known_model_have_a_place(tmp_path, debugger):
    run = debugger("L1")
    own = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    for parameter in own:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD([{"params": own[:1]}, {"params": own[1:]}], lr=0.1)
    named = torch.optim.SGD([("scale", own[0])], lr=0.1)
    run.start()
    optimizer.step()
    named.step()
    optimizer.step()
    run.stop()
    run.step()
    first, second, third = facts_of(tmp_path).optimizer_steps()
    assert first.parameters.name == ["optimizer.0.group.0.0", "optimizer.0.group.1.0"]
    assert second.parameters.name == ["scale"]
    assert [(one.number, one.call) for one in (first, second, third)] == [(0, 0), (1, 0), (0, 1)]
    assert third.parameters.before.checksum[1] == first.parameters.after.checksum[1]


def test_an_optimizer_that_is_gone_leaves_its_number(tmp_path, debugger):
    run, model = debugger("L0"), network()

    def train(step: int, *optimizers: torch.optim.Optimizer) -> list[int]:
        run.start(model)
        model(BATCH).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        run.stop()
        run.step()
        return [one.number for one in facts_of(tmp_path, step).optimizer_steps()]

    def made() -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    kept = made()
    assert train(0, made(), kept) == [0, 1]
    gc.collect()
    assert train(1, kept, made()) == [1, 2]


def test_a_closure_gives_the_gradient_of_its_last_evaluation(tmp_path, debugger):
    run = debugger()
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(BATCH).square().sum()
        loss.backward()
        return loss

    run.start(model)
    optimizer.step(closure)
    run.stop()
    run.step()
    (step,) = facts_of(tmp_path).optimizer_steps()
    check(step.parameters.gradient, [p.grad for p in model.parameters()])
    names = records_of(tmp_path)
    assert "Module.0.Linear.forward.1" in names
    assert "Functional.linear.3.forward" in names
    assert not any(name.startswith(("Tensor.dot", "Torch.cat", "Torch.dot")) for name in names)


@pytest.mark.parametrize("backward", [torch.Tensor.backward, torch.autograd.backward])
def test_a_closure_without_gradients_is_recorded_and_its_optimizer_is_not(
    tmp_path, debugger, backward
):
    run = debugger()
    model, seen = network(), torch.ones(4)
    optimizer = Lion(model.parameters())

    def closure():
        loss = model(BATCH).square().sum()
        with torch.no_grad():
            seen.lerp_(BATCH.mean(0), 0.1)
        backward(loss)
        with torch.no_grad():
            seen.mul_(0.9)
        return loss

    run.start(model)
    optimizer.step(closure)
    optimizer.step(closure)
    run.stop()
    run.step()
    names = records_of(tmp_path)
    assert {"Tensor.lerp_.0.forward", "Tensor.lerp_.1.forward"} <= set(names)
    # So is what it does behind the backward pass.
    assert {"Tensor.mul_.0.forward", "Tensor.mul_.1.forward"} <= set(names)
    assert not any("sign_" in name or "zeros_like" in name for name in names)


def test_a_recording_that_begins_in_the_closure_has_the_step(tmp_path, debugger):
    run = debugger()
    model = network()
    before = copy.deepcopy(list(model.parameters()))
    optimizer = torch.optim.Adam(model.parameters())

    def closure():
        run.start(model)
        loss = model(BATCH).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.relu(BATCH)
    run.stop()
    run.step()
    (step,) = facts_of(tmp_path).optimizer_steps()
    check(step.parameters.before, before)
    check(step.parameters.gradient, [p.grad for p in model.parameters()])
    check(step.parameters.after, list(model.parameters()))
    names = records_of(tmp_path)
    assert "Torch.relu.0.forward" in names
    assert not any("addcdiv" in name or "sqrt" in name for name in names)


def test_a_base_class_that_steps_too_is_one_step(tmp_path, debugger):
    class Scaled(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.mul_(0.5)
            return super().step(closure)

    run = debugger()
    model = network()
    torch.optim.SGD(model.parameters(), lr=0.1)  # torch hooks the class at its first instance
    optimizer = Scaled(model.parameters(), lr=0.1)
    run.start(model)
    model(BATCH).sum().backward()
    optimizer.step()
    torch.relu(BATCH)
    run.stop()
    run.step()
    assert len(facts_of(tmp_path).optimizer_steps()) == 1
    assert "Torch.relu.0.forward" in records_of(tmp_path)


def test_hooks_of_the_optimizer_come_before_and_after(tmp_path, debugger):
    run = debugger()
    model = network()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    known = {}

    @torch.no_grad()
    def halve(*_):
        for p in parameters:
            p.grad.mul_(0.5)
        known["gradient"] = [p.grad.clone() for p in parameters]

    @torch.no_grad()
    def project(*_):
        known["after"] = [p.detach().clone() for p in parameters]
        for p in parameters:
            p.clamp_(-0.01, 0.01)

    optimizer.register_step_pre_hook(halve)
    optimizer.register_step_post_hook(project)
    run.start(model)
    model(BATCH).sum().backward()
    optimizer.step()
    run.stop()
    run.step()
    (step,) = facts_of(tmp_path).optimizer_steps()
    check(step.parameters.gradient, known["gradient"])
    check(step.parameters.after, known["after"])
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert len(optimizer._optimizer_step_post_hooks) == 1


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_calls_of_an_optimizer_are_its_record_unless_they_are_asked_for(
    tmp_path, debugger, level
):
    counts = {}
    for keys in ({}, {"optimizer_apis": True}, {"facts": False}):
        run = debugger(level, **keys)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        run.start(model)
        model(BATCH).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.relu(BATCH)  # recorded again
        run.stop()
        run.step()
        names = records_of(tmp_path)
        assert "Torch.relu.0.forward" in names
        counts[str(keys)] = sum("_foreach" in name for name in names)
        assert (facts_of(tmp_path) is None) == ("facts" in keys)
        reset_session()
    without, *others = counts.values()
    assert without == 0
    assert all(count > 5 for count in others)
    assert others[0] == others[1]


def test_a_step_that_raises_leaves_the_recording_whole(tmp_path, debugger):
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("not today")

    run = debugger()
    model = network()
    optimizer = Fails(model.parameters(), lr=0.1)
    run.start(model)
    with pytest.raises(ValueError, match="not today"):
        optimizer.step()
    torch.relu(BATCH)
    run.stop()
    run.step()
    assert "Torch.relu.0.forward" in records_of(tmp_path)
    assert facts_of(tmp_path).optimizer_steps() == []


@pytest.mark.parametrize("stopped", [False, True])
def test_clipping(tmp_path, debugger, stopped):
    run = debugger()
    model = network()
    run.start(model)
    model(BATCH).square().sum().backward()
    if stopped:
        run.stop()
    total = nn.utils.clip_grad_norm_((p for p in model.parameters()), 0.5, norm_type=1)
    again = nn.utils.clip_grad_norm_(filter(torch.is_tensor, model.parameters()), max_norm=math.inf)
    nn.utils.clip_grad_value_(model[0].weight, 0.125)
    nn.utils.clip_grads_with_norm_(list(model.parameters()), 2.0, again)
    run.stop()
    run.step()
    assert facts_of(tmp_path).events == [
        Clip(
            function="clip_grad_norm_",
            max=0.5,
            norm_type=1.0,
            total_norm=total.item(),
            parameters=6,
            passes=1,
        ),
        Clip(
            function="clip_grad_norm_",
            max=math.inf,
            norm_type=2.0,
            total_norm=again.item(),
            parameters=6,
            passes=1,
        ),
        Clip(function="clip_grad_value_", max=0.125, parameters=1, passes=1),
        Clip(
            function="clip_grads_with_norm_",
            max=2.0,
            total_norm=again.item(),
            parameters=6,
            passes=1,
        ),
    ]


def test_a_scaler_and_the_step_that_it_skips(tmp_path, debugger):
    run = debugger()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for factor in (1.0, math.inf):
        run.start(model)
        optimizer.zero_grad()
        scaler.scale(model(BATCH).square().sum() * factor).backward()
        run.stop()
        scaler.step(optimizer)
        scaler.update()
        run.step()
    step, scaled = facts_of(tmp_path, 0).events
    assert isinstance(step, OptimizerStep)
    assert scaled == Scaler(scale=1024.0, skipped=False, new_scale=2048.0)
    assert facts_of(tmp_path, 1).events == [Scaler(scale=2048.0, skipped=True, new_scale=1024.0)]


def test_schedules(tmp_path, debugger):
    run = debugger()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedulers = torch.optim.lr_scheduler
    run.start(model)
    run.stop()
    one = schedulers.ExponentialLR(optimizer, 0.5)
    plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    optimizer.step()
    one.step()
    plateau.step(1.0)
    plateau.step(2.0)
    chain = schedulers.SequentialLR(
        optimizer, [schedulers.ConstantLR(optimizer), schedulers.StepLR(optimizer, 1)], [3]
    )
    chain.step()
    run.step()
    found = [event for event in facts_of(tmp_path).events if isinstance(event, Schedule)]
    names = [event.class_name.rpartition(".")[2] for event in found]
    assert names == ["ExponentialLR", "ReduceLROnPlateau", "ReduceLROnPlateau", "SequentialLR"]
    assert found[0].last_epoch == 1
    assert [event.lr for event in found[:3]] == [[0.5], [0.5], [0.25]]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numbers_of_numpy_are_numbers(tmp_path, debugger, kind):
    run = debugger()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=kind(0.5), momentum=kind(0.25))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: kind(0.5) ** epoch)
    run.start(model)
    model(BATCH).sum().backward()
    optimizer.step()
    schedule.step()
    run.stop()
    run.step()
    step, scheduled = facts_of(tmp_path).events
    assert step.groups[0].options["lr"] == 0.5
    assert step.groups[0].options["momentum"] == 0.25
    assert scheduled.lr == [0.25]
    assert msprobe.open_dump(tmp_path).step(0).rank().incomplete_reason is None


def test_odd_parameters_are_noted_and_spoil_nothing(tmp_path, debugger):
    run = debugger("L1")
    plain = nn.Parameter(torch.ones(4, 5))
    permuted = nn.Parameter(torch.arange(20.0).view(4, 5).t())
    table = nn.Embedding(10, 3, sparse=True)
    half = nn.Parameter(torch.tensor([1.5, -2.0, math.nan], dtype=torch.bfloat16))
    twisted = nn.Parameter(torch.tensor([1 + 2j, 3 - 4j]))
    empty = nn.Parameter(torch.ones(0, 3))
    odd = [plain, permuted, half, twisted, empty]
    for parameter in odd:
        parameter.grad = torch.ones_like(parameter)
    table(torch.tensor([1, 1, 7])).sum().backward()
    optimizer = torch.optim.SGD([*odd, table.weight], lr=0.1)
    run.start()
    optimizer.step()
    run.stop()
    run.step()
    (step,) = facts_of(tmp_path).optimizer_steps()
    found = step.parameters
    before = found.samples["before"]
    index = found.samples["index"][1]
    assert before[1] == torch.arange(20.0).view(4, 5).t().flatten()[index].tolist()
    assert before[2][:2] == [1.5, -2.0]
    assert math.isnan(before[2][2])
    assert math.isnan(found.before.norm[2])
    assert before[3] is None
    assert found.before.norm[3] == pytest.approx(math.sqrt(30))
    assert before[4] == []
    assert found.samples["gradient"][5] is None
    assert found.gradient.norm[5] > 0
    assert any("stored values" in note for note in found.notes.values())
    assert all(found.after.checksum)


def trained(tmp_path, optimizer_of, debugger, accumulation=1):
    model = network()
    optimizer = optimizer_of(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        if debugger is not None:
            debugger.start(model)
        for _ in range(accumulation):
            noise = torch.rand(5, 4)
            (model(BATCH + noise).square().sum() / accumulation).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if debugger is not None:
            debugger.stop()
        schedule.step()
        if debugger is not None:
            debugger.step()
    state = [value for one in optimizer.state.values() for value in one.values()]
    tensors = [*model.parameters(), *(value for value in state if torch.is_tensor(value))]
    return [*tensors, torch.get_rng_state()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("level", ["L0", "mix", "L2"])
def test_training_is_bit_identical(tmp_path, debugger, name, level):
    plain = trained(tmp_path, OPTIMIZERS[name], None, accumulation=2)
    observed = trained(tmp_path, OPTIMIZERS[name], debugger(level), accumulation=2)
    assert len(plain) == len(observed)
    assert all(map(torch.equal, plain, observed))
    assert len(facts_of(tmp_path, 2).optimizer_steps()) == 1


def test_everything_is_undone_when_the_step_ends(debugger):
    functions = [
        nn.utils.clip_grad_norm_.__wrapped__,
        nn.utils.clip_grad_value_.__wrapped__,
        torch.amp.GradScaler.update,
        torch.optim.lr_scheduler.LRScheduler.step,
    ]
    hooks = _global_optimizer_pre_hooks
    codes, count = [one.__code__ for one in functions], len(hooks)
    run = debugger()
    run.start(network())
    assert len(hooks) > count
    run.stop()
    run.start(network())
    run.stop()
    run.step()
    assert [one.__code__ for one in functions] == codes
    assert len(hooks) == count


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_compiled_training_code_works_between_stop_and_step(tmp_path, debugger):
    run = debugger()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    @torch.compile(backend="eager")
    def update():
        nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        optimizer.step()
        schedule.step()

    for _ in range(2):
        run.start(model)
        model(BATCH).sum().backward()
        run.stop()
        update()
        run.step()
    assert facts_of(tmp_path).ended.how is Ending.WHOLE


KILLED = """
import os, signal, sys, time
import torch
from msprobe.pytorch import PrecisionDebugger

net = torch.nn.Linear(4, 8)
optimizer = torch.optim.AdamW(net.parameters())
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L0")
debugger.start(net)
net(torch.ones(3, 4)).sum().backward()
optimizer.step()
time.sleep(0.25)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_keeps_the_optimizer_step(tmp_path):
    done = run_warm("-c", KILLED, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    facts = facts_of(tmp_path)
    assert facts.ended.how is Ending.KILLED
    assert facts.optimizer_steps()[0].parameters.name == ["weight", "bias"]
