# SPDX-License-Identifier: Apache-2.0
"""Operations find their partners by name, by other names of one operation, and by their calls."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
from pairing import both, names_of, write_side

from builders.records import backward, forward, tensor
from msprobe.compare.matching import pair_operations
from msprobe.compare.model import Match, OperationPair
from msprobe.compare.options import CompareOptions


def records(*names: str) -> dict[str, Any]:
    """Return a record for each name, with values of its own."""
    made: dict[str, Any] = {}
    for name in names:
        values = [tensor(number=zlib.crc32(name.encode()) / 1e9)]
        is_gradient = ".parameters_grad" in name
        made[name] = (
            {"weight": values}
            if is_gradient
            else backward(values, values)
            if ".backward" in name
            else forward(values, values)
        )
    return made


def pairs_of(
    directory: Path, target: Any, reference: Any, options: CompareOptions | None = None, **more: Any
) -> list[OperationPair]:
    sides = both(directory, records(*target), records(*reference), **more)
    return pair_operations(*sides, options or CompareOptions())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Tensor.__add__", "Torch.add"),
        ("Tensor.__iadd__", "Tensor.add_"),
        ("Tensor.__radd__", "Tensor.__add__"),
        ("Tensor.__matmul__", "Torch.matmul"),
        ("Functional.relu", "Torch.relu_"),
        ("Torch.cat", "Torch.concatenate"),
        ("Tensor.__truediv__", "Torch.true_divide"),
        ("Tensor.__gt__", "Torch.greater"),
        ("VF.lstm", "Torch.lstm"),
        ("Distributed.all_reduce", "Distributed.functional_all_reduce"),
        ("NPU.npu_rms_norm", "Functional.rms_norm"),
    ],
)
def test_names_of_one_operation(tmp_path: Path, first: str, second: str) -> None:
    for a, b in ((first, second), (second, first)):
        [pair] = pairs_of(tmp_path / a, [f"{a}.0.forward"], [f"{b}.0.forward"])
        assert (pair.target, pair.reference) == (f"{a}.0.forward", f"{b}.0.forward")
        assert pair.match is Match.ALIAS
        assert 0.5 < pair.confidence < 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Tensor.__rsub__", "Tensor.__sub__"),  # the arguments stand the other way round
        ("Torch.max", "Torch.min"),
        ("mylib.relu", "Functional.relu"),  # somebody's own function may do anything
        ("Distributed.gather", "Torch.gather"),
        ("Module.a.Linear", "Module.b.Conv2d"),
    ],
)
def test_different_operations_are_no_partners(tmp_path: Path, first: str, second: str) -> None:
    def record(api: str) -> str:
        return f"{api}.forward.0" if api.startswith("Module") else f"{api}.0.forward"

    pairs = pairs_of(tmp_path, [record(first)], [record(second)])
    assert {pair.match for pair in pairs} == {Match.UNMATCHED}
    assert {pair.confidence for pair in pairs} == {0.0}


def test_relatives_are_partners_when_nothing_better_is_left(tmp_path: Path) -> None:
    pairs = pairs_of(tmp_path, ["Torch.bmm.0.forward"], ["Torch.matmul.0.forward"])
    assert names_of(pairs) == [("Torch.bmm.0.forward", "Torch.matmul.0.forward")]
    assert pairs[0].confidence < 0.7


def test_equal_names_of_equally_many_calls_pair_without_their_values(tmp_path: Path) -> None:
    target = {**records("Torch.a.0.forward", "Torch.b.0.forward", "Torch.new.0.forward")}
    reference = records("Torch.b.0.forward", "Torch.a.0.forward")
    pairs = pair_operations(*both(tmp_path, target, reference), CompareOptions())
    assert [(pair.name, pair.match) for pair in pairs] == [
        ("Torch.a.0.forward", Match.EXACT),
        ("Torch.b.0.forward", Match.EXACT),
        ("Torch.new.0.forward", Match.UNMATCHED),
    ]


def test_call_in_another_module_is_another_call(tmp_path: Path) -> None:
    """The counts agree, but one call was dropped in `a` and another one added in `b`."""
    shared = ["Torch.relu.0.forward", "Torch.relu.1.forward", "Torch.relu.2.forward"]

    def side(source: str, modules: str) -> Any:
        parents = {
            name: f"Module.{module}.M.forward.0"
            for name, module in zip(shared, modules, strict=True)
        }
        return write_side(tmp_path, records(*shared), source=source, parents=parents)

    pairs = pair_operations(side("target", "aab"), side("reference", "abb"), CompareOptions())
    partners = dict(names_of(pairs))
    assert partners["Torch.relu.0.forward"] == "Torch.relu.0.forward"
    assert partners["Torch.relu.2.forward"] == "Torch.relu.2.forward"


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod.", "0.", "model."])
def test_wrapped_models_pair_with_bare_ones(tmp_path: Path, wrapper: str) -> None:
    bare = ["blocks.0.fc.Linear", "blocks.0.Block", "blocks.1.fc.Linear", "blocks.1.Block"]

    def names(prefix: str) -> list[str]:
        forwards = [f"Module.{prefix}{path}.forward.0" for path in bare]
        gradients = [f"Module.{prefix}{path}.parameters_grad" for path in bare]
        return [*forwards, f"Module.{prefix}blocks.1.fc.Linear.backward.0", *gradients]

    outer = f"Module.{wrapper}Model.forward.0" if wrapper == "module." else None
    target = [*names(wrapper), *([outer, "Module.DDP.forward.0"] if outer else [])]
    reference = [*names(""), *(["Module.Model.forward.0"] if outer else [])]
    for swap in (False, True):
        a, b = (reference, target) if swap else (target, reference)
        pairs = pairs_of(tmp_path / str(swap), a, b)
        expected = list(zip(names(wrapper), names(""), strict=True))
        found = [(r, t) if swap else (t, r) for t, r in names_of(pairs)]
        assert [pair for pair in found if None not in pair][: len(expected)] == expected
        if outer:
            assert (outer, "Module.Model.forward.0") in found
            assert ("Module.DDP.forward.0", None) in found
        assert {p.match for p in pairs} <= {Match.ALIAS, Match.UNMATCHED}


def test_paths_that_only_look_like_wrappers_stay_apart(tmp_path: Path) -> None:
    inner, bare, outer = (f"Module.{path}.forward.0" for path in ("a.module.b.N", "a.b.N", "a.A"))
    pairs = pairs_of(tmp_path, [inner, bare, outer], [bare, outer])
    # Both are "a.b" without wrappers, which lie outside of what they wrap: the inner one is it.
    assert names_of(pairs) == [(inner, bare), (bare, None), (outer, outer)]


def test_equal_paths_need_no_rules(tmp_path: Path) -> None:
    names = ["Module.module.a.Linear.forward.0", "Module._orig_mod.Linear.forward.0"]
    pairs = pairs_of(tmp_path, names, names)
    assert names_of(pairs) == list(zip(names, names, strict=True))
    assert {pair.match for pair in pairs} == {Match.EXACT}


def test_same_path_with_another_class_is_the_same_module(tmp_path: Path) -> None:
    [pair] = pairs_of(
        tmp_path, ["Module.norm.FusedLayerNorm.forward.0"], ["Module.norm.LayerNorm.forward.0"]
    )
    assert (pair.match, pair.confidence) == (Match.ALIAS, 0.8)


def test_renamed_modules_pair_by_class_and_order(tmp_path: Path) -> None:
    target = ["Module.enc.a.Linear.forward.0", "Module.enc.b.Conv2d.forward.0"]
    reference = ["Module.x.q.Linear.forward.0", "Module.y.Conv2d.forward.0"]
    pairs = pairs_of(tmp_path, target, reference)
    assert names_of(pairs) == list(zip(target, reference, strict=True))
    assert all(pair.confidence < 0.7 for pair in pairs)


def test_backward_follows_its_forward(tmp_path: Path) -> None:
    target = [f"Torch.relu.{n}.{way}" for way in ("forward", "backward") for n in (0, 1, 2)]
    reference = [f"Torch.relu.{n}.{way}" for way in ("forward", "backward") for n in (0, 1)]
    made = records(*target), records(*reference)
    # The target's first call is new: its values are nowhere in the reference.
    for n in (0, 1):
        made[1][f"Torch.relu.{n}.forward"] = made[0][f"Torch.relu.{n + 1}.forward"]
    pairs = pair_operations(*both(tmp_path, *made), CompareOptions())
    assert dict(names_of(pairs)) == {
        "Torch.relu.0.forward": None,
        "Torch.relu.1.forward": "Torch.relu.0.forward",
        "Torch.relu.2.forward": "Torch.relu.1.forward",
        "Torch.relu.0.backward": None,
        "Torch.relu.1.backward": "Torch.relu.0.backward",
        "Torch.relu.2.backward": "Torch.relu.1.backward",
    }


def test_later_passes_and_recomputed_records_follow_too(tmp_path: Path) -> None:
    suffixes = ["forward", "forward.recompute", "backward", "backward.pass1"]
    target = [f"Tensor.__add__.0.{suffix}" for suffix in suffixes]
    reference = [f"Torch.add.0.{suffix}" for suffix in suffixes]
    pairs = pairs_of(tmp_path, target, reference)
    assert names_of(pairs) == list(zip(target, reference, strict=True))
    modules = [f"Module.m.fc.L.forward.0{end}" for end in ("", ".recompute")]
    modules += [f"Module.m.fc.L.backward.0{end}" for end in ("", ".pass1")]
    bare = [name.replace("Module.m.", "Module.module.m.") for name in modules]
    pairs = pairs_of(tmp_path / "2", modules, bare)
    assert names_of(pairs) == list(zip(modules, bare, strict=True))


def test_backward_numbered_after_the_recomputed_call(tmp_path: Path) -> None:
    """Checkpointing makes some captures number the recomputed call, and give it the gradient."""
    names = ["Torch.relu.0.forward", "Torch.relu.1.forward"]
    target = [*names, "Torch.relu.1.backward", "Torch.relu.0.backward"]
    reference = [
        *names,
        *("Torch.relu.2.forward", "Torch.relu.2.backward"),
        *("Torch.relu.3.forward", "Torch.relu.3.backward"),
    ]
    pairs = pairs_of(tmp_path, target, reference)
    assert names_of(pairs) == [
        ("Torch.relu.0.forward", "Torch.relu.0.forward"),
        ("Torch.relu.1.forward", "Torch.relu.1.forward"),
        (None, "Torch.relu.2.forward"),
        ("Torch.relu.1.backward", "Torch.relu.2.backward"),
        (None, "Torch.relu.3.forward"),
        ("Torch.relu.0.backward", "Torch.relu.3.backward"),
    ]


def test_dumps_of_gradients_alone(tmp_path: Path) -> None:
    target = ["Torch.a.1.backward", "Torch.b.0.backward", "Torch.a.0.backward"]
    pairs = pairs_of(tmp_path, target, [*target, "Torch.c.0.backward"])
    assert names_of(pairs) == [*[(name, name) for name in target], (None, "Torch.c.0.backward")]


def test_parameter_gradients_of_renamed_modules_follow_the_calls(tmp_path: Path) -> None:
    def names(*modules: str) -> list[str]:
        calls = [f"Module.{each}.Linear.forward.0" for each in modules]
        return calls + [f"Module.{each}.Linear.parameters_grad" for each in reversed(modules)]

    target, reference = names("body.fc", "head"), names("layers.dense", "out")
    found = [(pair.target, pair.reference) for pair in pairs_of(tmp_path, target, reference)]
    assert found == list(zip(target, reference, strict=True))


def test_parameter_gradients_of_a_shared_module_follow_no_single_call(tmp_path: Path) -> None:
    target = [f"Module.shared.Linear.{end}" for end in ("forward.0", "forward.1")]
    reference = [f"Module.{each}.Linear.forward.0" for each in ("a", "b")]
    gradients = [name.replace("forward.0", "parameters_grad") for name in (target[0], *reference)]
    found = pairs_of(tmp_path, [*target, gradients[0]], [*reference, *gradients[1:]])
    assert [pair.is_matched for pair in found] == [True, True, False, False, False]


@pytest.mark.parametrize("suffix", ["parameters_grad", "parameters_grad.0"])
def test_gradients_of_parameters_pair_by_module(tmp_path: Path, suffix: str) -> None:
    target = ["Module.fc.Linear.parameters_grad", "Module.fc.Linear.parameters_grad_reduced"]
    reference = [f"Module.module.fc.Linear.{suffix}"]
    pairs = pairs_of(tmp_path, target, reference)
    assert names_of(pairs) == [(target[0], reference[0]), (target[1], None)]
    assert (pairs[0].match, pairs[0].confidence) == (Match.ALIAS, 1.0)


def test_saved_values_pair_by_name_and_order(tmp_path: Path) -> None:
    target = ["loss.0.debug", "loss.1.debug", "odd name"]
    reference = ["odd name", "loss.0.debug"]
    pairs = pairs_of(tmp_path, target, reference, level="debug")
    partners = dict(names_of(pairs))
    assert partners["loss.0.debug"] == "loss.0.debug"
    assert partners["odd name"] == "odd name"
    assert partners["loss.1.debug"] is None


def test_without_alignment_numbers_count(tmp_path: Path) -> None:
    target = ["Torch.relu.0.forward", "Torch.relu.1.forward", "Torch.x.0.forward"]
    reference = ["Torch.relu.1.forward", "Torch.bmm.0.forward"]
    never = CompareOptions(align="never")
    pairs = pairs_of(tmp_path, target, reference, never)
    assert names_of(pairs) == [
        ("Torch.relu.0.forward", None),
        ("Torch.relu.1.forward", "Torch.relu.1.forward"),
        ("Torch.x.0.forward", None),
        (None, "Torch.bmm.0.forward"),
    ]


def test_modules_that_ran_in_another_order(tmp_path: Path) -> None:
    """q, k, v on one side and k, v, q on the other: calls go with their modules."""
    parts: dict[str, Any] = {}
    for source, order in (("target", "qkv"), ("reference", "kvq")):
        parents = {
            f"Functional.linear.{n}.forward": f"Module.{m}.L.forward.0" for n, m in enumerate(order)
        }
        names = [
            name
            for n, m in enumerate(order)
            for name in (f"Functional.linear.{n}.forward", f"Module.{m}.L.forward.0")
        ]
        parts[source] = write_side(tmp_path, records(*names), source=source, parents=parents)
    pairs = pair_operations(parts["target"], parts["reference"], CompareOptions())
    assert dict(names_of(pairs)) == {
        "Functional.linear.0.forward": "Functional.linear.2.forward",
        "Functional.linear.1.forward": "Functional.linear.0.forward",
        "Functional.linear.2.forward": "Functional.linear.1.forward",
        **{f"Module.{m}.L.forward.0": f"Module.{m}.L.forward.0" for m in "qkv"},
    }


def test_empty_dumps(tmp_path: Path) -> None:
    assert pairs_of(tmp_path, [], []) == []
    [pair] = pairs_of(tmp_path / "2", [], ["Torch.x.0.forward"])
    assert (pair.target, pair.reference, pair.position) == (None, "Torch.x.0.forward", 0)


def test_one_call_more_is_known_by_the_line_that_made_it(tmp_path: Path) -> None:
    """One side divides the loss twice; its first division is nearer to the other side's only."""

    def division(by: int, loss: float) -> Any:
        given, result = (
            tensor((), **dict.fromkeys(("Max", "Min", "Mean", "Norm"), number))
            for number in (loss, loss / by)
        )
        return forward([given, {"type": "int", "value": by}], [result])

    own, both_sides = (
        [f"File {file}, line {line}, in step, \n {code}"]
        for file, line, code in (("m.py", 7, "loss = loss / 3"), ("t.py", 9, "loss = loss / 2"))
    )
    first, second = "Tensor.__truediv__.0.forward", "Tensor.__truediv__.1.forward"
    target = write_side(
        tmp_path,
        {first: division(3, 12.0), second: division(2, 4.0)},
        stacks={first: own, second: both_sides},
    )
    moved = [both_sides[0].replace("line 9", "line 8")]
    reference = write_side(
        tmp_path, {first: division(2, 12.0)}, source="reference", stacks={first: moved}
    )

    pairs = pair_operations(target, reference, CompareOptions())

    assert names_of(pairs) == [(first, None), (second, first)]
