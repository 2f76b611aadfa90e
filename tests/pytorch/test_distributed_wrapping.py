# SPDX-License-Identifier: Apache-2.0
"""Collectives are reported once, with complete buffers, and run as they do without us.

The scenarios run in two gloo processes, which execute this file. Each writes what it saw before it
tears anything down, and is judged by that alone.
"""

import inspect
import json
import logging
import os
import pickle
import sys
import traceback
import warnings
import zlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from builders.warm_python import WarmProcess
from msprobe.pytorch.apis.api_rules import Action
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.distributed.process_groups import COLLECTIVES, describe_group, hook_collectives

if __name__ != "__main__":
    pytestmark = [
        pytest.mark.torch,
        pytest.mark.skipif(not dist.is_available(), reason="torch without distributed"),
    ]


def values_of(arguments):
    """Return the numbers in tensors, however nested."""
    if isinstance(arguments, torch.Tensor):
        return arguments.detach().tolist()
    if isinstance(arguments, list | tuple):
        return [values_of(value) for value in arguments]
    if isinstance(arguments, dict):
        return {key: values_of(value) for key, value in arguments.items()}
    return None


class Recorder:
    """An observer that writes down what it is told and what the buffers hold then."""

    def __init__(self):
        self.events = []
        self.calls = 0

    def begin(self, collective, args, kwargs):
        self.calls += 1
        self.events.append(["begin", collective.api, values_of(args)])
        return (collective.api, args, kwargs)

    def end(self, token, result, *, completed, error=None):
        api, args, kwargs = token
        values = [values_of(args), values_of(kwargs)] if completed else None
        self.events.append(["end", api, values, completed])

    def names(self, kind):
        return [event[1] for event in self.events if event[0] == kind]


# --- scenarios: run in each of the two processes; what they return is written to a file ---------


def own(rank, *shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) * (rank + 1)


def every_collective(rank):
    """Call each function once; return all buffers afterwards."""
    other, seen = 1 - rank, {}
    x = own(rank, 2)
    dist.all_reduce(x)
    seen["all_reduce"] = x.tolist()
    x = own(rank, 2)
    dist.broadcast(x, src=0)
    seen["broadcast"] = x.tolist()
    x = own(rank, 2)
    dist.reduce(x, 0)
    seen["reduce"] = x.tolist() if rank == 0 else None
    parts = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(parts, own(rank, 2))
    seen["all_gather"] = values_of(parts)
    parts = [torch.zeros(2), torch.zeros(2)] if rank == 0 else None
    dist.gather(own(rank, 2), parts)
    seen["gather"] = values_of(parts)
    x = torch.zeros(2)
    dist.scatter(x, [own(0, 2), own(3, 2)] if rank == 0 else None)
    seen["scatter"] = x.tolist()
    x = torch.zeros(4)
    gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather_single(x, own(rank, 2))
    seen["all_gather_single"] = x.tolist()
    x = torch.zeros(2)
    scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter_single(x, own(rank, 4))
    seen["reduce_scatter_single"] = x.tolist()
    x = torch.zeros(4)
    dist.all_to_all_single(x, own(rank, 4))
    seen["all_to_all_single"] = x.tolist()
    parts = [own(rank, 2), own(rank, 3)]
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):
        dist.all_reduce_coalesced(parts)
    seen["all_reduce_coalesced"] = values_of(parts)
    x = torch.zeros(2)
    if rank == 0:
        dist.send(own(rank, 2), other)
        seen["recv"] = dist.recv(x, other)
    else:
        seen["recv"] = dist.recv(x, other)
        dist.send(own(rank, 2), other)
    seen["received"] = x.tolist()
    return seen


def scenario_all_collectives(rank):
    plain = every_collective(rank)
    recorder = Recorder()
    undo = hook_collectives(recorder)
    observed = every_collective(rank)
    undo()
    return {"plain": plain, "observed": observed, "events": recorder.events}


