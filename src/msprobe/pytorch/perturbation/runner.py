# SPDX-License-Identifier: Apache-2.0
"""`Perturbation`: the task `free_benchmark`, which runs calls of a training again, changed.

It is the runner of the function mode. The training is bit-identical with `check`: calls run again
after the program's own run, on inputs that are shared or copied, in graphs of their own, and with
the random state restored. `fix` goes on with the better result, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.checks.perturbation import Severity, SkippedError, judged_replacement
from msprobe.checks.perturbation_preheat import Preheating
from msprobe.checks.perturbation_task import PerturbationTask
from msprobe.config import FreeBenchmarkSection, Handler, Stage
from msprobe.config import Perturbation as Mode
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Family
from msprobe.pytorch.apis.api_rules import ApiEntry, WriteEffect
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.perturbation.arguments import RANDOM, CallCopy, Function
from msprobe.pytorch.perturbation.backward import (
    Gradients,
    examine_gradients,
    gradients_of,
    when_gradients_come,
)
from msprobe.pytorch.perturbation.changes import float_changes
from msprobe.pytorch.perturbation.examination import examine
from msprobe.pytorch.perturbation.fixing import better_result, with_better_derivative
from msprobe.pytorch.perturbation.modes import REFERENCES, Trial, golden_of, trial_of, why_left_out

_functorch_active: Final = torch._C._are_functorch_transforms_active
_WHERE: Final = "perturbation"
_UNSURE: Final = (Family.COMPOSITE, Family.OTHER)


class Perturbation:
    """Runs the calls of a training again, and keeps what is found.

    Attributes:
        session: the run.
        task: chooses calls, and keeps what is found.
    """

    def __init__(self, session: Session, section: FreeBenchmarkSection, table: ApiTable) -> None:
        """Create it; no file is touched before the first step.

        Args:
            session: the run.
            section: the settings of the task.
            table: facts about functions.
        """
        self.session = session
        self._section = section
        self._mode = section.mode
        self._table = table
        self._kept_bytes = 0
        self._kept_in: int | None = None
        self.task = PerturbationTask(session, section)
        self._reasons: dict[str, str | None] = {}

    # -- calls ---------------------------------------------------------------------------------

    def __call__(
        self, call: Call, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the function of a call, and run it again if it is wanted."""
        if not call.keeps_inputs:
            return function(*args, **kwargs)
        with_grad = torch.is_grad_enabled()
        copy = quietly(self.session, _WHERE, self._copy, function, args, kwargs, with_grad)
        if copy is not None and self._section.handler is Handler.FIX:
            return self._fixed(call, copy, args, kwargs)
        result = function(*args, **kwargs)
        if copy is not None:
            output = args[0] if result is None and args else result
            quietly(self.session, _WHERE, self._ran, call, copy, output)
        return result

    def leaves_out(self, entry: ApiEntry) -> bool:
        """Return whether no call of an API is run again, which is counted."""
        name = entry.name
        if name not in self._reasons:
            operator = operator_of(entry.prefix, entry.api)
            self._reasons[name] = why_left_out(operator, self._mode)
        reason = self._reasons[name]
        if reason is not None:
            self.task.skip(reason)
        return reason is not None

    def _fixed(
        self, call: Call, copy: CallCopy, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a call, with itself or its derivative in higher precision."""
        mode = self._mode
        if self._section.stage is Stage.BACKWARD:
            if copy.writes or not copy.needs_grad:
                return copy.function(*args, **kwargs)
            take = Fixing(self, call, copy)
            result = with_better_derivative(copy, args, kwargs, take)
            quietly(self.session, _WHERE, copy.note_random)
            return result
        result = copy.function(*args, **kwargs)
        quietly(self.session, _WHERE, copy.note_random)
        try:
            better = better_result(copy, result, args, kwargs, mode)
        except SkippedError as exc:
            self.task.skip(str(exc))
            return result
        quietly(self.session, _WHERE, self._replaced, call, result, better)
        return better

    def _replaced(self, call: Call, result: Any, better: Any) -> None:
        """Note a result that was replaced, and by how much it differs."""
        self.task.report(call, lambda: map(judged_replacement, float_changes(result, better)))
        self.task.results.fixed += 1

    def better_gradients(
        self, call: Call, copy: CallCopy, incoming: Gradients
    ) -> Sequence[Tensor | None]:
        """Return the gradients of a call's inputs in higher precision."""
        args, kwargs = copy.again()
        own = gradients_of(copy, Trial(args, kwargs), incoming)
        if copy.drew_random:
            self.task.skip(RANDOM)
            return own
        try:
            better = gradients_of(copy, trial_of(copy, self._mode), incoming)
        except SkippedError as exc:
            self.task.skip(str(exc))
            return own
        self._replaced(call, list(own), list(better))
        return better

    def _copy(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], with_grad: bool
    ) -> CallCopy | None:
        """Return the call, ready to run again; None where it is left out."""
        entry = self._table.lookup(function)
        if not self.task.is_sampled(entry.name):
            return None
        try:
            copy = self._copied(entry, function, args, kwargs, with_grad)
        except SkippedError as exc:
            self.task.skip(str(exc))
            return None
        self.task.take(entry.name)
        return copy

    def _copied(
        self,
        entry: ApiEntry,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        with_grad: bool,
    ) -> CallCopy:
        operator = operator_of(entry.prefix, entry.api)
        if (reason := why_left_out(operator, self._mode)) is not None:
            raise SkippedError(reason)
        if _functorch_active():
            raise SkippedError("inside a functional transform")
        return CallCopy(
            function,
            operator,
            args,
            kwargs,
            writes=_writes(entry, kwargs),
            # Foreign operators may do anything; a flag in its position may be ``inplace``.
            copies=entry.bans or (bool in map(type, args) and any(one is True for one in args)),
            with_grad=with_grad,
            max_bytes=self._section.max_bytes,
            # What is made of others may call anything.
            draws=entry.draws_random or entry.bans or operator.family in _UNSURE,
            golden=golden_of(entry.prefix, entry.api, self._mode, args, kwargs),
        )

    def _ran(self, call: Call, copy: CallCopy, result: Any) -> None:
        """Examine a call that the program has run, now or in its backward pass."""
        mode = self._mode
        if mode in REFERENCES or copy.operator.draws_random:
            copy.note_random()
        preheating, api = self.task.preheating, call.forward_name.rsplit(".", 2)[0]
        if preheating is not None and preheating.is_on:
            self._learn(preheating, api, copy, result)
        elif preheating is not None:
            self.task.report(call, lambda: examine(copy, result, mode, preheating.expected_of(api)))
        elif self._section.stage is Stage.FORWARD:
            self.task.report(call, lambda: examine(copy, result, mode))
        elif copy.needs_grad:
            self._wait_for_gradients(call, copy, result)

    def _learn(self, preheating: Preheating, api: str, copy: CallCopy, result: Any) -> None:
        """Learn from a call that agrees with its reference."""
        try:
            found = list(examine(copy, result, self._mode))
            copy.note_random()
            held = list(examine(copy, result, Mode.CPU_REFERENCE))
        except SkippedError as exc:
            self.task.skip(str(exc))
            return
        if all(one.severity is Severity.NONE for one in held):
            self.task.results.learned_from += 1
            for one in found:
                preheating.learn(api, one.change.dtype, one.amplification)

    def _wait_for_gradients(self, call: Call, copy: CallCopy, result: Any) -> None:
        if self._kept_in != call.step:  # what an earlier step has left will not be examined
            self._kept_in, self._kept_bytes = call.step, 0
        limit = self._section.max_bytes
        if limit is not None and self._kept_bytes + copy.size_bytes > limit:
            self.task.skip("inputs beyond max_bytes would be kept")
            return
        if when_gradients_come(result, Waiting(self, call, copy)):
            self._kept_bytes += copy.size_bytes

    def take_gradients(self, call: Call, copy: CallCopy, incoming: Gradients) -> None:
        """Examine the backward pass of a call, inside of it."""
        if call.step != self.session.step_number or not self.task.is_open:
            return
        self._kept_bytes -= copy.size_bytes
        self.task.report(call, lambda: examine_gradients(copy, incoming, self._mode))


