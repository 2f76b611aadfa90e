# SPDX-License-Identifier: Apache-2.0
"""`perturb_call`: a recorded call instead of one of a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.checks.perturb_dump import Named
from msprobe.checks.perturbation import SkippedError
from msprobe.config import Perturbation, Stage
from msprobe.operators.lookup import is_in_place
from msprobe.pytorch.perturbation.arguments import CallCopy, is_float
from msprobe.pytorch.perturbation.backward import examine_gradients
from msprobe.pytorch.perturbation.examination import examine
from msprobe.pytorch.perturbation.modes import REFERENCES, golden_of, why_left_out
from msprobe.pytorch.replay.runner import RUNNER, TorchCall
from msprobe.pytorch.values.tensor_search import output_slots
from msprobe.replay.arguments import converted, result_at
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import Setting
from msprobe.replay.tensors import TensorSource

_SEED: Final = 1234


def perturb_call(
    call: RecordedCall, tensors: TensorSource, mode: Perturbation, stage: Stage
) -> list[Named]:
    """Return the judgements of a call's results, or gradients; see `PerturbCall`."""
    if (reason := why_left_out(call.operator, mode)) is not None:
        raise SkippedError(reason)
    prepared = RUNNER.prepare(call, tensors)
    # The first run finds out which of several functions takes the arguments, and in which form.
    prepared.run(Setting(dtype=None, judged=True), backward=False)
    needs_grad = stage is Stage.BACKWARD
    args = converted(list(prepared.args), _own_leaf if needs_grad else _own)
    kwargs = converted(dict(prepared.kwargs), _own_leaf if needs_grad else _own)
    torch.manual_seed(_SEED)
    writes = is_in_place(call.api) or bool(kwargs.get("inplace"))
    copy = CallCopy(
        prepared.own_function,
        call.operator,
        args,
        kwargs,
        writes=writes,
        copies=True,
        with_grad=needs_grad,
        golden=golden_of(call.prefix, call.api, mode),
    )
    if needs_grad:
        return list(_gradients(call, prepared, copy, mode))
    with torch.no_grad():
        result = copy.run(*copy.again(), same_kernel=True)
        _note_random(copy, mode)
        return [(call.name, one) for one in examine(copy, result, mode)]


def _gradients(
    call: RecordedCall, prepared: TorchCall, copy: CallCopy, mode: Perturbation
) -> Iterator[Named]:
    if not call.passes:
        raise SkippedError("no backward record")
    result = copy.run(*copy.again(), leaves=[])
    _note_random(copy, mode)
    outputs = [one for one in output_slots(result) if isinstance(one, Tensor) and one.requires_grad]
    for one in call.passes:
        arrived = {
            id(result_at(result, place)): gradient
            for place, gradient in prepared.gradients[one.name].items()
        }
        incoming = [arrived.get(id(output)) for output in outputs]
        for judged in examine_gradients(copy, incoming, mode):
            yield one.name, judged


def _note_random(copy: CallCopy, mode: Perturbation) -> None:
    """Note whether the call draws random numbers, where that matters."""
    if mode in REFERENCES:
        copy.find_random()


def _own(value: Any, _place: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _own_leaf(value: Any, place: Any) -> Any:
    own = _own(value, place)
    return own.requires_grad_() if isinstance(own, Tensor) and is_float(own) else own
