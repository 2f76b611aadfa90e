# SPDX-License-Identifier: Apache-2.0
"""Whatever a file or an argument holds: settings or a `ConfigError`, never another exception."""

from __future__ import annotations

import copy
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from msprobe.config import Config, DumpSwitch, load_config, reload_dump_enable
from msprobe.config.file_keys import SECTION_KEYS, CommonKeys
from msprobe.config.unknown_keys import OTHER_TASKS
from msprobe.errors import ConfigError

WORDS = st.sampled_from(
    [
        *("statistics", "tensor", "structure", "overflow_check", "run_ut"),
        *("L0", "L1", "L2", "mix", "debug", "CORE", "FOCUS", "eager", "low", "high", "host", "npy"),
        *("all", "forward", "backward", "input", "output", "md5", "xor"),
        *("", "0-3", "6-4", "-1", "~", "/", ".", "\0", "\ud800", "x" * 5000),
        *("Functional.linear.0.forward", "Module.fc.Linear.forward.0"),
    ]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([-1, 0, 1, 10**6, 2**63, -(2**63), 10**40])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text() | WORDS
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | WORDS, inner, max_size=4)
    ),
    max_leaves=12,
)
SECTION_NAMES = sorted({name for keys in SECTION_KEYS.values() for name in keys.__struct_fields__})
SECTIONS = st.dictionaries(st.sampled_from(SECTION_NAMES) | st.text(), VALUES, max_size=5)
TOP_NAMES = [*CommonKeys.__struct_fields__, *OTHER_TASKS, "load", "$schema"]
FILES = st.dictionaries(st.sampled_from(TOP_NAMES) | st.text(), VALUES, max_size=6).flatmap(
    lambda top: st.fixed_dictionaries(
        {}, optional={task.value: SECTIONS | VALUES for task in SECTION_KEYS}
    ).map(lambda sections: {**top, **sections})
)
VALID: dict[str, Any] = {
    "task": "statistics",
    "dump_path": "dump",
    "rank": [0, "4-7"],
    "step": ["1-3"],
    "level": "mix",
    "async_dump": True,
    "precision": "high",
    "risk_level": "FOCUS",
    "dump_enable": True,
    "custom_op_namespaces": ["my_ops"],
    "api_list": "",
    "compile": "eager",
    "statistics": {
        "scope": ["Functional.linear.0.forward", "Module.fc.Linear.forward.0"],
        "list": ["linear"],
        "tensor_list": ["softmax"],
        "data_mode": ["forward", "input"],
        "summary_mode": "md5",
        "slice": [{"dim": 0, "size": 8, "begin": 1, "end": 4}],
        "black_list": ["relu"],
    },
    "tensor": {"file_format": "npy", "scope": [], "list": []},
    "overflow_check": {"overflow_nums": 2, "check_mode": "all"},
    "structure": {},
}

# The log of thousands of warnings is not looked at here.
quiet = pytest.mark.usefixtures("_no_warnings_logged")
many = settings(max_examples=75, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.fixture(scope="module")
def _no_warnings_logged():
    logger = logging.getLogger("msprobe.config")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


def settings_or_config_error(content: bytes, **arguments: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(content)
        try:
            config = load_config(path, **arguments)
        except ConfigError as error:
            message = str(error)
            assert message.startswith((f"{path}: ", "PrecisionDebugger(): "))
            assert len(message) < 2000
            message.encode()  # can be written to any log
        else:
            check_invariants(config)
        switch = reload_dump_enable(path, DumpSwitch())
        assert switch.enabled in (None, True, False)
        assert [file.name for file in Path(folder).iterdir()] == ["config.json"]


def check_invariants(config: Config) -> None:
    assert config.dump_path.is_absolute()
    assert list(config.step) == sorted(set(config.step))
    assert list(config.rank) == sorted(set(config.rank))
    assert all(0 <= number <= 1_000_000 for number in (*config.step, *config.rank))
    assert type(config.section).__name__.lower() == f"{config.task}section".replace("_", "")
    hash(config)


@quiet
@many
@given(st.binary(max_size=200))
def test_any_bytes(content):
    settings_or_config_error(content)


@quiet
@many
@given(VALUES)
def test_any_json(value):
    settings_or_config_error(json.dumps(value).encode())


@quiet
@many
@given(FILES)
@example({"level": "L\ud800"})
@example({"api_list": "\ud800", "dump_path": "d"})
def test_any_values_under_the_known_keys(content):
    settings_or_config_error(json.dumps(content).encode(), dump_path="dump")


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON tree."""
    found = [path]
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, inner in items:
            found += places(inner, (*path, key))
    return found


@quiet
@many
@given(
    st.lists(st.tuples(st.sampled_from(places(VALID)[1:]), VALUES), min_size=1, max_size=3),
    st.sampled_from(["statistics", "tensor", "structure", "overflow_check"]),
)
def test_valid_files_with_some_values_replaced(mutations, task):
    content = copy.deepcopy(VALID) | {"task": task}
    for path, value in mutations:
        parent = content
        try:
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
        except (TypeError, KeyError, IndexError):  # an earlier mutation removed this place
            continue
    settings_or_config_error(json.dumps(content).encode())


@quiet
@many
@given(st.data())
def test_valid_files_cut_and_patched_as_text(data):
    text = json.dumps(VALID, indent=1).encode()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    patch = data.draw(st.binary(max_size=10) | st.sampled_from([b"", b"null", b"NaN", b"[" * 3000]))
    settings_or_config_error(text[:start] + patch + text[end:])


@quiet
@many
@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("task", "dump_path", "level", "step"), VALUES)
    )
)
def test_any_arguments(arguments):
    settings_or_config_error(json.dumps(VALID).encode(), **arguments)


@pytest.mark.parametrize("depth", range(150, 1000, 17))
def test_any_nesting_under_a_checked_key(tmp_path, depth):
    nested = "[" * depth + "]" * depth
    for content in (f'{{"level": {nested}}}', f'{{"statistics": {{"list": {nested}}}}}'):
        settings_or_config_error(content.encode(), dump_path=tmp_path)


def test_the_unmutated_file_is_valid():
    content = json.dumps(VALID).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(content)
        check_invariants(load_config(path))
