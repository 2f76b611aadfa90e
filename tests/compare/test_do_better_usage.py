# SPDX-License-Identifier: Apache-2.0
"""What confused users of comparisons: output, exit codes, levels, files without effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from judging import compare
from user_cases import cli, rows_of_csv

from builders.dumps import DumpBuilder, value
from builders.networks import write_debug_dump, write_dump
from msprobe.cli import main

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


# Confusing output.


def test_exit_codes_and_one_line(tmp_path, capsys):
    new, old = write_dump(tmp_path / "new", scale=1.5), write_dump(tmp_path / "old")
    assert cli(capsys, new, old, "--quiet")[0] == 0
    code, out, _ = cli(capsys, new, old, "--quiet", "--exit-code")
    assert (code, out.count("\n")) == (1, 1)
    assert cli(capsys, old, old, "--quiet", "--exit-code")[0] == 0
    for words in ((new,), (new, tmp_path / "none"), (new, old, "--tolerence", "x")):
        code, out, err = cli(capsys, *words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1


def test_arguments_that_agree_are_no_clutter_on_the_terminal(tmp_path, capsys):
    for name, eps in (("new", 1e-3), ("old", 1e-5)):
        dump = DumpBuilder(tmp_path / name)
        x = value([1.0, 2.0], 1)
        dump.call("Functional.norm.0.forward", [x, 7, 1, eps], [value([eps], 2)]).write()
    _, out, _ = cli(capsys, "new", "old")
    assert "input.3" in out
    assert "input.1" not in out
    assert "input.2" not in out


def test_numeric_columns_hold_numbers_alone(tmp_path):
    found = compare(write_dump(tmp_path / "new", scale=1.5), write_dump(tmp_path / "old"))
    frame = found.result.frame
    for column in ("error", "max_abs_err", "cosine", "target_max", "reference_norm", "ratio_1e3"):
        assert frame.schema[column] == pl.Float64


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_tables_of_all_ranks_can_be_merged(tmp_path, capsys, kind):
    new = write_dump(tmp_path / "new", ranks=("rank0", "rank1"), scale=1.5)
    old = write_dump(tmp_path / "old", ranks=("rank0", "rank1"))
    assert cli(capsys, new, old, "--format", kind, "--quiet")[0] == 0
    [worst] = Path("output").glob("worst_ranks_*.csv")
    assert len(rows_of_csv(worst)) > 0
    Path("merge.yaml").write_text(
        "api:\n  - Functional.linear.1.forward\ncompare_index:\n  - Max diff\n"
    )
    code = main(["merge_result", "-i", "output", "-o", "merged", "-config", "merge.yaml"])
    capsys.readouterr()
    assert code == 0
    assert list(Path("merged").iterdir())


# A layer mapping values behind what it came to.


def test_a_layer_mapping_is_written_as_a_data_mapping_that_does_the_same(tmp_path, capsys):
    for side, child in (("new", "fc"), ("old", "dense")):
        dump = DumpBuilder(tmp_path / side)
        x, y = value([1.0, 2.0], 1), value([3.0, 4.0], 2)
        module, net = f"Module.{child}.Linear.forward.0", "Module.Net.forward.0"
        dump.call("Functional.linear.0.forward", [x], [y], parent=module, line=3)
        dump.call(module, [x], [y], parameters={"weight": value([5.0])}, parent=net, line=2)
        dump.call(net, [x], [y], line=1).write()
    Path("layers.yaml").write_text("TopLayer:\n  fc: dense\n")
    code, out, _ = cli(capsys, "new", "old", "-lm", "layers.yaml", "-o", "a", "--json")
    assert (code, json.loads(out)["equal"]) == (0, True)
    [mapping] = Path("a").glob("data_mapping_*.yaml")
    name = "Module.{}.Linear.forward.0.parameters.weight"
    assert yaml.safe_load(mapping.read_text())[name.format("fc")] == name.format("dense")
    code, again, _ = cli(capsys, "new", "old", "-dm", mapping, "-o", "b", "--json")
    assert json.loads(again)["counts"] == json.loads(out)["counts"]
    assert not list(Path("b").glob("data_mapping_*"))


def test_results_that_could_not_be_written_are_refused_before_the_work(tmp_path, capsys):
    Path("taken").write_text("")
    for place in ("taken", "taken/below"):
        # The dumps are looked at afterwards: these do not even exist.
        code, out, err = cli(capsys, "none", "nor", "-o", place)
        assert (code, out) == (2, "")
        assert "taken: is a file" in err


# What one level does not record at all was missing, and a gradient without its module a fault.


def of_level(folder: Path, level: str, scale: float = 1.0) -> Path:
    """Write a run of one module with one call in it, as a level records it."""
    dump = DumpBuilder(folder, level=level)
    x, y = value([1.0, 2.0], 1), value([scale, 4.0], 2)
    module = "Module.fc.Linear.forward.0" if level != "L1" else None
    if level != "L0":
        dump.call("Functional.linear.0.forward", [x], [y], parent=module)
    if level != "L1":
        dump.call("Module.fc.Linear.forward.0", [x], [y], parameters={"weight": value([5.0, 6.0])})
        dump.gradients("Module.fc.Linear.parameters_grad", weight=value([7.0, 8.0]))
    return dump.write()


@pytest.mark.parametrize("levels", [("mix", "L0"), ("L0", "mix"), ("L1", "mix"), ("mix", "L1")])
def test_levels_are_compared_by_what_both_record(tmp_path, capsys, levels):
    old = of_level(tmp_path / "old", levels[1])
    code, out, _ = cli(capsys, of_level(tmp_path / "new", levels[0]), old, "--json", "--exit-code")
    summary = json.loads(out)
    assert (code, summary["equal"]) == (0, True)
    assert summary["rows"] == summary["counts"]["equal"] > 0
    [note] = [note for note in summary["notes"] if "different levels" in note]
    words = "modules" if "L0" in levels else "calls of APIs"
    assert f"only {words} were compared" in note
    found = compare(of_level(tmp_path / "bad", levels[0], scale=3.0), old)
    assert found.culprits == [
        "Module.fc.Linear.forward.0" if "L0" in levels else "Functional.linear.0.forward"
    ]


@pytest.mark.parametrize("level", ["L1", "debug"])
def test_levels_without_a_record_in_common_are_refused(tmp_path, capsys, level):
    new = of_level(tmp_path / "new", "L0")
    if level == "debug":
        old = write_debug_dump(tmp_path / "old", {"x": np.ones((2, 2), np.float32)})
    else:
        old = of_level(tmp_path / "old", level)
    code, out, err = cli(capsys, new, old)
    assert (code, out) == (2, "")
    assert "no record in common" in err


# Matrices for tensors were read only where there were tensors.


def test_a_file_of_matrices_is_looked_at_and_noted_without_tensors_too(tmp_path, capsys):
    dump = write_dump(tmp_path / "dump")
    config = Path("matrices.yaml")
    config.write_text("a: [")
    code, out, err = cli(capsys, dump, dump, "--config", config)
    assert (code, out) == (2, "")
    assert "matrices.yaml" in err
    np.save("q.npy", np.eye(8, dtype=np.float32))
    config.write_text("right_matmul:\n  target_tensor_map: {q.npy: [x.npy]}\n")
    code, out, _ = cli(capsys, dump, dump, "--config", config, "--json")
    assert code == 0
    assert any("matrices.yaml has no effect" in note for note in json.loads(out)["notes"])


# A run that ended early, or recorded nothing.


@pytest.mark.parametrize("is_target_empty", [True, False])
def test_a_side_without_records_makes_nothing_a_fault(tmp_path, capsys, is_target_empty):
    full = of_level(tmp_path / "full", "mix")
    empty = DumpBuilder(tmp_path / "empty").write()
    dumps = (empty, full) if is_target_empty else (full, empty)
    code, out, _ = cli(capsys, *dumps, "--json", "--exit-code")
    summary = json.loads(out)
    assert (code, summary["equal"]) == (1, False)
    assert summary["counts"]["missing" if is_target_empty else "added"] == summary["rows"]
    assert summary["introduced"] == []
    assert summary["first_difference"]["name"] == "Functional.linear.0.forward.input.0"
    assert any("holds no records" in note for note in summary["notes"])


@pytest.mark.parametrize(("flags", "expected"), [((), 0), (("--exit-code",), 1)])
@pytest.mark.parametrize("form", [(), ("--json",), ("--quiet",)], ids=["text", "json", "quiet"])
def test_a_reader_who_leaves_early_does_not_change_the_exit_code(tmp_path, flags, expected, form):
    new, old = write_dump(tmp_path / "new", scale=1.5), write_dump(tmp_path / "old")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        words = [sys.executable, "-m", "msprobe", "compare", new, old, *flags, *form]
        ran = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert ran.returncode == expected
    assert "Error" not in ran.stderr


# Checksums beside statistics are no reason to refuse a dump that has statistics alone.


@pytest.mark.parametrize("other", ["statistics", "tensor"])
def test_checksums_with_statistics_are_compared_with_statistics(tmp_path, other):
    def write(name: str, task: str, factor: float) -> Path:
        about = {"md5": f"{int(factor):08x}"} if task == "md5" else {}
        dump = DumpBuilder(tmp_path / name, "tensor" if task == "tensor" else "statistics")
        x, y = value([1.0, 2.0], 1, **about), value([3.0 * factor, 4.0], 2, **about)
        return dump.call("Torch.exp.0.forward", [x], [y]).write()

    sums, plain = write("sums", "md5", 2.0), write("plain", other, 1.0)
    for target, reference, lacking in ((sums, plain, "reference"), (plain, sums, "target")):
        found = compare(target, reference)
        assert found.summary["mode"] == "statistics"
        assert found.status("Torch.exp.0.forward.input.0") == "equal"
        assert found.culprits == ["Torch.exp.0.forward"]
        assert any(f"the {lacking} kept no checksums" in note for note in found.summary["notes"])
