# SPDX-License-Identifier: Apache-2.0
"""Pair the parameters of two checkpoints, by name and then by content.

By name first. If hardly any name is shared, a prefix that one side has before all of its names
(``module.``, ``state_dict.``, ``model.``) is taken off. Leftovers of both sides are paired
where the values are the same, bit for bit: it was renamed.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec

from msprobe.checkpoints.alike import pair_by_names, pair_by_values
from msprobe.checkpoints.changes import Relation
from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.parameters import Checkpoint, Parameter, find_equal, is_finite
from msprobe.checkpoints.regrouped import find_joined, find_tied, pair_transposed, transposed
from msprobe.dump.formats.dtypes import PACKED_TYPES

# A prefix is taken off only if that lets at least this share of the leftover names meet.
_WORTHWHILE: Final = 0.5
# Names of each side, at least, by which a prefix is looked for.
_PREFIX_SAMPLE: Final = 2000
# Leftovers that are compared at a time in the order of the files.
_IN_ORDER: Final = 256


class ParameterPair(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A target parameter and its reference parameter, or one without a partner.

    Attributes:
        target: that of the checkpoint under test, None where it was removed.
        reference: that of the trusted one, None where it was added.
        relation: how they were found.
        is_known_equal: whether all elements were found equal and finite while they were paired.
    """

    target: Parameter | None
    reference: Parameter | None
    relation: Relation = Relation.NAME
    is_known_equal: bool = False

    @property
    def is_renamed(self) -> bool:
        """Whether they were paired although their names differ."""
        return self.relation is not Relation.NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All pairs in the order of the target, removed ones last; and the assumptions made."""

    pairs: tuple[ParameterPair, ...]
    notes: tuple[str, ...] = ()


def match_parameters(
    target: Checkpoint, reference: Checkpoint, *, find_renamed: bool = True
) -> Matching:
    """Pair the parameters of two checkpoints.

    Args:
        target: the checkpoint under test.
        reference: the trusted one.
        find_renamed: whether leftovers of equal type and shape are read to find equal values.

    Raises:
        CheckpointFormatError: a file cannot be read.
    """
    partners = pair_by_path(target.parameters.values(), reference.parameters.values())
    notes = _pair_without_prefix(target, reference, partners)
    found = {
        name: ParameterPair(target=target.parameters[name], reference=reference.parameters[other])
        for name, other in partners.items()
    }
    leftovers = _Leftovers(target, reference, partners)
    if find_renamed:
        leftovers.find_all(list(found.values()))
    for pair in leftovers.pairs:
        assert pair.target is not None
        found[leftovers.place(pair)] = pair
    hidden = leftovers.hidden
    pairs = [
        found.get(name) or ParameterPair(target=item, reference=None)
        for name, item in target.parameters.items()
        if name in found or name not in hidden
    ]
    pairs += [pair for place, pair in found.items() if place not in target.parameters]
    pairs += [ParameterPair(target=None, reference=item) for item in leftovers.removed]
    return Matching(pairs=tuple(pairs), notes=tuple(notes))


class _Leftovers:
    """Parameters without a partner of the same name, and the pairs found among them."""

    def __init__(
        self, target: Checkpoint, reference: Checkpoint, partners: Mapping[str, str]
    ) -> None:
        taken = set(partners.values())
        self.added = [item for name, item in target.parameters.items() if name not in partners]
        self.removed = [item for name, item in reference.parameters.items() if name not in taken]
        self.pairs: list[ParameterPair] = []
        self.hidden: set[str] = set()
        self._places: dict[int, str] = {}

    def place(self, pair: ParameterPair) -> str:
        """Return the name in whose place of the target a pair comes."""
        assert pair.target is not None
        return self._places.get(id(pair), pair.target.name)

    def find_all(self, paired: list[ParameterPair]) -> None:
        """Pair by equal values first, then by other forms, then by likeness."""
        finite: set[str] = set()
        by_content = _pair_by_content(self.added, self.removed, finite)
        removed = {item.name: item for item in self.removed}
        equal = [
            (item, removed[by_content[item.name]]) for item in self.added if item.name in by_content
        ]
        self._take(equal, Relation.VALUES, finite)
        self._find_tied([*paired, *self.pairs])
        if self.added and self.removed:
            self._find_joined()
            self._take(pair_by_values(self.added, self.removed), Relation.ALIKE)
            # Before names: matrices of the other orientation often have the shape of another kind.
            turned = pair_transposed(self.added, self.removed)
            self._take(
                [(item, other) for item, each in turned if (other := transposed(each)) is not None],
                Relation.TRANSPOSED,
            )
            known = [
                (pair.target, pair.reference)
                for pair in self.pairs
                if pair.target is not None and pair.reference is not None
            ]
            self._take(pair_by_names(self.added, self.removed, known), Relation.ALIKE)

    def _take(
        self,
        pairs: Iterable[tuple[Parameter, Parameter]],
        relation: Relation,
        known_equal: Set[str] = frozenset(),
    ) -> None:
        pairs = list(pairs)
        self.pairs += [
            ParameterPair(
                target=one,
                reference=other,
                relation=relation,
                is_known_equal=one.name in known_equal,
            )
            for one, other in pairs
        ]
        self._drop(one.name for one, _ in pairs)
        names = {other.name for _, other in pairs}
        self.removed = [item for item in self.removed if item.name not in names]

    def _drop(self, added: Iterable[str]) -> None:
        names = set(added)
        self.hidden |= names
        self.added = [item for item in self.added if item.name not in names]

    def _find_joined(self) -> None:
        for group in find_joined(self.added, self.removed):
            pair = ParameterPair(
                target=group.whole, reference=group.joined, relation=Relation.JOINED
            )
            self.pairs.append(pair)
            self._drop([group.whole.name])
            names = {part.name for part in group.parts}
            self.removed = [item for item in self.removed if item.name not in names]
        for group in find_joined(self.removed, self.added):
            pair = ParameterPair(
                target=group.joined, reference=group.whole, relation=Relation.SPLIT
            )
            self.pairs.append(pair)
            self._places[id(pair)] = group.parts[0].name
            self._drop(part.name for part in group.parts)
            self.removed = [item for item in self.removed if item.name != group.whole.name]

    def _find_tied(self, paired: list[ParameterPair]) -> None:
        """Pair a parameter that only one side has twice with the other side's only one."""
        targets = {pair.target.name: pair for pair in paired if pair.target is not None}
        references = {pair.reference.name: pair for pair in paired if pair.reference is not None}
        both = [pair for pair in paired if pair.target is not None and pair.reference is not None]
        tied = find_tied(self.added, [pair.target for pair in both if pair.target], _digest)
        for item, twin in tied:
            pair = ParameterPair(
                target=item, reference=targets[twin.name].reference, relation=Relation.TIED
            )
            self.pairs.append(pair)
        self._drop(item.name for item, _ in tied)
        tied = find_tied(self.removed, [pair.reference for pair in both if pair.reference], _digest)
        for item, twin in tied:
            pair = ParameterPair(
                target=references[twin.name].target, reference=item, relation=Relation.TIED
            )
            self._places[id(pair)] = f"{item.name} (tied)"
            self.pairs.append(pair)
        names = {item.name for item, _ in tied}
        self.removed = [item for item in self.removed if item.name not in names]


