# SPDX-License-Identifier: Apache-2.0
"""States of random generators, where the calls that draw from them recorded these."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = [pytest.mark.torch]


def recorded(folder: Path, seed: int) -> Path:
    x = torch.linspace(1.0, 2.0, 64)
    torch.manual_seed(seed)
    with recording(folder, "L1", "tensor", record_rng=True) as observed, observed.step_of():
        functional.dropout(x.square(), 0.5).sum()
    for path in folder.rglob("facts.json"):  # they would tell it of the generator itself
        path.unlink()
    return folder


def test_another_state_of_the_generator_is_told(tmp_path: Path) -> None:
    sides = recorded(tmp_path / "target", 1), recorded(tmp_path / "reference", 2)
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "random"
    words = "the state of the generator that Functional.dropout.0.forward draws from"
    assert words in verdict["sentence"]
