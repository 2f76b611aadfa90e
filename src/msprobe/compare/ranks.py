# SPDX-License-Identifier: Apache-2.0
"""Pair ranks of the target with ranks of the reference, and find the worst of them.

Steps and ranks pair by number. A single step or rank on both sides pairs whatever its number: two
files that a user names are meant to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from msprobe.dump.dump_steps import Dump, DumpStep, RankKey
from msprobe.dump.joined_view import joined
from msprobe.dump.rank_view import RankView
from msprobe.errors import UsageError
from msprobe.plain_text import few_text
from msprobe.report.comparison_words import DIFFERENCES, SEVERITY

if TYPE_CHECKING:
    import polars as pl

_Key = TypeVar("_Key", int, RankKey)

_SHOWN_KEYS: Final = 8
_COMPILED_HALF: Final = "graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPair:
    """One rank of one step, on both sides.

    Attributes:
        step: the target's step.
        rank: the target's rank: its number, or its folder's name where it has none.
        target: the side under test.
        reference: the trusted side.
    """

    step: int
    rank: RankKey
    target: RankView
    reference: RankView


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Pairs of ranks to compare.

    Attributes:
        pairs: in order of step and rank; never empty.
        notes: on ranks left out, and ranks paired although their numbers differ.
        steps_alone: side → its steps that have no partner.
    """

    pairs: Sequence[ViewPair]
    notes: Sequence[str]
    steps_alone: Mapping[str, Sequence[int]]


def pair_views(
    target: Dump,
    reference: Dump,
    *,
    steps: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
) -> Pairing:
    """Pair the ranks of two dumps.

    Args:
        target: the dump under test.
        reference: the trusted one.
        steps: only these steps of the target; None for all.
        ranks: only these ranks; None for all.

    Raises:
        UsageError: nothing pairs, or a step or rank that was asked for is not there.
    """
    notes: list[str] = []
    pairs: list[ViewPair] = []
    wanted = _wanted_steps(target, steps)
    reference_steps = (
        _wanted_steps(reference, steps) if len(reference.steps) > 1 else reference.steps
    )
    for step, reference_step in _pair_keys(
        "step", wanted, reference_steps, (target, reference), notes
    ):
        chosen = _wanted_ranks(target, target.steps[step], ranks)
        others = reference.steps[reference_step].ranks
        others = _with_number(others, ranks) if len(others) > 1 else others
        chosen, others = _whole(chosen), _whole(others)
        place = "" if len(wanted) == 1 else f"step {step}: "
        found: list[str] = []
        pairs += [
            ViewPair(step=step, rank=rank, target=chosen[rank], reference=others[other])
            for rank, other in _pair_keys("rank", chosen, others, (target, reference), found)
        ]
        notes += [place + note for note in found]
    is_numbered = bool(wanted.keys() & reference_steps.keys())
    sides = ("target", wanted, reference_steps), ("reference", reference_steps, wanted)
    alone = {side: [step for step in own if step not in other] for side, own, other in sides}
    return Pairing(pairs=pairs, notes=notes, steps_alone=alone if is_numbered else {})


def _wanted_steps(dump: Dump, steps: Sequence[int] | None) -> Mapping[int, DumpStep]:
    if steps is None:
        return dump.steps
    chosen = {number: step for number, step in dump.steps.items() if number in steps}
    if not chosen:
        known = _shown(dump.steps)
        raise UsageError(f"{dump.path}: holds none of the steps {_shown(steps)}; it has {known}")
    return chosen


def _wanted_ranks(
    dump: Dump, step: DumpStep, ranks: Sequence[int] | None
) -> Mapping[RankKey, RankView]:
    if ranks is None:
        return step.ranks
    chosen = _with_number(step.ranks, ranks)
    if not chosen:
        known = _shown(step.ranks)
        raise UsageError(
            f"{dump.path}: step {step.number} holds none of the ranks {_shown(ranks)}; "
            f"it has {known}"
        )
    return chosen


def _with_number(
    views: Mapping[RankKey, RankView], ranks: Sequence[int] | None
) -> Mapping[RankKey, RankView]:
    if ranks is None:
        return views
    return {key: view for key, view in views.items() if (view.rank or 0) in ranks}


