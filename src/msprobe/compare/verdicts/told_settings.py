# SPDX-License-Identifier: Apache-2.0
"""Causes that the settings of a module tell: what it was made with, or holds."""

from __future__ import annotations

from msprobe.api_prefixes import PRIMITIVE
from msprobe.compare.model import Status
from msprobe.compare.training.frameworks import are_of_two_frameworks, in_shared_terms
from msprobe.compare.training.module_settings import (
    changed_options,
    changed_settings,
    options_of_class,
)
from msprobe.compare.verdicts.culprit_words import culprit_place
from msprobe.compare.verdicts.other_parts import other_parts
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.values import Role


def by_settings(culprit: Culprit, found: VerdictClass, words: str) -> tuple[VerdictClass, str]:
    """Return class and words of a cause, by what modules were made with where that differs."""
    comparison, row = culprit.comparison, culprit.row
    pair = row.pair
    is_reshaped = found is VerdictClass.CALL and row.status is Status.SHAPE
    # What a primitive of MindSpore is given besides tensors has no place in its record.
    is_kernel = found is VerdictClass.KERNEL or (is_reshaped and bool(_primitive_of(culprit)))
    is_open = is_kernel or found in (VerdictClass.UNEXPLAINED, VerdictClass.RANDOM) or is_reshaped
    is_result = culprit.kind == "forward" and row.value.role is Role.OUTPUT and pair.is_matched
    paths = _modules_with_settings(culprit, is_kernel=is_kernel) if is_open and is_result else []
    own, other = comparison.target.view.facts, comparison.reference.view.facts
    if own is None or other is None:
        return found, words
    if are_of_two_frameworks(own, other):
        own, other = in_shared_terms(own, other)
    if is_kernel and is_result and not paths:
        made = options_of_class((own.settings, other.settings), _primitive_of(culprit))
        return (
            (VerdictClass.ARGUMENT, f"{culprit_place(culprit)}: {made}") if made else (found, words)
        )
    if not paths:
        return found, words
    given = (own.settings, other.settings), paths
    options = changed_options(*given)
    if is_kernel and not (options is not None and options.are_values):
        return found, words
    if options is not None:
        words = f"{culprit_place(culprit)}: {options.words}"
        parts = other_parts(comparison, pair)
        if parts is not None and parts.verdict is VerdictClass.ORDER:  # a setting chooses it
            return parts.verdict, f"{parts.words}; {words}"
        return (VerdictClass.ARGUMENT if options.are_values else found), words
    held = changed_settings(*given)
    if held is None:
        return found, words
    return (
        VerdictClass.PRECISION if held.are_types else found,
        f"{words}; of its settings {held.words}",
    )


def _primitive_of(culprit: Culprit) -> str:
    """Return the class of a primitive of MindSpore; empty for other calls."""
    parsed = culprit.comparison.parsed(culprit.row.pair)
    return parsed.path.rpartition(".")[2] if parsed.prefix == PRIMITIVE else ""


def _modules_with_settings(culprit: Culprit, *, is_kernel: bool) -> list[str]:
    """Return the paths of a culprit's module, on both sides; empty where it is none."""
    if is_kernel:
        return [culprit.module] * 2 if culprit.module else []
    pair = culprit.row.pair
    parsed = [parse_record_name(name or "") for name in (pair.target, pair.reference)]
    return [name.path for name in parsed] if all(name.is_module for name in parsed) else []
