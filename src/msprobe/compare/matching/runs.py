# SPDX-License-Identifier: Apache-2.0
"""Find the call without a partner in a row of equal calls.

Alignment by order leaves out the last one or the first one, whichever it comes to. Their values say
better.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

# How far an unpaired call is moved along a run of equal ones to where it fits best.
_MAX_SLIDE: Final = 2000
_SLIDE_ROUNDS: Final = 3
# Likenesses to look at in a gap, so that long runs of equal calls stay cheap.
_LEAST_SLIDES: Final = 2000
_SLIDES_PER_CALL: Final = 30


def slide_holes(
    partners: dict[int, int], keys: Sequence[Hashable], like: Callable[[int, int], float]
) -> None:
    """For each place without a partner, find the place in its run that is better left out.

    A run is broken by a pair of another key, not by another place without a partner.
    """
    budget = _LEAST_SLIDES + _SLIDES_PER_CALL * len(keys)
    for _ in range(_SLIDE_ROUNDS):
        has_moved = False
        for hole in [place for place in range(len(keys)) if place not in partners]:
            for step in (-1, 1):
                path, seen = _best_path(hole, step, partners, keys, like)
                budget -= seen
                for empty, neighbour in itertools.pairwise(path):
                    partners[empty] = partners.pop(neighbour)
                has_moved = has_moved or len(path) > 1
                hole = path[-1]  # noqa: PLW2901
            if budget < 0:
                return
        if not has_moved:
            return


def _best_path(
    hole: int,
    step: int,
    partners: Mapping[int, int],
    keys: Sequence[Hashable],
    like: Callable[[int, int], float],
) -> tuple[list[int], int]:
    """Return the places by which a hole moves to where it leaves the most alike pairs.

    Returns:
        The places, from the hole on, and how many were looked at.
    """
    path, gain, best_gain, best_length = [hole], 0.0, 1e-9, 1
    neighbour = hole
    for seen in range(_MAX_SLIDE):
        neighbour += step
        if not 0 <= neighbour < len(keys):
            return path[:best_length], seen
        partner = partners.get(neighbour)
        if partner is None:
            continue
        if keys[neighbour] != keys[hole]:
            return path[:best_length], seen
        gain += like(path[-1], partner) - like(neighbour, partner)
        path.append(neighbour)
        if gain > best_gain:
            best_gain, best_length = gain, len(path)
    return path[:best_length], _MAX_SLIDE
