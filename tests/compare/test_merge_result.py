# SPDX-License-Identifier: Apache-2.0
"""Tables of many ranks become one file with a sheet for each metric."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import python_calamine
from judging import judged

from builders.peer_pairs import write_pair
from msprobe.compare.legacy.columns import Generation
from msprobe.compare.legacy.merge import merge_results
from msprobe.compare.legacy.tables import legacy_table
from msprobe.errors import ConfigError, ConfigFileError, DumpFormatError, UsageError
from msprobe.report.table_files import write_table
from msprobe.report.tables import Table

DATA = Path(__file__).parent / "data"
STAMP = "20260101120000"
STATISTICS = [
    "Max diff",
    "Min diff",
    "Mean diff",
    "L2norm diff",
    "MaxRelativeErr",
    "MinRelativeErr",
    "MeanRelativeErr",
    "NormRelativeErr",
]


def config(tmp_path, text="api: [Functional.linear, Torch.sum.0]\n"):
    path = tmp_path / "merge.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def rows_of(generation, task):
    path = DATA / f"mindstudio_{generation}_{task}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def put_theirs(folder, generation, task, kind, ranks=(0, 1)):
    """Write the tables of mindstudio-probe for several ranks."""
    titles, *rows = rows_of(generation, task)
    table = Table.of(titles, rows)
    for rank in ranks:
        write_table(table, folder / f"compare_result_rank{rank}_{STAMP}", kind)


def merged(folder, tmp_path, text=None):
    """Merge and return the sheets by name."""
    path = merge_results(folder, tmp_path / "out", config(tmp_path, *([text] if text else [])))
    assert path.parent == tmp_path / "out"
    assert path.name.startswith("multi_ranks_compare_merge_20")
    workbook = python_calamine.CalamineWorkbook.from_path(path)
    return {name: workbook.get_sheet_by_name(name).to_python() for name in workbook.sheet_names}


@pytest.mark.parametrize("kind", ["xlsx", "csv"])
@pytest.mark.parametrize("generation", list(Generation))
def test_each_metric_has_a_sheet(generation, kind, tmp_path):
    put_theirs(tmp_path / "in", generation, "statistics", kind)
    sheets = merged(tmp_path / "in", tmp_path)
    assert list(sheets) == STATISTICS
    sheet = sheets["Max diff"]
    assert sheet[0] == ["NPU Name", "rank0", "rank1"]
    values = {row[0]: row[1:] for row in sheet[1:]}
    assert values["Functional.linear.0.forward.input.1"] == [0.625, 0.625]
    assert values["Torch.sum.0.forward.output.0"] == [0.5, 0.5]
    assert {name.split(".")[1] for name in values} == {"linear", "sum"}
    relative = {row[0]: row[1] for row in sheets["MaxRelativeErr"][1:]}
    assert relative["Functional.linear.0.forward.input.1"] == "50.0%"


@pytest.mark.parametrize("kind", ["xlsx", "csv"])
@pytest.mark.parametrize("generation", list(Generation))
@pytest.mark.parametrize("task", ["statistics", "md5", "tensor"])
def test_our_own_tables_merge(generation, kind, task, tmp_path):
    comparison = judged(*write_pair(tmp_path / "dumps", task))
    table = legacy_table(comparison, generation)
    for rank in (0, 1):
        write_table(table, tmp_path / "in" / f"compare_result_rank{rank}_{STAMP}", kind)
    sheets = merged(tmp_path / "in", tmp_path)
    expected = {
        "statistics": STATISTICS,
        "md5": ["Result", "NPU MD5", "BENCH MD5"],
        "tensor": [
            "Cosine",
            "EucDist",
            "MaxAbsErr",
            "MaxRelativeErr",
            "One Thousandth Err Ratio",
            "Five Thousandths Err Ratio",
        ],
    }[task]
    assert list(sheets) == expected
    names = {row[0] for row in sheets[expected[0]][1:]}
    assert {name.split(".")[1] for name in names} == {"linear", "sum"}


def test_columns_are_chosen_by_their_titles_or_the_documented_ones(tmp_path):
    put_theirs(tmp_path / "in", "8.3.3", "statistics", "xlsx")
    titles = "Norm diff, L2norm diff, Requires_grad Consistent"
    chosen = f"api: [Functional]\ncompare_index: [{titles}]\n"
    sheets = merged(tmp_path / "in", tmp_path, chosen)
    assert list(sheets) == ["Norm diff", "L2norm diff", "Requires_grad Consistent"]
    assert sheets["Norm diff"] == sheets["L2norm diff"]
    assert len(sheets["Norm diff"]) > 1


def test_ranks_stand_in_the_order_of_their_numbers(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv", ranks=(10, 2, 0))
    assert merged(tmp_path / "in", tmp_path)["Max diff"][0] == [
        "NPU Name",
        "rank0",
        "rank2",
        "rank10",
    ]


def test_tables_named_after_both_ranks_have_the_first_as_title(tmp_path):
    titles, *rows = rows_of("8.3.3", "statistics")
    for rank in (1, 0):
        name = f"compare_result_rank{rank}-rank{rank + 4}_{STAMP}"
        write_table(Table.of(titles, rows), tmp_path / "in" / name, "xlsx")
    assert merged(tmp_path / "in", tmp_path)["Max diff"][0] == ["NPU Name", "rank0", "rank1"]
    name = f"compare_result_rank1-rank1_{STAMP}"
    write_table(Table.of(titles, rows), tmp_path / "in" / name, "xlsx")
    with pytest.raises(UsageError, match="several tables of rank1"):
        merged(tmp_path / "in", tmp_path)


def test_rows_that_a_rank_lacks_are_blank(tmp_path):
    titles, *rows = rows_of("26.2.0", "statistics")
    for rank in (0, 1):
        kept = [row for row in rows if rank == 0 or ".input." not in row[0]]
        name = f"compare_result_rank{rank}_{STAMP}"
        write_table(Table.of(titles, kept), tmp_path / "in" / name, "xlsx")
    values = {row[0]: row[1:] for row in merged(tmp_path / "in", tmp_path)["Max diff"][1:]}
    assert values["Functional.linear.0.forward.input.1"] == [0.625, ""]
    assert values["Functional.linear.0.forward.output.0"] == [1.25, 1.25]


def test_rows_keep_the_order_of_execution(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv")
    names = [row[0] for row in merged(tmp_path / "in", tmp_path)["Max diff"][1:]]
    everything = [row[0] for row in rows_of("26.2.0", "statistics")]
    assert names == [name for name in everything if name in set(names)]


def test_metrics_that_say_nothing_give_way_to_the_values(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "tensor", "csv")
    text = "api: [Distributed.all_reduce, Torch.div]\ncompare_index: [Cosine]\n"
    sheets = merged(tmp_path / "in", tmp_path, text)
    assert list(sheets) == ["Cosine"]
    values = {row[0]: row[1] for row in sheets["Cosine"][1:]}
    assert values["Distributed.all_reduce.0.forward.input.group"] == "NPU:[0, 1]  Bench:[0, 1]"
    assert values["Torch.div.0.forward.output.0"] == "NPU:Nan  Bench:1.25"


def test_beginnings_are_whole_parts_of_names(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv")
    text = "api:\n  - Torch.su\n  - Torch.ne.0.forward\n"
    sheet = merged(tmp_path / "in", tmp_path, text)["Max diff"]
    assert {row[0].split(".")[1] for row in sheet[1:]} == {"ne"}


def test_parts_of_a_large_table_are_one_table(tmp_path):
    titles, *rows = rows_of("26.2.0", "statistics")
    folder = tmp_path / "in"
    for part, some in ((1, rows[:4]), (2, rows[4:])):
        name = f"compare_result_rank0_{STAMP}_part_{part}.csv"
        write_table(Table.of(titles, some), folder / name, "csv")
    write_table(Table.of(titles, rows), folder / f"compare_result_rank1_{STAMP}", "xlsx")
    sheet = merged(folder, tmp_path)["Max diff"]
    assert sheet[0] == ["NPU Name", "rank0", "rank1"]
    assert all(row[1] == row[2] for row in sheet[1:])


def test_cells_may_be_long_and_the_limit_stays(tmp_path):
    limit = csv.field_size_limit()
    titles, *rows = rows_of("26.2.0", "statistics")
    rows[0][titles.index("NPU_Stack_Info")] = "x" * (limit + 1)
    for rank in (0, 1):
        name = f"debug_compare_result_rank{rank}_{STAMP}"
        write_table(Table.of(titles, rows), tmp_path / "in" / name, "csv")
    assert len(merged(tmp_path / "in", tmp_path)["Max diff"]) > 2
    assert csv.field_size_limit() == limit


def test_other_files_are_left_alone(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv")
    (tmp_path / "in" / "notes.xlsx").write_bytes(b"not a table")
    (tmp_path / "in" / "summary.json").write_text("{}")
    assert "Max diff" in merged(tmp_path / "in", tmp_path)


def refused(folder, tmp_path, error, match, text="api: [Functional]\n"):
    with pytest.raises(error, match=match):
        merge_results(folder, tmp_path / "out", config(tmp_path, text))
    assert not (tmp_path / "out").exists()


def test_one_rank_is_not_enough(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv", ranks=(3,))
    refused(tmp_path / "in", tmp_path, UsageError, "tables of 1 ranks; at least two")


def test_a_folder_that_is_not_there(tmp_path):
    refused(tmp_path / "nowhere", tmp_path, UsageError, "nowhere: cannot be read")


def test_two_tables_of_a_rank_are_refused_by_name(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv")
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "xlsx", ranks=(1,))
    refused(tmp_path / "in", tmp_path, UsageError, r"several tables of rank1: .*csv, .*xlsx")


def test_tables_of_different_kinds_are_refused(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv", ranks=(0,))
    put_theirs(tmp_path / "in", "26.2.0", "tensor", "csv", ranks=(1,))
    refused(tmp_path / "in", tmp_path, UsageError, "statistics; .*: tensor")


def test_a_table_of_something_else_is_refused_with_its_titles(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv", ranks=(0,))
    (tmp_path / "in" / f"compare_result_rank1_{STAMP}.csv").write_text("a,b\n1,2\n")
    refused(tmp_path / "in", tmp_path, DumpFormatError, r"rank1_\d+\.csv: .*it has a, b")


def test_a_damaged_spreadsheet_is_refused_by_name(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv", ranks=(0,))
    (tmp_path / "in" / f"compare_result_rank1_{STAMP}.xlsx").write_bytes(b"PK\x03\x04 no")
    refused(tmp_path / "in", tmp_path, DumpFormatError, r"rank1_\d+\.xlsx: cannot be read")


def test_a_metric_that_the_tables_lack_is_refused_with_those_they_have(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv")
    text = "api: [Functional]\ncompare_index: [Cosine]\n"
    refused(tmp_path / "in", tmp_path, UsageError, "names 'Cosine'; these tables have Max", text)


def test_nothing_left_is_refused(tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv")
    refused(tmp_path / "in", tmp_path, UsageError, "begin with Nothing", "api: [Nothing]\n")


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("", ConfigFileError, "merge.yaml"),
        ("api: []\n", ConfigError, "a list of beginnings"),
        ("compare_index: []\n", ConfigError, "a list of beginnings"),
        ("api: Functional\n", ConfigError, 'line 1: "api" is "Functional"'),
        ("api: [1, [2]]\n", ConfigError, r'"api\[1\]"'),
        ("apis: [Functional]\n", ConfigError, "one of api, compare_index"),
        ("api: [a\n", ConfigFileError, "not valid YAML"),
    ],
)
def test_a_bad_config_is_refused_with_its_line(text, error, match, tmp_path):
    put_theirs(tmp_path / "in", "26.2.0", "statistics", "csv")
    refused(tmp_path / "in", tmp_path, error, match, text)
