# SPDX-License-Identifier: Apache-2.0
"""Facts of MindSpore beside those of PyTorch, in PyTorch's terms."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from msgspec.structs import replace

from msprobe.compare.training.facts_pair import EARLY_EPS
from msprobe.compare.training.shared_names import with_shared_names
from msprobe.compare.training.update_rules import rule_of
from msprobe.dump.facts import (
    Clip,
    Data,
    Facts,
    Fingerprints,
    Modes,
    OptimizedParameters,
    OptimizerGroup,
    OptimizerStep,
    Outline,
    OutlinedCall,
    OutlineRun,
    Parameters,
)

ADAM = {"torch": "torch.optim.adam.Adam", "mindspore": "mindspore.nn.optim.adam.Adam"}


def facts(framework: str, names: dict[str, str], dtype: str, **options: object) -> Facts:
    states = ("moment1", "moment2") if framework == "mindspore" else ("exp_avg", "exp_avg_sq")
    trained = [name for name, kind in names.items() if kind == "parameter"]
    step = OptimizerStep(
        class_name=ADAM[framework],
        number=0,
        call=0,
        groups=[OptimizerGroup(options=options, parameters=list(range(len(trained))))],
        parameters=OptimizedParameters(
            name=trained,
            dtype=[dtype] * len(trained),
            steps=[0] * len(trained),
            state={state: Fingerprints(norm=[0.0] * len(trained)) for state in states},
            samples={state: [[0.0]] * len(trained) for state in states},
        ),
    )
    return Facts(
        version=1,
        step=0,
        settings={f"{framework}.version": "2", "module.norm": framework, "argument.lr": "1"},
        modes=Modes(requires_grad_false=[name for name in names if names[name] == "frozen"]),
        parameters=Parameters(
            name=list(names),
            kind=["buffer" if kind == "buffer" else "parameter" for kind in names.values()],
            dtype=[dtype] * len(names),
        ),
        data=[Data(micro=0, record=None, where="input.0", shape=[1], dtype=dtype)],
        events=[step],
    )


OURS = {
    "embed.embedding_table": "parameter",
    "norm.gamma": "parameter",
    "own.gamma": "parameter",
    "norm.moving_mean": "frozen",
}
THEIRS = {
    "embed.weight": "parameter",
    "norm.weight": "parameter",
    "own.gamma": "parameter",
    "norm.running_mean": "buffer",
    "norm.num_batches_tracked": "buffer",
}


def test_both_sides_have_the_terms_of_pytorch() -> None:
    ours = facts("mindspore", OURS, "Float32", beta1=0.9, beta2=0.99, lr=0.1, use_locking=False)
    theirs = facts("torch", THEIRS, "torch.float32", betas=[0.9, 0.99], lr=0.1)
    for is_target in (True, False):
        sides = with_shared_names(*((ours, theirs) if is_target else (theirs, ours)))
        own, other = sides if is_target else reversed(sides)
        assert own.parameters == other.parameters
        assert own.parameters.name == [name for name in THEIRS if not name.endswith("tracked")]
        assert own.modes == other.modes
        assert own.data == other.data
        assert own.settings == other.settings == {"argument.lr": "1"}
        (step,), (their_step,) = own.events, other.events
        assert step.parameters == their_step.parameters
        assert list(step.parameters.state) == ["exp_avg", "exp_avg_sq"]
        assert step.class_name == their_step.class_name == ADAM["torch"]
        options, their_options = step.groups[0].options, their_step.groups[0].options
        assert options["betas"] == their_options["betas"]
        assert (options[EARLY_EPS], their_options[EARLY_EPS]) == (True, False)


def test_numbers_that_modules_of_both_frameworks_have_are_settings() -> None:
    ours, theirs = facts("mindspore", OURS, "Float32"), facts("torch", THEIRS, "torch.float32")
    ours.settings.update(
        {
            "module.norm": "LayerNorm(normalized_shape=(4,), begin_norm_axis=-1)",
            "module.norm.epsilon": "1e-05",
            "module.drop": "Dropout(p=0.5)",
            "module.up": "Dense(input_channels=4, output_channels=2)",
        }
    )
    theirs.settings.update(
        {
            "module.norm": "LayerNorm((4,), eps=0.001, elementwise_affine=True, bias=True)",
            "module.drop": "Dropout(p=0.5, inplace=False)",
            "module.up": "Linear(in_features=4, out_features=2)",
        }
    )
    own, other = (each.settings for each in with_shared_names(ours, theirs))
    differing = {key for key in own.keys() | other.keys() if own.get(key) != other.get(key)}
    assert differing == {"module.norm.eps"}
    assert (own["module.norm.eps"], other["module.norm.eps"]) == ("1e-05", "0.001")
    assert own["module.drop.p"] == "0.5"


def test_a_side_by_itself_keeps_its_terms() -> None:
    both = [facts("mindspore", OURS, "Float32", lr=lr) for lr in (0.1, 0.2)]
    assert with_shared_names(*both) == tuple(both)


@dataclass
class Element:
    """The one element of a parameter in the second step of Adam."""

    before: np.ndarray
    gradient: np.ndarray
    steps: np.ndarray
    epsilon: float = 2.0**-23

    @property
    def has_state(self) -> np.ndarray:
        return np.array([True])

    def of(self, state: str) -> np.ndarray:
        return np.array([{"exp_avg": 0.25, "exp_avg_sq": 1 / 1024}[state]])


def test_adam_of_mindspore_adds_eps_before_it_corrects_the_bias() -> None:
    options = {"lr": 0.5, "betas": [0.5, 0.75], "eps": 0.125, EARLY_EPS: True}
    rule = rule_of(ADAM["torch"], options)
    assert rule is not None
    updated = rule(options, Element(*(np.array([x]) for x in (1.0, 0.5, 2.0))))
    # The formulas of docs.mindspore.cn for nn.Adam, with fractions but for the two roots.
    moment = Fraction(1, 2) * Fraction(1, 4) + Fraction(1, 2) * Fraction(1, 2)
    square = Fraction(3, 4) * Fraction(1, 1024) + Fraction(1, 4) * Fraction(1, 4)
    rate = 0.5 * float(1 - Fraction(9, 16)) ** 0.5 / float(1 - Fraction(1, 4))
    expected = 1 - rate * float(moment) / (float(square) ** 0.5 + 0.125)
    assert abs(float(updated.value[0]) - expected) < 1e-14


def shared(ours: Facts, theirs: Facts) -> tuple[Facts, Facts]:
    settings = ({"mindspore.version": "2"}, {"torch.version": "2"})
    return with_shared_names(*map(with_settings, (ours, theirs), settings))


def with_settings(one: Facts, settings: dict[str, str]) -> Facts:
    return replace(one, settings=settings)


def plain(**parts: Any) -> Facts:
    return Facts(version=1, step=0, **parts)


def words(dtype: str, checksum: str, mean: float = 1.5) -> Data:
    numbers: dict[str, Any] = {
        "max": 3,
        "min": 0,
        "mean": mean,
        "norm": 4.0,
        "projections": (1.0, -2.0),
    }
    return Data(
        micro=0, record=None, where="input.0", shape=[8], dtype=dtype, checksum=checksum, **numbers
    )


def test_whole_numbers_of_any_width_are_the_same_data() -> None:
    for other, are_same in (
        (words("torch.int64", "b"), True),
        (words("torch.int64", "b", 1.0), False),
    ):
        own, theirs = shared(plain(data=[words("Int32", "a")]), plain(data=[other]))
        assert (own.data == theirs.data) is are_same


def test_numbers_that_round_keep_their_checksums() -> None:
    own, theirs = shared(
        plain(data=[words("Float32", "a")]), plain(data=[words("torch.float32", "b")])
    )
    assert own.data[0].dtype == theirs.data[0].dtype
    assert [own.data[0].checksum, theirs.data[0].checksum] == ["a", "b"]


def test_what_limits_all_gradients_has_one_name() -> None:
    limits: dict[str, Any] = {"max": 1.0, "norm_type": 2.0, "total_norm": 3.0, "parameters": 4}
    own, theirs = shared(
        plain(events=[Clip(function="clip_by_global_norm", **limits)]),
        plain(events=[Clip(function="clip_grad_norm_", **limits)]),
    )
    assert own.events == theirs.events


def test_states_of_generators_are_not_compared() -> None:
    own, theirs = shared(plain(random={"numpy": "a"}), plain(random={"numpy": "b"}))
    assert own.random == theirs.random == {}


def outline(*calls: OutlinedCall) -> Facts:
    run = OutlineRun(parent=None, after=None, body=0)
    whole = Outline(calls=list(calls), bodies=[list(range(len(calls)))], runs=[run], is_whole=True)
    return plain(outline=whole)


def call(name: str, *arguments: str, source: str | None = "a.py:1", **named: str) -> OutlinedCall:
    return OutlinedCall(name=name, source=source, arguments=arguments, named=named)


def test_outlines_keep_the_calls_that_both_frameworks_make_alike() -> None:
    ours = outline(
        call("Tensor.astype", "tensor", "Float32"),
        call("Functional.dense", "tensor", "tensor", source=None),
        call("Tensor.transpose", "tensor", "0", "2", "1"),
        call("Functional.softmax", "tensor", axis="-1"),
        call("Functional.leaky_relu", "tensor", "0.01"),
        call("Functional.triu", "tensor", diagonal="1"),
    )
    theirs = outline(
        call("Functional.linear", "tensor", "tensor", source=None),
        call("Functional.softmax", "tensor", dim="-1", _stacklevel="3", dtype="None"),
        call("Functional.leaky_relu", "tensor", negative_slope="0.01", inplace="False"),
        call("Torch.triu", "tensor", diagonal="1"),
    )
    own, other = shared(ours, theirs)
    assert own.outline is not None
    assert other.outline is not None
    assert [each.named for each in own.outline.calls] == [
        each.named for each in other.outline.calls
    ]
    assert own.outline.bodies == other.outline.bodies == [[0, 1, 2]]


def test_a_default_of_mindspore_that_is_another_one_is_told() -> None:
    ours, theirs = (
        outline(call("Functional.leaky_relu", "tensor")),
        outline(call("Functional.leaky_relu", "tensor", negative_slope="0.01")),
    )
    own, other = shared(ours, theirs)
    assert own.outline is not None
    assert other.outline is not None
    assert own.outline.calls[0].named == {"negative_slope": "0.2", "input": "tensor"}
    assert other.outline.calls[0].named == {"input": "tensor"}