def scenario_function_mode(rank):
    class Watch(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.table = ApiTable()
            self.recorded = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            entry = self.table.lookup(func)
            if entry.action is Action.RECORD:
                self.recorded.append(entry.name)
            return func(*args, **(kwargs or {}))

    plain = every_collective(rank)
    recorder = Recorder()
    undo = hook_collectives(recorder)
    with Watch() as mode:
        observed = every_collective(rank)
    undo()
    return {
        "plain": plain,
        "observed": observed,
        "begun": recorder.names("begin"),
        "recorded": [name for name in mode.recorded if name.startswith("Distributed")],
    }


def scenario_deprecated_name(rank):
    import warnings

    recorder = Recorder()
    undo = hook_collectives(recorder)
    x = torch.zeros(4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.all_gather_into_tensor(x, own(rank, 2))
    undo()
    return {
        "names": recorder.names("begin"),
        "x": x.tolist(),
        "blamed": sorted({Path(warning.filename).name for warning in caught}),
    }


def scenario_async(rank):
    recorder = Recorder()
    undo = hook_collectives(recorder)
    x = own(rank, 2)
    work = dist.all_reduce(x, async_op=True)
    kind = type(work) is dist.distributed_c10d.Work
    before = len(recorder.names("end"))
    waited = work.wait()
    after = len(recorder.names("end"))
    again = work.wait()
    final = len(recorder.names("end"))
    undo()
    return {
        "events": recorder.events,
        "is_a_plain_work": kind,
        "ends": [before, after, final],
        "waited": [waited, again],
    }


def scenario_irecv(rank):
    recorder = Recorder()
    undo = hook_collectives(recorder)
    x = torch.zeros(2)
    if rank == 0:
        work = dist.irecv(x, 1)
        ends_before = recorder.names("end")
        dist.barrier()  # only now does the other rank send
        work.wait()
    else:
        dist.barrier()
        work = dist.isend(own(1, 2), 0)
        ends_before = recorder.names("end")
        work.wait()
    undo()
    return {"ends_before": ends_before, "events": recorder.events, "x": x.tolist()}


def scenario_is_completed(rank):
    recorder = Recorder()
    undo = hook_collectives(recorder)
    x = own(rank, 2)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        assert recorder.names("end") == []
    ends = recorder.names("end")
    undo()
    return {"ends": ends, "value": recorder.events[-1][2]}


def scenario_batch(rank):
    recorder = Recorder()
    made_before = torch.zeros(2)
    early = [
        dist.P2POp(dist.isend, own(rank, 2), 1 - rank),
        dist.P2POp(dist.irecv, made_before, 1 - rank),
    ]
    undo = hook_collectives(recorder)
    works = dist.batch_isend_irecv(early)
    count, kind = len(works), type(works) is list
    ends = [len(recorder.names("end"))]
    for work in works:
        work.wait()
        ends.append(len(recorder.names("end")))
    made_while = torch.zeros(2)
    late = [
        dist.P2POp(dist.isend, own(rank, 2) * 10, 1 - rank),
        dist.P2POp(dist.irecv, made_while, 1 - rank),
    ]
    undo()
    for work in dist.batch_isend_irecv(late):
        work.wait()
    return {
        "names": [recorder.names("begin"), recorder.names("end")],
        "works": [count, kind, len(works)],
        "ends": ends,
        "early": made_before.tolist(),
        "late": made_while.tolist(),
    }


def scenario_unwaited(rank):
    recorder = Recorder()
    undo = hook_collectives(recorder)
    kept = dist.all_reduce(own(rank, 2), async_op=True)
    dist.all_reduce(own(rank, 3), async_op=True)  # its work dies at once
    given_up = dist.all_reduce(own(rank, 4), async_op=True)
    future = given_up.get_future()
    dist.barrier()
    dist.barrier()
    before = len(recorder.names("end"))
    while not kept._get_op_type() or not dist_is_done(kept):
        pass
    undo()
    values = future.wait()
    kept.wait()
    return {"before": before, "events": recorder.events, "future": values_of(values)}


def dist_is_done(work):
    return dist.distributed_c10d.Work.is_success(work)


def scenario_exception(rank):
    recorder = Recorder()
    undo = hook_collectives(recorder)
    raised = []
    for bad in ("not a tensor", 3):
        try:
            dist.all_reduce(bad)
        except Exception as exc:  # noqa: BLE001 - the type is the result
            raised.append([type(exc).__name__, str(exc)])
    x = own(rank, 2)
    dist.all_reduce(x)
    undo()
    plain = []
    for bad in ("not a tensor", 3):
        try:
            dist.all_reduce(bad)
        except Exception as exc:  # noqa: BLE001 - the type is the result
            plain.append([type(exc).__name__, str(exc)])
    return {"events": recorder.events, "raised": raised, "plain": plain, "x": x.tolist()}


class Broken:
    """An observer that fails."""

    def begin(self, collective, args, kwargs):
        raise RuntimeError("begin is broken")

    def end(self, token, result, *, completed, error=None):
        raise RuntimeError("end is broken")


class BrokenEnd(Broken):
    def begin(self, collective, args, kwargs):
        return 1


def scenario_broken_observer(rank):
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("msprobe").addHandler(handler)
    results = []
    for observer in (Broken(), BrokenEnd()):
        undo = hook_collectives(observer)
        results.append(every_collective(rank))
        work = dist.all_reduce(own(rank, 2), async_op=True)
        results.append(work.wait())
        undo()
    return {"results": results, "plain": every_collective(rank), "messages": messages}


def scenario_coalescing(rank):
    manager = dist.distributed_c10d._coalescing_manager
    recorder = Recorder()
    undo = hook_collectives(recorder)
    a, b = own(rank, 2), own(rank, 3)
    with manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
        inside = len(recorder.names("end"))
    after = len(recorder.names("end"))
    sync_events = list(recorder.events)
    recorder.events.clear()
    c, d = own(rank, 2), own(rank, 3)
    with manager(async_ops=True) as coalesced:
        dist.all_reduce(c, async_op=True)
        dist.all_reduce(d, async_op=True)
    left = len(recorder.names("end"))
    coalesced.wait()
    waited = len(recorder.names("end"))
    undo()
    return {
        "sync": [inside, after],
        "async": [left, waited],
        "sync_events": sync_events,
        "async_events": recorder.events,
        "values": values_of([a, b, c, d]),
    }


def scenario_coalescing_error(rank):
    manager = dist.distributed_c10d._coalescing_manager
    recorder = Recorder()
    undo = hook_collectives(recorder)
    try:
        with manager():
            dist.all_reduce(own(rank, 2))
            {}["user"]
    except KeyError as exc:
        raised = str(exc)
    dist.distributed_c10d._world.pg_coalesce_state.clear()
    x = own(rank, 2)
    dist.all_reduce(x)
    undo()
    return {"raised": raised, "events": recorder.events, "x": x.tolist()}


def trained(rank, recorder, wrap):
    """Return the losses and parameters of a training, which a recorder may watch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    undo = hook_collectives(recorder) if recorder else lambda: None
    losses = []
    for step in range(3):
        torch.manual_seed(step * 2 + rank)
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    undo()
    local = (p.to_local() if hasattr(p, "to_local") else p for p in model.parameters())
    return losses, [p.detach().tolist() for p in local]


def watched(rank, recorder, wrap):
    """Return a training without the recorder, and with it."""
    plain, observed = (trained(rank, one, wrap) for one in (None, recorder))
    return {"plain": plain, "observed": observed, "events": recorder.events}


def scenario_fsdp(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Names(Recorder):
        def begin(self, collective, args, kwargs):
            self.events.append(["begin", collective.api])
            return collective.api

        def end(self, token, result, *, completed, error=None):
            self.events.append(["end", token, completed])

    return watched(
        rank, Names(), lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    )


def scenario_ddp(rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def wrap(model):
        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, allreduce_hook)
        return model

    return watched(rank, Recorder(), wrap)


# --- the parent -----------------------------------------------------------------------------------


SCENARIOS = [name.removeprefix("scenario_") for name in globals() if name.startswith("scenario_")]


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """Run all scenarios in two processes; return how to get what each rank wrote for one."""
    folder = tmp_path_factory.mktemp("scenarios")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [WarmProcess(__file__, folder, str(rank), env=environment) for rank in (0, 1)]
    outputs = [worker.output() for worker in workers]

    def results(name):
        paths = [folder / f"{name}.{rank}.json" for rank in (0, 1)]
        assert all(path.exists() for path in paths), "\n".join(outputs)
        found = [json.loads(path.read_text()) for path in paths]
        for result in found:
            assert "error" not in result, result["error"]
        return found

    return results


def main(folder, rank):
    dist.init_process_group(
        "gloo", init_method=(folder / "store").as_uri(), rank=rank, world_size=2
    )
    for name in SCENARIOS:
        try:
            result = globals()[f"scenario_{name}"](rank)
        except BaseException:  # noqa: BLE001 - reported by the parent
            result = {"error": traceback.format_exc()}
        unfinished = folder / f"{name}.{rank}.tmp"
        unfinished.write_text(json.dumps(result))
        unfinished.rename(folder / f"{name}.{rank}.json")
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's own teardown is not what is tested


ALL_NAMES = [
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "all_gather_single",
    "reduce_scatter_single",
    "all_to_all_single",
    "all_reduce_coalesced",
]


def test_results_are_the_same_and_each_call_is_reported_once(scenario):
    for rank, result in enumerate(scenario("all_collectives")):
        assert result["observed"] == result["plain"]
        names = ALL_NAMES + (["send", "recv"] if rank == 0 else ["recv", "send"])
        if not hasattr(dist, "all_gather_single"):
            names[6:8] = ["all_gather_into_tensor", "reduce_scatter_tensor"]
        assert [event[1] for event in result["events"] if event[0] == "begin"] == names
        assert [event[1] for event in result["events"] if event[0] == "end"] == names


def test_buffers_hold_the_input_at_the_beginning_and_the_result_at_the_end(scenario):
    result = scenario("all_collectives")[1]
    begin, end = result["events"][:2]
    assert begin == ["begin", "all_reduce", [[2.0, 4.0]]]
    assert end == ["end", "all_reduce", [[[3.0, 6.0]], {}], True]


def test_a_function_mode_on_top_changes_nothing_and_doubles_nothing(scenario):
    for result in scenario("function_mode"):
        assert result["observed"] == result["plain"]
        assert sorted(set(result["begun"])) == sorted(result["begun"])
        assert len(result["begun"]) == len(ALL_NAMES) + len(("send", "recv"))
        assert result["recorded"] == []


@pytest.mark.skipif(not hasattr(dist, "all_gather_single"), reason="not deprecated there")
def test_a_deprecated_name_is_reported_by_itself_and_blames_the_caller(scenario):
    for result in scenario("deprecated_name"):
        assert result["names"] == ["all_gather_into_tensor"]
        assert result["x"] == [1.0, 2.0, 2.0, 4.0]
        # The caller's frame as torch sees it: its own decorator, not a file of ours.
        assert "distributed.py" not in result["blamed"]
        assert "diverted_function.py" not in result["blamed"]


def test_an_asynchronous_collective_ends_with_the_users_wait(scenario):
    for result in scenario("async"):
        assert result["is_a_plain_work"]
        assert result["ends"] == [0, 1, 1]
        assert result["waited"] == [True, True]
        assert result["events"][-1][2][0] == [[3.0, 6.0]]


def test_a_receive_is_not_read_before_it_arrived(scenario):
    receiver, sender = scenario("irecv")
    assert receiver["ends_before"] == sender["ends_before"] == []
    assert receiver["x"] == [2.0, 4.0]
    assert receiver["events"][0] == ["begin", "irecv", [[0.0, 0.0], None]]
    assert receiver["events"][-1] == ["end", "irecv", [[[2.0, 4.0], None], {}], True]
    assert sender["events"][-1][1] == "isend"


def test_an_affirmative_is_completed_ends_it_too(scenario):
    for result in scenario("is_completed"):
        assert result["ends"] == ["all_reduce"]
        assert result["value"][0] == [[3.0, 6.0]]


def test_a_batch_ends_with_its_last_wait_and_returns_the_users_list(scenario):
    for rank, result in enumerate(scenario("batch")):
        assert result["names"] == [["batch_isend_irecv"], ["batch_isend_irecv"]]
        assert result["works"] == [2, True, 2]
        assert result["ends"] == [0, 0, 1]
        assert result["early"] == own(1 - rank, 2).tolist()


def test_operations_made_while_capturing_work_afterwards(scenario):
    for rank, result in enumerate(scenario("batch")):
        assert result["late"] == (own(1 - rank, 2) * 10).tolist()


def test_what_is_never_waited_for_is_settled_at_the_end_without_a_guess(scenario):
    for result in scenario("unwaited"):
        ends = [event for event in result["events"] if event[0] == "end"]
        assert len(ends) == 3
        completed = [event[3] for event in ends]
        assert sorted(completed) == [False, False, True]
        [readable] = [event for event in ends if event[3]]
        assert readable[2][0] == [[3.0, 6.0]]
        assert result["future"] == [[3.0, 6.0, 9.0, 12.0]]


def test_errors_reach_the_user_unchanged_and_do_not_silence_later_calls(scenario):
    for result in scenario("exception"):
        assert result["raised"] == result["plain"] != []
        ends = [event for event in result["events"] if event[0] == "end"]
        assert [event[3] for event in ends] == [False, False, True]
        assert result["x"] == [3.0, 6.0]


def test_a_broken_observer_is_logged_once_and_harms_nobody(scenario):
    for result in scenario("broken_observer"):
        assert result["results"] == [result["plain"], True] * 2
        assert result["messages"] == ["a collective could not be recorded"] * 2


@pytest.mark.skipif(
    not hasattr(dist.distributed_c10d, "_coalescing_manager"), reason="not in this torch"
)
class TestCoalescing:
    def test_queued_calls_end_when_the_context_is_left_or_waited_for(self, scenario):
        for result in scenario("coalescing"):
            assert result["sync"] == [0, 2]
            assert result["async"] == [0, 2]
            assert result["values"] == [[3.0, 6.0], [3.0, 6.0, 9.0]] * 2
            for events in (result["sync_events"], result["async_events"]):
                ends = [event for event in events if event[0] == "end"]
                assert [event[2][0] for event in ends] == [[[3.0, 6.0]], [[3.0, 6.0, 9.0]]]
                assert [event[3] for event in ends] == [True, True]

    def test_an_error_inside_reaches_the_user(self, scenario):
        for result in scenario("coalescing_error"):
            assert result["raised"] == "'user'"
            ends = [event for event in result["events"] if event[0] == "end"]
            assert [event[3] for event in ends] == [False, True]
            assert result["x"] == [3.0, 6.0]


def test_fully_sharded_training_is_bit_identical_and_its_collectives_are_seen(scenario):
    for result in scenario("fsdp"):
        assert result["observed"] == result["plain"]
        begun = {event[1] for event in result["events"] if event[0] == "begin"}
        assert any(name.startswith("all_gather") for name in begun)
        assert any(name.startswith("reduce_scatter") for name in begun)
        ends = [event for event in result["events"] if event[0] == "end"]
        assert len(ends) * 2 == len(result["events"])


def test_a_communication_hook_of_ddp_works_on_and_its_buffers_are_not_guessed_at(scenario):
    for result in scenario("ddp"):
        assert result["observed"] == result["plain"]
        begun = [event for event in result["events"] if event[0] == "begin"]
        ends = [event for event in result["events"] if event[0] == "end"]
        assert len(begun) == len(ends) >= 3
        # The hook goes on in a callback of the future: nobody waits for the work itself.
        assert {event[3] for event in ends} == {False}


class TestInstallation:
    """Needs no process group."""

    def attributes(self):
        c10d = dist.distributed_c10d
        known = (*(each.api for each in COLLECTIVES), "_coalescing_manager")
        names = [name for name in known if hasattr(c10d, name)]
        found = {}
        for name in names:
            function = getattr(c10d, name)
            inner = inspect.unwrap(function)
            found[name] = (function, getattr(dist, name), inner, inner.__code__)
            found[name + " dict"] = dict(inner.__dict__)
        for name in ("wait", "synchronize", "is_completed", "get_future", "block_current_stream"):
            found["Work." + name] = c10d.Work.__dict__.get(name)
        return found

    def test_everything_is_restored_by_identity(self):
        before = self.attributes()
        undo = hook_collectives(Recorder())
        while_on = self.attributes()
        undo()
        assert self.same(self.attributes(), before)
        assert not self.same(while_on, before)

    def same(self, left, right):
        assert left.keys() == right.keys()
        return all(
            value == right[name]
            if isinstance(value, dict)
            else value is right[name]
            or (isinstance(value, tuple) and all(map(lambda a, b: a is b, value, right[name])))
            for name, value in left.items()
        )

    def test_two_sessions_in_a_row_leave_no_trace(self):
        before = self.attributes()
        for _ in range(2):
            undo = hook_collectives(Recorder())
            undo()
            undo()
        assert self.same(self.attributes(), before)

    def test_functions_keep_identity_signature_and_pickle(self):
        held = dist.all_reduce
        signatures = {name: inspect.signature(getattr(dist, name)) for name in ("isend", "gather")}
        undo = hook_collectives(Recorder())
        try:
            assert dist.all_reduce is held is dist.distributed_c10d.all_reduce
            assert {n: inspect.signature(getattr(dist, n)) for n in signatures} == signatures
            assert pickle.loads(pickle.dumps(dist.all_reduce)) is held
            assert dist.all_reduce.__name__ == "all_reduce"
        finally:
            undo()

    def test_every_documented_collective_is_known(self):
        listed = (
            "send recv broadcast all_reduce reduce all_gather gather isend irecv scatter "
            "reduce_scatter _reduce_scatter_base _all_gather_base all_to_all_single all_to_all "
            "all_gather_into_tensor reduce_scatter_tensor batch_isend_irecv"
        )
        assert set(listed.split()) <= {each.api for each in COLLECTIVES}

    @pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda each: each.api)
    def test_pure_buffers_are_where_the_signature_says(self, collective):
        function = getattr(dist, collective.api, None)
        if function is None:
            pytest.skip("not in this torch")
        parameters = list(inspect.signature(function).parameters)
        communication = collective.communication
        for argument in (communication.fills, communication.sends):
            if argument is not None:
                assert parameters[argument.position] == argument.name


class TestGroups:
    def test_the_id_is_the_checksum_of_the_list_of_ranks(self, tmp_path):
        store = (tmp_path / "store").as_uri()
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            description = describe_group(dist.group.WORLD)
            assert description == describe_group(None)
        finally:
            dist.destroy_process_group()
        assert description.ranks == (0,)
        assert description.group_id == f"{zlib.crc32(b'[0]'):08x}"

    def test_no_group_and_a_group_of_others_have_no_ranks(self):
        assert describe_group(None).ranks == ()
        assert describe_group(dist.GroupMember.NON_GROUP_MEMBER).ranks == ()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
