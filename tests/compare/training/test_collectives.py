# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks as a cause, by facts alone: missing, in groups, of another kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from builders.facts import Arrays, arrays, columns, facts, optimizer_step
from msprobe.compare.model import Status
from msprobe.compare.training.differences import Effect, FactDifference, Moment
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.history import TrainingHistory
from msprobe.compare.verdicts.find_verdict import find_verdict
from msprobe.compare.verdicts.observations import StepObservations
from msprobe.compare.verdicts.verdict import Findings, Verdict

Calls = list[dict[str, Any]]


def history(target: list[dict[str, Any]], reference: list[dict[str, Any]]) -> TrainingHistory:
    """Compare one step of several ranks."""
    found = TrainingHistory()
    pairs = [
        FactsPair(step=0, rank=rank, target=facts(**own), reference=facts(**other))
        for rank, (own, other) in enumerate(zip(target, reference, strict=True))
    ]
    found.add_data(pairs)
    found.add(pairs, dict.fromkeys(range(len(pairs)), True))
    return found


def differences(target: list[dict[str, Any]], reference: list[dict[str, Any]]) -> list[str]:
    return [f"{each.verdict}: {each.words}" for each in history(target, reference).differences()]


def with_gradients(*ranks: Arrays) -> list[dict[str, Any]]:
    """Return a step of SGD on each rank."""
    parameters = arrays()
    return [
        {
            "events": [
                optimizer_step(
                    parameters,
                    gradient,
                    {name: parameters[name] - 0.1 * gradient[name] for name in parameters},
                    name="torch.optim.sgd.SGD",
                    options={"lr": 0.1},
                )
            ]
        }
        for gradient in ranks
    ]


def mean(*gradients: Arrays) -> Arrays:
    return {name: np.mean([each[name] for each in gradients], axis=0) for name in gradients[0]}


def total(*gradients: Arrays) -> Arrays:
    return {name: np.sum([each[name] for each in gradients], axis=0) for name in gradients[0]}


OWN = [arrays(seed) for seed in range(1, 5)]


@pytest.mark.parametrize(("reduce", "verb"), [(mean, "averaged"), (total, "summed")])
def test_a_missing_reduction_is_told_by_the_ranks_own_gradients(reduce: Any, verb: str) -> None:
    reduced = reduce(*OWN[:2])

    found = differences(with_gradients(*OWN[:2]), with_gradients(reduced, reduced))

    assert found[0].startswith(f"gradient: the target's gradients are not {verb} over its 2 ranks")
    assert "each rank has its own" in found[0]


def with_shards(*ranks: Arrays) -> list[dict[str, Any]]:
    """Return the same where each rank has a part updated by an optimizer inside of its own."""
    found = with_gradients(*ranks)
    shards = ["a.weight"], ["a.bias", "b.weight"]
    for own, gradient, names in zip(found, ranks, shards, strict=True):
        (outer,) = own["events"]
        before = {name: arrays()[name] for name in names}
        part = {name: gradient[name] for name in names}
        after = {name: before[name] - 0.1 * part[name] for name in names}
        own["events"] = [optimizer_step(before, part, after, number=1), outer]
    return found


def test_a_missing_reduction_is_told_before_what_an_optimizer_hands_on() -> None:
    reduced = mean(*OWN[:2])

    found = differences(with_shards(*OWN[:2]), with_shards(reduced, reduced))

    assert found[0].startswith("gradient: the target's gradients are not averaged over its 2 ranks")
    assert not any("a.weight differs" in each or "all 2 gradients" in each for each in found)


def test_a_missing_reduction_of_the_reference_is_told_too() -> None:
    reduced = mean(*OWN[:2])

    found = differences(with_gradients(reduced, reduced), with_gradients(*OWN[:2]))

    assert found[0].startswith("gradient: the reference's gradients are not averaged")


