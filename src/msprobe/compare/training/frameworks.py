# SPDX-License-Identifier: Apache-2.0
"""Facts of MindSpore in PyTorch's terms, where one side of a comparison is of each."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace

from msprobe.compare.training.facts_pair import EARLY_EPS
from msprobe.compare.training.shared_outlines import with_shared_outline
from msprobe.dump.facts import (
    Clip,
    Data,
    Event,
    Facts,
    Modes,
    OptimizerGroup,
    OptimizerStep,
    Parameters,
)
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import WHOLE, kind_of
from msprobe.operators.lookup import parameter_name

_MINDSPORE: Final = "mindspore.version"
# What frameworks, their objects and environments are set to has no counterpart in the other one.
# Arguments of the programs have, and these numbers of modules.
_ARGUMENT: Final = "argument."
_MODULE: Final = "module"
_NUMBERS: Final = {
    "eps": re.compile(r"\b(?:eps|epsilon)=([-+.\de]+)"),
    "p": re.compile(r"\bp=([-+.\de]+)"),
}
_ATTRIBUTES: Final = {"eps": ("eps", "epsilon"), "p": ("p",)}
_STATES: Final = {
    "moment1": "exp_avg",
    "moment2": "exp_avg_sq",
    "accum": "momentum_buffer",
    "moments": "momentum_buffer",
}
_CLASSES: Final = {"momentum": "sgd"}  # one rule, where PyTorch has no dampening
_NESTEROV: Final = "use_nesterov"
# The norm is one of all gradients in each of them.
_CLIPPING: Final = {
    "clip_by_global_norm": "clip_grad_norm_",
    "clip_by_norm": "clip_grad_norm_",
    "clip_by_value": "clip_grad_value_",
}
_BUFFER: Final = "buffer"
_BETAS: Final = ("beta1", "beta2")
_COUNT: Final = "num_batches_tracked"  # PyTorch alone counts what it normalised
_EARLY_EPS_CLASS: Final = "mindspore.nn.optim.adam.Adam"  # as the first version of the paper has it


def are_of_two_frameworks(target: Facts, reference: Facts) -> bool:
    """Return whether one side alone is of MindSpore."""
    return is_of_mindspore(target) is not is_of_mindspore(reference)


def is_of_mindspore(facts: Facts) -> bool:
    """Return whether a step ran in MindSpore."""
    return _MINDSPORE in facts.settings


def in_shared_terms(target: Facts, reference: Facts) -> tuple[Facts, Facts]:
    """Return the facts of a side of MindSpore and one of PyTorch in PyTorch's terms.

    Names of parameters, element types, optimizers with their settings and states are translated,
    and outlines keep what both frameworks call alike.
    Settings and states that only one framework has are left out.
    """
    is_target = is_of_mindspore(target)
    own, other = (target, reference) if is_target else (reference, target)
    columns = other.parameters
    kinds = {} if columns is None else dict(zip(columns.name, columns.kind, strict=True))
    steps = {(step.number, step.call): step for step in other.optimizer_steps()}
    # Imports leave generators in other states, and each framework draws other numbers.
    own, other = (
        replace(with_shared_outline(facts, is_mindspore=facts is own), random={})
        for facts in (own, other)
    )
    own = replace(
        own,
        settings=_comparable(own.settings),
        modes=own.modes and _modes(own.modes, kinds),
        parameters=own.parameters and _parameters(own.parameters, kinds),
        buffers_after=own.buffers_after and _parameters(own.buffers_after, kinds),
        data=[*map(_data, own.data)],
        loss=[replace(each, dtype=_dtype(each.dtype)) for each in own.loss],
        events=[_translated(event, kinds, steps) for event in own.events],
    )
    translated = {(step.number, step.call): step for step in own.optimizer_steps()}
    other = replace(
        other,
        settings=_comparable(other.settings),
        parameters=columns and _without_counts(columns),
        data=[*map(_data, other.data)],
        events=[_as_far_as(event, translated) for event in other.events],
    )
    return (own, other) if is_target else (other, own)


def _modes(modes: Modes, kinds: Mapping[str, str]) -> Modes:
    """Return the flags without those of buffers, which are parameters in MindSpore."""
    frozen = [_name(name, kinds) for name in modes.requires_grad_false]
    trained = [name for name in frozen if kinds.get(name) != _BUFFER]
    return replace(modes, requires_grad_false=trained)


def _parameters(parameters: Parameters, kinds: Mapping[str, str]) -> Parameters:
    names = [_name(name, kinds) for name in parameters.name]
    own = zip(names, parameters.kind, strict=False)  # what a step changed has no kinds
    return replace(
        parameters,
        name=names,
        kind=[kinds.get(name, kind) for name, kind in own],
        dtype=[_dtype(each) for each in parameters.dtype],
    )


def _without_counts(parameters: Parameters) -> Parameters:
    kept = [at for at, name in enumerate(parameters.name) if not name.endswith(_COUNT)]
    columns = asdict(parameters).items()
    return Parameters(**{name: [each[at] for at in kept] if each else [] for name, each in columns})


def _comparable(settings: Mapping[str, str]) -> dict[str, str]:
    known = {key: text for key, text in settings.items() if key.startswith(_ARGUMENT)}
    for key in settings:
        if key.startswith(_MODULE):
            known |= _numbers(settings, key)
    return known


def _numbers(settings: Mapping[str, str], module: str) -> dict[str, str]:
    """Return the numbers of a module that both frameworks have, and that it is one."""
    found: dict[str, str] = {}
    for name, shown in _NUMBERS.items():
        known = (settings.get(f"{module}.{each}") for each in _ATTRIBUTES[name])
        match = shown.search(settings[module])
        text = next((each for each in known if each is not None), match and match[1])
        if text is not None and _is_number(text):
            found |= {module: "a module", f"{module}.{name}": repr(float(text))}
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _data(data: Data) -> Data:
    """Return data in a type that both frameworks take: samples of integers have any width.

    The checksum is one of their numbers then.
    """
    dtype = normal_dtype(data.dtype)
    if kind_of(dtype) not in WHOLE or data.checksum is None:
        return replace(data, dtype=f"torch.{dtype}")
    numbers = (data.max, data.min, data.mean, data.norm, data.projections)
    return replace(data, dtype="torch.int64", checksum=repr(numbers))


def _dtype(raw: str) -> str:
    return f"torch.{normal_dtype(raw)}"


def _name(name: str, names: Container[str]) -> str:
    """Return PyTorch's name of a parameter, if the other side has that one and not this one."""
    around, dot, last = name.rpartition(".")
    other = f"{around}{dot}{parameter_name(last)}"
    return name if name in names or other not in names else other


