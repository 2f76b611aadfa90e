# SPDX-License-Identifier: Apache-2.0
"""Comparisons of training steps that MindSpore compiles as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor, nn  # noqa: E402
from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.mindspore


def test_another_activation_inside_of_compiled_code_is_not_equal(tmp_path: Path) -> None:
    target, reference = (_record(tmp_path / str(is_tanh), is_tanh) for is_tanh in (True, False))
    verdict = _verdict(target, reference)
    assert verdict["class"] == "unexplained"
    assert "though all it is given is equal" in verdict["sentence"]
    assert verdict["confidence"] == "possible"


def test_compiled_code_of_the_user_is_no_kernel(tmp_path: Path) -> None:
    target, reference = (_record(tmp_path / str(tanh), tanh, shift=0.0) for tanh in (True, False))
    verdict = _verdict(target, reference)
    assert verdict["class"] != "kernel", verdict["sentence"]
    assert verdict["class"] not in {"equal", "rounding"}


def test_the_same_compiled_code_is_equal(tmp_path: Path) -> None:
    verdict = _verdict(*(_record(tmp_path / name, False) for name in "ab"))
    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")


def test_a_setting_of_an_optimizer_in_compiled_code_is_named(tmp_path: Path) -> None:
    target, reference = (
        _record_step(tmp_path / str(rate), _with_optimizer, rate=rate) for rate in (0.02, 0.01)
    )
    verdict = _verdict(target, reference)
    assert (verdict["class"], verdict["confidence"]) == ("optimizer_setting", "proved")
    assert "SGD lr is 0.02 in the target, 0.01 in the reference" in verdict["sentence"]


def test_what_compiled_code_makes_of_parameters_is_seen(tmp_path: Path) -> None:
    target, reference = (
        _record_step(tmp_path / str(rate), _by_hand, rate=rate) for rate in (0.02, 0.01)
    )
    verdict = _verdict(target, reference)
    assert verdict["class"] == "update"
    assert "differ after step 0" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_clipping_in_compiled_code_is_not_equal(tmp_path: Path, level: str) -> None:
    target, reference = (
        _record_step(tmp_path / str(limit), _with_optimizer, limit=limit, level=level)
        for limit in (None, 0.01)
    )
    verdict = _verdict(target, reference)
    # Level L1 sees no gradient inside.
    assert verdict["class"] == ("clipping" if level == "L0" else "update"), verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_steps_that_are_compiled_are_equal_to_others(tmp_path: Path, level: str) -> None:
    target, reference = (
        _record_step(tmp_path / str(is_jit), _with_optimizer, is_jit=is_jit, level=level, steps=3)
        for is_jit in (True, False)
    )
    verdict = _verdict(target, reference)
    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]
    assert "ranks" not in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_data_that_differ_a_little_in_a_compiled_step_are_named(tmp_path: Path, level: str) -> None:
    target, reference = (
        _record_step(tmp_path / str(noise), _with_optimizer, noise=noise, level=level)
        for noise in (1e-5, 0.0)
    )
    verdict = _verdict(target, reference)
    assert (verdict["class"], verdict["confidence"]) == ("data", "proved"), verdict["sentence"]
    assert "the batch of step 0 differs" in verdict["sentence"]


def test_a_compiled_step_whose_result_nobody_saw_is_not_proved_to_be_equal(tmp_path: Path) -> None:
    target, reference = (
        _record_step(tmp_path / str(rate), _with_optimizer, rate=rate) for rate in (0.02, 0.01)
    )
    for path in (target, reference):
        for facts in path.rglob("facts.json"):  # as older versions recorded it
            content = json.loads(facts.read_text())
            facts.write_text(json.dumps({**content, "events": [], "buffers_after": None}))
    verdict = _verdict(target, reference)
    assert (verdict["class"], verdict["confidence"]) == ("equal", "possible")
    assert "what step 0 made of the parameters was not recorded" in verdict["sentence"]


def test_an_option_of_a_cell_is_the_argument_of_its_primitive_without_records_of_cells(
    tmp_path: Path,
) -> None:
    target, reference = (_record_norm(tmp_path / str(epsilon), epsilon) for epsilon in (1e-2, 1e-7))
    verdict = _verdict(target, reference)
    assert verdict["class"] == "argument", verdict["sentence"]
    assert "epsilon is 0.01 in the target, 1e-07 in the reference" in verdict["sentence"]


@pytest.mark.parametrize("rate", [0.01, 0.02])
def test_an_update_by_hand_in_compiled_code_is_an_update(tmp_path: Path, rate: float) -> None:
    target = _record_step(tmp_path / "target", _by_hand, rate=rate)
    reference = _record_step(tmp_path / "reference", _with_optimizer)
    verdict = _verdict(target, reference)
    assert "never" not in verdict["sentence"]
    if rate == 0.01:
        assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")
    else:
        assert verdict["class"] == "update"
        assert (
            "updated by SGD in the reference, by other code in the target" in (verdict["sentence"])
        )


@pytest.mark.parametrize("rate", [0.01, 0.02])
def test_gradients_that_compiled_code_does_not_show_are_not_missing(
    tmp_path: Path, rate: float
) -> None:
    target = _record_step(tmp_path / "target", _by_hand, rate=rate, level="L0")
    reference = _record_step(tmp_path / "reference", _with_optimizer, is_jit=False, level="L0")
    verdict = _verdict(target, reference)
    if rate == 0.01:
        assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")
    else:
        assert verdict["class"] == "update", verdict["sentence"]


def test_mixed_precision_that_rewrites_a_net_is_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generated code casts the parameters of a layer norm in another order."""
    monkeypatch.chdir(tmp_path)  # MindSpore writes that code there
    target, reference = (_record_mixed(tmp_path / str(mixed), mixed) for mixed in (True, False))
    verdict = _verdict(target, reference)
    assert (verdict["class"], verdict["confidence"]) == ("precision", "proved"), verdict["sentence"]
    assert "float16 in the target" in verdict["sentence"]


