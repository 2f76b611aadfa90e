# SPDX-License-Identifier: Apache-2.0
"""Changes that are computed must be those that probes with random errors measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812

from builders.recordings import recording  # noqa: E402
from msprobe import open_dump  # noqa: E402
from msprobe.pytorch.replay.runner import RUNNER  # noqa: E402
from msprobe.replay.recorded_calls import call_names, recorded_call  # noqa: E402
from msprobe.replay.runner import Noise, Replay, Setting  # noqa: E402
from msprobe.replay.tensors import TensorSource  # noqa: E402

pytestmark = pytest.mark.torch

UNIT = 2.0**-24
PROBES = 48

X = (6, 12, 16)
CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": F.linear,
    "matmul": lambda x, w, b: torch.matmul(x, w.t()),
    "conv1d": lambda x, w, b: F.conv1d(x, w[:, :12, None].expand(-1, -1, 3), b, padding=1),
    "add": lambda x, w, b: torch.add(x, b),
    "mul": lambda x, w, b: torch.mul(x, b),
    "sum": lambda x, w, b: torch.sum(x, dim=-1),
    "embedding": lambda x, w, b: F.embedding(torch.arange(40) % 16, w),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (16,), b, b + 1),
    "scaled_dot_product_attention": lambda x, w, b: F.scaled_dot_product_attention(
        x[:, None], x[:, None] * 0.5, x[:, None], is_causal=True
    ),
}


def replays(folder: Path, name: str) -> tuple[Replay | None, Replay, list[Replay]]:
    """Squares, the reference, and probes of the call that has a name."""
    torch.manual_seed(0)
    x, w, b = (torch.randn(*size, requires_grad=True) for size in (X, (16, 16), (16,)))
    with recording(folder, "L1", "tensor") as run:
        run.debugger.start()
        y = CALLS[name](x, w, b)
        y.backward(y.detach())
        run.debugger.stop()
        run.debugger.step()
    (view,) = open_dump(folder).rank_views()
    (call,) = [one for each in call_names(view) if (one := recorded_call(view, each)).api == name]
    prepared = RUNNER.prepare(call, TensorSource(view))
    probes = [prepared.run(Setting(noise=Noise(UNIT, seed))) for seed in range(PROBES)]
    return prepared.squares(), prepared.run(), probes


@pytest.mark.parametrize("name", CALLS)
def test_computed_changes_are_those_of_probes(tmp_path: Path, name: str) -> None:
    squares, reference, probes = replays(tmp_path, name)
    assert squares is not None
    results = {("forward", place): one for place, one in squares.outputs.items()}
    for record, found in squares.gradients.items():
        results |= {(record, place): one for place, one in found.items()}

    for (record, place), computed in results.items():

        def values(replay: Replay, record: str = record, place: tuple = place) -> np.ndarray:
            found = replay.outputs if record == "forward" else replay.gradients[record]
            return found[place].values().astype(np.float64)

        exact = values(reference)
        drawn = np.sqrt(np.mean([(values(one) - exact) ** 2 for one in probes], axis=0))
        # Probes put an error on the result, too, which the allowed error counts by itself.
        own = UNIT * np.sqrt(computed.values())
        whole = np.hypot(own, UNIT * np.abs(exact))
        assert np.median(own / np.maximum(drawn, 1e-300)) < 1.15, place
        assert np.median(whole / np.maximum(drawn, 1e-300)) > 0.5, place


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.sub(x, x.flip(0)),
        lambda x: torch.mul(x, 0.1),
        lambda x: torch.std(x, dim=[0, 1]),
        lambda x: torch.addmm(x, x, x, beta=0.5),
        lambda x: torch.softmax(x, -1),
    ],
)
def test_functions_with_other_factors_are_left_to_probes(
    tmp_path: Path, call: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with recording(tmp_path, "L1", "tensor") as run:
        run.debugger.start()
        call(torch.ones(4, 4))
        run.debugger.stop()
        run.debugger.step()
    (view,) = open_dump(tmp_path).rank_views()
    last = recorded_call(view, call_names(view)[-1])

    assert RUNNER.prepare(last, TensorSource(view)).squares() is None
