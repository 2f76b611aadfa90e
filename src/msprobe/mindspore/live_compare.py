# SPDX-License-Identifier: Apache-2.0
"""`live_compare` in MindSpore's dynamic graph: judge each call of a running training.

Calls are recorded as in the task ``tensor``, and judged in place of being written. References in
PyTorch are made as soon as a call returns. Those that only MindSpore can make wait for the end of
the context: an operator that fails while a gradient is recorded would cost the program its graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from mindspore import nn
from msprobe.capture.call import Call, Draft
from msprobe.capture.facts import FactSink
from msprobe.capture.recording import Recording, RecordingContext
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack
from msprobe.capture.values import Describer
from msprobe.checks.live_check import LeftOut, LiveCheck, LiveChoice, Place, Samples, matches
from msprobe.checks.verify_call import (
    CallReport,
    ResultRow,
    Seen,
    VerifyOptions,
    verify_prepared,
)
from msprobe.config import Config, DataMode, Level, TensorSection
from msprobe.dump.array_file import ArrayFile
from msprobe.dump.formats.dtypes import STORAGE_TYPES, normal_dtype
from msprobe.dump.record_names import forward_name, parse_record_name
from msprobe.dump.records import encode
from msprobe.dump.stack_frames import user_line
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import RecordNotFoundError, UnsupportedError, UsageError
from msprobe.log import ensure_handler
from msprobe.mindspore.adapter import TENSOR_TYPES, on_host
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.compiled.cells import is_static_graph
from msprobe.mindspore.guard import may_fail
from msprobe.mindspore.run import Run, as_models
from msprobe.replay.recorded_calls import BackwardPass, RecordedCall, call_of, pass_of
from msprobe.replay.runner import (
    CannotReplayError,
    Reason,
    Runner,
    Setting,
    reference_runner,
    runner_for,
)
from msprobe.replay.tensors import in_recorded_type

_FRAMEWORK: Final = "mindspore"
_REFERENCES: Final = {f"cpu-{dtype}": Setting(dtype=dtype) for dtype in ("float64", "float32")}
# Another runner may be able to do what one cannot for these reasons.
_OF_THE_RUNNER: Final = (Reason.UNKNOWN, Reason.FAILED, Reason.STRUCTURE, Reason.NO_REFERENCE)


def live_compare(
    reference: str = "cpu-float64",
    *,
    model: nn.Cell | Sequence[nn.Cell] | None = None,
    dump_path: str | Path = "./live_compare",
    operators: Sequence[str] = (),
    modules: Sequence[str] = (),
    every_n: int = 1,
    max_calls: int | None = None,
    max_bytes: int = 4 << 30,
    save: bool = True,
) -> LiveCompare:
    """Judge each call of an API or primitive against a reference while the training runs.

    The result is a context manager around forward and backward, in the dynamic graph. It may be
    entered again for each step; all steps go into one table, written at the end of each. The
    training keeps its numbers and its random state.

    Args:
        reference: ``cpu-float64``, or ``cpu-float32``: the type that references are computed in, by
            PyTorch where it is installed and has the function, else by MindSpore.
        model: the model, or a list of models: their cells are named in the table, and the
            primitives that they hold are judged.
        dump_path: folder of ``live_compare_rank{n}.csv``, the JSON beside it, and tensors.
        operators: patterns of names such as ``matmul``, ``Mint.*``; empty for all.
        modules: patterns of the paths of cells such as ``blocks.0.*``; empty for all.
        every_n: judge one in so many calls of each function.
        max_calls: judge at most so many calls of each function.
        max_bytes: most memory for values that are kept until their call has been judged.
        save: whether arguments and results are saved where a place has its first fault.

    Raises:
        UsageError: an argument cannot be used.
        ConfigError: `model` is no cell.
    """
    if reference not in _REFERENCES:
        rule = f"use one of {', '.join(_REFERENCES)}"
        raise UsageError(f"live_compare: reference is {reference!r}; {rule}")
    choice = LiveChoice.checked(
        operators=operators,
        modules=modules,
        every_n=every_n,
        max_calls=max_calls,
        max_bytes=max_bytes,
    )
    return LiveCompare(_REFERENCES[reference], choice, as_models(model), Path(dump_path), save=save)


class LiveCompare(LiveCheck):
    """Judges calls while its context is entered."""

    def __init__(
        self,
        setting: Setting,
        choice: LiveChoice,
        models: Sequence[nn.Cell],
        folder: Path,
        *,
        save: bool,
    ) -> None:
        """Use `live_compare`."""
        super().__init__(folder, lambda: current_rank() or 0, save=save)
        level = Level.MIX if models else Level.L1
        config = Config(dump_path=folder, level=level, section=TensorSection(), facts=False)
        self._models = models
        self._run = Run(config)
        session = self._run.session
        self._recording = LiveRecording(session, self, choice, setting)
        session.calls.add(self._recording)
        session.calls.remove(session.recording)
        session.checks.files = _NoFiles()
        self._is_on = False

    def __enter__(self) -> LiveCompare:
        """Begin to judge.

        Raises:
            UsageError: it has been entered already.
            UnsupportedError: MindSpore is in graph mode, or too old for the dynamic graph.
        """
        if self._is_on:
            raise UsageError("live_compare: the context is entered already")
        if is_static_graph():
            raise UnsupportedError(
                "live_compare judges calls of the dynamic graph, and MindSpore is in graph mode: "
                "set_context(mode=PYNATIVE_MODE)"
            )
        ensure_handler()
        self._run.start(self._models, None, None)
        self._is_on = True
        return self

    def __exit__(self, *_: object) -> None:
        """End the step: judge the calls that waited, and write the table."""
        self._is_on = False
        self._run.stop()
        self._run.session.attempt("live_compare", self._recording.judge_waiting)
        self._run.step()
        self.end_step()


class _NoFiles:
    """The files of the step: none, `LiveCheck` has its own."""

    def begin(self, dump_path: Path, rank_name: str) -> FactSink | None:
        """Return None: no facts are wanted."""
        return None

    def continue_at(self, step: int) -> None:
        """Do nothing."""

    def write(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Tensors:
    """The tensors of one call.

    Attributes:
        generated: False.
        size_bytes: memory that they occupy.
    """

    generated = False

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.size_bytes = 0

    def take(self, draft: Draft) -> Mapping[str, Any]:
        """Take the tensors of a record; return its parts as they would be read from a dump."""
        for payload, record, path in draft.held or ():
            assert isinstance(payload, ArrayFile)
            record.data_name = draft.file_name(path)
            self._arrays[record.data_name] = payload.values
            self.size_bytes += payload.size_bytes
        draft.held = None
        parts: dict[str, Any] = msgspec.json.decode(encode(draft.parts, nonfinite=False))
        return parts

    def read(self, tree: Mapping[str, Any], place: str) -> StoredTensor:
        """Return the elements of a tensor.

        Raises:
            RecordNotFoundError: they were not kept.
        """
        dtype = normal_dtype(str(tree["dtype"]))
        array = self._arrays.get(str(tree.get("data_name")))
        if array is not None:
            return in_recorded_type(StoredTensor(array=array, dtype=str(array.dtype)), tree)
        if not self.has_values(tree):
            raise RecordNotFoundError("record", f"{place}: its values were not kept")
        empty = np.zeros(tuple(tree["shape"]), STORAGE_TYPES[dtype])
        return StoredTensor(array=empty, dtype=dtype)

    def has_values(self, tree: Mapping[str, Any]) -> bool:
        """Return whether the elements of a tensor were kept, or there are none."""
        return tree.get("data_name") in self._arrays or 0 in (tree.get("shape") or ())


@dataclass(slots=True)
class _Kept:
    """A call that is not judged in whole.

    Attributes:
        call: the call, with the backward pass that has come.
        tensors: its tensors.
        place: where it was called.
        is_judged: whether its forward pass is judged.
        has_backward: whether a backward pass may come.
    """

    call: RecordedCall
    tensors: _Tensors
    place: Place
    is_judged: bool = False
    has_backward: bool = False


class LiveRecording(Recording):
    """Judges complete records; none is written."""

    _has_more = True

    def __init__(
        self, session: Session, check: LiveCheck, choice: LiveChoice, setting: Setting
    ) -> None:
        """Create it.

        Args:
            session: whose calls are judged.
            check: keeps what is found.
            choice: which calls are judged.
            setting: how references are computed.
        """
        super().__init__(
            RecordingContext(
                step=session.current,
                adapter=session.adapter,
                describer=Describer(session.adapter, TENSOR_TYPES),
                data_mode=DataMode(),
                keeps_construct=False,
                submit=session.dumps.submit,
                failed=session.failed,
            )
        )
        self._check = check
        self._choice = choice
        units = runner_for(_FRAMEWORK).float32_units("cpu" if on_host() else "npu")
        self._options = VerifyOptions(reference=setting, units=units)
        self._left_out = check.results.left_out
        self._samples = Samples(choice)
        self._at_once: Runner | None = reference_runner(_FRAMEWORK)
        self._kept: dict[str, _Kept] = {}
        self._bytes = 0

    # -- records -------------------------------------------------------------------------------

    def begin(self, call: Call, stack: Stack) -> None:
        """Open the record of a call that is to be judged."""
        if call.is_module or call.is_recompute or not call.keeps_forward:
            return
        api = call.forward_name.rsplit(".", 2)[0]
        module = ""
        if call.parent is not None:
            parent = parse_record_name(call.parent)
            module = parent.path or parent.class_name or ""
        reason = self._why_left_out(api, module)
        if reason is not None:
            self._left_out[reason] += 1
            return
        call.draft = draft = self.new_draft(call.forward_name, call.call_order)
        draft.parent, draft.stack, draft.held = module, stack, []

    def begin_again(self, call: Call, original: Call) -> None:
        """Do nothing: the first call is judged."""

    def _why_left_out(self, api: str, module: str) -> LeftOut | None:
        choice = self._choice
        if not matches(choice.operators, api, api.rpartition(".")[2]):
            return LeftOut.FILTER
        if not matches(choice.modules, module):
            return LeftOut.FILTER
        if not self._samples.takes_next(api):
            return LeftOut.SAMPLING
        return LeftOut.TOO_LARGE if self._bytes > choice.max_bytes else None

    def end(self, call: Call) -> None:
        """Judge a call, or keep it."""
        draft, call.draft = call.draft, None
        if draft is None:
            return
        tensors = _Tensors()
        parts = tensors.take(draft)
        stack = draft.stack
        place = Place(draft.parent or "", user_line(stack.frames) if stack is not None else None)
        recorded = call_of(parse_record_name(draft.name), parts, _FRAMEWORK)
        kept = _Kept(recorded, tensors, place, has_backward=call.keeps_gradients)
        kept.is_judged = self._judged_at_once(kept)
        if kept.has_backward or not kept.is_judged:
            self._kept[draft.name] = kept
            self._bytes += tensors.size_bytes

    def raised(self, call: Call, error: str) -> None:
        """Forget a call that raised."""
        call.draft = None

    def backward_begin(self, backward: Any) -> None:
        """Open the record of the first pass over a call that is kept."""
        kept = self._kept.get(backward.gradients.call.forward_name)
        if kept is not None and not kept.call.passes:
            super().backward_begin(backward)
            backward.draft.held = []

    def keeps(self, draft: Draft) -> bool:
        """Judge the gradients of a call, or keep them; return False."""
        forward = forward_name(parse_record_name(draft.name)) or ""
        kept = self._kept.get(forward)
        if kept is not None:
            before = kept.tensors.size_bytes
            one = pass_of(draft.name, kept.call.outputs, kept.tensors.take(draft))
            kept.call = replace(kept.call, passes=(one,))
            self._bytes += kept.tensors.size_bytes - before
            if self._judged_at_once(kept):
                self._forget(forward)
        return False

    def _forget(self, name: str) -> None:
        self._bytes -= self._kept.pop(name).tensors.size_bytes

    def parameter_gradient(
        self, name: str, parameter: str, tensor: Any, *, is_last: bool, all_of: str | None = None
    ) -> None:
        """Do nothing: gradients of parameters are those of the calls that read them."""

    # -- judgements ----------------------------------------------------------------------------

    def judge_waiting(self) -> None:
        """Judge the calls that only MindSpore can run again, and forget all."""
        waiting = [one for one in self._kept.values() if one.call.passes or not one.is_judged]
        self._kept.clear()
        self._bytes = 0
        if not waiting:
            return
        if not may_fail():
            self._left_out[LeftOut.NOT_JUDGED] += len(waiting)
            return
        runner = runner_for(_FRAMEWORK)
        for one in waiting:
            self._judge(one, runner)

    def _judged_at_once(self, kept: _Kept) -> bool:
        """Judge a call in PyTorch; return whether that was possible, or nothing can be done."""
        return self._at_once is not None and self._judge(kept, self._at_once, is_first=True)

    def _judge(self, kept: _Kept, runner: Runner, *, is_first: bool = False) -> bool:
        call, tensors = kept.call, kept.tensors
        found: list[tuple[ResultRow, StoredTensor, StoredTensor]] = []
        try:
            prepared = runner.prepare(call, tensors)
            report = verify_prepared(
                call, prepared, tensors, self._options, lambda *one: found.append(one)
            )
        except CannotReplayError as exc:
            if is_first and exc.reason in _OF_THE_RUNNER:
                return False
            report = CallReport(name=call.name, reason=exc.reason, detail=exc.detail)
        if not kept.is_judged:
            self._tell(kept, report, found, None)
        for one in call.passes:
            self._tell(kept, report, found, one)
        return True

    def _tell(
        self,
        kept: _Kept,
        report: CallReport,
        found: Sequence[tuple[ResultRow, StoredTensor, StoredTensor]],
        backward: BackwardPass | None,
    ) -> None:
        """Keep the judgements of one direction."""
        name = kept.call.name if backward is None else backward.name
        rows = tuple(row for row in report.rows if row.record == name)
        if not rows and report.is_judged:
            return

        def tell(seen: Seen) -> CallReport:
            for row, own, reference in found:
                if row.record == name:
                    seen(row, own, reference)
            return replace(report, rows=rows)

        place = kept.place._replace(is_backward=backward is not None)
        self._check.judge(kept.call.function, place, kept.call, kept.tensors, tell)
