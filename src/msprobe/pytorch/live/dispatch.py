# SPDX-License-Identifier: Apache-2.0
"""`LiveMode`: sees each operator, and hands those in the sample to a judge right after they ran.

The judge works in a thread of its own, for which the training waits. That thread has none of the
states that the training's has: no modes, no autocast, no autograd keys that are switched off.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.checks.live_check import LeftOut, LiveChoice, Place, Samples, matches
from msprobe.log import warn_once
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.live.live_call import LiveCall
from msprobe.pytorch.live.operator_facts import OperatorFacts, operator_facts, tensors_of
from msprobe.pytorch.live.places import Places
from msprobe.pytorch.values.random_state import RandomWatch
from msprobe.replay.arguments import converted

logger = logging.getLogger(__name__)

_DisableTorchFunction: Final = torch._C.DisableTorchFunction
_PLAIN: Final = torch.Tensor.__torch_dispatch__
# A judgement holds arguments and results in float64: the reference, and some with random errors.
_BYTES_AN_ELEMENT: Final = 40

Judge = Callable[[OperatorFacts, Place, LiveCall], None]
"""Judges a call that just ran."""


class LiveMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # not annotated in torch
    """While it is on, operators are judged.

    Attributes:
        left_out: calls that were not judged, by reason.
    """

    # Otherwise torch refuses to run flex_attention and its like; they are passed on.
    supports_higher_order_operators = True

    def __init__(self, choice: LiveChoice, judge: Judge, left_out: Counter[str]) -> None:
        """Judge the calls of `choice` with `judge`; count the others in `left_out`."""
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._choice = choice
        self._judge = judge
        self.left_out = left_out
        self._places = Places()
        self._samples = Samples(choice)
        self._wanted: dict[str, bool] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None

    def __enter__(self) -> LiveMode:
        """Begin to judge."""
        self._worker = ThreadPoolExecutor(1, "msprobe-live", initializer=torch.get_num_threads)
        self._places.install()
        super().__enter__()  # type: ignore[no-untyped-call]  # not annotated in torch
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # not annotated in torch
        self._places.remove()
        assert self._worker is not None
        self._worker.shutdown()
        self._worker = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one operator; the result is always its own."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or is_tracing() or os.getpid() != self._process:
            return func(*args, **kwargs)
        if any(kind.__torch_dispatch__ is not _PLAIN for kind in types):  # type: ignore[attr-defined]
            return NotImplemented  # a tensor subclass: the operators that it is made of come here
        call = self._guarded(self._before, func, args, kwargs)
        # To a function mode this call would be one of the user's. Only the kernels of other
        # libraries may be Python code that depends on modes.
        with _DisableTorchFunction() if func.namespace == "aten" else nullcontext():
            result = func(*args, **kwargs)
        if call is not None:
            self._guarded(call.judge, result)
        return result

    def _guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        """Run code of ours without effect on the training; an error is counted."""
        try:
            with self._lock, _DisableTorchFunction(), torch.no_grad():
                return action(*args)
        except Exception as exc:  # noqa: BLE001 - the user's training must survive us
            self.left_out[LeftOut.FAILED] += 1
            problem = f"{type(exc).__name__}: {exc}"
            warn_once(logger, problem, "an operator was not judged: %s", problem)
            return None

    def _before(
        self, func: OpOverload[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Running | None:
        """Return the call if it is to be judged."""
        self._places.note_nodes()
        facts = operator_facts(func)
        reason = facts.left_out or self._not_wanted(facts, args, kwargs)
        modules = self._choice.modules
        if reason is None and modules and not matches(modules, self._places.here().module):
            reason = LeftOut.FILTER
        if reason is None and not self._samples.takes_next(facts.overload):
            reason = LeftOut.SAMPLING
        if reason is not None:
            self.left_out[reason] += 1
            return None
        return _Running(self, func, facts, self._places.here(), args, kwargs)

    def _not_wanted(
        self, facts: OperatorFacts, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> LeftOut | None:
        choice = self._choice
        if facts.overload not in self._wanted:
            is_wanted = matches(choice.operators, facts.api, facts.overload)
            self._wanted[facts.overload] = is_wanted
        if not self._wanted[facts.overload]:
            return LeftOut.FILTER
        tensors = tensors_of([*args, *kwargs.values()])
        if not tensors:
            return LeftOut.FACTORY
        if any(not _is_plain(one) for one in tensors):
            return LeftOut.TENSORS
        if choice.device is not None and all(one.device.type != choice.device for one in tensors):
            return LeftOut.FILTER
        if sum(one.numel() for one in tensors) * _BYTES_AN_ELEMENT > choice.max_bytes:
            return LeftOut.TOO_LARGE
        return None

    def judge(self, facts: OperatorFacts, place: Place, call: LiveCall) -> None:
        """Have a call judged in the other thread."""

        def work() -> None:
            with _DisableTorchFunction():  # a user's tensor subclass must not see this
                self._judge(facts, place, call)

        assert self._worker is not None
        self._worker.submit(work).result()

    def number_of(self, facts: OperatorFacts) -> int:
        """Return the number of the running call among those of its operator."""
        return self._samples.number_of(facts.overload)


class _Running:
    """A call that is to be judged, with its arguments as they were before it."""

    def __init__(
        self,
        mode: LiveMode,
        func: OpOverload[Any, Any],
        facts: OperatorFacts,
        place: Place,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._mode, self._func, self._facts, self._place = mode, func, facts, place
        self._given = args, kwargs
        self._args, self._kwargs = _kept(facts, args, kwargs)
        self._number = mode.number_of(facts)
        self._random = RandomWatch(args, kwargs, keeps_state=False) if facts.is_seeded else None

    def judge(self, result: Any) -> None:
        """Judge what the call returned."""
        facts = self._facts
        if self._random is not None and any(True for _ in self._random.changed()):
            self._mode.left_out[LeftOut.RANDOM] += 1
            return
        results = facts.results(*self._given, result)
        if any(not _is_plain(one) for one in tensors_of(results)):
            self._mode.left_out[LeftOut.TENSORS] += 1
            return
        _wait_for(tensors_of(results))
        call = LiveCall(facts, self._func, self._args, self._kwargs, results, self._number)
        self._mode.judge(facts, self._place, call)


def _kept(
    facts: OperatorFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with copies of those that the call may write."""
    if not facts.written:
        return args, kwargs
    written = tensors_of(facts.written_in(args, kwargs))
    memory = {one.untyped_storage().data_ptr() for one in written}
    copies: dict[int, torch.Tensor] = {}

    def kept(value: Any, _: object) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.untyped_storage().data_ptr() not in memory:
            return value
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone()
        return copies[id(value)]

    return tuple(converted(list(args), kept)), converted(dict(kwargs), kept)


def _is_plain(tensor: torch.Tensor) -> bool:
    is_strided = tensor.layout is torch.strided and not tensor.is_nested
    return is_strided and tensor.device.type != "meta" and not tensor.is_quantized


def _wait_for(tensors: Sequence[torch.Tensor]) -> None:
    """Wait until results are there: the other thread has a stream of its own."""
    devices = {one.device for one in tensors if one.device.type != "cpu"}
    for device in devices:
        torch.accelerator.synchronize(device)
