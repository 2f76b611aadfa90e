# SPDX-License-Identifier: Apache-2.0
"""The task `noise_floor` in the dynamic graph: results move by their rounding, while recording."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from nets import random

import mindspore as ms
import msprobe
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.errors import ConfigError
from msprobe.mindspore import PrecisionDebugger


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Dense(8, 8), nn.LayerNorm((8,))

    def construct(self, x: Tensor) -> Tensor:
        return ops.softmax(self.norm(self.fc(x)))


def config(folder: Path, task: str, **section: object) -> Path:
    folder.mkdir(parents=True)
    keys = {"task": task, "level": "mix", "dump_path": str(folder / "dump"), task: section}
    (folder / "config.json").write_text(json.dumps(keys))
    return folder / "config.json"


def train(folder: Path, task: str = "noise_floor", **section: object) -> tuple[np.ndarray, ...]:
    """Record one step; return the result and the gradients."""
    reset_session()
    ms.set_seed(1)
    net, x = Net(), Tensor(random(4, 8))
    for index, parameter in enumerate(net.trainable_params()):
        parameter.set_data(Tensor(random(*parameter.shape) + 0.1 * index))
    debugger = PrecisionDebugger(config_path=config(folder, task, **section))
    debugger.start(net)
    found = ms.value_and_grad(lambda x: (net(x) ** 2).sum(), None, net.trainable_params())(x)
    debugger.stop()
    debugger.step()
    assert not list(folder.rglob("dump_error_info.log"))
    return (found[0].asnumpy().copy(), *(one.asnumpy().copy() for one in found[1]))


def test_results_and_gradients_move_by_roundings_of_the_seed(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", "statistics")
    first, again = (train(tmp_path / name, seed=7) for name in ("a", "b"))
    other = train(tmp_path / "c", seed=8)
    assert all(map(np.array_equal, first, again))
    for moved in (first, other):
        assert not all(map(np.array_equal, plain, moved))
        for one, by in zip(plain, moved, strict=True):
            np.testing.assert_allclose(by, one, rtol=1e-4, atol=1e-6 * np.abs(one).max())
    assert not all(map(np.array_equal, first, other))


def test_a_comparison_takes_them_for_its_budget(tmp_path: Path) -> None:
    names = ("n1", "n2", "plain", "target")
    noise, plain = names[:2], names[2:]
    for seed, name in enumerate(noise):
        train(tmp_path / name, seed=seed)
    for name in plain:
        train(tmp_path / name, "statistics")
    dumps = [tmp_path / name / "dump" for name in names]
    summary = msprobe.compare_dumps(dumps[3], dumps[2], noise=dumps[:2]).summary
    assert summary["verdict"]["class"] == "equal"


def test_nothing_moves_after_stop_and_inputs_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reset_session()
    net, x = Net(), Tensor(random(4, 8))
    before, data = net(x).asnumpy().copy(), x.asnumpy().copy()
    with caplog.at_level(logging.WARNING, logger="msprobe"):
        debugger = PrecisionDebugger(config_path=config(tmp_path / "n", "noise_floor", seed=987))
        debugger.start(net)
    during = net(x).asnumpy().copy()
    debugger.stop()
    assert not np.array_equal(during, before)
    assert np.array_equal(net(x).asnumpy(), before)
    assert np.array_equal(x.asnumpy(), data)
    assert "changes the training" in caplog.text


def test_a_mode_of_the_user_that_is_entered_meanwhile_stays(tmp_path: Path) -> None:
    seen: list[str] = []

    class Mode(ms.utils.ms_dispatch.MsDispatchMode):
        def __ms_dispatch__(self, func, args, kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func.name)
            return func(*args)

    reset_session()
    net, x = Net(), Tensor(random(4, 8))
    before = net(x).asnumpy().copy()
    debugger = PrecisionDebugger(config_path=config(tmp_path / "n", "noise_floor"))
    debugger.start(net)
    with Mode():
        debugger.stop()
        net(x)
        assert seen
    assert np.array_equal(net(x).asnumpy(), before)


@pytest.fixture(autouse=True)
def _session() -> Iterator[None]:
    yield
    reset_session()


def test_kernels_are_refused(tmp_path: Path) -> None:
    file = config(tmp_path / "n", "noise_floor")
    file.write_text(file.read_text().replace('"mix"', '"L2"'))
    with pytest.raises(ConfigError, match="does not work at level L2"):
        PrecisionDebugger(config_path=file)
