# SPDX-License-Identifier: Apache-2.0
"""Which folder a process writes to, what is cleared there, and what forks and exits do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from msprobe.dump.locking import claim_rank_directory
from msprobe.dump.writer import DumpHead, DumpWriter

HEAD = DumpHead("statistics", "mix", "pytorch")


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old")


def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# Clearing.


def test_the_first_open_of_a_run_clears_old_files_of_every_step(tmp_path):
    make(
        tmp_path,
        "step0/rank0/dump.json",
        "step0/rank0/dump_tensor_data/a.pt",
        "step7/rank0/stack.json",
        "step7/rank0/construct.json",
        "step7/rank0/debug.json",
        "step7/rank0/account.json",
        "step7/rank0/dump_error_info.log",
        "step7/rank0/journal.jsonl",
        "step7/rank0/.msprobe.tmp.12.3.json",
        "step7/rank0/dump_tensor_data/.msprobe.tmp.12.4.pt",
        "step7/rank0/dump_tensor_data/b.npy",
    )
    writer = DumpWriter()
    dump = writer.open(tmp_path / "step0" / "rank0", HEAD)
    assert files_below(tmp_path) == {"step0/rank0/journal.jsonl"}
    assert not (tmp_path / "step7").exists()
    dump.close()
    writer.open(tmp_path / "step1" / "rank0", HEAD).close()
    writer.close()
    assert (tmp_path / "step0" / "rank0" / "dump.json").exists()


def test_files_of_the_user_and_of_other_ranks_stay(tmp_path):
    kept = {
        "notes.txt",
        "step0/rank0/notes.txt",
        "step0/rank0/dump.json.bak",
        "step0/rank0/my.pt",
        "step0/rank0/dump_tensor_data/readme.md",
        "step0/rank0/dump_tensor_data/sub/x.pt",
        "step0/rank1/dump.json",
        "step0/rank/dump.json",
        "step_0/rank0/dump.json",
        "mystep0/rank0/dump.json",
    }
    make(tmp_path, *kept, "step0/rank0/dump.json", "step0/rank0/dump_tensor_data/a.pt")
    writer = DumpWriter()
    writer.open(tmp_path / "step5" / "rank0", HEAD).close()
    writer.close()
    ours = {f"step5/rank0/{name}.json" for name in ("dump", "stack", "construct")}
    assert files_below(tmp_path) == kept | ours


def test_clearing_does_not_follow_links(tmp_path):
    make(tmp_path / "elsewhere", "dump.json", "a.pt")
    (tmp_path / "run" / "step0" / "rank0").mkdir(parents=True)
    (tmp_path / "run" / "step0" / "rank0" / "dump_tensor_data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "step1").mkdir()
    (tmp_path / "run" / "step1" / "rank0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "step0" / "rank0" / "dump.json").symlink_to(
        tmp_path / "elsewhere/dump.json"
    )
    writer = DumpWriter()
    writer.open(tmp_path / "run" / "step2" / "rank0", HEAD).close()
    writer.close()
    assert files_below(tmp_path / "elsewhere") == {"dump.json", "a.pt"}
    assert (tmp_path / "elsewhere" / "dump.json").read_text() == "old"


# Claims.


def test_without_a_process_group_the_folder_is_rank(tmp_path):
    for rank, name in ((None, "rank"), (3, "rank3")):
        claim = claim_rank_directory(tmp_path / "new", rank)
        assert (claim.name, claim.is_locked) == (name, True)
        claim.release()
        claim.release()
        assert not claim.is_locked
    assert list((tmp_path / "new").iterdir()) == []


def test_a_process_that_lives_keeps_its_name(tmp_path, caplog):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom pathlib import Path\n"
            "from msprobe.dump.locking import claim_rank_directory\n"
            "claim = claim_rank_directory(Path(sys.argv[1]), None)\n"
            "print(claim.name, flush=True)\nsys.stdin.read()",
            tmp_path,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "rank\n"
        claim = claim_rank_directory(tmp_path, None)
        assert claim.name == f"proc{os.getpid()}"
        assert "another process writes to rank" in caplog.text
        claim.release()
        holder.kill()
    again = claim_rank_directory(tmp_path, None)
    assert again.name == "rank"
    again.release()


def test_a_second_claim_of_the_same_process_shares_the_first(tmp_path):
    first = claim_rank_directory(tmp_path, 0)
    second = claim_rank_directory(tmp_path, 0)
    assert second.name == "rank0"
    first.release()
    assert second.is_locked
    second.release()
    assert not second.is_locked


def test_a_folder_that_cannot_be_made_gives_an_unlocked_claim(tmp_path):
    (tmp_path / "file").write_text("")
    claim = claim_rank_directory(tmp_path / "file" / "dump", None)
    assert (claim.name, claim.is_locked) == ("rank", False)
    claim.release()


def test_many_processes_at_once_get_different_folders(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from msprobe.dump.locking import claim_rank_directory
        claim = claim_rank_directory(Path(sys.argv[1]), None)
        print(claim.name, flush=True)
        sys.stdin.read()
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(6)
    ]
    names = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate("")
    assert names.count("rank") == 1
    assert len(set(names)) == 6


def test_a_forked_child_that_lives_on_does_not_keep_the_name(tmp_path):
    result = run_python(
        """
        import os, sys, time
        from pathlib import Path
        from msprobe.dump.locking import claim_rank_directory
        claim = claim_rank_directory(Path(sys.argv[1]), 0)
        if os.fork() == 0:
            os.close(1), os.close(2)
            time.sleep(3)
            os._exit(0)
        print(claim.name)
        os._exit(0)
        """,
        tmp_path,
    )
    assert result.stdout == "rank0\n"
    claim = claim_rank_directory(tmp_path, 0)
    assert claim.name == "rank0"
    claim.release()


# Exit and fork.


def test_at_exit_everything_is_written(tmp_path):
    result = run_python(
        """
        import sys
        from pathlib import Path
        from msprobe.dump.writer import DumpHead, DumpWriter
        class Payload:
            size_bytes = 3
            def write(self, path): path.write_bytes(b"abc")
        dump = DumpWriter().open(Path(sys.argv[1]), DumpHead("tensor", "mix", "pytorch"))
        for number in range(1000):
            dump.put_record(f"r{number}", number, {"output": [number]})
            dump.put_tensor(f"{number}.pt", Payload())
        raise SystemExit("the script fails here")
        """,
        tmp_path / "step0" / "rank",
    )
    assert result.stderr == "the script fails here\n"
    data = json.loads((tmp_path / "step0" / "rank" / "dump.json").read_text())["data"]
    assert len(data) == 1000
    assert len(list((tmp_path / "step0" / "rank" / "dump_tensor_data").iterdir())) == 1000
    assert not (tmp_path / "step0" / "rank" / "journal.jsonl").exists()


def test_a_forked_child_writes_nothing(tmp_path):
    """Data loader workers inherit the dump, threads excluded: any lock could be held for ever."""
    result = run_python(
        """
        import os, sys, time
        from pathlib import Path
        from msprobe.dump.writer import DumpHead, DumpWriter
        class Payload:
            size_bytes = 3
            def write(self, path): path.write_bytes(b"abc")
        writer = DumpWriter(flush_interval_s=0.01)
        dump = writer.open(Path(sys.argv[1]), DumpHead("tensor", "mix", "pytorch"))
        def put(name):
            dump.put_record(name, 0, {})
            dump.put_call(name, 0, None, 0)
            dump.put_frames(0, [])
            dump.put_tensor(name + ".pt", Payload())
            dump.link_tensor(name + "2.pt", name + ".pt")
            dump.log_error(name, name)
            dump.build_json()
        for attempt in range(20):
            dump.put_record(f"waits{attempt}", attempt, {})  # in memory while the child starts
            child = os.fork()
            if child == 0:
                put("child")
                writer.submit(lambda: os.abort())
                account = dump.close()
                dump.write_account({})
                other = writer.open(Path(sys.argv[1]) / "child", DumpHead("tensor", "mix", "x"))
                other.put_record("child", 0, {})
                other.close()
                writer.close()
                sys.exit(0 if not account.complete else 5)
            assert os.waitpid(child, 0)[1] == 0
        put("parent")
        print(dump.close().complete)
        """,
        tmp_path / "step0" / "rank",
    )
    assert (result.stdout, result.stderr) == ("True\n", "")
    directory = tmp_path / "step0" / "rank"
    data = json.loads((directory / "dump.json").read_text())["data"]
    assert set(data) == {f"waits{n}" for n in range(20)} | {"parent"}
    assert files_below(directory) == {
        "dump.json",
        "stack.json",
        "construct.json",
        "dump_error_info.log",
        "dump_tensor_data/parent.pt",
        "dump_tensor_data/parent2.pt",
    }


def test_a_forked_child_may_have_a_writer_of_its_own(tmp_path):
    result = run_python(
        """
        import os, sys
        from pathlib import Path
        from msprobe.dump.writer import DumpHead, DumpWriter
        from msprobe.dump.locking import claim_rank_directory
        base = Path(sys.argv[1])
        claim = claim_rank_directory(base, None)
        parent = DumpWriter().open(base / "step0" / claim.name, DumpHead("tensor", "mix", "x"))
        child = os.fork()
        name = claim.name
        if child == 0:
            name = claim_rank_directory(base, None).name
            parent = DumpWriter().open(base / "step0" / name, DumpHead("tensor", "mix", "x"))
        parent.put_record(name, 0, {})
        parent.close()
        if child:
            os.waitpid(child, 0)
            print(child)
        """,
        tmp_path,
    )
    assert result.stderr.startswith("another process writes to rank")
    child = int(result.stdout)
    for name in ("rank", f"proc{child}"):
        data = json.loads((tmp_path / "step0" / name / "dump.json").read_text())["data"]
        assert list(data) == [name]


@pytest.mark.parametrize("relative", ["run/step0/rank", "run/../run/step0/rank"])
def test_a_relative_path_survives_a_change_of_directory(tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path)
    writer = DumpWriter()
    dump = writer.open(Path(relative), HEAD)
    dump.put_record("a", 0, {})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert dump.close().complete
    writer.close()
    assert (tmp_path / "run" / "step0" / "rank" / "dump.json").exists()