class Fixing:
    """The derivative of a call in higher precision."""

    def __init__(self, owner: Perturbation, call: Call, copy: CallCopy) -> None:
        """Compute gradients by `owner`."""
        self._owner = owner
        self._call = call
        self._copy = copy

    def __call__(self, incoming: Gradients) -> Sequence[Tensor | None]:
        """Return the gradients of the call's inputs.

        Raises:
            RuntimeError: they cannot be computed: the program has no gradients then.
        """
        owner = self._owner
        work = owner.better_gradients
        found = quietly(owner.session, _WHERE, work, self._call, self._copy, incoming)
        if found is None:
            raise RuntimeError(
                f"msprobe cannot compute the gradients of {self._call.forward_name} again; leave "
                'it out by the "black_list" of free_benchmark'
            )
        return found


class Waiting:
    """Waits for the gradients of a call's results; holds its inputs until then."""

    __slots__ = ("_call", "_copy", "_owner")

    def __init__(self, owner: Perturbation, call: Call, copy: CallCopy) -> None:
        """Hand the gradients to `owner` when they come."""
        self._owner = owner
        self._call = call
        self._copy: CallCopy | None = copy

    def __call__(self, incoming: Gradients) -> None:
        """Take the gradients of the first backward pass."""
        copy, self._copy = self._copy, None
        if copy is not None:
            owner = self._owner
            quietly(owner.session, _WHERE, owner.take_gradients, self._call, copy, incoming)


def _writes(entry: ApiEntry, kwargs: dict[str, Any]) -> bool:
    """Return whether a call writes arguments: by its name, or by what it is told."""
    return (
        entry.writes is not WriteEffect.NONE
        or bool(entry.foreign_writes)
        or kwargs.get("out") is not None
        or bool(kwargs.get("inplace"))
    )