def _translated(
    event: Event, names: Container[str], others: Mapping[tuple[int, int], OptimizerStep]
) -> Event:
    if isinstance(event, Clip):
        return replace(event, function=_CLIPPING.get(event.function, event.function))
    if not isinstance(event, OptimizerStep):
        return event
    columns = event.parameters
    known = {_STATES.get(state, state): prints for state, prints in columns.state.items()}
    event = replace(
        event,
        groups=[replace(group, options=_options(event, group)) for group in event.groups],
        parameters=replace(
            columns,
            name=[_name(name, names) for name in columns.name],
            dtype=[_dtype(each) for each in columns.dtype],
            state=known,
            samples={_STATES.get(key, key): rows for key, rows in columns.samples.items()},
            notes={_name(name, names): text for name, text in columns.notes.items()},
        ),
    )
    other = others.get((event.number, event.call))
    if other is None:
        return event
    of_class = event.class_name.rpartition(".")[2].lower()
    if _CLASSES.get(of_class, of_class) == other.class_name.rpartition(".")[2].lower():
        event = replace(event, class_name=other.class_name)
    return _as_far_as(event, {(event.number, event.call): other})


def _options(step: OptimizerStep, group: OptimizerGroup) -> dict[str, Any]:
    options: dict[str, Any] = dict(group.options)
    if all(name in options for name in _BETAS):
        options["betas"] = [options.pop(name) for name in _BETAS]
    if _NESTEROV in options:
        options["nesterov"] = options.pop(_NESTEROV)
    if step.class_name == _EARLY_EPS_CLASS:
        options[EARLY_EPS] = True
    return options


def _as_far_as(event: Event, others: Mapping[tuple[int, int], OptimizerStep]) -> Event:
    """Leave out states and step counts that the other side's optimizer lacks."""
    if not isinstance(event, OptimizerStep):
        return event
    other = others.get((event.number, event.call))
    if other is None:
        return event
    columns = event.parameters
    counts_alike = _has_counts(columns.steps) == _has_counts(other.parameters.steps)
    known = {name: each for name, each in columns.state.items() if name in other.parameters.state}
    groups = event.groups
    if any(EARLY_EPS in group.options for group in other.groups):
        groups = [replace(each, options={EARLY_EPS: False, **each.options}) for each in groups]
    return replace(
        event,
        groups=groups,
        parameters=replace(columns, state=known, steps=columns.steps if counts_alike else []),
    )


def _has_counts(steps: Iterable[object]) -> bool:
    return any(each is not None for each in steps)
