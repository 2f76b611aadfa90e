# SPDX-License-Identifier: Apache-2.0
"""Numbers in verdicts on parameters, against the parameters themselves."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.compare.distances import Distance  # noqa: E402
from msprobe.compare.training.fingerprints import (  # noqa: E402
    Fingerprint,
    apart_together,
    change_of,
)

pytestmark = pytest.mark.torch


def build(change):
    """Return a model of which each seed draws another one, or whose weights are scaled."""
    torch.manual_seed(7 if change == "drawn" else 3)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(6)))
    for parameter in model.parameters():
        if change == "scaled":
            parameter.data.mul_(0.4)
        if change == "zero":
            parameter.data.zero_()
    return model


def run(debugger, change):
    model, x = build(change), torch.ones(4, 24)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda _: model(x).square().mean())


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("change", ["drawn", "zero"])
def test_how_far_parameters_are_apart(change, level, tmp_path):
    sentence = verdict_on(tmp_path, run, change, None, level=level)["sentence"]
    vectors = [nn.utils.parameters_to_vector(build(each).parameters()) for each in (change, None)]
    exact = ((vectors[0] - vectors[1]).norm() / vectors[1].norm()).item()
    told = re.search(
        r"all 12 parameters .* starts by (\S+)(?: to (\S+))? of their common norm", sentence
    )
    assert told is not None, sentence
    assert float(told[1]) <= exact * 1.01
    assert float(told[2] or told[1]) >= exact * 0.99


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_factor_of_all_parameters(level, tmp_path):
    sentence = verdict_on(tmp_path, run, "scaled", None, level=level)["sentence"]
    assert re.search(r"all 12 parameters .* when step 0 starts by the factor 0\.4$", sentence)


class Book(nn.Module):
    """Two buffers, of which one is a copy, drawn from another law by `change`."""

    def __init__(self, change, seed):
        super().__init__()
        torch.manual_seed(seed)
        drawn = torch.rand(16, 8) * 2 - 1 if change == "uniform" else torch.randn(16, 8)
        self.register_buffer("book", drawn)
        self.register_buffer("copy", drawn.clone())
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x @ self.book * self.scale


@pytest.mark.parametrize("seed", [0, 10])
def test_two_projections_are_no_estimate(seed, tmp_path):
    def look_up(debugger, change):
        model = Book(change, seed)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        fit(debugger, model, optimizer, lambda _: model(torch.ones(4, 16)).square().mean())

    sentence = verdict_on(tmp_path, look_up, "uniform", None, level="L0")["sentence"]
    books = [Book(each, seed).book for each in ("uniform", None)]
    exact = ((books[0] - books[1]).norm() / books[1].norm()).item()
    told = re.search(r"starts by (?:at least )?([0-9.]+)(?: to ([0-9.]+))? of", sentence)
    assert told is not None, sentence
    assert float(told[1]) <= exact * 1.01
    assert float(told[2] or math.inf) >= exact


@pytest.mark.parametrize("tensors", [1, 3, 12, 60])
def test_distances_are_between_the_ends_that_are_said(tensors):
    """Of a hundred at most two are not, whatever the signs that the projections draw."""
    drawn = np.random.default_rng(tensors)
    inside = 0
    for _ in range(300):
        changes, apart, size = [], 0.0, 0.0
        for _ in range(tensors):
            reference = drawn.normal(size=40)
            target = reference + drawn.normal(size=40) * drawn.uniform(0.01, 0.02)
            signs = drawn.choice([-1.0, 1.0], (2, 40))
            sides = [
                Fingerprint("float32", str(each.sum()), np.linalg.norm(each), [*(signs @ each)])
                for each in (target, reference)
            ]
            changes.append((change_of(*sides), sides[1].norm))
            apart += np.square(target - reference).sum()
            size += np.square(reference).sum()
        words = apart_together(changes)
        told = re.search(r"by (?:about |at least )?(\S+)(?: to (\S+))? of the", words)
        high = math.inf if "at least" in words else float(told[2] or told[1]) * 1.03
        inside += float(told[1]) * 0.97 <= math.sqrt(apart / size) <= high
    assert inside >= 0.96 * 300


def test_a_distance_says_how_well_it_is_known():
    exact, bound, estimate = Distance(0.3, is_exact=True), Distance(0.3, 0.2), Distance(0.3, 0.1)
    assert [str(each) for each in (exact, bound, estimate)] == ["0.3", "at least 0.2", "about 0.3"]
    assert [str(each.scaled(10)) for each in (exact, bound)] == ["3", "at least 2"]
    with pytest.raises(TypeError):  # nor can it be said otherwise
        format(estimate, ".2g")


def test_how_far_single_numbers_are_apart_is_known(tmp_path):
    def run(debugger, numbers):
        model = nn.Sequential(nn.Linear(4, 4))
        for name, number in zip(("scale", "shift"), numbers, strict=True):
            model.register_parameter(name, nn.Parameter(torch.tensor(number)))

        def loss(_):
            return (model(torch.ones(2, 4)) * model.scale + model.shift).mean()

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)

    sentence = verdict_on(tmp_path, run, (2.5, 1.0), (-2.0, -3.0), level="L0")["sentence"]
    assert "(scale, shift) differ when step 0 starts by 1.7 of their common norm" in sentence
