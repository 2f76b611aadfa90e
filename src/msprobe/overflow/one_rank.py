# SPDX-License-Identifier: Apache-2.0
"""Find where NaN and Inf begin on one rank: in a call, a parameter, outside, on another rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from msprobe.collectives.calls import (
    CommunicationCall,
    communication_calls,
    is_communication,
)
from msprobe.dump.dump_steps import RankKey
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordKind, forward_name
from msprobe.dump.values import Value
from msprobe.errors import DumpFormatError
from msprobe.overflow.examined import (
    Badness,
    Examined,
    badness_of,
    contents_text,
    examine,
    holds_only_negative_inf,
    worst,
)
from msprobe.overflow.findings import Finding, Place, Source
from msprobe.overflow.severity import classify_examined

# Other records are no calls: gradients of parameters, saved values.
_CALLS: Final = (RecordKind.FORWARD, RecordKind.BACKWARD)


@dataclass(slots=True, kw_only=True)
class RankExamination:
    """One rank, with all its examined records that hold NaN or Inf.

    Attributes:
        rank: the rank's number, or its folder's name.
        view: its dump.
        positions: record name → number in the order of execution, for all records.
        examined: the records that hold NaN or Inf, in order of execution.
        calls: its communications with other ranks, in order of execution.
        findings: where NaN and Inf begin.
    """

    rank: RankKey
    view: RankView
    positions: dict[str, int]
    examined: dict[str, Examined]
    calls: list[CommunicationCall]
    findings: list[Finding] = field(default_factory=list)


def examine_rank(rank: RankKey, view: RankView) -> RankExamination:
    """Return where NaN and Inf begin on one rank, without looking at other ranks.

    NaN that a communication returns without having been sent any is `Source.COMMUNICATION`; whether
    another rank sent it is for `across_ranks` to find.

    Raises:
        DumpFormatError: the rank's files are damaged (single damaged records are passed over).
    """
    examined: dict[str, Examined] = {}
    for name in filter(view.records.may_be_nonfinite, view.records):
        try:
            found = examine(view.records[name])
        except DumpFormatError:
            continue
        if found.worst_argument or found.worst_result:
            examined[name] = found
    positions = {name: position for position, name in enumerate(view.records)}
    names = {name: view.records.parsed(name) for name in positions}
    result = RankExamination(
        rank=rank,
        view=view,
        positions=positions,
        examined=examined,
        calls=communication_calls(view.records, names, view.rank or 0),
    )
    result.findings = list(_Search(result).findings())
    return result


class _Search:
    """Walks through a rank's records in order and remembers what earlier ones explain."""

    def __init__(self, rank: RankExamination) -> None:
        self._rank = rank
        self._view = rank.view
        self._enclosing = {
            badness: self._ancestors_of_records_with(badness)
            for badness in (Badness.INF, Badness.NAN)
        }
        self._parameters: set[tuple[str, str]] = set()
        self._seen = Badness.FINITE
        self._is_unmeant_inf_about = False

    def findings(self) -> Iterator[Finding]:
        for name, examined in self._rank.examined.items():
            yield from self._findings_of(name, examined)
            self._seen = max(self._seen, examined.worst_result, examined.worst_argument)

    def _findings_of(self, name: str, examined: Examined) -> Iterator[Finding]:
        yield from self._bad_parameters(name, examined, name)
        if self._is_explained_from_inside(name, examined) or self._is_of_bad_forward(examined):
            return
        if examined.name.kind not in _CALLS and examined.worst_result <= self._seen:
            return
        if given := self._unexplained(examined):
            yield from self._given(name, examined, given)
        if not examined.makes_worse:
            return
        # NaN follows from Inf of itself, unless that Inf was meant (a mask).
        if examined.worst_argument is Badness.FINITE or not self._is_unmeant_inf_about:
            yield self._made(name, examined)

    # -- made here -----------------------------------------------------------------------------

    def _made(self, name: str, examined: Examined) -> Finding:
        source, detail = Source.OPERATION, ""
        if is_communication(examined.name):
            source = Source.COMMUNICATION
        elif examined.worst_argument is Badness.INF:
            detail = "NaN out of infinities among its arguments"
        elif examined.name.kind is RecordKind.DEBUG:
            source, detail = Source.UNRECORDED, "the first value that was saved with any"
        elif examined.name.kind is RecordKind.BACKWARD and not examined.arguments:
            detail = "the gradients that came in were not recorded"
        bad = examined.bad_results
        return self._finding(name, examined, source, bad, detail)

    def _is_explained_from_inside(self, name: str, examined: Examined) -> bool:
        """Whether a call inside this one already has values as bad as its results."""
        worst_value = max(examined.worst_result, examined.worst_argument)
        return name in self._enclosing[worst_value]

    def _is_of_bad_forward(self, examined: Examined) -> bool:
        """Whether a backward call got its NaN or Inf from its own forward call."""
        forward = self._rank.examined.get(forward_name(examined.name) or "")
        if forward is None:
            return False
        return max(forward.worst_result, forward.worst_argument) >= examined.worst_result

    # -- given to it ---------------------------------------------------------------------------

    def _unexplained(self, examined: Examined) -> list[Value]:
        """Return the arguments with NaN or Inf that no earlier record can have made."""
        return [value for value in examined.bad_arguments if badness_of(value) > self._seen]

    def _given(self, name: str, examined: Examined, given: list[Value]) -> Iterator[Finding]:
        chain = [name, *self._view.ancestors(name)]
        for outer in chain[1:]:
            if (enclosing := self._examine(outer)) is None:
                continue
            parameters = list(self._bad_parameters(outer, enclosing, name))
            yield from parameters
            if parameters and worst(enclosing.bad_arguments) >= worst(given):
                return
        entry, entered = self._outermost_with_bad_inputs(chain, worst(given))
        if entered is None:
            entry, entered = name, examined
        parent = self._view.parents.get(entry)
        bad = [value for value in entered.bad_arguments if value.path[0] != "parameters"]
        if not bad:
            return
        if parent is None:
            detail = self._outside_detail(entered)
            yield self._finding(entry, entered, Source.INPUT, bad, detail, at=name)
        else:
            # The enclosing call may be named although it was not recorded itself.
            known = "finite" if self._examine(parent) is not None else "not recorded"
            detail = (
                f"what enters {parent} is {known}: made by code that was not recorded, or held "
                "by a buffer"
            )
            yield self._finding(entry, entered, Source.UNRECORDED, bad, detail, at=name)

    def _outermost_with_bad_inputs(
        self, chain: list[str], badness: Badness
    ) -> tuple[str, Examined | None]:
        """Follow bad inputs outwards as long as each enclosing record was given them too."""
        entry, entered = chain[0], None
        for outer in chain:
            examined = self._examine(outer)
            if examined is None:
                break
            inputs = [value for value in examined.arguments if value.path[0] != "parameters"]
            if worst(inputs) < badness:
                break
            entry, entered = outer, examined
        return entry, entered

    @staticmethod
    def _outside_detail(entered: Examined) -> str:
        if entered.name.kind is RecordKind.BACKWARD:
            return "the gradient was like that when it arrived"
        if entered.name.is_module:
            return "given to the model like that"
        return "given to the call like that, before anything recorded made it"

    def _bad_parameters(self, name: str, examined: Examined, at: str) -> Iterator[Finding]:
        """Yield a module's parameters that hold NaN or Inf, each once."""
        bad = [
            value
            for value in examined.bad_arguments
            if value.path[0] == "parameters"
            and (examined.name.base, value.label) not in self._parameters
        ]
        if bad and examined.name.kind is RecordKind.FORWARD:
            self._parameters |= {(examined.name.base, value.label) for value in bad}
            detail = "the parameter was like that when the step began or was written in between"
            yield self._finding(name, examined, Source.PARAMETER, bad, detail, at=at)

    # -- shared --------------------------------------------------------------------------------

    def _finding(
        self,
        name: str,
        examined: Examined,
        source: Source,
        bad: list[Value],
        detail: str,
        *,
        at: str | None = None,
    ) -> Finding:
        """Make a finding; `at` is the record at which it shows first, if that is another one."""
        forward = forward_name(examined.name)
        is_mask = all(map(holds_only_negative_inf, bad))
        is_deliberate = examined.is_deliberate or is_mask
        self._is_unmeant_inf_about |= not is_deliberate
        if examined.is_deliberate:
            detail = "asked for: NaN or Inf is a number among the arguments"
        elif is_mask:
            detail = f"{detail}; only -Inf, as in a mask".removeprefix("; ")
        return Finding(
            place=Place(self._rank.rank, name),
            source=source,
            slots=tuple(value.label for value in bad),
            contents=contents_text(bad),
            detail=detail,
            is_deliberate=is_deliberate,
            severity=classify_examined(examined),
            position=self._rank.positions[at or name],
            modules=tuple(self._view.ancestors(name)),
            frames=tuple(self._view.frames(forward or name)),
        )

    def _examine(self, name: str) -> Examined | None:
        """Return the examined record; None where there is no record of that name."""
        if name in self._rank.examined:
            return self._rank.examined[name]
        if name not in self._view.records:
            return None
        try:
            return examine(self._view.records[name])
        except DumpFormatError:
            return None

    def _ancestors_of_records_with(self, badness: Badness) -> set[str]:
        found: set[str] = set()
        for name, examined in self._rank.examined.items():
            if max(examined.worst_result, examined.worst_argument) >= badness:
                found.update(self._view.ancestors(name))
        return found
