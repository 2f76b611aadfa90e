# SPDX-License-Identifier: Apache-2.0
"""Ranks of parallel runs merged into one graph."""

from __future__ import annotations

import json

import numpy as np
import pytest

from builders.dumps import write_rank
from builders.records import forward
from msprobe.cli import main
from msprobe.dump.reader import open_dump
from msprobe.errors import ConfigError, UsageError
from msprobe.graph.input_file import read_graph_input
from msprobe.graph.merging import Layout, merge_ranks
from msprobe.graph.sources import open_graphs


def tensor(array, **more):
    array = np.asarray(array, dtype=np.float64)
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(array.shape),
        "Max": float(array.max()),
        "Min": float(array.min()),
        "Mean": float(array.mean()),
        "Norm": float(np.linalg.norm(array)),
        "requires_grad": False,
        "array": array,
    } | more


RANDOM = np.random.default_rng(0)
X, UP, DOWN = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(6, 8)), RANDOM.normal(size=(8, 6))


def save(folder, record, *, keeps):
    """Take the arrays out of a record, and keep them in files or not."""
    for part, name in (("input_args", "input"), ("output", "output")):
        for place, entry in enumerate(record[part]):
            array = entry.pop("array")
            if keeps:
                entry["data_name"] = f"{folder.name}.{name}.{place}.npy"
                np.save(folder.parent / entry["data_name"], array.astype(np.float32))


