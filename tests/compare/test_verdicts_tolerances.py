# SPDX-License-Identifier: Apache-2.0
"""The table of tolerances, and the file with which users change it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from judging import compare

from builders.dumps import DumpBuilder, value
from msprobe.errors import ConfigError, ConfigFileError
from msprobe.numerics.tolerances import RowTolerance, Tolerances

NAME = "Module.blocks.0.ln1.LayerNorm.forward.0.output.0"
FLOAT32 = RowTolerance(rtol=1.3e-6, rms_tol=1e-5)


def write(folder: Path, text: str) -> Path:
    path = folder / "tolerances.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("target", "reference", "rtol"),
    [
        ("float32", "float32", 1.3e-6),
        ("float64", "float64", 1e-7),
        ("float64", "float32", 1.3e-6),
        ("bfloat16", "float32", 1.6e-2),
        ("float16", "bfloat16", 1.6e-2),
        ("float8_e5m2", "float16", 0.25),
        ("complex64", "complex128", 1.3e-6),
        ("float32", "int64", 1.3e-6),
        ("float_of_tomorrow", "float64", 1.3e-6),
        ("int64", "int32", 0.0),
        ("bool", "bool", 0.0),
    ],
)
def test_the_coarser_type_decides(target: str, reference: str, rtol: float) -> None:
    tolerances = Tolerances.load()

    assert tolerances.for_row(NAME, target, reference).rtol == rtol
    assert tolerances.for_row(NAME, reference, target).rtol == rtol


def test_the_floor_is_proportional_to_the_size_of_the_reference(tmp_path: Path) -> None:
    small = np.full(100, 1e-8, np.float32)
    dump = DumpBuilder(tmp_path / "r").call("Torch.op.0.forward", [], [value(small)])
    other = DumpBuilder(tmp_path / "t").call(
        "Torch.op.0.forward", [], [value(small * np.float32(1.1))]
    )

    assert compare(other.write(), dump.write()).status("Torch.op.0.forward.output.0") == "differs"


def test_a_file_changes_types_and_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "dtypes:\n"
        "  float32: {rtol: 1.0e-3}\n"
        "rows:\n"
        '  "Module.*": {rms_tol: 0.5}\n'
        '  "*.LayerNorm.*": {rtol: 0.25, absolute: 2}\n',
    )

    tolerances = Tolerances.load(path)

    assert tolerances.for_row("Torch.add.0.forward.output.0", "float32", "float32") == RowTolerance(
        rtol=1e-3, rms_tol=1e-5
    )
    assert tolerances.for_row(NAME, "float32", "float32") == RowTolerance(
        rtol=0.25, rms_tol=0.5, absolute=2.0
    )
    assert tolerances.for_row(NAME, "float16", "float16").rms_tol == 0.5


def test_the_tolerance_by_size_may_have_its_earlier_name(tmp_path: Path) -> None:
    path = write(tmp_path, 'rows:\n  "Module.*": {atol: 0.5}\n')

    assert Tolerances.load(path).for_row(NAME, "float16", "float16").rms_tol == 0.5


@pytest.mark.parametrize("text", ["", "rows:\n", "dtypes: {}\n", "# nothing\n"])
def test_an_empty_file_changes_nothing(tmp_path: Path, text: str) -> None:
    tolerances = Tolerances.load(write(tmp_path, text))

    assert tolerances.for_row(NAME, "float32", "float32") == FLOAT32


def test_tolerances_decide_statuses(tmp_path: Path) -> None:
    x = np.linspace(1, 2, 100, dtype=np.float32)
    dumps = [
        DumpBuilder(tmp_path / side).call("Torch.op.0.forward", [], [value(y)]).write()
        for side, y in (("t", x * np.float32(1.05)), ("r", x))
    ]
    path = write(tmp_path, 'rows: {"Torch.op.*": {rtol: 0.1}}')

    assert not compare(*dumps).summary["equal"]
    assert compare(*dumps, tolerances=path).status("Torch.op.0.forward.output.0") == "close"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("dtypes:\n  float32: {rtoll: 1}\n", 2, '"dtypes.float32.rtoll"'),
        ("rows:\n  a: {rtol: 1}\n  b: {rtol: -1}\n", 3, '"rows.b.rtol" is "-1"'),
        ("rows:\n  a: {rtol: soon}\n", 2, "a number >= 0"),
        ("rows:\n  a: {rms_tol: .nan}\n", 2, "a number >= 0"),
        ("rows:\n  a: {rms_tol: [1]}\n", 2, "a number >= 0"),
        ("rows:\n  a: 3\n", 2, "a mapping"),
        ("rows: [1]\n", 1, "a mapping"),
        ("layers: {}\n", 1, "one of dtypes, rows"),
        ("dtypes:\n  float32: {rtol: 1}\n  bogus: {rtol: 1}\n", 3, '"dtypes.bogus" is "bogus"'),
        ("dtypes: {torch.float32: {rtol: 1}}\n", 1, "float32"),
        ("dtypes: {int64: {rtol: 1}}\n", 1, "compared exactly"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        Tolerances.load(path)

    assert f"{path}, line {line}: " in str(caught.value)
    assert said in str(caught.value)


def test_what_is_no_yaml_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="line 2") as caught:
        Tolerances.load(write(tmp_path, "rows:\n  a: {rtol: 1]\n"))
    assert caught.value.line is not None
    with pytest.raises(ConfigFileError, match="cannot be read"):
        Tolerances.load(tmp_path / "nowhere.yaml")


def test_globs_that_match_no_row_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dumps = [
        DumpBuilder(tmp_path / side).call("Torch.op.0.forward", [], [value([y])]).write()
        for side, y in (("t", 1.0), ("r", 2.0))
    ]
    path = write(tmp_path, "rows: {'Torch.op.*': {rtol: 1}, 'Module.*': {rtol: 1}, '[': {atol: 1}}")

    notes = compare(*dumps, tolerances=path).summary["notes"]

    expected = f"{path}: these globs match no row of the comparison: Module.*, ["
    assert expected in notes
    assert expected in caplog.text
