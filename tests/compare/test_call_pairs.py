# SPDX-License-Identifier: Apache-2.0
"""Pairs of calls from a file: they are partners, and so is what is inside of them."""

from __future__ import annotations

import json

import pytest
from pairing import both, names_of

from builders.records import backward, forward, tensor
from msprobe import compare_dumps
from msprobe.compare.matching import pair_operations
from msprobe.compare.model import Match
from msprobe.compare.options import CompareOptions
from msprobe.errors import ConfigError, ConfigFileError


def names(stack, *, inner, calls=("linear", "relu")):
    """Return a stack of two modules and two APIs; innermost calls first."""
    outer = f"Module.{stack}.Stack.forward.0"
    modules = [f"Module.{stack}.{each}.Linear.forward.0" for each in inner]
    apis = [f"Functional.{api}.0.forward" for api in calls]
    parents = {modules[0]: outer, modules[1]: outer, apis[0]: modules[0], apis[1]: outer}
    return [outer, *modules, *apis], parents | {outer: None}


def dumps(folder, target, reference):
    """Write both sides with gradients; return them."""
    sides = []
    for calls, _ in (target, reference):
        records = {call: forward([tensor()], [tensor()]) for call in calls}
        for call in calls[:3]:
            base = call.removesuffix(".forward.0")
            records[f"{base}.backward.0"] = backward([tensor()], [tensor()])
            records[f"{base}.parameters_grad"] = {"weight": [tensor()]}
        sides.append(records)
    return both(folder, *sides, parents=target[1] | reference[1])


def pairs_file(folder, pairs, *, bare=False):
    path = folder / "pairs.json"
    path.write_text(json.dumps(pairs if bare else {"pairs": pairs}))
    return path


OLD = names("encoder", inner=("first", "second"))
NEW = names("body", inner=("up", "second"), calls=("matmul", "relu"))


@pytest.mark.parametrize("bare", [False, True])
def test_what_is_inside_of_two_modules_is_paired_with_them(tmp_path, bare):
    sides = dumps(tmp_path, NEW, OLD)
    path = pairs_file(tmp_path, {NEW[0][0]: OLD[0][0]}, bare=bare)
    found = pair_operations(*sides, CompareOptions(align="never", call_pairs=path))

    partners = dict(names_of(found))
    for place in range(3):
        base, other = (side[0][place].removesuffix(".forward.0") for side in (NEW, OLD))
        for end in ("forward.0", "backward.0", "parameters_grad"):
            assert partners[f"{base}.{end}"] == f"{other}.{end}"
    assert partners["Functional.relu.0.forward"] == "Functional.relu.0.forward"
    by_name = {pair.target: pair for pair in found}
    assert by_name[NEW[0][0]].match is Match.MAPPED
    assert by_name[NEW[0][2]].confidence == 1.0  # the same name
    assert by_name[NEW[0][1]].confidence == 0.8  # the same class


def test_a_line_of_its_own_goes_before_the_names_around_it(tmp_path):
    sides = dumps(tmp_path, NEW, OLD)
    wanted = {NEW[0][0]: OLD[0][0], NEW[0][2]: OLD[0][1]}
    options = CompareOptions(align="never", call_pairs=pairs_file(tmp_path, wanted))
    partners = dict(names_of(pair_operations(*sides, options)))

    assert {call: partners[call] for call in wanted} == wanted
    assert partners[NEW[0][1]] == OLD[0][2]  # what is left


def test_equal_names_give_way_to_the_file(tmp_path):
    calls = [f"Functional.relu.{number}.forward" for number in (0, 1)]
    records = {call: forward([tensor()], [tensor()]) for call in calls}
    sides = both(tmp_path, records, records)
    options = CompareOptions(call_pairs=pairs_file(tmp_path, {calls[0]: calls[1]}))
    assert (calls[0], calls[1]) in names_of(pair_operations(*sides, options))


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ({NEW[0][0][:-1] + "7": OLD[0][0]}, ["a call of the target", f'"{NEW[0][0]}"?']),
        ({NEW[0][0]: OLD[0][0][:-1] + "7"}, ["a call of the reference", f'"{OLD[0][0]}"?']),
        ({NEW[0][0]: "Module.encoder.Stack.backward.0"}, ["forward and forward"]),
        ({NEW[0][0]: OLD[0][0], NEW[0][1]: OLD[0][0]}, ["each call of the reference once"]),
        ({NEW[0][0]: ["x"]}, ["the name of a call of the reference"]),
    ],
)
def test_faults_of_the_file_are_told(tmp_path, pairs, words):
    dumps(tmp_path, NEW, OLD)
    path = pairs_file(tmp_path, pairs)
    with pytest.raises(ConfigError) as raised:
        compare_dumps(tmp_path / "target", tmp_path / "reference", call_pairs=path)
    for word in [*words, "pairs.json, line 1"]:
        assert word in str(raised.value)


def test_a_file_that_is_none(tmp_path):
    dumps(tmp_path, NEW, OLD)
    with pytest.raises(ConfigFileError):
        compare_dumps(tmp_path / "target", tmp_path / "reference", call_pairs=tmp_path / "none")
