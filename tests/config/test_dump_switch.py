# SPDX-License-Identifier: Apache-2.0
"""Switching recording on and off by editing the file while a job runs."""

from __future__ import annotations

import os

import pytest

from msprobe.config import DumpSwitch, load_config, reload_dump_enable


def test_edits_of_the_file_switch_off_and_on(config_file, tmp_path):
    path = config_file({"dump_enable": True})
    switch = DumpSwitch(enabled=load_config(path, dump_path=tmp_path).dump_enable)
    switch = reload_dump_enable(path, switch)
    assert (switch.enabled, switch.is_on) == (True, True)
    config_file({"dump_enable": False})
    switch = reload_dump_enable(path, switch)
    assert (switch.enabled, switch.is_on) == (False, False)
    config_file({"dump_enable": True, "more": 1})
    assert reload_dump_enable(path, switch).is_on


def test_an_unchanged_file_is_not_read_again(config_file):
    path = config_file({"dump_enable": False})
    first = reload_dump_enable(path, DumpSwitch())
    assert reload_dump_enable(path, first) is first


def test_a_file_replaced_with_the_same_size_and_time_is_read_again(config_file):
    path = config_file({"dump_enable": True, "x": 1})
    times_ns = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    switch = reload_dump_enable(path, DumpSwitch())
    other = config_file({"dump_enable": False, "x": ""}, "other.json")
    assert other.stat().st_size != path.stat().st_size
    other = config_file({"dump_enable": False, "x": 1}, "other.json")
    other.write_text(other.read_text().replace(" 1", "1"))
    assert other.stat().st_size == path.stat().st_size
    os.utime(other, ns=times_ns)
    other.replace(path)
    assert reload_dump_enable(path, switch).enabled is False


def test_an_absent_key_means_on(config_file):
    switch = reload_dump_enable(config_file({}), DumpSwitch(enabled=False))
    assert (switch.enabled, switch.is_on, switch.problem) == (None, True, "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"dump_enable": tr', "line 1, column 17: this is not JSON"),
        ("", "this is not JSON"),
        ('{"dump_enable": "yes"}', '"dump_enable" is a string; use true or false'),
        ('{"dump_enable": 1}', '"dump_enable" is a number; use true or false'),
        ("[]", "must hold one JSON object"),
        (b"\xff", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_file_that_cannot_be_used_keeps_the_last_good_value(config_file, content, words, enabled):
    path = config_file({"dump_enable": enabled})
    good = reload_dump_enable(path, DumpSwitch())
    config_file(content)
    broken = reload_dump_enable(path, good)
    assert (broken.enabled, broken.is_on) == (enabled, enabled)
    assert words in broken.problem
    assert reload_dump_enable(path, broken) is broken
    config_file({"dump_enable": not enabled, "longer": "than before"})
    mended = reload_dump_enable(path, broken)
    assert (mended.enabled, mended.problem) == (not enabled, "")


def test_a_vanished_file_keeps_the_last_good_value_until_it_is_back(config_file):
    path = config_file({"dump_enable": False})
    good = reload_dump_enable(path, DumpSwitch())
    path.unlink()
    gone = reload_dump_enable(path, good)
    assert (gone.enabled, gone.is_on) == (False, False)
    assert "no such file" in gone.problem
    config_file({"dump_enable": True})
    back = reload_dump_enable(path, gone)
    assert (back.enabled, back.problem) == (True, "")


def test_a_file_that_went_and_came_back_unchanged_is_no_problem_any_more(config_file, tmp_path):
    path = config_file({"dump_enable": False})
    good = reload_dump_enable(path, DumpSwitch())
    path.rename(tmp_path / "away.json")
    gone = reload_dump_enable(path, good)
    (tmp_path / "away.json").rename(path)
    assert gone.problem
    assert reload_dump_enable(path, gone) == good
