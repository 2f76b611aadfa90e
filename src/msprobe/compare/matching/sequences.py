# SPDX-License-Identifier: Apache-2.0
"""The longest common order of two sequences of tokens, in nearly linear time.

Like `diff`: equal beginnings and ends are set aside, tokens that occur once on either side become
anchors (patience diff), and the tokens between them go to Myers' greedy algorithm ("An O(ND)
Difference Algorithm and Its Variations", 1986) within a budget of steps. Where that runs out,
the n-th of a token is taken for the n-th of the other side.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Final

# Steps of Myers' algorithm that each token of a range pays for; fewer in ranges so long that this
# would take seconds.
_STEPS_PER_TOKEN: Final = 60
_STEPS_PER_TOKEN_OF_LONG: Final = 4
_LEAST_STEPS: Final = 2000
_MANY_STEPS: Final = 2_000_000
# Anchors may uncover further anchors; beyond this depth they hardly do.
_MAX_ROUNDS: Final = 16

IndexPair = tuple[int, int]
_Range = tuple[int, int, int, int, int]


def align(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[IndexPair]:
    """Return positions of equal tokens in both sequences, increasing on both sides."""
    numbers: dict[Hashable, int] = {}
    a = [numbers.setdefault(token, len(numbers)) for token in first]
    b = [numbers.setdefault(token, len(numbers)) for token in second]
    pairs: list[IndexPair] = []
    waiting: list[_Range] = [(0, len(a), 0, len(b), 0)]
    while waiting:
        a_low, a_high, b_low, b_high, rounds = waiting.pop()
        while a_low < a_high and b_low < b_high and a[a_low] == b[b_low]:
            pairs.append((a_low, b_low))
            a_low += 1
            b_low += 1
        while a_low < a_high and b_low < b_high and a[a_high - 1] == b[b_high - 1]:
            a_high -= 1
            b_high -= 1
            pairs.append((a_high, b_high))
        if a_low == a_high or b_low == b_high:
            continue
        here = (a_low, a_high, b_low, b_high, rounds)
        anchors = _unique_anchors(a, b, here) if rounds < _MAX_ROUNDS else []
        if not anchors:
            found = _shortest_edit(a, b, here)
            if found is not None:
                pairs += found
                continue
            if rounds > _MAX_ROUNDS:
                continue
            anchors = _nth_occurrences(a, b, here)
            here = (a_low, a_high, b_low, b_high, _MAX_ROUNDS)
        pairs += anchors
        waiting += _gaps(anchors, here)
    pairs.sort()
    return pairs


def longest_increasing(values: Sequence[int]) -> list[int]:
    """Return positions of a longest strictly increasing subsequence."""
    tails: list[int] = []
    tail_positions: list[int] = []
    previous: list[int] = []
    for position, value in enumerate(values):
        place = bisect_left(tails, value)
        previous.append(tail_positions[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            tail_positions.append(position)
        else:
            tails[place] = value
            tail_positions[place] = position
    chain: list[int] = []
    position = tail_positions[-1] if tail_positions else -1
    while position >= 0:
        chain.append(position)
        position = previous[position]
    chain.reverse()
    return chain


def monotone(pairs: Sequence[IndexPair]) -> list[IndexPair]:
    """Return a largest subset of pairs whose positions increase on both sides."""
    ordered = sorted(pairs)
    return [ordered[place] for place in longest_increasing([second for _, second in ordered])]


def most_alike(likes: Sequence[Sequence[float]]) -> list[IndexPair]:
    """Return pairs that increase on both sides and whose likenesses have the largest sum.

    Costs a step for each entry.

    Args:
        likes: for each item of the first sequence its likeness to those of the second, from 0.
    """
    width = len(likes[0]) if likes else 0
    best = [[0.0] * (width + 1)]
    for row in likes:
        above, line = best[-1], [0.0]
        for j, like in enumerate(row):
            line.append(max(above[j] + like, above[j + 1], line[j]))
        best.append(line)
    pairs = []
    i, j = len(likes), width
    while i and j:
        if best[i][j] == best[i - 1][j]:
            i -= 1
        elif best[i][j] == best[i][j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    pairs.reverse()
    return pairs


def _unique_anchors(a: list[int], b: list[int], span: _Range) -> list[IndexPair]:
    a_low, a_high, b_low, b_high, _ = span
    in_a = Counter(a[a_low:a_high])
    in_b = Counter(b[b_low:b_high])
    places = {
        token: place
        for place, token in enumerate(b[b_low:b_high], b_low)
        if in_b[token] == 1 and in_a[token] == 1
    }
    if not places:
        return []
    pairs = [
        (place, places[token])
        for place, token in enumerate(a[a_low:a_high], a_low)
        if token in places
    ]
    return monotone(pairs)


def _nth_occurrences(a: list[int], b: list[int], span: _Range) -> list[IndexPair]:
    a_low, a_high, b_low, b_high, _ = span
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place in range(b_low, b_high):
        places[b[place]].append(place)
    seen: Counter[int] = Counter()
    pairs = []
    for place in range(a_low, a_high):
        token = a[place]
        if seen[token] < len(places.get(token, ())):
            pairs.append((place, places[token][seen[token]]))
            seen[token] += 1
    return monotone(pairs)


def _gaps(anchors: list[IndexPair], span: _Range) -> list[_Range]:
    a_low, a_high, b_low, b_high, rounds = span
    gaps = []
    for a_place, b_place in [*anchors, (a_high, b_high)]:
        if a_low < a_place and b_low < b_place:
            gaps.append((a_low, a_place, b_low, b_place, rounds + 1))
        a_low, b_low = a_place + 1, b_place + 1
    return gaps


def _shortest_edit(a: list[int], b: list[int], span: _Range) -> list[IndexPair] | None:
    """Return a longest common subsequence; None if the budget runs out."""
    a_low, a_high, b_low, b_high, _ = span
    n, m = a_high - a_low, b_high - b_low
    if set(a[a_low:a_high]).isdisjoint(b[b_low:b_high]):
        return []
    budget = _LEAST_STEPS + min(
        _STEPS_PER_TOKEN * (n + m), _MANY_STEPS + _STEPS_PER_TOKEN_OF_LONG * (n + m)
    )
    furthest = {1: 0}  # diagonal (a minus b) → how far in a
    history: list[dict[int, int]] = []
    for edits in range(n + m + 1):
        reached: dict[int, int] = {}
        for diagonal in range(-edits, edits + 1, 2):
            x = start = max(_steps_to(furthest, diagonal, n, m))
            if x < 0:
                continue
            y = x - diagonal
            while x < n and y < m and a[a_low + x] == b[b_low + y]:
                x += 1
                y += 1
            budget -= 1 + x - start
            reached[diagonal] = x
            if x == n and y == m:
                history.append(reached)
                return _trace(history, n, m, a_low, b_low)
        if budget < 0:
            return None
        history.append(reached)
        furthest = reached
    return None  # not reached: n + m edits always suffice


def _steps_to(furthest: dict[int, int], diagonal: int, n: int, m: int) -> IndexPair:
    """Return the positions on a diagonal after a step down and a step right; -1 for no step."""
    down = furthest.get(diagonal + 1, -1)
    if down - diagonal > m:
        down = -1
    right = furthest.get(diagonal - 1, -2) + 1
    if right > n:
        right = -1
    return down, right


def _trace(
    history: list[dict[int, int]], n: int, m: int, a_low: int, b_low: int
) -> list[IndexPair]:
    pairs = []
    x, y = n, m
    for edits in range(len(history) - 1, 0, -1):
        down, right = _steps_to(history[edits - 1], x - y, n, m)
        start = max(down, right)
        while x > start:
            x -= 1
            y -= 1
            pairs.append((a_low + x, b_low + y))
        if down >= right:
            y -= 1
        else:
            x -= 1
    while x > 0 and y > 0:
        x -= 1
        y -= 1
        pairs.append((a_low + x, b_low + y))
    return pairs


def merged_order(
    target_count: int, reference_count: int, partners: Sequence[int]
) -> list[tuple[int | None, int | None]]:
    """Return every operation once: pairs, and those without a partner at the place where they ran.

    The target's order holds. Operations of the reference alone come before the next operation that
    both have; pairs that ran in another order on the two sides do not count there.

    Args:
        target_count: number of the target's operations.
        reference_count: number of the reference's operations.
        partners: for each operation of the target the place of its partner, -1 for none.

    Returns:
        Places (target, reference), None where there is none.
    """
    is_paired = bytearray(reference_count)
    for place in partners:
        if place >= 0:
            is_paired[place] = 1
    paired = [place for place in range(target_count) if partners[place] >= 0]
    chain = {paired[i] for i in longest_increasing([partners[place] for place in paired])}
    order: list[tuple[int | None, int | None]] = []
    waiting = 0
    for place in range(target_count):
        partner = partners[place]
        if place in chain:
            order += [(None, i) for i in range(waiting, partner) if not is_paired[i]]
            waiting = partner + 1
        order.append((place, partner if partner >= 0 else None))
    order += [(None, i) for i in range(waiting, reference_count) if not is_paired[i]]
    return order
