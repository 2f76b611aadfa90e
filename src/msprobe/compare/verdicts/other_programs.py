# SPDX-License-Identifier: Apache-2.0
"""Are the two sides different programs, too little alike to be compared call by call?"""

from __future__ import annotations

from typing import Final

from msprobe.compare.verdicts.verdict import Findings, Verdict
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass

# Where a smaller share of the calls has partners, the two are different programs.
_LEAST_PAIRED: Final = 1 / 3
_FEW_CALLS: Final = 6
# Where a smaller share of the parameters has partners, of all calls this share must.
_LEAST_OF_ALL: Final = 1 / 2
_FEW_PARAMETERS: Final = 4


def are_different_programs(findings: Findings) -> bool:
    """Return whether too few calls or parameters have partners to compare the two."""
    return _pairs_little(findings) or _are_other_models(findings)


def _pairs_little(findings: Findings) -> bool:
    """Return whether few calls have partners; compiled code shows few, and updates are the same."""
    paired, least, _ = findings.paired
    is_little = least >= _FEW_CALLS and paired < _LEAST_PAIRED * least
    return is_little and not findings.has_same_updates


def _are_other_models(findings: Findings) -> bool:
    """Return whether the models have neither parameters nor calls in common.

    Parts that one side's model has besides leave all of the other's; other names leave the shapes,
    or the calls.
    """
    models, (paired, _, total) = findings.models, findings.paired
    if models is None or findings.scope:
        return False
    least = min(models.target, models.reference)
    are_named_otherwise = least >= _FEW_PARAMETERS and models.names < _LEAST_PAIRED * least
    return are_named_otherwise and models.shapes < least and paired < _LEAST_OF_ALL * total


def different_programs(findings: Findings) -> Verdict:
    """Return the verdict on two different programs."""
    models, (paired, least, total) = findings.models, findings.paired
    words = f"only {paired} of {least} calls have a partner on the other side"
    if models is not None and not _pairs_little(findings):
        words = (
            f"of {models.target} parameters of the target and {models.reference} of the reference "
            f"the models share {models.names or 'none'}; only {paired} of {total} calls have a "
            "partner on the other side"
        )
    return findings.conclude(
        VerdictClass.DIFFERENT_PROGRAMS,
        words,
        Confidence.LIKELY,
        next_steps=["compare two runs of the same model, or map their names (--help)"],
    )
