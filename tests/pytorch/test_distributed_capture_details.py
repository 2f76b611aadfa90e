# SPDX-License-Identifier: Apache-2.0
"""What the record of a collective says, against values worked out without the debugger."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from families.process_group import run_ranks

import msprobe
from builders.recordings import read

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CODE = """
import threading, torch, torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from contextlib import contextmanager
from torch import nn
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

@contextmanager
def captured(name, model=None, rank_id=None, level="L1", task="statistics", **extra):
    section = {"overflow_nums": -1} if task == "overflow_check" else {}
    content = {"task": task, "level": level, "dump_path": str(folder / name), task: section}
    config = folder / f"{name}{rank}.json"
    config.write_text(json.dumps(content | extra))
    reset_session()
    PrecisionDebugger(config_path=str(config))
    PrecisionDebugger.start(model, rank_id=rank_id)
    try:
        yield
    finally:
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
        reset_session()

def own(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) * (rank + 1)

other, found = 1 - rank, {}
before = (dist.all_reduce.__code__, funcol.all_reduce.__code__, funcol.wait_tensor.__code__)
with captured("plain", task="tensor"):
    x = torch.relu(own(3))
    first = x + 0
    dist.all_reduce(x)
    second = x + 0
    dist.all_reduce(own(2), op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    gathered = [torch.full((2,), -7.0) for _ in range(2)]
    dist.all_gather(gathered, own(2))
    received = torch.full((2,), -7.0)
    operations = [dist.P2POp(dist.isend, own(2), other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    late = own(4)
    pending = dist.all_reduce(late, async_op=True)
    found["waited"] = pending.wait()
    never = own(5)
    unwaited = dist.all_reduce(never, async_op=True)
    future = unwaited.get_future()
    try:
        dist.broadcast("no tensor", src=0)
    except Exception as error:
        found["raised"] = type(error).__name__
    thread = threading.Thread(target=lambda: dist.all_reduce(own(6)))
    thread.start()
    thread.join()
future.wait()
with captured("functional"):
    result = funcol.all_reduce(own(3), "sum", dist.group.WORLD)
    in_flight = nn.Identity()(result) * 1
    view = funcol.all_reduce(own(4), "sum", dist.group.WORLD).view(2, 2)
    found["view"] = (view + 0).tolist()
    kept = funcol.all_reduce(own(5), "sum", dist.group.WORLD)
found["kept"] = kept.tolist()
with captured("overflow", task="overflow_check"):
    huge = torch.full((2,), 3e38)
    dist.all_reduce(huge)
    dist.all_reduce(own(2))
with captured("chosen", rank=[1]):
    dist.all_reduce(own(2))
with captured("named", rank_id=rank + 6):
    dist.all_reduce(own(2))
with captured("modules", nn.Identity(), level="L0"):
    dist.all_reduce(own(2), op=dist.ReduceOp.MAX)
    own(2).requires_grad_().sum().backward()
    dist.broadcast(own(3), 1)
    funcol.all_reduce(own(4), "sum", dist.group.WORLD) + 0
    dist.all_to_all_single(torch.empty(6), own(6))
after = (dist.all_reduce.__code__, funcol.all_reduce.__code__, funcol.wait_tensor.__code__)
found["restored"] = all(map(lambda a, b: a is b, before, after))
report(found)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder with all dumps and what each rank found."""
    folder = tmp_path_factory.mktemp("details")
    return folder, run_ranks(CODE, folder)


def records(folder: Path, name: str, rank: str) -> dict[str, Any]:
    found: dict[str, Any] = read(folder / name, 0, rank, "dump.json")["data"]
    return found


@pytest.fixture(params=[0, 1])
def plain(
    request: pytest.FixtureRequest, ran: tuple[Path, list[dict[str, Any]]]
) -> tuple[int, dict[str, Any]]:
    """The records of the first capture on one rank."""
    return request.param, records(ran[0], "plain", f"rank{request.param}")


def maximum(rank: int, count: int) -> float:
    """Largest element of what `rank` sends."""
    return float(count * (rank + 1))


def test_an_in_place_collective_shows_both_values(plain: tuple[int, dict[str, Any]]) -> None:
    rank, found = plain
    record = found["Distributed.all_reduce.0.forward"]
    assert record["input_args"][0]["Max"] == maximum(rank, 3)
    assert record["output"][0]["Max"] == 9.0
    assert found["Tensor.__add__.0.forward"]["input_args"][0]["Max"] == maximum(rank, 3)
    assert found["Tensor.__add__.1.forward"]["input_args"][0]["Max"] == 9.0


def test_groups_and_operations_are_described(plain: tuple[int, dict[str, Any]]) -> None:
    _, found = plain
    record = found["Distributed.all_reduce.1.forward"]
    assert record["input_kwargs"]["group"] == {
        "type": "torch.ProcessGroup",
        "group_ranks": [0, 1],
        "group_id": "77849d8c",
    }
    assert record["input_kwargs"]["op"]["type"] == "torch.distributed.ReduceOp"
    assert "MAX" in record["input_kwargs"]["op"]["value"]
    assert record["output"][0]["Max"] == 4.0


def test_a_buffer_that_is_only_filled_is_null_before(plain: tuple[int, dict[str, Any]]) -> None:
    _, found = plain
    record = found["Distributed.all_gather.0.forward"]
    assert record["input_args"][0] is None
    assert [part["Max"] for part in record["output"][0]] == [2.0, 4.0]


def test_a_batch_describes_each_operation(plain: tuple[int, dict[str, Any]]) -> None:
    rank, found = plain
    record = found["Distributed.batch_isend_irecv.0.forward"]
    sent, received = record["input_args"][0]
    facts = {"class_type": "torch.distributed.P2POp", "peer": 1 - rank, "tag": 0}
    assert facts.items() <= sent.items()
    assert (sent["op"], received["op"]) == ("isend", "irecv")
    assert sent["tensor"]["Max"] == maximum(rank, 2)
    assert received["tensor"] is None
    assert record["output"][0][0]["tensor"] is None
    assert record["output"][0][1]["tensor"]["Max"] == maximum(1 - rank, 2)


def test_an_asynchronous_call_is_read_after_the_programs_own_wait(
    plain: tuple[int, dict[str, Any]], ran: tuple[Path, list[dict[str, Any]]]
) -> None:
    rank, found = plain
    assert ran[1][rank]["waited"] is True
    assert found["Distributed.all_reduce.2.forward"]["output"][0]["Max"] == 12.0


def test_what_nobody_waits_for_is_null_with_a_reason(plain: tuple[int, dict[str, Any]]) -> None:
    rank, found = plain
    record = found["Distributed.all_reduce.3.forward"]
    assert record["input_args"][0]["Max"] == maximum(rank, 5)
    assert record["output"] is None
    assert "did not wait" in record["remarks"]["output"]


def test_a_call_that_raises_says_so(
    plain: tuple[int, dict[str, Any]], ran: tuple[Path, list[dict[str, Any]]]
) -> None:
    rank, found = plain
    assert found["Distributed.broadcast.0.forward"]["raised"] == ran[1][rank]["raised"]


def test_calls_of_other_threads_are_counted_not_recorded(
    plain: tuple[int, dict[str, Any]], ran: tuple[Path, list[dict[str, Any]]]
) -> None:
    rank, found = plain
    assert "Distributed.all_reduce.4.forward" not in found
    account = read(ran[0] / "plain", 0, f"rank{rank}", "account.json")
    assert account["skipped"]["collectives in other threads"] == 1
    assert account["errors"] == {}


def test_saved_buffers_hold_the_result(
    plain: tuple[int, dict[str, Any]], ran: tuple[Path, list[dict[str, Any]]]
) -> None:
    rank, found = plain
    values = ran[0] / "plain" / "step0" / f"rank{rank}" / "dump_tensor_data"
    record = found["Distributed.all_reduce.0.forward"]
    before = torch.load(values / record["input_args"][0]["data_name"])
    after = torch.load(values / record["output"][0]["data_name"])
    assert before.tolist() == [value * (rank + 1) for value in (1.0, 2.0, 3.0)]
    assert after.tolist() == [3.0, 6.0, 9.0]
    name = "Distributed.batch_isend_irecv.0.forward.output.0.1.tensor.pt"
    assert torch.load(values / name).tolist() == [2.0 - rank, 2 * (2.0 - rank)]


def test_functional_collectives_are_read_when_the_program_uses_them(
    ran: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, reports = ran
    for rank, report in enumerate(reports):
        found = records(folder, "functional", f"rank{rank}")
        used, viewed, kept = (
            found[f"Distributed.functional_all_reduce.{number}.forward"] for number in range(3)
        )
        assert used["input_args"][0]["Max"] == maximum(rank, 3)
        assert used["output"][0]["Max"] == 9.0
        assert viewed["output"][0]["shape"] == [4]
        assert viewed["output"][0]["Max"] == 12.0
        assert kept["output"] is None
        assert "did not wait" in kept["remarks"]["output"]
        assert report["view"] == [[3.0, 6.0], [9.0, 12.0]]
        assert report["kept"] == [3.0, 6.0, 9.0, 12.0, 15.0]
        assert report["restored"] is True


def test_an_overflow_that_a_collective_makes_is_kept_with_both_values(
    ran: tuple[Path, list[dict[str, Any]]],
) -> None:
    for rank in ("rank0", "rank1"):
        found = records(ran[0], "overflow", rank)
        assert list(found) == ["Distributed.all_reduce.0.forward"]
        record = found["Distributed.all_reduce.0.forward"]
        assert record["overflow"] == "source"
        values = ran[0] / "overflow" / "step0" / rank / "dump_tensor_data"
        before = torch.load(values / record["input_args"][0]["data_name"])
        after = torch.load(values / record["output"][0]["data_name"])
        assert torch.equal(before, torch.full((2,), 3e38))
        assert after.tolist() == [math.inf, math.inf]


def test_without_records_of_calls_the_facts_tell_collectives(
    ran: tuple[Path, list[dict[str, Any]]],
) -> None:
    for rank in (0, 1):
        found = read(ran[0] / "modules", 0, f"rank{rank}", "facts.json")["communication"]

        sources = [call.pop("source").rpartition(":")[0] for call in found]
        shared = {"ranks": [0, 1], "dtype": "torch.float32"}
        assert found == [
            shared | {"api": "all_reduce", "op": "max", "peer": None, "elements": 2, "passes": 0},
            shared | {"api": "broadcast", "op": None, "peer": 1, "elements": 3, "passes": 1},
            shared
            | {"api": "functional_all_reduce", "op": "sum", "peer": None, "elements": 4}
            | {"passes": 1},
            shared
            | {"api": "all_to_all_single", "op": None, "peer": None, "elements": 6, "passes": 1},
        ]
        assert len(set(sources)) == 1
    assert not records(ran[0], "modules", "rank0").keys() & {"Distributed.all_reduce.0.forward"}
    assert read(ran[0] / "plain", 0, "rank0", "facts.json")["communication"] == []


def test_ranks_are_chosen_and_named(ran: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = ran
    assert list(msprobe.open_dump(folder / "chosen").steps[0].ranks) == [1]
    assert sorted(msprobe.open_dump(folder / "named").steps[0].ranks) == [6, 7]