def test_memory_that_a_kernel_never_wrote_is_no_difference(tmp_path: Path) -> None:
    target, reference = (_record_lstm(tmp_path / name) for name in "ab")
    for path in target.rglob("dump.json"):
        content = json.loads(path.read_text())
        records = content["data"]
        output = records["Primitive.LSTM.0.forward"]["output"][3]
        output.update(Max=7.0, Norm=10 * output["Norm"], projections=[1.0, 2.0])
        path.write_text(json.dumps(content))
    verdict = _verdict(target, reference)
    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]
    for path in target.rglob("dump.json"):
        content = json.loads(path.read_text())
        gradient = content["data"]["Primitive.LSTM.0.backward"]["output"][3]  # of the weights
        gradient.update(Max=7.0, Norm=10 * gradient["Norm"])
        path.write_text(json.dumps(content))
    assert _verdict(target, reference)["class"] not in {"equal", "rounding"}


def _record_lstm(folder: Path) -> Path:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    generator = np.random.default_rng(0)
    net = nn.LSTM(4, 4, batch_first=True)
    for each in net.get_parameters():
        each.set_data(Tensor(0.3 * generator.standard_normal(each.shape).astype(np.float32)))
    x = Tensor(generator.standard_normal((2, 3, 4)).astype(np.float32))
    grad = mindspore.value_and_grad(lambda x: net(x)[0].sum(), None, net.trainable_params())
    with _recorded(folder, net, "mix"):
        grad(x)
    return folder / "dump"


def _with_optimizer(net: nn.Cell, rate: float, limit: float | None) -> Callable[..., Tensor]:
    optimizer = nn.SGD(net.trainable_params(), rate)

    def step(x: Tensor) -> Tensor:
        loss, gradients = grad(x)
        if limit is not None:
            gradients = mindspore.ops.clip_by_global_norm(gradients, limit)
        optimizer(gradients)
        return loss

    grad = mindspore.value_and_grad(_loss_of(net), None, net.trainable_params())
    return step


def _by_hand(net: nn.Cell, rate: float, _limit: float | None) -> Callable[..., Tensor]:
    weights = net.trainable_params()

    def step(x: Tensor) -> Tensor:
        loss, gradients = grad(x)
        for weight, gradient in zip(weights, gradients):  # noqa: B905 - MindSpore's own
            mindspore.ops.assign(weight, weight - rate * gradient)
        return loss

    grad = mindspore.value_and_grad(_loss_of(net), None, weights)
    return step


