# SPDX-License-Identifier: Apache-2.0
"""Differences between the facts of two runs: how each is told from the others."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from builders.facts import (
    Arrays,
    adamw,
    arrays,
    batch,
    columns,
    facts,
    optimizer_step,
    start_state,
)
from msprobe.compare.training.differences import Effect, FactDifference, Moment
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.history import TrainingHistory

Parts = dict[str, Any]


def differences(*steps: tuple[Parts, Parts], ranks: int = 1) -> list[FactDifference]:
    """Compare the facts of some steps; with several ranks, each tuple is one of a rank."""
    history = TrainingHistory()
    for first in range(0, len(steps), ranks):
        pairs = [
            FactsPair(
                step=first // ranks,
                rank=rank,
                target=facts(**steps[first + rank][0]),
                reference=facts(**steps[first + rank][1]),
            )
            for rank in range(ranks)
        ]
        history.add_data(pairs)
        history.add(pairs, dict.fromkeys(range(ranks), True))
    return history.differences()


def said(found: Sequence[FactDifference], *, effective: bool = True) -> list[str]:
    return [
        f"{each.verdict}: {each.words}"
        for each in found
        if not effective or each.effect is not Effect.NONE
    ]


def step(**options: Any) -> Parts:
    """A step of AdamW on the small model."""
    gradient = arrays(1)
    return {
        "parameters": start_state(arrays()),
        "events": [optimizer_step(arrays(), gradient, adamw(arrays(), gradient), options=options)],
    }


@pytest.mark.parametrize(
    ("undrawn", "found"),
    [(("python", "numpy"), []), (("python",), ["numpy"]), ((), ["python", "numpy"])],
)
def test_the_states_of_generators_that_nobody_draws_from_mean_nothing(undrawn, found) -> None:
    target = {"random": {"python": "1", "numpy": "1", "cpu": "1"}, "undrawn": ["python", "numpy"]}
    reference = {"random": {"python": "2", "numpy": "2", "cpu": "1"}, "undrawn": undrawn}

    words = " ".join(said(differences((target, reference))))
    assert [name for name in ("python", "numpy", "cpu") if name in words] == found


@pytest.mark.parametrize(("losses", "moment"), [(0, Moment.FORWARD), (1, Moment.UPDATE)])
def test_a_step_that_was_never_stopped_is_cut_if_it_trains_less(losses, moment) -> None:
    loss = {"micro": 0, "value": 2.0, "shape": [], "dtype": "torch.float32"}
    cut = {"ended": {"how": "unstopped"}, "loss": [loss] * losses}
    whole = {"ended": {"how": "whole"}, "loss": [loss]}

    found = [each for each in differences((cut, whole)) if "never stopped" in each.words]
    assert [(each.effect, each.moment) for each in found] == [(Effect.CERTAIN, moment)]


@pytest.mark.parametrize(("how", "count"), [("unstopped", 0), ("whole", 1)])
def test_batches_that_a_step_did_not_come_to_are_no_other_data(how, count) -> None:
    loss = {"micro": 0, "value": 2.0, "shape": [], "dtype": "torch.float32"}
    cut = {"ended": {"how": how}, "loss": [loss], "data": [batch(1)]}
    whole = {
        "ended": {"how": "whole"},
        "loss": [loss, loss | {"micro": 1}],
        "data": [batch(1), batch(2, micro=1)],
    }

    assert sum("micro batch" in words for words in said(differences((cut, whole)))) == count


def test_equal_facts_have_no_differences() -> None:
    part = step() | {
        "settings": {"torch.version": "2.13"},
        "random": {"cpu": "1"},
        "modes": {"training": {"": True}},
        "data": [batch(1)],
        "loss": [{"micro": 0, "value": 2.0, "shape": [], "dtype": "torch.float32"}],
    }

    assert differences((part, part), (part, part)) == []


@pytest.mark.parametrize(
    ("target", "reference", "words"),
    [
        (
            {"random": {"cpu": "1"}},
            {"random": {"cpu": "2"}},
            "random: the state of the generator cpu",
        ),
        (
            {"modes": {"training": {"": True, "a.drop": False}}},
            {"modes": {"training": {"": True}}},
            r"mode: a\.drop is in eval mode in the target, in training mode in the reference",
        ),
        (
            {"modes": {"training": {"": False}}},
            {"modes": {"training": {"": True, "a": False}}},
            "mode: the model is in eval mode in the target",
        ),
        (
            {"modes": {"autocast": {"cpu": "torch.bfloat16"}}},
            {"modes": {}},
            "precision: autocast is torch.bfloat16 on cpu in the target, off in the reference",
        ),
        (
            {"modes": {"grad_enabled": False}},
            {"modes": {}},
            "mode: gradients are disabled in the target, enabled in the reference",
        ),
        (
            {"settings": {"torch.cudnn_allow_tf32": "True"}},
            {"settings": {"torch.cudnn_allow_tf32": "False"}},
            "settings: torch.cudnn_allow_tf32 is True in the target, False in the reference",
        ),
        (
            {"ended": {"how": "interrupted", "exception": "ValueError: no", "record": None}},
            {"ended": {"how": "whole"}},
            "incomplete: step 0 of the target was interrupted by ValueError: no",
        ),
        (
            {"loss": [{"micro": 0, "value": 1.0, "shape": [], "dtype": "torch.float32"}]},
            {"loss": [{"micro": 0, "value": 2.0, "shape": [], "dtype": "torch.float32"}]},
            r"gradient: the loss is 1 in the target, 2 in the reference .*1/2",
        ),
        *(
            (
                {"loss": [{"micro": 0, "value": word, "shape": [], "dtype": "torch.float32"}]},
                {"loss": [{"micro": 0, "value": 2.0, "shape": [], "dtype": "torch.float32"}]},
                rf"unexplained: the loss is {shown} in the target, 2 in the reference",
            )
            for word, shown in (("NaN", "nan"), ("Infinity", "inf"))
        ),
    ],
)
def test_state_of_a_step(target: Parts, reference: Parts, words: str) -> None:
    (found,) = said(differences((target, reference)))

    assert re.match(words, found)


def test_environment_and_packages_have_no_effect() -> None:
    target = {"settings": {"env.PWD": "/a", "package.rich": "1"}}
    reference = {"settings": {"env.PWD": "/b", "package.rich": "2"}}

    found = differences((target, reference), (target, reference))

    assert [each.effect for each in found] == [Effect.NONE]


def test_a_parameter_that_differs_at_the_start() -> None:
    changed = arrays()
    changed["a.bias"] = changed["a.bias"] * 1.01
    target = {"parameters": start_state(changed)}

    (found,) = said(differences((target, {"parameters": start_state(arrays())})))

    assert re.match(r"parameters: a\.bias differs when step 0 starts by the factor 1\.01$", found)


@pytest.mark.parametrize(
    ("number", "count", "is_later"), [(4, 4, True), (4, 0, False), (4, None, True), (0, 4, False)]
)
def test_parameters_that_an_earlier_step_may_have_moved(
    number: int, count: int | None, is_later: bool
) -> None:
    """Adam counts its steps; plain SGD does not."""
    sides = []
    for factor in (1.01, 1.0):
        before = {name: each * factor for name, each in arrays().items()}
        made = optimizer_step(before, arrays(1), adamw(before, arrays(1)), steps=count)
        sides.append(facts(parameters=start_state(before), events=[made]))
    pair = FactsPair(step=number, rank=0, target=sides[0], reference=sides[1])
    history = TrainingHistory()
    history.add([pair], {0: False})

    found = history.differences()[0]

    assert f"differ when step {number} starts" in found.words
    assert ("an earlier step" in found.words) == is_later
    assert any(each.startswith("record the steps before step 4") for each in found.next) == is_later


def with_first(word: float, values: Arrays) -> Arrays:
    """Return arrays whose first element is NaN or infinite."""
    return {name: np.where(np.arange(each.size) == 0, word, each) for name, each in values.items()}


@pytest.mark.parametrize(("word", "words"), [(math.nan, "NaN"), (-math.inf, "infinite")])
def test_values_that_are_not_finite_are_said_to_be_so(word: float, words: str) -> None:
    target = {"parameters": start_state(with_first(word, arrays()))}
    (start,) = said(differences((target, {"parameters": start_state(arrays())})))
    found = said(differences((got(arrays(1)), got(with_first(word, arrays(1))))))
    state = with_first(word, arrays(3))
    steps = (with_state(arrays(3), 0), with_state(arrays(3), 0))
    kept = said(differences(steps, (with_state(arrays(3), 1), with_state(state, 1))))

    assert re.search(rf"differ when step 0 starts, {words} in the target", start)
    assert any(re.search(rf"gets them \(step 0\), \S+ {words} in the ref", each) for each in found)
    assert any(re.search(rf"exp_avg .* step 1, {words} in the reference", each) for each in kept)


@pytest.mark.parametrize("norm", ["NaN", "Infinity"])
def test_a_total_norm_that_is_not_finite_has_no_factor(norm: str) -> None:
    def clipped(total: object) -> Parts:
        clip = {"kind": "clip", "function": "clip_grad_norm_", "max": 1.0, "norm_type": 2.0}
        return {"events": [clip | {"total_norm": total, "parameters": 2}]}

    for sides in ((clipped(norm), clipped(2.0)), (clipped(2.0), clipped(norm))):
        assert not any("factor" in each for each in said(differences(sides)))


def test_rounding_of_parameters_to_another_type_is_precision() -> None:
    rounded = {name: each.astype(np.float16).astype(float) for name, each in arrays().items()}
    target = {"parameters": start_state(rounded, dtype=["torch.float16"] * 3)}

    (found,) = said(differences((target, {"parameters": start_state(arrays())})))

    assert found.startswith("precision: all 3 parameters are torch.float16 in the target")


def test_tied_and_untied_parameters() -> None:
    tied = {"parameters": start_state(arrays(), same_as=[None, None, "a.weight"])}

    (found,) = said(differences((tied, {"parameters": start_state(arrays())})))

    assert found.startswith("parameters: b.weight is tied to a.weight in the target")


def test_a_parameter_that_differed_after_a_step_differs_at_the_next_one() -> None:
    other = {name: each * 1.1 for name, each in arrays(7).items()}
    first = step(), step(eps=1e-3)
    first[1]["events"][0]["parameters"]["after"]["checksum"] = ["x"] * 3
    second = {"parameters": start_state(other)}, {"parameters": start_state(arrays(7))}

    found = said(differences(first, second))

    assert all("step 1" not in each for each in found)


def test_a_parameter_that_was_changed_between_two_steps() -> None:
    other = {name: each * 1.1 for name, each in arrays(7).items()}
    second = {"parameters": start_state(other)}, {"parameters": start_state(arrays(7))}

    found = said(differences((step(), step()), second))

    assert re.match(
        r"parameters: all 3 parameters differ when step 1 starts .*though they agreed", found[0]
    )


@pytest.mark.parametrize("trained", [True, False], ids=["trained alike", "trained otherwise"])
def test_a_frozen_parameter_that_only_the_program_changes(trained: bool) -> None:
    """An average or a target network: no optimizer has it, and no call may show the change."""
    average = {**arrays(7), "average": arrays()["a.bias"]}
    other = {**average, "average": average["average"] * 1.1}
    parts = {"modes": {"requires_grad_false": ["average"]}}
    first = step(), step(eps=1e-3)
    if not trained:
        first[1]["events"][0]["parameters"]["after"]["checksum"] = ["x"] * 3
    for side in first:
        begun = {**arrays(), "average": average["average"]}
        side.update(parts | {"parameters": start_state(begun)})
    second = [parts | {"parameters": start_state(each)} for each in (other, average)]

    found = [
        words for words in said(differences(first, (second[0], second[1]))) if "step 1" in words
    ]

    words = "parameters: average differs when step 1 starts by the factor 1.1"
    assert found == ([f"{words}, though it agreed when the step before began"] if trained else [])


def shuffled(*orders: Sequence[int]) -> list[str]:
    """Feed batches of these seeds, one a step, on both sides."""
    steps = [tuple({"data": [batch(seed)]} for seed in both) for both in zip(*orders, strict=True)]
    return said(differences(*steps))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "reference", "words"),
    [
        (
            [1, 3, 2, 4],
            [1, 2, 3, 4],
            "data: the same 2 batches come in another order (since step 1)",
        ),
        (
            [2, 3, 4, 5],
            [1, 2, 3, 4],
            "data: the target is 1 batch ahead of the reference (since step 0)",
        ),
        ([1, 2, 9, 4], [1, 2, 3, 4], "data: the batch of step 2 differs: mean of input.0"),
        (
            [1, 2, 1, 4],
            [1, 2, 3, 4],
            "data: the batch of step 2 is the batch that the reference has in step 0",
        ),
    ],
)
def test_order_of_batches(target: Sequence[int], reference: Sequence[int], words: str) -> None:
    (found,) = shuffled(target, reference)

    assert found.startswith(words)


@pytest.mark.parametrize(
    ("shapes", "others", "words"),
    [
        ([[3, 2], [9]], [[4, 2], [11]], "input.0 holds 3 samples instead of 4; input.1 has the"),
        ([[9], [3, 2]], [[11], [4, 2]], "input.0 has the shape (9) instead of (11); input.1 holds"),
        ([[9], [3], [3]], [[11], [4], [4]], "input.0 has the shape (9) instead of (11); input.1 h"),
        ([[9], [4, 2]], [[11], [4, 2]], "input.0 has the shape (9) instead of (11)"),
        ([[9], [3]], [[11], [4]], "input.0 has the shape (9) instead of (11); input.1 has the"),
    ],
)
def test_samples_are_counted_in_what_is_as_long_as_the_batch(shapes, others, words) -> None:
    target, reference = (
        {
            "data": [
                batch(place, where=f"input.{place}", shape=shape, checksum=str(shape))
                for place, shape in enumerate(side)
            ]
        }
        for side in (shapes, others)
    )

    (found,) = said(differences((target, reference)))

    assert found.startswith(f"data: the batch of step 0 differs: {words}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [3, 2], "checksum": "x"}, "input.0 holds 3 samples instead of 4"),
        ({"checksum": "x", "projections": [1.0, 2.0]}, "the same values in another order"),
        (
            {"checksum": "x", "dtype": "torch.int64"},
            "input.0 is torch.int64 instead of torch.float32",
        ),
        (
            {
                "checksum": "x",
                "mean": math.nextafter(batch(1)["mean"], 1),
                "max": 7.0,
                "projections": [1.0, 2.0],
            },
            "max of input.0 is 7",
        ),
    ],
)
def test_one_batch_that_differs(change: Parts, words: str) -> None:
    (found,) = said(differences(({"data": [batch(1, **change)]}, {"data": [batch(1)]})))

    assert words in found


def test_a_missing_micro_batch() -> None:
    target, reference = {"data": [batch(1)]}, {"data": [batch(1), batch(2, 1)]}

    (found,) = said(differences((target, reference)))

    assert found == "data: step 0 has 1 micro batch in the target, 2 in the reference"


def test_micro_batches_that_each_call_two_models() -> None:
    sides = [
        {
            "data": [batch(seed, seed) for seed in range(2 * count)],
            "loss": [
                {"micro": 2 * i + 1, "value": 1.0, "shape": [], "dtype": "torch.float32"}
                for i in range(count)
            ],
        }
        for count in (1, 2)
    ]

    (found,) = said(differences((sides[0], sides[1])))

    assert found == "data: step 0 has 1 micro batch in the target, 2 in the reference"


def test_a_number_for_all_samples_is_no_sample() -> None:
    number = {"where": "kwargs.count", "shape": []}
    halves = [batch(1, micro, shape=[2, 2], norm=2.0) for micro in (0, 1)]
    whole = [batch(1, norm=math.sqrt(8)), batch(1, norm=2.0) | number]

    target = {"data": [*halves, *(each | number for each in halves)]}
    (found,) = differences((target, {"data": whole}))

    assert found.words.endswith("they hold the same samples")
    assert found.effect is Effect.NONE


@pytest.mark.parametrize(
    ("follows", "record"),
    [
        ("RuntimeError: [pair.cc:537] Connection closed by peer [127.0.0.1]:7084", None),
        ("RuntimeError: a buffer of the wrong size", "Distributed.all_reduce.2.forward"),
    ],
)
@pytest.mark.parametrize("how", ["killed", "interrupted"])
@pytest.mark.parametrize("is_caught", [False, True])
def test_the_rank_that_ended_first_is_named(
    follows: str, record: str | None, how: str, is_caught: bool
) -> None:
    whole = {"ended": {"how": "whole"}}
    later = {"ended": {"how": "interrupted", "exception": follows, "record": record}}
    if is_caught:
        later = {"ended": {"how": "unstopped"}}
        whole["loss"] = [{"micro": 0, "value": 2.0, "shape": [], "dtype": "torch.float32"}]
    first = {"ended": {"how": how, "exception": "ValueError: x", "record": None}}

    [found] = [
        each
        for each in differences((later, whole), (first, whole), ranks=2)
        if each.effect is not Effect.NONE
    ]
    assert found.rank == 1
    assert said(differences((later, whole), (whole, whole), ranks=2)) != []


@pytest.mark.parametrize(("trained", "count"), [(1, 1), (2, 0)])
def test_a_program_that_ends_within_a_step_leaves_it_incomplete(trained: int, count: int) -> None:
    losses = [{"micro": n, "value": 2.0, "shape": [], "dtype": "torch.float32"} for n in range(2)]
    data = [batch(1), batch(2, 1)]
    whole = {"ended": {"how": "whole"}, "loss": losses, "data": data}
    cut = {"ended": {"how": "whole", "stepped": False}}
    target = cut | {"loss": losses[:trained], "data": data[:trained]}

    found = said(differences((target, whole)))
    assert len(found) == count
    assert all("incomplete: step 0 of the target ended with the program" in each for each in found)


def test_modes_behind_the_end_of_a_step_are_not_known() -> None:
    flags = [{"micro": 1, "training": {"": False}}, {"micro": 2, "training": {"": True}}]
    modes = {"modes": {"training": {"": True}, "autocast": {}, "requires_grad_false": []}}
    cut = {"ended": {"how": "interrupted", "exception": "ValueError: x"}, "data": [batch(1)]}
    whole = {"ended": {"how": "whole"}, "data": [batch(1), batch(2, 1), batch(3, 2)]}

    [found] = said(differences((modes | cut, modes | whole | {"flags": flags})))
    assert found.startswith("incomplete: step 0 of the target was interrupted by ValueError")


def test_the_text_of_a_framework_is_cut() -> None:
    ended = {"how": "interrupted", "exception": f"RuntimeError: {'far too long ' * 20}"}

    [found] = said(differences(({"ended": ended}, {"ended": {"how": "whole"}})))
    assert "too long …; that of the other side is whole" in found
    assert len(found) < 240


def test_micro_batches_that_an_interrupted_step_did_not_reach() -> None:
    ended = {"how": "interrupted", "exception": "ValueError: x", "record": None}
    target = {"data": [batch(1)], "ended": ended}
    reference = {"data": [batch(1), batch(2, 1)], "ended": ended | {"how": "whole"}}

    (found,) = said(differences((target, reference)))

    assert found.startswith("incomplete: step 0 of the target was interrupted by ValueError: x")


def test_an_argument_that_only_one_side_gives() -> None:
    tokens, labels = batch(1), batch(2, where="kwargs.labels")

    (found,) = said(differences(({"data": [tokens]}, {"data": [labels, tokens]})))

    assert found == (
        "argument: in the batch of step 0 the model gets other arguments: only the reference is "
        "given kwargs.labels"
    )
    (only,) = differences(({"data": [tokens]}, {"data": [labels, tokens]}))
    assert only.effect is Effect.POSSIBLE


@pytest.mark.parametrize("other", [1, 3])
def test_what_compiled_code_around_a_model_is_given_besides_is_no_data(other: int) -> None:
    given = (batch(2), batch(1, where="input.1"))
    around = {"data": [each | {"record": "Jit.step.0.forward"} for each in given]}
    model = {"data": [batch(other)]}

    both = differences((around, model)), differences((model, around))

    assert [len(found) for found in both] == [other > 1] * 2


@pytest.mark.parametrize(
    "places",
    [
        ("kwargs.labels", "kwargs.tokens"),
        ("input.1", "kwargs.tokens"),
        ("kwargs.labels", "input.0"),
    ],
)
def test_the_same_arguments_by_name_and_by_place_are_no_other_data(
    places: tuple[str, str],
) -> None:
    target = {"data": [batch(1), batch(2, where="input.1", dtype="torch.int64")]}
    by_name = {"data": [batch(2, where=places[0], dtype="torch.int64"), batch(1, where=places[1])]}
    other = {"data": [batch(3, where=places[0], dtype="torch.int64"), batch(1, where=places[1])]}

    assert said(differences((target, by_name), (target, by_name))) == []
    assert said(differences((target, other)))


def called(names: str, *seeds: int) -> Parts:
    """Return a step that calls models of these names with batches of these seeds."""
    records = [f"Module.{n}.MLP.forward.{names[:i].count(n)}" for i, n in enumerate(names)]
    both = enumerate(zip(records, seeds, strict=True))
    return {"data": [batch(seed, i, record=record) for i, (record, seed) in both]}


def test_models_that_are_called_in_another_order() -> None:
    """What they are given is drawn on the way, say, and differs with the order."""
    assert said(differences((called("ggd", 1, 2, 3), called("gdg", 1, 4, 5)))) == [
        "order: step 0 calls the models in another order: Module.g.MLP in the target where the "
        "reference calls Module.d.MLP"
    ]
    (found,) = said(differences((called("ggd", 1, 2, 3), called("ggd", 1, 4, 5))))
    assert found.startswith("data: what call 1 of Module.g.MLP gets in step 0 differs")
    assert said(differences((called("ggd", 1, 2, 3), called("gdg", 1, 2, 3)))) == []
    (moved,) = said(differences((called("ggd", 4, 1, 2), called("gdg", 1, 2, 4))))
    assert moved.startswith("order: step 0 calls the models in another order: Module.g.MLP in")


def test_the_calls_of_each_of_several_models_are_counted() -> None:
    sides = called("gdgdg", 3, 7, 8, 7, 9), called("gdgdg", 1, 7, 2, 7, 3)

    (found,) = said(differences(sides))

    assert found == (
        "data: the batch of step 0 is the batch that the reference has in step 0, call 2 of "
        "Module.g.MLP"
    )


def test_one_of_several_models_that_is_called_more_often() -> None:
    target, reference = called("ggdgd", 1, 2, 3, 4, 5), called("gdg", 1, 3, 4)
    target["loss"], reference["loss"] = (
        [{"micro": i, "value": 1.0, "shape": [], "dtype": "torch.float32"} for i in range(count)]
        for count in (3, 2)
    )
    assert said(differences((target, reference))) == [
        "call: step 0 calls Module.g.MLP 3 times in the target, twice in the reference, with 3 "
        "backward passes instead of 2"
    ]


def test_what_each_model_is_given_is_compared_with_its_own() -> None:
    """A model that takes real and made samples at once takes them so in each step."""
    joint = called("gdg", 1, 2, 3)
    joint["data"][1]["shape"] = [8, 2]
    joint["data"][1]["norm"] = 2**0.5 * joint["data"][1]["norm"]
    apart = called("gddg", 1, 2, 2, 3)
    later = called("gddg", 4, 5, 6, 7)
    one = called("gdg", 4, 5, 7)
    one["data"][1]["shape"] = [8, 2]

    found = differences((joint, apart), (one, later))
    assert {each.effect for each in found} == {Effect.NONE}


def test_one_of_two_inputs_that_differs_is_a_part_of_the_data() -> None:
    both = {"data": [batch(1), batch(2, 1)]}

    (one,) = differences(({"data": [batch(1), batch(3, 1)]}, both))
    (all_,) = differences(({"data": [batch(4), batch(3, 1)]}, both))

    assert (one.is_partial, all_.is_partial) == (True, False)


def clip(**more: Any) -> Parts:
    return {
        "kind": "clip",
        "function": "clip_grad_norm_",
        "max": 1.0,
        "norm_type": 2.0,
        "total_norm": 4.0,
        "parameters": 3,
    } | more


@pytest.mark.parametrize(
    ("target", "reference", "words"),
    [
        (
            [clip(max=2.0)],
            [clip()],
            "clip_grad_norm_ has max_norm 2 in the target, 1 in the reference",
        ),
        (
            [],
            [clip()],
            "only the reference calls clip_grad_norm_, with 1, whose",
        ),
        ([clip(parameters=2)], [clip()], "clip_grad_norm_ is given 2 parameters in the target"),
        (
            [clip(function="clip_grad_value_", max=2.0)],
            [clip()],
            "clip_grad_value_ is called in the target, clip_grad_norm_ in the reference",
        ),
        (
            [clip(total_norm=8.0)],
            [clip()],
            r"the total norm of the gradients is 8 .* 2: they are doub",
        ),
    ],
)
def test_clipping(target: list[Parts], reference: list[Parts], words: str) -> None:
    found = said(differences(({"events": target}, {"events": reference})))

    assert any(re.search(words, each) for each in found)


def test_clipping_of_each_micro_batch() -> None:
    (found,) = said(differences(({"events": [clip(), clip()]}, {"events": [clip()]})))

    assert found == (
        "clipping: the target calls clip_grad_norm_ 2 times, the reference once; the limits of the "
        "target are 1, 1 (step 0)"
    )


def test_a_limit_that_no_gradient_reaches_has_no_effect() -> None:
    target, reference = clip(max=5.0), clip(max=9.0)

    assert said(differences(({"events": [target]}, {"events": [reference]}))) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"betas": [0.9, 0.99]},
            "AdamW beta2 is 0.99 in the target, 0.999 in the reference (step 0, all 3",
        ),
        ({"weight_decay": 0.1}, "AdamW weight_decay is 0.1 in the target, 0 in the reference"),
        ({"lr": 0.02}, "AdamW lr is 0.02 in the target, 0.01 in the reference"),
    ],
)
def test_settings_of_an_optimizer(options: Parts, words: str) -> None:
    found = said(differences((step(**options), step())))

    assert any(each.startswith(f"optimizer_setting: {words}") for each in found)


def test_another_implementation_has_no_effect() -> None:
    assert said(differences((step(fused=True), step(fused=None)))) == []


def scheduled(rates: Sequence[float]) -> list[Parts]:
    return [step(lr=rate, initial_lr=0.5) for rate in rates]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ([0.2, 0.3, 0.4], "0.2 in the target, 0.1 in the reference .*the target is 1 step ahead"),
        ([0.0, 0.1, 0.2], "0 in the target, 0.1 in the reference .*the target is 1 step behind"),
        # One rate that is the same is no shift.
        ([0.0, 0.0, 0.1], r"0 in the target, 0.1 in the reference \(step 0, all 3 parameters\)$"),
        ([0.1, 0.2, 0.35], "0.35 in the target, 0.3 in the reference"),
    ],
)
def test_learning_rates_of_a_schedule(target: Sequence[float], words: str) -> None:
    steps = zip(scheduled(target), scheduled([0.1, 0.2, 0.3]), strict=True)

    found = [each for each in said(differences(*steps)) if each.startswith("schedule")]

    assert len(found) == 1
    assert re.search(words, found[0])


def test_parameters_that_one_optimizer_hands_on_to_another_are_counted_once() -> None:
    sides = scheduled([0.1, 0.2]), scheduled([0.1, 0.3])
    for side in sides:
        for each in side:
            part = {name: arrays()[name] for name in ("a.weight", "a.bias")}
            options = each["events"][0]["groups"][0]["options"]
            inner = optimizer_step(part, part, part, options=options, number=1)
            each["events"] = [inner, *each["events"]]

    (found,) = (
        each for each in said(differences(*zip(*sides, strict=True))) if "learning rate" in each
    )

    assert "all 3 parameters" in found


def test_schedulers_of_other_classes_are_told() -> None:
    sides = scheduled([0.1, 0.2]), scheduled([0.1, 0.3])
    for side, name in zip(sides, ("StepLR", "LinearLR"), strict=True):
        for number, each in enumerate(side, 1):
            each["events"] = [
                *each["events"],
                {"kind": "schedule", "class": name, "last_epoch": number, "lr": [0.1]},
            ]

    found = " ".join(said(differences(*zip(*sides, strict=True))))

    assert "the scheduler is StepLR in the target, LinearLR in the reference" in found


@pytest.mark.parametrize("rate", [0.9, "NaN", "Infinity"])
def test_a_constant_rate_is_not_ahead_of_itself(rate: Any) -> None:
    steps = zip(scheduled([0.1, 0.1, rate, rate]), scheduled([0.1] * 4), strict=True)

    (found,) = (each for each in said(differences(*steps)) if each.startswith("schedule"))

    shown = str(rate).lower().removesuffix("inity")
    assert f"the learning rate is {shown} in the target, 0.1 in the reference (step 2" in found
    assert "ahead" not in found


def with_state(state: Arrays | None, steps: float) -> Parts:
    before, gradient = arrays(), arrays(1)
    found = None if state is None else {"exp_avg": state, "exp_avg_sq": state}
    return {"events": [optimizer_step(before, gradient, before, state=found, steps=steps)]}


def test_a_state_that_was_lost() -> None:
    (found,) = said(differences((with_state(None, 0), with_state(arrays(3), 7))))

    assert re.match(r"optimizer_state: the step count .* is 0 in the target, 7 in .*lost", found)


def test_a_state_of_which_the_count_alone_is_lost() -> None:
    (found,) = said(differences((with_state(arrays(3), 0), with_state(arrays(3), 7))))

    assert "the step count" in found
    assert "lost" not in found


def test_losses_are_told_with_the_digits_that_differ_and_by_the_micro_batch() -> None:
    def losses(last: float) -> Parts:
        loss = {"shape": [], "dtype": "torch.float64"}
        made = ["mean", "pow"], ["sum"], ["sum"], ["mean", "pow"]
        values = 3.0, 4.0, 5.0, last
        each = zip(values, made, strict=True)
        return {
            "loss": [loss | {"micro": n, "value": v, "made_by": m} for n, (v, m) in enumerate(each)]
        }

    [found] = said(differences((losses(2.0000000004), losses(2.0))))
    assert "the loss is 2.0000000004 in the target, 2 in the reference" in found
    assert "(step 0, micro batch 1)" in found


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.5}])
def test_a_lost_state_comes_before_the_learning_rate_and_after_other_settings(
    options: Parts,
) -> None:
    before = arrays()

    def resumed(state: dict[str, Arrays], **more: Any) -> Parts:
        event = optimizer_step(before, arrays(1), before, state=state, options=more)
        event["parameters"]["steps"] = [None] * len(before)
        return {"events": [event]}

    found = differences((resumed({}, lr=0.5, **options), resumed({"momentum_buffer": arrays(3)})))

    first = min(found, key=lambda each: each.moment)
    assert (first.verdict == "optimizer_state") is (not options), first.words


def test_a_state_that_differs() -> None:
    (first, *_) = said(differences((with_state(arrays(4), 7), with_state(arrays(3), 7))))

    assert re.match(r"optimizer_state: exp_avg\w* of all 3 parameters differs before step 0", first)


def test_a_state_that_an_earlier_update_of_the_step_made_of_other_gradients() -> None:
    def twice(gradient: int, state: int) -> Parts:
        first = optimizer_step(arrays(), arrays(gradient), arrays(gradient))
        kept = {"exp_avg": arrays(state), "exp_avg_sq": arrays(state)}
        second = optimizer_step(arrays(), arrays(5), arrays(6), state=kept, steps=1, call=1)
        return {"events": [first, second]}

    history = TrainingHistory()
    steps = (twice(1, 3), twice(1, 3)), (twice(1, 3), twice(2, 4))
    for number, sides in enumerate(steps):
        target, reference = (facts(**each) for each in sides)
        pair = FactsPair(step=number, rank=0, target=target, reference=reference)
        history.add_data([pair])
        history.add([pair], {0: False})

    assert not any(each.verdict == "optimizer_state" for each in history.differences())


def updated(after: Arrays, **more: Any) -> Parts:
    return {"events": [optimizer_step(arrays(), arrays(1), after, **more)]}


RIGHT = adamw(arrays(), arrays(1))


def test_a_wrong_update_is_told_from_rounding_and_from_another_setting() -> None:
    wrong = dict(RIGHT)
    wrong["b.weight"] = wrong["b.weight"] + 0.5 * (wrong["b.weight"] - arrays()["b.weight"])
    rounded = {name: each * (1 + 2**-24) for name, each in RIGHT.items()}

    (found,) = said(differences((updated(wrong), updated(RIGHT))))

    assert re.match(r"update: AdamW updates b\.weight in the target .* 1\.5 times it", found)
    assert said(differences((updated(rounded), updated(RIGHT)))) == []


def test_parameters_that_are_not_updated() -> None:
    still = dict(RIGHT) | {"a.bias": arrays()["a.bias"]}

    (found,) = said(differences((updated(still), updated(RIGHT))))

    assert found.startswith("update: a.bias is not updated in the target, though it has a gradient")


@pytest.mark.parametrize(("size", "is_told"), [(1.0, True), (1e-4, True), (1e-9, False)])
def test_an_update_that_is_lost_in_rounding_is_one(size: float, is_told: bool) -> None:
    """Of an optimizer whose rule is not known, one side's gradient is so small beside the other."""
    before = arrays()
    small = arrays(1) | {"a.bias": size * arrays(1)["a.bias"]}
    after = {name: value - 0.1 * arrays(1)[name] for name, value in before.items()}
    sides = [
        {"events": [optimizer_step(before, gradient, left, name="program.LARS")]}
        for gradient, left in ((small, after | {"a.bias": before["a.bias"]}), (arrays(1), after))
    ]

    found = said(differences((sides[0], sides[1])))

    words = "update: a.bias is not updated in the target, though it has a gradient"
    assert any(each.startswith(words) for each in found) is is_told