def write_layers(folder, layers, parts=1, part=0, before=(), *, keeps=False):
    """Layers with two products each, the inner width shared out to some ranks."""
    inner = slice(part * 8 // parts, (part + 1) * 8 // parts)
    x = X
    for _ in before:
        x = x @ UP @ DOWN
    root = "Module.Net.forward.0"
    records, parents = {}, {root: None}
    for number in range(layers):
        block = f"Module.layers.{number}.Block.forward.0"
        up, down = (f"Functional.linear.{2 * number + place}.forward" for place in (0, 1))
        reduce = f"Distributed.all_reduce.{number}.forward"
        parents |= {block: root, up: block, down: block}
        hidden, whole = x @ UP[:, inner], x @ UP @ DOWN
        share = hidden @ DOWN[inner]
        records[up] = forward([tensor(x), tensor(UP[:, inner].T)], [tensor(hidden)])
        records[down] = forward([tensor(hidden), tensor(DOWN[inner].T)], [tensor(share)])
        if parts > 1:
            parents[reduce] = block
            records[reduce] = forward([tensor(share)], [tensor(whole)])
        records[block] = forward([tensor(x)], [tensor(whole)])
        x = whole
    records[root] = forward([tensor(X)], [tensor(x)])
    files = folder / "dump_tensor_data"
    files.mkdir(parents=True)
    for name, record in records.items():
        save(files / name, record, keeps=keeps)
    task = "tensor" if keeps else "statistics"
    write_rank(folder, records, parents=parents, task=task)


def records_of(folder):
    return json.loads((folder / "step0" / "rank0" / "dump.json").read_text())["data"]


def close(found, expected):
    return all(
        found[name] == pytest.approx(expected[name]) for name in ("Max", "Min", "Mean", "Norm")
    )


def test_parts_of_a_layer_have_the_statistics_of_the_whole(tmp_path):
    write_layers(tmp_path / "one" / "step0" / "rank0", 2)
    for rank in range(4):
        write_layers(tmp_path / "four" / "step0" / f"rank{rank}", 2, 4, rank)

    merge_ranks(open_dump(tmp_path / "four"), Layout(rank_size=4, tp=4), tmp_path / "merged")

    single, merged = records_of(tmp_path / "one"), records_of(tmp_path / "merged")
    for name, record in single.items():
        for part in ("input_args", "output"):
            for one, found in zip(record[part], merged[name][part], strict=True):
                assert close(found, one), (name, part, found, one)


def test_stages_of_a_pipeline_follow_each_other(tmp_path):
    write_layers(tmp_path / "one" / "step0" / "rank0", 3)
    write_layers(tmp_path / "two" / "step0" / "rank0", 2)
    write_layers(tmp_path / "two" / "step0" / "rank1", 1, before=range(2))

    merge_ranks(open_dump(tmp_path / "two"), Layout(rank_size=2, pp=2), tmp_path / "merged")

    single, merged = records_of(tmp_path / "one"), records_of(tmp_path / "merged")
    assert merged.keys() == single.keys()
    last = "Functional.linear.5.forward"
    assert close(merged[last]["output"][0], single[last]["output"][0])


def test_merged_ranks_are_compared_with_a_single_process(tmp_path, capsys):
    write_layers(tmp_path / "one" / "step0" / "rank0", 2)
    for rank in range(2):
        write_layers(tmp_path / "two" / "step0" / f"rank{rank}", 2, 2, rank)
    words = ["graph_visualize", "-tp", str(tmp_path / "two"), "-gp", str(tmp_path / "one")]

    assert main([*words, "-o", str(tmp_path), "--rank_size", "2", "1", "--tp", "2", "1"]) == 0

    graphs = open_graphs(capsys.readouterr().out.strip())
    statuses = {
        name: result.status
        for name, result in graphs.places[0].target.results.halves.items()
        if result.status.is_difference
    }
    assert {name.partition(".")[0] for name in statuses} <= {"Distributed"}


def test_saved_parts_and_partial_sums_become_the_tensors_of_the_whole(tmp_path):
    write_layers(tmp_path / "one" / "step0" / "rank0", 2, keeps=True)
    for rank in range(2):
        write_layers(tmp_path / "two" / "step0" / f"rank{rank}", 2, 2, rank, keeps=True)
    single = open_dump(tmp_path / "one")

    layout = Layout(rank_size=2, tp=2)
    merged = merge_ranks(open_dump(tmp_path / "two"), layout, tmp_path / "merged", like=single)

    target, whole = (dump.step().rank(0) for dump in (open_dump(merged), single))
    count = 0
    for name in whole.records:
        others = {value.slot: value for value in target.records.values_of(name)}
        for value in whole.records.values_of(name):
            found = target.tensor(others[value.slot]).values()
            np.testing.assert_allclose(found, whole.tensor(value).values(), rtol=1e-5, atol=1e-5)
            count += 1
    assert count == 18
    summary = open_graphs(merged, tmp_path / "one").summary
    assert summary["mode"] == "tensor"
    assert summary["verdict"]["class"] in ("equal", "rounding")


def test_parts_that_were_cut_along_two_dimensions_are_put_where_the_reference_has_them(tmp_path):
    whole = np.random.default_rng(1).normal(size=(4, 6))
    pieces = {(t, c): whole[2 * c : 2 * c + 2, 3 * t : 3 * t + 3] for t in (0, 1) for c in (0, 1)}
    for rank, array in enumerate([whole, *(pieces[n % 2, n // 2] for n in range(4))]):
        folder = tmp_path / ("four" if rank else "one") / "step0" / f"rank{max(rank - 1, 0)}"
        (folder / "dump_tensor_data").mkdir(parents=True)
        name = "Functional.relu.0.forward"
        record = forward([], [tensor(array)])
        save(folder / "dump_tensor_data" / name, record, keeps=True)
        write_rank(folder, {name: record}, parents={name: None}, task="tensor")
    like = open_dump(tmp_path / "one")

    layout = Layout(rank_size=4, tp=2, cp=2)
    merged = merge_ranks(open_dump(tmp_path / "four"), layout, tmp_path / "merged", like=like)

    view = open_dump(merged).step().rank(0)
    (value,) = view.records.values_of(name)
    np.testing.assert_array_equal(view.tensor(value).values(), whole.astype(np.float32))


def test_a_part_whose_file_is_gone_keeps_its_statistics(tmp_path):
    for rank in range(2):
        write_layers(tmp_path / "two" / "step0" / f"rank{rank}", 1, 2, rank, keeps=True)
    write_layers(tmp_path / "one" / "step0" / "rank0", 1, keeps=True)
    name = "Functional.linear.0.forward.output.0.npy"
    (tmp_path / "two" / "step0" / "rank1" / "dump_tensor_data" / name).unlink()

    layout = Layout(rank_size=2, tp=2)
    like = open_dump(tmp_path / "one")
    merge_ranks(open_dump(tmp_path / "two"), layout, tmp_path / "merged", like=like)

    (found,) = records_of(tmp_path / "merged")["Functional.linear.0.forward"]["output"]
    assert "data_name" not in found
    assert found["shape"] == [4, 8]


def test_ranks_that_lack_records_are_said(tmp_path, caplog):
    for rank in range(2):
        write_layers(tmp_path / "two" / "step0" / f"rank{rank}", 1, 2, rank)
    path = tmp_path / "two" / "step0" / "rank0" / "dump.json"
    tree = json.loads(path.read_text())
    del tree["data"]["Functional.linear.1.forward"]
    path.write_text(json.dumps(tree))

    merge_ranks(open_dump(tmp_path / "two"), Layout(rank_size=2, tp=2), tmp_path / "merged")

    assert "1 records are not on all ranks" in caplog.text
    assert "Functional.linear.1.forward" in caplog.text


def test_merged_ranks_can_be_written_as_a_dump(tmp_path):
    for rank in range(2):
        write_layers(tmp_path / "two" / "step0" / f"rank{rank}", 1, 2, rank)
    words = ["graph_visualize", "-tp", str(tmp_path / "two"), "-o", str(tmp_path / "out")]

    assert main([*words, "--rank_size", "2", "--tp", "2", "--file_type", "json"]) == 0

    assert len(open_dump(tmp_path / "out").step().rank().records) == 5


def test_layouts_may_stand_in_the_file_of_both_paths(tmp_path, capsys):
    write_layers(tmp_path / "one" / "step0" / "rank0", 2)
    for rank in range(2):
        write_layers(tmp_path / "two" / "step0" / f"rank{rank}", 2, 2, rank)
    tree = {
        "npu_path": str(tmp_path / "two"),
        "bench_path": str(tmp_path / "one"),
        "parallel_merge": {"npu": {"rank_size": 2, "tp": 2, "vpp": 1}, "bench": {"rank_size": 1}},
    }
    path = tmp_path / "compare.json"
    path.write_text(json.dumps(tree))

    assert main(["-f", "pytorch", "graph", "-i", str(path), "-o", str(tmp_path)]) == 0

    halves = open_graphs(capsys.readouterr().out.strip()).places[0].target.results.halves
    names = {name.partition(".")[0] for name, half in halves.items() if half.status.is_difference}
    assert names <= {"Distributed"}


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ({"gpu": {}}, "parallel_merge"),
        ({"npu": {"tp": 2}, "bench": {"rank_size": 1}}, "parallel_merge.npu"),
        ({"npu": {"rank_size": 2, "tensor": 2}}, "parallel_merge.npu.tensor"),
        ({"npu": {"rank_size": "2"}}, "parallel_merge.npu.rank_size"),
    ],
    ids=["side", "size", "axis", "type"],
)
def test_layouts_in_the_file_that_cannot_be_are_refused(tmp_path, merge, message):
    path = tmp_path / "compare.json"
    path.write_text(json.dumps({"npu_path": "a", "parallel_merge": merge}))

    with pytest.raises(ConfigError, match=message):
        read_graph_input(path)


def test_ranks_are_numbered_along_the_axes_in_order():
    assert Layout(rank_size=8, tp=2, pp=2).groups() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    other = Layout(rank_size=8, tp=2, pp=2, order="tp-cp-ep-pp-dp")
    assert other.groups() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(rank_size=6, tp=4), "multiple"),
        (Layout(rank_size=4, order="tp-pp"), "order"),
        (Layout(rank_size=0), "multiple"),
        (Layout(rank_size=2, vpp=0), "vpp"),
    ],
    ids=["size", "order", "none", "pieces"],
)
def test_layouts_that_cannot_be_are_refused(layout, message):
    with pytest.raises(UsageError, match=message):
        layout.groups()


def test_another_number_of_pieces_is_named(tmp_path):
    write_layers(tmp_path / "dump" / "step0" / "rank0", 1)

    with pytest.raises(UsageError, match="--vpp 2"):
        merge_ranks(open_dump(tmp_path / "dump"), Layout(rank_size=1, vpp=2), tmp_path / "merged")


def test_a_missing_rank_is_named(tmp_path):
    write_layers(tmp_path / "dump" / "step0" / "rank0", 1)

    with pytest.raises(UsageError, match="lacks rank 1"):
        merge_ranks(open_dump(tmp_path / "dump"), Layout(rank_size=2, tp=2), tmp_path / "merged")
