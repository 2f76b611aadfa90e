# SPDX-License-Identifier: Apache-2.0
"""Differences of how a step computes: settings, training flags, autocast, frozen parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Final

from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    are,
    of_sides,
    shown_names,
    some_of,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.module_settings import setting_words
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts, Modes
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of

# Names of settings that choose other kernels, another precision or another order of sums.
_NUMERIC: Final = re.compile(
    r"(?:torch|mindspore|torch_npu|cann)\.|(?:cpu|machine)$|cpu\.instructions|"
    r"env\..*(?:THREADS|TF32|CUBLAS|CUDNN|NCCL|HCCL|DETERMINISTIC|MKL|ASCEND|ATTENTION|PRECISION)|"
    r"package\.(?:torch|mindspore|triton|flash|apex|xformers|transformer|deepspeed|megatron|bits)"
)
# These say where and by whom a run was started.
_PLACE: Final = re.compile(r"env\.|git\.branch|os$")
# And these where its results go, or what no program computes with: another in every run.
_OF_RUN: Final = re.compile(
    r"argument\.(?:.*[._-])?(?:dump|out|output|save|log|result)s?(?:[._-]?(?:dir|path|folder|file|root))?|"
    r"env\.(?:TMPDIR|TMP|TEMP|PWD|OLDPWD|SHLVL|_|(?:MASTER|.*_)PORT|.*_PID|.*CACHE_(?:DIR|HOME))"
)
_MOST_SETTINGS: Final = 4


def settings_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield the settings that differ: one difference for those that choose how is computed."""
    target, reference = (facts.settings for facts in pair.sides)
    if not target or not reference:
        return
    names = [
        name
        for name in target.keys() | reference
        if target.get(name) != reference.get(name) and not _OF_RUN.fullmatch(name)
    ]
    if names:
        changed = [
            setting_words(name, _setting(target, name), _setting(reference, name))
            for name in sorted(names, key=_importance)
        ]
        more = f"; {len(changed) - _MOST_SETTINGS} more" if len(changed) > _MOST_SETTINGS else ""
        yield pair.difference(
            VerdictClass.SETTINGS,
            Moment.SETTINGS,
            "; ".join(changed[:_MOST_SETTINGS]) + more,
            effect=Effect.POSSIBLE if any(map(is_numeric, names)) else Effect.NONE,
            next=("run both with the same settings, then compare again",),
        )


def is_numeric(name: str) -> bool:
    """Return whether a setting may choose other kernels or another precision."""
    return _NUMERIC.match(name) is not None


def _importance(name: str) -> tuple[bool, bool, str]:
    return (not is_numeric(name), _PLACE.match(name) is not None, name)


def _setting(settings: Mapping[str, str], name: str) -> str:
    return settings.get(name) or "not set"


