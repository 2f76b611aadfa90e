# SPDX-License-Identifier: Apache-2.0
"""Compare the records of a step with those of a recorded one while the step runs.

A record whose name, module and shapes are those of a record of the reference is compared at once.
Others wait, and so do calls whose inputs differ before anything else does, for they may be other
calls of the same name. The next call that tells more closes the gap: the calls in it are aligned
as in a comparison of two dumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from msprobe.compare.call_differences import CallDifference, Rule, judge_call
from msprobe.compare.matching.aligning import Aligner, Call
from msprobe.compare.matching.call_signature import CallSignatureReader
from msprobe.compare.matching.identities import Names
from msprobe.compare.model import Match, OperationPair, Row
from msprobe.compare.sides import Side
from msprobe.compare.value_pairs import pair_lists
from msprobe.dump.record_names import (
    RecordKind,
    RecordName,
    backward_name,
    forward_name,
    recompute_name,
    repeated_name,
)
from msprobe.dump.values import Value
from msprobe.operators.lookup import operator_named, operator_of
from msprobe.operators.operator import Operator

# Modules, whose paths are the same on both sides, need no translation.
_NAMES = Names(paths={})


class FindingKind(StrEnum):
    """Kind of a difference between a run and its reference."""

    CALL = "call"
    """The inputs of a call agree, and its outputs do not."""
    ARGUMENT = "argument"
    """The tensors that a call is given agree, another argument does not, nor do its outputs."""
    INPUT = "input"
    """The first value that differs came from outside of the recorded calls."""
    ALONE = "alone"
    """The first difference is a call that one side alone makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCall:
    """A complete record of the running step.

    Attributes:
        name: taken apart.
        values: its values.
        place: its place among the records of the step.
        module: path of the module around it.
        line: line of the program that calls it; None where it is not known.
        enclosing: names of the forward records around its forward call, innermost first.
    """

    name: RecordName
    values: list[Value]
    place: int
    module: str
    line: str | None
    enclosing: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference between a run and its reference.

    Attributes:
        kind: its kind.
        record: the record of this run; empty if the reference alone has it.
        reference: the record of the reference; empty if it has none.
        module: path of the module around it.
        line: line of the program.
        draws_random: whether the call draws random numbers.
        rows: the values that differ; of the kind `ARGUMENT` those arguments.
    """

    kind: FindingKind
    record: str
    reference: str
    module: str
    line: str | None
    draws_random: bool = False
    rows: Sequence[Row] = ()

    @property
    def begins(self) -> bool:
        """Whether the difference begins in the call."""
        return self.kind in (FindingKind.CALL, FindingKind.ARGUMENT)


class _Waiting:
    """The calls that found no partner yet, as a source of values for the aligner."""

    def __init__(self) -> None:
        self.calls: dict[str, LiveCall] = {}

    def values(self, name: str) -> list[Value]:
        return self.calls[name].values

    def source_code(self, _name: str) -> str:
        return ""


class LiveStep:
    """One step and rank of a run beside its reference.

    Attributes:
        compared: calls that were compared.
        equal: those in which nothing differs.
        unjudged: tensors without a checksum on one side.
    """

    def __init__(self, reference: Side, rule: Rule, *, has_parted: bool) -> None:
        """Begin a step.

        Args:
            reference: the recorded step.
            rule: says which values differ.
            has_parted: whether the runs differ since an earlier step.
        """
        self.compared = 0
        self.equal = 0
        self.unjudged = 0
        self._rule = rule
        self._reference = reference
        self._places = {name: place for place, name in enumerate(reference.names)}
        self._taken: set[str] = set()
        self._anchor = -1
        self._waiting = _Waiting()
        self._partners: dict[str, str] = {}
        self._aligner = Aligner(CallSignatureReader(self._waiting), CallSignatureReader(reference))
        self._has_parted = has_parted
        # Records whose difference is explained: they differ, or enclose a call that does.
        self._differing: set[tuple[str, RecordKind]] = set()

    @property
    def has_parted(self) -> bool:
        """Whether anything differs so far."""
        return self._has_parted

    def add(self, call: LiveCall) -> list[Finding]:
        """Compare a record, and all that were waiting for it; return what was found."""
        name = self._partner_name(call)
        values = [] if name is None else self._reference.values(name)
        if name is None or name in self._taken or not self._fits(call, name, values):
            self._waiting.calls[call.name.full] = call
            return []
        difference = self._difference(call, name, values)
        is_main = call.name.kind is RecordKind.FORWARD and not call.name.recompute
        if is_main and difference.inputs and not self._has_parted:
            # It may be another call of the same name.
            self._waiting.calls[call.name.full] = call
            return []
        found: list[Finding] = []
        place = self._places[name]
        is_anchor = is_main and not difference.differs and place > self._anchor
        if self._waiting.calls and (is_anchor or difference.differs):
            found += self._close_gap(place)
        if is_anchor:
            self._anchor = place
        return found + self._take(call, name, difference)

    def finish(self) -> list[Finding]:
        """Compare what still waits, and return what was found."""
        return self._close_gap(len(self._reference.names))

    # --- partners

    def _partner_name(self, call: LiveCall) -> str | None:
        """Return the name of the record of the reference that a record may belong to."""
        name = call.name
        original = repeated_name(name)
        if original is not None:
            partner = self._partners.get(original)
            wanted = None if partner is None else recompute_name(partner)
        elif name.kind is RecordKind.BACKWARD:
            partner = self._partners.get(forward_name(name) or "")
            parsed = None if partner is None else self._reference.parsed(partner)
            wanted = None if parsed is None else backward_name(parsed, name.backward_pass)
        else:
            wanted = name.full
        return wanted if wanted in self._places else None

    def _fits(self, call: LiveCall, name: str, values: list[Value]) -> bool:
        """Return whether module and shapes are those of a record of the reference."""
        if call.module != self._reference.module(name) and not call.name.is_module:
            return False
        return [(one.slot, one.shape) for one in call.values] == [
            (one.slot, one.shape) for one in values
        ]

    def _close_gap(self, end: int) -> list[Finding]:
        """Align the calls that wait with those of the reference before a place."""
        waiting = list(self._waiting.calls.values())
        target = {call.place: call for call in waiting if _is_main(call.name)}
        names = self._reference.names
        # A call ends after those that it makes, one of which may be the anchor.
        around = {self._places.get(call.name.full, end) for call in target.values()}
        places = sorted({*range(self._anchor + 1, end), *(one for one in around if one < end)})
        reference = [
            place
            for place in places
            if names[place] not in self._taken and _is_main(self._reference.parsed(names[place]))
        ]
        found: list[Finding] = []
        pairs = self._aligned(target, reference)
        missing = sorted(set(reference).difference(pairs.values()))
        if missing and len(pairs) == len(target) and not self._has_parted:
            found.append(self._missing(names[missing[0]]))
        for call in waiting:
            partner = pairs.get(call.place)
            name = self._partner_name(call) if partner is None else names[partner]
            is_followed = partner is not None or not _is_main(call.name)
            if is_followed and name is not None and name not in self._taken:
                found += self._take(
                    call, name, self._difference(call, name, self._reference.values(name))
                )
            elif _is_main(call.name) and not self._has_parted:
                self._part(call)
                found.append(_finding(FindingKind.ALONE, call, ""))
        self._waiting.calls.clear()
        return found

    def _aligned(self, target: dict[int, LiveCall], reference: list[int]) -> dict[int, int]:
        calls = [self._call(call.name, call.module, place) for place, call in target.items()]
        others = [
            self._call(
                self._reference.parsed(self._reference.names[place]),
                self._reference.module(self._reference.names[place]),
                place,
            )
            for place in reference
        ]
        if not calls or not others:
            return {}
        return {one.target: one.reference for one in self._aligner.align(calls, others, ())}

    @staticmethod
    def _call(name: RecordName, module: str, place: int) -> Call:
        identity = _NAMES.identity(name, module)
        return Call(place, name.full, identity.family, module, identity.fallback)

    # --- differences

    def _difference(self, call: LiveCall, name: str, values: list[Value]) -> CallDifference:
        pair = OperationPair(
            position=call.place, target=call.name.full, reference=name, match=Match.ALIGNED
        )
        rows = pair_lists(
            pair,
            (call.values, values),
            (call.name, self._reference.parsed(name)),
        )
        difference = judge_call(rows, self._rule.differs)
        if _operator(call.name).allocates:
            return CallDifference(difference.inputs, [])
        return difference

    def _take(self, call: LiveCall, name: str, difference: CallDifference) -> list[Finding]:
        """Make two records partners; return the difference that begins in them."""
        self._taken.add(name)
        self._partners[call.name.full] = name
        self.compared += 1
        self.unjudged += difference.unjudged
        self.equal += not difference.differs
        by_argument = difference.is_of_arguments
        if not difference.outputs and (by_argument or not difference.differs):
            return []  # an argument without an effect does no harm
        was_first = not self._has_parted
        begins = (difference.begins or by_argument) and not self._is_explained(call)
        self._part(call)
        if begins:
            kind = FindingKind.ARGUMENT if by_argument else FindingKind.CALL
            return [_finding(kind, call, name, difference.inputs or difference.outputs)]
        if was_first and difference.inputs:
            return [_finding(FindingKind.INPUT, call, name, difference.inputs)]
        return []

    def _is_explained(self, call: LiveCall) -> bool:
        """Return whether the outputs of a call follow from a difference that is known."""
        name = call.name
        if name.kind is RecordKind.FORWARD:
            return (name.full, RecordKind.FORWARD) in self._differing
        if name.kind is RecordKind.BACKWARD:
            forward = forward_name(name) or ""
            return any(
                (forward, kind) in self._differing
                for kind in (RecordKind.FORWARD, RecordKind.BACKWARD)
            )
        return self._has_parted

    def _part(self, call: LiveCall) -> None:
        self._has_parted = True
        name = call.name
        forward = forward_name(name) if name.kind is RecordKind.BACKWARD else name.full
        for each in (forward, *call.enclosing):
            if each is not None:
                self._differing.add((each, name.kind))

    def _missing(self, name: str) -> Finding:
        """Return that the reference alone makes a call."""
        self._has_parted = True
        return Finding(
            kind=FindingKind.ALONE,
            record="",
            reference=name,
            module=self._reference.module(name),
            line=self._reference.source_line(name),
        )


def _is_main(name: RecordName) -> bool:
    return name.kind is RecordKind.FORWARD and not name.recompute


def _operator(name: RecordName) -> Operator:
    if name.class_name is not None:
        return operator_named(name.class_name)
    return operator_of(name.prefix, name.path)


def _finding(
    kind: FindingKind, call: LiveCall, reference: str, rows: Sequence[Row] = ()
) -> Finding:
    return Finding(
        kind=kind,
        record=call.name.full,
        reference=reference,
        module=call.module,
        line=call.line,
        draws_random=_operator(call.name).draws_random,
        rows=rows,
    )
