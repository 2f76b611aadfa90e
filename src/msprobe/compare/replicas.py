# SPDX-License-Identifier: Apache-2.0
"""Ranks of one dump that should agree but do not.

Data-parallel ranks hold the same parameters, and the same gradients once these were reduced. And
whatever two ranks compute from the same values must come out the same. Ranks count as replicas
when most of their parameters agree; ranks that hold different parts of the parameters are left
alone, and so is everything random. Where most parameters are a little apart, the ranks train each
on its own: that is one finding. Beside a trusted run, only values that agree there must agree.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.collectives.calls import is_communication
from msprobe.compare.call_differences import Key, value_key
from msprobe.compare.causes import Cause
from msprobe.compare.model import (
    Match,
    Matched,
    Mode,
    OperationPair,
    Origin,
    Row,
    Status,
)
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.verdicts.origin_state import mark
from msprobe.dump.dump_steps import Dump, DumpStep, RankKey
from msprobe.dump.record_names import RecordKind, forward_name
from msprobe.dump.values import Role, Value
from msprobe.errors import UsageError

if TYPE_CHECKING:
    from msprobe.compare.options import CompareOptions
    from msprobe.compare.result import CompareResult
    from msprobe.numerics.tolerances import Tolerances

# Ranks that hold parts of the parameters have whole ones in common, too: norms, biases.
_LEAST_COMMON_SHARE: Final = 0.6
# Replicas that drifted apart are still closer than two parts of one weight ever are.
_SIMILAR: Final = 1e-3
# What was only taken for a parameter may be the result of a call that made no record, which is far
# off on other data.
_SIMILAR_GUESS: Final = 0.1
_RNG: Final = "rng"
# Of the parameters, or of their gradients; more of them do not drift apart by themselves.
_MOST: Final = 0.5

_CAUSES: Final = {
    Role.PARAMETER: Cause.REPLICA_PARAMETER,
    Role.INPUT: Cause.REPLICA_PARAMETER,  # inputs are looked at only where they are parameters
    Role.PARAMETER_GRAD: Cause.REPLICA_GRADIENT,
}

_PARTING: Final = {
    "parameters": (Role.PARAMETER, Role.INPUT),
    "reduced gradients": (Role.PARAMETER_GRAD,),
}

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Ranks that hold the same parameters.

    Attributes:
        step: the step.
        ranks: at least two, the first of which the others are compared with.
        parameters: record and slot where each parameter is first seen.
    """

    step: int
    ranks: tuple[RankKey, ...]
    parameters: frozenset[Place]


def compare_replicas(
    path: Path,
    options: CompareOptions,
    *,
    output: Path | None = None,
    notes: Sequence[str] = (),
) -> CompareResult:
    """Compare the ranks of one dump with each other, where they should agree.

    Args:
        path: the dump.
        options: how to compare.
        output: folder for the outcomes of an interrupted comparison.
        notes: further notes for the summary.

    Raises:
        DumpFormatError: there is no dump at that path, or it is damaged.
        UsageError: no step has two ranks that hold the same parameters.
    """
    from msprobe.compare.result import CompareResult
    from msprobe.compare.result_files import check_writable
    from msprobe.compare.tensors.tensor_rows import TensorWork
    from msprobe.compare.verdicts.next_steps import UnusedGlobs
    from msprobe.compare.verdicts.summary import Summary
    from msprobe.dump.reader import open_dump
    from msprobe.numerics.tolerances import Tolerances

    began = time.perf_counter()
    if output is not None:
        check_writable(output)
    dump = open_dump(path)
    tolerances = Tolerances.load(options.tolerances)
    said = list(notes)
    comparisons: list[RankComparison] = []
    parted: dict[RankKey, str] = {}
    with TensorWork(options, output) as work:
        for step in _wanted(dump, options.steps):
            for comparison in compare_replicas_of(step, options.ranks, said):
                if comparison.mode is Mode.TENSOR:
                    work.measure(comparison, tolerances)
                judge_replicas(comparison, tolerances)
                _blame_once(comparison, parted)
                comparisons.append(comparison)
    if not comparisons:
        raise UsageError(
            f"{path}: no step has two ranks with the same parameters; "
            "replicas are ranks of one data-parallel run"
        )
    if options.tolerances is not None:
        globs = UnusedGlobs(options.tolerances, tolerances)
        for comparison in comparisons:
            globs.look_at(comparison)
        said += globs.notes()
    gathered = Summary(of_replicas=True)
    for _, ranks in groupby(comparisons, key=lambda comparison: comparison.step):
        gathered.add(list(ranks))
    summary = gathered.finish(
        target=str(path),
        reference=str(path),
        notes=said,
        bytes_read=work.bytes_read,
    )
    summary["elapsed_s"] = round(time.perf_counter() - began, 3)
    summary["replicas"] = list(replica_findings(comparisons, set()))
    return CompareResult(comparisons=comparisons, summary=summary)


