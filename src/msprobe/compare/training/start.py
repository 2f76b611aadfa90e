# SPDX-License-Identifier: Apache-2.0
"""Differences of the state with which a step begins: settings, parameters, generators, modes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import compress
from typing import Final

from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    are,
    of_sides,
    shown,
    shown_names,
    some_of,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.fingerprints import Change, apart_together
from msprobe.compare.training.gradient_factors import common_factor, factor_between
from msprobe.compare.training.module_settings import owner_words, setting_words
from msprobe.compare.training.outlines import difference_of_writes
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts, Modes, Parameters
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of

# Names of settings that choose other kernels, another precision or another order of sums.
_NUMERIC: Final = re.compile(
    r"(?:torch|mindspore|torch_npu|cann)\.|(?:cpu|machine)$|cpu\.instructions|"
    r"env\..*(?:THREADS|TF32|CUBLAS|CUDNN|NCCL|HCCL|DETERMINISTIC|MKL|ASCEND|ATTENTION|PRECISION)|"
    r"package\.(?:torch|mindspore|triton|flash|apex|xformers|transformer|deepspeed|megatron|bits)"
)
_OF_HOST: Final = frozenset({"python", "numpy"})
# These say where and by whom a run was started.
_PLACE: Final = re.compile(r"env\.|git\.branch|os$")
_MOST_SETTINGS: Final = 4

BEFORE: Final = (
    "; what made them differ came before: an earlier step, which was not compared, or a checkpoint"
)
"""Of parameters that differ when the first step starts that was compared, if it is a later one."""

_EARLIER_STEPS: Final = (
    'record the steps before step {} of both runs, too ("task": "signature"): msprobe bisect names '
    "the one in which they part"
)


def settings_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield the settings that differ: one difference for those that choose how is computed."""
    target, reference = (facts.settings for facts in pair.sides)
    if not target or not reference:
        return
    names = [name for name in target.keys() | reference if target.get(name) != reference.get(name)]
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
    for micro in sorted({0, *(each.micro for _, flags in sides for each in flags)}):
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
        named = "the model" if modules == [""] else shown_names(modules)
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


def _frozen(pair: FactsPair, target: Modes, reference: Modes) -> Iterator[FactDifference]:
    columns = pair.target.parameters or pair.reference.parameters
    total = sum(kind == "parameter" for kind in columns.kind) if columns else 0
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


def parameter_differences(
    pair: FactsPair,
    unchanged: Mapping[str, bool] | None,
    last: FactsPair | None = None,
    *,
    trains_alike: bool = False,
) -> Iterator[FactDifference]:
    """Yield differences of parameters and buffers when the step starts.

    Args:
        pair: the facts.
        trains_alike: both sides come to the same gradients: one holds several weights as one.
        unchanged: parameter → whether both sides agreed after the step before, a frozen one when it
            began; None for the first step that was compared. Parameters that it lacks, or that
            differed, inherit.
        last: the facts of the step before it that was compared.
    """
    target, reference = pair.target.parameters, pair.reference.parameters
    if target is None or reference is None or not target.name or not reference.name:
        return
    yield from _tied(pair, target, reference)
    present = list(_present(pair)) if unchanged is None else []
    yield from (replace(each, effect=Effect.NONE) if trains_alike else each for each in present)
    ties = _ties(target)
    changes = {
        name: change
        for name, change in pair.start_changes().items()
        if name not in ties and (unchanged is None or unchanged.get(name, False))
    }
    yield from _types(pair)
    # A model of other parameters draws other numbers for those that follow.
    alone = "".join(f"; {each.words}" for each in present)
    reshaped = _reshaped(pair) if unchanged is None and not trains_alike else ""
    is_first = unchanged is None
    moved = list(_moved(pair, target, changes, last, alone + reshaped, is_first=is_first))
    if reshaped:
        yield pair.difference(
            VerdictClass.PARAMETERS,
            Moment.PARAMETERS,
            reshaped.removeprefix("; "),
            # One that is only padded, say, draws no other numbers for those that follow.
            effect=Effect.CERTAIN if moved else Effect.POSSIBLE,
            next=("make both models with the same options",),
        )
    yield from moved


def equal_at_start(pair: FactsPair, kind: str | None = None) -> dict[str, bool]:
    """Return parameter or buffer → whether both sides agree to the bit when the step starts.

    Those that one side lacks, or whose bytes were not read, are left out.
    """
    target, reference = pair.starts
    kinds = {} if kind is None or not target else kinds_of(pair.target.parameters)
    return {
        name: found.checksum == reference[name].checksum
        for name, found in target.items()
        if name in reference
        and None not in (found.checksum, reference[name].checksum)
        and kind in (None, kinds.get(name))
    }


