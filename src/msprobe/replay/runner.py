# SPDX-License-Identifier: Apache-2.0
"""`Runner`: runs recorded calls again. Each framework's adapter has one; nothing else runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from typing import Any, Final, Protocol

from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.errors import UnsupportedError
from msprobe.operators.operator import Family
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.tensors import CallTensors

# Where each framework's `RUNNER` is, and one that makes references in another framework.
_RUNNERS: Final = {
    "pytorch": ("msprobe.pytorch.replay.runner",),
    "mindspore": ("msprobe.mindspore.replay.runner", "msprobe.pytorch.replay.mindspore_calls"),
}


class Reason(StrEnum):
    """Why a call cannot be run again, or not be judged."""

    COMMUNICATION = "communication between ranks"
    RANDOM = "random numbers that were not recorded"
    UNKNOWN = "function not found"
    ARGUMENT = "an argument that a record cannot hold"
    MEMORY = "memory that was not recorded"
    MISSING = "a tensor's values are missing"
    MODULE = "a module that cannot be made again: its calls are judged at L1 and mix"
    NO_OUTPUT = "no numbers in its results"
    FAILED = "the replay raised an error"
    NO_REFERENCE = "an option that the reference does not know"
    CRASHED = "the replay ended its process"
    TIMEOUT = "the replay took too long"
    OUT_OF_MEMORY = "the replay needed too much memory"
    STRUCTURE = "results of another form than the recorded ones"
    AMBIGUOUS = "results that are not unique"
    DAMAGED = "a damaged record"


class CannotReplayError(Exception):
    """A call cannot be run again.

    Attributes:
        reason: why, as one of a few.
        detail: the same in words: which argument, which function.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}" if detail else str(reason))


@dataclass(frozen=True, slots=True)
class Noise:
    """Random relative errors, put on each input and each result inside of a call.

    Attributes:
        unit: the size of the errors: unit roundoff of a number type.
        seed: of their signs.
        largest: numbers beyond it become infinite, as they do in that type.
        smallest: distance of the type's numbers from each other around zero.
    """

    unit: float
    seed: int
    largest: float = math.inf
    smallest: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a call is run.

    Attributes:
        device: ``cpu``, ``cuda:0`` …
        dtype: type of all floating-point tensors (complex ones have parts of it); None for the
            recorded types.
        noise: None to run it as it is.
        seed: of the random numbers that the function draws.
        judged: whether the results are those in question, rather than a reference.
    """

    device: str = "cpu"
    dtype: str | None = "float64"
    noise: Noise | None = None
    seed: int = 1234
    judged: bool = False


REFERENCE: Final = Setting()
"""In float64 on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of a call that was run again.

    Attributes:
        outputs: results by their place in the record, such as ``("output", 0)``.
        gradients: per backward record gradients by their place, such as ``("output_kwargs", "x")``.
        by: the type or the reference function that computed them.
        backward_error: why there are no gradients where the call has backward records.
    """

    outputs: Mapping[PartPath, StoredTensor]
    gradients: Mapping[str, Mapping[PartPath, StoredTensor]] = field(default_factory=dict)
    by: str = "float64"
    backward_error: str | None = None


class PreparedCall(Protocol):
    """A call whose function was found and whose arguments were rebuilt.

    Attributes:
        args: positional arguments, in the framework's types.
        kwargs: keyword arguments.
        draws_again: whether it draws the random numbers that it drew when it was recorded.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    draws_again: bool

    def run(self, setting: Setting = REFERENCE, *, backward: bool = True) -> Replay:
        """Run the call once, and its backward passes.

        Raises:
            CannotReplayError: the function raised an error, or returned something else.
        """
        ...

    def squares(self) -> Replay | None:
        """Return the sums of the squares of the terms of each result, and those of gradients.

        None for functions of which they are not known.
        """
        ...


class Runner(Protocol):
    """Runs calls in one framework.

    Attributes:
        reruns: whether calls can be run on a device in their own framework; else only their
            references are made.
    """

    reruns: bool

    def device(self, word: str, *, jit_compile: bool = False) -> str:
        """Return the device that a word names: ``cpu``, ``cuda:1``, a number; empty for the best.

        Args:
            word: the user's.
            jit_compile: whether an NPU may compile operators.

        Raises:
            UsageError: there is no such device.
        """
        ...

    def prepare(self, call: RecordedCall, tensors: CallTensors) -> PreparedCall:
        """Find the function of a call and rebuild its arguments.

        Raises:
            CannotReplayError: it cannot be run again.
            DumpFormatError: a tensor file is damaged.
        """
        ...

    def float32_units(self, device: str) -> Mapping[Family, float]:
        """Return the unit roundoff of float32 on a device, of families where it is coarser."""
        ...

    def share_cores(self, processes: int) -> None:
        """Use only this process's share of the cores, as one of so many."""
        ...


def runner_for(framework: str) -> Runner:
    """Return the runner of a framework, which is imported for it.

    MindSpore's calls run in MindSpore, their references in PyTorch; where one of the two is not
    installed, in the other.

    Raises:
        UnsupportedError: there is none, or no framework that it needs is installed.
    """
    modules = _RUNNERS.get(framework)
    if modules is None:
        raise UnsupportedError(f"calls of {framework or 'an unknown framework'} cannot be replayed")
    found: list[Runner] = []
    problems = []
    for module in modules:
        try:
            found.append(import_module(module).RUNNER)
        except ImportError as exc:
            problems.append(str(exc))
    if not found:
        problem = "; ".join(problems)
        raise UnsupportedError(f"replaying {framework} needs the framework: {problem}")
    return found[0] if len(found) == 1 else _WithReferences(*found)


def reference_runner(framework: str) -> Runner | None:
    """Return what makes references of a framework's calls in another one; None without it."""
    try:
        found: Runner = import_module(_RUNNERS[framework][-1]).RUNNER
    except ImportError:
        return None
    return found


class _WithReferences:
    """Runs calls in their own framework, and their references in another one that knows them."""

    def __init__(self, own: Runner, other: Runner) -> None:
        self._own = own
        self._other = other
        self.reruns = own.reruns

    def device(self, word: str, *, jit_compile: bool = False) -> str:
        return self._own.device(word, jit_compile=jit_compile)

    def float32_units(self, device: str) -> Mapping[Family, float]:
        return self._own.float32_units(device)

    def share_cores(self, processes: int) -> None:
        self._own.share_cores(processes)
        self._other.share_cores(processes)

    def prepare(self, call: RecordedCall, tensors: CallTensors) -> PreparedCall:
        try:
            reference = self._other.prepare(call, tensors)
        except CannotReplayError:
            return self._own.prepare(call, tensors)
        return _Referred(reference, lambda: self._own.prepare(call, tensors))


class _Referred:
    """A call whose references are made in another framework."""

    def __init__(self, reference: PreparedCall, prepare: Callable[[], PreparedCall]) -> None:
        self._reference: PreparedCall | None = reference
        self._prepare = prepare
        self.args: Sequence[Any] = reference.args
        self.kwargs: Mapping[str, Any] = reference.kwargs
        self.draws_again = reference.draws_again

    @cached_property
    def _own(self) -> PreparedCall:
        return self._prepare()

    def run(self, setting: Setting = REFERENCE, *, backward: bool = True) -> Replay:
        if not setting.judged and self._reference is not None:
            try:
                return self._reference.run(setting, backward=backward)
            except CannotReplayError:
                self._reference = None  # a namesake that takes other arguments
        return self._own.run(setting, backward=backward)

    def squares(self) -> Replay | None:
        return None if self._reference is None else self._reference.squares()
