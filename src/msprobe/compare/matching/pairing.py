# SPDX-License-Identifier: Apache-2.0
"""`pair_operations`: every operation of two sides, with its partner where it has one."""

from __future__ import annotations

from msprobe.compare.matching.identities import shared_names
from msprobe.compare.matching.matcher import Matcher
from msprobe.compare.matching.merge_order import merged_order
from msprobe.compare.model import Match, OperationPair
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side


def pair_operations(target: Side, reference: Side, options: CompareOptions) -> list[OperationPair]:
    """Pair the operations of two sides.

    Returns:
        Every operation of either side once, in the order of execution; those without a partner
        stand where they ran.

    Raises:
        ConfigError: a mapping file cannot be used.
        DumpFormatError: a dump is damaged.
    """
    if options.align != "always" and target.names == reference.names:
        return [
            OperationPair(position=place, target=name, reference=name, match=Match.EXACT)
            for place, name in enumerate(target.names)
        ]
    of_target, of_reference = shared_names(target, reference)
    matcher = Matcher(
        target, reference, of_target=of_target, of_reference=of_reference, align=options.align
    )
    matcher.match()
    return _as_pairs(matcher, target, reference)


def _as_pairs(matcher: Matcher, target: Side, reference: Side) -> list[OperationPair]:
    pairs: list[OperationPair] = []
    order = merged_order(len(target.names), len(reference.names), matcher.partners)
    for position, (t, r) in enumerate(order):
        target_name = None if t is None else target.names[t]
        reference_name = None if r is None else reference.names[r]
        match, confidence = Match.UNMATCHED, 0.0
        if t is not None and r is not None:
            match, confidence = matcher.grounds[t]
        pairs.append(
            OperationPair(
                position=position,
                target=target_name,
                reference=reference_name,
                match=match,
                confidence=confidence,
            )
        )
    return pairs
