# SPDX-License-Identifier: Apache-2.0
"""Packs: written, read back, of several ranks, of mindstudio-probe, damaged and hostile."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from msprobe.errors import RunConfigFormatError
from msprobe.run_config.pack import ENV, PackWriter, read_pack, unpack


def zip_of(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "/"), text)
    return path


def test_what_was_put_in_comes_out(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.zip"
    writer = PackWriter(path)
    writer.put_json(ENV, {"A": "1", "Ä": "\udcff"})
    writer.put_packages({"torch": "2.1", "odd": "1 @ abc"})
    writer.put_json("dataset/step3/rank0/dataset.json", {"args": {}})
    writer.put_json("weights/step3/rank0/weight.json", {"w": {"norm": 1.0}})
    pack = read_pack(path)
    assert pack.env == {"A": "1", "Ä": "\udcff"}
    assert pack.packages == {"torch": "2.1", "odd": "1 @ abc"}
    assert pack.dataset == {(3, 0): {"args": {}}}
    assert pack.weights == {(3, 0): {"w": {"norm": 1.0}}}
    assert pack.missing_ranks == []


def test_equal_contents_make_equal_files_and_old_ones_are_replaced(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        PackWriter(tmp_path / name).put_json("junk/old.json", {})
        PackWriter(tmp_path / name).put_json(ENV, {"A": "1"})
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_pack_stays_whole_when_a_member_cannot_be_written(tmp_path: Path) -> None:
    code = """
        import random, resource, sys
        from pathlib import Path
        from msprobe.errors import ReportWriteError
        from msprobe.run_config.pack import ENV, PackWriter
        writer = PackWriter(Path(sys.argv[1]))
        writer.put_json(ENV, {"A": "1"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            writer.put_text("random/rank0.json", random.Random(0).randbytes(100_000).hex())
        except ReportWriteError as exc:
            print(exc)
    """
    path = tmp_path / "run.zip"
    # -B: the limit would cut compiled modules short, for every other test too.
    command = [sys.executable, "-B", "-c", textwrap.dedent(code), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{path}: cannot be written: the file becomes larger than")
    assert done.stdout.count("\n") == 1
    assert [child.name for child in tmp_path.iterdir()] == ["run.zip"]
    assert read_pack(path).env == {"A": "1"}


def test_ranks_write_beside_and_are_read_together(tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    for rank in (0, 1, 3):
        writer = PackWriter(path, rank=rank, world_size=4)
        writer.put_json(f"random/rank{rank}.json", {"torch.rand": []})
    assert sorted(child.name for child in tmp_path.iterdir()) == [
        "run.rank1.zip",
        "run.rank3.zip",
        "run.zip",
    ]
    pack = read_pack(path)
    assert sorted(pack.random) == [0, 1, 3]
    assert pack.missing_ranks == [2]


def test_packs_of_mindstudio_probe_are_read(tmp_path: Path) -> None:
    """The layout without a manifest, as that program writes it."""
    path = zip_of(
        tmp_path / "old.zip",
        env=json.dumps({"NCCL_ALGO": "Ring"}),
        pip="torch=2.1\nnumpy==1.26\n",
        **{
            "hyperparameters__hyperparameters_static.json": '{"lr": "1e-4"}',
            "weights__step0__rank0__weight.json": '{"w": {"max": NaN, "norm": 1}}',
            "random__rank0.json": '{"torch.randn": [{"count": 1, "stack": []}]}',
        },
    )
    pack = read_pack(path)
    assert pack.env == {"NCCL_ALGO": "Ring"}
    assert pack.packages == {"torch": "2.1", "numpy": "1.26"}
    assert pack.arguments == {"hyperparameters_static.json": {"lr": "1e-4"}}
    assert set(pack.weights) == {(0, 0)}
    assert set(pack.random) == {0}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"env": "[]"}, "env: holds no object"),
        ({"env": "{"}, "env: "),
        ({"other.txt": "x"}, "no known member"),
        ({"manifest.json": '{"schema_version": 9}'}, "schema version 9"),
        ({"manifest.json": '{"schema_version": 1, "world_size": 1e9}'}, "world_size"),
        ({"weights__step0__rank0__weight.json": "3"}, "holds no object"),
    ],
)
def test_packs_of_another_form(tmp_path: Path, members: dict[str, str], reason: str) -> None:
    with pytest.raises(RunConfigFormatError, match=reason):
        read_pack(zip_of(tmp_path / "x.zip", **members))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text"])
def test_files_that_are_no_archives(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(RunConfigFormatError, match=r"x\.zip"):
        read_pack(tmp_path / "x.zip")
    with pytest.raises(RunConfigFormatError):
        read_pack(tmp_path / "gone.zip")


def test_members_that_would_leave_the_folder_stay_inside(tmp_path: Path) -> None:
    path = zip_of(
        tmp_path / "x.zip",
        env="{}",
        **{"..__..__evil": "x", "__tmp__evil": "x", "weights__step0__rank0____..__evil.json": "{}"},
    )
    unpack(path, tmp_path / "out")
    assert [child.name for child in (tmp_path / "out").rglob("*")] == ["env"]
    assert not (tmp_path.parent / "evil").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("env", "w", force_zip64=True) as member,
    ):
        for _ in range(257):
            member.write(b" " * (1 << 20))
    with pytest.raises(RunConfigFormatError, match="too large"):
        read_pack(path)
