# SPDX-License-Identifier: Apache-2.0
"""Facts about operators, by the names that the frameworks give them."""

from __future__ import annotations

from collections import Counter

import pytest

from msprobe.operators.lookup import (
    is_in_place,
    operator_named,
    operator_of,
    operators,
    suggests,
)
from msprobe.operators.mindspore_layers import DECOMPOSITIONS
from msprobe.operators.operator import Family, Flow, Hint, InPlace, Linear, Unordered


def test_one_operator_has_many_names() -> None:
    assert operator_of("Tensor", "__imatmul__") == operator_of("Torch", "matmul")
    assert operator_of("Torch", "clip") == operator_of("Tensor", "clamp_")
    assert operator_of("Torch", "sub") != operator_of("Tensor", "__rsub__")
    assert operator_named("LayerNorm") == operator_of("Functional", "layer_norm")
    assert operator_of("Torch", "bmm").kin == operator_of("Tensor", "__matmul__").kin


def test_unknown_functions_are_equal_to_nothing_else() -> None:
    assert operator_of("Torch", "mine").name == operator_of("Tensor", "mine_").name
    assert operator_of("Torch", "_mine").name != operator_of("Torch", "mine").name
    assert operator_of("Mine", "add").name != operator_of("Torch", "add").name


@pytest.mark.parametrize("name", ["gather", "select", "transpose", "equal"])
def test_equal_names_that_mean_different_things(name: str) -> None:
    in_mindspore = operator_of("Functional", name, is_mindspore=True)
    assert in_mindspore.name != operator_of("Torch", name).name


def test_collectives_are_apart_from_other_operators() -> None:
    gather = operator_of("Distributed", "gather")
    assert gather.communication is not None
    assert gather.communication.flow is Flow.TO_ROOT
    assert operator_of("Torch", "gather").communication is None
    functional = operator_of("Distributed", "functional_all_gather_into_tensor")
    assert not functional.fills(0)
    assert operator_of("Distributed", "all_gather_into_tensor").fills("output_tensor")


def test_names_and_positions_of_parameters() -> None:
    linear = operator_of("Functional", "linear")
    assert [linear.takes_state(place) for place in ("0", "1", "bias")] == [False, True, True]
    assert linear.family is Family.BILINEAR


def test_what_calls_in_place_read() -> None:
    assert operator_of("Tensor", "add_").in_place is None
    for name in ("zero_", "copy_", "uniform_", "_foreach_copy_", "kaiming_uniform_"):
        assert operator_of("Torch", name).in_place is InPlace.OVERWRITES
    assert operator_of("Tensor", "__setitem__").in_place is InPlace.ASSIGNS
    assert operator_of("Tensor", "resize_").in_place is InPlace.EXTENDS


@pytest.mark.parametrize("name", ["shape.__get__", "__len__", "__add__", "relu"])
def test_names_of_functions_that_change_nothing(name: str) -> None:
    assert not is_in_place(name)


def test_memory_of_new_tensors() -> None:
    for name in ("empty_like", "new_empty", "_empty_affine_quantized"):
        assert operator_of("Torch", name).allocates
    for name in ("zeros_like", "new_full", "randn_like"):
        assert operator_of("Torch", name).reads_shape_only
        assert not operator_of("Torch", name).allocates


def test_outputs_that_mindspore_leaves_unwritten() -> None:
    norm = operator_of("Primitive", "bn_train.BatchNorm", is_mindspore=True)
    assert norm.unwritten_outputs == (1, 2)
    assert operator_of("Primitive", "LSTM", is_mindspore=True).unwritten_outputs == (3, 4)
    assert operator_of("Functional", "layer_norm").unwritten_outputs == ()


def test_facts_that_operators_of_several_families_have() -> None:
    assert operator_of("Tensor", "half").casts
    assert not operator_of("Tensor", "long").casts
    assert operator_of("Tensor", "__imul__").linear is Linear.NUMBERS_TOO
    norm = operator_of("Torch", "linalg_norm")
    assert (norm.unordered, norm.arguments.index("dim")) == (Unordered.REDUCED, 2)
    assert norm.is_singular
    assert operator_of("Distributed", "reduce").linear is None
    foreign = operator_of("my_ops", "linear")
    assert (foreign.family, foreign.linear, foreign.unordered) == (Family.BILINEAR, None, None)
    assert not operator_of("my_ops", "double").casts


def test_words_in_names_of_what_is_not_known() -> None:
    assert suggests("Module.net.drop_path.DropPath.forward.0", Hint.FOLLOWS_MODE)
    assert suggests("InstanceNorm2d", Hint.FOLLOWS_MODE)
    assert not suggests("Functional.linear.0.forward", Hint.DRAWS_RANDOM)


def test_every_operator_has_one_entry() -> None:
    counts = Counter(operator.name for operator in operators())
    assert [name for name, count in counts.items() if count > 1] == []


def test_layers_of_mindspore_are_known_operators() -> None:
    for decomposition in DECOMPOSITIONS:
        arguments = operator_of("Functional", decomposition.operator).arguments
        taken = {name for step in decomposition.steps for name in step.arguments}
        assert taken - {"", "flow"} <= set(arguments), decomposition.operator
        assert decomposition.head in {step.api for step in decomposition.steps}