def test_an_optimizer_without_a_rule_is_judged_by_size() -> None:
    wrong = {name: each * 1.01 for name, each in RIGHT.items()}
    rounded = {name: each * (1 + 2**-24) for name, each in RIGHT.items()}
    mine = {"name": "mine.Muon"}

    found = said(differences((updated(wrong, **mine), updated(RIGHT, **mine))))

    assert [each.split(":")[0] for each in found] == ["update"]
    assert said(differences((updated(rounded, **mine), updated(RIGHT, **mine)))) == []


def test_gradients_that_were_not_read_are_not_said_to_agree() -> None:
    """A training step that is compiled as a whole shows none."""
    wrong = {name: each * 1.01 for name, each in RIGHT.items()}
    sides = updated(wrong, name="mine.Muon"), updated(RIGHT, name="mine.Muon")
    for side in sides:
        columns = side["events"][0]["parameters"]
        columns["gradient"] = {name: [None] * 3 for name in columns["gradient"]}
        columns["samples"]["gradient"] = [None] * 3

    (found,) = differences(sides)

    assert found.is_unread
    assert "though parameter and state agree before it" in found.words
    assert found.words.endswith("its gradients were not read")


def test_a_second_call_of_the_optimizer() -> None:
    once, again = step(), step()
    again["events"] = [*again["events"], again["events"][0] | {"call": 1}]

    (found,) = said(differences((again, once)))

    assert found.startswith("update: optimizer.step() is called twice in the target, once in")


