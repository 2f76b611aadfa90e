# SPDX-License-Identifier: Apache-2.0
"""Buffers, and parameters that no record of an optimizer tells, when a step ends.

They are to agree where all that the step recorded agrees.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping
from typing import Final

from msprobe.compare.training.differences import FactDifference, Moment, are, some_of
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.fingerprints import (
    Change,
    Fingerprint,
    apart_together,
    at,
    change_of,
    in_column,
    of_parameter,
    of_parameters,
)
from msprobe.compare.training.module_settings import owner_words
from msprobe.compare.training.outlines import difference_behind, difference_of_module
from msprobe.compare.training.start import kinds_of
from msprobe.compare.training.updates import changed_before
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts

# What tiny differences of the values that are made into a buffer may grow to in it.
_GROWN: Final = 1e-2
_ESTIMATED: Final = 2.0  # distances are estimates, right within this factor


def buffer_changes(pair: FactsPair) -> dict[str, Change]:
    """Return buffer → how far both sides are apart when the step ends; empty where unknown.

    So for the parameters that no record of an optimizer tells on one side at least.
    """
    target, reference = map(parameters_after, pair.sides)
    told = _updated(pair.target).keys() & _updated(pair.reference)
    return {
        name: change_of(found, reference[name])
        for name, found in target.items()
        if name in reference and name not in told
    }


def kept_values(
    pair: FactsPair, unchanged: Mapping[str, bool]
) -> tuple[set[Hashable], set[Hashable]]:
    """Return shape and norm, on each side, of what calls of a step changed in another way.

    These are buffers when it ends, and parameters when an optimizer takes its step.

    Args:
        pair: the facts.
        unchanged: buffer → whether both sides agreed when the step began.
    """
    buffers = [
        name
        for name, change in buffer_changes(pair).items()
        if unchanged.get(name, False) and not change.is_rounding
    ]
    moved = {name: step for step in pair.steps for name in changed_before(step)}
    kept: tuple[set[Hashable], set[Hashable]] = (set(), set())
    for side, facts in enumerate(pair.sides):
        shapes, after = _shapes(facts), _after(facts)
        kept[side].update((shapes[name], after[name].norm) for name in buffers)
        for name, step in moved.items():
            own, place = (step.target, step.reference)[side], step.places[name][side]
            kept[side].add((shapes[name], at(own.parameters.before.norm, place)))
    return kept


def _shapes(facts: Facts) -> dict[str, Hashable]:
    start = facts.parameters
    return {} if start is None else dict(zip(start.name, map(tuple, start.shape), strict=True))


def buffer_differences(
    pair: FactsPair, unchanged: Mapping[str, bool], fed: Container[str] = (), *, is_exact: bool
) -> Iterator[FactDifference]:
    """Yield the buffers that differ after a step whose recorded values agree.

    Args:
        pair: the facts.
        unchanged: buffer → whether both sides agreed when the step began.
        fed: modules that are given other values, which their buffers keep, or names of buffers.
        is_exact: the values agree to the bit, else up to rounding.
    """
    changes = {
        name: change
        for name, change in buffer_changes(pair).items()
        if unchanged.get(name, False) and not any(part in fed for part in name.rpartition("."))
    }
    kinds = kinds_of(pair.target.parameters)
    # Averages of what is updated are as far apart as that: an optimizer makes steps of rounding.
    updated = [each.relative for s in pair.steps for each in s.changes("after").values()]
    most = max(_GROWN, _ESTIMATED * max(updated, default=0.0))
    for kind, grown in (("parameter", most), ("buffer", _GROWN)):
        of_kind = {n: change for n, change in changes.items() if kinds.get(n) == kind}
        yield from _of_kind(pair, kind, of_kind, 0.0 if is_exact else grown)


def _of_kind(
    pair: FactsPair, kind: str, changes: Mapping[str, Change], grown: float
) -> Iterator[FactDifference]:
    far = [
        name
        for name, change in changes.items()
        if not change.is_rounding and (not grown or change.relative > grown)
    ]
    if not far:
        return
    worst = max(far, key=lambda name: changes[name].relative)
    after = parameters_after(pair.reference)
    size = apart_together((changes[name], after[name].norm) for name in far)
    made, is_argument = owner_words((pair.target.settings, pair.reference.settings), worst)
    verdict = VerdictClass.ARGUMENT if is_argument else VerdictClass.UPDATE
    # Calls compute an average of parameters; buffers are changed in modules, or by other ranks.
    call, where = None, ""
    if not made and kind == "parameter":
        call = difference_behind(*pair.sides)
    elif not made:
        module = worst.rpartition(".")[0]
        call, where = difference_of_module(*pair.sides, module), f"in {module} " * bool(module)
    if call is not None:
        made, verdict = f"; {where}{call.words}", call.verdict
    is_written = kind == "parameter" and all(facts.optimizer_steps() for facts in pair.sides)
    if is_written:
        verdict = VerdictClass.PARAMETERS  # the program writes it besides
    yield pair.difference(
        verdict,
        Moment.UPDATE,
        f"{some_of(far, len(changes), f'{kind}s')} {are(far, 'differs', 'differ')} "
        f"after step {pair.step}{size}, though every value recorded before agrees{made}",
        turn=max(len(facts.optimizer_steps()) for facts in pair.sides),
        parameter=worst,
        is_written=is_written,
        modules=() if kind == "parameter" else tuple({n.rpartition(".")[0]: None for n in far}),
        next=(call.next if call else ())
        or (
            f"look at the code that writes this {kind}",
            "record its calls (level L1 or mix), if it was recorded at L0"
            if kind == "buffer"
            else "run compiled code without compiling it, to see what it does",
        ),
    )


def _updated(facts: Facts) -> dict[str, Fingerprint]:
    """Return the parameters after the last update by an optimizer.

    One that an optimizer holds without a gradient may be changed by the program afterwards.
    """
    return {
        name: in_column(columns.after, place, at(columns.dtype, place) or "")
        for columns in (step.parameters for step in facts.optimizer_steps())
        for place, name in enumerate(columns.name)
        if at(columns.has_gradient, place) is not False
    }


def parameters_after(facts: Facts) -> dict[str, Fingerprint]:
    """Return parameters and buffers when a step ends, as far as they are known."""
    return {**_after(facts), **_updated(facts)}


def changes_unseen(facts: Facts) -> bool:
    """Return whether a step changes parameters, and no optimizer in it does."""
    if facts.optimizer_steps() or facts.parameters is None or facts.buffers_after is None:
        return False
    kinds = kinds_of(facts.parameters)
    start = dict(zip(facts.parameters.name, facts.parameters.checksum, strict=True))
    after = dict(zip(facts.buffers_after.name, facts.buffers_after.checksum, strict=True))
    return any(kinds.get(name) == "parameter" and start[name] != after[name] for name in after)


def _after(facts: Facts) -> dict[str, Fingerprint]:
    start, after = facts.parameters, facts.buffers_after
    if start is None or after is None:
        return {}
    buffers = {
        name: of_parameter(start, place)
        for place, name in enumerate(start.name)
        if start.kind[place : place + 1] == ["buffer"]
    }
    return buffers | of_parameters(after)
