# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks of one dump, compared with each other where they should agree."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

import msprobe
from builders.networks import write_dump
from builders.warm_python import run_warm
from msprobe.compare.model import Mode
from msprobe.compare.options import CompareOptions
from msprobe.compare.replicas import compare_replicas
from msprobe.errors import UsageError


def dump_of(path, ranks, task="statistics"):
    """Write ranks 0, 1, … with these choices."""
    for rank, choices in enumerate(ranks):
        write_dump(path, task, ranks=[f"rank{rank}"], **choices)
    return path


def findings(path, **choices):
    return compare_replicas(path, CompareOptions(**choices)).summary["replicas"]


@pytest.fixture(params=["statistics", "tensor", "md5"])
def task(request):
    return request.param


def test_replicas_on_other_data_agree(tmp_path, task):
    result = compare_replicas(
        dump_of(tmp_path, [{"data": 1}, {"data": 2}, {"data": 3}], task), CompareOptions()
    )
    assert result.is_equal
    assert result.summary["replicas"] == []
    assert result.summary["notes"] == ["step 0: ranks 0, 1, 2 were taken for replicas"]
    # Only what must agree is looked at: three weights and a reduced gradient for each of two.
    assert result.frame["kind"].value_counts().sort("kind").rows() == [
        ("parameter", 6),
        ("parameter_grad", 2),
    ]


def test_a_parameter_that_drifted_on_one_rank(tmp_path, task):
    ranks = [{"data": 1}, {"data": 2}, {"data": 3, "drift": 1e-3}]
    found = findings(dump_of(tmp_path, ranks, task))
    assert [(each["row"], each["kind"], each["module"]) for each in found] == [
        ("Module.fc2.Linear.forward.0.parameters.weight", "parameter", "fc2")
    ]
    assert (found[0]["differing"], found[0]["ranks"], found[0]["step"]) == ([2], [0, 1, 2], 0)
    assert "rank 2 against 0, 1" in found[0]["reason"]
    assert (found[0]["error"] is None) == (task == "md5")


def test_the_first_rank_may_be_the_odd_one_out(tmp_path):
    ranks = [{"data": 1, "drift": 1e-3}, {"data": 2}, {"data": 3}]
    found = findings(dump_of(tmp_path, ranks))
    assert [each["differing"] for each in found] == [[0]]


def test_a_drift_below_the_tolerance_is_still_one(tmp_path):
    result = compare_replicas(
        dump_of(tmp_path, [{"data": 1}, {"data": 2, "drift": 1e-6}], "tensor"), CompareOptions()
    )
    assert not result.is_equal
    assert [each["kind"] for each in result.summary["replicas"]] == ["parameter"]


def test_a_reduced_gradient_that_differs(tmp_path, task):
    found = findings(dump_of(tmp_path, [{"data": 1}, {"data": 2, "reduced": 0.01}], task))
    assert [each["name"] for each in found] == ["Module.fc0.Linear.parameters_grad_reduced"]
    assert found[0]["kind"] == "parameter_grad"


def test_equal_inputs_with_different_results(tmp_path, task):
    found = findings(dump_of(tmp_path, [{"data": 1}, {"data": 1, "scale": 1.5}], task))
    names = [each["name"] for each in found]
    assert names[0] == "Functional.linear.1.forward"
    # What follows takes in other values on both ranks, so that it proves nothing.
    assert "Functional.linear.2.forward" not in names
    assert "inputs are equal on both ranks" in found[0]["reason"]


def test_random_calls_prove_nothing(tmp_path):
    path = dump_of(tmp_path, [{"data": 1}, {"data": 1, "scale": 1.5}])
    for rank in (0, 1):
        file = path / f"step0/rank{rank}/dump.json"
        tree = json.loads(file.read_text())
        tree["data"]["Functional.linear.1.forward"]["rng"] = {"cpu": None}
        tree["data"]["Functional.dropout.0.forward"] = tree["data"].pop(
            "Module.fc1.Linear.forward.0"
        )
        file.write_text(json.dumps(tree, indent=1))
    assert not [each for each in findings(path) if "1" in each["name"] or "dropout" in each["name"]]


def test_ranks_with_other_parameters_are_no_replicas(tmp_path):
    path = dump_of(tmp_path, [{"weights": 0}, {"weights": 1}])
    with pytest.raises(UsageError, match="same parameters"):
        findings(path)


def test_groups_of_replicas(tmp_path):
    """Two pairs, as pipeline or tensor parallelism makes them."""
    ranks = [
        {"weights": 0, "data": 1},
        {"weights": 1, "data": 1},
        {"weights": 0, "data": 2},
        {"weights": 1, "data": 2, "drift": 1e-3},
    ]
    found = findings(dump_of(tmp_path, ranks))
    assert [(each["ranks"], each["differing"]) for each in found] == [([1, 3], [3])]