class _Keyed(Protocol):
    """An entry of a checkpoint."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> KeyPath: ...


_Entry = TypeVar("_Entry", bound=_Keyed)


def pair_by_path(target: Iterable[_Keyed], reference: Iterable[_Keyed]) -> dict[str, str]:
    """Return target name → reference name: the same keys first, then keys equal when joined."""
    target, reference = list(target), list(reference)
    by_name = {item.name: item.path for item in reference}
    found = {item.name: item.name for item in target if by_name.get(item.name) == item.path}
    if len(found) < len(target):
        # Names are spelled out where two paths of one side would share one.
        by_path = {item.path: item.name for item in reference if item.name not in found}
        found = {item.name: found.get(item.name) or by_path[item.path]
                 for item in target if item.name in found or item.path in by_path}  # fmt: skip
    if len(found) == len(target):
        return found
    taken = set(found.values())
    added = _by_joined_keys(item for item in target if item.name not in found)
    removed = _by_joined_keys(item for item in reference if item.name not in taken)
    found |= {item.name: removed[key].name for key, item in added.items() if key in removed}
    return found


def _by_joined_keys(entries: Iterable[_Entry]) -> dict[str, _Entry]:
    """Return entries by their keys joined by dots, those alone that share it with no other."""
    found: dict[str, _Entry | None] = {}
    for item in entries:
        key = path_name(item.path)
        found[key] = None if key in found else item
    return {key: item for key, item in found.items() if item is not None}


def _pair_without_prefix(
    target: Checkpoint, reference: Checkpoint, partners: dict[str, str]
) -> list[str]:
    """Add to `partners` the names that are equal without a common prefix of one side."""
    taken = set(partners.values())
    added = _by_joined_keys(
        item for name, item in target.parameters.items() if name not in partners
    )
    removed = _by_joined_keys(
        item for name, item in reference.parameters.items() if name not in taken
    )
    if not added or not removed:
        return []
    longer, prefix, count = _best_prefix(added, removed)
    if not prefix or count < _WORTHWHILE * min(len(added), len(removed)):
        return []
    for name in added:
        other = name.removeprefix(prefix) if longer == "target" else prefix + name
        if other in removed and (longer != "target" or name.startswith(prefix)):
            partners[added[name].name] = removed[other].name
    return [f'names of the {longer} were read without their prefix "{prefix}"']


def _best_prefix(
    target: Mapping[str, Parameter], reference: Mapping[str, Parameter]
) -> tuple[str, str, int]:
    """Return the side with an extra prefix, it, and about how many names are equal without it."""
    best = ("", "", 0)
    # A prefix that is worthwhile shows in every so-many-th name as well.
    step = max(1, min(len(target), len(reference)) // _PREFIX_SAMPLE)
    for side, longer, shorter in (
        ("target", target, reference),
        ("reference", reference, target),
    ):
        counts: Counter[str] = Counter()
        for name in list(longer)[::step]:
            rest = name.partition(".")[2]
            while rest:
                if rest in shorter and shorter[rest].shape == longer[name].shape:
                    counts[name[: len(name) - len(rest)]] += 1
                rest = rest.partition(".")[2]
        for prefix, count in counts.most_common(1):
            if count * step > best[2]:
                best = (side, prefix, count * step)
    return best


def _pair_by_content(
    added: Sequence[Parameter], removed: Sequence[Parameter], finite: set[str]
) -> dict[str, str]:
    """Return target name → reference name for leftovers with equal bytes, each used once.

    Args:
        added: leftovers of the target.
        removed: leftovers of the reference.
        finite: gets the names of those of the target whose elements are all finite.
    """
    found = _pair_in_order(added, removed)
    finite |= found.keys()
    taken = set(found.values())
    waiting: dict[Any, list[Parameter]] = defaultdict(list)
    for item in removed:
        if item.name not in taken:
            waiting[item.dtype, item.shape].append(item)
    by_content: dict[Any, dict[bytes, list[str]]] = {}
    for item in added:
        key = (item.dtype, item.shape)
        if item.name in found or key not in waiting or not item.count:
            continue
        if key not in by_content:
            by_content[key] = defaultdict(list)
            for other in waiting[key]:  # in the order of the file, which is read ahead
                by_content[key][_digest(other)].append(other.name)
            for same in by_content[key].values():
                same.reverse()  # the first one is taken first
        names = by_content[key].get(_digest(item, finite))
        if names:
            found[item.name] = names.pop()
    return found


def _pair_in_order(added: Sequence[Parameter], removed: Sequence[Parameter]) -> dict[str, str]:
    """Return target name → reference name of leftovers that are equal, and finite, in their order.

    Names change more often than the order: where that is kept, no digests are needed.
    """
    sides: list[dict[Any, list[Parameter]]] = []
    for items in (added, removed):
        by_kind: dict[Any, list[Parameter]] = defaultdict(list)
        for item in items:
            if item.count:
                by_kind[item.dtype, item.shape].append(item)
        sides.append(by_kind)
    found: dict[str, str] = {}
    for kind, targets in sides[0].items():
        pairs = list(zip(targets, sides[1].get(kind, ()), strict=False))
        for start in range(0, len(pairs), _IN_ORDER):
            some = pairs[start : start + _IN_ORDER]
            equal = find_equal(some)
            found |= {
                one.name: other.name for (one, other), each in zip(some, equal, strict=True) if each
            }
            if not any(equal):
                break
    return found


def _digest(parameter: Parameter, finite: set[str] | None = None) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    all_finite = finite is not None and parameter.dtype not in PACKED_TYPES
    for piece in parameter.pieces():
        all_finite = all_finite and is_finite(piece, parameter.dtype)
        if not piece.dtype.isnative:
            piece = piece.astype(piece.dtype.newbyteorder("="))  # noqa: PLW2901
        digest.update(piece.data)
    if finite is not None and all_finite:
        finite.add(parameter.name)
    return digest.digest()
