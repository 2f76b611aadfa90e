# SPDX-License-Identifier: Apache-2.0
"""Pair the parameters of two checkpoints, by name and then by content.

By name first. If hardly any name is shared, a prefix that one side has before all of its names
(``module.``, ``state_dict.``, ``model.``) is taken off. Leftovers of both sides are paired
where the values are the same, bit for bit: it was renamed.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.parameters import Checkpoint, Parameter

# A prefix is taken off only if that lets at least this share of the leftover names meet.
_WORTHWHILE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPair:
    """A target parameter and its reference parameter, or one without a partner.

    Attributes:
        target: that of the checkpoint under test, None where it was removed.
        reference: that of the trusted one, None where it was added.
        is_renamed: whether they were paired by their values.
    """

    target: Parameter | None
    reference: Parameter | None
    is_renamed: bool = False


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
    renamed: dict[str, str] = {}
    if find_renamed:
        taken = set(partners.values())
        renamed = _pair_by_content(
            (item for name, item in target.parameters.items() if name not in partners),
            [item for name, item in reference.parameters.items() if name not in taken],
        )
    found = partners | renamed
    pairs = [
        ParameterPair(
            target=item,
            reference=reference.parameters[found[name]] if name in found else None,
            is_renamed=name in renamed,
        )
        for name, item in target.parameters.items()
    ]
    taken = set(found.values())
    pairs += [
        ParameterPair(target=None, reference=item)
        for name, item in reference.parameters.items()
        if name not in taken
    ]
    return Matching(pairs=tuple(pairs), notes=tuple(notes))


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
    by_path = {item.path: item.name for item in reference}
    found = {item.name: by_path[item.path] for item in target if item.path in by_path}
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
    """Return the side with an extra prefix, the prefix, and how many names are equal without it."""
    best = ("", "", 0)
    for side, longer, shorter in (
        ("target", target, reference),
        ("reference", reference, target),
    ):
        counts: Counter[str] = Counter()
        for name, item in longer.items():
            parts = name.split(".")
            for cut in range(1, len(parts)):
                rest = ".".join(parts[cut:])
                if rest in shorter and shorter[rest].shape == item.shape:
                    counts[name[: len(name) - len(rest)]] += 1
        for prefix, count in counts.most_common(1):
            if count > best[2]:
                best = (side, prefix, count)
    return best


def _pair_by_content(added: Iterable[Parameter], removed: list[Parameter]) -> dict[str, str]:
    """Return target name → reference name for leftovers with equal bytes, each used once."""
    waiting: dict[tuple[str, tuple[int, ...]], list[Parameter]] = defaultdict(list)
    for item in removed:
        waiting[item.dtype, item.shape].append(item)
    by_content: dict[tuple[str, tuple[int, ...]], dict[bytes, list[str]]] = {}
    found: dict[str, str] = {}
    for item in added:
        key = (item.dtype, item.shape)
        if key not in waiting or not item.count:
            continue
        if key not in by_content:
            by_content[key] = defaultdict(list)
            for other in waiting[key]:
                by_content[key][_digest(other)].append(other.name)
        names = by_content[key].get(_digest(item))
        if names:
            found[item.name] = names.pop(0)
    return found


def _digest(parameter: Parameter) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for piece in parameter.pieces():
        digest.update(piece.astype(piece.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.digest()
