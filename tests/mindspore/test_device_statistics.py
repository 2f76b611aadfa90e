# SPDX-License-Identifier: Apache-2.0
"""Statistics computed by MindSpore's operators, run on the CPU: in batches, and no trace left."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_tensors import FLOATS, INTEGERS, prepared, tensor_of
from mindspore.utils import MsDispatchMode
from nets import CASES, random, train

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe import open_dump
from msprobe.capture.session import reset_session
from msprobe.capture.statistics import Summary
from msprobe.mindspore import (
    PrecisionDebugger,
    adapter,
    device_reductions,
    device_statistics,
    observer,
    start_state,
)
from msprobe.mindspore.device_statistics import DeviceStatistics
from msprobe.mindspore.guard import Guard

NUMBERS = ("max", "min", "mean", "norm")


# ---- what a device cannot do ---------------------------------------------------------------------


class Counted:
    """An operator that notes how often it is called."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.operator(*args)


def test_a_missing_kernel_is_met_once_and_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Counted(ops.L2Loss())  # the CPU has no kernel of it for integers
    monkeypatch.setattr(device_reductions, "SHIFT", missing)
    integers, floats = Tensor([1, 2], ms.int64), Tensor([1.0, 2.0], ms.float32)
    before = ms.get_context("pynative_synchronize")
    device = prepared(integers, floats)
    tried = missing.calls
    assert tried > 0
    assert device.summarise(integers, None) is None
    device.prepare()
    assert device.summarise(integers, None) is None
    assert missing.calls == tried
    assert device.summarise(floats, None) is not None
    assert ms.get_context("pynative_synchronize") == before
    assert (integers + 1).asnumpy().tolist() == [2, 3]  # no late error reaches the program


def test_nothing_is_tried_where_a_failure_does_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Counted(ops.L2Loss())
    monkeypatch.setattr(device_reductions, "SHIFT", missing)
    device = DeviceStatistics()

    class Half(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            device.prepare()
            return x * x

    def loss(x: Tensor) -> Tensor:
        device.prepare()
        assert device.summarise(x, None) is None
        return (x * x).sum()

    x = Tensor([1.0, 3.0], ms.float32)
    assert ms.grad(loss)(x).asnumpy().tolist() == [2.0, 6.0]
    assert Half().to_float(ms.float16)(x).dtype == ms.float16
    assert missing.calls == 0
    assert x.dtype == (x * x).dtype
    device.prepare()
    assert missing.calls > 0


def test_a_device_that_computes_wrongly_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reductions, "GREATER", ops.Less())
    device = prepared()
    assert device.summarise(Tensor([1.0, 2.0], ms.float32)) is None
    assert device.summarise(Tensor([1, 2], ms.int32)) is not None


def test_cutting_out_a_part_is_tried_like_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSlices(Counted):
        def __call__(self, *args: Any) -> Any:
            self.calls += 1
            if args[0].dtype == ms.bfloat16:
                return ops.L2Loss()(Tensor([1, 2], ms.int64))
            return self.operator(*args)

    lacking = NoSlices(ops.Slice())
    monkeypatch.setattr(device_statistics, "SLICE", lacking)
    device = prepared()
    tried = lacking.calls
    assert tried > 0
    half, whole = (tensor_of(np.ones((3, 4)), dtype) for dtype in ("bfloat16", "float32"))
    crop = ((0, 1), (3, 2))
    assert device.summarise(half, crop) is None
    assert lacking.calls == tried
    assert device.summarise(whole, crop) is not None


def test_nobody_waits_for_types_that_the_host_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    device = prepared()
    waits: list[None] = []
    original = device_statistics.one_at_a_time
    monkeypatch.setattr(
        device_statistics, "one_at_a_time", lambda: waits.append(None) or original()
    )
    for dtype in ("complex64", "uint64"):
        assert device.summarise(tensor_of([1, 2], dtype)) is None
        assert device.copy(tensor_of([1, 2], dtype)) is None
    device.prepare()
    assert waits == []
    device.summarise(tensor_of([1, 2], "uint16"))
    device.prepare()
    assert waits == [None]


