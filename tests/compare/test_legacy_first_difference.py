# SPDX-License-Identifier: Apache-2.0
"""The files of the first-difference search: their form, and what they name."""

from __future__ import annotations

import json

import pytest
from judging import judged, judged_views

from builders import records
from builders.dumps import write_rank
from builders.peer_pairs import write_pair
from msprobe.compare.legacy.columns import OWN
from msprobe.compare.legacy.first_difference import first_differences, write_first_differences
from msprobe.compare.legacy.tables import legacy_table
from msprobe.dump.reader import open_dump

STAMP = "20260101120000"


def load(path):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.fixture(scope="module", params=["statistics", "md5", "tensor"])
def one_rank(request, tmp_path_factory):
    comparison = judged(*write_pair(tmp_path_factory.mktemp("pair"), request.param))
    out = tmp_path_factory.mktemp("out")
    return request.param, comparison, write_first_differences([comparison], out, STAMP)


def test_each_rank_has_a_file_and_the_analysis_one(one_rank):
    _, _, (rank, analysis) = one_rank
    assert rank.name == f"compare_result_rank0_{STAMP}.json"
    assert analysis.name.startswith("diff_analyze_")
    assert analysis.name.removeprefix("diff_analyze_").removesuffix(".json").isdigit()


def test_operations_have_the_rows_of_the_table(one_rank):
    _, comparison, (path, _) = one_rank
    operations = load(path)
    items = [item for each in operations.values() for item in each["op_items"]]
    table = legacy_table(comparison)
    rows = [dict(zip(table.columns, cells, strict=True)) for cells, _ in table.rows()]
    assert len(items) == len(rows)
    for item, row in zip(items, rows, strict=True):
        assert list(item)[: len(table.columns)] == list(table.columns)
        assert item["NPU Name"] == row["NPU Name"]
        assert item["Result"] == row["Result"]
        assert list(item)[len(table.columns) :] == [
            "state",
            "api_origin_name",
            "NPU P2POp op",
            "Bench P2POp op",
            "NPU P2POp peer",
            "Bench P2POp peer",
        ]
    assert set(OWN) <= set(items[0])
    assert {item["state"] for item in items} == {
        "input",
        "parameters",
        "output",
        "parameters_grad",
    }


def test_operations_are_the_same_where_no_value_differs(one_rank):
    _, _, (path, _) = one_rank
    operations = load(path)
    assert {name for name, each in operations.items() if each["is_same"]} >= {
        "Tensor.__getitem__.0.forward",
        "Distributed.broadcast.0.forward",
        "Torch.empty.0.forward",  # memory that nobody has written
        "Torch.exp.0.forward",  # nothing to compare with
    }
    assert {name for name, each in operations.items() if not each["is_same"]} >= {
        "Functional.linear.0.forward",
        "Torch.add.0.forward",
        "Torch.div.0.forward",
        "Torch.sum.0.forward",
        "Module.fc.Linear.parameters_grad",
    }


def test_stacks_are_lists_and_messages_know_their_peer(one_rank):
    _, _, (path, _) = one_rank
    operations = load(path)
    first, second, *_ = operations["Functional.linear.0.forward"]["op_items"]
    assert [frame.partition(",")[0] for frame in first["NPU_Stack_Info"]] == [
        "File model.py",
        "File train.py",
    ]
    assert second["NPU_Stack_Info"] == "N/A"
    assert (first["state"], first["NPU P2POp peer"]) == ("input", "None")
    message = operations["Distributed.batch_isend_irecv.0.forward"]["op_items"][0]
    assert (message["NPU P2POp op"], message["NPU P2POp peer"]) == ("isend", 1)


def test_the_analysis_names_the_operation_and_what_of_it_differs(one_rank):
    task, _, (_, path) = one_rank
    analysis = load(path)
    assert list(analysis) == ["rank_0"]
    (entry,) = analysis["rank_0"]
    assert entry["op_name"] == "Functional.linear.0.forward"
    data = entry["data_info"]
    prefix = "Functional.linear.0.forward."
    assert list(data["input"]) == [prefix + slot for slot in ("input.0", "input.1", "input.bias")]
    output = data["output"][prefix + "output.0"]
    if task == "md5":
        assert list(output) == ["NPU MD5", "NPU P2POp peer"]
    else:
        assert output == {
            "NPU max": 2.5,
            "NPU min": -2.5,
            "NPU mean": pytest.approx(-1 / 9),
            "NPU l2norm": 5.0,
            "NPU P2POp peer": "None",
        }
    assert len(entry["stack_info"]) == 2
    # Unlike a threshold on outputs, this says that the weight has come in different.
    assert [each["name"] for each in entry["differs"]] == [prefix + "input.1", prefix + "output.0"]


