# SPDX-License-Identifier: Apache-2.0
"""The settings of MindSpore's own Dump are checked key by key, and explained in plain words."""

from __future__ import annotations

import copy
import json

import pytest

from msprobe.cli import main
from msprobe.kernels.dump_explanation import explain_settings, parse_size, size_words
from msprobe.kernels.dump_settings import check_dump_settings

GOOD = {
    "common_dump_settings": {
        "dump_mode": 0,
        "path": "/data/dump",
        "net_name": "Net",
        "iteration": "0|5-8",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": [],
        "support_device": [0, 1],
        "op_debug_mode": 0,
    },
    "e2e_dump_settings": {"enable": True, "trans_flag": True},
}


def changed(section=None, **keys):
    settings = copy.deepcopy(GOOD)
    for key, value in keys.items():
        place = settings[section or "common_dump_settings"]
        if value is None:
            del place[key]
        else:
            place[key] = value
    return settings


def faults(raw):
    return [str(fault) for fault in check_dump_settings(raw, source="data_dump.json").faults]


def said(raw, **more):
    settings = check_dump_settings(raw, source="data_dump.json").settings
    return {title: " ".join(text) for title, text in explain_settings(settings, **more)}


def test_a_file_without_faults():
    found = check_dump_settings(GOOD, source="data_dump.json")
    assert (found.faults, found.warnings) == ([], [])
    assert found.settings.iterations == ((0, 0), (5, 8))
    assert found.settings.steps == 5
    assert found.settings.is_synchronous


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("dump_mode", 3, '"common_dump_settings.dump_mode" is 3; use 0 (all operators), 1'),
        ("dump_mode", True, '"common_dump_settings.dump_mode" is true'),
        ("path", "relative/path", '"relative/path"; use an absolute path'),
        ("net_name", "a/b c", "use the name of a folder"),
        ("iteration", "1-", '"1-"; use "all", or numbers and ranges'),
        ("iteration", "8-5", '"8-5"; use "all"'),
        ("iteration", 3, "is 3; use"),
        ("saved_data", "statistics", '"statistics"; use tensor, statistic or full'),
        ("input_output", 4, "use 0 (inputs and outputs)"),
        ("kernels", "MatMul", "use a list of full names"),
        ("kernels", ["name-regex(a"], 'kernels[0]" is "name-regex(a"'),
        ("kernels", ["Add", "name-regex([)"], 'kernels[1]" is "name-regex([)"'),
        ("support_device", ["0"], "use a list of numbers from 0"),
        ("op_debug_mode", 5, "use 0 (off), 1, 2 or 3 (overflows), or 4"),
        ("file_format", "pt", "use npy or bin"),
        ("statistic_category", ["max", "mean"], 'wrong: "mean"'),
        ("statistic_category", ["l2 norm"], 'did you mean "l2norm"?'),
        ("initial_iteration", -1, "use a whole number from 0"),
        ("sample_num", 0, "use a whole number from 1"),
    ],
)
def test_each_value_is_checked(key, value, words):
    (fault,) = faults(changed(**{key: value}))
    assert fault.startswith('data_dump.json: "common_dump_settings.')
    assert words in fault


@pytest.mark.parametrize(
    ("key", "value"),
    [("enable", 1), ("trans_flag", "true"), ("stat_calc_mode", "gpu"),
     ("device_stat_precision_mode", "mid"), ("save_kernel_args", 0)],
)  # fmt: skip
def test_the_synchronous_part_is_checked(key, value):
    (fault,) = faults(changed("e2e_dump_settings", **{key: value}))
    assert f'"e2e_dump_settings.{key}" is' in fault


@pytest.mark.parametrize(
    "key",
    ["dump_mode", "path", "net_name", "iteration", "input_output", "kernels", "support_device"],
)
def test_required_keys(key):
    (fault,) = faults(changed(**{key: None}))
    assert "the key is missing and required" in fault
    assert key in fault


def test_all_faults_are_told_at_once():
    assert len(faults(changed(dump_mode=9, iteration="x", path=None))) == 3
    assert faults({}) == ['data_dump.json: "common_dump_settings" is null; use an object {…}']


def test_unknown_keys_are_told_with_what_was_meant():
    raw = changed(iterations="all") | {"e2e_dump_setting": {}}
    assert check_dump_settings(raw, source="x").warnings == [
        '"e2e_dump_setting" is not a known key and ignored; did you mean "e2e_dump_settings"?',
        '"common_dump_settings.iterations" is not a known key and ignored; '
        'did you mean "iteration"?',
    ]


def warnings(raw):
    return check_dump_settings(raw, source="x").warnings


def test_a_value_that_is_wrong_is_not_missing_as_well():
    assert warnings(changed("e2e_dump_settings", trans_flag="yes")) == []
    assert warnings(GOOD | {"e2e_dump_settings": []}) == []
    assert warnings(changed("e2e_dump_settings", trans_flag=None)) == [
        '"e2e_dump_settings.trans_flag" is missing; some versions need it'
    ]


