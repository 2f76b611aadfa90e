# SPDX-License-Identifier: Apache-2.0
"""The task `free_benchmark` in the dynamic graph: operators run again with a slight change.

A failed operator would cost the program its gradients (see `guard.may_fail`), and operators
that draw random numbers keep a state of their own. So only operators that are known run again,
none that is random or writes, in higher precision only where a failure does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from mindspore.common import dtype as mstype

from mindspore import Parameter, Tensor
from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.checks.perturbation import (
    Judged,
    SkippedError,
    judged_change,
    judged_reference,
    judged_rerun,
)
from msprobe.checks.perturbation_arrays import (
    RELATIVE_SHARE,
    change_of_arrays,
    one_ulp_smaller,
    relatively_smaller,
)
from msprobe.checks.perturbation_task import PerturbationTask
from msprobe.config import FreeBenchmarkSection, Handler, Perturbation, Stage
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.errors import ConfigError
from msprobe.mindspore.guard import Guard, may_fail, must_not_run
from msprobe.mindspore.replay.functions import writes_arguments
from msprobe.mindspore.tensor_search import output_slots, tensors_in
from msprobe.numerics.number_types import Kind, epsilon_of, kind_of
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Family, Operator

_MODES: Final = (
    Perturbation.ULP_NOISE,
    Perturbation.RELATIVE_NOISE,
    Perturbation.RERUN,
    Perturbation.HIGH_PRECISION,
)
_LEFT_OUT: Final = (Family.MOVING, Family.DISCRETE, Family.OTHER)
_HALVES: Final = ("float16", "bfloat16")


class MindSporePerturbation:
    """Runs calls again after the program's own run.

    Attributes:
        task: chooses calls, and keeps what is found.
    """

    def __init__(self, session: Session, section: FreeBenchmarkSection) -> None:
        """Create it; no file is touched before the first step.

        Args:
            session: the run.
            section: the settings of the task.

        Raises:
            ConfigError: a setting that is for PyTorch.
        """
        source = session.config.source or "config.json"
        if section.mode not in _MODES:
            rule = f"one of {', '.join(_MODES)} in MindSpore"
            raise ConfigError("free_benchmark.mode", section.word.value, rule, source=source)
        for key, value, rule in (
            ("handler_type", section.handler, Handler.CHECK),
            ("fuzz_stage", section.stage, Stage.FORWARD),
        ):
            if value is not rule:
                allowed = f'"{rule}" in MindSpore'
                raise ConfigError(f"free_benchmark.{key}", value.value, allowed, source=source)
        self._section = section
        self.task = PerturbationTask(session, section)

    def __call__(
        self,
        call: Call,
        run: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Run a call again if it is wanted; its own result is known."""
        api = call.forward_name.rsplit(".", 2)[0]
        if not call.keeps_inputs or call.is_recompute or not self.task.is_sampled(api):
            return
        reason = self._why_left_out(api, run, args, kwargs)
        if reason is not None:
            self.task.skip(reason)
            return
        self.task.take(api)
        self.task.report(call, lambda: self._judged(api, run, args, kwargs, result))

    def _why_left_out(
        self, api: str, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str | None:
        prefix, _, name = api.partition(".")
        operator: Operator = operator_of(prefix, name, is_mindspore=True)
        if operator.draws_random or operator.state_arguments or operator.communication is not None:
            return "random numbers, buffers or communication: a second run would show"
        if writes_arguments(name, run, args, kwargs):
            return "writes its arguments"
        if operator.family in _LEFT_OUT:
            return "results do not depend smoothly on inputs, or the operator is not known"
        if must_not_run():
            return "a mode or stream of the program is on"
        found: list[Any] = []
        tensors_in(args, kwargs, found)
        size = sum(int(tensor.nbytes) for tensor, _ in found)
        limit = self._section.max_bytes
        return "larger than max_bytes" if limit is not None and size > limit else None

    def _judged(
        self,
        api: str,
        run: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> Iterator[Judged]:
        mode = self._section.mode
        found: list[Any] = []
        tensors_in(args, kwargs, found)
        types = {dtype_of(tensor) for tensor, _ in found if is_float(tensor)}
        if not types and mode is not Perturbation.RERUN:
            raise SkippedError("no floating-point inputs")
        if mode is Perturbation.HIGH_PRECISION and not types & set(_HALVES):
            raise SkippedError("no inputs in a half type")
        if mode is Perturbation.HIGH_PRECISION and not may_fail():
            raise SkippedError("a gradient is recorded, which an unknown kernel would destroy")
        change = self._change(found)
        with Guard():
            changed = run(*_mapped(args, change), **_mapped(kwargs, change))
        unit = max((epsilon_of(dtype) for dtype in types), default=0.0) / 2
        for index, (one, other) in enumerate(
            zip(output_slots(result), output_slots(changed), strict=False)
        ):
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                yield from self._compared(index, one, other, unit)

    def _compared(self, index: int, one: Tensor, other: Tensor, unit: float) -> Iterator[Judged]:
        mode, dtype = self._section.mode, dtype_of(one)
        change = change_of_arrays(index, dtype, one.asnumpy(), other.asnumpy())
        if mode is Perturbation.RERUN:
            yield judged_rerun(change)
        elif not is_float(one):
            return
        elif mode is Perturbation.HIGH_PRECISION:
            yield judged_reference(change, None, mode)
        else:
            size = unit
            if mode is Perturbation.RELATIVE_NOISE:
                size = (2 * unit) ** RELATIVE_SHARE * 0.5**0.5
            yield judged_change(change, input_change=size, unit=max(unit, epsilon_of(dtype) / 2))

    def _change(self, found: Sequence[tuple[Any, Any]]) -> Callable[[Tensor], Tensor]:
        """Return what changes one input."""
        mode = self._section.mode
        has_others = any(is_float(one) and not isinstance(one, Parameter) for one, _ in found)

        def changed(tensor: Tensor) -> Tensor:
            if mode is Perturbation.RERUN or not is_float(tensor):
                return tensor
            if mode is Perturbation.HIGH_PRECISION:
                is_half = dtype_of(tensor) in _HALVES
                return tensor.astype(mstype.float32) if is_half else tensor
            if isinstance(tensor, Parameter) and has_others:
                return tensor
            values = tensor.asnumpy()
            if mode is Perturbation.ULP_NOISE:
                return Tensor(one_ulp_smaller(values))
            return Tensor(relatively_smaller(values, dtype_of(tensor)))

        return changed


def dtype_of(tensor: Tensor) -> str:
    """Return the normal name of a tensor's type, such as ``float32``."""
    return normal_dtype(str(tensor.dtype))


def is_float(tensor: Tensor) -> bool:
    """Return whether a tensor has floating-point elements that can be perturbed."""
    name = dtype_of(tensor)
    return kind_of(name) is Kind.FLOAT and name in (*_HALVES, "float32", "float64")


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return nested arguments with their tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value
