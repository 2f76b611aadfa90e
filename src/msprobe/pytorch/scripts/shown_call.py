# SPDX-License-Identifier: Apache-2.0
"""`ShownCall`: a call with its tensors, what it returned, and what that may be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from msprobe.checks.op_scripts import Allowed, allowed_error
from msprobe.checks.verify_call import CallReport, VerifyOptions
from msprobe.dump.values import PartPath
from msprobe.pytorch.replay.rebuilding import from_torch, to_torch
from msprobe.pytorch.replay.runner import TorchCall
from msprobe.replay.forms import tensor_forms
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import REFERENCE, Replay, Setting
from msprobe.replay.tensors import TensorSource

Results = Mapping[PartPath, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCall:
    """A call that can be run, and the results in question.

    Attributes:
        call: as recorded.
        function: that makes it.
        args: positional arguments in the recorded types.
        kwargs: keyword arguments.
        incoming: gradients that arrived in the first backward pass, by place of the result.
        targets: results or gradients in question.
        references: the same in float64.
        allowed: their allowed errors.
        is_recorded: whether `targets` were recorded; else they were computed again.
        backward: whether these are gradients.
    """

    call: RecordedCall
    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    incoming: Results
    targets: Results
    references: Results
    allowed: Mapping[PartPath, Allowed]
    is_recorded: bool
    backward: bool

    def run(self, setting: Setting = REFERENCE) -> Results:
        """Return the results, or gradients, of a new run.

        Raises:
            CannotReplayError: it fails.
        """
        gradients = {one.name: self.incoming for one in self.call.passes[:1]}
        one = TorchCall(self.call, (self.function,), list(self.args), dict(self.kwargs), gradients)
        return results_of(self.call, one.run(setting, backward=self.backward), self.backward)


def results_of(call: RecordedCall, replay: Replay, backward: bool) -> Results:
    """Return the results of a run, or the gradients of its first backward pass."""
    found = replay.gradients.get(call.passes[0].name, {}) if backward else replay.outputs
    return {place: to_torch(one) for place, one in found.items()}


def shown_call(
    call: RecordedCall,
    prepared: TorchCall,
    report: CallReport,
    tensors: TensorSource,
    *,
    backward: bool,
    options: VerifyOptions,
) -> ShownCall:
    """Return the call with all that was judged of it.

    Args:
        call: the call.
        prepared: the same, with its function and arguments.
        report: its judgements.
        tensors: of the dump.
        backward: whether its gradients are in question.
        options: how it was judged: on which device, and by a new run or by what was recorded.

    Raises:
        CannotReplayError: it fails.
    """
    references = results_of(call, prepared.run(REFERENCE), backward)
    forms = dict(_forms(call, backward))
    is_recorded = not (report.generated or options.rerun) and all(
        isinstance(form.get("data_name"), str) for form in forms.values() if "shape" in form
    )
    if is_recorded:
        targets = {
            place: to_torch(tensors.read(form, ""))
            for place, form in forms.items()
            if "shape" in form
        }
    else:
        again = prepared.run(Setting(device=options.device, dtype=None), backward=backward)
        targets = {place: one.cpu() for place, one in results_of(call, again, backward).items()}
    record = call.passes[0].name if backward else call.name
    allowed = {}
    for row in report.rows:
        place = _place(row.slot)
        if row.record == record and row.judgement and place in references and place in targets:
            allowed[place] = allowed_error(
                row, from_torch(targets[place]), from_torch(references[place])
            )
    incoming = {}
    for one in call.passes[:1] if backward else ():
        for place, form in tensor_forms(one.incoming, ()):
            key = ".".join(map(str, ("gradient", one.name, *place)))
            incoming[place] = to_torch(tensors.read(form, key))
    return ShownCall(
        call=call,
        function=prepared.function,
        args=tuple(prepared.args),
        kwargs=prepared.kwargs,
        incoming=incoming,
        targets={place: targets[place] for place in allowed},
        references={place: references[place] for place in allowed},
        allowed=allowed,
        is_recorded=is_recorded,
        backward=backward,
    )


def _forms(call: RecordedCall, backward: bool) -> list[tuple[PartPath, Mapping[str, Any]]]:
    if not backward:
        return list(tensor_forms(call.outputs, ("output",)))
    one = call.passes[0]
    return [
        *tensor_forms(one.outgoing, ("output",)),
        *tensor_forms(one.outgoing_kwargs, ("output_kwargs",)),
    ]


def _place(slot: str) -> PartPath:
    return tuple(int(key) if key.isdigit() else key for key in slot.split("."))