def mode_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield differences of training flags, autocast and frozen parameters."""
    target, reference = pair.target.modes, pair.reference.modes
    if target is None or reference is None:
        return
    yield from _training_flags(pair, target, reference)
    if target.grad_enabled is not reference.grad_enabled:
        words = "enabled in the target, disabled in the reference"
        if reference.grad_enabled:
            words = "disabled in the target, enabled in the reference"
        yield _mode(pair, f"gradients are {words}")
    types = [_autocast(facts) for facts in pair.sides]
    if types[0] != types[1]:
        yield pair.difference(
            VerdictClass.PRECISION,
            Moment.MODES,
            f"autocast is {types[0]} in the target, {types[1]} in the reference",
            effect=Effect.POSSIBLE,
        )
    yield from _frozen(pair, target, reference)


def _training_flags(pair: FactsPair, target: Modes, reference: Modes) -> Iterator[FactDifference]:
    """Yield the flags that differ in the first call of the model that has others."""
    sides = (target, pair.target.flags), (reference, pair.reference.flags)
    # Of a step that ended early, what comes after its last call is not known.
    last = min(max((each.micro for each in facts.data), default=math.inf) for facts in pair.sides)
    for micro in sorted({0, *(each.micro for _, flags in sides for each in flags)}):
        if micro > last:
            return
        now = [
            [modes.training, *(each.training for each in flags if each.micro <= micro)][-1]
            for modes, flags in sides
        ]
        since = f", from call {micro} of the model on" if micro else ""
        found = list(_flags_of_call(pair, now[0], now[1], since))
        yield from found
        if found:
            return


def _flags_of_call(
    pair: FactsPair, target: Mapping[str, bool], reference: Mapping[str, bool], since: str
) -> Iterator[FactDifference]:
    if not target or not reference:
        return
    changed = [
        name
        for name in sorted(target.keys() | reference.keys())
        if _flag(target, name) is not _flag(reference, name)
    ]
    # A module is told by the one around it, if that changed in the same way.
    flags = {name: _flag(target, name) for name in changed}
    outermost = [
        name
        for name in changed
        if not any(flags.get(around) is flags[name] for around in _around(name))
    ]
    for flag in (True, False):
        modules = [name for name in outermost if flags[name] is flag]
        if not modules:
            continue
        # Of models in a list the name is a number.
        told = [f"module {name}" if name.isdigit() else name for name in modules]
        named = "the model" if modules == [""] else shown_names(told)
        kinds = ("training", "eval") if flag else ("eval", "training")
        yield _mode(
            pair,
            f"{named} {are(modules)} in {kinds[0]} mode in the target, in "
            f"{kinds[1]} mode in the reference (step {pair.step}{since})",
            modules=() if "" in modules else tuple(modules),
        )


def _flag(training: Mapping[str, bool], name: str) -> bool:
    for around in (name, *_around(name)):
        if around in training:
            return training[around]
    return True


def _around(name: str) -> Iterator[str]:
    """Yield the paths of the modules around one, innermost first; the model is ``""``."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _autocast(facts: Facts) -> str:
    types = sorted(facts.autocast_types().items())
    return ", ".join(f"{dtype} on {device}" for device, dtype in types) or "off"


def autocast_epsilon(facts: Facts) -> float:
    """Return the resolution of the coarsest type of autocast; 0 where it is off."""
    types = map(normal_dtype, facts.autocast_types().values())
    return max(map(epsilon_of, types), default=0.0)


def lone_autocast_epsilon(pair: FactsPair) -> float:
    """Return the resolution of autocast that one side alone, or each in another type, runs in."""
    types = [facts.autocast_types() for facts in pair.sides]
    return 0.0 if types[0] == types[1] else max(map(autocast_epsilon, pair.sides))


def _frozen(pair: FactsPair, target: Modes, reference: Modes) -> Iterator[FactDifference]:
    columns = pair.target.parameters or pair.reference.parameters
    ties = () if columns is None else (each for each in columns.same_as if each is not None)
    kinds = () if columns is None else columns.kind
    total = sum(kind == "parameter" for kind in kinds) - len(list(ties))
    frozen = set(target.requires_grad_false), set(reference.requires_grad_false)
    idle = _without_gradients(pair.target), _without_gradients(pair.reference)
    for (side, apart, own, other), unused in zip(of_sides(*frozen), reversed(idle), strict=True):
        names = sorted(own - other - unused)
        known = [name for name in names if _has_both(pair, name)]
        if known:
            yield pair.difference(
                VerdictClass.MODE,
                Moment.FROZEN,
                f"{some_of(known, total)} {are(known)} frozen (requires_grad is False) in the "
                f"{side}, trained in the {apart}",
                parameter=known[0],
                next=("make the same parameters require gradients in both runs",),
            )


def _without_gradients(facts: Facts) -> frozenset[str]:
    """Return the parameters that get no gradient for an optimizer; none if no optimizer steps.

    Nobody trains these, frozen or not: averages of weights, say.
    """
    columns = [step.parameters for step in facts.optimizer_steps()]
    if facts.parameters is None or not columns or not all(each.has_gradient for each in columns):
        return frozenset()
    trained = (compress(each.name, each.has_gradient) for each in columns)
    return frozenset(facts.parameters.name).difference(*trained)


def _has_both(pair: FactsPair, name: str) -> bool:
    columns = pair.target.parameters, pair.reference.parameters
    return all(each is None or name in each.name for each in columns)


def _mode(pair: FactsPair, words: str, modules: tuple[str, ...] = ()) -> FactDifference:
    return pair.difference(
        VerdictClass.MODE,
        Moment.MODES,
        words,
        effect=Effect.POSSIBLE,
        modules=modules,
        next=("set model.train() or model.eval() alike in both runs",),
    )