# ---- fetching ------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the tensors that were brought to the host."""
    sizes: list[int] = []
    original = Tensor.asnumpy

    def counting(tensor: Tensor) -> Any:
        sizes.append(tensor.size)
        return original(tensor)

    monkeypatch.setattr(Tensor, "asnumpy", counting)
    return sizes


def test_a_batch_is_one_copy(reads: list[int]) -> None:
    tensors = [
        tensor_of(np.arange(k + 2), dtype)
        for k in range(5)  # each shape more is compiled anew
        for dtype in (*FLOATS, *INTEGERS, "bool")
    ]
    device = prepared(*tensors[:12])
    reads.clear()
    found = [device.summarise(tensor, None) for tensor in tensors]
    assert not any(one is None or one.ready for one in found)
    assert reads == []
    collect = device.take_batch()
    assert collect is not None
    assert device.take_batch() is None
    other = threading.Thread(target=collect)  # as the writer does
    other.start()
    other.join()
    assert len(reads) == 1
    assert [one.max for one in found if one] == [
        k + 1 if dtype != "bool" else True
        for k in range(5)
        for dtype in (*FLOATS, *INTEGERS, "bool")
    ]


# ---- leaving no trace ----------------------------------------------------------------------------


def test_no_gradient_graph_is_made_and_gradients_can_be_summarised() -> None:
    device = prepared()
    found: list[Summary | None] = []
    seen: list[bool] = []

    def hook(gradient: Tensor) -> None:
        found.append(device.summarise(gradient, None))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        middle = x * y
        middle.register_hook(hook)
        found.append(device.summarise(middle, None))
        copied = device.copy(middle)
        seen.extend((copied._requires_grad, device.add(copied, middle)._requires_grad))
        return (middle * middle).sum()

    x, y = Tensor(random(4, 3)), Tensor(random(4, 3, seed=1))
    gradients = ms.grad(loss, (0, 1))(x, y)
    collect = device.take_batch()
    assert collect is not None
    collect()
    product = x.asnumpy() * y.asnumpy()
    np.testing.assert_array_equal(gradients[0].asnumpy(), (2 * product) * y.asnumpy())
    assert seen == [False, False]
    assert [one.max for one in found if one] == [product.max(), (2 * product).max()]


