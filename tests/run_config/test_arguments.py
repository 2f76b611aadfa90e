# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters: read from files, flattened, paired over different spellings, compared."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pytest

from msprobe.errors import ConfigFileError
from msprobe.run_config.arguments import (
    compare_arguments,
    flat_arguments,
    read_arguments,
    same_value,
)
from msprobe.run_config.levels import Level


def test_files_of_all_kinds_become_one_flat_set(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("torchrun t.py --lr 1e-4 --bf16 --same 3")
    (tmp_path / "b.yaml").write_text(
        "lr: 0.2\nmodel:\n  dims: [1, 2]\n  blocks:\n  - {n: 1}\nsame: 3\n"
    )
    (tmp_path / "c.json").write_text('{"data": {"path": null, "shuffle": false}}')
    found = read_arguments([tmp_path / name for name in ("a.sh", "b.yaml", "c.json")]).arguments
    assert found == {
        "script": "t.py",
        "lr": {"description": "duplicate_value", "values": ["1e-4", 0.2]},
        "bf16": True,
        "same": "3",
        "model.dims": [1, 2],
        "model.blocks.0.n": 1,
        "data.path": None,
        "data.shuffle": False,
    }


def test_namespaces_are_flattened_without_addresses() -> None:
    found = flat_arguments(
        vars(argparse.Namespace(lr=0.1, nested={"a": (1, 2)}, odd=object(), bad=math.nan))
    )
    assert found == {"lr": 0.1, "nested.a": [1, 2], "odd": "object", "bad": "nan"}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("x.txt", "a = 1", "is of no kind"),
        ("x.toml", "a = ", "Invalid value"),
        ("x.yaml", "a: [1,\n  - }", "line 2"),
        ("x.yaml", "a: !!python/object/apply:os.system ['true']", "could not determine"),
        ("x.json", "{", "JSON"),
        ("gone.sh", None, "cannot be read"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigFileError, match=reason):
        read_arguments([tmp_path / name])


def test_a_yaml_that_unfolds_without_end_is_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{l: *a{i - 1}, r: *a{i - 1}}}" for i in range(1, 40)]
    (tmp_path / "x.yaml").write_text("\n".join(lines))
    assert len(read_arguments([tmp_path / "x.yaml"]).arguments) <= 100_000


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1e-4", 0.0001, True),
        ("1e-4", "0.0001", True),
        ("1", 1.0, True),
        ("true", True, True),
        ("None", None, True),
        (" a ", "a", True),
        ("A", "a", False),
        (0.1, 0.1000001, False),
        ([1, "2"], ["1", 2], True),
        ([1], [1, 2], False),
        ("nan", "nan", True),
        ({"values": ["1"]}, {"values": [1]}, True),
    ],
)
def test_values_are_compared_by_what_they_mean(one, other, same: bool) -> None:
    assert same_value(one, other) is same
    assert same_value(other, one) is same


def compared(bench: dict, cmp: dict) -> dict[str, tuple]:
    result = compare_arguments("f", bench, cmp)
    return {row[2] if row[2] != "None" else row[1]: row[1:] for row in result.rows}


def test_only_differences_are_listed() -> None:
    found = compared({"lr": "1e-4", "same": 1, "old": 5}, {"lr": 2e-4, "same": "1", "new": 6})
    assert found == {
        "lr": ("lr", "lr", "1e-4", "0.0002", "pure name", "error"),
        "old": ("old", "None", "5", "None", "only in the benchmark", "warning"),
        "new": ("None", "new", "None", "6", "only in the run", "warning"),
    }


@pytest.mark.parametrize(
    ("bench", "cmp", "how"),
    [
        ("num-layers", "num_layers", "pure name"),
        ("lr", "optimizer.learning_rate", "alias"),
        ("num-layers", "num_hidden_layers", "alias"),
        ("micro-batch-size", "bs", "alias"),
        ("tokenizer_file_path", "tokenizer_files_path", "similarity"),
    ],
)
def test_names_find_their_partners(bench: str, cmp: str, how: str) -> None:
    (row,) = compare_arguments("f", {bench: 1}, {cmp: 2}).rows
    assert row == ("f", bench, cmp, "1", "2", how, "error")
    same = Level.WARNING if how == "similarity" else Level.PASS
    assert compare_arguments("f", {bench: 1}, {cmp: 1}).level is same


def test_names_that_only_look_a_little_alike_stay_apart() -> None:
    assert len(compare_arguments("f", {"warmup": 1}, {"weights": 2}).rows) == 2


def test_settings_files_that_a_script_names_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero": {"stage": 2}}')
    (tmp_path / "run.sh").write_text("deepspeed t.py --deepspeed ds.json --other gone.yaml")
    found = read_arguments([tmp_path / "run.sh"]).arguments
    assert found["deepspeed:zero.stage"] == 2
    assert found["other"] == "gone.yaml"


def test_a_path_is_no_difference_where_the_file_was_read() -> None:
    bench = {"config": "/a/x.yaml", "config:lr": 1}
    found = compare_arguments("f", bench, {"config": "/b/x.yaml", "config:lr": 1})
    assert found.level is Level.PASS
    found = compare_arguments("f", bench, {"config": "/b/x.yaml", "config:lr": 2})
    assert [each.level for each in found.differences] == [Level.INFO, Level.ERROR]


@pytest.mark.parametrize("name", ["output_dir", "logging_dir", "save-dir", "wandb.name", "run_name",
                                  "log_interval", "out", "master_port"])  # fmt: skip
def test_where_results_go_does_not_matter(name: str) -> None:
    assert compare_arguments("f", {name: "a"}, {name: "b"}).level is Level.PASS


@pytest.mark.parametrize("name", ["lr", "data_dir", "load", "model_name_or_path", "output_size",
                                  "resume_from_checkpoint", "expert_parallel", "warmup_steps",
                                  "save_attention", "logit_scale", "hidden_size"])  # fmt: skip
def test_what_may_change_numbers_matters(name: str) -> None:
    assert compare_arguments("f", {name: "a"}, {name: "b"}).level is Level.ERROR
