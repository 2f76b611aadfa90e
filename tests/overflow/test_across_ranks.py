# SPDX-License-Identifier: Apache-2.0
"""NaN that crosses ranks: the rank and call where it was made is the answer, rank 0 included."""

from __future__ import annotations

import json
import math
import time

import pytest
from overflow_dumps import tensor

from builders.records import forward, group, scalar
from msprobe.dump.journal import DumpHead, Journal
from msprobe.overflow.analysis import analyze_overflow
from msprobe.overflow.answer_lines import answer_lines
from msprobe.overflow.findings import Source, StepFindings

NAN = math.nan


def op(name: str, given: float, made: float):
    return (name, None, forward([tensor(given)], [tensor(made)]))


def all_reduce(index: int, given: float, made: float, ranks=(0, 1)):
    parts = forward([tensor(given)], [tensor(made)], group=group(ranks))
    return (f"Distributed.all_reduce.{index}.forward", None, parts)


def send(index: int, to: int, value: float):
    parts = forward([tensor(value), scalar("int", to)], [None])
    return (f"Distributed.send.{index}.forward", None, parts)


def receive(index: int, source: int, value: float, api: str = "recv"):
    parts = forward([None, scalar("int", source)], [tensor(value)])
    return (f"Distributed.{api}.{index}.forward", None, parts)


def analyze(path) -> StepFindings:
    (step,) = analyze_overflow(path)
    return step


@pytest.mark.parametrize("culprit", [0, 1])
def test_the_rank_that_made_it_is_named_and_the_others_received_it(write_dump, culprit) -> None:
    def rank(number: int):
        made = NAN if number == culprit else 1.0
        return [
            op("Torch.exp.0.forward", 1.0, 1.0),
            op("Torch.log.0.forward", 1.0, made),
            all_reduce(0, made, NAN),
            op("Torch.mul.0.forward", NAN, NAN),
        ]

    found = analyze(write_dump({"rank0": rank(0), "rank1": rank(1)}))
    (first,) = found.first
    assert (first.place.rank, first.place.name) == (culprit, "Torch.log.0.forward")
    assert first.source is Source.OPERATION
    assert first.layer == 0
    (received,) = [each for each in found.findings if each.source is Source.RECEIVED]
    assert received.place.rank == 1 - culprit
    assert received.place.name == "Distributed.all_reduce.0.forward"
    assert (received.sender.rank, received.sender.name) == (culprit, received.place.name)
    assert found.affected == {culprit: 3, 1 - culprit: 2}


def test_the_order_of_communications_decides_and_not_the_position(write_dump) -> None:
    """Rank 1 makes its NaN late among its own records, but before anything rank 0 made."""
    early = [op(f"Torch.add.{i}.forward", 1.0, 1.0) for i in range(20)]
    rank1 = [*early, op("Torch.log.0.forward", 1.0, NAN), send(0, 0, NAN)]
    rank0 = [receive(0, 1, NAN), op("Torch.mul.0.forward", NAN, NAN)]
    found = analyze(write_dump({"rank0": rank0, "rank1": rank1}))
    assert [each.place.rank for each in found.first] == [1]
    assert found.first[0].place.name == "Torch.log.0.forward"


def test_a_chain_of_stages_leads_back_to_the_first(write_dump) -> None:
    ranks = {
        "rank0": [op("Torch.log.0.forward", 1.0, NAN), send(0, 1, NAN)],
        "rank1": [
            receive(0, 0, NAN),
            op("Torch.mul.0.forward", NAN, NAN),
            send(0, 2, NAN),
        ],
        "rank2": [receive(0, 1, NAN, "irecv"), op("Torch.mul.0.forward", NAN, NAN)],
    }
    found = analyze(write_dump(ranks))
    assert [(each.place.rank, each.source) for each in found.findings] == [
        (0, Source.OPERATION),
        (1, Source.RECEIVED),
        (2, Source.RECEIVED),
    ]
    assert found.findings[2].sender.rank == 1
    assert [each.place.rank for each in found.first] == [0]


def test_a_communication_that_spoils_finite_values_is_the_culprit(write_dump) -> None:
    ranks = {f"rank{i}": [all_reduce(0, 1.0, math.inf)] for i in (0, 1)}
    found = analyze(write_dump(ranks))
    assert [each.place.rank for each in found.first] == [0, 1]
    assert {each.source for each in found.first} == {Source.COMMUNICATION}
    assert found.first[0].detail == "what every rank put in is finite"


def test_a_sender_that_is_not_in_the_dump_is_named(write_dump) -> None:
    found = analyze(write_dump({"rank3": [receive(0, 2, NAN)]}))
    (first,) = found.first
    assert first.source is Source.COMMUNICATION
    assert first.detail == "rank 2 took part and is not in the dump"


def test_simultaneous_beginnings_are_all_first(write_dump) -> None:
    def rank(made: float):
        return [op("Torch.log.0.forward", 1.0, made), all_reduce(0, made, NAN, (0, 1, 2))]

    found = analyze(write_dump({"rank0": rank(1.0), "rank1": rank(NAN), "rank2": rank(NAN)}))
    assert [each.place.rank for each in found.first] == [1, 2]


def test_a_result_nobody_waited_for_is_still_followed(write_dump) -> None:
    parts = {
        "input_args": [None, scalar("int", 1)],
        "input_kwargs": {},
        "output": None,
        "remarks": {"output": "not known to be complete"},
    }
    rank0 = [
        ("Distributed.irecv.0.forward", None, parts),
        op("Torch.mul.0.forward", NAN, NAN),
    ]
    rank1 = [op("Torch.log.0.forward", 1.0, NAN), send(0, 0, NAN)]
    found = analyze(write_dump({"rank0": rank0, "rank1": rank1}))
    (received,) = [each for each in found.findings if each.place.rank == 0]
    assert received.source is Source.RECEIVED
    assert received.sender.name == "Distributed.send.0.forward"
    assert found.first[0].place.rank == 1


