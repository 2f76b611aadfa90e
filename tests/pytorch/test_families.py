# SPDX-License-Identifier: Apache-2.0
"""The families themselves: if they were not exact, the tests that use them would say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import FAMILIES, REFERENCES, TrainCase, differences, digest, train
from families.process_group import DISTRIBUTED_FAMILIES, run_ranks
from torch import nn

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_rerun_is_bit_identical(family: str) -> None:
    expected = train(REFERENCES[family](7))
    assert len(expected) >= 40
    assert differences(expected, train(FAMILIES[family](7))) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_training_moves_and_stays_finite(family: str) -> None:
    case = FAMILIES[family](7)
    losses = [case.run_step(step).item() for step in range(5)]
    assert all(abs(loss) < 1e3 for loss in losses)
    assert len(set(losses)) == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_another_seed_gives_another_run(family: str) -> None:
    assert "step0/loss" in differences(train(FAMILIES[family](7), 1), train(FAMILIES[family](8), 1))


@pytest.mark.parametrize(
    ("target", "noticed"),
    [("parameter", "step1/parameter/0.0.weight"), ("grad", "step1/grad/0.0.weight")],
)
def test_the_fingerprint_notices_one_flipped_bit(target: str, noticed: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def case(*, flip: bool) -> TrainCase:
        def run_step(step: int) -> torch.Tensor:
            weight = model[0].weight
            weight.grad = torch.ones_like(weight)
            with torch.no_grad():
                weight.fill_(0.5)
                victim = weight if target == "parameter" else weight.grad
                if flip and step == 1:
                    victim.view(torch.int32)[1, 2] ^= 1
            return torch.zeros(())

        return TrainCase(model, run_step, [optimizer])

    assert differences(train(case(flip=False), 3), train(case(flip=True), 3)) == [noticed]


def test_the_fingerprint_notices_a_single_random_draw() -> None:
    def case(*, draw: bool) -> TrainCase:
        torch.manual_seed(0)
        return TrainCase(
            nn.Linear(1, 1), lambda _: torch.rand(()) * 0 if draw else torch.zeros(()), []
        )

    model_values = ("step0/parameter/0.weight", "step0/parameter/0.bias", "step0/loss")
    found = differences(train(case(draw=False), 1), train(case(draw=True), 1))
    assert found == ["step0/rng/torch"]
    assert not set(model_values) & set(found)


def test_digest_tells_negative_zero_dtype_shape_and_nan_payload_apart() -> None:
    zero, nan = torch.zeros(2), torch.tensor([float("nan")])
    other_nan = nan.clone()
    other_nan.view(torch.int32).add_(1)
    values = [zero, -zero, zero.double(), zero.view(2, 1), nan, other_nan, zero.requires_grad_()]
    # the last one changed the first in place, so digest it before
    digests = {digest(v) for v in values[1:-1]} | {digest(torch.zeros(2)), digest(values[-1])}
    assert len(digests) == len(values)


@pytest.mark.slow
@pytest.mark.parametrize("family", DISTRIBUTED_FAMILIES)
def test_a_distributed_rerun_is_bit_identical(family: str, tmp_path: Path) -> None:
    code = f"report(train(DISTRIBUTED_FAMILIES[{family!r}](7)))"
    first, second = (run_ranks(code, tmp_path / name) for name in ("first", "second"))
    assert len(first) == 2
    assert first[0] != first[1]
    for expected, found in zip(first, second, strict=True):
        assert differences(expected, found) == []