def test_a_list_of_no_kernels_is_told_also_beside_faults():
    words = '"common_dump_settings.kernels" is empty, so "dump_mode": 1 has no effect'
    for raw in (changed(dump_mode=1), changed(dump_mode=1, iteration="x")):
        (warning,) = warnings(raw)
        assert warning.startswith(words)
    assert "All operators, as the list of kernels is empty." in said(changed(dump_mode=1))["what"]
    assert warnings(changed(dump_mode=1, kernels=["Add"])) == []
    assert warnings(changed(dump_mode=1, op_debug_mode=3)) == []  # overflows are looked for in all


def test_what_when_where():
    words = said(
        changed(kernels=["relu", "Default/a-A/Add-op0", "name-regex(.*Mul.*)"], dump_mode=1)
    )
    assert "contain 'relu' in any case" in words["what"]
    assert "Default/a-A/Add-op0" in words["what"]
    assert "whose full name fits .*Mul.*" in words["what"]
    assert words["when"] == "Iterations 0, 5 to 8, counted from 0. On ranks 0, 1."
    assert "/data/dump/rank_{rank}/Net/{graph}/{iteration}/" in words["where"]
    assert "save_graphs" in words["mind"]


def test_sizes():
    words = said(GOOD, model_bytes=2_000_000_000)["how much"]
    assert "Weights of 2.0 GB alone make about 20 GB (SGD) to 26 GB (Adam) a training step" in words
    assert "With 5 iterations on 2 ranks: 200 GB to 260 GB." in words
    assert "Weights of" not in said(GOOD)["how much"]
    assert "200 bytes" in said(changed(saved_data="statistic"))["how much"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (changed(iteration="all"), "until the disk is full"),
        (changed(iteration="0-99"), "100 iterations are many"),
        (changed(op_debug_mode=3), "INF_NAN_MODE_ENABLE=1"),
        (changed(op_debug_mode=2, dump_mode=1), "dump_mode has no effect"),
        (changed(saved_data="full"), "Statistics are refused on the CPU"),
        (changed(dump_mode=2), "asynchronous Dump on Ascend only"),
        (changed(sample_mode=1, sample_num=9), "all elements are written; sample_num"),
        (GOOD, "dataset_sink_mode=False"),
        (GOOD, "Memory is not reused"),
        (GOOD, "before the first graph runs"),
        (GOOD, "reserve_class_name_in_scope"),
        (GOOD, "several kinds of devices"),
        ({"common_dump_settings": GOOD["common_dump_settings"]}, "asynchronous on Ascend"),
        (
            {"common_dump_settings": changed(saved_data="full")["common_dump_settings"]},
            '"file_format": "npy"',
        ),
        (
            {"common_dump_settings": changed(kernels=["Add"], dump_mode=1)["common_dump_settings"]},
            "DUMP_GE_GRAPH=2",
        ),
    ],
)
def test_what_to_mind(raw, words):
    assert words in said(raw)["mind"]


def test_overflows_and_failures():
    assert "a number overflows" in said(changed(op_debug_mode=1))["what"]
    assert "ends with an exception" in said(changed(op_debug_mode=4))["what"]


def test_asynchronous_files():
    words = said(changed("e2e_dump_settings", enable=False))
    assert "{time}/{device}/{model}" in words["where"]
    assert "msprobe parse" in words["where"]
    assert "Memory is not reused" not in words["mind"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("14GB", 14_000_000_000), ("500 mb", 500_000_000), ("12", 12), ("1.5G", 1_500_000_000),
     ("2TiB", 2_000_000_000_000), ("x", None), ("-1", None)],
)  # fmt: skip
def test_sizes_as_users_write_them(text, size):
    assert parse_size(text) == size


def test_sizes_in_words():
    assert [size_words(n) for n in (5, 1500, 150_000, 26_000_000_000, 3 * 10**12)] == [
        "5 bytes",
        "1.5 KB",
        "150 KB",
        "26 GB",
        "3.0 TB",
    ]


def test_the_command(tmp_path, capsys):
    path = tmp_path / "data_dump.json"
    path.write_text(json.dumps(GOOD))
    assert main(["dump-config", str(path), "--model-size", "1GB"]) == 0
    out = capsys.readouterr().out
    for title in ("what:", "when:", "where:", "how much:", "mind:"):
        assert title in out
    path.write_text(json.dumps(changed(dump_mode=7, iteration="x")))
    assert main(["dump-config", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 2
    assert f'{path}: "common_dump_settings.dump_mode" is 7' in err


@pytest.mark.parametrize(
    ("content", "problem"),
    [("{", "line 1, column 2: is not JSON"), ("[]", "is not a JSON object"),
     ("[" * 100_000, "is not JSON")],
)  # fmt: skip
def test_files_that_cannot_be_read(tmp_path, capsys, content, problem):
    path = tmp_path / "data_dump.json"
    path.write_text(content)
    assert main(["dump-config", str(path)]) == 2
    assert problem in capsys.readouterr().err
    assert main(["dump-config", str(tmp_path / "nothing")]) == 2
