# SPDX-License-Identifier: Apache-2.0
"""`verify_call`: judge the results and gradients of one call."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.budgets import (
    Budget,
    budget_of,
    computing_unit,
    largest_of,
    smallest_of,
    unit_of,
)
from msprobe.checks.judging import Judgement, Verdict, judge
from msprobe.checks.random_calls import dropout_reference, keep_probability
from msprobe.checks.slack import Sizes, absolute_slack, leaves_slack
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.errors import MsprobeError
from msprobe.numerics.number_types import Kind, kind_of
from msprobe.operators.lookup import suggests
from msprobe.operators.operator import Family, Hint
from msprobe.replay.forms import argument_forms, gradient_forms, tensor_forms
from msprobe.replay.recorded_calls import BackwardPass, RecordedCall
from msprobe.replay.runner import (
    REFERENCE,
    CannotReplayError,
    Noise,
    PreparedCall,
    Reason,
    Replay,
    Runner,
    Setting,
)
from msprobe.replay.tensors import CallTensors, TensorSource

# Types that are finer resolve the place between two pixels.
_FINE: Final = 2.0**-12


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The judgement of one result or gradient.

    Attributes:
        record: name of the forward or backward record.
        slot: ``output.0``, ``output_kwargs.mask``.
        dtype: recorded type.
        shape: recorded shape.
        judgement: None where it could not be judged.
        reason: why not.
        detail: the same in words.
    """

    record: str
    slot: str
    dtype: str
    shape: tuple[int, ...]
    judgement: Judgement | None = None
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """Judgements of one call.

    Attributes:
        name: of the forward record.
        rows: one for each result and gradient.
        reason: why nothing could be judged; None where something was.
        detail: the same in words.
        by: what computed the reference: a type, or the name of a reference function.
        generated: elements of arguments or results were not recorded: arguments were made from
            statistics, the results judged are those of a new run.
        elapsed_s: time spent.
    """

    name: str
    rows: tuple[ResultRow, ...] = ()
    reason: Reason | None = None
    detail: str = ""
    by: str = "float64"
    generated: bool = False
    elapsed_s: float = 0.0

    @property
    def is_fault(self) -> bool:
        """Whether a result is suspicious or wrong."""
        return self.verdict is not None and self.verdict.is_fault

    @property
    def is_judged(self) -> bool:
        """Whether at least one result or gradient was judged."""
        return any(row.judgement is not None for row in self.rows)

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of its rows; None where there is none."""
        found = [row.judgement.verdict for row in self.rows if row.judgement is not None]
        return max(found, key=lambda one: one.severity, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How calls are verified.

    Attributes:
        device: where calls are run again whose results were not recorded.
        rerun: whether the results of a new run are judged even where the recorded ones are there.
        units: unit roundoff of float32 by family, where a setting of the run made it coarser.
        reference: how references are computed.
        dtype: type of a new run's floating-point tensors; None for the recorded ones.
    """

    device: str = "cpu"
    rerun: bool = False
    units: Mapping[Family, float] = field(default_factory=dict)
    reference: Setting = REFERENCE
    dtype: str | None = None


def verify_call(
    call: RecordedCall,
    runner: Runner,
    tensors: TensorSource,
    options: VerifyOptions,
    seen: Seen | None = None,
) -> CallReport:
    """Judge one call; never raises for what is wrong with the call.

    Args:
        call: the call.
        runner: of its framework.
        tensors: where its tensors come from.
        options: how to verify.
        seen: is given each judged row with the tensor in question and the reference.
    """
    tensors.begin(call.name)
    begun = time.perf_counter()
    try:
        report = verify_prepared(call, runner.prepare(call, tensors), tensors, options, seen)
    except CannotReplayError as exc:
        report = CallReport(name=call.name, reason=exc.reason, detail=exc.detail)
    except MsprobeError as exc:
        report = CallReport(name=call.name, reason=Reason.DAMAGED, detail=str(exc))
    return replace(report, elapsed_s=time.perf_counter() - begun)


def verify_prepared(
    call: RecordedCall,
    prepared: PreparedCall,
    tensors: CallTensors,
    options: VerifyOptions,
    seen: Seen | None = None,
) -> CallReport:
    """Judge a call whose function and arguments are there.

    Args:
        call: the call.
        prepared: the same, ready to run.
        tensors: where its tensors come from.
        options: how to verify.
        seen: is given each judged row with the tensor in question and the reference.

    Raises:
        CannotReplayError: it cannot be run again.
        DumpFormatError: a tensor file is damaged.
    """
    return _Verification(call, prepared, tensors, options, seen).report()