def test_of_several_optimizers_the_one_is_told_that_steps_again() -> None:
    both, one = step(), step()
    both["events"] = [*both["events"], both["events"][0] | {"number": 1}]
    one["events"] = [*one["events"], one["events"][0] | {"call": 1}]

    found = said(differences((one, both)))

    assert re.search(r"step\(\) of optimizer 0, AdamW of .* is called twice in the", found[0])


@pytest.mark.parametrize("is_same", [True, False])
def test_an_optimizer_that_runs_inside_another_one(is_same: bool) -> None:
    once, wrapped = step(), step()
    inner = optimizer_step(arrays(), arrays(1), adamw(arrays(), arrays(1)), options={})
    if not is_same:
        inner = optimizer_step(arrays(), arrays(1), arrays(5), options={})
    wrapped["events"] = [*wrapped["events"], inner | {"number": 1}]

    found = [each for each in said(differences((wrapped, once))) if each.startswith("update")]

    assert bool(found) is not is_same


def got(gradient: Arrays) -> Parts:
    return {"events": [optimizer_step(arrays(), gradient, RIGHT)]}


def times(factor: float, seed: int = 1) -> Arrays:
    return {name: each * factor for name, each in arrays(seed).items()}


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.5, "the factor is 1/2: they are halved"),
        (-1.0, "their sign is reversed"),
        (65536.0, r"2\^16"),
        (3.7, "3.7 times the reference's when the optimizer gets them"),
    ],
)
def test_gradients_that_differ_by_a_factor(factor: float, words: str) -> None:
    found = said(differences((got(times(factor)), got(times(1)))))

    assert any(each.startswith("gradient") and re.search(words, each) for each in found)


