# SPDX-License-Identifier: Apache-2.0
"""The one line that a comparison of two packs begins with: the earliest cause in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msprobe.run_config.comparing import compare_packs
from msprobe.run_config.conclusion import Kind
from msprobe.run_config.pack import DYNAMIC, ENV, STATEMENTS, SYSTEM, PackWriter
from msprobe.run_config.result_files import comparison_json
from msprobe.run_config.result_lines import comparison_lines


def leaf(checksum: str = "01", **more: object) -> dict:
    return {"max": 1.0, "min": -1.0, "mean": 0.5, "norm": 2.0, "crc32": checksum,
            "dtype": "torch.float32", **more}  # fmt: skip


def contents() -> dict[str, dict]:
    """Return a run of two micro steps."""
    stack = ["File /a/train.py, line 3, in main, torch.manual_seed(seed)"]
    members: dict[str, dict] = {
        ENV: {"OMP_NUM_THREADS": "4", "LD_LIBRARY_PATH": "/a", "NCCL_ALGO": "Ring"},
        SYSTEM: {"torch.cpu_threads": "4", "code.train.py": "aa", "git.commit": "c1"},
        DYNAMIC: {"lr": 0.1, "output_dir": "/out/1"},
        STATEMENTS: {"run.sh": [[1, "command.module", "load a"]]},
        "training/rank0.json": {
            "modules": {"module.drop": "Dropout(p=0.1)"},
            "optimizer": {"optimizer.0.group.0.lr": "0.1"},
            "modes": {"training.model": "True"},
        },
        "random/rank0.json": {
            "torch.manual_seed": [{"count": 1, "stack": stack, "seeds": ["7"]}],
        },
        "random/generators_rank0.json": {"step0": {"cpu": "aa", "numpy": "bb"}},
    }
    for step in (0, 1):
        place = f"step{step}/rank0"
        rows = [f"r{2 * step}", f"r{2 * step + 1}"]
        members[f"dataset/{place}/dataset.json"] = {"args": {"0": leaf(rows=rows)}}
        members[f"weights/{place}/weight.json"] = {"a.weight": leaf(), "b.weight": leaf()}
        members[f"buffers/{place}/buffer.json"] = {"bn.running_mean": leaf()}
    return members


def put(tree: dict, *keys: str, value: object) -> None:
    for key in keys[:-1]:
        tree = tree[key]
    tree[keys[-1]] = value


@pytest.fixture
def conclusion(tmp_path: Path):
    """Compare the run with one that has some values changed; return the conclusion."""

    def run(*changes: tuple):
        for name, applied in (("bench", ()), ("cmp", changes)):
            members = json.loads(json.dumps(contents()))
            for *keys, value in applied:
                put(members, *keys, value=value)
            writer = PackWriter(tmp_path / f"{name}.zip")
            for member, tree in members.items():
                writer.put_json(member, tree)
            writer.put_packages({"torch": "2.1"})
        return compare_packs(tmp_path / "bench.zip", tmp_path / "cmp.zip").conclusion

    return run


OTHER = "ff"
LR = (DYNAMIC, "lr", 0.2)
LR_USED = ("training/rank0.json", "optimizer", "optimizer.0.group.0.lr", "0.2")
SEED = ("random/rank0.json", "torch.manual_seed", 0, "seeds", ["8"])
STATE = ("random/generators_rank0.json", "step0", "cpu", OTHER)
DATA = ("dataset/step0/rank0/dataset.json", "args", "0", "crc32", OTHER)
WEIGHTS = ("weights/step0/rank0/weight.json", "a.weight", "crc32", OTHER)
LATER = ("weights/step1/rank0/weight.json", "a.weight", "crc32", OTHER)
BUFFER = ("buffers/step0/rank0/buffer.json", "bn.running_mean", "crc32", OTHER)
MODE = ("training/rank0.json", "modes", "training.model", "False")
CODE = (SYSTEM, "code.train.py", "bb")
PATH = (ENV, "LD_LIBRARY_PATH", "/b")
THREADS = (ENV, "OMP_NUM_THREADS", "1")
THREADS_USED = (SYSTEM, "torch.cpu_threads", "1")
DTYPE = ("weights/step0/rank0/weight.json", "a.weight", "dtype", "torch.float64")


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ((), Kind.NOTHING, None),
        (((DYNAMIC, "output_dir", "/out/2"),), Kind.NOTHING, None),
        ((LR, LR_USED, LATER), Kind.ARGUMENT, "lr"),
        ((LR_USED, LATER, CODE), Kind.OPTIMIZER, "optimizer.0.group.0.lr"),
        ((DTYPE, WEIGHTS, LATER), Kind.DTYPE, "step 0 rank 0 a.weight"),
        ((THREADS, THREADS_USED, LATER), Kind.VARIABLE, "OMP_NUM_THREADS"),
        ((THREADS_USED, PATH, LATER), Kind.SYSTEM, "torch.cpu_threads"),
        ((SEED, STATE, DATA, WEIGHTS, LATER, PATH), Kind.SEED, "rank 0 torch.manual_seed"),
        ((STATE, WEIGHTS, LATER), Kind.GENERATOR, "step0 rank 0 cpu"),
        ((DATA, LATER), Kind.DATA, "step 0 rank 0 args.0"),
        ((WEIGHTS, LATER, CODE), Kind.WEIGHTS, "step 0 rank 0 a.weight"),
        ((BUFFER, LATER), Kind.BUFFERS, "step 0 rank 0 bn.running_mean"),
        ((MODE, LATER), Kind.MODE, "training.model"),
        ((CODE, LATER, PATH), Kind.CODE, "code.train.py"),
        ((PATH,), Kind.VARIABLE, "LD_LIBRARY_PATH"),
        ((LATER,), Kind.COURSE, "step 1 rank 0 a.weight"),
    ],
)  # fmt: skip
def test_the_earliest_cause_is_named(conclusion, changes, kind, name) -> None:
    found = conclusion(*changes)
    assert found.kind is kind
    assert (found.difference.name if found.difference else None) == name


def test_batches_in_another_order_are_told_from_other_data(conclusion) -> None:
    def rows(step: int, rows: list[str]) -> list[tuple]:
        leaf = (f"dataset/step{step}/rank0/dataset.json", "args", "0")
        return [(*leaf, "rows", rows), (*leaf, "crc32", OTHER)]

    assert conclusion(*rows(0, ["r3", "r0"]), *rows(1, ["r1", "r2"])).kind is Kind.ORDER
    assert conclusion(*rows(0, ["r1", "r0"])).kind is Kind.ORDER  # all, though few have moved
    assert conclusion(*rows(0, ["x", "y"]), *rows(1, ["z", "r2"])).kind is Kind.DATA


def test_consequences_are_folded_under_the_cause(conclusion, tmp_path: Path) -> None:
    found = conclusion(SEED, STATE, DATA, WEIGHTS, LATER)
    assert found.sentence == (
        "seed rank 0 torch.manual_seed: 7 → 8 "
        "(File /a/train.py, line 3, in main, torch.manual_seed(seed))"
    )
    assert found.consequences == (
        "random state: step0 rank 0 cpu",
        "data: step 0 rank 0 args.0",
        "weights: step 0 rank 0 a.weight",
        "weights and data later on: step 1 rank 0 a.weight",
    )
    comparison = compare_packs(tmp_path / "bench.zip", tmp_path / "cmp.zip")
    lines = [line.plain for line in comparison_lines(comparison)]
    assert lines[3] == found.sentence
    assert sum("a.weight" in line for line in lines) == 2
    assert comparison_json(comparison)["conclusion"]["kind"] == "seed"


def test_what_only_one_pack_holds_is_no_cause_but_no_pass(tmp_path: Path) -> None:
    PackWriter(tmp_path / "a.zip").put_json(ENV, {"A": "1"})
    writer = PackWriter(tmp_path / "b.zip")
    writer.put_json(ENV, {"A": "1"})
    writer.put_json(DYNAMIC, {"lr": 1})
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip").conclusion
    assert found.kind is Kind.INCOMPLETE
    assert found.sentence == (
        "nothing differs, but only cmp holds hyperparameters: not everything was compared"
    )
