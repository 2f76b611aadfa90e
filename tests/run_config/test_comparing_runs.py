# SPDX-License-Identifier: Apache-2.0
"""Two packs compared: one verdict an item, and the difference that was planted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from python_calamine import CalamineWorkbook

from msprobe.run_config.comparing import compare_packs
from msprobe.run_config.levels import Level
from msprobe.run_config.pack import DYNAMIC, ENV, STATIC, SYSTEM, PackWriter
from msprobe.run_config.random_calls import compare_random_calls
from msprobe.run_config.result_files import write_results
from msprobe.run_config.value_tables import compare_weights, relative_difference


def leaf(norm: float = 2.0, **more: object) -> dict:
    return {"max": 1.0, "min": -1.0, "mean": 0.5, "norm": norm, "crc32": "00000001", **more}


def contents() -> dict[str, dict]:
    place = "rank0"
    stack = ["File /a/train.py, line 3, in main, x = torch.rand(2)"]
    return {
        ENV: {"NCCL_ALGO": "Ring", "EDITOR": "vi"},
        SYSTEM: {"python": "3.11.7", "os": "Linux"},
        STATIC: {"lr": "1e-4"},
        DYNAMIC: {"hidden_size": 64},
        f"dataset/step0/{place}/dataset.json": {"args": {"0": leaf()}, "kwargs": {"mask": leaf()}},
        f"weights/step0/{place}/weight.json": {"fc.weight": leaf(), "fc.bias": leaf()},
        f"buffers/step0/{place}/buffer.json": {"bn.running_mean": leaf()},
        f"random/{place}.json": {"torch.rand": [{"count": 2, "stack": stack}]},
        f"random/generators_{place}.json": {"step0": {"cpu": "aa", "python": "bb"}},
    }


def write(path: Path, members: dict[str, dict], packages: dict[str, str] | None = None) -> Path:
    writer = PackWriter(path)
    for name, tree in members.items():
        writer.put_json(name, tree)
    writer.put_packages(packages or {"torch": "2.1", "requests": "2"})
    return path


@pytest.fixture
def compare(tmp_path: Path):
    def run(change=None, packages=None):
        members = json.loads(json.dumps(contents()))
        if change is not None:
            change(members)
        bench = write(tmp_path / "bench.zip", contents())
        return compare_packs(bench, write(tmp_path / "cmp.zip", members, packages))

    return run


def test_equal_runs_pass_everywhere(compare) -> None:
    found = compare()
    assert found.level is Level.PASS
    assert list(found.items) == [
        "env",
        "pip",
        "system",
        "hyperparameters",
        "dataset",
        "weights",
        "buffers",
        "random",
        "generators",
    ]
    assert all(item.compared for item in found.items.values())
    assert found.differences() == []


def weights(members: dict) -> dict:
    return members["weights/step0/rank0/weight.json"]


def dataset(members: dict) -> dict:
    return members["dataset/step0/rank0/dataset.json"]


@pytest.mark.parametrize(
    ("change", "item", "level", "name"),
    [
        (lambda m: m[ENV].update(NCCL_ALGO="Tree"), "env", "error", "NCCL_ALGO"),
        (lambda m: m[ENV].pop("NCCL_ALGO"), "env", "error", "NCCL_ALGO"),
        (lambda m: m[ENV].update(OMP_NUM_THREADS="4"), "env", "warning", "OMP_NUM_THREADS"),
        (lambda m: m[SYSTEM].update(python="3.12"), "system", "warning", "python"),
        (lambda m: m[STATIC].update(lr=2e-4), "hyperparameters", "error", "lr"),
        (lambda m: m[DYNAMIC].update(hidden_size=65), "hyperparameters", "error", "hidden_size"),
        (lambda m: m[STATIC].update(seed=1), "hyperparameters", "warning", "seed"),
        (lambda m: dataset(m)["kwargs"]["mask"].update(crc32="ff"), "dataset", "error",
         "step 0 rank 0 kwargs.mask"),
        (lambda m: weights(m)["fc.bias"].update(crc32="ff"), "weights", "error",
         "step 0 rank 0 fc.bias"),
        (lambda m: weights(m)["fc.bias"].update(norm=math.nan), "weights", "error",
         "step 0 rank 0 fc.bias"),
        (lambda m: weights(m)["fc.bias"].update(norm=None), "weights", "error",
         "step 0 rank 0 fc.bias"),
        (lambda m: weights(m).update(extra=leaf()), "weights", "error", "step 0 rank 0 extra"),
        (lambda m: m["random/rank0.json"]["torch.rand"][0].update(count=3), "random", "error",
         "rank 0 torch.rand"),
        (lambda m: m["random/generators_rank0.json"]["step0"].update(cpu="x"), "generators",
         "error", "step0 rank 0 cpu"),
    ],
)  # fmt: skip
def test_a_planted_difference_is_the_only_one(compare, change, item, level, name) -> None:
    found = compare(change)
    (difference,) = found.differences()
    assert (difference.item, difference.level, difference.name) == (item, level, name)
    assert found.items[item].level == level
    assert found.level == level
    assert [key for key, each in found.items.items() if each.level is not Level.PASS] == [item]


def test_what_does_not_matter_passes_and_is_still_listed(compare) -> None:
    found = compare(lambda m: m[ENV].update(EDITOR="ed"), {"torch": "2.1", "requests": "3"})
    assert found.level is Level.PASS
    assert [each.level for each in found.differences()] == [Level.INFO, Level.INFO]
    assert len(found.items["pip"].rows) == 1


def test_an_item_of_one_side_is_a_difference(compare) -> None:
    found = compare(lambda m: m.pop("random/rank0.json") and m.pop(DYNAMIC))
    assert found.level is Level.WARNING
    assert [(each.item, each.name, each.bench, each.cmp) for each in found.differences()] == [
        ("hyperparameters", "hyperparameters_dynamic.json", "held", None),
        ("random", "random", "held", None),
    ]
    assert found.items["random"].compared == 0


def test_parts_that_hold_nothing_to_compare_never_pass(compare, tmp_path: Path) -> None:
    junk = {"weights/step0/rank0/weight.json": {"a": 1}}
    paths = [write(tmp_path / f"{name}.zip", junk) for name in "ab"]
    found = compare_packs(*paths)
    assert found.items["weights"].level is Level.WARNING
    assert [each.item for each in found.differences()] == ["weights"]


def test_two_packs_without_anything_to_compare_never_pass(tmp_path: Path) -> None:
    for name in "ab":
        PackWriter(tmp_path / f"{name}.zip")
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip")
    assert found.level is Level.WARNING


def test_ranks_whose_files_are_missing_never_pass(tmp_path: Path) -> None:
    for name in "ab":
        PackWriter(tmp_path / f"{name}.zip", world_size=2).put_json(ENV, {"A": "1"})
    PackWriter(tmp_path / "a.zip", rank=1, world_size=2).put_json(ENV, {"A": "1"})
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip")
    (difference,) = found.differences()
    assert (difference.item, difference.name, difference.level) == (
        "pack",
        "rank 1",
        Level.WARNING,
    )


def test_buffers_that_differ_never_pass(compare) -> None:
    def change(members: dict) -> None:
        members["buffers/step0/rank0/buffer.json"]["bn.running_mean"].update(crc32="ff")

    (difference,) = compare(change).differences()
    assert (difference.item, difference.level) == ("buffers", Level.ERROR)
    assert difference.name == "step 0 rank 0 bn.running_mean"


def test_statistics_decide_where_there_is_no_checksum() -> None:
    def side(**changes: float) -> dict:
        return {(0, 0): {"w": {"max": 1.0, "min": -2.0, "mean": 0.0, "norm": 3.0} | changes}}

    assert compare_weights(side(), side()).level is Level.PASS
    found = compare_weights(side(), side(min=-3.0))
    assert found.rows == [(0, 0, "w", False, 0.0, 0.5, 0.0, 0.0)]
    assert compare_weights(side(mean=math.nan), side(mean=math.nan)).level is Level.PASS


def test_parameters_of_one_side_are_listed_as_documented() -> None:
    found = compare_weights({(0, 0): {"a": leaf()}}, {(0, 0): {"b": leaf()}})
    assert [row[2:4] for row in found.rows] == [("a", "only bench have"), ("b", "only cmp have")]


@pytest.mark.parametrize(
    ("bench", "cmp", "expected"),
    [
        (2.0, 1.0, 0.5),
        (-2.0, -1.0, 0.5),
        (0.0, 1.0, None),
        (0.0, 0.0, 0.0),
        (math.inf, math.inf, 0.0),
        (math.inf, 1.0, None),
        (1.0, None, None),
    ],
)
def test_the_relative_difference_is_never_negative(bench, cmp, expected) -> None:
    assert relative_difference(bench, cmp) == expected


def calls(*entries: tuple[int, list[str]], seeds: list[str] | None = None) -> dict:
    found = [{"count": count, "stack": stack} for count, stack in entries]
    if seeds is not None:
        found[0]["seeds"] = seeds
    return {0: {"torch.manual_seed": found}}


def frame(code: str, line: int = 1, file: str = "/a/train.py", function: str = "main") -> str:
    return f"File {file}, line {line}, in {function}, {code}"


def test_places_are_recognised_although_lines_moved() -> None:
    bench = calls((1, [frame("run(args)"), frame("torch.manual_seed(args.seed)", 10)]))
    cmp = calls(
        (1, [frame("run(args)", 7), frame("torch.manual_seed(args.seed)", 99, "/b/train.py")])
    )
    assert compare_random_calls(bench, cmp).level is Level.PASS


def test_other_places_are_told_apart() -> None:
    bench = calls((1, [frame("torch.manual_seed(args.seed)")]))
    for other in (
        [frame("if not shuffle: reseed_everything()", function="worker_init")],
        [frame("torch.manual_seed(args.seed)")] * 2,
    ):
        found = compare_random_calls(bench, calls((1, other)))
        assert [row[2:] for row in found.rows] == [
            (frame("torch.manual_seed(args.seed)"), "no match stack", 1, 0, False),
            ("no match stack", "\n".join(other), 0, 1, False),
        ]


def test_another_seed_is_a_difference() -> None:
    stack = [frame("torch.manual_seed(seed)")]
    bench, cmp = calls((1, stack), seeds=["1234"]), calls((1, stack), seeds=["1235"])
    (difference,) = compare_random_calls(bench, cmp).differences
    assert (difference.bench, difference.cmp) == ("1234", "1235")
    assert compare_random_calls(bench, calls((1, stack))).level is Level.PASS


def test_the_result_is_a_workbook_with_a_sheet_an_item(compare, tmp_path: Path) -> None:
    found = compare(lambda m: m[STATIC].update(lr=2e-4))
    (tmp_path / "out" / "bench").mkdir(parents=True)
    spreadsheet, summary = write_results(found, tmp_path / "out")
    book = CalamineWorkbook.from_path(str(spreadsheet))
    assert book.sheet_names == ["summary", *found.items]
    rows = book.get_sheet_by_name("summary").to_python()
    assert rows[0] == ["filename", "pass_check"]
    assert rows[1:] == [[name, item.level.value] for name, item in found.items.items()]
    rows = book.get_sheet_by_name("hyperparameters").to_python()
    assert rows == [
        [
            "file_name",
            "bench_para",
            "cmp_para",
            "bench_value",
            "cmp_value",
            "matched_with",
            "level",
        ],
        ["hyperparameters_static.json", "lr", "lr", "1e-4", "0.0002", "pure name", "error"],
    ]
    tree = json.loads(summary.read_text())
    assert tree["level"] == "error"
    assert tree["items"]["hyperparameters"] == {
        "level": "error",
        "compared": 2,
        "differences": 1,
    }
    assert (tmp_path / "out" / "cmp" / "env").is_file()
    assert (tmp_path / "out" / "bench" / "weights/step0/rank0/weight.json").is_file()


def test_what_a_script_leaves_open_never_passes(tmp_path: Path) -> None:
    from msprobe.run_config.collecting import collect_static

    script = tmp_path / "run.sh"
    script.write_text("python t.py --lr $LR_OF_THE_JOB --output_dir $(date)")
    for name in "ab":
        collect_static(PackWriter(tmp_path / f"{name}.zip"), [script])
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip")
    assert found.items["hyperparameters"].level is Level.WARNING
    assert [(each.name, each.level) for each in found.items["hyperparameters"].differences] == [
        ("lr", Level.WARNING),
        ("output_dir", Level.WARNING),
    ]
    for name in "ab":
        PackWriter(tmp_path / f"{name}.zip")
        writer = PackWriter(tmp_path / f"{name}.zip")
        collect_static(writer, [script])
        writer.put_json(DYNAMIC, {"lr": 1.0})
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip")
    assert found.items["hyperparameters"].level is Level.PASS