def limited(limit: float) -> Arrays:
    total = np.linalg.norm(np.concatenate([*arrays(1).values()]))
    return times(limit / total)


def test_clipping_by_code_that_was_not_recorded_is_told_by_its_limit() -> None:
    (lone, *_) = said(differences((got(times(1)), got(limited(0.5)))))
    (both, *_) = said(differences((got(limited(0.25)), got(limited(0.7)))))
    (chance, *_) = said(differences((got(times(1)), got(limited(0.51234)))))

    assert lone.startswith("clipping: the target does not clip as the reference does")
    assert "limited to the total norm 0.5" in lone
    assert "limited to 0.25 in the target, to 0.7 in the reference" in both
    assert chance.startswith("gradient")


def test_a_scale_of_the_loss_that_the_optimizer_takes_back_has_no_effect() -> None:
    scaled, plain = (
        {"events": [optimizer_step(arrays(), times(n), RIGHT, options={"loss_scale": float(n)})]}
        for n in (128, 1)
    )

    assert said(differences((scaled, plain))) == []
    (found,) = said(differences((got(times(128)), got(times(1)))))
    assert found.startswith("gradient")


def test_parameters_that_compiled_code_changes_are_compared_when_the_step_ends() -> None:
    def ending(after: Arrays) -> Parts:
        read = {"name": list(after), "dtype": ["torch.float32"] * len(after), **columns(after)}
        return {"parameters": start_state(arrays()), "buffers_after": read}

    (found,) = said(differences((ending(arrays(2)), ending(arrays(3)))))

    assert found.startswith("update: all 3 parameters differ after step 0")
    assert said(differences((ending(arrays(2)), ending(arrays(2))))) == []


