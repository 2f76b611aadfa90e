# SPDX-License-Identifier: Apache-2.0
"""Real ranks (gloo) that share a model, merged and held against one process that has it alone."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from builders.warm_python import WarmProcess
from msprobe.cli import main
from msprobe.dump.reader import open_dump
from msprobe.graph.merging import Layout, merge_ranks
from msprobe.graph.sources import open_graphs

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("parallel_program.py")
STATISTICS = ("max", "min", "mean", "norm")


def run(folder: Path, layout: str, world: int, *words: str) -> Path:
    """Train one step on some ranks; return the dump."""
    folder.mkdir()
    processes = [
        WarmProcess(
            *(PROGRAM, folder, layout, str(rank), str(world), *words),
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world)
    ]
    for done in [process.wait() for process in processes]:
        assert done.returncode == 0, done.stderr
    return folder / "dump"


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return run(tmp_path_factory.mktemp("dense") / "run", "single", 1, "tensor")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    return run(tmp_path_factory.mktemp("sparse") / "run", "single", 1, "moe", "tensor")


def layout_of(text: str, world: int) -> Layout:
    sizes = {part.rstrip("0123456789"): int(part.lstrip("cdeptv")) for part in text.split("-")}
    return Layout(rank_size=world, **{axis: n for axis, n in sizes.items() if axis != "dp"})


def is_close(found, expected) -> bool:
    if found.shape != expected.shape:
        return False
    scale = 1e-2 * max(abs(expected.max), abs(expected.min)) + 1e-9
    return all(
        math.isclose(getattr(found, name), number, rel_tol=1e-3, abs_tol=1e-3 * scale)
        for name in STATISTICS
        if (number := getattr(expected, name)) is not None
    )


def differences(merged: Path, whole: Path) -> tuple[Counter[str], list[str]]:
    """Count the values of calls with the same name by what became of them."""
    target, reference = open_dump(merged).step().rank(0), open_dump(whole).step().rank()
    counts: Counter[str] = Counter()
    wrong = []
    for name in reference.records:
        if not name.startswith("Module."):  # the parallel program makes further calls
            continue
        others = {value.slot: value for value in target.records.values_of(name)}
        for value in reference.records.values_of(name):
            if not value.is_tensor or value.norm is None:
                continue
            found = others[value.slot]
            if found.norm is None:
                counts["unknown"] += 1
            elif is_close(found, value):
                counts["equal"] += 1
            else:
                wrong.append(f"{name}.{value.slot}: {found} for {value}")
    return counts, wrong


def saved_apart(merged: Path, whole: Path) -> list[str]:
    """The saved values of calls of modules that are not those of the whole, element by element."""
    target, reference = open_dump(merged).step().rank(0), open_dump(whole).step().rank()
    apart, count = [], 0
    for name in reference.records:
        others = {}
        if name.startswith("Module."):
            others = {value.slot: value for value in target.records.values_of(name)}
        for value in reference.records.values_of(name) if others else ():
            if value.data_name is None:
                continue
            count += 1
            pair = target.tensor(others[value.slot]).array, reference.tensor(value).array
            largest = max(1.0, float(np.abs(pair[1]).max(initial=0.0)))
            if pair[0].shape != pair[1].shape or not np.allclose(
                *pair, rtol=1e-3, atol=1e-5 * largest
            ):
                apart.append(f"{name}.{value.slot}")
    assert count > 500
    return apart


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """Two stages of two pieces each, their layers shared by two ranks."""
    return run(tmp_path_factory.mktemp("staged") / "run", "tp2-pp2-vpp2", 4, "tensor")


def test_layers_and_stages_together_have_every_value_of_the_whole(tmp_path, dense, staged):
    layout = layout_of("tp2-pp2-vpp2", 4)
    merged = merge_ranks(open_dump(staged), layout, tmp_path / "merged", like=open_dump(dense))

    counts, wrong = differences(merged, dense)
    assert not wrong
    assert counts.keys() == {"equal"}
    assert saved_apart(merged, dense) == []
    assert open_graphs(merged, dense).summary["verdict"]["class"] == "equal"


@pytest.mark.parametrize(("layout", "world"), [("cp2", 2), ("tp2-cp2-pp2", 8)])
def test_shared_sequences_leave_only_gradients_of_weights_open(
    tmp_path, dense, layout, world, caplog
):
    dump = run(tmp_path / "run", layout, world)

    merged = merge_ranks(
        open_dump(dump), layout_of(layout, world), tmp_path / "merged", like=open_dump(dense)
    )

    counts, wrong = differences(merged, dense)
    assert not wrong
    assert "not the same" not in caplog.text
    target = open_dump(merged).step().rank(0)
    unknown = {
        name
        for name in target.records
        for value in target.records.values_of(name)
        if name.startswith("Module.") and value.note and "the mean alone" in value.note
    }
    assert unknown
    assert all(".parameters_grad" in name for name in unknown)
    assert counts["equal"] > 4 * counts["unknown"]


def test_experts_of_all_ranks_are_found_in_one_model(tmp_path, sparse, caplog):
    dump = run(tmp_path / "run", "tp2-ep2", 4, "moe", "tensor")

    merged = merge_ranks(
        open_dump(dump), layout_of("tp2-ep2", 4), tmp_path / "merged", like=open_dump(sparse)
    )

    counts, wrong = differences(merged, sparse)
    assert not wrong
    assert counts.keys() == {"equal"}
    assert saved_apart(merged, sparse) == []
    assert "hold alike" not in caplog.text  # each rank of ep counts the rows of its own experts
    names = {
        name.partition(".experts.")[2].partition(".")[0]
        for name in open_dump(merged).step().rank(0).records
    }
    assert {"0", "1", "2", "3"} <= names


def test_replicas_of_the_data_are_merged_each_for_itself(tmp_path, dense):
    dump = run(tmp_path / "run", "tp2-dp2", 4)

    merged = merge_ranks(open_dump(dump), Layout(rank_size=4, tp=2), tmp_path / "merged")

    ranks = open_dump(merged).step().ranks
    assert [*ranks] == [0, 1]
    inputs = [
        next(iter(view.records.values_of("Module.embed.Embedding.forward.0"))).norm
        for view in ranks.values()
    ]
    assert inputs[0] != inputs[1]


def test_a_healthy_pair_is_equal_and_a_copy_that_disagrees_is_said(
    tmp_path, dense, staged, capsys, caplog
):
    dump = shutil.copytree(staged, tmp_path / "run")
    words = ["graph_visualize", "-tp", str(dump), "-gp", str(dense), "-o", str(tmp_path)]
    sizes = ["--rank_size", "4", "1", "--tp", "2", "1", "--pp", "2", "1", "--vpp", "2", "1"]

    assert main([*words, *sizes]) == 0

    graphs = open_graphs(capsys.readouterr().out.strip())
    assert graphs.summary["verdict"]["class"] == "equal"
    halves = graphs.places[0].reference.results.halves
    assert not [name for name, half in halves.items() if half.status == "missing"]
    assert "should hold alike" not in caplog.text

    spoiled = dump / "step0" / "rank1" / "dump.json"
    text = spoiled.read_text()
    start = text.index('"Module.0.layers.0.ln2.LayerNorm.forward.0"')
    end = text.index('"Max"', text.index('"weight"', start))
    spoiled.write_text(text[:end] + '"Max": 7.5,' + text[text.index(",", end) + 1 :])
    assert main([*words, *sizes]) == 0
    assert "1 values that these ranks should hold alike" in caplog.text
