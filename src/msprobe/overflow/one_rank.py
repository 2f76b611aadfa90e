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
from msprobe.dump.record_names import (
    PARAMETER_GRADIENTS,
    RecordKind,
    forward_name,
    recompute_name,
    repeated_name,
)
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
from msprobe.overflow.updates import bad_updates

# Other records are no calls: gradients of parameters, saved values.
_CALLS: Final = (RecordKind.FORWARD, RecordKind.BACKWARD)
_GRADIENTS: Final = (RecordKind.BACKWARD, *PARAMETER_GRADIENTS)


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

    def ancestors(self, name: str) -> list[str]:
        """Return the records that `name` ran inside, innermost first.

        A recomputed call ran inside the recomputation of its module, where that was recorded.
        """
        chain: dict[str, None] = {}
        parent = self._parent(name)
        while parent is not None and parent not in chain:  # a damaged file may go in circles
            chain[parent] = None
            parent = self._parent(parent)
        return list(chain)

    def _parent(self, name: str) -> str | None:
        parent = self.view.parents.get(name)
        if name not in self.view.records:
            return parent
        first_run = repeated_name(self.view.records.parsed(name))
        if first_run is None:
            return parent
        parent = parent or self.view.parents.get(first_run)
        if parent is not None and recompute_name(parent) in self.positions:
            return recompute_name(parent)
        return parent


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
    result.findings = [*_Search(result).findings(), *bad_updates(rank, view, len(positions))]
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
        self._has_harmful_mask = self._is_negative_inf_harmful()
        self._has_nan_gradients = any(
            found.name.kind in _GRADIENTS and found.worst_result is Badness.NAN
            for found in rank.examined.values()
        )

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
        elif self._is_of_unrecorded_rerun(name, examined):
            detail = (
                "its forward call ran again before, and what it gave is not recorded: they may "
                'have begun there (see "record_recompute")'
            )
        elif examined.name.kind is RecordKind.BACKWARD and not examined.arguments:
            detail = "the gradients that came in were not recorded"
        bad = examined.bad_results
        return self._finding(name, examined, source, bad, detail)

    def _is_explained_from_inside(self, name: str, examined: Examined) -> bool:
        """Whether a call inside this one already has values as bad as its results."""
        worst_value = max(examined.worst_result, examined.worst_argument)
        return name in self._enclosing[worst_value]

    def _is_of_bad_forward(self, examined: Examined) -> bool:
        """Whether a backward call got its NaN or Inf from its forward call, or from its rerun."""
        forward = forward_name(examined.name)
        if forward is None:
            return False
        runs = (self._rank.examined.get(name) for name in (forward, recompute_name(forward)))
        return any(
            max(run.worst_result, run.worst_argument) >= examined.worst_result
            for run in runs
            if run
        )

    def _is_of_unrecorded_rerun(self, name: str, examined: Examined) -> bool:
        """Whether the forward call of a gradient was recomputed with an unknown result.

        Recomputation may end inside a call, as soon as the backward pass has what it needs.
        """
        forward = forward_name(examined.name)
        if examined.name.kind in PARAMETER_GRADIENTS:
            forward = f"{name.rpartition('.')[0]}.{RecordKind.FORWARD}.0"
        if forward is None or (first_run := self._examine(forward)) is None:
            return False
        rerun = self._examine(recompute_name(forward))
        return "recomputed" in first_run.record.notes and not (rerun and rerun.results)

    # -- given to it ---------------------------------------------------------------------------

    def _unexplained(self, examined: Examined) -> list[Value]:
        """Return the arguments with NaN or Inf that no earlier record can have made."""
        return [value for value in examined.bad_arguments if badness_of(value) > self._seen]

    def _given(self, name: str, examined: Examined, given: list[Value]) -> Iterator[Finding]:
        chain = [name, *self._rank.ancestors(name)]
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
        bad = [value for value in entered.bad_arguments if value.path[0] != "parameters"]
        if not bad:
            return
        if changed := self._changed_since_first_run(entered, bad):
            yield self._changed(entry, entered, changed, at=name)
            return
        parent = next(iter(self._rank.ancestors(entry)), None)
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

    def _changed_since_first_run(self, examined: Examined, bad: list[Value]) -> list[Value]:
        """Return those of these arguments of a recomputation that were finite in its first run."""
        first_run = self._examine(repeated_name(examined.name) or "")
        if first_run is None:
            return []
        finite = {value.label for value in first_run.arguments if not badness_of(value)}
        return [value for value in bad if value.label in finite]

    def _changed(self, name: str, examined: Examined, bad: list[Value], *, at: str) -> Finding:
        detail = f"finite in {repeated_name(examined.name)}: written to before it ran again"
        return self._finding(name, examined, Source.RECOMPUTED, bad, detail, at=at)

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
            if changed := self._changed_since_first_run(examined, bad):
                yield self._changed(name, examined, changed, at=at)
                return
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
        forward = forward_name(examined.name) or repeated_name(examined.name)
        is_mask = source is not Source.PARAMETER and all(map(holds_only_negative_inf, bad))
        if source is Source.OPERATION:
            is_mask = examined.is_mask and not self._has_harmful_mask
        is_wanted = examined.is_deliberate
        if worst(bad) is Badness.NAN and self._has_nan_gradients:
            is_wanted = False  # harmless only while it stays out of the training
        is_deliberate = is_wanted or is_mask
        self._is_unmeant_inf_about |= not is_deliberate
        if is_wanted:
            detail = "asked for: NaN or Inf is a number among the arguments"
        elif is_mask:
            detail = f"{detail}; only -Inf, as in a mask".removeprefix("; ")
        elif source is Source.OPERATION and examined.has_bad_number:
            detail = "NaN or Inf is a number among the arguments"
        return Finding(
            place=Place(self._rank.rank, name),
            source=source,
            slots=tuple(value.label for value in bad),
            contents=contents_text(bad),
            detail=detail,
            is_deliberate=is_deliberate,
            severity=classify_examined(examined),
            position=self._rank.positions[at or name],
            modules=tuple(self._rank.ancestors(name)),
            frames=tuple(self._view.frames(name) or self._view.frames(forward or name)),
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
                found.update(self._rank.ancestors(name))
        return found

    def _is_negative_inf_harmful(self) -> bool:
        """Whether -Inf becomes NaN or +Inf in some call or its backward, or is never used up.

        A mask of -Inf ends in a softmax that is finite; the logarithm of a zero looks the same at
        first.
        """
        is_used_up = False
        for examined in self._rank.examined.values():
            given = examined.bad_arguments
            forward = self._rank.examined.get(forward_name(examined.name) or "")
            if not given and forward is not None:
                given = forward.bad_results
            if not given or not all(map(holds_only_negative_inf, given)):
                continue
            if not all(map(holds_only_negative_inf, examined.bad_results)):
                return True
            is_used_up |= examined.worst_result is Badness.FINITE and bool(examined.results)
        return not is_used_up