def test_a_single_gradient_that_changes_the_total_norm_of_all() -> None:
    gradients = {f"layer{n}.weight": each for n in range(12) for each in [arrays(n)["a.weight"]]}
    parameters = dict.fromkeys(gradients, arrays()["a.weight"])
    clipped = {name: each * 1.01 for name, each in gradients.items()}
    clipped["layer3.weight"] = gradients["layer3.weight"] * 0.505

    target, reference = (
        {
            "events": [
                clip(total_norm=total, parameters=12),
                optimizer_step(parameters, each, parameters),
            ]
        }
        for each, total in ((clipped, 4 / 1.01), (gradients, 4.0))
    )
    found = said(differences((target, reference)))

    (gradient,) = [each for each in found if each.startswith("gradient")]
    assert gradient.startswith("gradient: layer3.weight is 0.5 times the reference's before clip")
    assert gradient.endswith("1/2: they are halved")


def test_a_gradient_that_is_zero_but_for_rounding_is_the_same() -> None:
    """A shift that softmax takes away has no gradient; its rounding is another each time."""

    def step(rounding: int) -> Parts:
        shift = 1e-7 * arrays(rounding)["a.bias"]
        gradients = {name: each / 4 for name, each in arrays(1).items()} | {"shift": shift}
        return {
            "events": [clip(parameters=4), optimizer_step(gradients, gradients, gradients)],
        }

    assert said(differences((step(2), step(3)))) == []