def frozen_in_both(pair: FactsPair) -> frozenset[str]:
    """Return the parameters that require no gradient on either side."""
    sides = (pair.target.modes, pair.reference.modes)
    frozen = [frozenset(() if modes is None else modes.requires_grad_false) for modes in sides]
    return frozen[0] & frozen[1]


def kinds_of(columns: Parameters | None) -> dict[str, str]:
    """Return name → parameter or buffer."""
    return {} if columns is None else dict(zip(columns.name, columns.kind, strict=False))


def _moved(
    pair: FactsPair,
    target: Parameters,
    changes: Mapping[str, Change],
    last: FactsPair | None,
    alone: str,
    *,
    is_first: bool,
) -> Iterator[FactDifference]:
    kinds = kinds_of(target)
    is_next = last is not None and last.step + 1 == pair.step
    for kind, plural in (("parameter", "parameters"), ("buffer", "buffers")):
        of_kind = [name for name in changes if kinds.get(name) == kind]
        moved = [name for name in of_kind if not changes[name].is_equal]
        far = [name for name in moved if not changes[name].is_rounding]
        if not far:
            continue
        worst = max(far, key=lambda name: changes[name].relative)
        change = changes[worst]
        size = change.ending
        together = apart_together((changes[name], pair.starts[1][name].norm) for name in far)
        if together and not change.not_finite:
            size = together
        factor = common_factor(
            factor_between(*(each[name] for each in pair.starts)) for name in far
        )
        if factor is not None and factor.is_proved:
            size = f" by the factor {factor.value:.4g}"
        agreed = "it" if len(far) == 1 else "they"
        is_later = is_first and _went_on(pair)
        since = alone if is_first else f", though {agreed} agreed after the step before"
        since += BEFORE if is_later else ""
        if not is_first and worst in frozen_in_both(pair):
            since = f", though {agreed} agreed when the step before began"
        elif last is not None and is_next and kind == "parameter":
            since += (
                f": written between the update of step {last.step} and the start of step "
                f"{pair.step}"
            )
        verdict = VerdictClass.PARAMETERS
        call = None
        if last is not None and is_next and kind == "parameter":
            call = difference_of_writes(*last.sides)
            since += f"; {call.words}" if call else ""
        if kind == "buffer" and not is_first:  # recordings may have no fact of buffers after a step
            sides = (pair.target.settings, pair.reference.settings)
            made, is_argument = owner_words(sides, worst)
            since = made or ", though every value recorded before it agrees"
            verdict = VerdictClass.ARGUMENT if is_argument else verdict
        yield pair.difference(
            verdict,
            Moment.PARAMETERS,
            f"{some_of(far, len(of_kind), plural)} {are(far, 'differs', 'differ')} when step "
            f"{pair.step} starts{size}{since}",
            # Norms alone tell no rounding from a swap of elements: calls that read them do.
            effect=Effect.NONE if change.is_bound and change.may_be_rounding else Effect.CERTAIN,
            parameter=worst,
            next=(
                *((_EARLIER_STEPS.format(pair.step),) if is_later else ()),
                "compare the checkpoints that the runs began with (msprobe compare-ckpt), and how "
                "parameters are initialised",
            )
            if is_first
            else (call.next if call else ())
            or ("look for code that changes parameters between two optimizer steps",),
        )


def _went_on(pair: FactsPair) -> bool:
    """Return whether both runs may have trained before the step: optimizers count their steps."""
    sides = [facts.optimizer_steps() for facts in pair.sides]
    counts = [
        {n for step in steps for n in step.parameters.steps if n is not None} for steps in sides
    ]
    return pair.step > 0 and all(not known or max(known) > 0 for known in counts)


def _reshaped(pair: FactsPair) -> str:
    """Return which parameters have another shape, as a part of a sentence; shards have none."""
    names = [name for name in pair.reshaped if name not in pair.sharded]
    if not names:
        return ""
    shapes = [shown([*shape]) for shape in pair.reshaped[names[0]]]
    first = "" if len(names) == 1 else "the first "
    return (
        f"; {some_of(names, len(pair.starts[0]))} {are(names, 'has', 'have')} another shape, "
        f"{first}{shapes[0]} instead of {shapes[1]}"
    )


