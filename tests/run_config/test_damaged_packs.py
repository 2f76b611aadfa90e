# SPDX-License-Identifier: Apache-2.0
"""Packs that are cut, overwritten or of another form: refused with one line, or a difference."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_conclusions import contents

from msprobe.cli import main
from msprobe.errors import RunConfigFormatError
from msprobe.run_config.comparing import compare_packs
from msprobe.run_config.levels import Level
from msprobe.run_config.pack import PackWriter
from msprobe.run_config.result_files import write_results
from msprobe.run_config.result_lines import comparison_lines

DAMAGES = (b"", b"[", b"[]", b"3", b'{"a": 1}', b'{"a": {"b": {"norm": 1}}}', b"{" * 3000,
           b'{"a":' * 5000, b"\xff\xfe", b'{"a": NaN}')  # fmt: skip


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    writer = PackWriter(tmp_path / "base.zip")
    for name, tree in contents().items():
        writer.put_json(name, tree)
    writer.put_packages({"torch": "2.1"})
    return writer.path


def with_member(pack: Path, name: str, content: bytes | None) -> Path:
    """Write the pack with one member replaced, or without it."""
    path = pack.with_name("damaged.zip")
    with zipfile.ZipFile(pack) as source, zipfile.ZipFile(path, "w") as target:
        for each in source.namelist():
            if each != name:
                target.writestr(each, source.read(each))
            elif content is not None:
                target.writestr(each, content)
    return path


def members(pack: Path) -> list[str]:
    with zipfile.ZipFile(pack) as archive:
        return archive.namelist()


def is_refused(bench: Path, cmp: Path) -> bool:
    """Return whether a pack is refused with one line; compare and show it otherwise."""
    try:
        found = compare_packs(bench, cmp)
    except RunConfigFormatError as exc:
        return str(exc).count("\n") == 0
    lines = [line.plain for line in comparison_lines(found, limit=0)]
    assert found.level is not Level.PASS, lines
    return False


def test_damaged_members_never_pass(pack: Path) -> None:
    refused = 0
    for name in members(pack):
        for content in DAMAGES:
            refused += is_refused(pack, with_member(pack, name, content))
    assert refused > len(members(pack)) * len(DAMAGES) // 2


def test_missing_members_never_pass(pack: Path) -> None:
    for name in members(pack):
        if name != "manifest.json":
            assert not is_refused(pack, with_member(pack, name, None)), name


def odd_values(pack: Path) -> Iterator[tuple[str, bytes]]:
    odd = [None, 3, "x", [], {"norm": "x"}, {"norm": None, "rows": 3}, 10**40, [{"count": "x"}]]
    chance = random.Random(0)

    def changed(tree: object) -> object:
        if isinstance(tree, dict) and tree and chance.random() < 0.8:
            key = chance.choice(list(tree))
            return {**tree, key: changed(tree[key])}
        return chance.choice(odd)

    with zipfile.ZipFile(pack) as archive:
        for name in archive.namelist():
            for _ in range(3 if name not in ("pip", "manifest.json") else 0):
                yield name, json.dumps(changed(json.loads(archive.read(name)))).encode()


def test_values_of_other_types_are_refused_or_compared(pack: Path, tmp_path: Path) -> None:
    for name, content in odd_values(pack):
        damaged = with_member(pack, name, content)
        with suppress(RunConfigFormatError):
            found = compare_packs(pack, damaged)
            assert list(comparison_lines(found))
            assert write_results(found, tmp_path / "out")


def test_cut_files_are_refused(pack: Path) -> None:
    content = pack.read_bytes()
    for length in range(0, len(content), len(content) // 40):
        path = pack.with_name("cut.zip")
        path.write_bytes(content[:length])
        assert is_refused(pack, path)


def test_the_command_says_one_line_and_returns_2(pack: Path, capsys) -> None:
    damaged = with_member(pack, "training/rank0.json", b'{"modules": 3}')
    assert main(["config_check", "-c", str(pack), str(damaged)]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "training/rank0.json: 'modules' holds no object" in text


def test_values_that_neither_side_holds_never_pass(tmp_path: Path) -> None:
    for name in "ab":
        empty = {"max": None, "min": None, "mean": None, "norm": None, "shape": [2]}
        PackWriter(tmp_path / f"{name}.zip").put_json(
            "weights/step0/rank0/weight.json", {"w": empty}
        )
    assert not is_refused(tmp_path / "a.zip", tmp_path / "b.zip")