def test_one_clipping_of_two_optimizers() -> None:
    """The gradients of one are doubled, and clipping makes those of both smaller."""
    first, second = arrays(1), {f"d.{n}": each for n, each in arrays(2).items()}

    def step(total: float, factor: float) -> Parts:
        scale = 1 / total
        gradients = (
            {name: scale * each for name, each in first.items()},
            {name: scale * factor * each for name, each in second.items()},
        )
        steps = [
            optimizer_step(part, part, part) | {"number": number}
            for number, part in enumerate(gradients)
        ]
        return {"events": [clip(total_norm=total, parameters=6), *steps]}

    found = said(differences((step(5.0, 2.0), step(4.0, 1.0))))

    assert [each for each in found if each.startswith("gradient")] == [
        "gradient: all 3 gradients are 2 times the reference's before clipping (step 0): the "
        "factor is 2: they are doubled"
    ]


def test_gradients_that_are_doubled_after_they_were_clipped() -> None:
    def step(factor: float) -> Parts:
        gradients = {name: factor * each for name, each in arrays(1).items()}
        own = optimizer_step(gradients, gradients, gradients)
        return {"events": [clip(total_norm=4.0, parameters=3), own]}

    found = said(differences((step(2.0), step(1.0))))

    assert [each for each in found if each.startswith("gradient")] == [
        "gradient: all 3 gradients are 2 times the reference's when the optimizer gets them (step "
        "0): the factor is 2: they are doubled"
    ]


