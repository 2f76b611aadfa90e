# SPDX-License-Identifier: Apache-2.0
"""Calls of models, and the tensors given to them, paired between both sides of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import msgspec

from msprobe.api_prefixes import COMPILED
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.dump.facts import Data, Facts
from msprobe.dump.record_names import parse_record_name


def models_words(pair: FactsPair) -> str:
    """Return that a step calls the same models in another order; empty where it does not."""
    called = [models_called(facts) for facts in pair.sides]
    if called[0] == called[1] or Counter(called[0]) != Counter(called[1]):
        return ""
    place = next(i for i, both in enumerate(zip(*called, strict=True)) if both[0] != both[1])
    now, then = (names[place] for names in called)
    return (
        f"step {pair.step} calls the models in another order: {now} in the target where the "
        f"reference calls {then}"
    )


def calls_other_models(pair: FactsPair) -> bool:
    """Return whether sides with the same models call each of them another number of times."""
    called = [Counter(models_called(facts)) for facts in pair.sides]
    paths = {parse_record_name(f"{name}.forward.0").path for name in called[0] | called[1]}
    is_shared = all(f"module.{path}" in facts.settings for path in paths for facts in pair.sides)
    return is_shared and called[0] != called[1] and pair.passes[0] == pair.passes[1]


def other_model(pair: FactsPair) -> tuple[int, str]:
    """Return the first call of another model, and that it takes its place, in words.

    Empty where the other model is not given the same: they do not stand for each other.
    """
    batches = [by_micro(facts.data) for facts in pair.sides]
    called = [models_called(facts) for facts in pair.sides]
    for place, (now, then) in enumerate(zip(*called, strict=False)):
        if now == then:
            continue
        is_same = keys_of(batches[0][place]) == keys_of(batches[1][place])
        words = (
            f"step {pair.step} calls {now} in the target where the reference calls {then}, on the "
            "same data"
        )
        return place, words if is_same and len(called[0]) == len(called[1]) else ""
    return 0, ""


def models_called(facts: Facts) -> list[str]:
    """Return the models that are given data, in order."""
    return [parse_record_name(batch[0].record or "").base for batch in by_micro(facts.data)]


def paired(*sides: list[list[Data]]) -> list[tuple[list[Data], list[Data]]]:
    """Return the calls of both sides in pairs: those of each model, if they are the same models."""
    target, reference = (_by_model(side) for side in sides)
    by_place = list(zip(*sides, strict=False))
    is_same = all(keys_of(own) == keys_of(other) for own, other in by_place)
    if is_same or target.keys() != reference.keys():
        return by_place
    return [both for name in target for both in zip(target[name], reference[name], strict=False)]


def called_alike(*sides: list[list[Data]]) -> list[list[list[Data]]]:
    """Return the calls of the models that both sides call equally often."""
    target, reference = (_by_model(side) for side in sides)
    names = [name for name in target if len(target[name]) == len(reference.get(name, ()))]
    return [[call for name in names for call in of[name]] for of in (target, reference)]


def _by_model(calls: list[list[Data]]) -> dict[str, list[list[Data]]]:
    found: dict[str, list[list[Data]]] = {}
    for call in calls:
        found.setdefault(parse_record_name(call[0].record or "").base, []).append(call)
    return found


def tensors_of(
    target: Sequence[Data], reference: Sequence[Data]
) -> tuple[Sequence[Data], Sequence[Data]]:
    """Return the tensors of a call of both sides, under the same names and in the same order."""
    return _of_models(target, _named_as(target, reference))


def _named_as(target: Sequence[Data], reference: Sequence[Data]) -> Sequence[Data]:
    """Return the reference's tensors under the target's names, and in their order.

    A call passes the same arguments by place or by name, and names come in any order.
    """
    names = {each.where for each in target} & {each.where for each in reference}
    left = [each for each in reference if each.where not in names]
    found = {each.where: each for each in reference if each.where in names}
    for each in target:
        same = _same(each, left)
        if each.where not in names and same is not None:
            left.remove(same)
            found[each.where] = msgspec.structs.replace(same, where=each.where)
    if not names and left:
        return reference
    return [found[each.where] for each in target if each.where in found] + left


def _of_models(
    target: Sequence[Data], reference: Sequence[Data]
) -> tuple[Sequence[Data], Sequence[Data]]:
    """Return the tensors of both sides; what compiled code alone is given besides is left out.

    It calls the model, perhaps with the loss and the labels.
    """
    is_compiled = [
        bool(side) and parse_record_name(side[0].record or "").base.startswith(f"{COMPILED}.")
        for side in (target, reference)
    ]
    if is_compiled[0] is is_compiled[1]:
        return target, reference
    around, inner = (target, reference) if is_compiled[0] else (reference, target)
    left, found = [*around], {}
    for each in inner:
        alike = [one for one in left if (one.shape, one.dtype) == (each.shape, each.dtype)]
        if alike:
            same = _same(each, alike) or alike[0]
            left.remove(same)
            found[each.where] = msgspec.structs.replace(same, where=each.where)
    sides = [*found.values()], [each for each in inner if each.where in found]
    return sides if is_compiled[0] else sides[::-1]


def _same(data: Data, others: Sequence[Data]) -> Data | None:
    """Return the first of some tensors that is equal to one; None without any."""
    return next((other for other in others if key_of(other) == key_of(data)), None)


def without_further(*sides: list[list[Data]]) -> list[list[list[Data]]]:
    """Return batches of both sides without those that one side has besides all of the other's."""
    few, many = sorted(sides, key=len)
    rest = iter(many)
    is_among = all(any(keys_of(each) == keys_of(one) for each in rest) for one in few)
    return [few, few] if is_among else list(sides)


def distinct(data: Sequence[Data]) -> set[Hashable]:
    """Return the batches without repetitions, as keys."""
    return set(map(keys_of, by_micro(data)))


def are_of_parts(*sides: Sequence[Data]) -> bool:
    """Return whether the calls that one side makes besides take other arguments than the model."""
    forms = [
        {tuple((each.where, len(each.shape)) for each in batch) for batch in by_micro(data)}
        for data in sides
    ]
    return forms[0] != forms[1]


def by_micro(data: Sequence[Data]) -> list[list[Data]]:
    """Return the tensors of each call of a model."""
    found: dict[int, list[Data]] = {}
    for each in data:
        found.setdefault(each.micro, []).append(each)
    return list(found.values())


def keys_of(batch: Sequence[Data]) -> tuple[Hashable, ...]:
    """Return a key that equal batches share."""
    return tuple(map(key_of, batch))


def key_of(data: Data) -> Hashable:
    """Return a key that equal tensors share."""
    content = data.checksum or (data.max, data.min, data.mean, data.norm)
    return tuple(data.shape), data.dtype, content