def clipped(gradients: Arrays, names: Sequence[str]) -> tuple[Arrays, dict[str, Any]]:
    """Return gradients of which some are clipped, and the call that does it."""
    norm = float(np.linalg.norm([gradients[name] for name in names]))
    by = {name: 1 / (norm + 1e-6) if name in names else 1.0 for name in gradients}
    clip = {"kind": "clip", "function": "clip_grad_norm_", "max": 1.0, "norm_type": 2.0}
    clip |= {"total_norm": norm, "parameters": len(names)}
    return {name: each * by[name] for name, each in gradients.items()}, clip


@pytest.mark.parametrize("names", [["a.weight", "a.bias"], [*OWN[0]]], ids=["some", "all"])
def test_one_gradient_that_is_not_reduced_is_named_where_all_are_clipped(names: list[str]) -> None:
    """It changes the total norm, by which the others are divided."""
    shared = {**mean(*OWN[:2])}
    sides: list[list[dict[str, Any]]] = [[], []]
    for own in OWN[:2]:
        local = {"b.weight": own["b.weight"]}  # on each rank another one, of experts say
        for side, lone in zip(sides, (own["a.bias"], shared["a.bias"]), strict=True):
            gradients, clip = clipped({**shared, **local, "a.bias": lone}, names)
            (rank,) = with_gradients(gradients)
            side.append({"events": [clip, *rank["events"]]})

    found = differences(*sides)

    assert found[0].startswith(
        "gradient: the target's gradients of a.bias are not averaged over its 2 ranks: each rank"
    )
    assert not any("times the reference's" in each or "a.weight" in each for each in found)


def test_a_reduction_within_groups_names_the_groups() -> None:
    halves = mean(*OWN[:2]), mean(*OWN[2:])
    whole = mean(*OWN)

    found = differences(
        with_gradients(halves[0], halves[0], halves[1], halves[1]), with_gradients(*[whole] * 4)
    )

    assert found[0].startswith("communication: the target's gradients are not averaged over its 4")
    assert "only over groups of ranks (0, 1; 2, 3)" in found[0]


def test_gradients_of_other_data_are_no_missing_reduction() -> None:
    whole = mean(*OWN)

    found = differences(with_gradients(*OWN[:2]), with_gradients(whole, whole))

    assert not any("ranks" in each for each in found)


def call(api: str = "all_reduce", **more: Any) -> dict[str, Any]:
    known = {
        "ranks": [0, 1], "op": "sum", "elements": 6, "dtype": "torch.float32", "passes": 1,
        "source": "/home/me/train.py:33",
    }  # fmt: skip
    return {"api": api, **known, **more}


@pytest.mark.parametrize(
    ("target", "reference", "words"),
    [
        (
            [call(ranks=[0]), call(ranks=[0])],
            [call(), call()],
            "the group of all_reduce: rank 0 instead of ranks 0, 1 (train.py:33), step 0, and 1 "
            "more such call",
        ),
        (
            [call(op="max")],
            [call()],
            "op of all_reduce is max instead of sum (train.py:33), step 0",
        ),
        (
            [call("broadcast", op=None, peer=1)],
            [call("broadcast", op=None, peer=0)],
            "peer of broadcast is 1 instead of 0 (train.py:33), step 0",
        ),
        (
            [],
            [call()],
            "only the reference calls all_reduce of 6 elements of torch.float32 (train.py:33), "
            "step 0",
        ),
        (
            [call(), call(elements=1)],
            [call(), call(elements=8), call(elements=1)],
            "only the reference calls all_reduce of 8 elements of torch.float32 (train.py:33), "
            "step 0",
        ),
        (
            [call("all_gather", passes=0), call()],
            [call()],
            "only the target calls all_gather of 6 elements of torch.float32 (train.py:33), step 0",
        ),
        (
            [call(source="train.py:35")],
            [call(source="train.py:31"), call(source="train.py:35")],
            "only the reference calls all_reduce of 6 elements of torch.float32 (train.py:31), "
            "step 0",
        ),
    ],
)
def test_calls_between_ranks_that_differ(target: Calls, reference: Calls, words: str) -> None:
    found = history([{"communication": target}], [{"communication": reference}]).differences()

    assert [each.words for each in found] == [words]
    assert found[0].effect is Effect.POSSIBLE
    first = (target or reference)[0]
    moment = Moment.COMMUNICATION if first["passes"] else Moment.FORWARD
    assert found[0].moment is moment


