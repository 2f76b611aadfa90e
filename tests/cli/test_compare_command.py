# SPDX-License-Identifier: Apache-2.0
"""`msprobe compare` from outside: how to name the dumps, output, files, exit codes, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import python_calamine

from builders.networks import write_dump
from msprobe.cli import main

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

FAULT = "Functional.linear.1.forward"


@pytest.fixture
def new(tmp_path):
    return str(write_dump(tmp_path / "new", scale=1.5))


@pytest.fixture
def old(tmp_path):
    return str(write_dump(tmp_path / "old"))


def run(capsys, *arguments):
    code = main([*arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *arguments):
    try:
        code = main([*arguments])
    except SystemExit as ended:
        code = ended.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "error: " in captured.err
    return captured.err


def summary(folder="output"):
    return json.loads((Path(folder) / "summary.json").read_text())


def tables(folder="output", kind="xlsx"):
    return sorted(path.name for path in Path(folder).glob(f"compare_result_*.{kind}"))


def sheet(folder="output"):
    path = next(Path(folder).glob("compare_result_*.xlsx"))
    return python_calamine.load_workbook(path).get_sheet_by_index(0).to_python()


def test_the_answer_is_on_the_terminal(capsys, new, old):
    code, out, err = run(capsys, "compare", new, old)
    assert (code, err) == (0, "")
    assert out.startswith("DIFFERENT")
    assert FAULT in out
    assert "By module" not in out
    assert "train.py:12" in out
    # All statistics are 1.5 times the others: rounding decides which of them is told.
    found = re.search(r"(?:max|min|mean|norm) ([\d.]+) instead of ([\d.]+\d)", out)
    assert found
    assert float(found[1]) / float(found[2]) == pytest.approx(1.5, rel=1e-4)
    assert "output/summary.json" in out
    assert summary()["introduced"][0]["name"] == FAULT
    assert len(tables()) == 1


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_all_there_is_to_say(capsys, new, old, flag):
    code, out, _ = run(capsys, "compare", new, old, flag)
    assert code == 0
    assert "By module" in out
    assert f"{FAULT}.output.0" in out
    assert all(f"output/{name}" in out for name in (*tables(), "summary.json"))


def test_equal_dumps(capsys, old):
    code, out, _ = run(capsys, "compare", old, old, "--exit-code")
    assert code == 0
    assert out.startswith("EQUAL")
    assert summary()["equal"] is True


@pytest.mark.parametrize(
    ("flags", "expected"), [([], 0), (["--exit-code"], 1), (["--exit-code", "--json"], 1)]
)
def test_exit_code_is_that_of_git_diff(capsys, new, old, flags, expected):
    assert run(capsys, "compare", new, old, *flags)[0] == expected


def test_quiet_says_one_line(capsys, new, old):
    code, out, err = run(capsys, "compare", "--quiet", new, old)
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert "different" in out
    assert FAULT in out


def test_json_is_the_summary(capsys, new, old):
    _, out, err = run(capsys, "compare", new, old, "--json")
    assert json.loads(out) == summary()
    assert "wrote output/summary.json" in err


@pytest.mark.parametrize(
    "words",
    [
        ["-tp", "{new}", "-gp", "{old}"],
        ["--target_path", "{new}", "--golden_path", "{old}"],
        ["-gp", "{old}", "-tp", "{new}", "-m", "auto"],
        ["{new}", "--html", "{old}"],
        ["-f", "{new}", "{old}"],
        ["-fm", "{new}", "{old}"],
        ["{new}", "{old}", "--align", "never"],
        ["{new}", "{old}", "--step", "0", "--rank", "0"],
        ["{new}", "{old}", "--step", "[0]", "--workers", "1", "-tensor_log"],
    ],
)
def test_ways_to_name_the_dumps(capsys, new, old, words):
    assert run(capsys, "compare", *(word.format(new=new, old=old) for word in words))[0] == 0
    assert summary()["introduced"][0]["name"] == FAULT
    assert Path(summary()["target"]) == Path(new)


@pytest.mark.parametrize("place", ["before", "after", "none"])
def test_compare_json_of_the_documented_generation(capsys, new, old, place):
    Path("compare.json").write_text(
        json.dumps(
            {
                "npu_path": f"{new}/step0/rank0/dump.json",
                "bench_path": f"{old}/step0/rank0/dump.json",
                "stack_path": f"{new}/step0/rank0/stack.json",
                "is_print_compare_log": True,
            }
        )
    )
    words = ["compare", "-i", "compare.json", "-o", "out", "-s", "-hl", "-da"]
    words = {
        "before": ["-f", "pytorch", *words],
        "after": [words[0], "-f", "pytorch", *words[1:]],
        "none": words,
    }[place]
    assert run(capsys, *words)[0] == 0
    assert not any("framework" in note for note in summary("out")["notes"])
    header = sheet("out")[0]
    assert header[:2] == ["NPU Name", "Bench Name"]
    assert "NPU_Stack_Info" in header
    assert len(list(Path("out").glob("advisor_*.txt"))) == 1
    assert len(list(Path("out").glob("diff_analyze_*.json"))) == 1


def test_compare_json_colours_rows_and_gives_reasons_by_itself(capsys, tmp_path, old):
    far = write_dump(tmp_path / "far", scale=9.0)
    paths = {
        "npu_path": f"{far}/step0/rank0/dump.json",
        "bench_path": f"{old}/step0/rank0/dump.json",
    }
    Path("compare.json").write_text(json.dumps(paths))
    run(capsys, "compare", "-i", "compare.json", "-o", "plain")
    run(capsys, "compare", "-i", "compare.json", "-o", "asked", "-hl")
    assert sheet("plain") == sheet("asked")
    for folder in ("plain", "asked"):
        (path,) = Path(folder).glob("*.xlsx")
        with zipfile.ZipFile(path) as book:
            assert "FFFF0000" in book.read("xl/styles.xml").decode()


@pytest.mark.parametrize("flag", [[], ["-s"]])
def test_a_stack_path_lets_the_flag_decide_about_the_column(capsys, new, old, flag):
    rank = f"{new}/step0/rank0"
    tree = {"npu_path": f"{rank}/dump.json", "bench_path": f"{old}/step0/rank0/dump.json"}
    Path("compare.json").write_text(json.dumps({**tree, "stack_path": f"{rank}/stack.json"}))
    run(capsys, "compare", "-i", "compare.json", *flag)
    assert ("NPU_Stack_Info" in sheet("output")[0]) is bool(flag)
    assert not summary()["notes"]
    Path("compare.json").write_text(json.dumps({**tree, "stack_path": "gone/stack.json"}))
    assert "stack_path" in refused(capsys, "compare", "-i", "compare.json", *flag)


def test_compare_only_leaves_the_advice_out(capsys, new, old):
    Path("compare.json").write_text(json.dumps({"npu_path": new, "bench_path": old}))
    assert run(capsys, "compare", "-i", "compare.json", "-c")[0] == 0
    assert not list(Path("output").glob("advisor_*"))


def test_numbers_of_ranks_and_steps_in_compare_json(capsys, tmp_path):
    for side in ("new", "old"):
        write_dump(tmp_path / side, steps=(0, 1), ranks=("rank0", "rank1"), layers=1)
    tree = {"npu_path": "new", "bench_path": "old", "rank_id": [1], "step_id": [0]}
    Path("compare.json").write_text(json.dumps(tree))
    assert run(capsys, "compare", "-i", "compare.json")[0] == 0
    parts = summary()["comparisons"]
    assert [(part["step"], part["rank"]) for part in parts] == [(0, 1)]


def test_another_framework_than_the_user_says_is_noted(capsys, new, old):
    run(capsys, "-f", "mindspore", "compare", new, old)
    assert any("-f mindspore" in note for note in summary()["notes"])


def test_flags_without_effect_are_noted(capsys, new, old):
    run(capsys, "compare", new, old, "-tensor_log", "-s")
    assert sum("no effect" in note for note in summary()["notes"]) == 2


@pytest.mark.parametrize("kind", ["xlsx", "csv", "parquet"])
def test_formats(capsys, new, old, kind):
    assert run(capsys, "compare", new, old, "--format", kind, "-o", "out")[0] == 0
    assert len(tables("out", kind)) == 1


def test_output_value_may_be_left_out(capsys, new, old):
    assert run(capsys, "compare", new, old, "-o")[0] == 0
    assert tables("output")


def test_html(capsys, new, old):
    _, out, _ = run(capsys, "compare", new, old, "--html")
    page = next(Path("output").glob("compare_report_*.html"))
    assert page.name in out
    assert FAULT in page.read_text()


def test_tolerances_of_the_user(capsys, new, old):
    Path("wide.yaml").write_text("dtypes:\n  float32: {rtol: 10.0, atol: 10.0}\n")
    run(capsys, "compare", new, old, "--tolerances", "wide.yaml")
    assert summary()["equal"] is True
    Path("bad.yaml").write_text("dtypes:\n  float32: {rtol: wide}\n")
    assert "line 2" in refused(capsys, "compare", new, old, "--tolerances", "bad.yaml")


def test_data_mapping(capsys, new, old):
    rows = {f"{FAULT}.input.0": "Functional.linear.0.forward.input.0"}
    Path("map.yaml").write_text("".join(f"{a}: {b}\n" for a, b in rows.items()))
    assert run(capsys, "compare", new, old, "-dm", "map.yaml")[0] == 0


def test_tensors_with_matrices(capsys, tmp_path):
    import numpy as np

    paths = [str(write_dump(tmp_path / side, "tensor", layers=1)) for side in ("new", "old")]
    np.save("double.npy", np.eye(8, dtype=np.float32) * 2)
    Path("matrices.yaml").write_text(
        "right_matmul:\n  target_tensor_map:\n"
        "    double.npy: [Functional.linear.0.forward.output.0.npy]\n"
    )
    assert run(capsys, "compare", *paths, "--config", "matrices.yaml")[0] == 0
    assert summary()["first_difference"]["name"] == "Functional.linear.0.forward.output.0"
    assert summary()["first_difference"]["error"] == pytest.approx(1.0)


def test_replicas(capsys, tmp_path):
    for rank, drift in ((0, 0.0), (1, 0.0), (2, 1e-3)):
        write_dump(tmp_path / "dump", ranks=[f"rank{rank}"], data=rank, drift=drift)
    code, out, _ = run(capsys, "compare", "dump", "--replicas", "--exit-code")
    assert code == 1
    assert "fc2" in out
    found = summary()["replicas"]
    assert [each["row"] for each in found] == ["Module.fc2.Linear.forward.0.parameters.weight"]
    assert found[0]["differing"] == [2]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "needs a TARGET and a REFERENCE; 0 given"),
        (["new"], "1 given"),
        (["new", "old", "third"], "3 given"),
        (["-cm", "new", "old"], "-cm takes the word behind it: put the dumps first"),
        (["new", "old", "-tp", "new"], "give the dumps once"),
        (["new", "nothing"], "nothing: does not exist"),
        (["new", "old", "--rank", "x"], "--rank"),
        (["new", "old", "--step", "7"], "none of the steps 7"),
        (["new", "old", "--format", "ods"], "ods"),
        (["new", "old", "--workers", "0"], "'0' is no whole number of 1 or more"),
        (["new", "old", "--no-such-flag"], "there is no option --no-such-flag"),
        (["new", "old", "--mode", "torchair"], "torchair"),
        (["new", "old", "-m", "offline_data"], "offline"),
        (["new", "old", "-m", "sideways"], "sideways"),
        (["new", "old", "-fr", "rules.json"], "--fusion-rule-file"),
        (["new", "old", "-ofs"], "--only-final-statistic"),
        (["new", "old", "--consistent_check", "--backend", "fsdp"], "--consistent-check"),
        (["-i", "nothing.json"], "nothing.json: cannot be read"),
        (["-i", "new"], "cannot be read"),
        (["-i", "list.json"], "no JSON object"),
        (["-i", "half.json"], "JSON"),
        (["-i", "lonely.json"], "bench_path"),
        (["-i", "typo.json"], "npu_pth"),
        (["-i", "ranks.json"], "rank_id"),
        (["-i", "points.json"], "static graph"),
        (["new", "--replicas"], "no step has two ranks with the same parameters"),
        (["new", "old", "--replicas"], "one dump"),
        (["new", "old", "-dm", "nothing.yaml"], "nothing.yaml"),
        (["new", "old", "-o", "list.json"], "list.json"),
    ],
)
def test_refusals_are_one_line(capsys, new, old, words, text):
    Path("list.json").write_text("[]")
    Path("half.json").write_text('{"npu_path": ')
    Path("lonely.json").write_text('{"npu_path": "new"}')
    Path("typo.json").write_text('{"npu_pth": "new", "bench_path": "old"}')
    Path("ranks.json").write_text('{"npu_path": "new", "bench_path": "old", "rank_id": "0"}')
    Path("points.json").write_text('{"npu_path": "new", "bench_path": "old", "common": true}')
    assert text in refused(capsys, "compare", *words)


def test_checksums_against_statistics(capsys, tmp_path, old):
    write_dump(tmp_path / "sums", "md5")
    message = refused(capsys, "compare", "sums", old)
    assert "summary_mode" in message
    assert not Path("output").exists()


def shell(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "msprobe", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_in_a_process_of_its_own_without_torch_and_numpy(new, old):
    code = (
        "import sys; from msprobe.cli import main; code = main(sys.argv[1:]);"
        "print(sorted({'torch', 'mindspore', 'numpy'} & set(sys.modules)), file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "compare", new, old, "--exit-code", "--format", "csv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == "[]\n"
    assert FAULT in done.stdout


def test_a_terminal_that_knows_no_unicode(new, old):
    done = shell("compare", new, old, PYTHONIOENCODING="ascii", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert FAULT in done.stdout
    assert done.stdout.isascii()


def test_merge_result_reads_what_compare_wrote(capsys, tmp_path):
    for side, scale in (("new", 1.5), ("old", 1.0)):
        write_dump(tmp_path / side, ranks=("rank0", "rank1"), scale=scale)
    assert run(capsys, "compare", "new", "old", "-o", "tables")[0] == 0
    Path("merge.yaml").write_text("api: [Functional.linear]\ncompare_index: [Max diff]\n")
    code, out, _ = run(
        capsys, "merge_result", "-i", "tables", "-o", "merged", "-config", "merge.yaml"
    )
    assert code == 0
    path = next(Path("merged").glob("multi_ranks_compare_merge_*.xlsx"))
    assert path.name in out
    rows = python_calamine.load_workbook(path).get_sheet_by_name("Max diff").to_python()
    assert rows[0] == ["NPU Name", "rank0", "rank1"]
    assert f"{FAULT}.output.0" in [row[0] for row in rows]


@pytest.mark.parametrize(
    "name", ["", ".", "forward", "\ud800.0.forward", "Tensor.x\n\x1b[31m.0.forward"]
)
@pytest.mark.parametrize("kind", ["csv", "xlsx", "parquet"])
def test_a_record_may_have_any_name(capsys, new, old, name, kind):
    (path,) = Path(new).rglob("dump.json")
    dump = json.loads(path.read_text())
    dump["data"][name] = dump["data"][FAULT]
    path.write_text(json.dumps(dump))
    code, out, err = run(capsys, "compare", new, old, "--html", "--format", kind)
    assert (code, err) == (0, "")
    assert out.startswith("DIFFERENT")
    assert "\x1b[31m" not in out
    assert name in summary()["unmatched"]["operations"]["added"]
    code, out, err = run(capsys, "compare", new, old, "--json", "--format", kind)
    assert json.loads(out)["unmatched"]["target"] == 1


def test_titles_of_columns_follow_the_spelling_of_the_command(capsys, new, old):
    def titles(*words):
        run(capsys, "compare", *words, "-o", "table")
        found = sheet("table")[0]
        for path in Path("table").glob("*.xlsx"):
            path.unlink()
        return found

    neutral = titles(new, old)
    assert neutral[:4] == ["Target Name", "Reference Name", "Target Dtype", "Reference Dtype"]
    assert not [title for title in neutral if "NPU" in title or "Bench" in title]
    documented = titles("-tp", new, "-gp", old)
    # To the letter: programs for these tables refuse columns that they do not know.
    metrics = "Max diff,Min diff,Mean diff,L2norm diff"
    relative = "MaxRelativeErr,MinRelativeErr,MeanRelativeErr,NormRelativeErr"
    target, reference = (
        ",".join(f"{side} {name}" for name in ("max", "min", "mean", "l2norm"))
        for side in ("NPU", "Bench")
    )
    both = ("Name", "Dtype", "Tensor Shape", "Requires_grad")
    common = ",".join(f"NPU {name},Bench {name}" for name in both)
    behind = "Requires_grad Consistent,Result,Err_message,NPU_Stack_Info"
    assert ",".join(documented) == ",".join((common, metrics, relative, target, reference, behind))
    assert neutral[-4:] == ["Status", "Origin", "Error", "Reason"]
    assert titles("-f", "pytorch", new, old) == documented
    assert titles(new, old, "--columns", "documented") == documented
    assert titles("-tp", new, "-gp", old, "--columns", "neutral") == neutral


def test_tables_with_neutral_titles_are_merged_too(capsys, new, old):
    for rank in ("rank0", "rank1"):
        run(capsys, "compare", new, old, "--format", "csv", "-o", rank)
        made = next(Path(rank).glob("compare_result_*.csv"))
        Path("all").mkdir(exist_ok=True)
        made.rename(Path("all") / f"compare_result_{rank}_20260101120000.csv")
    Path("merge.yaml").write_text("api: [Functional]\ncompare_index: [Max diff]\n")
    code, out, _ = run(capsys, "merge-result", "-i", "all", "-o", "merged", "-config", "merge.yaml")
    assert (code, out.startswith("wrote merged")) == (0, True)