def test_gradients_that_are_not_cleared_where_one_optimizer_is_clipped() -> None:
    model, other = arrays(1), {"d.weight": arrays(5)["a.weight"]}

    def step(own: Arrays, total: float) -> Parts:
        clipped = {name: each / total for name, each in own.items()}
        first, second = (optimizer_step(each, each, each) for each in (clipped, other))
        return {"events": [clip(total_norm=total), first, second | {"number": 1}]}

    # The first step leaves its clipped gradients behind.
    kept = {name: each / 4 + model[name] for name, each in arrays(3).items()}
    steps = (
        (step(arrays(3), 4.0), step(arrays(3), 4.0)),
        (step(kept, 5.0), step(model, 6.0)),
    )

    assert any("are not cleared" in each for each in said(differences(*steps)))


def test_a_gradient_that_only_one_side_has() -> None:
    without = got(times(1))
    columns = without["events"][0]["parameters"]
    columns["has_gradient"][1] = False
    columns["gradient"] = {key: [v[0], None, v[2]] for key, v in columns["gradient"].items()}

    found = differences((without, got(times(1))))

    assert "gradient: a.bias gets no gradient in the target (step 0)" in said(found)
    assert all(each.effect is Effect.CERTAIN for each in found if "no gradient" in each.words)


def test_a_loss_that_is_a_sum_over_the_samples() -> None:
    target, reference = (
        {
            "data": [batch(1)],
            "loss": [{"micro": 0, "value": value, "shape": [], "dtype": "torch.float32"}],
        }
        for value in (3.0, 0.75)
    )

    (found,) = said(differences((target, reference)))

    assert found.endswith("the factor is 4, the number of samples, as by a sum in place of a mean")


def test_states_that_were_lost_are_told_in_the_order_of_their_names() -> None:
    before, gradient = arrays(1), arrays(2)
    kept = {name: arrays(3) for name in ("third", "first", "second", "fifth", "fourth")}
    target, reference = (
        {"events": [optimizer_step(before, gradient, before, steps=1, state=state)]}
        for state in ({}, kept)
    )

    found = said(differences((target, reference)))

    assert [words.split(" has no ")[1].split()[0] for words in found] == sorted(kept)


def test_a_scale_that_was_lost() -> None:
    def scaler(scale: float) -> Parts:
        event = {"kind": "scaler", "scale": scale, "skipped": False, "new_scale": 2 * scale}
        return {"events": [event]}

    (found,) = said(differences((scaler(8.0), scaler(8.0)), (scaler(8.0), scaler(16.0))))

    assert found.startswith("optimizer_state: the gradient scaler scales by 8 in the target, 16 in")
    assert found.endswith("the scaler's state was lost")
    assert not said(differences((scaler(8.0), scaler(16.0))))


def test_a_scale_at_which_a_step_is_skipped() -> None:
    def scaler(scale: float, *, skipped: bool) -> Parts:
        event = {"kind": "scaler", "scale": scale, "skipped": skipped, "new_scale": scale}
        return {"events": [event]}

    whole = scaler(8.0, skipped=False)

    (found,) = said(differences((scaler(64.0, skipped=True), whole)))
    assert found.startswith("gradient: the gradient scaler scales by 64 in the target, 8 in")
    assert "the optimizer's step is skipped in the target alone" in found

    (found,) = said(differences((scaler(8.0, skipped=True), whole)))
    assert found.startswith("update: the gradient scaler skipped the optimizer's step 0 in the")


def test_parameters_that_the_model_does_not_know() -> None:
    names = ("a.weight", "optimizer.0.group.0.1", "b.weight")
    strange = dict(zip(names, arrays().values(), strict=True))
    target, reference = (
        {"parameters": start_state(arrays()), "events": [optimizer_step(each, each, each)]}
        for each in (strange, arrays())
    )

    found = said(differences((target, reference)))

    assert found[0].startswith("update: only the reference's optimizer updates a.bias (step 0)")
    assert found[0].endswith("that of the other side updates 1 that its model lacks")


