# SPDX-License-Identifier: Apache-2.0
"""Output that cannot be written is an error in one line, and what was written is whole."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import python_calamine

from builders.networks import write_dump
from msprobe.cli import main

DEV_FULL = Path("/dev/full")


@pytest.fixture
def dumps(tmp_path):
    return [str(write_dump(tmp_path / name, scale=scale)) for name, scale in (("a", 1), ("b", 2))]


def run(*words, limit_bytes=None, **options):
    def limit():
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    # -B: Python would cut a compiled module short at the limit, and keep it for every other test.
    command = [sys.executable, "-B", "-m", "msprobe", *map(str, words)]
    return subprocess.run(
        command, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=limit, **options
    )


def one_line(ran):
    assert ran.returncode == 2
    assert ran.stderr.startswith("msprobe: error: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr


@pytest.mark.skipif(not DEV_FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("form", [(), ("--json",), ("--quiet",), ("--exit-code",)])
def test_a_full_stdout(tmp_path, dumps, form, unbuffered):
    out = tmp_path / "out"
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with DEV_FULL.open("w") as full:
        ran = run("compare", *dumps, "-o", out, *form, stdout=full, env=env)
    assert "standard output: cannot be written: no space is left on the disk" in one_line(ran)
    assert json.loads((out / "summary.json").read_text())["equal"] is False


@pytest.mark.skipif(not DEV_FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("show",), ("overflow_check",), ("config-schema",), ("--help",)])
def test_a_full_stdout_of_other_commands(dumps, words):
    words = (*words, dumps[0]) if words[0] in ("show", "overflow_check") else words
    with DEV_FULL.open("w") as full:
        assert "standard output" in one_line(run(*words, stdout=full))


def test_a_closed_stdout(tmp_path, dumps):
    out = tmp_path / "out"
    command = f'exec "{sys.executable}" -m msprobe compare {" ".join(dumps)} -o {out} >&-'
    ran = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert "standard output: is closed" in one_line(ran)
    assert (out / "summary.json").exists()


@pytest.mark.parametrize("kind", ["xlsx", "csv", "parquet"])
@pytest.mark.parametrize("limit_bytes", [100, 8_000, 20_000])
def test_a_full_disk(tmp_path, dumps, kind, limit_bytes):
    out = tmp_path / "out"
    words = ("compare", *dumps, "-o", out, "--format", kind, "--html")
    ran = run(*words, limit_bytes=limit_bytes, stdout=subprocess.DEVNULL)
    assert "cannot be written: the file becomes larger" in one_line(ran)
    for path in out.iterdir():
        assert path.suffix == f".{kind}", path
        if kind == "xlsx":
            python_calamine.load_workbook(path)
        elif kind == "csv":
            assert pl.read_csv(path).height > 10
        else:
            assert pl.read_parquet(path).height > 10


def test_comparisons_of_one_second_do_not_share_files(tmp_path, dumps):
    out = tmp_path / "out"
    for _ in range(3):
        main(["compare", *dumps, "-o", str(out), "--format", "csv", "--html", "--quiet"])
    for pattern in ("compare_result_*.csv", "compare_report_*.html"):
        assert len(list(out.glob(pattern))) == 3
    assert sum(path.name.startswith(".") for path in out.iterdir()) == 0


def test_comparisons_at_the_same_time_do_not_share_files(tmp_path, dumps):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "msprobe", "compare", *dumps, "-o", str(out), "--quiet"]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [each.wait() for each in running] == [0, 0, 0]
    assert len(list(out.glob("compare_result_*.xlsx"))) == 3