def test_mixed_precision_of_a_cell_does_not_reach_the_sums() -> None:
    device = prepared()
    found: list[Summary | None] = []
    exactly = np.array([1.0, 1 + 2**-20], np.float32)

    class Half(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            found.append(device.summarise(Tensor(exactly), None))
            return x * x

    out = Half().to_float(ms.float16)(Tensor(exactly))
    collect = device.take_batch()
    assert collect is not None
    collect()
    assert out.dtype == ms.float16  # the cell's own operators are still cast
    assert found[0] is not None
    assert found[0].max == 1 + 2**-20


def test_a_failure_of_ours_leaves_precision_and_differentiation_alone() -> None:
    x = Tensor([1.0, 3.0], ms.float32)

    class Half(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            with pytest.raises(MemoryError), Guard():
                raise MemoryError
            return x * x

    assert Half().to_float(ms.float16)(x).dtype == ms.float16
    assert (x * x).dtype == ms.float32
    assert ms.grad(lambda x: (x * x).sum())(x).asnumpy().tolist() == [2.0, 6.0]


def test_a_failure_that_empties_the_stack_of_precisions_is_survived() -> None:
    x = Tensor([1.0, 3.0], ms.float32)
    for _ in range(3):
        with pytest.raises(TypeError), Guard():
            ops.L2Loss()(Tensor([1, 2], ms.int64)).asnumpy()
    assert (x * x).dtype == ms.float32
    assert x.astype(ms.float16).dtype == (x.astype(ms.float16) * 2).dtype == ms.float16


def test_a_dispatch_mode_of_the_user_sees_nothing() -> None:
    names = []

    class Mode(MsDispatchMode):
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            names.append(func.name)
            return func(*args)

    device = prepared()
    x = Tensor([1.0, 2.0], ms.float32)
    assert device.summarise(x, None) is not None
    with Mode():
        assert device.summarise(x, None) is None
        assert device.copy(x) is None
        collect = device.take_batch()
        assert collect is not None
        collect()
    assert names == []


def test_random_numbers_are_the_same() -> None:
    device = prepared()

    def draw(summarising: bool) -> list[float]:
        ms.set_seed(3)
        found = []
        for _ in range(3):
            drawn = ops.randn(4)
            if summarising:
                device.summarise(drawn)
            found += drawn.asnumpy().tolist()
        return found

    assert draw(summarising=True) == draw(summarising=False)


# ---- shares of gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_copy_is_its_own_and_a_sum_keeps_the_type(dtype: str) -> None:
    device = prepared()
    values = np.array([1.5, -0.0, math.inf, math.nan, 3.0])
    tensor = tensor_of(values, dtype)
    device = prepared(tensor)
    copied = device.copy(tensor)
    assert copied.dtype == tensor.dtype
    assert copied.data_ptr() != tensor.data_ptr()
    np.testing.assert_array_equal(copied.asnumpy().view(np.uint8), tensor.asnumpy().view(np.uint8))
    total = device.add(copied, tensor_of(values, "float32"))
    assert total.dtype == tensor.dtype
    np.testing.assert_array_equal(
        total.astype(ms.float32).asnumpy(), (2 * values).astype(np.float32)
    )


# ---- recorded runs -------------------------------------------------------------------------------


def facts(value: Any) -> dict[str, Any]:
    """Return everything that a record says of a value, its numbers apart."""
    return {
        "dtype": value.dtype,
        "shape": value.shape,
        "nonfinite": (value.nan_count, value.pos_inf_count, value.neg_inf_count),
        "note": value.note,
    }


def described(view: Any) -> dict[tuple[Any, ...], Any]:
    return {
        (name, *path): value
        for name, record in view.records.items()
        for path, value in record.tensors()
        if not (name.startswith("Primitive.bn_infer") and path > ("output", 0))  # never written
    }


def assert_same_records(found: Path, expected: Path, steps: int) -> None:
    for step in range(steps):
        views = [open_dump(path).step(step).rank() for path in (found, expected)]
        assert list(views[0].records) == list(views[1].records)
        got, wanted = (described(view) for view in views)
        assert got.keys() == wanted.keys()
        assert len(got) > 4
        for key, value in got.items():
            assert facts(value) == facts(wanted[key]), key
            for name in NUMBERS:
                one, two = getattr(value, name), getattr(wanted[key], name)
                if type(two) is float and name in ("mean", "norm"):
                    np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-12, err_msg=str(key))
                else:
                    assert (type(one), one) == (type(two), two), key
    assert not list(found.rglob("dump_error_info.log"))


@pytest.mark.parametrize(
    ("family", "level", "queued"),
    [
        ("conv", "L0", False),
        ("conv", "mix", True),
        ("nested", "L1", False),
        ("transformer", "L0", True),
    ],
)
def test_a_run_is_the_same_and_so_are_its_records(
    family: str, level: str, queued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train(CASES[family], steps=2)
    host = PrecisionDebugger(dump_path=tmp_path / "host", level=level)
    assert train(CASES[family], steps=2, debugger=host) == alone
    reset_session()
    monkeypatch.setattr(adapter, "on_host", lambda: False)
    if queued:  # operators wait in a queue, as for an accelerator
        monkeypatch.setattr(observer, "on_host", lambda: False)
    device = PrecisionDebugger(dump_path=tmp_path / "device", level=level)
    assert train(CASES[family], steps=2, debugger=device) == alone
    reset_session()
    assert_same_records(tmp_path / "device", tmp_path / "host", 2)


def test_a_training_survives_a_device_that_lacks_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train(CASES["embedding"], steps=2)
    host = PrecisionDebugger(dump_path=tmp_path / "host", level="mix")
    assert train(CASES["embedding"], steps=2, debugger=host) == alone
    reset_session()
    monkeypatch.setattr(adapter, "on_host", lambda: False)
    monkeypatch.setattr(observer, "on_host", lambda: False)
    missing = Counted(ops.L2Loss())  # it has no kernel for integers, such as the ids of this net
    monkeypatch.setattr(device_reductions, "SHIFT", missing)
    device = PrecisionDebugger(dump_path=tmp_path / "device", level="mix")
    assert train(CASES["embedding"], steps=2, debugger=device) == alone
    reset_session()
    assert missing.calls > 0
    assert_same_records(tmp_path / "device", tmp_path / "host", 2)


def test_a_lost_batch_costs_the_numbers_not_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise RuntimeError("the device went away")

    monkeypatch.setattr(adapter, "on_host", lambda: False)
    monkeypatch.setattr(adapter.MindSporeAdapter, "take_batch", lambda self: lost)
    alone = train(CASES["conv"], steps=1)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    assert train(CASES["conv"], steps=1, debugger=debugger) == alone
    reset_session()
    values = described(open_dump(tmp_path).step(0).rank()).values()
    notes = [str(value.note) for value in values if value.mean is None]
    assert len(notes) > 10
    assert all("did not deliver" in note for note in notes)


class Burst(nn.Cell):
    """Divides by zero."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(ops.div(ops.abs(x), ops.zeros_like(x)))


def capture(folder: Path, settings: dict[str, Any]) -> Path:
    """Record one step and return the dump."""
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps({"dump_path": str(folder / "dump"), "level": "L1", **settings}))
    net, debugger = Burst(), PrecisionDebugger(config_path=file)
    debugger.start(net)
    ms.value_and_grad(lambda x: (net(x) + ops.relu(x) + x).sum())(Tensor(random(3, 4)))
    debugger.stop()
    debugger.step()
    reset_session()
    return folder / "dump"


SETTINGS = {
    "statistics": {"task": "statistics"},
    "slice": {"statistics": {"slice": [{"dim": 1, "size": 4, "begin": -3, "end": 3}]}},
    "slice_nothing": {"statistics": {"slice": [{"dim": 0, "begin": 5}]}},
    "md5": {"statistics": {"summary_mode": "md5"}},
    "tensor": {"task": "tensor"},
    "tensor_list": {"statistics": {"tensor_list": ["tanh"]}},
    "overflow_check": {"task": "overflow_check", "overflow_check": {"overflow_nums": 2}},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_task_gives_what_the_host_gives(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = capture(tmp_path / "host", SETTINGS[kind])
    monkeypatch.setattr(adapter, "on_host", lambda: False)
    device = capture(tmp_path / "device", SETTINGS[kind])
    records = [dict(open_dump(path).step(0).rank().records) for path in (host, device)]
    assert [one.notes for one in records[0].values()] == [one.notes for one in records[1].values()]
    if kind == "overflow_check":
        assert [one.notes["overflow"] for one in records[1].values()] == ["source", "inherited"]
    assert_same_records(device, host, 1)
    files = [{f.name: f.read_bytes() for f in path.rglob("*.npy")} for path in (host, device)]
    assert files[0] == files[1]
    assert bool(files[0]) == (kind in ("tensor", "tensor_list", "overflow_check"))


def test_a_recorded_step_reads_the_device_once(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (adapter, start_state):
        monkeypatch.setattr(module, "on_host", lambda: False)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    per_step = []

    class Noting:
        """Passes on to the debugger, and notes what was read between `start` and `step`."""

        def start(self, net: nn.Cell) -> None:
            reads.clear()
            debugger.start(net)

        def stop(self) -> None:
            debugger.stop()

        def step(self) -> None:
            debugger.step()
            per_step.append(len(reads))

    train(CASES["conv"], steps=3, debugger=Noting())
    # What arrives after `stop` (gradients of parameters) is a batch of its own.
    assert all(count <= 2 for count in per_step[1:]), per_step
    assert per_step[-1] >= 1
