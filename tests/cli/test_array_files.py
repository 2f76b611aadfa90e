# SPDX-License-Identifier: Apache-2.0
"""`msprobe show` and `msprobe compare` on single array files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_show_command import refused, run

from builders.dumps import save_archive

VALUES = np.float32([[1, -2, 3], [0.5, 0.25, 8]])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Arrays in the working directory."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", VALUES)
    np.save("close.npy", VALUES * np.float32(1 + 2**-22))
    np.save("far.npy", VALUES + np.float32([0, 0, 1]))
    np.save("nan.npy", np.float32([np.nan, np.inf, 1]))
    np.save("row.npy", VALUES.reshape(1, 2, 3))
    save_archive(VALUES, Path("a.pt"))
    save_archive(np.uint16([[0x3F80, 0xC000]]), Path("bf16.pt"), "bfloat16")
    return tmp_path


@pytest.mark.parametrize("name", ["a.npy", "a.pt"])
def test_show_says_what_an_array_holds(files, capsys, name):
    code, out, err = run(capsys, "show", name)
    assert (code, err) == (0, "")
    assert "float32[2,3], 6 elements, 24 B" in out
    assert "max 8  min -2  mean 1.792" in out
    assert "1, -2, 3, 0.5, 0.25, 8" in out


def test_show_widens_what_numpy_lacks_and_counts_what_is_not_finite(files, capsys):
    assert "1, -2" in run(capsys, "show", "bf16.pt")[1]
    assert "bfloat16[1,2]" in run(capsys, "show", "bf16.pt")[1]
    assert "1 NaN, 1 +Inf" in run(capsys, "show", "nan.npy")[1]
    facts = json.loads(run(capsys, "show", "nan.npy", "--json")[1])
    assert (facts["shape"], facts["max"].lower(), facts["nan_count"]) == ([3], "nan", 1)


@pytest.mark.parametrize(
    ("target", "said", "different"),
    [
        ("a.npy", "EQUAL", False),
        ("a.pt", "EQUAL", False),
        ("row.npy", "EQUAL", False),
        ("close.npy", "CLOSE", False),
        ("far.npy", "DIFFERS", True),
        ("nan.npy", "SHAPE", True),
    ],
)
def test_compare_judges_every_element(files, capsys, target, said, different):
    code, out, err = run(capsys, "compare", target, "a.npy", "--exit-code")
    assert (code, err) == (int(different), "")
    assert out.startswith(said)
    assert not (files / "output").exists()


def test_compare_says_how_far_apart_they_are(files, capsys):
    out = run(capsys, "compare", "far.npy", "a.npy")[1]
    assert "2 of 6 elements beyond the tolerance" in out
    assert "element 2: 4.0, reference 3.0" in out
    found = json.loads(run(capsys, "compare", "far.npy", "a.npy", "--json")[1])
    assert (found["equal"], found["status"]) == (False, "differs")
    assert found["metrics"]["mismatches"] == 2
    assert run(capsys, "compare", "far.npy", "a.npy", "--quiet")[1].count("\n") == 1


def test_tolerances_of_ones_own_hold_for_arrays_too(files, capsys):
    (files / "loose.yaml").write_text("dtypes: {float32: {absolute: 2}}\n")
    _, out, _ = run(capsys, "compare", "far.npy", "a.npy", "--tolerances", "loose.yaml")
    assert out.startswith("CLOSE")


def test_what_is_no_array_is_refused(files, capsys):
    (files / "bad.npy").write_bytes(b"\x93NUMPY garbage")
    assert "bad.npy" in refused(capsys, "show", "bad.npy")
    assert "gone.npy" in refused(capsys, "show", "gone.npy")
    assert "gone.npy" in refused(capsys, "compare", "gone.npy", "a.npy")
