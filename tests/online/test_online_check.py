# SPDX-License-Identifier: Apache-2.0
"""A training that sends its calls to another process, and what can go wrong between the two."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from builders.csv_files import csv_rows
from msprobe.cli import main
from msprobe.errors import ConfigError, UsageError
from msprobe.online.keys import read_keys, write_keys
from msprobe.online.links import LinkError, SocketLink, write_piece
from msprobe.online.messages import PROTOCOL, Head, MessageError, checked_path
from msprobe.online.receiver import Receiver
from msprobe.online.spool import Part

torch = pytest.importorskip("torch")
pytest.importorskip("zmq")
from builders.recordings import recording  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch

HELLO = Head(kind="hello", protocol=PROTOCOL, version="1", rank="rank0", run="a")


def train(
    folder: Path, steps: int = 2, before: Callable[[], object] = int, **section: object
) -> list[torch.Tensor]:
    """Train a small model; return the parameters after it. `before` is called before the start."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    if not section:
        for _ in range(steps):
            step()
    else:
        with recording(folder, "L1", "tensor", section={"online_run_ut": True, **section}) as run:
            before()
            for _ in range(steps):
                with run.step_of(model):
                    step()
    return [one.detach().clone() for one in model.parameters()]


@contextmanager
def receiving(folder: Path, keys: Path | None = None) -> Iterator[Receiver]:
    found = None if keys is None else read_keys(keys, "server")
    receiver = Receiver("tcp://127.0.0.1:0", found, folder)
    try:
        yield receiver
    finally:
        receiver.close()


def port_of(receiver: Receiver) -> int:
    return int(receiver.address.rpartition(":")[2])


def results(folder: Path) -> dict[str, list[dict[str, str]]]:
    found = {}
    for path in sorted(folder.rglob("accuracy_checking_result_*_rank0.csv")):
        found[path.parent.name] = csv_rows(path, "utf-8-sig")
    return found


def test_calls_are_checked_while_the_training_runs(tmp_path: Path, capsys) -> None:
    keys = tmp_path / "keys"
    assert main(["online-keys", str(keys)]) == 0
    capsys.readouterr()
    codes: list[int] = []
    words = ["acc_check", "--listen", "127.0.0.1:0", "--keys", str(keys), "-n", "0", "-d", "cpu"]
    words += ["-o", str(tmp_path / "out"), "--follow", "200"]
    checking = threading.Thread(target=lambda: codes.append(main(words)))
    checking.start()
    said = ""
    while "listening at" not in said:
        time.sleep(0.05)
        said += capsys.readouterr().out
    port = int(re.search(r"127\.0\.0\.1:(\d+)", said)[1])

    sent = train(tmp_path / "dump", host="127.0.0.1", port=port, tls_path=str(keys))
    checking.join(timeout=300)

    assert codes == [0]
    found = results(tmp_path / "out")
    assert list(found) == ["step0", "step1"]
    for rows in found.values():
        names = [row["API name"] for row in rows]
        assert names.count("Functional.linear.0") == names.count("Functional.gelu.0") == 1
        assert {row["Forward Test Success"] for row in rows if "linear" in row["API name"]} == {
            "pass"
        }
    assert not list(tmp_path.rglob("dump_tensor_data"))  # removed on both sides
    for one, other in zip(sent, train(tmp_path), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("greets", "said"),
    [(False, "rank 0 did not begin"), (True, "rank 0 did not end: its training")],
)
def test_a_rank_that_did_not_end_is_said(tmp_path: Path, capsys, greets: bool, said: str) -> None:
    codes: list[int] = []
    words = ["acc_check", "--listen", "127.0.0.1:0", "-n", "0", "-o", str(tmp_path), "--follow"]
    checking = threading.Thread(target=lambda: codes.append(main([*words, "4"])))
    checking.start()
    printed = ""
    while "listening at" not in printed:
        time.sleep(0.05)
        printed += capsys.readouterr().out
    if greets:
        with closing(SocketLink(re.search(r"tcp://\S+", printed)[0], None)) as link:
            link.hello(HELLO)
    checking.join(timeout=300)
    assert codes == [2]
    assert said in capsys.readouterr().err


