# SPDX-License-Identifier: Apache-2.0
"""The rows of a signature, and their sums: in C and in Python, and against sums of fractions."""

from __future__ import annotations

import math
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from msprobe.dump import signature_file
from msprobe.dump.signature_file import HEAD, PRINT, SignatureFile, SignatureWriter, entries_of

NAMES = [f"layer.{number}" for number in range(40)]
WAYS = ["C", "Python"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        for name in ("fill", "sum"):
            python = getattr(signature_file, f"_{name}_in_python")
            monkeypatch.setattr(signature_file, f"_{name}_entries", python)
    elif signature_file.NATIVE is None:
        pytest.skip("the C extension is not built")
    return str(request.param)


def prints(seed: int) -> NDArray[Any]:
    generator = np.random.default_rng(seed)
    made = np.zeros((3, len(NAMES)), PRINT)
    made["checksum"] = generator.integers(1, 1 << 32, made.shape)
    made["norm"] = np.exp(generator.normal(0, 8, made.shape))
    made["projections"] = generator.normal(size=(*made.shape, 2)) * made["norm"][..., None]
    made[1, 3] = (0, np.nan, (np.nan, np.nan))  # no gradient
    return made


def test_rows_are_the_prints_and_the_update(way: str) -> None:
    made = prints(1)
    made[0, 5] = (7, np.inf, (np.inf, -np.inf))
    made[2, 5] = (7, np.inf, (np.inf, -np.inf))
    kept = made.copy()
    entries = entries_of(made)
    assert made.tobytes() == kept.tobytes()
    assert (entries["checksum"] == made["checksum"]).all()
    assert np.array_equal(entries["norm"][:2], made["norm"][:2], equal_nan=True)
    rounded = made["projections"][:2].astype(np.float32)
    assert np.array_equal(entries["projections"][:2], rounded, equal_nan=True)
    for place, (norm, both) in enumerate(entries[["norm", "projections"]][2].tolist()):
        if place == 5:
            assert np.isnan([norm, *both]).all()
            continue
        moved = made["projections"][2, place] - made["projections"][0, place]
        assert list(both) == moved.astype(np.float32).tolist()
        exact = sum(Fraction(float(one)) ** 2 for one in moved) / 2
        assert norm == pytest.approx(math.sqrt(exact), rel=1e-14)


def test_sums_are_those_of_fractions(tmp_path: Path, way: str) -> None:
    entries = entries_of(prints(2))
    with_mark = entries.copy()
    with_mark["checksum"][2, 0] |= np.uint64(1 << 63)
    path = tmp_path / "rank.msig"
    writer = SignatureWriter(path)
    head = np.zeros((), HEAD)
    for step, rows in enumerate((entries, with_mark)):
        head["step"] = step
        writer.append(head, NAMES, rows, {})
    writer.close()
    with SignatureFile(path) as file:
        heads = file.heads
    signs = signature_file._signs_of(NAMES)
    for row, quantity in enumerate(("parameter", "gradient", "update")):
        known = entries[row]["checksum"] != 0
        norms = [Fraction(float(one)) ** 2 for one in entries[row]["norm"][known]]
        found = heads[0][quantity]
        assert found["norm"] == pytest.approx(math.sqrt(sum(norms)), rel=1e-13)
        for place in range(2):
            signed = entries[row]["projections"][known, place].astype(float) * signs[known, place]
            exact = float(sum(map(Fraction, signed)))
            # The error of a sum is relative to the sum of sizes.
            assert found["projections"][place] == pytest.approx(
                exact, abs=1e-14 * np.abs(signed).sum()
            )
        checksums = np.ascontiguousarray(entries[row]["checksum"])
        assert found["checksum"] == zlib.crc32(checksums.tobytes())
        assert bool(int(heads[1][quantity]["checksum"]) >> 63) == (quantity == "update")


def test_without_parameters_there_are_no_numbers(tmp_path: Path, way: str) -> None:
    entries = entries_of(np.zeros((3, 0), PRINT))
    writer = SignatureWriter(tmp_path / "rank.msig")
    writer.append(np.zeros((), HEAD), [], entries, {})
    writer.close()
    with SignatureFile(tmp_path / "rank.msig") as file:
        assert np.isnan(file.heads[0]["parameter"]["norm"])
        assert file.step(0).names == []


def test_arrays_that_do_not_fit_are_refused() -> None:
    if signature_file.NATIVE is None:
        pytest.skip("the C extension is not built")
    made = prints(3)
    with pytest.raises(ValueError, match="do not fit"):
        signature_file.NATIVE.fill_entries(made, np.empty((3, 2), signature_file.ENTRY))
    entries, signs = entries_of(made), np.ones((len(NAMES), 2))
    with pytest.raises(ValueError, match="do not fit"):
        signature_file.NATIVE.sum_entries(entries, signs, np.empty(4, np.uint64), np.empty((3, 3)))