def test_gradients_of_the_step_before() -> None:
    stale = (got(times(1)), got(times(1))), (got(times(1)), got(times(1, 2)))
    total = {name: each + arrays(1)[name] for name, each in arrays(2).items()}
    summed = stale[0], (got(total), got(times(1, 2)))

    assert any(
        "the target's gradients are those of the step before" in s
        for s in said(differences(*stale))
    )
    assert any("not cleared" in each for each in said(differences(*summed)))


def test_a_missing_mean_over_ranks() -> None:
    own = arrays(1), arrays(2)
    mean = {name: (own[0][name] + own[1][name]) / 2 for name in own[0]}

    found = said(differences(*((got(each), got(mean)) for each in own), ranks=2))

    assert any("the target's gradients are not averaged over its 2 ranks" in each for each in found)


def test_ranks_of_which_one_does_not_clip_have_the_same_gradients() -> None:
    limited = {"events": [clip(max=2.0), *got(times(0.5))["events"]]}

    found = said(differences((limited, limited), (got(times(1)), limited), ranks=2))

    assert any("only the reference calls clip_grad" in each for each in found)
    assert not any("averaged" in each for each in found)


@pytest.mark.parametrize(("start", "gradient"), [(1.0, 1.0), (1.5, 1.0), (1.0, 2.0)])
def test_shards_are_compared_together(start: float, gradient: float) -> None:
    """As FSDP against DDP: each of two ranks holds a half of each parameter and gradient."""
    whole, gradients = arrays(1), arrays(2)

    def state(values: Arrays, of: Arrays, size: int) -> Parts:
        shapes = [[size]] * 3
        return {
            "parameters": start_state(values, shape=shapes),
            "events": [optimizer_step(values, of, values)],
        }

    def half(values: Arrays, rank: int, factor: float) -> Arrays:
        return {name: factor * each[3 * rank :][:3] for name, each in values.items()}

    steps = [
        (state(half(whole, r, start), half(gradients, r, gradient), 3), state(whole, gradients, 6))
        for r in (0, 1)
    ]

    found = [each for each in said(differences(*steps, ranks=2)) if "update" not in each]

    assert all("all 3 sharded parameters have another" in e for e in found), found
    assert [("norm when" in each, "the gradient" in each) for each in found] == (
        [(True, False)] if start != 1 else [(False, True)] if gradient != 1 else []
    )


def test_parameters_of_another_shape_are_named_before_those_that_follow() -> None:
    target = {"parameters": start_state(arrays(1), shape=[[6], [4], [6]])}

    (shape, _) = said(differences((target, {"parameters": start_state(arrays(2))})))

    assert shape == "parameters: a.bias has another shape, (4) instead of (6)"


def test_uneven_columns_are_no_error() -> None:
    damaged = step()
    parameters = damaged["events"][0]["parameters"]
    parameters["dtype"] = []
    parameters["samples"] = {"before": [[1.0]]}
    damaged["events"][0]["groups"][0]["parameters"] = [0, 99, -7]
    damaged["events"][0]["groups"][0]["options"]["lr"] = "fast"

    differences((damaged, step()), (step(), damaged))


def test_other_names_for_all_parameters_are_no_cause() -> None:
    values = arrays()
    renamed = {f"renamed{place}": each for place, each in enumerate(values.values())}
    sides = [{"parameters": start_state(each)} for each in (values, renamed)]
    found = differences((sides[0], sides[1]))
    assert [each.words.split(" has")[0] for each in found] == [
        "only the target",
        "only the reference",
    ]
    assert {each.effect for each in found} == {Effect.NONE}
    some = {"parameters": start_state({**renamed, "b.weight": values["b.weight"]})}
    assert Effect.POSSIBLE in {each.effect for each in differences((sides[0], some))}


def test_a_parameter_that_one_model_lacks_is_not_missed_by_its_optimizer() -> None:
    values, gradients = arrays(), arrays(1)
    after = adamw(values, gradients)
    less = [
        {n: v for n, v in each.items() if n != "b.weight"} for each in (values, gradients, after)
    ]
    whole = {
        "parameters": start_state(values),
        "events": [optimizer_step(values, gradients, after)],
    }
    frozen = whole | {"events": [optimizer_step(*less)]}
    lacking = frozen | {"parameters": start_state(less[0])}

    assert any(
        "optimizer updates b.weight" in words for words in said(differences((frozen, whole)))
    )
    found = differences((lacking, whole))
    assert [each.words for each in found] == ["only the reference has b.weight"]


@pytest.mark.parametrize("agree", [True, False])
def test_samples_that_ranks_share_in_another_way(agree: bool) -> None:
    """Strided in place of blocks, say: the data differ on each rank, and the gradients do not."""
    own, other = got(times(1)), got(times(1 if agree else 2))

    def fed(seed: int, part: Parts) -> Parts:
        return {"data": [batch(seed)], **part}

    found = said(differences((fed(1, own), fed(2, other)), (fed(2, own), fed(1, other)), ranks=2))

    assert any(each.startswith("data") for each in found) is not agree


def test_a_factor_that_is_two_numbers_may_be_either() -> None:
    def twice(factor: float) -> Parts:
        losses = [{"micro": n, "value": 1.0, "shape": [], "dtype": "torch.float32"} for n in (0, 1)]
        return {"loss": losses, "data": [batch(1), batch(2)], **got(times(factor))}

    sides = twice(2.0), twice(1.0)

    assert any(
        "the number of micro batches, 2: they are summed" in each
        for each in said(differences(sides))
    )
    assert any(
        "the number of micro batches or world size, 2: they are summed" in each
        for each in said(differences(sides, sides, ranks=2))
    )


def clipped_gradients(odd: float) -> Parts:
    """A step of twelve gradients; a limit makes eleven smaller, as the odd one is larger."""
    drawn = np.random.default_rng(5)
    gradients = {f"p{number}": drawn.normal(size=6) for number in range(12)}
    scale = 1.0 if odd == 1.0 else 0.99
    got = {name: each * scale * (odd if name == "p3" else 1.0) for name, each in gradients.items()}
    before = {name: np.ones(6) for name in got}
    return {
        "parameters": start_state(before),
        "events": [optimizer_step(before, got, adamw(before, got))],
    }


def test_the_gradient_that_is_another_multiple_is_told_first() -> None:
    found = said(differences((clipped_gradients(2.0), clipped_gradients(1.0))))

    assert found[0].startswith("gradient: p3 is 1.98 times the reference's; 11 of 12 gradients (p0")
    assert "are 0.99 times the reference's when the optimizer gets them" in found[0]
