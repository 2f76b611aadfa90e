# SPDX-License-Identifier: Apache-2.0
"""Values that several ranks hold, as one.

Where all ranks hold the same value, it is replicated, and one is kept. Otherwise each holds a part
of a tensor, and the statistics of the whole follow from those of the parts; or each holds a partial
sum. A partial sum becomes the sum where a collective then added it up; where none did, the mean of
the sum is known, and its other statistics are not.

Sizes in a record of the whole model tell the cases apart: a part is smaller, a partial sum has the
same sizes and means that add up to the mean of the whole. Ranks that hold neither ought to agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msprobe.graph.merged_tensors import STORED, Filled, Joined, Summed, all_stored
from msprobe.graph.model import HalfKind
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Family, Flow

_STATISTICS: Final = ("Max", "Min", "Mean", "Norm")
_MERGED: Final = "note"
_SUMS: Final = "partial sums"  # of a tensor, until `settle`
_ROUNDING: Final = 1e-3
"""Relative difference of statistics that copies on several ranks may have."""


class Reductions:
    """Values that some ranks added up."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = frozenset(ranks)
        self._sums: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        self.count = len(self._ranks)

    def learn(self, name: str, tree: Any) -> None:
        """Take note of a record, if it is of a collective of these ranks that adds values up.

        Args:
            name: of the call, as ``Distributed.all_reduce``.
            tree: its record.
        """
        if not _is_sum_of_ranks(name) or not self._is_of_these(tree):
            return
        given = [*_tensors(tree.get("input_args"))]
        made = [*_tensors(tree.get("output"))]
        if given and made and _adds_up(given[-1], made[0], len(self._ranks)):
            self._sums.setdefault(_print(given[-1]), []).append(made[0])

    def _is_of_these(self, tree: Mapping[str, Any]) -> bool:
        groups = [*_groups(tree)]
        return not groups or any(self._ranks <= frozenset(group) for group in groups)

    def sum_of(self, tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return the statistics of the sum of partial sums; None if the ranks did not add them."""
        made = [self._sums.get(_print(tensor)) for tensor in tensors]
        if any(found is None for found in made):
            return None
        totals = [found[0] for found in made if found]
        if len({_print(total) for total in totals}) == 1:
            return {name: totals[0].get(name) for name in _STATISTICS}
        return _statistics(totals)  # each rank was given a part of the sum


def _is_sum_of_ranks(name: str) -> bool:
    prefix, _, api = name.partition(".")
    if prefix != "Distributed":
        return False
    operator = operator_of(prefix, api)
    sent = operator.communication
    return sent is not None and sent.flow is Flow.BETWEEN_ALL and operator.family is Family.ADDITIVE


def _adds_up(given: Mapping[str, Any], made: Mapping[str, Any], ranks: int) -> bool:
    """Return whether what a collective made may be the sum of what it was given, or part of it."""
    own, total = math.prod(given.get("shape", ())), math.prod(made.get("shape", ()))
    return own in (total, total * ranks) and _print(given) != _print(made)


def _groups(tree: Any) -> Iterator[Sequence[int]]:
    if isinstance(tree, dict):
        if isinstance(tree.get("group_ranks"), list):
            yield tree["group_ranks"]
        for item in tree.values():
            yield from _groups(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from _groups(item)


def _tensors(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if "shape" in tree:
            yield tree
        else:
            for item in tree.values():
                yield from _tensors(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from _tensors(item)


def _print(tensor: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        str(tensor.get("shape")),
        *(str(tensor.get(name)) for name in _STATISTICS),
        tensor.get("md5"),
    )


def merge_records(
    trees: Sequence[Any],
    reductions: Reductions,
    *,
    whole: Any,
    has_partial_sums: bool,
    has_own_counts: bool = False,
) -> Any:
    """Return the record of a call that some ranks made as one.

    Args:
        trees: the records of the ranks that have one.
        reductions: values that these ranks added up.
        whole: the record of the call in the whole model; None if unknown.
        has_partial_sums: whether tensors of the same sizes are partial sums: gradients of
            parameters that all ranks hold.
        has_own_counts: whether each rank counts rows of its own, as those that share experts do.

    Partial sums keep what `settle` needs to say what they are.
    """
    merge = _Merge(reductions, has_partial_sums=has_partial_sums, has_own_counts=has_own_counts)
    return merge.tree(trees, whole)


def settle(tree: Any, whole: Any) -> int:
    """Decide on what may be partial sums, when all ranks have been merged.

    Args:
        tree: the record; it is changed.
        whole: the record of the call in the whole model; None if unknown.

    Returns: number of values that ranks should hold alike and do not.
    """
    if isinstance(tree, dict) and "shape" in tree:
        sums = tree.pop(_SUMS, None)
        known = isinstance(whole, dict) and "shape" in whole
        if sums is None or not known or _may_be_sum(sums, whole):
            return 0
        tree |= {**sums.first, _MERGED: "ranks that should agree do not: the first's value"}
        return 1
    if isinstance(tree, dict):
        wholes = whole if isinstance(whole, dict) else {}
        return sum(settle(item, wholes.get(key)) for key, item in tree.items())
    if isinstance(tree, list):
        others = (
            whole if isinstance(whole, list) and len(whole) == len(tree) else [None] * len(tree)
        )
        return sum(settle(item, other) for item, other in zip(tree, others, strict=True))
    return 0


def join_pieces(trees: Mapping[int, Any], kind: HalfKind) -> Any:
    """Return the record of a box that every piece of the model has: of the model itself.

    Args:
        trees: piece → its record.
        kind: forward, backward …

    Returns: inputs of the first piece, outputs of the last one; of gradients the other way round.
    """
    first, last = trees[min(trees)], trees[max(trees)]
    if first is last or not (isinstance(first, dict) and isinstance(last, dict)):
        return first
    if kind is HalfKind.PARAMETERS_GRAD:
        return {key: tree for each in trees.values() for key, tree in each.items()}
    given, made = (last, first) if kind is HalfKind.BACKWARD else (first, last)
    joined = {key: tree for each in trees.values() for key, tree in each.items()}
    inputs = {key: tree for key, tree in given.items() if key.startswith("input")}
    outputs = {key: tree for key, tree in made.items() if key.startswith("output")}
    return joined | inputs | outputs


class _Merge:
    """Merges the values of one record."""

    def __init__(
        self, reductions: Reductions, *, has_partial_sums: bool, has_own_counts: bool
    ) -> None:
        self._reductions = reductions
        self._has_own_counts = has_own_counts
        self._has_partial_sums = has_partial_sums

    def tree(self, trees: Sequence[Any], whole: Any) -> Any:
        """Return the tree of a value, or of several."""
        first = trees[0]
        if isinstance(first, dict) and "shape" in first:
            known = [tree for tree in trees if isinstance(tree, dict) and "shape" in tree]
            is_tensor = isinstance(whole, dict) and "shape" in whole
            return self._tensor(known, whole if is_tensor else None)
        if isinstance(first, dict):
            return {
                key: self.tree(
                    [tree[key] for tree in trees if isinstance(tree, dict) and key in tree],
                    whole.get(key) if isinstance(whole, dict) else None,
                )
                for key in first
            }
        if isinstance(first, list):
            lists = [tree for tree in trees if isinstance(tree, list) and len(tree) == len(first)]
            wholes = whole if isinstance(whole, list) and len(whole) == len(first) else None
            return [
                self.tree([tree[place] for tree in lists], wholes and wholes[place])
                for place in range(len(first))
            ]
        return first

    def _tensor(
        self, tensors: Sequence[Mapping[str, Any]], whole: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        first = {
            key: fact for key, fact in tensors[0].items() if key not in ("value_id", "projections")
        }
        sums = first.pop(_SUMS, None)
        if len({_print(tensor) for tensor in tensors}) == 1 and sums is None:
            return _grown_constant(first, whole)
        first.pop("md5", None)
        stored = all_stored(tensors)
        total = self._reductions.sum_of(tensors)
        if total is not None:
            total |= {STORED: stored and Summed(stored)}
            return first | total | {_MERGED: _note(tensors, f"sum over {len(tensors)} ranks")}
        sizes = {tuple(tensor["shape"]) for tensor in tensors}
        has_sizes_of_whole = whole is not None and sizes == {tuple(whole["shape"])}
        are_copies = has_sizes_of_whole and sums is None
        if are_copies and all(_is_close(tensor, tensors[0]) for tensor in tensors):
            return first | {_MERGED: _note(tensors, "copies with other rounding")}
        is_count = self._has_own_counts and "int" in str(tensors[0]["dtype"])
        is_sum = not is_count and (has_sizes_of_whole or (whole is None and self._has_partial_sums))
        if len(sizes) == 1 and (is_sum or sums is not None):
            return first | _partial_sum(tensors) | {STORED: stored and Summed(stored)}
        return first | _parts(tensors, whole)


def _grown_constant(tensor: dict[str, Any], whole: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a value that all ranks hold; parts with one number everywhere look alike, too."""
    high, low, norm = (tensor.get(name) for name in ("Max", "Min", "Norm"))
    if whole is None or high != low or norm is None or not _are_numbers([high, norm]):
        return tensor
    own, there = math.prod(tensor["shape"]), math.prod(whole["shape"])
    if own == there or not own or there % own or len(tensor["shape"]) != len(whole["shape"]):
        return tensor
    stored = tensor.get(STORED)
    filled = {STORED: stored and Filled(stored, whole["shape"])}
    return {**tensor, **filled, "shape": whole["shape"], "Norm": norm * math.sqrt(there / own)}


def _note(tensors: Sequence[Mapping[str, Any]], text: str) -> str:
    """Return how a value was merged, after how its parts were."""
    before = tensors[0].get(_MERGED)
    return f"{before}; {text}" if isinstance(before, str) else text


def _is_close(tensor: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    sides = [[side.get(name) for name in _STATISTICS] for side in (tensor, other)]
    if not all(map(_are_numbers, sides)):
        return False
    scale = max(abs(tensor["Max"]), abs(tensor["Min"]))
    return all(
        abs(tensor[name] - other[name]) <= _ROUNDING * (abs(other[name]) + scale)
        for name in _STATISTICS
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of the statistics of tensors that may be partial sums of one, and the first of them."""

    first: dict[str, Any]
    high: float
    low: float
    mean: float
    means: float
    norm: float
    norms: float

    @classmethod
    def of(cls, tensors: Sequence[Mapping[str, Any]]) -> _Sums | None:
        """Return the sums; None where a statistic is missing."""
        parts = [tensor.get(_SUMS) or cls._of_one(tensor) for tensor in tensors]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return cls(
            first=known[0].first,
            high=sum(part.high for part in known),
            low=sum(part.low for part in known),
            mean=sum(part.mean for part in known),
            means=sum(part.means for part in known),
            norm=max(part.norm for part in known),
            norms=sum(part.norms for part in known),
        )

    @classmethod
    def _of_one(cls, tensor: Mapping[str, Any]) -> _Sums | None:
        first = {name: tensor.get(name) for name in _STATISTICS}
        if not _are_numbers([*first.values()]):
            return None
        high, low, mean, norm = (float(number) for number in first.values() if number is not None)
        first[STORED] = tensor.get(STORED)
        return cls(first, high, low, mean, abs(mean), norm, norm)


def _may_be_sum(sums: _Sums, whole: Mapping[str, Any]) -> bool:
    """Return whether tensors may add up to another one, as far as their statistics tell."""
    if not _are_numbers([whole.get(name) for name in _STATISTICS]):
        return True
    high, low, mean, norm = (float(whole[name]) for name in _STATISTICS)
    slack = _ROUNDING * max(abs(high), abs(low), abs(sums.high), abs(sums.low))
    return (
        abs(sums.mean - mean) <= _ROUNDING * (sums.means + abs(mean)) + slack / 10
        and sums.low - slack <= low <= high <= sums.high + slack
        and (2 * sums.norm - sums.norms) * (1 - _ROUNDING) - slack <= norm
        and norm <= sums.norms * (1 + _ROUNDING)
    )


def _are_numbers(found: Sequence[Any]) -> bool:
    return all(isinstance(number, (int, float)) and math.isfinite(number) for number in found)


def _partial_sum(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums = _Sums.of(tensors)
    return {
        **dict.fromkeys(_STATISTICS),
        "Mean": None if sums is None else sums.mean,
        _MERGED: "partial sums, of which the mean alone is known",
        _SUMS: sums,
    }


def _parts(tensors: Sequence[Mapping[str, Any]], whole: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the statistics of a tensor that was split, and its sizes where they can be told."""
    found = {**_statistics(tensors), _MERGED: _note(tensors, f"{len(tensors)} parts"), STORED: None}
    if whole is None:
        return found
    sizes = [tensor["shape"] for tensor in tensors]
    there = whole["shape"]
    if any(len(size) != len(there) for size in sizes):
        return found
    split = [
        place
        for place, size in enumerate(there)
        if any(own[place] != size for own in sizes)
        and sum(own[place] for own in sizes)
        and size % sum(own[place] for own in sizes) == 0
    ]
    if not split:
        return found
    # Where other axes split other dimensions just so, their order does not matter.
    place = split[0]
    shape = [*sizes[0]]
    shape[place] = sum(own[place] for own in sizes)
    text = f" along dimension {place}" if len(split) == 1 else ""
    stored = all_stored(tensors)
    joined = {STORED: stored and Joined.along(stored, split)}
    return {**found, **joined, "shape": shape, _MERGED: found[_MERGED] + text}


def _statistics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of all elements of some tensors."""
    held = [part for part in parts if math.prod(part["shape"])]
    columns: dict[str, list[float]] = {
        name: [part[name] for part in held if isinstance(part.get(name), (int, float))]
        for name in _STATISTICS
    }
    if not held or any(len(column) < len(held) for column in columns.values()):
        return dict.fromkeys(_STATISTICS)
    counts = [math.prod(part["shape"]) for part in held]
    weighted = sum(mean * count for mean, count in zip(columns["Mean"], counts, strict=True))
    return {
        "Max": _or_nan(columns["Max"], max(columns["Max"])),
        "Min": _or_nan(columns["Min"], min(columns["Min"])),
        "Mean": weighted / sum(counts),
        "Norm": math.hypot(*columns["Norm"]),
    }


def _or_nan(numbers: Sequence[float], extreme: float) -> float:
    return math.nan if any(map(math.isnan, numbers)) else extreme