def _wanted(dump: Dump, steps: Sequence[int] | None) -> list[DumpStep]:
    return [step for number, step in dump.steps.items() if steps is None or number in steps]


class ReplicaCheck:
    """Finds values on which replicas disagree, step by step, by statistics or checksums alone.

    Attributes:
        has_replicas: whether any ranks were replicas.
    """

    def __init__(self, tolerances: Tolerances) -> None:
        """Create it, with the allowed errors of results of equal inputs."""
        self.has_replicas = False
        self._tolerances = tolerances
        self._parted: dict[RankKey, str] = {}
        self._seen: set[tuple[RankKey, str]] = set()

    def findings(self, step: DumpStep, trusted: DumpStep | None = None) -> Iterator[dict[str, Any]]:
        """Same as `replica_findings`, without the findings of earlier steps.

        Args:
            step: of the target; with a single rank it has no replicas.
            trusted: the same step of the trusted run, with the same ranks; None without one.
        """
        found: list[RankComparison] = []
        for comparison in compare_replicas_of(step, None, []):
            judge_replicas(comparison, self._tolerances)
            if any(row.status.is_difference for row in comparison.rows):
                if trusted is not None:
                    views = comparison.reference.view, comparison.target.view
                    keys = [key for view in views for key in step.ranks if step.ranks[key] is view]
                    same_ranks = DumpStep(step.number, {key: trusted.ranks[key] for key in keys})
                    _leave_out_known(comparison, same_ranks, self._tolerances)
                _blame_once(comparison, self._parted)
            found.append(comparison)
        self.has_replicas |= bool(found)
        yield from replica_findings(found, self._seen)


def _leave_out_known(comparison: RankComparison, trusted: DumpStep, tolerances: Tolerances) -> None:
    """Take out the rows in which the same two ranks of the trusted run differ, too.

    All rows if these are no replicas there.
    """
    other = next(compare_replicas_of(trusted, None, []), None)
    if other is None:
        comparison.rows = []
        return
    judge_replicas(other, tolerances)
    known = {row.name for row in other.rows if row.status.is_difference}
    comparison.rows = [row for row in comparison.rows if row.name not in known]


def compare_replicas_of(
    step: DumpStep, ranks: Sequence[int] | None, notes: list[str]
) -> Iterator[RankComparison]:
    """Yield each replica against the first of its group, with the rows that must agree.

    Adds to `notes` which ranks were taken for replicas. The rows are not judged.
    """
    sides = {
        key: Side(view, source="target")
        for key, view in step.ranks.items()
        if ranks is None or (view.rank or 0) in ranks
    }
    notes += [damage for side in sides.values() for damage in side.damages]
    if len(sides) < 2:
        return
    for group in find_replica_groups(step.number, sides):
        first = sides[group.ranks[0]]
        shown = ", ".join(map(str, group.ranks))
        notes.append(f"step {step.number}: ranks {shown} were taken for replicas")
        for key in group.ranks[1:]:
            yield _compare_pair(group, key, sides[key], first)


def find_replica_groups(step: int, sides: Mapping[RankKey, Side]) -> list[ReplicaGroup]:
    """Return the groups of ranks that hold the same parameters."""
    groups: list[tuple[list[RankKey], dict[Place, Value]]] = []
    for key, side in sides.items():
        weights = _parameters(side)
        if not weights:
            continue
        for members, known in groups:
            if _are_replicas(weights, known):
                members.append(key)
                break
        else:
            groups.append(([key], weights))
    return [
        ReplicaGroup(step=step, ranks=tuple(members), parameters=frozenset(weights))
        for members, weights in groups
        if len(members) > 1
    ]


def _parameters(side: Side) -> dict[Place, Value]:
    """Return the parameters of a rank by the place where each is first seen.

    Where records of modules do not list them, they are what calls take in that requires gradients
    and that no call has given out.
    """
    names = [name for name in side.names if side.parsed(name).kind is RecordKind.FORWARD]
    listed = {
        (name, value.slot): value
        for name in filter(side.view.records.may_list_parameters, names)
        for value in side.values(name)
        if value.is_tensor and value.role is Role.PARAMETER
    }
    return listed or _guessed_parameters(side, names)