def _loss_of(net: nn.Cell) -> Callable[..., Tensor]:
    def loss_of(x: Tensor) -> Tensor:
        return (net(x) ** 2).mean()

    return loss_of


def _record_step(
    folder: Path,
    making: Callable[[nn.Cell, float, float | None], Callable[..., Tensor]],
    *,
    rate: float = 0.01,
    limit: float | None = None,
    is_jit: bool = True,
    level: str = "L1",
    steps: int = 1,
    noise: float = 0.0,
) -> Path:
    """Record steps of a function that trains, compiled as a whole."""
    net, generator = _net(is_tanh=False)
    step = making(net, rate, limit)
    x = generator.standard_normal((8, 8))
    x *= 1 + noise * generator.standard_normal((8, 8))
    with _recorded(folder, net, level) as debugger:
        run = mindspore.jit(step) if is_jit else step
        for number in range(steps):
            if number:
                debugger.stop()
                debugger.step()
                debugger.start(net)
            run(Tensor(x.astype(np.float32)))
    return folder / "dump"


def _record(folder: Path, is_tanh: bool, shift: float = 20.0) -> Path:
    net, generator = _net(is_tanh)

    def loss_of(x: Tensor) -> Tensor:
        return (net(x) + shift).mean()

    step = mindspore.value_and_grad(mindspore.jit(loss_of), None, net.trainable_params())
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    with _recorded(folder, net, "L1"):
        _, gradients = step(Tensor(generator.standard_normal((8, 8)).astype(np.float32)))
        optimizer(gradients)
    return folder / "dump"


class _Normed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Dense(8, 8), nn.LayerNorm((8,)), nn.Dense(8, 1)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.inner(x)))


def _record_mixed(folder: Path, is_mixed: bool) -> Path:
    """Record two steps in the dynamic graph, in mixed precision or not."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    net, generator = _Normed(), np.random.default_rng(0)
    for each in net.get_parameters():
        each.set_data(Tensor(0.3 * generator.standard_normal(each.shape).astype(np.float32)))
    net.set_train()
    if is_mixed:
        mindspore.amp.auto_mixed_precision(net, "O1")
    step = _with_optimizer(net, 0.01, None)
    x = Tensor(generator.standard_normal((8, 8)).astype(np.float32))
    with _recorded(folder, net, "mix") as debugger:
        step(x)
        debugger.stop()
        debugger.step()
        debugger.start(net)
        step(x)
    return folder / "dump"


def _record_norm(folder: Path, epsilon: float) -> Path:
    """Record a layer norm in the dynamic graph, without its cells."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    generator = np.random.default_rng(0)
    net = nn.SequentialCell(nn.Dense(8, 8, has_bias=False), nn.LayerNorm((8,), epsilon=epsilon))
    net[0].weight.set_data(Tensor(0.1 * generator.standard_normal((8, 8)).astype(np.float32)))
    x = generator.standard_normal((4, 8))
    with _recorded(folder, net, "L1"):
        net(Tensor(x.astype(np.float32)))
    return folder / "dump"


def _net(is_tanh: bool) -> tuple[nn.Cell, np.random.Generator]:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    generator = np.random.default_rng(0)
    net = nn.SequentialCell(nn.Dense(8, 8), nn.GELU(approximate=is_tanh), nn.Dense(8, 1))
    for each in net.get_parameters():
        each.set_data(Tensor(0.3 * generator.standard_normal(each.shape).astype(np.float32)))
    net.set_train()
    return net, generator


@contextmanager
def _recorded(folder: Path, net: nn.Cell, level: str) -> Iterator[PrecisionDebugger]:
    folder.mkdir()
    config = folder / "config.json"
    wanted = {"task": "statistics", "level": level, "dump_path": str(folder / "dump")}
    config.write_text(json.dumps({**wanted, "rank": [], "step": []}))
    reset_session()
    debugger = PrecisionDebugger(str(config))
    debugger.start(net)
    yield debugger
    debugger.stop()
    debugger.step()


def _verdict(target: Path, reference: Path) -> dict[str, Any]:
    return run_comparison(target, reference, CompareOptions(workers=1)).summary["verdict"]