def tensor(value):
    return records.tensor((4,), Max=value, Min=-value, Mean=0.0, Norm=2 * value)


def write_outputs(directory, values):
    """Write a rank: a product, a sum over ranks, another product; `values` of its outputs."""
    before, reduced, after = map(tensor, values)
    group = records.group([0, 1])
    data = {
        "Torch.mul.0.forward": records.forward([tensor(1.0)], [before]),
        "Distributed.all_reduce.0.forward": records.forward([before], [reduced], group=group),
        "Torch.mul.1.forward": records.forward([reduced], [after]),
    }
    write_rank(directory, data, level="L1")


def ranks(tmp_path, target, reference, step="step0", names=("rank0", "rank1")):
    for side, values in (("target", target), ("reference", reference)):
        for name, each in zip(names, values, strict=False):
            write_outputs(tmp_path / side / step / name, each)
    mine, theirs = (open_dump(tmp_path / side).step() for side in ("target", "reference"))
    return [judged_views(view, theirs.ranks[key]) for key, view in mine.ranks.items()]


GOOD = (2.0, 4.0, 8.0)


def named(comparisons):
    return [(found.comparison.rank, found.name) for found in first_differences(comparisons)]


@pytest.mark.parametrize("guilty", [0, 1])
def test_one_rank_explains_the_others(tmp_path, guilty):
    bad, infected = (3.0, 5.0, 10.0), (2.0, 5.0, 10.0)
    target = [bad if rank == guilty else infected for rank in (0, 1)]
    found = named(ranks(tmp_path, target, [GOOD, GOOD]))
    assert found == [(guilty, "Torch.mul.0.forward")]


def test_a_communication_that_changes_values_is_named_on_all_ranks(tmp_path):
    comparisons = ranks(tmp_path, [(2.0, 5.0, 10.0)] * 2, [GOOD, GOOD])
    name = "Distributed.all_reduce.0.forward"
    assert named(comparisons) == [(0, name), (1, name)]
    files = write_first_differences(comparisons, tmp_path / "out", STAMP)
    assert [path.name for path in files[:2]] == [
        f"compare_result_rank0_{STAMP}.json",
        f"compare_result_rank1_{STAMP}.json",
    ]
    assert list(load(files[2])) == ["rank_0", "rank_1"]


def test_a_difference_after_the_last_communication_stays_on_its_rank(tmp_path):
    found = first_differences(ranks(tmp_path, [GOOD, (2.0, 4.0, 9.0)], [GOOD, GOOD]))
    assert [(each.comparison.rank, each.name) for each in found] == [(1, "Torch.mul.1.forward")]


def test_nothing_differs_nothing_is_analysed(tmp_path):
    comparisons = ranks(tmp_path, [GOOD, GOOD], [GOOD, GOOD])
    assert named(comparisons) == []
    files = write_first_differences(comparisons, tmp_path / "out", STAMP)
    assert len(files) == 2
    assert all(each["is_same"] for each in load(files[0]).values())


@pytest.mark.parametrize("name", ["rank", "proc4711"])
def test_a_single_process_is_analysed_as_well(tmp_path, name):
    comparisons = ranks(tmp_path, [(3.0, 5.0, 9.0)], [GOOD], names=(name,))
    rank, analysis = write_first_differences(comparisons, tmp_path / "out", STAMP)
    assert rank.name == f"compare_result_{name}_{STAMP}.json"
    assert [entry["op_name"] for entry in load(analysis)[name]] == ["Torch.mul.0.forward"]


def test_steps_have_folders(tmp_path):
    first = ranks(tmp_path / "a", [GOOD], [GOOD], names=("rank0",))
    second = ranks(tmp_path / "b", [GOOD], [GOOD], step="step5", names=("rank0",))
    files = write_first_differences([*first, *second], tmp_path / "out", STAMP)
    assert [path.parent.name for path in files] == ["step0", "step5"]
