# SPDX-License-Identifier: Apache-2.0
"""Arguments of a debugger win over the file."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe.config import Level, Task, TensorSection
from msprobe.errors import ConfigError

FILE = {
    "task": "statistics",
    "dump_path": "/in/file",
    "level": "L0",
    "step": [1],
    "tensor": {"list": ["a"]},
}


def test_arguments_win_and_the_section_of_their_task_is_read(load, tmp_path):
    config = load(FILE, task="tensor", dump_path=str(tmp_path), level="mix", step=[2, "4-5"])
    assert (config.task, config.level) == (Task.TENSOR, Level.MIX)
    assert (config.dump_path, config.step) == (tmp_path, (2, 4, 5))
    assert config.section == TensorSection(name_filters=("a",))


@pytest.mark.parametrize("empty", [None, ""])
def test_empty_arguments_leave_the_file_alone(load, empty):
    config = load(FILE, task=empty, dump_path=empty, level=empty, step=None)
    assert (config.task, config.level) == (Task.STATISTICS, Level.L0)
    assert (str(config.dump_path), config.step) == ("/in/file", (1,))


@pytest.mark.parametrize("empty", [[], (), None, ""])
def test_an_empty_step_argument_leaves_the_file_alone(load, empty):
    assert load(FILE, step=empty).step == (1,)


def test_enum_members_are_words(load):
    config = load({}, task=Task.TENSOR, level=Level.L0)
    assert (config.task, config.level) == (Task.TENSOR, Level.L0)


def test_a_bad_value_in_the_file_does_not_matter_when_an_argument_replaces_it(load, tmp_path):
    bad = {"task": "run_ut", "level": "L7", "step": "x", "dump_path": 5}
    config = load(bad, task="tensor", level="L1", step=[0], dump_path=tmp_path)
    assert (config.task, config.level, config.step) == (Task.TENSOR, Level.L1, (0,))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"task": "run_ut"}, "task"),
        ({"task": 3}, "task"),
        ({"task": "tensor\udc80"}, "task"),
        ({"task": ["tensor"]}, "task"),
        ({"level": "l1"}, "level"),
        ({"level": 1}, "level"),
        ({"level": True}, "level"),
        ({"task": "overflow_check", "level": "debug"}, "level"),
        ({"dump_path": 5}, "dump_path"),
        ({"dump_path": b"dump"}, "dump_path"),
        ({"dump_path": "  "}, "dump_path"),
        ({"dump_path": "a\0b"}, "dump_path"),
        ({"dump_path": "x" * 5000}, "dump_path"),
        ({"dump_path": "~no_such_user_/dump"}, "dump_path"),
        ({"step": -3}, "step[0]"),
        ({"step": True}, "step"),
        ({"step": "0-3"}, "step"),
        ({"step": [0, True]}, "step[1]"),
        ({"step": [object()]}, "step[0]"),
        ({"step": np.arange(3)}, "step"),
        ({"level": np.zeros(2)}, "level"),
        ({"dump_path": np.zeros(2)}, "dump_path"),
    ],
)
def test_a_bad_argument_is_blamed_on_the_constructor(load, arguments, key):
    with pytest.raises(ConfigError) as caught:
        load(FILE, **arguments)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
    assert caught.value.source == "PrecisionDebugger()"
    assert str(caught.value).startswith(f'PrecisionDebugger(): "{key}" is ')


def test_an_output_folder_that_is_a_file_is_refused(load, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r'"dump_path" is .*taken.* \(this is a file\)'):
        load({}, dump_path=tmp_path / "taken")
    with pytest.raises(ConfigError, match=r"taken is a file\)"):
        load({}, dump_path=tmp_path / "taken" / "run")


def test_a_folder_name_that_is_no_valid_unicode_is_accepted(load, tmp_path):
    assert load({}, dump_path=f"{tmp_path}/\udcff").dump_path == tmp_path / "\udcff"