def _whole(own: Mapping[RankKey, RankView]) -> Mapping[RankKey, RankView]:
    """Return ranks, each as one with its half of compiled code, if it has one."""
    found = dict(own)
    for key, view in own.items():
        rest = [k for k, each in own.items() if each.name == view.name and k != key]
        if view.mode != _COMPILED_HALF or len(rest) != 1:
            continue
        both = joined(own[rest[0]], view)
        if both is not None:
            del found[key], found[rest[0]]
            found[view.name if view.rank is None else view.rank] = both
    return found


def _pair_keys(
    what: str,
    target: Mapping[_Key, object],
    reference: Mapping[_Key, object],
    dumps: tuple[Dump, Dump],
    notes: list[str],
) -> list[tuple[_Key, _Key]]:
    """Return pairs of keys; adds notes for the user to `notes`."""
    if len(target) == len(reference) == 1:
        key, other = next(iter(target)), next(iter(reference))
        if key != other and _is_number(key) and _is_number(other):
            notes.append(f"{what} {key} was compared with {what} {other} of the reference")
        return [(key, other)]
    common = [key for key in target if key in reference]
    if not common:
        return _pair_unnumbered(what, target, reference, dumps, notes)
    for side, keys, others in (("target", target, reference), ("reference", reference, target)):
        unmatched = [key for key in keys if key not in others]
        if unmatched:
            notes.append(f"only in the {side}: {what} {_shown(unmatched)}")
    return [(key, key) for key in common]


def _pair_unnumbered(
    what: str,
    target: Mapping[_Key, object],
    reference: Mapping[_Key, object],
    dumps: tuple[Dump, Dump],
    notes: list[str],
) -> list[tuple[_Key, _Key]]:
    """Pair folders that carry a process number instead of a rank in the order of their names."""
    if len(target) == len(reference) and not any(map(_is_number, (*target, *reference))):
        target_keys, reference_keys = sorted(target, key=str), sorted(reference, key=str)
        if [_mode_of(key) for key in target_keys] == [_mode_of(key) for key in reference_keys]:
            notes.append(f"{what}s without a number were paired in the order of their names")
            return list(zip(target_keys, reference_keys, strict=True))
    raise UsageError(
        f"no {what} of {dumps[0].path} has a partner in {dumps[1].path}: the target has "
        f"{_shown(target)}, the reference {_shown(reference)}; "
        f"name one {what} folder on each side to compare them anyway"
    )


def _mode_of(key: int | str) -> str:
    """Return ``graph`` or ``pynative`` for the halves of a MindSpore dump."""
    return str(key).rpartition("/")[0]


def _is_number(key: int | str) -> bool:
    return isinstance(key, int)


def _shown(keys: Iterable[int | str]) -> str:
    return few_text([*map(str, keys)], _SHOWN_KEYS)


def worst_ranks(frame: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """Return one row for each value of each step, with the rank where it is worst.

    Args:
        frame: the table of `CompareResult.frame`, or that of some of its steps.

    Returns:
        Columns ``step``, ``name``, ``module``, ``ranks`` (how many hold the row), ``differing``
        (how many of them differ), ``worst_rank``, and ``status``, ``origin``, ``error`` and
        ``reason`` of that rank; in order of execution.
    """
    import polars as pl

    severity = pl.col("status").replace_strict(
        {status: -place for place, status in enumerate(SEVERITY)}, return_dtype=pl.Int8
    )
    differs = pl.col("status").is_in(DIFFERENCES)
    # NaN would sort as the largest error; a row without an error comes after those with one.
    error = pl.col("error").fill_nan(None)
    picked = ("status", "origin", "error", "reason")
    ranked = (
        frame.lazy()
        .select("step", "name", "module", "rank", "order", *picked)
        .with_columns(severity.alias("_severity"), error.alias("_error"), differs.alias("_differs"))
        .sort("_severity", "_error", descending=True, nulls_last=True, maintain_order=True)
        .group_by("step", "name", maintain_order=True)
        .agg(
            pl.col("module").first(),
            pl.len().alias("ranks"),
            pl.col("_differs").sum().alias("differing"),
            pl.col("rank").first().alias("worst_rank"),
            *(pl.col(name).first() for name in picked),
            pl.col("order").min().alias("_order"),
        )
        .sort("step", "_order", maintain_order=True)
        .drop("_order")
    )
    return ranked.collect()
