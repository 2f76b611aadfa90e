# SPDX-License-Identifier: Apache-2.0
"""facts.json: settings, random states, flags, parameters, data and losses of a step."""

from __future__ import annotations

import json
import math
import random
import zlib
from collections import OrderedDict
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import msprobe
from builders.two_runs import recorded_steps
from msprobe.capture.session import reset_session
from msprobe.capture.statistics import native_module
from msprobe.pytorch import PrecisionDebugger

LEVELS = ["L0", "L1", "mix"]
native = native_module()


class Net(nn.Module):
    """Tied weights, a buffer, a frozen parameter, and a part that does not train."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 32)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout()
        self.head = nn.Linear(32, 300, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(float("inf")), requires_grad=False)

    def forward(self, ids, *, mask):
        return self.head(self.drop(self.norm(self.embed(ids)))) * mask


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Net()
    model.drop.eval()
    return model


@pytest.fixture
def make(tmp_path):
    def construct(level="mix", **settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"level": level, "dump_path": str(tmp_path), **settings}))
        return PrecisionDebugger(config_path=path)

    yield construct
    reset_session()


IDS = torch.arange(6) * 7
MASK = torch.ones(6, 1)


def no_calls(debugger, model):
    for _ in recorded_steps(debugger, model, 1):
        pass


def one_step(debugger, model, optimizer=None):
    debugger.start(model)
    loss = model(IDS, mask=MASK).square().mean()
    loss.backward()
    debugger.stop()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    debugger.step()
    return loss


def facts(tmp_path, step=0):
    return msprobe.open_dump(tmp_path).step(step).rank().facts


def crc(array):
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def assert_parameters_are(found, model):
    expected = [
        *((name, "parameter", p) for name, p in model.named_parameters(remove_duplicate=False)),
        *((name, "buffer", b) for name, b in model.named_buffers()),
    ]
    names = dict(zip(found.name, range(len(found.name)), strict=True))
    assert set(names) == {name for name, _, _ in expected}
    for name, kind, tensor in expected:
        at = names[name]
        array = tensor.detach().numpy()
        assert (found.kind[at], found.shape[at], found.dtype[at], found.requires_grad[at]) == (
            kind,
            list(tensor.shape),
            str(tensor.dtype),
            tensor.requires_grad,
        )
        assert found.checksum[at] == crc(array)
        assert found.norm[at] == pytest.approx(np.linalg.norm(array.astype(np.float64).ravel()))


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_are_those_at_the_start_of_each_step(level, make, model, tmp_path):
    debugger = make(level)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(3):
        before = torch.save(model.state_dict(), tmp_path / f"{step}.pt")
        one_step(debugger, model, optimizer)
    del before
    for step in range(3):
        found = facts(tmp_path, step).parameters
        model.load_state_dict(torch.load(tmp_path / f"{step}.pt"))
        assert_parameters_are(found, model)
        tied = dict(zip(found.name, found.same_as, strict=True))
        assert {name: first for name, first in tied.items() if first} == {
            "head.weight": "embed.weight"
        }


@pytest.mark.parametrize("threads", [1, 3])
def test_large_parameters_have_the_checksum_of_zlib_however_many_threads_read_them(
    threads, make, tmp_path
):
    model = nn.Module()
    for size, dtype in ((1_100_003, torch.float32), (2_100_001, torch.bfloat16)):
        model.register_buffer(f"large_{size}", torch.randn(size).to(dtype))
    for place in range(5):
        model.register_parameter(f"middle_{place}", nn.Parameter(torch.randn(300, 900)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        debugger = make("L0")
        no_calls(debugger, model)
    finally:
        torch.set_num_threads(before)
    found = facts(tmp_path).parameters
    tensors = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    for name, checksum, norm in zip(found.name, found.checksum, found.norm, strict=True):
        assert checksum == crc(tensors[name].detach().view(torch.uint8).numpy()), name
        squares = tensors[name].detach().double().square().flatten().tolist()
        assert norm == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-15)


@pytest.mark.parametrize("isa", native.use_isa(None) if native else ["none"])
def test_every_size_has_the_checksum_of_zlib_and_the_numbers_of_records(isa, make, tmp_path):
    """Sizes around vectors and blocks of the reading, and a NaN, which is read twice.

    Records hold extremes and sums besides, which facts are read without, by kernels of their own.
    """
    types = {torch.float32: 1, torch.bfloat16: 2, torch.int64: 3, torch.uint8: 4, torch.float64: 5}
    types[torch.float16] = 6
    sizes = [1, 5, 63, 64, 65, 129, 255, 256, 257, 4032, 4033, 8064, 20_000]
    model = nn.Module()
    for size in sizes:
        for dtype, seed in types.items():
            values = torch.arange(size) * (seed + 2) % 251
            model.register_buffer(f"{str(dtype)[6:]}_{size}", values.to(dtype))
    model.float32_20000[17] = float("nan")
    if native:
        native.use_isa(isa)
    try:
        debugger = make("L0")
        no_calls(debugger, model)
    finally:
        if native:
            native.use_isa(None)
    found = facts(tmp_path).parameters
    bytes_of = {name: value.view(torch.uint8).numpy() for name, value in model.named_buffers()}
    assert dict(zip(found.name, found.checksum, strict=True)) == {
        name: crc(array) for name, array in bytes_of.items()
    }
    if native:
        rows = dict(zip(found.name, zip(found.norm, found.projections, strict=True), strict=True))
        for name, value in model.named_buffers():
            kind = native.KINDS[str(value.dtype)[6:]]
            _, _, _, norm, _, projections = native.stats(kind, value.data_ptr(), value.numel())
            assert repr(rows[name]) == repr((norm, projections)), name  # bit for bit, with NaN


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.mul_(1.5),
        lambda weight: weight.detach().numpy().__imul__(1.5),
        lambda weight: setattr(weight, "data", weight.data * 2),
    ],
    ids=["data", "numpy", "swapped"],
)
def test_writes_that_torch_does_not_count_are_seen(write, make, model, tmp_path):
    debugger = make("L0")
    one_step(debugger, model)
    write(model.embed.weight)
    torch.save(model.state_dict(), tmp_path / "now.pt")
    one_step(debugger, model)
    model.load_state_dict(torch.load(tmp_path / "now.pt"))
    assert_parameters_are(facts(tmp_path, 1).parameters, model)


def test_a_write_to_forty_kilobytes_of_a_large_parameter_is_seen(make, tmp_path):
    model = nn.Linear(1024, 400, bias=False)
    debugger = make("L0")
    for step, row in enumerate((0, 57, 219, 390)):
        model.weight.data[row : row + 10] += 1
        no_calls(debugger, model)
        assert facts(tmp_path, step).parameters.checksum == [crc(model.weight.detach().numpy())]


def test_a_parameter_whose_memory_was_given_back_is_left_out(make, tmp_path):
    model = nn.Linear(200, 200)
    debugger = make("L0")
    for _ in range(2):
        no_calls(debugger, model)
        model.weight.untyped_storage().resize_(0)  # as FSDP does between uses
    found = facts(tmp_path, 1).parameters
    assert found.name == ["weight", "bias"]
    assert found.checksum == [None, crc(model.bias.detach().numpy())]


def test_a_parameter_in_another_order_of_its_memory_is_read_in_its_own(make, tmp_path):
    model = nn.Linear(200, 200)
    debugger = make("L0")
    for step in range(3):
        no_calls(debugger, model)
        # The contiguous elements, whatever lies where.
        expected = [crc(each.detach().contiguous().numpy()) for each in model.parameters()]
        assert facts(tmp_path, step).parameters.checksum == expected
        model.weight.data = model.weight.data.t()  # the same address, the same number of elements


class Around(nn.Module):
    """A module in it holds the one around it; parameters are shared; parts are missing."""

    def __init__(self, tables=dict):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.norm = nn.BatchNorm1d(2).eval()
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.second.owner = self
        self.register_module("nothing", None)
        self.register_buffer("none", None)
        self.second._parameters = tables(self.second._parameters)


@pytest.mark.parametrize("tables", [dict, OrderedDict])  # others are not read in C
@pytest.mark.parametrize("count", [1, 2])
def test_names_of_what_models_hold(count, tables, make, tmp_path):
    models = [Around(tables) for _ in range(count)]
    debugger = make("L0")
    no_calls(debugger, models)
    found = facts(tmp_path)
    inside = ["first.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    inside += ["norm.num_batches_tracked", "second.weight", "second.bias"]
    prefixes = [f"{index}." for index in range(count)] if count > 1 else [""]
    assert found.parameters.name == [prefix + name for prefix in prefixes for name in inside]
    tied = zip(found.parameters.name, found.parameters.same_as, strict=True)
    assert {name: first for name, first in tied if first} == {
        f"{prefix}second.weight": f"{prefix}first.weight" for prefix in prefixes
    }
    assert found.modes.training == {
        name: is_training
        for prefix in prefixes
        for name, is_training in ((prefix[:-1], True), (f"{prefix}norm", False))
    }


def test_the_sign_with_which_a_parameter_shows_its_memory(make, tmp_path):
    model = nn.Linear(64, 64, bias=False)
    debugger = make("L0")
    for step in range(12):
        # The memory of the one before is given out again.
        model.weight.data = torch.randn(64, 64)
        if step % 4 > 1:
            model.weight.data = torch._neg_view(model.weight.data)
        no_calls(debugger, model)
        shown = model.weight.detach().resolve_neg().numpy()
        assert facts(tmp_path, step).parameters.checksum == [crc(shown)]


def test_flags_of_models_in_a_list_that_was_made_for_start_alone(make, tmp_path):
    one, two = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    one.eval()
    debugger = make("L0")
    debugger.start(nn.ModuleList([one, two]))
    x = two(one(torch.ones(1, 2)))
    two.eval()
    two(one(x))
    debugger.stop()
    debugger.step()
    found = facts(tmp_path)
    assert found.modes.training == {"": True, "0": False}
    (changed,) = found.flags
    assert (changed.micro, changed.training) == (2, {"": True, "0": False, "1": False})


def test_flags_of_the_model(make, model, tmp_path):
    debugger = make("L1")
    debugger.start(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        debugger.stop()
        debugger.step()
        debugger.start(model)
    debugger.stop()
    debugger.step()
    modes = facts(tmp_path).modes
    assert modes.training == {"": True, "drop": False}
    assert modes.requires_grad_false == ["scale"]
    assert (modes.autocast, modes.grad_enabled) == ({}, True)
    modes = facts(tmp_path, 1).modes
    assert (modes.autocast, modes.grad_enabled) == ({"cpu": "torch.bfloat16"}, False)


def test_random_states_tell_draws_and_draw_nothing(make, model, tmp_path):
    debugger = make("L1")
    draws = [
        lambda: None,
        random.random,
        np.random.rand,
        lambda: torch.rand(1),
    ]
    for draw in draws:
        draw()
        states = (random.getstate(), torch.get_rng_state())
        one_step(debugger, model.eval())
        assert random.getstate() == states[0]
        assert torch.equal(torch.get_rng_state(), states[1])
    found = [facts(tmp_path, step).random for step in range(4)]
    assert set(found[0]) >= {"python", "numpy", "cpu"}
    changed = [{key for key in b if a[key] != b[key]} for a, b in pairwise(found)]
    assert changed == [{"python"}, {"numpy"}, {"cpu"}]


def test_settings_hide_secrets_and_follow_switches(make, model, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "sk-0123456789abcdef")
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    debugger = make("L1")
    one_step(debugger, model)
    torch.use_deterministic_algorithms(True)
    try:
        one_step(debugger, model)
    finally:
        torch.use_deterministic_algorithms(False)
    settings = [facts(tmp_path, step).settings for step in range(2)]
    assert settings[0]["env.OMP_PROC_BIND"] == "close"
    assert "0123456789" not in settings[0]["env.MY_API_TOKEN"]
    assert settings[0]["torch.version"] == torch.__version__
    assert settings[0]["package.numpy"] == np.__version__
    changed = {key for key, text in settings[0].items() if settings[1][key] != text}
    assert changed == {"torch.deterministic_algorithms"}


@pytest.mark.parametrize("level", LEVELS)
def test_data_and_losses_of_each_micro_batch(level, make, model, tmp_path):
    debugger = make(level)
    losses = []
    debugger.start(model)
    for number in range(2):
        loss = model(IDS + number, mask=MASK).square().mean()
        losses.append(loss.item())
        if number == 1:
            debugger.stop()
        loss.backward()  # seen after stop(), too
    debugger.step()
    found = facts(tmp_path)
    assert [(one.micro, one.where) for one in found.data] == [
        (number, where) for number in range(2) for where in ("input.0", "kwargs.mask")
    ]
    for one in found.data:
        value = (IDS + one.micro if one.where == "input.0" else MASK).numpy()
        assert one.checksum == crc(value)
        assert (one.max, one.min, one.mean) == (value.max(), value.min(), value.mean())
        assert one.norm == pytest.approx(np.linalg.norm(value.astype(np.float64)))
        expected = None if level == "L1" else f"Module.Net.forward.{one.micro}"
        assert one.record == expected
    assert [(one.micro, one.value, one.shape) for one in found.loss] == [
        (number, loss, []) for number, loss in enumerate(losses)
    ]


def test_a_trainer_that_calls_parts_of_the_model(make, model, tmp_path):
    class Lightning(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model
            self.criterion = nn.MSELoss()

        def training_step(self, ids, target):
            return self.criterion(self.net(ids, mask=MASK), target)

    debugger, module, target = make("L1"), Lightning(), torch.zeros(6, 300)
    for _ in recorded_steps(debugger, module, 1):
        module.training_step(IDS, target).backward()
    assert [(one.micro, one.where, one.checksum) for one in facts(tmp_path).data] == [
        (0, "input.0", crc(IDS)),
        (0, "kwargs.mask", crc(MASK)),
        (1, "input.1", crc(target)),
    ]


def test_batches_of_a_followed_loader_have_their_number(make, tmp_path):
    loader = DataLoader(TensorDataset(torch.arange(12.0).view(6, 2)), batch_size=2)
    model = nn.Linear(2, 1)
    debugger = make("L0", enable_dataloader=True, step=[1, 4])
    debugger.start(model)
    with suppress(SystemExit):  # the last wanted step ends the run
        for _epoch in range(2):
            for (batch,) in loader:
                model(batch).sum().backward()
    assert [facts(tmp_path, step).data[0].index for step in (1, 4)] == [1, 1]


def test_nothing_is_written_if_facts_are_off(make, model, tmp_path):
    one_step(make("mix", facts=False), model)
    assert facts(tmp_path) is None


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_odd_tensors_are_noted(make, tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.lazy = nn.LazyLinear(3)
            self.meta = nn.Parameter(torch.empty(2, 3, device="meta"))
            self.register_buffer("sparse", torch.eye(3).to_sparse())
            self.register_buffer(
                "quantised", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
            )
            self.register_buffer("empty", torch.empty(0))
            self.register_buffer("halves", torch.tensor([1.5, float("nan")], dtype=torch.bfloat16))
            self.register_buffer("gaps", torch.arange(6.0).view(2, 3).T)

    debugger, model = make("L0"), Odd()
    no_calls(debugger, model)
    found = facts(tmp_path).parameters
    at = {name: number for number, name in enumerate(found.name)}
    assert found.checksum[at["lazy.weight"]] is None
    assert found.checksum[at["meta"]] is None
    assert found.shape[at["meta"]] == [2, 3]
    assert found.norm[at["sparse"]] == pytest.approx(3**0.5)
    assert found.checksum[at["empty"]] == "00000000"
    assert np.isnan(found.norm[at["halves"]])
    assert found.checksum[at["gaps"]] == crc(model.gaps)
    assert found.checksum[at["quantised"]] is not None
    assert msprobe.open_dump(tmp_path).step(0).rank().account["errors"] == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("draw", "undrawn"),
    [
        (lambda: None, ["python", "numpy"]),
        (random.random, ["numpy"]),
        (np.random.rand, ["python"]),
    ],
    ids=["none", "python", "numpy"],
)
def test_generators_that_nobody_draws_from(make, model, level, draw, undrawn, tmp_path):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the generator that programs share
    debugger = make(level)
    for _ in recorded_steps(debugger, model, 1):
        model(IDS, mask=MASK)
        draw()
    assert msprobe.open_dump(tmp_path).step(0).rank().facts.undrawn == undrawn


@pytest.mark.parametrize("level", LEVELS)
def test_autocast_that_a_step_enters(make, model, level, tmp_path):
    debugger = make(level)
    for _ in recorded_steps(debugger, model, 1):
        model(IDS, mask=MASK)
        with torch.autocast("cpu", torch.bfloat16):
            model(IDS, mask=MASK)
    found = msprobe.open_dump(tmp_path).step(0).rank().facts
    assert found.modes.autocast == {}
    assert [(each.micro, each.autocast) for each in found.flags] == [(1, {"cpu": "torch.bfloat16"})]
