# SPDX-License-Identifier: Apache-2.0
"""What limits the gradients of a step is a fact of it; results are those without a recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.mindspore import PrecisionDebugger

pytestmark = pytest.mark.mindspore

GRADIENTS = [
    np.asarray(7 * np.random.default_rng(3).standard_normal(shape), np.float32)
    for shape in ((4, 3), (5,), ())
]
# The norm of all elements together, in float64.
TOTAL = float(np.sqrt(sum((one.astype(np.float64) ** 2).sum() for one in GRADIENTS)))


def tensors() -> tuple[Tensor, ...]:
    return tuple(map(Tensor, GRADIENTS))


def recorded(folder: Path, run: Callable[[], Any], **keys: Any) -> tuple[Any, list[Any], list[str]]:
    """Return the result of a call, the clippings in the facts of its step, and its records."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    reset_session()
    config = folder / "config.json"
    config.write_text(json.dumps({"dump_path": str(folder / "dump"), "level": "mix", **keys}))
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(nn.Dense(2, 2))
    result = run()
    debugger.stop()
    debugger.step()
    reset_session()
    rank = next((folder / "dump").glob("step0/rank*"))
    facts = json.loads((rank / "facts.json").read_text())
    records = list(json.loads((rank / "dump.json").read_text())["data"])
    return result, [each for each in facts["events"] if each["kind"] == "clip"], records


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: ops.clip_by_global_norm(tensors(), 0.5), ("clip_by_global_norm", 0.5, 2.0, TOTAL)),
        (lambda: ops.clip_by_global_norm(x=tensors()), ("clip_by_global_norm", 1.0, 2.0, TOTAL)),
        (lambda: ops.clip_by_norm(list(tensors()), 3), ("clip_by_norm", 3.0, 2.0, TOTAL)),
        (lambda: ops.clip_by_norm(list(tensors()), 3, 1.0), ("clip_by_norm", 3.0, 1.0, None)),
        (lambda: ops.clip_by_value(tensors(), -2, 2), ("clip_by_value", 2.0, None, None)),
        (
            lambda: ops.clip_by_value(tensors(), Tensor(-2.0), Tensor(9.0)),
            ("clip_by_value", None, None, None),
        ),
    ],
)
def test_a_limit_of_all_gradients_is_a_fact(
    run: Callable[[], Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    plain = run()
    result, (clip,), records = recorded(tmp_path, run)

    assert [clip.get(key) for key in ("function", "max", "norm_type")] == list(expected[:3])
    assert clip.get("total_norm") == (expected[3] and pytest.approx(expected[3], rel=1e-12))
    assert clip["parameters"] == len(GRADIENTS)
    assert not any("clip" in name for name in records)
    for one, other in zip(result, plain, strict=True):
        assert one.asnumpy().tobytes() == other.asnumpy().tobytes()


def test_a_limit_of_one_tensor_is_a_call(tmp_path: Path) -> None:
    _, clips, records = recorded(tmp_path, lambda: ops.clip_by_value(Tensor(GRADIENTS[0]), -2, 2))

    assert clips == []
    assert "Functional.clip_by_value.0.forward" in records


def test_the_call_is_recorded_where_that_is_wanted(tmp_path: Path) -> None:
    def run() -> Any:
        return ops.clip_by_global_norm(tensors(), 0.5)

    _, clips, records = recorded(tmp_path, run, optimizer_apis=True)

    assert len(clips) == 1
    assert "Functional.clip_by_global_norm.0.forward" in records


def test_an_error_is_that_of_the_program(tmp_path: Path) -> None:
    def run() -> str:
        with pytest.raises((TypeError, ValueError)) as error:
            ops.clip_by_global_norm(tensors(), "half")
        return str(error.value)

    words, clips, _ = recorded(tmp_path, run)

    assert words == run()
    assert clips == []
