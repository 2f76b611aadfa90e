# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples of all its operators: no false alarm, and damage is found."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
import torch
from damaged_results import detection

from builders.operator_calls import (
    module_database,
    operator_database,
    record_modules,
    record_samples,
)
from msprobe import open_dump
from msprobe.checks.verify_dump import verify_dump

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1800)]
pytest.importorskip("expecttest")

SAMPLES: Final = 2
# With MSPROBE_TEST_ALL_OPERATORS=1 every entry is tried: some three minutes for each type.
EVERY: Final = 1 if os.environ.get("MSPROBE_TEST_ALL_OPERATORS") else 16
# Kernels of the CPU that are wrong: docs/tasks/verify.md tells of each.
KNOWN_FAULTS: Final = {
    "Torch.matrix_exp": "NaN in half types, for results within their range",
}
DAMAGED: Final = ("add", "mul", "matmul", "nn.functional.linear", "softmax", "sum", "exp", "cumsum")
TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sound_kernels_are_not_called_wrong(tmp_path: Path, dtype: torch.dtype) -> None:
    operators = operator_database()[6 * TYPES.index(dtype) % EVERY :: EVERY]  # others for each
    folder = record_samples(tmp_path, operators, dtype, most=SAMPLES)

    found = verify_dump(open_dump(folder), workers=0)

    faults = Counter(call.report.name.rsplit(".", 2)[0] for call in found.calls if call.is_fault)
    unexplained = sum(faults[name] for name in faults if name not in KNOWN_FAULTS)
    assert len(found.calls) > len(operators)
    assert unexplained <= 0.002 * found.judged, faults
    # A part of the operators may hold more than its share of those that nobody can judge.
    assert found.judged >= (0.95 if EVERY == 1 else 0.93) * len(found.calls), found.not_judged


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("level", "judged"), [("L0", 0.8), ("L1", 0.9)])
def test_sound_modules_are_not_called_wrong(
    tmp_path: Path, dtype: torch.dtype, level: str, judged: float
) -> None:
    """At L0 those with other modules in them, as `Transformer`, are not judged."""
    entries = module_database()[::EVERY]
    folder = record_modules(tmp_path, entries, dtype, level, most=SAMPLES)

    found = verify_dump(open_dump(folder), workers=0)

    assert len(found.calls) > len(entries)
    assert not [call.report.name for call in found.calls if call.is_fault]
    assert found.judged >= judged * len(found.calls), found.not_judged


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_damage_beyond_the_allowed_error_is_found(tmp_path: Path, dtype: torch.dtype) -> None:
    damaged = DAMAGED if EVERY == 1 else DAMAGED[TYPES.index(dtype) :: len(TYPES)]
    operators = [one for one in operator_database() if one.name in damaged]
    folder = record_samples(tmp_path, operators, dtype, most=SAMPLES)
    view = next(open_dump(folder).rank_views())

    found = detection(view)

    for kind in ("one element, 8 x allowed", "factor 0.5", "one sign", "transposed"):
        counts = found[kind]
        assert counts["found"] >= 0.99 * counts["damaged"], (kind, counts)