def _present(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield parameters that only one side has.

    As many on both sides, and none of them with a common name, are a model with other names. Of
    buffers the calls tell whether they are used: a mask may be kept, or made anew.
    """
    starts = pair.starts
    buffers = {
        name
        for columns in (pair.target.parameters, pair.reference.parameters)
        if columns is not None
        for name, kind in zip(columns.name, columns.kind, strict=False)
        if kind == "buffer"
    }
    is_renamed = len(starts[0]) == len(starts[1]) and starts[0].keys().isdisjoint(starts[1])
    for side, _, own, other in of_sides(*starts):
        names = [name for name in own if name not in other]
        if names:
            yield pair.difference(
                VerdictClass.PARAMETERS,
                Moment.PARAMETERS,
                f"only the {side} has {some_of(names, len(own))}",
                effect=Effect.NONE if is_renamed or buffers.issuperset(names) else Effect.POSSIBLE,
                parameter=names[0],
            )


def _types(pair: FactsPair) -> Iterator[FactDifference]:
    target, reference = pair.starts
    kinds = kinds_of(pair.target.parameters)
    tied = set().union(*(_ties(facts.parameters) for facts in pair.sides if facts.parameters))
    single = [name for name in target if name not in tied]
    by_types: dict[tuple[str, str], list[str]] = {}
    for name in (name for name in single if name in reference):
        by_types.setdefault((target[name].dtype, reference[name].dtype), []).append(name)
    for types, names in by_types.items():
        if types[0] != types[1]:
            held = sorted({kinds.get(name, "parameter") for name in names}, reverse=True)
            total = sum(kinds.get(name, "parameter") in held for name in single)
            what = " and ".join(f"{kind}s" for kind in held)
            yield pair.difference(
                VerdictClass.PRECISION,
                Moment.PARAMETERS,
                f"{some_of(names, total, what)} {are(names)} {types[0]} in the target, "
                f"{types[1]} in the reference",
                effect=Effect.POSSIBLE,
                parameter=names[0],
            )


def _tied(pair: FactsPair, target: Parameters, reference: Parameters) -> Iterator[FactDifference]:
    for side, apart, own, other in of_sides(target, reference):
        ties, others = _ties(own), _ties(other)
        names = [name for name in ties if name not in others and name in other.name]
        if names:
            tied = ", ".join(f"{name} is tied to {ties[name]}" for name in names[:2])
            yield pair.difference(
                VerdictClass.PARAMETERS,
                Moment.PARAMETERS,
                f"{tied} in the {side}, and a parameter of its own in the {apart}",
                effect=Effect.POSSIBLE,
                parameter=names[0],
                next=("tie the same parameters in both runs",),
            )


def _ties(columns: Parameters) -> dict[str, str]:
    return {
        name: same
        for name, same in zip(columns.name, columns.same_as, strict=False)
        if same is not None
    }


def differing_generators(target: Facts, reference: Facts) -> list[str]:
    """Return the generators whose states differ when a step starts, but those that nobody uses."""
    unused = {*target.undrawn} & {*reference.undrawn}
    return [
        name
        for name, state in target.random.items()
        if state is not None
        and reference.random.get(name) not in (None, state)
        and name not in unused
    ]


class RandomHistory:
    """The states of one rank's generators, step after step."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, str | None], dict[str, str | None]] = ({}, {})
        self._drawn: set[str] = set()
        self._steps = 0
        self._names: dict[int, list[str]] = {}

    def differences(self, pair: FactsPair) -> Iterator[FactDifference]:
        """Yield the generators whose state differs when a step starts, as one difference."""
        sides = pair.target.random, pair.reference.random
        self._steps += 1
        for last, now in zip(self._last, sides, strict=True):
            self._drawn.update(name for name in last if last[name] != now.get(name))
        self._last = sides
        names = differing_generators(pair.target, pair.reference)
        if names:
            self._names[pair.step] = names
            yield pair.difference(
                VerdictClass.RANDOM,
                Moment.RANDOM,
                _generator_words(pair.step, names),
                effect=Effect.POSSIBLE,
                next=("seed both runs alike (seed_all) and compare again",),
            )

    @property
    def has_drawn(self) -> bool:
        """Whether a generator is drawn from between the starts of two steps."""
        return bool(self._drawn)

    def drawn(self, fact: FactDifference) -> FactDifference:
        """Return a difference without the generators from which no step draws; after all steps.

        A generator whose state is the same in all steps is not drawn from, on either side.
        """
        names = self._names.get(fact.step, [])
        drawn = [name for name in names if name in self._drawn]
        if self._steps == 1:
            return fact
        if not drawn:
            return replace(fact, effect=Effect.NONE)
        return replace(
            fact,
            words=_generator_words(fact.step, drawn),
            is_drawn_by_host=not _OF_HOST.isdisjoint(drawn),
        )


def _generator_words(step: int, names: list[str]) -> str:
    return (
        f"the {are(names, 'state', 'states')} of the {are(names, 'generator', 'generators')} "
        f"{shown_names(names)} {are(names, 'differs', 'differ')} when step {step} starts"
    )
