# SPDX-License-Identifier: Apache-2.0
"""Calls are aligned by order, module and values: one further call shifts nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pairing import write_side

from builders.programs import Call, Program, run, transformer, with_insertions
from msprobe.compare.matching import pair_operations
from msprobe.compare.matching.sequences import (
    align,
    longest_increasing,
    merged_order,
    monotone,
    most_alike,
)
from msprobe.compare.model import Match, OperationPair
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side

words = st.lists(st.integers(0, 3), max_size=14)
calls = st.lists(
    st.builds(
        Call,
        st.sampled_from(["Functional.linear", "Tensor.__add__", "Torch.relu", "Torch.cat"]),
        st.sampled_from(["", "a", "a.b", "c"]),
        st.sampled_from([(2,), (2, 3)]),
        st.floats(0.1, 9),
    ),
    min_size=1,
    max_size=25,
)


def longest_common(first: Sequence[int], second: Sequence[int]) -> int:
    """The textbook table, as an oracle."""
    best = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            best[i + 1][j + 1] = best[i][j] + 1 if a == b else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


@given(words, words)
def test_aligned_tokens_are_equal_and_in_order(first: list[int], second: list[int]) -> None:
    pairs = align(first, second)
    assert all(first[i] == second[j] for i, j in pairs)
    for (i, j), (k, m) in itertools.pairwise(pairs):
        assert i < k
        assert j < m
    if set(first) & set(second):
        assert pairs


@given(words, st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=5))
def test_alignment_of_a_longer_sequence_with_its_part_is_complete(
    part: list[int], insertions: list[tuple[int, int]]
) -> None:
    whole = list(part)
    for place, token in insertions:
        whole.insert(min(place, len(whole)), token)
    assert longest_common(whole, part) == len(part)
    assert len(align(whole, part)) >= len(part) - len(insertions)
    assert len(align(part, part)) == len(part)


def test_alignment_without_unique_tokens_is_longest() -> None:
    chance = random.Random(3)
    for _ in range(200):
        # Each token twice or more on either side: no anchors, so the exact algorithm decides.
        first = [0, 0, 1, 1] + [chance.randrange(2) for _ in range(12)]
        second = [1, 1, 0, 0] + [chance.randrange(2) for _ in range(12)]
        assert len(align(first, second)) == longest_common(first, second)


@given(st.lists(st.integers(0, 30), max_size=12))
def test_longest_increasing_subsequence(values: list[int]) -> None:
    places = longest_increasing(values)
    chosen = [values[place] for place in places]
    assert places == sorted(places)
    assert all(a < b for a, b in itertools.pairwise(chosen))
    assert len(chosen) == longest_common(values, sorted(set(values)))


def test_monotone_keeps_the_larger_part() -> None:
    assert monotone([(0, 5), (1, 1), (2, 2), (3, 3)]) == [(1, 1), (2, 2), (3, 3)]


@given(st.lists(st.integers(-1, 6), max_size=7), st.integers(7, 9))
def test_merged_order_has_everything_once(partners: list[int], reference_count: int) -> None:
    seen: set[int] = set()
    partners = [p if p < 0 or not (p in seen or seen.add(p)) else -1 for p in partners]  # type: ignore[func-returns-value]
    order = merged_order(len(partners), reference_count, partners)
    assert [t for t, _ in order if t is not None] == list(range(len(partners)))
    assert sorted(r for _, r in order if r is not None) == list(range(reference_count))
    lonely = [r for t, r in order if t is None]
    assert lonely == sorted(r for r in range(reference_count) if r not in partners)


def test_lonely_operations_stand_where_they_ran() -> None:
    #  target:    a b X c      reference:  a Y b c Z
    order = merged_order(4, 5, [0, 2, -1, 3])
    assert order == [(0, 0), (None, 1), (1, 2), (2, None), (3, 3), (None, 4)]


def test_a_pair_that_ran_elsewhere_does_not_move_the_others() -> None:
    # The first operation of the target ran last on the other side.
    order = merged_order(3, 4, [3, 0, 2])
    assert order == [(0, 3), (1, 0), (None, 1), (2, 2)]


def sides(
    directory: Path, target: Program, reference: Program, *, with_modules: bool
) -> tuple[Side, Side]:
    return tuple(  # type: ignore[return-value]  # two of them
        write_side(
            directory,
            program.records,
            source=source,
            parents=program.parents if with_modules else None,
        )
        for program, source in ((target, "target"), (reference, "reference"))
    )


def wrong_pairs(
    pairs: Sequence[OperationPair], target: Program, reference: Program
) -> list[tuple[str | None, str | None]]:
    """Return pairs of forward calls that are not the same call, by its number."""
    numbers = {name: call.number for name, call in target.calls.items()}
    others = {name: call.number for name, call in reference.calls.items()}
    return [
        (pair.target, pair.reference)
        for pair in pairs
        if pair.target in numbers
        and pair.reference in others
        and numbers[pair.target] != others[pair.reference]
    ]


def lonely(pairs: Sequence[OperationPair], *, forward: bool = True) -> tuple[set[str], set[str]]:
    ends = ".forward" if forward else ".backward"
    alone = [pair for pair in pairs if pair.match is Match.UNMATCHED and pair.name.endswith(ends)]
    return (
        {pair.target for pair in alone if pair.target is not None},
        {pair.reference for pair in alone if pair.reference is not None},
    )


@pytest.mark.parametrize("with_modules", [True, False])
@settings(max_examples=30, deadline=None)
@given(calls=calls, count=st.integers(1, 5), seed=st.integers(0, 999))
def test_every_inserted_call_is_found(
    with_modules: bool, calls: list[Call], count: int, seed: int
) -> None:
    numbered = [replace(call, number=n + 0.5) for n, call in enumerate(calls)]
    longer, shorter = run(with_insertions(numbered, count, seed)), run(numbered)
    with TemporaryDirectory() as folder:
        target, reference = sides(Path(folder), longer, shorter, with_modules=with_modules)
        pairs = pair_operations(target, reference, CompareOptions())
        swapped = pair_operations(reference, target, CompareOptions())
    new = {name for name, call in longer.calls.items() if call.is_new}
    assert wrong_pairs(pairs, longer, shorter) == []
    assert lonely(pairs) == (new, set())
    gradients = {name.removesuffix("forward") + "backward" for name in new}
    assert lonely(pairs, forward=False) == (gradients, set())
    # What is found does not depend on which side is which.
    found = {(pair.target, pair.reference, pair.match, pair.confidence) for pair in pairs}
    assert found == {(p.reference, p.target, p.match, p.confidence) for p in swapped}
    assert [pair.position for pair in pairs] == list(range(len(pairs)))
    assert [p.target for p in pairs if p.target] == list(target.names)


@given(
    st.integers(0, 5).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=width, max_size=width),
            max_size=5,
        )
    )
)
def test_most_alike_pairs_are_the_best_of_all(likes: list[list[float]]) -> None:
    pairs = most_alike(likes)
    assert pairs == monotone(pairs)
    height, width = len(likes), len(likes[0]) if likes else 0
    everything = [(i, j) for i in range(height) for j in range(width)]

    def best(low: tuple[int, int]) -> float:
        return max(
            (
                likes[i][j] + best((i + 1, j + 1))
                for i, j in everything
                if i >= low[0] and j >= low[1]
            ),
            default=0.0,
        )

    assert sum(likes[i][j] for i, j in pairs) == best((0, 0))


@pytest.mark.parametrize("with_modules", [True, False])
def test_insertions_on_both_sides_of_runs_that_differ_a_little(
    tmp_path: Path, with_modules: bool
) -> None:
    calls = transformer(40, seed=7)
    first = run(with_insertions(calls, 40, seed=8))
    second = run(scaled(with_insertions(calls, 40, seed=9), 1.02))
    target, reference = sides(tmp_path, first, second, with_modules=with_modules)
    pairs = pair_operations(target, reference, CompareOptions())
    partners = {pair.target: pair.reference for pair in pairs if pair.target}
    numbers = {round(call.number / 1.02, 9): name for name, call in second.calls.items()}
    olds = [(name, call) for name, call in first.calls.items() if not call.is_new]
    right = sum(partners[name] == numbers[round(call.number, 9)] for name, call in olds)
    assert right >= len(olds) - 4  # of 480: where an insertion has nearly the same values


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), counts=st.tuples(st.integers(0, 8), st.integers(0, 8)))
def test_insertions_on_both_sides(seed: int, counts: tuple[int, int]) -> None:
    calls = transformer(3, seed)
    first = run(with_insertions(calls, counts[0], seed + 1))
    second = run(with_insertions(calls, counts[1], seed + 2))
    # One more softmax in the same module on either side: only values could say that the first is
    # none of the second's, and values may differ for the very reason that one looks for.
    assume(not _kinds_of_new(first) & _kinds_of_new(second))
    with TemporaryDirectory() as folder:
        target, reference = sides(Path(folder), first, second, with_modules=True)
        pairs = pair_operations(target, reference, CompareOptions())
    partners = {pair.target: pair.reference for pair in pairs if pair.target}
    numbers = {call.number: name for name, call in second.calls.items()}
    for name, call in first.calls.items():
        if not call.is_new:
            assert partners[name] == numbers[call.number]


def _kinds_of_new(program: Program) -> set[tuple[str, str]]:
    """Return name (`Tensor.__matmul__` as `Torch.matmul`) and module of the inserted calls."""
    names = ((call.api.rpartition(".")[2].strip("_"), call) for call in program.calls.values())
    return {(name, call.module) for name, call in names if call.is_new}


@settings(max_examples=15, deadline=None)
@given(calls=calls, align=st.sampled_from(["auto", "always", "never"]))
def test_equal_dumps_pair_completely(calls: list[Call], align: str) -> None:
    program = run(calls)
    with TemporaryDirectory() as folder:
        target, reference = sides(Path(folder), program, program, with_modules=True)
        pairs = pair_operations(target, reference, CompareOptions(align=align))  # type: ignore[arg-type]
    assert [(p.target, p.reference) for p in pairs] == [(name, name) for name in target.names]
    assert {(pair.match, pair.confidence) for pair in pairs} == {(Match.EXACT, 1.0)}


def scaled(calls: Sequence[Call], factor: float) -> list[Call]:
    return [replace(call, number=call.number * factor) for call in calls]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("values", ["same", "near", "md5"])
@pytest.mark.parametrize("with_modules", [True, False])
def test_many_insertions_are_found_quickly(tmp_path: Path, values: str, with_modules: bool) -> None:
    calls = transformer(80)  # 1,920 records, 3,840 values
    longer = run(with_insertions(calls, 100, seed=1))
    shorter = run(scaled(calls, 1.02) if values == "near" else calls)
    if values == "md5":
        for program in (longer, shorter):
            for record in program.records.values():
                for part in record.values():
                    for entry in part:
                        entry["md5"] = f"{hash(entry['Norm']) & 0xFFFFFFFF:08x}"
                        entry.update(dict.fromkeys(("Max", "Min", "Mean", "Norm")))
    target, reference = sides(tmp_path, longer, shorter, with_modules=with_modules)
    pairs = pair_operations(target, reference, CompareOptions())
    new = {name for name, call in longer.calls.items() if call.is_new}
    found, others = lonely(pairs)
    assert others == set()
    assert found == new


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["identical", "periodic", "random", "strangers"])
def test_hard_sequences_stay_fast(kind: str) -> None:
    chance = random.Random(0)
    first, second = {
        "identical": ([0] * 20_000, [0] * 20_400),
        "periodic": ([i % 7 for i in range(20_000)], [i % 7 for i in range(3, 20_400)]),
        "random": (
            [chance.randrange(4) for _ in range(8_000)],
            [chance.randrange(4) for _ in range(8_000)],
        ),
        "strangers": (list(range(20_000)), list(range(20_000, 40_000))),
    }[kind]
    pairs = align(first, second)
    least = {"identical": 20_000, "periodic": 19_990, "random": 2_000, "strangers": 0}[kind]
    assert len(pairs) >= least


@pytest.mark.timeout(60)
def test_a_run_of_equal_calls_is_linear(tmp_path: Path) -> None:
    calls = [Call("Torch.relu", "a", (2,), 1.0)] * 3_000
    longer, shorter = run([*calls, *calls[:50]], backwards=False), run(calls, backwards=False)
    target, reference = sides(tmp_path, longer, shorter, with_modules=True)
    pairs = pair_operations(target, reference, CompareOptions())
    assert sum(pair.match is not Match.UNMATCHED for pair in pairs) == 3_000


def test_in_a_run_of_equal_calls_the_odd_one_is_left_out(tmp_path: Path) -> None:
    """Values decide where order alone says nothing: the third of four is new."""
    calls = [Call("Torch.relu", "a", (2,), number) for number in (1.0, 10.0, 100.0)]
    new = Call("Torch.relu", "a", (2,), 31.0, is_new=True)
    longer = run([*calls[:2], new, *calls[2:]])
    shorter = run(scaled(calls, 1.01))
    target, reference = sides(tmp_path, longer, shorter, with_modules=True)
    pairs = pair_operations(target, reference, CompareOptions())
    assert lonely(pairs) == ({"Torch.relu.2.forward"}, set())


def test_one_call_more_here_and_one_less_there(tmp_path: Path) -> None:
    """The counts agree, and no module tells; still no call is taken for its neighbour."""
    apis = ["Torch.relu", "Torch.add", "Torch.relu", "Torch.mul", "Torch.relu", "Torch.sub"]
    calls = [Call(api, "", (2,), n + 1.0) for n, api in enumerate(apis)]
    new = Call("Torch.relu", "", (2,), 50.0, is_new=True)
    more, less = run([new, *calls[:4], *calls[5:]]), run(calls)
    target, reference = sides(tmp_path, more, less, with_modules=False)
    pairs = pair_operations(target, reference, CompareOptions())
    assert wrong_pairs(pairs, more, less) == []
    assert lonely(pairs) == ({"Torch.relu.0.forward"}, {"Torch.relu.2.forward"})


def test_equal_values_do_not_pair_neighbours_where_pairs_in_step_are_as_equal(
    tmp_path: Path,
) -> None:
    """A model and its frozen copy compute the same; on one side the first does in another type."""
    copy = Call("Torch.sub", "", (2,), 1.0)
    before, after = (Call("Torch.sub", "", (n,), float(n)) for n in (4, 5))
    calls = [before, copy, copy, after]
    new = Call("Torch.sub", "", (3,), 50.0, is_new=True)
    coarse = [new, *scaled([before, copy], 1.01), copy, *scaled([after], 1.01)]
    sides_of = run(coarse, backwards=False), run(calls, backwards=False)
    target, reference = sides(tmp_path, *sides_of, with_modules=False)
    pairs = pair_operations(target, reference, CompareOptions())
    assert lonely(pairs) == ({"Torch.sub.0.forward"}, set())


def test_calls_that_moved_are_known_by_their_values(tmp_path: Path) -> None:
    apis = ["Torch.relu", "Torch.add", "Torch.relu", "Torch.mul"]
    calls = [Call(api, "", (2,), n + 1.0) for n, api in enumerate(apis)]
    moved = run([*calls[2:], *calls[:2]])
    target, reference = sides(tmp_path, moved, run(calls), with_modules=False)
    pairs = pair_operations(target, reference, CompareOptions())
    assert wrong_pairs(pairs, moved, run(calls)) == []
    assert lonely(pairs) == (set(), set())


def test_confidence_falls_with_the_evidence(tmp_path: Path) -> None:
    calls = [
        Call("Torch.relu", "a", (2,), 1.0),
        Call("Torch.relu", "b", (3,), 2.0),
        Call("Torch.relu", "c", (4,), 3.0),
    ]
    other = [calls[0], replace(calls[1], number=2.2), replace(calls[2], shape=(9, 9), number=50.0)]
    new = Call("Torch.relu", "z", (2, 2), 9.0)
    target, reference = sides(tmp_path, run([new, *calls]), run(other), with_modules=True)
    pairs = pair_operations(target, reference, CompareOptions())
    by_reference = {pair.reference: pair.confidence for pair in pairs}
    same = by_reference["Torch.relu.0.forward"]
    near = by_reference["Torch.relu.1.forward"]
    far = by_reference["Torch.relu.2.forward"]
    assert 1 > same > near > far > 0.5
