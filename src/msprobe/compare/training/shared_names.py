# SPDX-License-Identifier: Apache-2.0
"""One spelling for the names of parameters and modules in the facts of two runs.

Wrappers around a model (``module.`` of DistributedDataParallel, ``_orig_mod.`` of a compiled one)
are part of the names that a run records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress, count
from typing import Final, TypeVar

from msgspec.structs import asdict, replace

from msprobe.compare.matching.module_paths import shared_paths
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.frameworks import are_of_two_frameworks, in_shared_terms
from msprobe.dump.facts import Event, Facts, OptimizerStep

_Known = TypeVar("_Known")
_OF_MODULE: Final = "module."  # settings of modules begin so


def with_shared_names(
    target: Facts,
    reference: Facts,
    mapped: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    renamed: Mapping[str, str] | None = None,
) -> tuple[Facts, Facts]:
    """Return the facts of both sides with the names by which both know a parameter.

    Args:
        target: facts of the target.
        reference: facts of the reference.
        mapped: of either side, paths → those that both share by a mapping file.
        renamed: of the target, names → other names of the reference (`renamed_modules`).
    """
    if are_of_two_frameworks(target, reference):
        target, reference = in_shared_terms(target, reference)
    target, reference = (
        _renamed(facts, _reaching(paths, _names(facts))) if paths else facts
        for facts, paths in zip((target, reference), mapped, strict=True)
    )
    names = _names(target), _names(reference)
    if all(names) and names[0] != names[1]:
        of_target, of_reference = map(dict, shared_paths(*names))
        for name, other in (renamed or {}).items():
            if name in of_target and other in of_reference:
                of_target[name] = of_reference[other]
        target, reference = _renamed(target, of_target), _renamed(reference, of_reference)
    return _numbered_alike(target, reference), reference


def _numbered_alike(target: Facts, reference: Facts) -> Facts:
    """Return the target's facts with the reference's number of an optimizer of its parameters.

    Optimizers are numbered in the order of a program's first steps, which may be another one. One
    that is made anew, after a checkpoint was loaded or for a second training, counts as well.
    """
    own, other = (
        {frozenset(step.parameters.name): step.number for step in facts.optimizer_steps()}
        for facts in (target, reference)
    )
    if len(own) < len({step.number for step in target.optimizer_steps()}):
        return target  # several have the same parameters
    shared = own.keys() & other
    if all(own[names] == other[names] for names in shared):
        return target
    numbers = {own[names]: other[names] for names in shared}
    new = count(max(*own.values(), *other.values()) + 1)
    for names in own.keys() - shared:
        if own[names] in numbers.values():
            numbers[own[names]] = next(new)
    events = [
        replace(event, number=numbers.get(event.number, event.number))
        if isinstance(event, OptimizerStep)
        else event
        for event in target.events
    ]
    return replace(target, events=events) if numbers else target


def facts_of(comparison: RankComparison, *, of_replicas: bool = False) -> FactsPair | None:
    """Return the facts of a comparison under shared names; None where a side has none.

    Args:
        comparison: the comparison.
        of_replicas: leave out what each rank of a run has of its own, such as its data.
    """
    return _pair_of(
        comparison,
        comparison.step,
        comparison.facts,
        of_replicas=of_replicas,
        has_closure=comparison.asked_again < math.inf,
    )


def later_facts(comparison: RankComparison) -> Iterator[FactsPair]:
    """Yield the facts of the same rank in later steps, until one is without them."""
    for views in comparison.later:
        pair = _pair_of(comparison, views.step, (views.target.facts, views.reference.facts))
        if pair is None:
            return
        yield pair


def _pair_of(
    comparison: RankComparison,
    step: int,
    facts: tuple[Facts | None, Facts | None],
    *,
    of_replicas: bool = False,
    has_closure: bool = False,
) -> FactsPair | None:
    target, reference = facts
    if target is None or reference is None:
        return None
    if of_replicas:
        target, reference = _of_replica(target), _of_replica(reference)
    mapped = comparison.target.mapped_modules, comparison.reference.mapped_modules
    renamed = comparison.target.renamed_modules
    target, reference = with_shared_names(target, reference, mapped, renamed)
    return FactsPair(
        step=step,
        rank=comparison.rank,
        target=target,
        reference=reference,
        has_closure=has_closure,
    )


def _of_replica(facts: Facts) -> Facts:
    parameters = facts.parameters
    if parameters is not None:  # statistics of the data, such as those of BatchNorm, are buffers
        kept = [kind == "parameter" for kind in parameters.kind]
        columns = {name: [*compress(at, kept)] for name, at in asdict(parameters).items()}
        parameters = replace(parameters, **columns)
    return replace(
        facts, settings={}, random={}, data=[], loss=[], parameters=parameters, buffers_after=None
    )


def _names(facts: Facts) -> set[str]:
    """Return the names of parameters, and the paths of the modules around them."""
    names = set() if facts.parameters is None else set(facts.parameters.name)
    around = {""} if names else set()
    for name in names:
        parts = name.split(".")
        around.update(".".join(parts[:end]) for end in range(1, len(parts)))
    return names | around


def _renamed(facts: Facts, names: Mapping[str, str]) -> Facts:
    if all(name == other for name, other in names.items()):
        return facts
    modes, parameters, after = facts.modes, facts.parameters, facts.buffers_after
    if modes is not None:
        modes = replace(
            modes,
            training=_with_names(modes.training, _reaching(names, modes.training)),
            requires_grad_false=[names.get(name, name) for name in modes.requires_grad_false],
        )
    flags = [
        replace(each, training=_with_names(each.training, _reaching(names, each.training)))
        for each in facts.flags
    ]
    if parameters is not None:
        parameters = replace(
            parameters,
            name=[names.get(name, name) for name in parameters.name],
            same_as=[None if n is None else names.get(n, n) for n in parameters.same_as],
        )
    if after is not None:
        after = replace(after, name=[names.get(name, name) for name in after.name])
    events = [_renamed_event(event, names) for event in facts.events]
    settings = _renamed_settings(facts.settings, names)
    return replace(
        facts,
        modes=modes,
        flags=flags,
        parameters=parameters,
        buffers_after=after,
        events=events,
        settings=settings,
    )


def _renamed_settings(settings: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Rename settings of modules, ``module.{path}`` and ``module.{path}.{attribute}``."""
    own = {key: key.removeprefix(_OF_MODULE) for key in settings if key.startswith(_OF_MODULE)}
    reached = _reaching(names, own.values())
    renamed = {key: f"{_OF_MODULE}{reached[path]}" for key, path in own.items()}
    return {renamed.get(key, key): value for key, value in settings.items()}


def _renamed_event(event: Event, names: Mapping[str, str]) -> Event:
    if not isinstance(event, OptimizerStep):
        return event
    columns = event.parameters
    columns = replace(
        columns,
        name=[names.get(name, name) for name in columns.name],
        notes=_with_names(columns.notes, names),
    )
    return replace(event, parameters=columns)


def _reaching(names: Mapping[str, str], modules: Iterable[str]) -> dict[str, str]:
    """Add modules without parameters: their names change as those of the modules around them."""
    found = dict(names)
    for name in modules:
        around = name
        while around not in names and around:
            around = around.rpartition(".")[0]
        found[name] = (names.get(around, "") + name.removeprefix(around)).removeprefix(".")
    return found


def _with_names(known: Mapping[str, _Known], names: Mapping[str, str]) -> dict[str, _Known]:
    found = {names.get(name, name): value for name, value in known.items()}
    if "" in known:
        found.setdefault("", known[""])  # what holds for a wrapper holds for the model inside
    return found
