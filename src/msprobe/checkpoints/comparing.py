# SPDX-License-Identifier: Apache-2.0
"""`compare_checkpoints`: pair the parameters of two checkpoints and measure their differences."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace as replace_struct

from msprobe.checkpoints.beside import with_files_beside
from msprobe.checkpoints.changes import Change, Relation
from msprobe.checkpoints.holding import Role, aligned, role_of, roles_without
from msprobe.checkpoints.key_paths import KeyPath
from msprobe.checkpoints.matching import ParameterPair, match_parameters
from msprobe.checkpoints.megatron import apart_from_ranks
from msprobe.checkpoints.opening import KNOWN_ENDS, open_checkpoint
from msprobe.checkpoints.optimizers import find_optimizers, names_parameters, state_place
from msprobe.checkpoints.parameters import (
    PIECE_ELEMENTS,
    Checkpoint,
    Contradiction,
    Entry,
    Parameter,
    Unread,
    Value,
    find_equal,
    same_bytes,
)
from msprobe.checkpoints.regrouped import is_transposed, transposed
from msprobe.checkpoints.rounding import rounded_type
from msprobe.checkpoints.values import ValueDifference, compare_values, with_numbers_as_values
from msprobe.dump.formats.dtypes import PACKED_TYPES
from msprobe.errors import UsageError
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.elementwise import ElementAccumulator, Tolerance
from msprobe.plain_text import count_text

__all__ = ["Change", "CheckpointComparison", "ParameterDifference", "compare_checkpoints"]

Side = Literal["target", "reference"]
EXACT: Final = Tolerance(rtol=0.0, atol=0.0)


# A batch is a piece of work for a thread; a pair costs as much time as reading some bytes.
_BATCH_BYTES: Final = 16 << 20
_PAIR_BYTES: Final = 16 << 10
_BY_ERROR: Final = (Change.NONFINITE, Change.CHANGED)
# A parameter that differs more from its reference may be the reference transposed.
_UNRELATED: Final = 0.5
_BY_KIND: Final = (
    Change.CHANGED,
    Change.SHAPE,
    Change.REMOVED,
    Change.ADDED,
    Change.RENAMED,
    Change.TRANSPOSED,
    Change.JOINED,
    Change.SPLIT,
    Change.TIED,
    Change.ROUNDED,
    Change.DTYPE,
)
# Rounding to bfloat16 is an error of at most 2**-9 of each element.
_LARGEST_ROUNDING: Final = 2.0**-8


class ParameterDifference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One parameter of two checkpoints.

    Attributes:
        pair: the two parameters.
        change: kind of change.
        metrics: how the elements differ; None where they were not compared one by one.
        problem: why they were not; empty if they were, or if one side is missing.
        rounded_to: for `Change.ROUNDED`, the type.
    """

    pair: ParameterPair
    change: Change
    metrics: ElementMetrics | None = None
    problem: str = ""
    rounded_to: str = ""

    @property
    def name(self) -> str:
        """The target's name, or the reference's where the target has none."""
        return self.parameter.name

    @property
    def parameter(self) -> Parameter:
        """The target's parameter, or the reference's where the target has none."""
        parameter = self.pair.target or self.pair.reference
        assert parameter is not None
        return parameter

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN or infinite on one of the sides, if the sides disagree."""
        metrics = self.metrics
        if metrics is None or metrics.first_nonfinite_mismatch is None:
            return 0
        target = metrics.target_nan + metrics.target_pos_inf + metrics.target_neg_inf
        reference = metrics.reference_nan + metrics.reference_pos_inf + metrics.reference_neg_inf
        return max(target, reference)

    @property
    def relative_error(self) -> float:
        """L2 norm of the difference over that of the reference, to rank by; inf for NaN."""
        error = self.metrics.relative_l2 if self.metrics is not None else None
        if error is None or math.isnan(error):
            return math.inf if self.change is Change.CHANGED else 0.0
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointComparison:
    """Two checkpoints compared.

    Attributes:
        target: the checkpoint under test.
        reference: the trusted one.
        differences: every parameter, in the order of the target, removed ones last.
        values: every other value: numbers, text, names of classes.
        uncompared: entries of either side that could not be compared.
        contradictions: parameters of which a side has copies that differ from each other.
        notes: remarks on limits of the comparison.
        elapsed_s: how long it took.
        bytes_read: how much was read of values.
    """

    target: Checkpoint
    reference: Checkpoint
    differences: tuple[ParameterDifference, ...]
    values: tuple[ValueDifference, ...]
    uncompared: tuple[Finding, ...]
    contradictions: tuple[Finding, ...]
    notes: tuple[str, ...]
    elapsed_s: float
    bytes_read: int

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, and everything was compared."""
        return not self.is_different and not self.uncompared

    @property
    def is_different(self) -> bool:
        """Whether anything that was compared differs."""
        counts = Counter(self.counts) + Counter(self.value_counts)
        return bool(self.contradictions) or any(change.is_difference for change in counts)

    @property
    def counts(self) -> dict[Change, int]:
        """How many parameters there are of each change; all of them are listed."""
        return _counts(self.differences)

    @property
    def value_counts(self) -> dict[Change, int]:
        """How many values there are of each change."""
        return _counts(self.values)

    def ranked(self) -> list[tuple[str, str]]:
        """Return kind and name of every difference, the most alarming first.

        NaN and Inf, copies that contradict each other, changed tensors by their relative error,
        changed values, what only one side has, other forms of equal values, and last entries that
        could not be compared.
        """
        found = [(each.change.value, each.name) for each in self.worst()]
        alarming = [pair for pair in found if pair[0] == Change.NONFINITE]
        contradictions = [("contradiction", each.name) for each in self.contradictions]
        everything: tuple[ParameterDifference | ValueDifference, ...]
        everything = (*self.differences, *self.values)
        others = [
            each
            for change in _BY_KIND
            for each in everything
            if each.change is change
            and not (change is Change.CHANGED and isinstance(each, ParameterDifference))
        ]
        # Other names of parameters give other names to the states of the optimizer.
        optimizers = find_optimizers(
            (*self.target.values.values(), *self.reference.values.values())
        )
        others.sort(key=lambda each: _follows_from_names(each, optimizers))
        rest = [(each.change.value, each.name) for each in others]
        uncompared = [("not compared", each.name) for each in self.uncompared]
        return alarming + contradictions + found[len(alarming) :] + rest + uncompared

    def worst(self) -> list[ParameterDifference]:
        """Return the changed parameters: NaN and Inf, then the largest relative error first."""
        changed = [each for each in self.differences if each.change in _BY_ERROR]
        return sorted(changed, key=lambda each: (-each.nonfinite, -each.relative_error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An entry of one side that could not be compared, or whose copies contradict each other.

    Attributes:
        side: "target" or "reference".
        name: its name.
        problem: why it could not be compared, or which copies differ.
        count: how many entries it stands for.
    """

    side: Side
    name: str
    problem: str
    count: int = 1


def compare_checkpoints(
    target: Checkpoint | str | os.PathLike[str],
    reference: Checkpoint | str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    tolerance: Tolerance = EXACT,
    find_renamed: bool = True,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckpointComparison:
    """Compare two checkpoints, of the same or of different formats.

    Memory: some megabytes per worker, for parameters of any size.

    Args:
        target: the checkpoint under test, or its path.
        reference: the trusted one.
        only: glob patterns; a parameter takes part if its name fits one. Empty for all.
        tolerance: within which values count as close.
        find_renamed: whether leftovers are paired by their content; reads them once more.
        workers: how many parameters are compared at once; None for one per core.
        progress: called with the bytes done and the bytes in all.

    Raises:
        CheckpointFormatError: a file is damaged or hostile.
        UnsupportedError: a format that cannot be read without its framework.
        UsageError: no parameter fits `only`.
    """
    began = time.perf_counter()
    one, other = _opened(target), _opened(reference)
    one, other = with_files_beside(one, other, KNOWN_ENDS)
    one, other = (_selected(each, only) for each in (one, other))
    one, other = apart_from_ranks(one, other)
    other = aligned(other, one)
    one, other = with_numbers_as_values(one, other), with_numbers_as_values(other, one)
    matching = match_parameters(one, other, find_renamed=find_renamed)
    sizes = list(map(_size, matching.pairs))
    total, done = sum(sizes), 0
    differences: list[ParameterDifference] = []
    for difference in _compared(matching.pairs, sizes, tolerance, workers):
        done += sizes[len(differences)]
        differences.append(difference)
        if progress is not None:
            progress(done, total)
    differences, values, not_held = _apart(
        one, other, differences, compare_values(one, other, tolerance)
    )
    notes = [f"target: {note}" for note in one.notes]
    notes += [f"reference: {note}" for note in other.notes]
    return CheckpointComparison(
        target=one,
        reference=other,
        differences=tuple(differences),
        values=tuple(values),
        uncompared=(*not_held, *_findings(one.unread, other.unread)),
        contradictions=_findings(one.contradictions, other.contradictions),
        notes=(*notes, *matching.notes),
        elapsed_s=time.perf_counter() - began,
        bytes_read=done,
    )


_Difference = TypeVar("_Difference", ParameterDifference, ValueDifference)


def _apart(
    target: Checkpoint,
    reference: Checkpoint,
    differences: list[ParameterDifference],
    values: list[ValueDifference],
) -> tuple[list[ParameterDifference], list[ValueDifference], list[Finding]]:
    """Tell entries that the other side's format does not hold from differences."""
    sides: dict[Change, tuple[Side, Checkpoint, frozenset[Role]]] = {
        Change.ADDED: ("target", reference, roles_without(reference, target)),
        Change.REMOVED: ("reference", target, roles_without(target, reference)),
    }
    if not any(roles for *_, roles in sides.values()):
        return differences, values, []
    found: dict[tuple[Change, Role], list[str]] = {}

    def judged(each: _Difference, entry: Parameter | Value) -> _Difference:
        role = role_of(entry) if each.change in sides else Role.WEIGHTS
        if role is Role.WEIGHTS or role not in sides[each.change][2]:
            return each
        found.setdefault((each.change, role), []).append(str((*entry.path, entry.name)[0]))
        return replace_struct(each, change=Change.NOT_HELD)

    differences = [judged(each, each.parameter) for each in differences]
    values = [judged(each, each.value) for each in values]
    findings = []
    for (change, role), keys in found.items():
        side, other, _ = sides[change]
        formats = ", ".join(sorted(each.value for each in other.formats))
        problem = f"{count_text(len(keys), 'item')}: {formats} does not hold {role}"
        names = list(dict.fromkeys(keys))
        name = ", ".join(names[:3]) + (" …" if names[3:] else "")
        findings.append(Finding(side=side, name=name, problem=problem, count=len(keys)))
    return differences, values, findings


def _opened(which: Checkpoint | str | os.PathLike[str]) -> Checkpoint:
    return which if isinstance(which, Checkpoint) else open_checkpoint(which)


def _selected(checkpoint: Checkpoint, only: Sequence[str]) -> Checkpoint:
    if not only:
        return checkpoint

    def fits(entry: Entry) -> bool:
        return any(fnmatchcase(entry.name, pattern) for pattern in only)

    found = replace(
        checkpoint,
        parameters={name: item for name, item in checkpoint.parameters.items() if fits(item)},
        values={name: item for name, item in checkpoint.values.items() if fits(item)},
        unread=tuple(filter(fits, checkpoint.unread)),
        contradictions=tuple(
            each
            for each in checkpoint.contradictions
            if any(fnmatchcase(each.name, pattern) for pattern in only)
        ),
    )
    if not (found.parameters or found.values or found.unread):
        raise UsageError(f"{checkpoint.path}: no parameter fits {' or '.join(map(repr, only))}")
    return found


def _follows_from_names(
    each: ParameterDifference | ValueDifference, optimizers: Sequence[KeyPath]
) -> bool:
    """Whether a difference may only say that parameters have other names in an optimizer."""
    if isinstance(each, ValueDifference):
        return names_parameters(each.value.path)
    is_state = state_place(each.parameter.path, optimizers) is not None
    return is_state and each.change is not Change.CHANGED


def _counts(found: Iterable[ParameterDifference | ValueDifference]) -> dict[Change, int]:
    counted = Counter(each.change for each in found)
    return {change: counted[change] for change in Change}


def _findings(
    target: Sequence[Unread | Contradiction], reference: Sequence[Unread | Contradiction]
) -> tuple[Finding, ...]:
    sides: tuple[tuple[Side, Sequence[Unread | Contradiction]], ...] = (
        ("target", target),
        ("reference", reference),
    )
    return tuple(
        Finding(side=side, name=each.name, problem=each.problem)
        for side, found in sides
        for each in found
    )


def _size(pair: ParameterPair) -> int:
    """Return the number of bytes that are read for a pair."""
    target, reference = pair.target, pair.reference
    if target is None or reference is None or not _same_elements(target, reference):
        return 0
    return target.size_bytes + reference.size_bytes


def _compared(
    pairs: Sequence[ParameterPair], sizes: Sequence[int], tolerance: Tolerance, workers: int | None
) -> Iterator[ParameterDifference]:
    # Reading and the C metrics let other threads run. Many small pairs are one piece of work.
    def compare_batch(batch: Sequence[ParameterPair]) -> list[ParameterDifference]:
        unknown = [(each.target, None if each.is_known_equal else each.reference) for each in batch]
        equal = find_equal(unknown)
        return [
            _compare(pair, tolerance, is_equal=is_equal)
            for pair, is_equal in zip(batch, equal, strict=True)
        ]

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for found in pool.map(compare_batch, _batches(pairs, sizes)):
            yield from found


def _batches(
    pairs: Sequence[ParameterPair], sizes: Sequence[int]
) -> Iterator[Sequence[ParameterPair]]:
    begin, size = 0, 0
    for place, each in enumerate(sizes):
        size += each + _PAIR_BYTES
        if size >= _BATCH_BYTES:
            yield pairs[begin : place + 1]
            begin, size = place + 1, 0
    if begin < len(pairs):
        yield pairs[begin:]


def _compare(
    pair: ParameterPair, tolerance: Tolerance, *, is_equal: bool = False
) -> ParameterDifference:
    target, reference = pair.target, pair.reference
    if target is None:
        return ParameterDifference(pair=pair, change=Change.REMOVED)
    if reference is None:
        return ParameterDifference(pair=pair, change=Change.ADDED)
    if not _same_elements(target, reference):
        turned = _turned(pair)
        if turned is not None:
            return _compare(turned, tolerance)
        return ParameterDifference(pair=pair, change=Change.SHAPE)
    if is_equal or pair.is_known_equal:
        change, metrics = pair.relation.change_if_equal, _equal_metrics(target.count)
        return ParameterDifference(pair=pair, change=change, metrics=metrics)
    if PACKED_TYPES & {target.dtype, reference.dtype}:
        return _compare_bytes(pair, target, reference)
    metrics = _measure(target, reference, tolerance)
    if pair.relation is Relation.NAME and (metrics.relative_l2 or 0.0) > _UNRELATED:
        turned = _turned(pair)
        if turned is not None:
            return _compare(turned, tolerance)
    change, rounded_to = _change(pair, target, reference, metrics)
    return ParameterDifference(pair=pair, change=change, metrics=metrics, rounded_to=rounded_to)


def _change(
    pair: ParameterPair, target: Parameter, reference: Parameter, metrics: ElementMetrics
) -> tuple[Change, str]:
    """Return the kind of change, and the type if one side is rounded."""
    if target.shape != reference.shape:
        return Change.SHAPE, ""
    if metrics.mismatches == 0:
        if target.dtype != reference.dtype:
            return Change.DTYPE, ""
        same = pair.relation.change_if_equal
        return (same if metrics.is_equal or pair.is_renamed else Change.CLOSE), ""
    if metrics.first_nonfinite_mismatch is not None:
        return Change.NONFINITE, ""
    if (metrics.relative_l2 or 0.0) <= _LARGEST_ROUNDING:
        rounded_to = rounded_type(target, reference)
        if rounded_to is not None:
            return Change.ROUNDED, rounded_to
    return Change.CHANGED, ""


def _turned(pair: ParameterPair) -> ParameterPair | None:
    """Return a pair with its reference transposed, None if that does not make them alike."""
    target, reference = pair.target, pair.reference
    if target is None or reference is None or not is_transposed(target, reference):
        return None
    turned = transposed(reference)
    return ParameterPair(target=target, reference=turned, relation=Relation.TRANSPOSED)


def _same_elements(target: Parameter, reference: Parameter) -> bool:
    """Whether shapes are equal up to dimensions of size 1."""
    if target.shape == reference.shape:
        return True
    one, other = ([size for size in item.shape if size != 1] for item in (target, reference))
    return one == other


def _measure(target: Parameter, reference: Parameter, tolerance: Tolerance) -> ElementMetrics:
    count = target.count
    accumulator = ElementAccumulator(target.dtype, reference.dtype, tolerance, count=count)
    for start in range(0, count, PIECE_ELEMENTS):
        stop = min(start + PIECE_ELEMENTS, count)
        accumulator.update(target.span.read(start, stop), reference.span.read(start, stop))
    return accumulator.finish()


@lru_cache(maxsize=1024)
def _equal_metrics(count: int) -> ElementMetrics:
    """Return the metrics of equal finite elements."""
    return ElementMetrics(count=count, is_equal=True, cosine=1.0)


def _compare_bytes(
    pair: ParameterPair, target: Parameter, reference: Parameter
) -> ParameterDifference:
    same = same_bytes(target, reference)
    change = pair.relation.change_if_equal
    return ParameterDifference(
        pair=pair,
        change=change if same else Change.CHANGED,
        problem=f"{target.dtype}: several values share a byte, so that only bytes were compared",
    )
