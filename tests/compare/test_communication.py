# SPDX-License-Identifier: Apache-2.0
"""Communications of several ranks are connected, and faults are traced back through them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import compare

from builders.dumps import DumpBuilder, value
from msprobe.collectives.calls import communication_calls, is_communication
from msprobe.collectives.matching import connect, earliest_faults
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.record_views import Record
from msprobe.dump.value_reader import ValueReader

READER = ValueReader(Path("dump.json"), level="L1")


def group(*ranks):
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "0"}


def integer(value):
    return {"type": "int", "value": value}


def calls_of(rank, *entries):
    """Return the calls of a rank whose records are (name, args, kwargs), numbered by appearance."""
    counts: dict[str, int] = {}
    records = {}
    for api, args, kwargs in entries:
        number = counts[api] = counts.get(api, -1) + 1
        full = f"{api}.{number}.forward"
        data = {"input_args": args, "input_kwargs": kwargs, "output": []}
        records[full] = Record(name=parse_record_name(full), data=data, reader=READER)
    return communication_calls(records, {name: r.name for name, r in records.items()}, rank)


def partners(meetings):
    return [[(call.rank, call.name) for call in meeting.calls] for meeting in meetings]


def compute():
    return ("Functional.linear", [], {})


def all_reduce(*ranks):
    return ("Distributed.all_reduce", [None], {"group": group(*ranks)} if ranks else {})


def send(to):
    return ("Distributed.send", [None, integer(to)], {})


def recv(source):
    return ("Distributed.recv", [None], {"src": integer(source)})


def test_only_communications_are_communications():
    for name in (
        "Distributed.all_reduce.0.forward",
        "Distributed._all_gather_base.3.forward",
        "Distributed.functional_all_reduce.0.forward",
        "MintDistributed.broadcast.0.forward",
    ):
        assert is_communication(parse_record_name(name)), name
    for name in ("Functional.linear.0.forward", "Tensor.scatter.0.forward", "all_reduce.0.debug"):
        assert not is_communication(parse_record_name(name)), name


def test_collectives_meet_by_group_and_order():
    meetings = connect(
        {
            0: calls_of(0, all_reduce(0, 1), compute(), all_reduce(0, 2), all_reduce(0, 1)),
            1: calls_of(1, compute(), all_reduce(0, 1), all_reduce(0, 1)),
            2: calls_of(2, all_reduce(0, 2)),
        }
    )
    name = "Distributed.all_reduce.{}.forward".format
    assert partners(meetings) == [
        [(0, name(0)), (1, name(0))],
        [(0, name(1)), (2, name(0))],
        [(0, name(2)), (1, name(1))],
    ]
    assert [meeting.layer for meeting in meetings] == [1, 2, 3]


def test_a_missing_group_means_every_rank():
    meetings = connect({rank: calls_of(rank, all_reduce()) for rank in range(3)})
    assert [[rank for rank, _ in meeting] for meeting in partners(meetings)] == [[0, 1, 2]]


def test_messages_meet_by_source_and_destination_in_order():
    meetings = connect(
        {
            0: calls_of(0, send(1), send(2), send(1)),
            1: calls_of(1, recv(0), recv(0)),
            2: calls_of(2, recv(0)),
        }
    )
    assert sorted(partners(meetings)) == [
        [(0, "Distributed.send.0.forward"), (1, "Distributed.recv.0.forward")],
        [(0, "Distributed.send.1.forward"), (2, "Distributed.recv.0.forward")],
        [(0, "Distributed.send.2.forward"), (1, "Distributed.recv.1.forward")],
    ]


def test_source_and_destination_may_be_numbered_inside_the_group():
    message = ("Distributed.isend", [None], {"group_dst": integer(1), "group": group(2, 5)})
    answer = ("Distributed.irecv", [None], {"group_src": integer(0), "group": group(2, 5)})
    meetings = connect({2: calls_of(2, message), 5: calls_of(5, answer)})
    assert [[rank for rank, _ in meeting] for meeting in partners(meetings)] == [[2, 5]]


@pytest.mark.parametrize(
    ("api", "sends"),
    [
        ("broadcast", [True, False]),
        ("scatter_tensor", [True, False]),  # of MindSpore: tensor, src, group
        ("gather_into_tensor", [False, True]),  # tensor, dst, group
        ("reduce", [False, True]),
    ],
)
def test_values_flow_from_the_root_or_to_it(api, sends):
    name = f"Distributed.{api}"
    calls = [calls_of(rank, (name, [None, integer(0)], {})) for rank in range(2)]
    assert [call.sends for (call,) in calls] == sends
    assert [call.receives for (call,) in calls] == [not each for each in sends]


def batch(*operations):
    entries = [
        {"class_type": "torch.distributed.P2POp", "tensor": None, "op": op, "peer": peer, "tag": 0}
        for op, peer in operations
    ]
    return ("Distributed.batch_isend_irecv", [entries], {})


def test_a_batch_meets_all_its_peers():
    meetings = connect(
        {
            0: calls_of(0, batch(("isend", 1))),
            1: calls_of(1, batch(("irecv", 0), ("isend", 2))),
            2: calls_of(2, recv(1)),
        }
    )
    assert [[rank for rank, _ in meeting] for meeting in partners(meetings)] == [[0, 1, 2]]


def test_ranks_that_wait_for_each_other_in_a_circle_are_still_sorted():
    # Rank 1 lacks its first message, so its second one pairs with the wrong call.
    meetings = connect(
        {
            0: calls_of(0, all_reduce(0, 1), send(1)),
            1: calls_of(1, recv(0), all_reduce(0, 1)),
        }
    )
    assert sum(len(meeting.calls) for meeting in meetings) == 4
    assert len(meetings) == 2


def faults(calls, faulty, faulty_inputs=None):
    found = earliest_faults(connect(calls), faulty, faulty_inputs)
    return [(fault.rank, fault.name) for fault in found]


def test_a_fault_before_a_collective_explains_the_others():
    calls = {
        rank: calls_of(rank, compute(), all_reduce(0, 1), compute(), compute()) for rank in (0, 1)
    }
    linear, reduce = "Functional.linear.{}.forward".format, "Distributed.all_reduce.0.forward"
    assert faults(calls, {0: {linear(0): 0, reduce: 1}, 1: {reduce: 1, linear(1): 2}}) == [
        (0, linear(0))
    ]
    # The same with the ranks exchanged: rank 0 is nothing special.
    assert faults(calls, {1: {linear(0): 0, reduce: 1}, 0: {reduce: 1, linear(1): 2}}) == [
        (1, linear(0))
    ]


def test_a_collective_that_is_itself_at_fault_is_reported_on_every_rank():
    calls = {rank: calls_of(rank, compute(), all_reduce(0, 1)) for rank in (0, 1)}
    reduce = "Distributed.all_reduce.0.forward"
    both = {0: {reduce: 1}, 1: {reduce: 1}}
    assert faults(calls, both) == [(0, reduce), (1, reduce)]
    assert faults(calls, both, {1: {reduce}}) == [(1, reduce)]


def test_faults_that_do_not_know_of_each_other_are_all_reported():
    calls = {rank: calls_of(rank, compute(), all_reduce(0, 1), compute()) for rank in (0, 1)}
    late = "Functional.linear.1.forward"
    assert faults(calls, {0: {late: 2}, 1: {late: 2}}) == [(0, late), (1, late)]


def test_a_fault_travels_with_messages_to_later_ranks():
    calls = {
        0: calls_of(0, compute(), send(1)),
        1: calls_of(1, recv(0), compute(), send(2)),
        2: calls_of(2, compute(), recv(1), compute()),
    }
    linear = "Functional.linear.0.forward"
    send_name, recv_name = "Distributed.send.0.forward", "Distributed.recv.0.forward"
    downstream = {1: {recv_name: 0, linear: 1, send_name: 2}, 2: {recv_name: 1}}
    assert faults(calls, {0: {linear: 0, send_name: 1}, **downstream}) == [(0, linear)]
    # A message that values in order and arrives broken is the fault itself.
    assert faults(calls, downstream) == [(1, recv_name)]
    # The sender's record is already faulty although nothing before it was recorded.
    assert faults(calls, {0: {send_name: 1}, **downstream}) == [(0, send_name)]


def broadcast(root):
    return ("Distributed.broadcast", [None], {"src": integer(root), "group": group(0, 1, 2)})


def test_a_broadcast_spreads_from_its_root_only():
    calls = {rank: calls_of(rank, compute(), broadcast(1)) for rank in range(3)}
    linear, name = "Functional.linear.0.forward", "Distributed.broadcast.0.forward"
    everywhere = {rank: {name: 1} for rank in range(3)}
    assert faults(calls, everywhere | {1: {linear: 0, name: 1}}) == [(1, linear)]
    found = faults(calls, everywhere | {0: {linear: 0, name: 1}})
    assert (0, linear) in found
    assert (1, name) in found


@settings(deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 3), min_size=2), max_size=12),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 12))),
)
def test_layers_follow_execution_and_every_fault_has_a_beginning(groups, faulty_places):
    entries = {rank: [all_reduce(*sorted(g)) for g in groups if rank in g] for rank in range(4)}
    calls = {rank: calls_of(rank, *found) for rank, found in entries.items()}
    meetings = connect(calls)
    layers = {(call.rank, call.position): m.layer for m in meetings for call in m.calls}
    for rank, found in entries.items():
        along = [layers[rank, position] for position in range(len(found))]
        assert along == sorted(set(along))
    assert sorted(sorted({c.rank for c in m.calls}) for m in meetings) == sorted(
        map(sorted, groups)
    )
    faulty = {
        rank: {
            call.name: call.position
            for call in calls[rank]
            if (rank, call.position) in faulty_places
        }
        for rank in calls
    }
    found = earliest_faults(meetings, faulty)
    assert bool(found) == any(faulty.values())
    for fault in found:
        assert fault.position == min(faulty[fault.rank].values())


@pytest.mark.parametrize(("faulty", "end"), [((1,), "; on rank 1"), ((0, 1), "argument")])
def test_a_call_that_differs_on_some_ranks_is_told_with_them(tmp_path, faulty, end):
    for side in ("new", "old"):
        for rank in (0, 1):
            factor = 3.0 if side == "new" and rank in faulty else 2.0
            x, y = value([1.0, 2.0], 1), value([factor, 2 * factor], 2)
            dump = DumpBuilder(tmp_path / side, rank=f"rank{rank}")
            dump.call("Tensor.__mul__.0.forward", [x, factor], [y]).write()
    sentence = compare(tmp_path / "new", tmp_path / "old").result.summary["verdict"]["sentence"]
    assert "3.0 instead of 2.0" in sentence
    assert sentence.endswith(end)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([[0], [1]], "each rank alone instead of ranks 0, 1, 2, 3, on ranks 0, 1"),
        ([[0, 1], [0, 1]], "ranks 0, 1 instead of ranks 0, 1, 2, 3, on ranks 0, 1"),
        ([[0], [1], [2], [3]], "each rank alone instead of ranks 0, 1, 2, 3, on all 4 ranks"),
        (
            [[0, 1], [0, 1], [2, 3], [2, 3]],
            "groups of ranks (0, 1 | 2, 3) instead of ranks 0, 1, 2, 3, on all 4 ranks",
        ),
    ],
)
def test_another_group_is_told_as_it_is_on_each_rank(tmp_path, groups, words):
    for rank, own in enumerate([*groups, *[[0, 1, 2, 3]] * (4 - len(groups))]):
        for side, members in (("new", own), ("old", [0, 1, 2, 3])):
            x, y = value([1.0, 2.0], 1), value([2.0, 4.0] if len(members) > 2 else [1.0, 2.0], 2)
            dump = DumpBuilder(tmp_path / side, rank=f"rank{rank}")
            dump.call("Distributed.all_reduce.0.forward", [x, group(*members)], [y]).write()
    sentence = compare(tmp_path / "new", tmp_path / "old").result.summary["verdict"]["sentence"]
    assert sentence.startswith("communication: the group of Distributed.all_reduce.0.forward")
    assert sentence.endswith(words)