def test_what_all_ranks_exchange_in_a_backward_pass_makes_its_gradients() -> None:
    sent = [call("all_to_all_single", op=None, passes=passes) for passes in (0, 1)]

    (found,) = history([{"communication": sent[:1]}], [{"communication": sent}]).differences()

    assert found.moment is Moment.BACKWARD


def verdict(found: list[FactDifference], *, changed: bool) -> Verdict:
    step = StepObservations(step=0, rank=0, is_exact=not changed, is_shared_exact=True)
    return find_verdict(
        Findings(
            counts=dict.fromkeys(Status, 0),
            facts=found,
            steps=[step],
            changed_steps=frozenset([0] if changed else []),
        )
    )


def test_another_group_is_the_cause_of_gradients_that_differ() -> None:
    alone = {"communication": [call(ranks=[0])]}
    together = {"communication": [call()]}
    gradients = [*with_gradients(OWN[0]), *with_gradients(mean(*OWN[:2]))]

    found = history([alone | gradients[0]], [together | gradients[1]]).differences()

    assert verdict(found, changed=True).sentence.startswith("communication: the group of all_red")


def test_calls_in_other_buckets_are_no_cause_where_gradients_agree() -> None:
    step = with_gradients(OWN[0])[0]
    one = {"communication": [call(elements=18)]} | step
    many = {"communication": [call()] * 3} | step

    found = history([one], [many]).differences()

    assert len(found) == 1
    assert verdict(found, changed=False).verdict == "equal"


def test_a_loss_names_the_operations_that_made_it() -> None:
    def loss(value: float, *made_by: str) -> dict[str, Any]:
        entry = {"micro": 0, "value": value, "shape": [], "dtype": "torch.float32"}
        return {"loss": [entry | {"made_by": made_by}]}

    one, other = loss(0.4, "smooth_l1_loss", "addmm"), loss(1.1, "mse_loss", "addmm")

    (found,) = history([one], [other]).differences()

    assert found.verdict == "call"
    assert "by smooth_l1_loss, addmm in the target, by mse_loss, addmm in the ref" in found.words

    same = ("mul", "div", "add")
    one, other = loss(0.4, *same, "neg", "mean"), loss(1.1, *same, "mean(dim=1)")
    (found,) = history([one], [other]).differences()
    assert "before its last 3 calls it is made by neg, mean in the target" in found.words
    assert found.verdict == "call"

    one, other = loss(0.4, *same, "sum(dim=0)"), loss(1.1, *same, "sum(dim=1)")
    (found,) = history([one], [other]).differences()
    assert found.verdict == "argument"


def buffers(values: Arrays, **settings: str) -> dict[str, Any]:
    names = [f"norm.{name}" for name in ("running_mean", "running_var")]
    found = dict(zip(names, values.values(), strict=False))
    state = {
        "name": names,
        "kind": ["buffer"] * 2,
        "shape": [[6]] * 2,
        "dtype": ["torch.float32"] * 2,
        "requires_grad": [False] * 2,
        **columns(found),
        "same_as": [None] * 2,
    }
    return {"parameters": state, "settings": {"module.norm": settings["norm"]}}


def test_buffers_that_part_name_the_options_of_their_module() -> None:
    slow, fast = "BatchNorm1d(6, momentum=0.1)", "BatchNorm1d(6, momentum=0.2)"
    found = TrainingHistory()
    for step, (own, other) in enumerate(
        [(arrays(), arrays()), (arrays(1), arrays(2))],
    ):
        target, reference = facts(**buffers(own, norm=fast)), facts(**buffers(other, norm=slow))
        pair = FactsPair(step=step, rank=0, target=target, reference=reference)
        found.add_data([pair])
        found.add([pair], {0: True})

    said = [f"{each.verdict}: {each.words}" for each in found.differences() if each.step == 1]

    assert len(said) == 1
    assert said[0].startswith(
        "argument: all 2 buffers (norm.running_mean, norm.running_var) differ when step 1"
    )
    assert said[0].endswith("of module norm momentum is 0.2 in the target, 0.1 in the reference")
