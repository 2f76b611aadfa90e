# SPDX-License-Identifier: Apache-2.0
"""`Summary`: the content of ``summary.json`` (docs/reference/summary.md)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msprobe.compare.model import Mode, Origin, Row, Status
from msprobe.compare.rank_comparison import NoiseJudgement, RankComparison
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.fingerprints import Fingerprint
from msprobe.compare.training.history import TrainingHistory
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.verdicts.across import Across
from msprobe.compare.verdicts.carried import Carried
from msprobe.compare.verdicts.cleared_gradients import gradients_behind
from msprobe.compare.verdicts.computed_again import needs_own_errors, with_own_errors
from msprobe.compare.verdicts.find_verdict import find_verdict
from msprobe.compare.verdicts.made_inside import MadeInside, without_received
from msprobe.compare.verdicts.next_steps import notes_on
from msprobe.compare.verdicts.observations import StepObservations, is_only_retyped, observe
from msprobe.compare.verdicts.own_error import CulpritKey, OwnErrors, key_of
from msprobe.compare.verdicts.proof import Jump, Proof
from msprobe.compare.verdicts.ranking import (
    Culprit,
    CulpritGroup,
    culprit_groups,
    culprits_of,
    kind_of_row,
    may_divide_data,
    rank_culprits,
)
from msprobe.compare.verdicts.verdict import Findings
from msprobe.compare.verdicts.verdict_classes import VerdictClass

SCHEMA_VERSION: Final = 1
_MOST_LISTED: Final = 100
_MOST_STEPS: Final = 3


class Summary:
    """Gathers the content of ``summary.json``, step by step.

    After a step was added, its rows and the data read from its dumps are not needed any more.
    """

    def __init__(self, *, of_replicas: bool = False) -> None:
        """Begin without a step.

        Args:
            of_replicas: ranks of one run are compared, which have data of their own.
        """
        self._of_replicas = of_replicas
        self._across = Across()
        self._mode = Mode.STATISTICS
        self._parts: list[dict[str, Any]] = []
        self._culprits: list[Culprit] = []
        self._inputs: list[str] = []
        self._added: list[str] = []
        self._missing: list[str] = []
        self._unmatched: Counter[str] = Counter()
        self._notes: list[str] = []
        self._training = TrainingHistory()
        self._carried: defaultdict[int | str, Carried] = defaultdict(Carried)
        self._left: dict[int | str, dict[str, tuple[Fingerprint, Fingerprint]]] = {}
        self._steps: list[StepObservations] = []
        self._scope = _Scope()
        self._noise: list[NoiseJudgement] = []

    def add(self, ranks: Sequence[RankComparison]) -> None:
        """Take in a step, and settle its origins: only here all ranks are together."""
        pairs = self._facts_of(ranks)
        made_inside = {each.rank: MadeInside(each, self._carried[each.rank]) for each in ranks}
        if len(ranks) > 1:
            own = {comparison.rank: comparison for comparison in ranks}
            data = [without_received(own[pair.rank], pair) for pair in pairs]
        else:
            data = pairs
        data = [made_inside[pair.rank].given(pair) for pair in data]
        self._training.add_data(data, made_inside)
        self._across.settle(ranks, self._training, pairs)
        for comparison in ranks:
            self._carried[comparison.rank].add(comparison)
            if not self._parts:
                self._mode = comparison.mode
            self._parts.append(_part(comparison))
            self._culprits += culprits_of(comparison)
            self._notes += notes_on(comparison)
            self._add_names(comparison)
            self._scope.add(comparison)
            if comparison.noise is not None:
                self._noise.append(comparison.noise)
        observed = [
            observe(
                comparison,
                self._training.last_gradients(comparison.rank),
                self._left.get(comparison.rank, {}),
            )
            for comparison in ranks
        ]
        self._left = {each.rank: gradients_behind(each) for each in ranks}
        self._steps += observed
        self._training.add(
            pairs,
            {each.rank: each.is_exact for each in observed},
            {each.rank: each.fed_otherwise for each in observed if each.is_close},
            lambda: max(each.resolution for each in ranks),
            lambda rank: next(e.scale_of_losses for e in ranks if e.rank == rank),
        )

    def add_scope(
        self, steps_alone: Mapping[str, Sequence[int]], target: int, reference: int
    ) -> None:
        """Take in which steps of each side have no partner, and how many ranks the sides have."""
        self._scope.add_steps_alone(steps_alone)
        self._training.end_early(steps_alone)
        self._scope.add_world_sizes(target, reference)
        if target != reference:
            self._training.divide("the ranks of both sides share the samples")

    def _facts_of(self, ranks: Sequence[RankComparison]) -> list[FactsPair]:
        pairs = []
        for comparison in ranks:
            pair = facts_of(comparison, of_replicas=self._of_replicas)
            if pair is not None:
                pairs.append(pair)
                continue
            if comparison.facts != (None, None):
                side = "target" if comparison.facts[0] is None else "reference"
                self._notes.append(
                    f"the {side} holds no facts about its training: settings, data and "
                    "optimizers were not compared"
                )
        return pairs

    def _add_names(self, comparison: RankComparison) -> None:
        # Parameters come in otherwise in later steps: without modules nothing tells them from data.
        self._inputs = self._inputs or [
            row.name
            for row in comparison.rows
            if row.origin is Origin.INPUT and not is_only_retyped(row)
        ]
        added = [pair.name for pair in comparison.pairs if pair.reference is None]
        missing = [pair.name for pair in comparison.pairs if pair.target is None]
        self._unmatched.update(target=len(added), reference=len(missing))
        self._added += added[: _MOST_LISTED - len(self._added)]
        self._missing += missing[: _MOST_LISTED - len(self._missing)]

    def finish(
        self,
        *,
        target: str,
        reference: str,
        notes: Iterable[str] = (),
        bytes_read: int = 0,
        verify: bool = False,
    ) -> dict[str, Any]:
        """Return the summary, ready for JSON.

        Args:
            target: path of the target, as the user gave it.
            reference: path of the reference, as the user gave it.
            notes: further notes for the user.
            bytes_read: how many bytes of tensors were read.
            verify: whether calls may be computed again, to see which side errs.
        """
        from msprobe import __version__

        parts = self._parts
        culprits = [
            each
            for each in rank_culprits(self._culprits)
            # No harm, no blame: the optimizer gets the same gradients.
            if not (self._training.divides(each.comparison.step) and may_divide_data(each))
        ]
        counts = _total([part["counts"] for part in parts], Status)
        origins = _total([part["origins"] for part in parts], Origin)
        findings = Findings(
            counts=counts,
            mode=self._mode,
            culprits=culprits,
            inputs=self._inputs,
            has_same_data=self._training.has_same_data(),
            split=self._training.split,
            is_split_coarse=self._training.is_coarse,
            is_divided=self._training.is_divided,
            redrawn=self._training.redrawn,
            facts=self._training.differences(),
            steps=self._steps,
            changed_steps=frozenset(self._training.changed_steps),
            apart=self._training.apart,
            unread=self._training.unread,
            known_after=self._training.known_after,
            has_same_updates=self._training.has_same_updates,
            scope=self._scope.words(),
            paired=self._scope.paired,
            models=self._training.models,
            meanings=self._training.meanings,
            noise=self._noise,
        )
        verdict = find_verdict(findings)
        if verify and needs_own_errors(verdict, culprits):
            findings = with_own_errors(findings)
            verdict = find_verdict(findings)
            culprits = list(findings.culprits)
            self._add_proofs(findings.steps)
        own = findings.own_errors
        entries = [
            _introduced(culprit, own.get(key_of(culprit))) for culprit in culprits[:_MOST_LISTED]
        ]
        firsts = [found for part in parts if (found := part["first_difference"]) is not None]
        return {
            "schema_version": SCHEMA_VERSION,
            "msprobe_version": __version__,
            "mode": str(self._mode),
            "noise": _measured(self._noise, len(parts)),
            "target": target,
            "reference": reference,
            "verdict": verdict.as_json(),
            "equal": not any(counts[status] for status in Status if status.is_difference)
            and not counts[Status.UNREAD]
            and verdict.verdict in (VerdictClass.EQUAL, VerdictClass.PRECISION),
            "changed_steps": sorted(findings.changed_steps),
            "counts": counts,
            "origins": origins,
            "rows": sum(part["rows"] for part in parts),
            "operations": sum(part["operations"] for part in parts),
            "first_difference": min(
                firsts, key=lambda found: (found["step"], found["order"]), default=None
            ),
            "introduced": entries,
            "introduced_total": len(culprits),
            "culprit_groups": [
                _group(group, own) for group in culprit_groups(culprits)[:_MOST_LISTED]
            ],
            "unmatched": {
                "target": self._unmatched["target"],
                "reference": self._unmatched["reference"],
                "operations": {"added": self._added, "missing": self._missing},
            },
            "comparisons": parts,
            "next_steps": list(verdict.next),
            "notes": list(dict.fromkeys([*notes, *self._notes])),
            "elapsed_s": 0.0,
            "bytes_read": bytes_read,
        }

    def _add_proofs(self, steps: Sequence[StepObservations]) -> None:
        """Take in the proofs of steps, without the differences that own errors explain."""
        for part, observed in zip(self._parts, steps, strict=True):
            part["proof"] = None if observed.proof is None else _proof(observed.proof)


class _Scope:
    """How two dumps differ in what was recorded, over all comparisons.

    Attributes:
        paired: operations with a partner, the smaller number of operations of the two sides, and
            how many there are on both together.
    """

    def __init__(self) -> None:
        self._words: dict[str, None] = {}
        self.paired = (0, 0, 0)

    def add(self, comparison: RankComparison) -> None:
        """Take in the comparison of a step and rank."""
        target, reference = comparison.target.view, comparison.reference.view
        steps = target.step, reference.step
        if steps[0] != steps[1] and None not in steps:
            self._add(f"step {steps[0]} against step {steps[1]} of the reference")
        for name in ("level", "task"):
            both = getattr(target.head, name), getattr(reference.head, name)
            if both[0] != both[1] and all(both):
                self._add(f"{name} {both[0]} against {both[1]}")
        matched = sum(pair.is_matched for pair in comparison.pairs)
        sides = (
            sum(pair.target is not None for pair in comparison.pairs),
            sum(pair.reference is not None for pair in comparison.pairs),
        )
        paired, least, total = self.paired
        self.paired = paired + matched, least + min(sides), total + len(comparison.pairs)

    def add_steps_alone(self, steps: Mapping[str, Sequence[int]]) -> None:
        """Take in the steps that one side alone recorded, by side."""
        for side, alone in steps.items():
            if alone:
                numbers = ", ".join(map(str, alone[:_MOST_STEPS]))
                more = " …" if len(alone) > _MOST_STEPS else ""
                self._add(f"only the {side} has step{'s' * (len(alone) > 1)} {numbers}{more}")

    def add_world_sizes(self, target: int, reference: int) -> None:
        """Take in how many ranks both dumps have."""
        if target != reference:
            self._add(f"{target} rank{'s' * (target != 1)} against {reference}")

    def words(self) -> list[str]:
        """Return the differences, in words."""
        return list(self._words)

    def _add(self, words: str) -> None:
        self._words[words] = None


def _measured(found: Sequence[NoiseJudgement], compared: int) -> dict[str, int] | None:
    """Return by how many recordings rounding was measured; None where it was estimated."""
    if not found:
        return None
    return {
        "recordings": found[0].recordings,
        "within": sum(each.within for each in found),
        "beyond_tolerance": sum(each.loose for each in found),
        "beyond": sum(each.beyond for each in found),
        "not_measured": compared - len(found),
    }


def _part(comparison: RankComparison) -> dict[str, Any]:
    counts = Counter(row.status for row in comparison.rows)
    origins = Counter(row.origin for row in comparison.rows)
    first = first_difference(comparison)
    return {
        "step": comparison.step,
        "rank": comparison.rank,
        "rows": len(comparison.rows),
        "operations": len(comparison.pairs),
        "counts": {str(status): counts[status] for status in Status},
        "origins": {str(origin): origins[origin] for origin in Origin},
        "first_difference": None if first is None else _difference(comparison, first),
        "proof": None if comparison.proof is None else _proof(comparison.proof),
    }


def _proof(proof: Proof) -> dict[str, Any]:
    return {
        "is_rounding": proof.is_rounding,
        "has_two_precisions": proof.has_two_precisions,
        "differing": proof.differing,
        "total": proof.total,
        "worst": None if proof.worst is None else _jump(proof.worst),
        "absorbed": None if proof.absorbed is None else _jump(proof.absorbed),
        "jumps": [_jump(jump) for jump in proof.jumps],
    }


def _jump(jump: Jump) -> dict[str, Any]:
    return {
        "kind": str(jump.kind),
        "row": jump.row,
        "name": jump.place.record,
        "module": jump.place.module,
        "source": jump.place.source,
        "order": jump.order,
        "error": None if jump.distance is None else jump.distance.value,
        "growth": _number(jump.growth),
    }


def _total(counters: Sequence[dict[str, int]], words: Iterable[str]) -> dict[str, int]:
    return {str(word): sum(counts[word] for counts in counters) for word in words}


def first_difference(comparison: RankComparison) -> Row | None:
    """Return the first row in order of execution that differs, None if none does.

    Calls that one side lacks count only if something that follows differs because of them.
    """
    harmless = None
    for row in comparison.rows:
        if row.status.is_difference:
            if row.origin is not None:
                return row
            harmless = harmless or row
    return harmless


def _difference(comparison: RankComparison, row: Row) -> dict[str, Any]:
    side, record = comparison.side_of(row.pair), row.pair.name
    return {
        "name": row.name,
        "status": str(row.status),
        "origin": None if row.origin is None else str(row.origin),
        **_about(comparison, row, side.module(record), side.source_line(record)),
        "kind": kind_of_row(comparison, row),
    }


def _about(comparison: RankComparison, row: Row, module: str, source: str | None) -> dict[str, Any]:
    return {
        "step": comparison.step,
        "rank": comparison.rank,
        "order": row.pair.position,
        "module": module,
        "error": _number(row.error),
        "cause": None if row.cause is None else str(row.cause),
        "reason": row.reason,
        "source": source,
    }


def _introduced(culprit: Culprit, own: OwnErrors | None = None) -> dict[str, Any]:
    row = culprit.row
    return {
        "name": row.pair.name,
        "row": row.name,
        "kind": culprit.kind,
        "status": str(row.status),
        "stack": culprit.stack,
        **_about(culprit.comparison, row, culprit.module, culprit.source),
        "own_error": None if own is None else own.as_json(),
    }


def _group(group: CulpritGroup, own: Mapping[CulpritKey, OwnErrors]) -> dict[str, Any]:
    first = _introduced(group.culprits[0], own.get(key_of(group.culprits[0])))
    return {
        "count": group.count,
        "kind": group.kind,
        "cause": first["cause"],
        "reason": first["reason"],
        "source": group.source,
        "call": group.call,
        "argument": group.argument,
        "first": first,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