def _guessed_parameters(side: Side, names: Iterable[str]) -> dict[Place, Value]:
    guessed: dict[Place, Value] = {}
    seen: set[Key] = set()
    for name in names:
        for value in side.values(name):
            if not value.is_tensor:
                continue
            key = value_key(value)
            if value.role is Role.OUTPUT:
                seen.add(key)
            elif value.requires_grad and key not in seen:
                seen.add(key)
                guessed[name, value.slot] = value
    return guessed


def _are_replicas(values: Mapping[Place, Value], others: Mapping[Place, Value]) -> bool:
    """Return whether most parameters agree that could tell the difference."""
    if values.keys() != others.keys():
        return False
    if any(value.shape != others[place].shape for place, value in values.items()):
        return False
    # Biases of 0 and scales of 1 are the same on all ranks, whatever these hold.
    telling = [
        place for place, value in values.items() if value.max != value.min or value.max is None
    ]
    alike = sum(_are_similar(values[place], others[place]) for place in telling)
    return alike >= _LEAST_COMMON_SHARE * len(telling) if telling else True


def _are_similar(a: Value, b: Value, tolerance: float = _SIMILAR) -> bool:
    if value_key(a) == value_key(b):
        return True
    pairs = [(a.max, b.max), (a.min, b.min), (a.norm, b.norm)]
    for x, y in pairs:
        if not isinstance(x, (int, float)) or not isinstance(y, (int, float)):
            return False
        if not abs(x - y) <= tolerance * max(abs(x), abs(y)):
            return False
    return True


def _compare_pair(group: ReplicaGroup, rank: RankKey, side: Side, first: Side) -> RankComparison:
    known = set(first.names)
    pairs: list[OperationPair] = []
    rows: list[Row] = []
    checker = _Checker(side, first, group.parameters)
    for name in side.names:
        if name not in known:
            continue
        pair = OperationPair(position=len(pairs), target=name, reference=name, match=Match.EXACT)
        found = list(checker.rows(name, pair))
        if found:
            pairs.append(pair)
            rows += found
    return RankComparison(
        step=group.step,
        rank=rank,
        target=side,
        reference=first,
        mode=side.mode if side.mode is first.mode else Mode.STATISTICS,
        pairs=pairs,
        rows=rows,
    )


class _Checker:
    """Finds the values that two replicas must have in common."""

    def __init__(self, side: Side, first: Side, parameters: frozenset[Place]) -> None:
        self._side = side
        self._first = first
        self._parameters = parameters
        self._enclosing = set(side.view.parents.values())
        self._seen: set[tuple[str, str]] = set()
        # Forward calls that both ranks made of the same values.
        self._same_calls: set[str] = set()

    def rows(self, name: str, pair: OperationPair) -> Iterator[Row]:
        """Yield the values of a record that must agree."""
        parsed = self._side.parsed(name)
        is_backward = parsed.kind is RecordKind.BACKWARD
        if is_backward and forward_name(parsed) not in self._same_calls:
            return  # a gradient depends on the values of the forward call, too
        values, others = self._side.values_of_both(self._first, name)
        if [value.slot for value in values] != [value.slot for value in others]:
            return
        reduced = parsed.kind is RecordKind.PARAMETERS_GRAD_REDUCED
        same = self._computes_the_same(name, values, others)
        for a, b in zip(values, others, strict=True):
            if a.role is Role.PARAMETER:
                if (parsed.base, a.slot) in self._seen:
                    continue
                self._seen.add((parsed.base, a.slot))
            elif (name, a.slot) in self._parameters:
                if not _are_similar(a, b, _SIMILAR_GUESS):
                    continue
            elif not (reduced or (same and a.role is Role.OUTPUT)):
                continue
            yield Matched(pair=pair, target=a, reference=b)

    def _computes_the_same(self, name: str, values: list[Value], others: list[Value]) -> bool:
        """Return whether a call has all inputs in common and nothing else that could differ."""
        parsed = self._side.parsed(name)
        if parsed.is_module and name in self._enclosing:
            return False  # the calls inside it tell more, and may be random
        operator = self._side.operator(name)
        if is_communication(parsed) or parsed.prefix == "Distributed":
            return False
        if operator.draws_random or operator.allocates:
            return False
        taken = [(a, b) for a, b in zip(values, others, strict=True) if a.role is not Role.OUTPUT]
        tensors = sum(a.is_tensor for a, _ in taken)
        if not tensors or any(a is not b and value_key(a) != value_key(b) for a, b in taken):
            return False
        if parsed.kind not in (RecordKind.FORWARD, RecordKind.BACKWARD):
            return False
        if _RNG in self._side.view.records[name].parts:
            return False
        if parsed.kind is RecordKind.FORWARD:
            self._same_calls.add(name)
        return True


