# SPDX-License-Identifier: Apache-2.0
"""One order of execution for the operations of both sides."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.compare.matching.sequences import longest_increasing


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