Seen = Callable[[ResultRow, StoredTensor, StoredTensor], None]
"""Is given a row, the tensor in question and the reference."""


class _Verification:
    """The verification of one call."""

    def __init__(
        self,
        call: RecordedCall,
        prepared: PreparedCall,
        tensors: CallTensors,
        options: VerifyOptions,
        seen: Seen | None,
    ) -> None:
        self._seen = seen
        self._call = call
        self._prepared = prepared
        self._tensors = tensors
        self._options = options
        self._reference = prepared.run(options.reference)
        self._probes: dict[tuple[float, float, bool], list[Replay]] = {}
        self._rerun: Replay | None = None
        self._unit = self._computing_unit()
        self._keep = self._drawn()

    def report(self) -> CallReport:
        """Return the judgements of all results and gradients."""
        rows = list(self._forward())
        for one in self._call.passes:
            rows += self._backward(one)
        reason, detail = None, ""
        if not any(row.judgement for row in rows):
            reason = next((row.reason for row in rows if row.reason), Reason.NO_OUTPUT)
            detail = next((row.detail for row in rows if row.detail), "")
        return CallReport(
            name=self._call.name,
            rows=tuple(rows),
            reason=reason,
            detail=detail,
            by=self._reference.by,
            generated=self._tensors.generated
            or (self._rerun is not None and not self._options.rerun),
        )

    def _drawn(self) -> float | None:
        """Return the share that a dropout keeps; None for calls without random numbers.

        Raises:
            CannotReplayError: the call drew random numbers in another way.
        """
        if not self._call.may_draw:
            return None
        setting = self._options.reference
        if self._prepared.draws_again:
            # The mask of a dropout is the same in all types, other random numbers are not.
            if keep_probability(self._call) is None:
                self._options = replace(self._options, reference=replace(setting, dtype=None))
                self._reference = self._prepared.run(self._options.reference)
            return None
        # Without gradients a module in evaluation takes another kernel: only the seed may differ.
        again = self._prepared.run(replace(setting, seed=setting.seed + 1))
        outputs = self._reference.outputs
        if all(_is_same(one, again.outputs.get(place)) for place, one in outputs.items()):
            return None
        keep = keep_probability(self._call)
        if keep is None or not self._has_input():
            raise CannotReplayError(Reason.RANDOM, self._call.function)
        return keep

    def _has_input(self) -> bool:
        first: Any = self._call.args[0] if self._call.args else None
        outputs = [form for _, form in tensor_forms(self._call.outputs, ())]
        forms = [first, *outputs[:1]]
        if self._options.rerun:
            return isinstance(first, dict) and "shape" in first
        return all(isinstance(one, dict) and self._tensors.has_values(one) for one in forms)

    def _computing_unit(self) -> float:
        family = self._call.operator.family
        return computing_unit(self._types(), self._options.units.get(family, 0.0))

    def _types(self) -> list[str]:
        return [self._type_of(form) for _, form in tensor_forms(self._call.outputs, ())]

    def _type_of(self, form: Mapping[str, Any]) -> str:
        """Return the type of a result that is judged."""
        recorded = normal_dtype(str(form.get("dtype", "")))
        wanted = self._options.dtype
        return recorded if wanted is None or kind_of(recorded) is not Kind.FLOAT else wanted

    def _forward(self) -> Iterator[ResultRow]:
        operands = _shapes(self._call.args) + _shapes(self._call.kwargs)
        part = _Part(self._call.name, self._unit, operands, self._types())
        for place, form in tensor_forms(self._call.outputs, ("output",)):
            if self._keep is None:
                yield self._row(part, place, form)
            elif place == ("output", 0):
                source = self._tensors.read(self._call.args[0], "input.0")
                yield self._dropout_row(part, place, form, source)

    def _backward(self, one: BackwardPass) -> Iterator[ResultRow]:
        operands = _shapes(one.incoming) + _shapes(self._call.args) + _shapes(self._call.kwargs)
        forms = [
            *tensor_forms(one.outgoing, ("output",)),
            *tensor_forms(one.outgoing_kwargs, ("output_kwargs",)),
        ]
        types = [self._type_of(form) for _, form in forms]
        unit = max(self._unit, computing_unit(types))
        part = _Part(one.name, unit, operands, [*self._types(), *types], one)
        for place, form in forms:
            remark = one.remark_at(place)
            if self._keep is not None:
                where, first = next(tensor_forms(one.incoming, ("gradient", one.name)))
                source = self._tensors.read(first, ".".join(map(str, where)))
                yield self._dropout_row(part, place, form, source)
            elif remark and not one.repeats(place):
                yield _unjudged(one.name, place, form, Reason.MEMORY, remark)
            elif one.name not in self._reference.gradients:
                detail = self._reference.backward_error or ""
                yield _unjudged(one.name, place, form, Reason.FAILED, detail)
            else:
                yield self._row(part, place, form)

    def _row(self, part: _Part, place: PartPath, form: Mapping[str, Any]) -> ResultRow:
        reference = part.result_of(self._reference, place)
        if reference is None:
            detail = "the replay has no such result"
            return _unjudged(part.record, place, form, Reason.STRUCTURE, detail)
        free = self._free_choice(part, place)
        if free:
            return _unjudged(part.record, place, form, Reason.AMBIGUOUS, free)
        try:
            recorded = self._recorded(part, place, form)
        except MsprobeError as exc:
            return _unjudged(part.record, place, form, Reason.MISSING, str(exc))
        if recorded is None:
            return _unjudged(part.record, place, form, Reason.MISSING, "not recorded")
        budget = budget_of(
            self._call.operator,
            recorded.dtype,
            unit=part.unit,
            shape=recorded.array.shape,
            operands=part.operands,
            is_gradient=part.one is not None,
        )
        judgement = judge(
            recorded,
            reference,
            budget,
            lambda count: self._disturbed(part, place, count),
            lambda: self._slack(part, reference),
            lambda elements: self._spread(part, place, elements),
        )
        return self._judged(part, place, recorded, reference, judgement)

    def _judged(
        self,
        part: _Part,
        place: PartPath,
        recorded: StoredTensor,
        reference: StoredTensor,
        judgement: Judgement,
    ) -> ResultRow:
        row = ResultRow(
            record=part.record,
            slot=".".join(map(str, place)),
            dtype=recorded.dtype,
            shape=tuple(recorded.array.shape),
            judgement=judgement,
        )
        if self._seen is not None:
            self._seen(row, recorded, reference)
        return row

    def _free_choice(self, part: _Part, place: PartPath) -> str:
        """Return why several results are right; empty where only one is."""
        operator = self._call.operator
        vectors = operator.free_outputs
        if place[1:2] in vectors or (vectors and part.one is not None):
            return "the sign or phase of a vector is free"
        if part.unit > _FINE and suggests(operator.name, Hint.PLACED):
            return "coordinates in a half type decide which elements it reads"
        return ""

    def _dropout_row(
        self,
        part: _Part,
        place: PartPath,
        form: Mapping[str, Any],
        source: StoredTensor,
    ) -> ResultRow:
        """Judge a result of dropout by the elements that it kept."""
        assert self._keep is not None
        drawn_place, drawn = next(tensor_forms(self._call.outputs, ("output",)))
        mask = self._recorded(replace(part, one=None), drawn_place, drawn)
        recorded = self._recorded(part, place, form)
        if recorded is None or mask is None:
            return _unjudged(part.record, place, form, Reason.MISSING, "not recorded")
        given = self._tensors.read(self._call.args[0], "input.0")
        # Of an element that was zero before, its gradient alone tells whether it was kept.
        kept = np.where(given.values() != 0, mask.values() != 0, recorded.values() != 0)
        reference, problem = dropout_reference(source, kept, self._keep)
        unit = unit_of(recorded.dtype)
        budget = Budget(dtype=recorded.dtype, unit=unit, accumulation=unit, length=0, steps=0.0)
        judgement = judge(recorded, reference, budget, lambda _: ())
        if problem:
            judgement = replace(
                judgement, verdict=Verdict.WRONG, ratio=max(judgement.ratio, 8.0), remark=problem
            )
        return self._judged(part, place, recorded, reference, judgement)

    def _recorded(
        self, part: _Part, place: PartPath, form: Mapping[str, Any]
    ) -> StoredTensor | None:
        """Return what is judged: as it was recorded, else of a new run in the recorded types."""
        if not (self._options.rerun or self._tensors.generated):
            if "shape" not in form:
                return _scalar(form)
            if self._tensors.has_values(form):
                return self._tensors.read(form, "")
        if self._rerun is None:
            dtype = self._options.dtype
            self._rerun = self._prepared.run(
                Setting(device=self._options.device, dtype=dtype, judged=True)
            )
            if dtype is not None and not self._rerun.by.endswith(dtype):
                raise CannotReplayError(Reason.FAILED, f"there is no kernel for {dtype}")
        return part.result_of(self._rerun, place)

    def _slack(self, part: _Part, reference: StoredTensor) -> Sizes | float | None:
        """Return the error that numbers inside of the function may leave in each element."""
        if not leaves_slack(self._call.operator, is_gradient=part.one is not None):
            return None
        forms = list(argument_forms(self._call))
        if part.one is not None:
            forms = [*gradient_forms(part.one), *forms]
        operands = [
            self._tensors.read(form, ".".join(map(str, place))).values()
            for place, form in forms
            if kind_of(normal_dtype(str(form.get("dtype", "")))) in (Kind.FLOAT, Kind.COMPLEX)
        ]
        return absolute_slack(
            self._call.operator,
            part.unit,
            operands,
            reference.array,
            is_gradient=part.one is not None,
        )

    def _spread(
        self, part: _Part, place: PartPath, elements: NDArray[np.int64]
    ) -> NDArray[np.float64] | None:
        """Return the root mean square of the change that roundings of their terms make in elements.

        Args:
            part: forward or backward pass.
            place: of the result.
            elements: in C order.
        """
        replay = self._squares
        found = None if replay is None else part.result_of(replay, place)
        reference = part.result_of(self._reference, place)
        if found is None or found.array.dtype.kind != "f" or reference is None:
            return None
        if found.array.shape != reference.array.shape:
            return None
        squares = found.array.reshape(-1)[elements].astype(np.float64)
        # Beyond the range of the type that they were added up in, squares tell nothing.
        squares[~np.isfinite(squares)] = 0.0
        return part.unit * np.sqrt(squares)

    @cached_property
    def _squares(self) -> Replay | None:
        return self._prepared.squares()

    def _disturbed(self, part: _Part, place: PartPath, count: int) -> list[StoredTensor]:
        """Return a result of replays with random errors in each step."""
        backward = part.one is not None
        known = self._probes.setdefault((part.unit, part.largest, backward), [])
        seed = zlib.crc32(self._call.name.encode())
        while len(known) < count:
            noise = Noise(part.unit, seed + len(known), part.largest, part.smallest)
            setting = replace(self._options.reference, noise=noise)
            known.append(self._prepared.run(setting, backward=backward))
        found = (part.result_of(replay, place) for replay in known)
        return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class _Part:
    """The forward pass of a call, or one of its backward passes.

    Attributes:
        record: name of its record.
        unit: unit roundoff of the type that was computed in.
        operands: shapes of the tensors that it takes.
        types: of its results.
        one: the backward pass; None for the forward pass.
    """

    record: str
    unit: float
    operands: Sequence[Sequence[int]]
    types: Sequence[str]
    one: BackwardPass | None = None

    @property
    def largest(self) -> float:
        """The largest number that all types of its results hold."""
        return min((largest_of(dtype) for dtype in self.types), default=math.inf)

    @property
    def smallest(self) -> float:
        """The smallest positive number that all types of its results hold."""
        return max((smallest_of(dtype) for dtype in self.types), default=0.0)

    def result_of(self, replay: Replay, place: PartPath) -> StoredTensor | None:
        """Return what a replay has at a place of the record."""
        results = replay.outputs if self.one is None else replay.gradients.get(self.record, {})
        return results.get(place)


def _is_same(first: StoredTensor, second: StoredTensor | None) -> bool:
    if second is None or first.array.shape != second.array.shape:
        return False
    return bool(np.array_equal(first.values(), second.values(), equal_nan=first.dtype != "bool"))


def _shapes(tree: Any) -> list[Sequence[int]]:
    return [form["shape"] for _, form in tensor_forms(tree, ()) if "shape" in form]


def _scalar(form: Mapping[str, Any]) -> StoredTensor:
    import numpy as np

    value = form["value"]
    return StoredTensor(
        array=np.asarray(value), dtype="bool" if isinstance(value, bool) else "int64"
    )


def _unjudged(
    record: str, place: PartPath, form: Mapping[str, Any], reason: Reason, detail: str
) -> ResultRow:
    return ResultRow(
        record=record,
        slot=".".join(map(str, place)),
        dtype=normal_dtype(str(form.get("dtype", ""))),
        shape=tuple(form.get("shape") or ()),
        reason=reason,
        detail=detail,
    )