def judge_replicas(comparison: RankComparison, tolerances: Tolerances) -> None:
    """Judge the rows of a replica: results within the tolerance, parameters exactly."""
    from msprobe.compare.verdicts.status import judge_rows, mark_unread

    judge_rows(comparison, tolerances)
    for row in comparison.rows:
        if row.status is Status.CLOSE and row.value.role is not Role.OUTPUT:
            row.status = Status.DIFFERS
        if row.status.is_difference:
            row.origin = Origin.INTRODUCED
            row.cause = _CAUSES.get(row.value.role, Cause.REPLICA_RESULT)
    mark_unread(comparison)


def _blame_once(comparison: RankComparison, parted: dict[RankKey, str]) -> None:
    """Blame one value of ranks that part as a whole; later differences follow from it.

    Args:
        comparison: one step of one rank, judged.
        parted: rank → the value with which it parted in an earlier step; grows.
    """
    rank = comparison.rank
    first = None if rank in parted else _parting(comparison.rows)
    for row in comparison.rows:
        if row is first:
            parted[rank] = row.name
        elif rank in parted and row.status.is_difference and row.value.role is not Role.OUTPUT:
            mark(row, Origin.INHERITED, Cause.PARTED_TOO, parted[rank])


def _parting(rows: Sequence[Row]) -> Row | None:
    """Return the first of the parameters, or of their gradients, where most of them differ."""
    for what, roles in _PARTING.items():
        members = [row for row in rows if row.value.role in roles]
        differing = [row for row in members if row.status.is_difference]
        if len(differing) > max(1, _MOST * len(members)):
            first = differing[0]
            first.cause = Cause.REPLICAS_PART
            first.subject = f"{len(differing)} of {len(members)} {what}"
            return first
    return None


def replica_findings(
    comparisons: Sequence[RankComparison], seen: set[tuple[RankKey, str]]
) -> Iterator[dict[str, Any]]:
    """Yield each value that replicas disagree about, in order of execution, at its first step.

    Args:
        comparisons: of one step or several.
        seen: the first rank and the row of each value that earlier steps had; grows.

    Yields:
        ``name`` (of the record), ``row``, ``kind``, ``module``, ``status``, ``step``, ``ranks``
        (all that were compared), ``differing`` (those that disagree), ``error``, ``reason``,
        ``source``.
    """
    groups: dict[tuple[int, int], list[RankComparison]] = defaultdict(list)
    for comparison in comparisons:
        groups[comparison.step, id(comparison.reference)].append(comparison)
    for members in groups.values():
        yield from _findings_of(members, seen)


def _findings_of(
    members: Sequence[RankComparison], seen: set[tuple[RankKey, str]]
) -> Iterator[dict[str, Any]]:
    """Yield the findings of a group that no earlier step had; `seen` are these, and grows."""
    first = members[0].reference.view
    base: RankKey = first.name if first.rank is None else first.rank
    ranks = [base, *(member.rank for member in members)]
    rows: dict[str, list[tuple[RankComparison, Row]]] = defaultdict(list)
    for member in members:
        for row in member.rows:
            if row.status.is_difference and row.cause is not Cause.PARTED_TOO:
                rows[row.name].append((member, row))
    for name, found in rows.items():
        if (base, name) in seen:
            continue
        seen.add((base, name))
        differing = [member.rank for member, _ in found]
        # Where most differ from the first rank, it is the odd one out.
        if len(differing) > 1 and len(differing) > len(members) / 2:
            differing = [base, *(rank for rank in ranks[1:] if rank not in differing)]
        member, row = max(found, key=lambda one: one[1].error or 0.0)
        others = [rank for rank in ranks if rank not in differing]
        sides = f"rank {', '.join(map(str, differing))} against {', '.join(map(str, others))}"
        yield {
            "name": row.pair.name,
            "row": row.name,
            "kind": _kind(member.target, row),
            "module": member.target.module(row.pair.name),
            "status": row.status.value,
            "step": member.step,
            "ranks": ranks,
            "differing": differing,
            "error": row.error,
            "reason": f"{sides}: {row.reason}",
            "source": member.target.source_line(row.pair.name),
        }


def _kind(side: Side, row: Row) -> str:
    if row.value.role is Role.INPUT:
        return Role.PARAMETER.value  # inputs are looked at only where they are parameters
    if row.value.role in (Role.PARAMETER, Role.PARAMETER_GRAD):
        return row.value.role.value
    return "backward" if side.parsed(row.pair.name).kind is RecordKind.BACKWARD else "forward"
