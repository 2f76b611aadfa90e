# SPDX-License-Identifier: Apache-2.0
"""The file itself: where it is found, how it is decoded, what is said when it cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import msprobe
from msprobe.config import Level, StatisticsSection, Task, load_config
from msprobe.config.reading import MAX_FILE_BYTES
from msprobe.errors import ConfigError, ConfigFileError


def test_without_a_file_the_packaged_default_records_statistics_at_l1(tmp_path):
    config = load_config(dump_path=tmp_path)
    assert (config.task, config.level, config.source) == (Task.STATISTICS, Level.L1, None)
    assert config.section == StatisticsSection()
    assert config.dump_path == tmp_path


def test_without_arguments_the_packaged_default_writes_below_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config = load_config()
    assert config.dump_path == tmp_path / "dump_path"
    assert not config.dump_path.exists()


@pytest.mark.parametrize("task", ["statistics", "tensor", "structure", "overflow_check"])
def test_the_packaged_file_holds_all_sections_with_their_defaults(task, config_file, caplog):
    packaged = Path(msprobe.__file__).with_name("config.json")
    copy = load_config(config_file(packaged.read_bytes()), task=task, level="mix")
    bare = load_config(config_file({"dump_path": "./dump_path"}), task=task, level="mix")
    assert copy == bare
    assert caplog.records == []
    content = json.loads(packaged.read_text())
    sections = {key for key, value in content.items() if isinstance(value, dict)}
    assert sections >= {task, "run_ut", "grad_probe", "free_benchmark"}


def test_a_file_without_an_output_folder_is_refused(config_file):
    with pytest.raises(ConfigError, match=r'config\.json: "dump_path" .* missing'):
        load_config(config_file({}))


def test_an_empty_dump_path_is_shown_as_it_stands(config_file):
    with pytest.raises(ConfigError, match=r'"dump_path" is ""; .*\(it is empty\)'):
        load_config(config_file({"dump_path": ""}))


@pytest.mark.parametrize("kind", [str, Path])
def test_path_may_be_text_or_path(config_file, tmp_path, kind):
    path = config_file({"level": "L0"})
    config = load_config(kind(path), dump_path=tmp_path)
    assert (config.level, config.source) == (Level.L0, path)


def test_home_folder_is_expanded_in_the_path_of_the_file(config_file, tmp_path, monkeypatch):
    path = config_file({"dump_path": "~/out put"})
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config("~/config.json")
    assert config.source == path
    assert config.dump_path == tmp_path / "out put"


def test_blanks_and_other_scripts_in_paths_are_kept(config_file, tmp_path):
    path = config_file({"dump_path": str(tmp_path / "导出 dümp $HOME")}, "my config é.json")
    assert load_config(path).dump_path == tmp_path / "导出 dümp $HOME"


def test_relative_output_folder_stays_where_it_was_when_the_process_moves(
    load, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load({}, dump_path="dump")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert config.dump_path == tmp_path / "dump"


def test_loading_creates_nothing(load, tmp_path):
    config = load({"dump_path": str(tmp_path / "new" / "dump")}, dump_path=None)
    assert config.dump_path == tmp_path / "new" / "dump"
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_byte_order_mark_is_accepted(load):
    assert load(b'\xef\xbb\xbf{"level": "mix"}').level is Level.MIX


def test_a_key_that_stands_twice_warns_and_the_last_counts(load, caplog):
    config = load('{"level": "L0", "level": "mix", "statistics": {"list": [], "list": ["a"]}}')
    assert config.level is Level.MIX
    assert isinstance(config.section, StatisticsSection)
    assert config.section.name_filters == ("a",)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert 'the key "list" occurs twice' in caplog.records[0].getMessage()
    assert 'the key "level" occurs twice' in caplog.records[1].getMessage()


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        ('{\n  "level": L0\n}', 2, 12, "Expecting value"),
        ('{"rank": [1, 2}', 1, 15, "Expecting ',' delimiter"),
        ("", 1, 1, "Expecting value"),
        ('{"a": 1} {', 1, 10, "Extra data"),
        ("{'task': 'tensor'}", 1, 2, "property name enclosed in double quotes"),
        (b'{"level":\n "\xff"}', 2, 3, "not UTF-8"),
    ],
)
def test_broken_text_names_line_and_column(load, tmp_path, content, line, column, words):
    with pytest.raises(ConfigFileError, match=words) as caught:
        load(content)
    assert (caught.value.line, caught.value.column) == (line, column)
    start = f"{tmp_path / 'config.json'}: line {line}, column {column}: "
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "holds a list; it must hold one JSON object"),
        ("null", "holds null"),
        ("3", "holds a number"),
        ('"x"', "holds a string"),
        ("true", "holds true"),
        ("[" * 100_000, "nested too deeply"),
        ('{"x": ' + "[" * 600 + "]" * 600 + "}", ""),
        ('{"rank": [' + "9" * 5000 + "]}", "cannot be used"),
        ('{"x": "\\ud800"}', r"\\ud800 is half of a surrogate pair"),
    ],
)
def test_json_that_is_no_configuration_is_refused(load, content, words):
    if not words:  # deep, but below the parser's limit: unread, so harmless
        assert load(content).level is Level.L1
        return
    with pytest.raises(ConfigFileError, match=words):
        load(content)


def test_a_surrogate_pair_is_a_character(load, tmp_path):
    config = load('{"dump_path": "' + str(tmp_path) + '/\\ud83d\\ude00"}', dump_path=None)
    assert config.dump_path.name == "😀"


def test_missing_file(tmp_path):
    with pytest.raises(ConfigFileError, match=r"nothing\.json: there is no such file"):
        load_config(tmp_path / "nothing.json")


def test_path_through_a_file(config_file):
    with pytest.raises(ConfigFileError, match="cannot be read: a part of the path"):
        load_config(config_file({}) / "config.json")


def test_folder(tmp_path):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigFileError, match="this is a folder"):
        load_config(tmp_path / "folder.json")


@pytest.mark.parametrize("name", ["config.yaml", "config", "config.json.txt", "config.JSON"])
def test_other_suffix(config_file, name):
    with pytest.raises(ConfigFileError, match=r'must end in "\.json"'):
        load_config(config_file({}, name))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ConfigFileError, match="not a regular file"):
        load_config(tmp_path / "pipe.json")


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_unreadable_file(config_file, tmp_path, closed):
    path = config_file({})
    (path if closed == "file" else tmp_path).chmod(0)
    if is_root := os.geteuid() == 0:  # root may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigFileError, match="no permission to read this file"):
            load_config(path)
    finally:
        if is_root:
            os.seteuid(0)
        tmp_path.chmod(0o700)


def test_too_long_a_path():
    with pytest.raises(ConfigFileError, match="cannot be read: the name is too long"):
        load_config("x" * 5000 + ".json")


def test_huge_file_is_refused_unread(config_file, tmp_path):
    path = config_file({})
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigFileError, match="larger than 64 MiB"):
        load_config(path, dump_path=tmp_path)


@pytest.mark.parametrize("path", [3, b"config.json", "", ["config.json"], True])
def test_path_that_is_no_path(path):
    with pytest.raises(ConfigError, match=r'PrecisionDebugger\(\): "config_path" is ') as caught:
        load_config(path)
    assert (caught.value.key, caught.value.found) == ("config_path", path)


@pytest.mark.parametrize("path", ["a\0b.json", "\ud800.json", "~no_such_user_/c.json"])
def test_path_that_the_system_refuses(path):
    with pytest.raises(ConfigError, match="config_path"):
        load_config(path)
