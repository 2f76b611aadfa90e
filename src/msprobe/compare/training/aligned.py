# SPDX-License-Identifier: Apache-2.0
"""Which calls without records belong together on both sides: the same ones, of the same lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, TypeVar

T = TypeVar("T")

_FEW: Final = 8  # edits of a file that add or remove lines
_MOST: Final = 500  # calls between the first and the last that differ, of either side


def aligned(
    target: Sequence[T],
    reference: Sequence[T],
    content_of: Callable[[T], Hashable],
    source_of: Callable[[T], str | None],
) -> list[tuple[bool, Sequence[T], Sequence[T]]]:
    """Return the stretches of two lists that belong together, and whether they are the same.

    Of calls that are the same, those of one line belong together, unless that leaves more apart.

    Args:
        target: calls of the target, in order.
        reference: those of the reference.
        content_of: what calls that are the same share.
        source_of: file and line of a call.
    """
    keys: list[list[Hashable]] = [[*map(content_of, side)] for side in (target, reference)]
    if keys[0] == keys[1]:
        return [(True, target, reference)]
    lines = [[_line(source_of(call)) for call in side] for side in (target, reference)]
    pairs = {
        (here, there)
        for is_same, own, other in _stretches(*keys)
        if is_same
        for here, there in zip(lines[0][own], lines[1][other], strict=True)
        if here[0] == there[0]
    }
    # Lines move where a program is edited, all behind as far.
    shifts = Counter(there[1] - here[1] for here, there in pairs)
    often = [shift for shift, count in shifts.most_common(_FEW) if count > 1]
    known = {*zip(keys[1], lines[1], strict=True)}
    tried = [0, *sorted(often, key=abs)]
    moved = []
    for key, (file, line) in zip(keys[0], lines[0], strict=True):
        shift = next((each for each in tried if (key, (file, line + each)) in known), 0)
        tried[0] = shift  # that of the call before is the first to try
        moved.append((file, line + shift))
    by_line: list[list[Hashable]] = [
        [*zip(key, at, strict=True)] for key, at in zip(keys, (moved, lines[1]), strict=True)
    ]
    ways = [
        [(is_same, target[own], reference[other]) for is_same, own, other in _stretches(*way)]
        for way in (by_line, keys)
    ]
    return min(ways, key=_calls_apart)


def _calls_apart(stretches: Sequence[tuple[bool, Sequence[T], Sequence[T]]]) -> int:
    return sum(max(len(own), len(other)) for is_same, own, other in stretches if not is_same)


def _line(source: str | None) -> tuple[str, int]:
    """Return the file and the number of a line; no file where it is not known."""
    file, _, number = (source or "").rpartition(":")
    return (file, int(number)) if number.isdigit() else ("", 0)


def _stretches(
    target: Sequence[Hashable], reference: Sequence[Hashable]
) -> Iterator[tuple[bool, slice, slice]]:
    """Yield which stretches of two lists belong together, and whether they are the same."""
    least = min(len(target), len(reference))
    first = next((i for i in range(least) if target[i] != reference[i]), least)
    last = next((i for i in range(least - first) if target[~i] != reference[~i]), least - first)
    ends = [len(side) - last for side in (target, reference)]
    own, other = (
        side[first : min(end, first + _MOST)]
        for side, end in zip((target, reference), ends, strict=True)
    )
    yield True, slice(0, first), slice(0, first)
    for tag, *at in SequenceMatcher(None, own, other, autojunk=False).get_opcodes():
        start, end, other_start, other_end = (first + place for place in at)
        yield tag == "equal", slice(start, end), slice(other_start, other_end)
    yield True, slice(ends[0], None), slice(ends[1], None)