def test_a_shared_folder_receives_the_same_files(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    train(tmp_path / "dump", steps=1, nfs_path=str(shared))

    status = json.loads((tmp_path / "dump" / "online_rank.json").read_text())
    assert (status["is_over"], status["error"], status["waiting_bytes"]) == (True, "", 0)
    words = ["acc_check", str(shared), "-n", "0", "-d", "cpu", "-o", str(tmp_path / "out")]
    assert main(words) == 0


def test_calls_are_left_out_and_counted_when_the_queue_is_full(tmp_path: Path, caplog) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    model = torch.nn.Linear(600, 600)
    section = {"nfs_path": str(shared), "online_queue": "drop", "online_queue_mb": 1}
    with (
        caplog.at_level(logging.WARNING, "msprobe"),
        recording(
            tmp_path / "dump", "L1", "tensor", section={"online_run_ut": True, **section}
        ) as run,
        run.step_of(model),
    ):
        model(torch.ones(2, 600))

    status = json.loads((tmp_path / "dump" / "online_rank.json").read_text())
    assert status["dropped_calls"] == 1  # its weight has 1.4 MB


def test_a_receiver_that_is_gone_stops_nothing(tmp_path: Path, caplog) -> None:
    with receiving(tmp_path / "received") as receiver:
        address = receiver.address
    link = SocketLink(address, None, hello_s=0.3)
    with closing(link), pytest.raises(LinkError, match=r"no answer within 0\.3 s"):
        link.hello(HELLO)
    shared = tmp_path / "shared"
    shared.mkdir()

    with caplog.at_level(logging.ERROR, "msprobe"):
        sent = train(tmp_path / "dump", steps=1, before=shared.rmdir, nfs_path=str(shared))

    assert "there is no such folder; the training goes on" in caplog.text
    for one, other in zip(sent, train(tmp_path, steps=1), strict=True):
        assert torch.equal(one, other)


def test_a_receiver_that_is_killed_ends_the_waiting_of_the_training(tmp_path: Path, caplog) -> None:
    words = ["acc_check", "--listen", "127.0.0.1:0", "-n", "0", "-d", "cpu", "-o", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "msprobe", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
        model = torch.nn.Linear(600, 600)
        section = {"host": "127.0.0.1", "port": port, "online_queue_mb": 1}
        with (
            caplog.at_level(logging.ERROR, "msprobe"),
            recording(
                tmp_path / "dump", "L1", "tensor", section={"online_run_ut": True, **section}
            ) as run,
        ):
            for step in range(3):
                with run.step_of(model):
                    result = model(torch.ones(2, 600))
                status = json.loads((tmp_path / "dump" / "online_rank.json").read_text())
                if step == 0:
                    # By then the training has waited: less is left than may wait.
                    assert status["last_step"] == 0
                    assert status["waiting_bytes"] <= 1 << 20
                    assert status["sent_bytes"] > 400_000
                    process.kill()
                    process.wait()
    assert "the receiver is gone; the training goes on" in caplog.text
    assert torch.isfinite(result).all()
    assert len(list((tmp_path / "dump").glob("step*"))) == 3


def test_wrong_keys_and_missing_ones_are_not_heard(tmp_path: Path) -> None:
    write_keys(tmp_path / "a")
    write_keys(tmp_path / "b")
    with receiving(tmp_path / "received", tmp_path / "a") as receiver:
        foreign = read_keys(tmp_path / "b", "client")
        right = read_keys(tmp_path / "a", "client")
        for keys in (None, foreign, foreign._replace(other=right.other)):
            link = SocketLink(receiver.address, keys, hello_s=0.3)
            with closing(link), pytest.raises(LinkError, match="no answer within"):
                link.hello(HELLO)
        with closing(SocketLink(receiver.address, right)) as link:
            link.hello(HELLO)
    assert not (tmp_path / "received").exists()
    with pytest.raises(UsageError, match="is there already"):
        write_keys(tmp_path / "a")
    (tmp_path / "a" / "server.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(UsageError, match="no msprobe-curve-public key"):
        read_keys(tmp_path / "a", "client")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (Head(kind="hello", protocol=PROTOCOL + 1, version="9"), "speaks protocol 1, the sender"),
        (Head(kind="hello", protocol=PROTOCOL, rank="../rank0"), "no file of the dump"),
        (Head(kind="data", path="step0/rank0/dump.json"), "did not begin"),
    ],
)
def test_other_versions_and_senders_are_refused(tmp_path: Path, head: Head, said: str) -> None:
    with receiving(tmp_path / "received") as receiver:
        link = SocketLink(receiver.address, None)
        with closing(link), pytest.raises(LinkError, match=said):
            link.hello(head)


def test_a_full_disk_is_told_to_the_sender(tmp_path: Path, monkeypatch, caplog) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("msprobe.online.receiver.write_piece", full)
    with (
        receiving(tmp_path / "received") as receiver,
        closing(SocketLink(receiver.address, None)) as link,
    ):
        link.hello(HELLO)

        def send() -> None:  # some pieces are on the way before the first is refused
            for at in range(3):
                link.put(checked_path("step0/rank0/dump.json", "rank0"), at, b"{", is_last=at == 2)
            link.end()

        with pytest.raises(LinkError, match=r"the receiver cannot write to .*: no space is left"):
            send()
    said = [one.getMessage() for one in caplog.records if one.name == "msprobe.online.receiver"]
    assert len([text for text in said if "cannot write" in text]) == 1


def test_damaged_and_misplaced_pieces_are_refused(tmp_path: Path) -> None:
    with (
        receiving(tmp_path / "received") as receiver,
        closing(SocketLink(receiver.address, None)) as link,
    ):
        link.hello(HELLO)
        path = checked_path("step0/rank0/dump_tensor_data/a.pt", "rank0")
        link.put(path, 0, b"ab", is_last=False)
        link.put(path, 3, b"d", is_last=True)
        with pytest.raises(LinkError, match="does not follow"):
            link.end()
    assert not (tmp_path / "received" / path).exists()


@pytest.mark.parametrize(
    "path",
    [
        "dump.json",
        "/etc/passwd",
        "step0/rank0/../../x",
        "step0/rank1/dump.json",
        "step0/rank0/other/a.pt",
        "step0/rank0/.hidden",
        "step0/rank0/dump_tensor_data/a\x00b",
        "step0/rank0/dump_tensor_data/..",
    ],
)
def test_no_path_leads_out_of_the_dump(path: str) -> None:
    with pytest.raises(MessageError, match="no file of the dump"):
        checked_path(path, "rank0")


def test_files_get_their_names_when_they_are_complete(tmp_path: Path) -> None:
    tensor, journal = tmp_path / "a.pt", tmp_path / "journal.jsonl"
    for path in (tensor, journal):
        write_piece(path, 0, b"12", is_last=False)
    assert (tensor.exists(), journal.read_bytes()) == (False, b"12")
    write_piece(tensor, 2, b"3", is_last=True)
    assert tensor.read_bytes() == b"123"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "journal.jsonl"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "tensor.nfs_path"),
        ({"nfs_path": "/no/such/folder"}, "a folder that exists"),
        ({"nfs_path": ".", "host": "a", "port": 1}, "either"),
        ({"host": "127.0.0.1"}, "a number from 1 to 65535"),
        ({"host": "a b", "port": 5}, "tensor.host"),
        ({"host": "10.0.0.1", "port": 5}, "nothing is sent without encryption"),
        ({"host": "10.0.0.1", "port": 5, "tls_path": "."}, "it has no client.key"),
    ],
)
def test_settings_that_lead_nowhere_are_refused(tmp_path: Path, section, said: str) -> None:
    with (
        pytest.raises(ConfigError, match=said),
        recording(tmp_path, "L1", "tensor", section={"online_run_ut": True, **section}),
    ):
        pass


def test_tensors_belong_to_their_call_whatever_its_module_is_called() -> None:
    call = "Module.blk.forward_proj.Linear"
    for end in ("forward.0.output.0.pt", "backward.1.input.0.pt"):
        path = Path("step0/rank/dump_tensor_data") / f"{call}.{end}"
        assert Part(path=path, offset=0, size=1).call == call