def test_after_the_last_communication_ranks_answer_for_themselves(write_dump) -> None:
    rank0 = [all_reduce(0, 1.0, 1.0), op("Torch.log.0.forward", 1.0, NAN)]
    rank1 = [all_reduce(0, 1.0, 1.0), op("Torch.log.0.forward", 1.0, 1.0)]
    found = analyze(write_dump({"rank0": rank0, "rank1": rank1}))
    assert [(each.place.rank, each.layer) for each in found.first] == [(0, 1)]


def lines_of(found: StepFindings) -> list[str]:
    return [str(line) for line in answer_lines(found)]


def test_places_that_only_received_are_one_line_for_each_communication(write_dump) -> None:
    def rank(number: int):
        made = NAN if number == 2 else 1.0
        reductions = [all_reduce(index, made, NAN, (0, 1, 2)) for index in range(20)]
        return [op("Torch.log.0.forward", 1.0, made), *reductions]

    found = analyze(write_dump({f"rank{number}": rank(number) for number in range(3)}))
    assert len(found.findings) == 41
    lines = lines_of(found)
    assert "  40 further places only received them from another rank" in lines
    assert lines[-1] == "    Distributed.all_reduce: 20 calls, ranks 0, 1"
    assert sum("all_reduce" in line for line in lines) == 1


def test_the_same_beginning_on_several_ranks_is_said_once(write_dump) -> None:
    ranks = {f"rank{number}": [op("Torch.log.0.forward", 1.0, NAN)] for number in range(3)}
    found = analyze(write_dump(ranks))
    assert len(found.first) == 3
    (line,) = [line for line in lines_of(found) if "Torch.log" in line]
    assert line == "  first  Torch.log.0.forward on ranks 0, 1, 2"


def set_times(folder, began: float, ended: float) -> None:
    run = {"run": {"began": began, "ended": ended}}
    (folder / "account.json").write_text(json.dumps(run))


def test_ranks_of_an_earlier_run_are_left_out(write_dump) -> None:
    """Four ranks recorded a NaN; then two ranks ran without it, and cleared their own folders."""
    bad = [op("Torch.log.0.forward", 1.0, NAN), all_reduce(0, NAN, NAN, (0, 1, 2, 3))]
    good = [op("Torch.log.0.forward", 1.0, 1.0), all_reduce(0, 1.0, 1.0)]
    path = write_dump({"rank0": good, "rank1": good, "rank2": bad, "rank3": bad})
    for rank in range(4):
        began, ended = (2000, 2005) if rank < 2 else (1000, 1009)
        set_times(path / "step0" / f"rank{rank}", began + rank / 10, ended)
    found = analyze(path)
    assert found.findings == ()
    assert set(found.affected) == {0, 1}
    assert "rank 2 is left out: of an earlier run" in found.notes[0]
    (opened_alone,) = analyze_overflow(path / "step0" / "rank2")
    assert opened_alone.first


def test_an_earlier_run_that_was_killed_is_left_out(write_dump) -> None:
    path = write_dump({"rank0": [op("Torch.log.0.forward", 1.0, 1.0)]})
    set_times(path / "step0" / "rank0", time.time() + 100, time.time() + 200)
    folder = path / "step0" / "rank1"
    folder.mkdir()
    head = DumpHead("statistics", "mix", "pytorch", began=time.time())
    journal = Journal(folder / "journal.jsonl", head)
    journal.close()
    found = analyze(path)
    assert "rank 1 is left out" in found.notes[0]


def test_ranks_of_one_run_may_begin_and_end_at_any_time(write_dump) -> None:
    ranks = {f"rank{rank}": [op("Torch.log.0.forward", 1.0, NAN)] for rank in range(3)}
    path = write_dump(ranks)
    for rank in range(3):
        set_times(path / "step0" / f"rank{rank}", 1000 + rank * 100, 1201 + rank * 1000)
    assert set(analyze(path).affected) == {0, 1, 2}
    (path / "step0" / "rank1" / "account.json").unlink()  # as dumps of other programs
    (path / "step0" / "rank2" / "account.json").write_text('{"run": "yesterday"}')
    assert set(analyze(path).affected) == {0, 1, 2}


@pytest.mark.parametrize(
    ("began", "ended"),
    [(-1e300, -1e299), (1e300, 1e301), (math.nan, 5.0), (9000, 8000), ("soon", None), ([], {})],
)
def test_times_that_cannot_be_hide_no_rank(write_dump, began, ended) -> None:
    path = write_dump({f"rank{rank}": [op("Torch.log.0.forward", 1.0, NAN)] for rank in range(2)})
    set_times(path / "step0" / "rank0", 1000, 1001)
    set_times(path / "step0" / "rank1", began, ended)
    assert set(analyze(path).affected) == {0, 1}


def test_a_rank_that_cannot_be_read_is_left_out_and_mentioned(write_dump) -> None:
    path = write_dump({"rank0": [op("Torch.log.0.forward", 1.0, NAN)], "rank1": []})
    (path / "step0" / "rank1" / "dump.json").write_text("{")
    found = analyze(path)
    assert [each.place.rank for each in found.first] == [0]
    assert "rank 1 is left out" in found.notes[0]


@pytest.mark.parametrize("folders", [("rank",), ("proc123", "proc456")])
def test_processes_without_rank_numbers_are_looked_at(write_dump, folders) -> None:
    ranks = {folder: [op("Torch.log.0.forward", 1.0, NAN)] for folder in folders}
    found = analyze(write_dump(ranks))
    assert [each.place.rank for each in found.first] == list(folders)