def test_constant_parameters_tell_nothing(tmp_path):
    """Norms that are all ones agree on ranks that hold different parts of the weights."""
    path = dump_of(tmp_path, [{"weights": 0}, {"weights": 1}])
    one = {"Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 8.0}
    for rank in (0, 1):
        file = path / f"step0/rank{rank}/dump.json"
        tree = json.loads(file.read_text())
        parameters = tree["data"]["Module.fc0.Linear.forward.0"]["parameters"]
        for number in range(9):
            parameters[f"norm{number}"] = parameters["weight"] | one
        file.write_text(json.dumps(tree))
    with pytest.raises(UsageError, match="same parameters"):
        findings(path)


def test_without_modules_parameters_are_what_no_call_gave_out(tmp_path):
    path = without_modules(dump_of(tmp_path, [{"data": 1}, {"data": 1, "scale": 1.5}]))
    assert [each["row"] for each in findings(path)] == ["Functional.linear.1.forward.output.0"]
    path = without_modules(
        dump_of(tmp_path / "drift", [{"data": 1}, {"data": 2, "drift": 1e-3}], "tensor")
    )
    found = findings(path)
    assert [each["row"] for each in found] == ["Functional.linear.2.forward.input.1"]
    assert found[0]["kind"] == "parameter"


def without_modules(path):
    """Make dumps of level L1, which list no parameters."""
    for file in path.glob("step0/*/dump.json"):
        tree = json.loads(file.read_text())
        calls = {name: record for name, record in tree["data"].items() if name[0] == "F"}
        for record in calls.values():
            record["input_args"][1]["requires_grad"] = True
        file.write_text(json.dumps({**tree, "level": "L1", "data": calls}))
    return path


def test_results_of_calls_without_a_record_are_no_parameters(tmp_path):
    """What a call of unknown origin made requires gradients, too, but is far off on other data."""
    path = without_modules(dump_of(tmp_path, [{"data": 1}, {"data": 2}]))
    for file in path.glob("step0/*/dump.json"):
        tree = json.loads(file.read_text())
        tree["data"]["Functional.linear.2.forward"]["input_args"][0]["requires_grad"] = True
        del tree["data"]["Functional.linear.1.forward"]
        file.write_text(json.dumps(tree))
    assert findings(path) == []


def test_a_comparison_of_several_ranks_looks_at_replicas_by_itself(tmp_path):
    new = dump_of(tmp_path / "new", [{"data": 1}, {"data": 2, "drift": 1e-3}], "tensor")
    old = dump_of(tmp_path / "old", [{"data": 1}, {"data": 2}], "tensor")
    summary = msprobe.compare_dumps(new, old).summary
    assert [each["row"] for each in summary["replicas"]] == [
        "Module.fc2.Linear.forward.0.parameters.weight"
    ]
    assert msprobe.compare_dumps(old, old).summary["replicas"] == []


ALONE = [{"data": 1}, {"data": 2, "apart": 1e-4}]
"""Ranks that train each on its own."""


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_ranks_that_train_each_on_their_own_are_one_finding(tmp_path, task):
    result = compare_replicas(dump_of(tmp_path, ALONE, task), CompareOptions())
    [found] = result.summary["replicas"]
    assert found["row"] == "Module.fc0.Linear.forward.0.parameters.weight"
    assert "3 of 3 parameters differ" in found["reason"]
    assert result.summary["introduced_total"] == 1
    assert result.summary["counts"]["differs"] == 4


def test_ranks_that_part_with_their_gradients_are_one_finding_in_all_steps(tmp_path):
    for step, drift in enumerate((0.0, 1e-3, 1e-3)):
        for rank in (0, 1):
            choices = {"drift": drift, "reduced": 0.01} if rank else {}
            write_dump(tmp_path, steps=[step], ranks=[f"rank{rank}"], gradients=3, **choices)
    result = compare_replicas(tmp_path, CompareOptions())
    [found] = result.summary["replicas"]
    assert (found["step"], found["row"]) == (0, "Module.fc0.Linear.parameters_grad_reduced.weight")
    assert "3 of 3 reduced gradients differ" in found["reason"]
    assert result.summary["introduced_total"] == 1


def test_a_parameter_that_drifted_before_the_gradients_part_is_a_finding_too(tmp_path):
    apart = {"drift": 1e-3, "reduced": 0.01, "gradients": 3}
    names = [each["name"] for each in findings(dump_of(tmp_path, [{"gradients": 3}, apart]))]
    assert names == ["Module.fc2.Linear.forward.0", "Module.fc0.Linear.parameters_grad_reduced"]


def test_ranks_that_part_in_the_reference_too_are_no_finding(tmp_path):
    new, old = dump_of(tmp_path / "new", ALONE), dump_of(tmp_path / "old", ALONE)
    together = dump_of(tmp_path / "together", [{"data": 1}, {"data": 2}])
    others = dump_of(tmp_path / "others", [{"weights": 0}, {"weights": 1, "data": 2}])
    assert msprobe.compare_dumps(new, old).summary["replicas"] == []
    assert msprobe.compare_dumps(new, others).summary["replicas"] == []
    assert len(msprobe.compare_dumps(new, together).summary["replicas"]) == 1
    assert msprobe.compare_dumps(together, old).summary["replicas"] == []


def test_of_ranks_that_share_nothing_nothing_is_said(tmp_path):
    apart = dump_of(tmp_path, [{"weights": 0}, {"weights": 1, "data": 2}])
    assert "replicas" not in msprobe.compare_dumps(apart, apart).summary


def test_only_what_agrees_in_the_reference_has_to_agree(tmp_path):
    drift = {"data": 2, "drift": 1e-3}
    new = dump_of(tmp_path / "new", [{"data": 1}, {**drift, "reduced": 0.01}])
    old = dump_of(tmp_path / "old", [{"data": 1}, drift])
    found = msprobe.compare_dumps(new, old).summary["replicas"]
    assert [each["name"] for each in found] == ["Module.fc0.Linear.parameters_grad_reduced"]


def test_what_differs_in_several_steps_is_one_finding(tmp_path):
    for step in (0, 1, 2):
        for rank, drift in ((0, 0.0), (1, 1e-3 if step else 0.0)):
            write_dump(tmp_path, steps=[step], ranks=[f"rank{rank}"], drift=drift)
    assert [each["step"] for each in findings(tmp_path)] == [1]


def test_only_ranks_that_are_compared_are_looked_at(tmp_path):
    new = dump_of(tmp_path / "new", [{"data": 1}, {"data": 2}, {"data": 3, "drift": 1e-3}])
    old = dump_of(tmp_path / "old", [{"data": 1}, {"data": 2}, {"data": 3}])
    assert msprobe.compare_dumps(new, old).summary["replicas"]
    assert msprobe.compare_dumps(new, old, ranks=[0, 1]).summary["replicas"] == []
    (new / "step0/rank2/dump.json").write_text("{")
    assert msprobe.compare_dumps(new, old, ranks=[0, 1]).summary["replicas"] == []


def test_one_rank_has_no_replicas(tmp_path):
    dump = write_dump(tmp_path / "dump")
    assert "replicas" not in msprobe.compare_dumps(dump, dump).summary
    with pytest.raises(UsageError):
        findings(dump)


def test_choice_of_ranks_and_steps(tmp_path):
    for step, drift in ((0, 0.0), (1, 1e-3)):
        for rank in (0, 1, 2):
            choice = drift if rank == 2 else 0.0
            write_dump(tmp_path, steps=[step], ranks=[f"rank{rank}"], drift=choice)
    assert findings(tmp_path, steps=(0,)) == []
    assert [each["step"] for each in findings(tmp_path)] == [1]
    assert findings(tmp_path, ranks=(0, 1)) == []


def test_elements_are_measured_where_they_were_kept(tmp_path):
    ranks = [{"data": 1}, {"data": 2, "drift": 1e-3}]
    result = compare_replicas(dump_of(tmp_path, ranks, "tensor"), CompareOptions())
    assert result.summary["mode"] == Mode.TENSOR
    assert result.summary["bytes_read"] > 0
    assert result.frame["count"].null_count() == 0


RANKS = """
    import sys
    import torch
    from msprobe.pytorch import PrecisionDebugger

    rank, drift = int(sys.argv[1]), float(sys.argv[2])
    debugger = PrecisionDebugger(dump_path="dump", level="mix")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    gradients = torch.Generator().manual_seed(0)
    for step in range(2):
        debugger.start(net, rank_id=rank)
        loss = net(torch.full((3, 4), 1.0 + rank) * torch.arange(3.0)[:, None]).sum()
        loss.backward()
        for each in net.parameters():  # as if they had been reduced
            each.grad.copy_(torch.randn(each.shape, generator=gradients))
        optimizer.step()
        debugger.stop()
        debugger.step()
        with torch.no_grad():
            net[2].bias.add_(drift)
"""


@pytest.mark.torch
@pytest.mark.parametrize("drift", [0.0, 0.01])
def test_the_data_of_each_rank_explains_nothing(tmp_path, drift):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(dedent(RANKS))
    for rank, own in enumerate((0.0, drift)):
        ended = run_warm("train.py", str(rank), str(own), cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    summary = compare_replicas(tmp_path / "dump", CompareOptions()).summary
    verdict = summary["verdict"]
    if drift:
        assert verdict["class"] == "update"
        assert "2.bias differs when step 1 starts" in verdict["sentence"]
        assert len(summary["replicas"]) == 1
    else:
        assert (verdict["class"], summary["replicas"]) == ("equal", [])
        assert not verdict["evidence"]
