# SPDX-License-Identifier: Apache-2.0
"""References and allowed errors against arithmetic of a hundred digits, where numbers are hard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from builders.recordings import recording
from msprobe import open_dump
from msprobe.checks.judging import Verdict
from msprobe.checks.verify_call import ResultRow, VerifyOptions, verify_call
from msprobe.dump.rank_view import RankView
from msprobe.dump.tensor_files import StoredTensor
from msprobe.replay.generated import narrow
from msprobe.replay.recorded_calls import call_names, recorded_call
from msprobe.replay.runner import runner_for
from msprobe.replay.tensors import TensorSource

mpmath = pytest.importorskip("mpmath")
mp: Any = mpmath.mp.clone()
mp.dps = 100

pytestmark = [pytest.mark.torch, pytest.mark.slow]

Numbers = Sequence[Any]
UNIT: Final = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _mean(x: Numbers) -> Any:
    return mp.fsum(x) / len(x)


def _variance(x: Numbers) -> Any:
    return mp.fsum((one - _mean(x)) ** 2 for one in x) / (len(x) - 1)


def _softmax(x: Numbers) -> Numbers:
    total = mp.fsum(map(mp.exp, x))
    return [mp.exp(one) / total for one in x]


def _layer_norm(x: Numbers) -> Numbers:
    root = mp.sqrt(_variance(x) * (len(x) - 1) / len(x) + mp.mpf(1e-5))
    return [(one - _mean(x)) / root for one in x]


def _rms_norm(x: Numbers) -> Numbers:
    root = mp.sqrt(mp.fsum(one**2 for one in x) / len(x) + mp.mpf(1e-6))
    return [one / root for one in x]


def _gelu(x: Numbers) -> Numbers:
    return [one * mp.erfc(-one / mp.sqrt(2)) / 2 for one in x]


SMALL: Final = [1e-30, -3e-12, 2e-5, -1e-3, 0.5]
TAILS: Final = [-9.0, -5.5, -3.0, -1e-3, 0.0, 1e-3, 4.0, 9.0]
NEARLY_EQUAL: Final = [100.0, 100.5, 99.5, 100.0, 101.0, 100.5]
SIGNS: Final = [1, -1, 1, 1, -1, 1]
CANCELLING: Final = [1024.0, 0.125, -1023.0, 3e-3, -1.125, 7e-4]
CASES: Final[dict[str, tuple[Callable[..., Any], Callable[[Numbers], Any], list[float]]]] = {
    "sum that cancels": (torch.sum, lambda x: [mp.fsum(x)], CANCELLING),
    "cumulative sum": (
        lambda x: torch.cumsum(x, 0),
        lambda x: [mp.fsum(x[: i + 1]) for i in range(len(x))],
        CANCELLING,
    ),
    "mean": (torch.mean, lambda x: [_mean(x)], CANCELLING),
    "variance of nearly equal": (torch.var, lambda x: [_variance(x)], NEARLY_EQUAL),
    "deviation": (torch.std, lambda x: [mp.sqrt(_variance(x))], NEARLY_EQUAL),
    "layer norm of nearly equal": (lambda x: F.layer_norm(x, x.shape), _layer_norm, NEARLY_EQUAL),
    "rms norm": (lambda x: F.rms_norm(x, x.shape, eps=1e-6), _rms_norm, CANCELLING),
    "softmax tails": (lambda x: F.softmax(x, 0), _softmax, [-30.0, 0.0, 3.0, 11.0]),
    "log softmax": (
        lambda x: F.log_softmax(x, 0),
        lambda x: [mp.log(one) for one in _softmax(x)],
        [-30.0, 0.0, 3.0, 40.0],
    ),
    "logsumexp": (
        lambda x: torch.logsumexp(x, 0),
        lambda x: [mp.log(mp.fsum(map(mp.exp, x)))],
        [-1.0, -2.0, 0.25, -0.5],
    ),
    "exp": (torch.exp, lambda x: list(map(mp.exp, x)), [-10.0, -1e-3, 0.0, 1e-3, 9.0]),
    "expm1": (torch.expm1, lambda x: list(map(mp.expm1, x)), SMALL),
    "log1p": (torch.log1p, lambda x: [mp.log(1 + one) for one in x], SMALL),
    "log near one": (torch.log, lambda x: list(map(mp.log, x)), [1.0, 1.0078125, 0.9921875, 7.0]),
    "tanh": (torch.tanh, lambda x: list(map(mp.tanh, x)), [*SMALL, 8.0]),
    "sin of large": (torch.sin, lambda x: list(map(mp.sin, x)), [355.0, 22.0, 1e3, 3.140625]),
    "sigmoid": (torch.sigmoid, lambda x: [1 / (1 + mp.exp(-one)) for one in x], TAILS),
    "gelu": (F.gelu, _gelu, TAILS),
    "silu": (F.silu, lambda x: [one / (1 + mp.exp(-one)) for one in x], TAILS),
    "softplus": (F.softplus, lambda x: [mp.log(1 + mp.exp(one)) for one in x], TAILS),
    "dot product that cancels": (
        lambda x: torch.dot(x, x.flip(0) * torch.tensor(SIGNS, dtype=x.dtype)),
        lambda x: [mp.fsum(a * b * s for a, b, s in zip(x, x[::-1], SIGNS, strict=True))],
        [3.0, 7.5, 0.75, 0.5, 2.0, 5.0],
    ),
}


@pytest.mark.parametrize("dtype", UNIT)
def test_exact_results_are_right_and_eight_budgets_more_are_wrong(
    tmp_path: Path, dtype: str
) -> None:
    inputs = [
        torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype))
        for _, _, values in CASES.values()
    ]
    with recording(tmp_path, "L1", "tensor") as run:
        for (function, _, _), x in zip(CASES.values(), inputs, strict=True):
            with run.step_of():
                function(x)
    views = open_dump(tmp_path).rank_views()
    for (case, (_, exactly, _)), x, view in zip(CASES.items(), inputs, views, strict=True):
        numbers = [mp.mpf(float(one)) for one in x]
        _check(case, view, dtype, numbers, exactly(numbers))


def _check(case: str, view: RankView, dtype: str, numbers: Numbers, exact: Numbers) -> None:
    call = recorded_call(view, call_names(view)[-1])
    source = _Changed(view)
    source.values = np.array([float(one) for one in exact])

    right, reference = _verify(call, view, source)
    assert right.judgement is not None
    assert right.judgement.verdict in (Verdict.EXACT, Verdict.ROUNDING), case
    # float64 itself is far from the allowed error.
    error = max(abs(mp.mpf(float(a)) - b) for a, b in zip(reference, exact, strict=True))
    assert error <= 1e-3 * UNIT[dtype] * max(*map(abs, exact), *map(abs, numbers)), case

    # The allowed error is known in full only of an element that needs explaining.
    place = int(np.argmax(np.abs(source.values)))
    source.values[place] *= 1 + 1e4 * UNIT[dtype]
    moved, _ = _verify(call, view, source)
    assert moved.judgement is not None
    source.values[place] = float(exact[place]) + 8 * moved.judgement.allowed
    wrong, _ = _verify(call, view, source)
    assert wrong.judgement is not None
    assert wrong.judgement.verdict is Verdict.WRONG, case


class _Changed(TensorSource):
    """A source in which a result has other elements."""

    values: np.ndarray

    def read(self, tree: Any, place: str) -> StoredTensor:
        """Return the elements of a tensor."""
        stored = super().read(tree, place)
        if ".output." not in str(tree.get("data_name")):
            return stored
        array = narrow(self.values, stored.dtype).reshape(stored.array.shape)
        return StoredTensor(array=array, dtype=stored.dtype)


def _verify(call: Any, view: RankView, source: _Changed) -> tuple[ResultRow, np.ndarray]:
    found: list[tuple[ResultRow, np.ndarray]] = []

    def seen(row: ResultRow, _: StoredTensor, reference: StoredTensor) -> None:
        found.append((row, reference.values().reshape(-1)))

    verify_call(call, runner_for(view.head.framework), source, VerifyOptions(), seen)
    return found[0]
