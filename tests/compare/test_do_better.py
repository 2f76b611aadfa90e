# SPDX-License-Identifier: Apache-2.0
"""What comparisons used to get wrong elsewhere: each test is one case that a user met."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from judging import compare
from user_cases import TASKS, cli, rows_of_csv, rows_of_xlsx

from builders.dumps import DumpBuilder, Value, value
from builders.networks import write_dump

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

LINEAR = "Functional.linear.{}.forward"


# One layer's weights are perturbed: nearly all rows used to pass.


@pytest.mark.parametrize("task", TASKS)
def test_every_row_behind_a_perturbed_weight_differs_and_one_is_to_blame(tmp_path, task):
    new = write_dump(tmp_path / "new", task, drift=0.05)
    found = compare(new, write_dump(tmp_path / "old", task))
    for row in ("Functional.linear.2.forward.input.1", "Functional.linear.2.forward.output.0"):
        assert (found.status(row), found.origin(row)) == ("differs", "inherited")
    assert found.culprits == ["Module.fc2.Linear.forward.0"]
    assert found.summary["introduced"][0]["kind"] == "parameter"
    for layer in (0, 1):
        assert found.status(f"{LINEAR.format(layer)}.output.0") == "equal"


@pytest.mark.parametrize("task", TASKS)
def test_other_data_differ_everywhere_and_nobody_is_to_blame(tmp_path, task):
    found = compare(write_dump(tmp_path / "new", task, data=5), write_dump(tmp_path / "old", task))
    assert found.culprits == []
    assert found.origin("Module.Net.forward.0.input.0") == "input"
    for layer in range(3):
        row = f"{LINEAR.format(layer)}.output.0"
        assert (found.status(row), found.origin(row)) == ("differs", "inherited")


# The first difference used to be a later call, found by a threshold on outputs alone.


def test_the_first_difference_says_which_input_already_differed(tmp_path, capsys):
    def write(name: str, weight: float) -> Path:
        x, w = value([1.0, 2.0], 1), value([[weight, 0.5]])
        y = value([float(weight + 1)], 2)
        dump = DumpBuilder(tmp_path / name)
        dump.call("Functional.linear.0.forward", [x, w], [y], parent="Module.fc.Linear.forward.0")
        dump.call("Module.fc.Linear.forward.0", [x], [y], parameters={"weight": w})
        dump.call("Functional.linear.1.forward", [y, value([[2.0]])], [value([2 * weight + 2], 3)])
        return dump.write()

    new, old = write("new", 3.0), write("old", 2.0)
    code, out, _ = cli(capsys, new, old, "-v")
    assert code == 0
    first = json.loads(Path("output/summary.json").read_text())["first_difference"]
    assert first["name"] == "Functional.linear.0.forward.input.1"
    assert "Module.fc.Linear.forward.0.parameters.weight" in first["reason"]
    assert out.index("First difference") < out.index("Functional.linear.0.forward.input.1")


# The first-difference search did nothing on two files, one process, or MindSpore's dumps.


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
@pytest.mark.parametrize("below", ["", "step0", "step0/rank0", "step0/rank0/dump.json"])
def test_first_difference_files_for_every_input(tmp_path, capsys, below, framework):
    new = write_dump(tmp_path / "new", scale=1.5, framework=framework)
    old = write_dump(tmp_path / "old", framework=framework)
    code, _, _ = cli(capsys, new / below, old / below, "-da", "--quiet")
    assert code == 0
    [analysis] = Path("output").glob("diff_analyze_*.json")
    assert "Functional.linear.1.forward" in analysis.read_text()
    assert list(Path("output").glob("compare_result_rank*_*.json"))


# Fuzzy matching a dump with itself used to find no partner at all.


@pytest.mark.parametrize("task", TASKS)
def test_a_dump_aligned_with_itself(tmp_path, capsys, task):
    dump = write_dump(tmp_path / "dump", task)
    code, out, _ = cli(capsys, dump, dump, "-fm", "--exit-code", "--json")
    summary = json.loads(out)
    assert (code, summary["equal"]) == (0, True)
    assert summary["counts"]["equal"] == summary["rows"] > 0
    assert summary["unmatched"]["target"] == summary["unmatched"]["reference"] == 0


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_one_call_more_shifts_nothing(tmp_path, task):
    def write(name: str, *, has_more: bool) -> Path:
        dump = DumpBuilder(tmp_path / name, task)
        number = 0
        for index in range(6):
            if has_more and index == 3:
                dump.call(f"Functional.relu.{number}.forward", [value([9.0, 8.0])], [value([9.0])])
                number += 1
            x = value([float(index), index + 0.5])
            dump.call(f"Functional.relu.{number}.forward", [x], [x])
            number += 1
        return dump.write()

    found = compare(write("new", has_more=True), write("old", has_more=False))
    unmatched = found.summary["unmatched"]
    assert unmatched["operations"] == {"added": ["Functional.relu.3.forward"], "missing": []}
    assert found.summary["counts"]["differs"] == 0


# Values without a partner passed in silence, those of the reference were not even listed.


@pytest.mark.parametrize("kind", ["xlsx", "csv"])
def test_calls_of_either_side_alone_are_counted_and_listed(tmp_path, capsys, kind):
    def write(name: str, own: str) -> Path:
        dump = DumpBuilder(tmp_path / name)
        x = value([1.0, 2.0])
        dump.call("Functional.relu.0.forward", [x], [x])
        dump.call(f"Functional.{own}.0.forward", [x], [value([3.0, 5.0])])
        return dump.write()

    new, old = write("new", "gelu"), write("old", "dropout")
    code, out, _ = cli(capsys, new, old, "--json", "--format", kind, "--align", "never")
    summary = json.loads(out)
    assert code == 0
    assert summary["unmatched"]["operations"] == {
        "added": ["Functional.gelu.0.forward"],
        "missing": ["Functional.dropout.0.forward"],
    }
    assert (summary["counts"]["added"], summary["counts"]["missing"]) == (2, 2)
    assert not summary["equal"]
    if kind == "xlsx":
        rows = rows_of_xlsx(Path("output"))
    else:
        [path] = Path("output").glob("compare_result_*.csv")
        rows = rows_of_csv(path)
    verdicts = {(row["Target Name"], row["Reference Name"]): row["Result"] for row in rows}
    assert verdicts["Functional.gelu.0.forward.output.0", "N/A"] == "warning"
    assert verdicts["N/A", "Functional.dropout.0.forward.output.0"] == "warning"


# MindSpore against PyTorch: another spelling of a type was an error in every row.


def test_two_frameworks_agree_where_their_values_do(tmp_path, capsys):
    x, y = np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)
    for name, framework, api, dtype in (
        ("new", "mindspore", "Functional.abs", "Float32"),
        ("old", "pytorch", "Torch.abs", "torch.float32"),
    ):
        dump = DumpBuilder(tmp_path / name, framework=framework)
        of_framework = {"dtype": dtype}
        values = [Value(array, 0, of_framework) for array in (x, y)]
        dump.call(f"{api}.0.forward", values[:1], values[1:]).write()
    code, out, _ = cli(capsys, "new", "old", "-am", "--json", "--exit-code")
    assert code == 0
    assert json.loads(out)["counts"]["equal"] == 2
    assert {row["Result"] for row in rows_of_xlsx(Path("output"))} == {"pass"}


def test_the_documented_api_mapping_is_taken_and_its_faults_have_lines(tmp_path, capsys):
    for name, framework, api in (
        ("new", "mindspore", "Primitive.Mine"),
        ("old", "pytorch", "Torch.theirs"),
    ):
        dump = DumpBuilder(tmp_path / name, framework=framework)
        dump.call(f"{api}.0.forward", [value([1.0, 2.0])], [value([4.0])]).write()
    mapping = tmp_path / "api.yaml"
    good = (
        "- ms_api: Primitive.Mine\n  pt_api: Torch.theirs\n  ms_args: [0]\n  pt_args: [0]\n"
        "  ms_outputs: [0]\n  pt_outputs: [0]\n"
    )
    mapping.write_text(good)
    code, out, _ = cli(capsys, "new", "old", "-am", mapping, "--json")
    assert (code, json.loads(out)["counts"]["equal"]) == (0, 2)
    mapping.write_text(good.replace("ms_outputs: [0]", "ms_outputs: [0, 1]"))
    code, out, err = cli(capsys, "new", "old", "-am", mapping)
    assert (code, out) == (2, "")
    assert "api.yaml" in err
    assert "line 6" in err


# A change of shape crashed, and rows came in alphabetical order.


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("flags", [(), ("-i",)], ids=["now", "compare.json"])
def test_rows_stand_in_order_of_execution_though_a_shape_changed(tmp_path, capsys, task, flags):
    names = [f"Torch.{name}.0.forward" for name in ("zeta", "alpha", "mid")]
    for side, length in (("new", 3), ("old", 2)):
        dump = DumpBuilder(tmp_path / side, task)
        for name in names:
            dump.call(name, [value([1.0, 2.0])], [value([1.0] * length + [2.0])])
        dump.write()
    words: tuple[object, ...] = ("new", "old")
    if flags:
        dumps = {f"{key}_path": f"{side}/step0/rank/dump.json" for key, side in
                 (("npu", "new"), ("bench", "old"))}  # fmt: skip
        Path("compare.json").write_text(json.dumps(dumps))
        words = ("-i", "compare.json")
    code, out, _ = cli(capsys, *words, "--json")
    assert code == 0
    assert json.loads(out)["counts"]["shape"] == 3
    title = "NPU Name" if flags else "Target Name"
    shown = [row[title] for row in rows_of_xlsx(Path("output"))]
    assert shown == [f"{name}.{slot}.0" for name in names for slot in ("input", "output")]


# Rank 0 was left out of the sets of ranks.


@pytest.mark.parametrize("guilty", [0, 1])
def test_the_guilty_rank_is_named_also_if_it_is_rank_0(tmp_path, capsys, guilty):
    for rank in (0, 1):
        scale = 1.5 if rank == guilty else 1.0
        write_dump(tmp_path / "new", ranks=[f"rank{rank}"], scale=scale)
        write_dump(tmp_path / "old", ranks=[f"rank{rank}"])
    code, out, _ = cli(capsys, "new", "old", "--json", "-da")
    summary = json.loads(out)
    assert code == 0
    assert summary["first_difference"]["rank"] == guilty
    assert {entry["rank"] for entry in summary["introduced"]} == {guilty}
    [analysis] = Path("output").glob("diff_analyze_*.json")
    assert list(json.loads(analysis.read_text())) == [f"rank_{guilty}"]
