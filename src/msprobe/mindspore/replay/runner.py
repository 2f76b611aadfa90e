# SPDX-License-Identifier: Apache-2.0
"""`RUNNER`: runs recorded calls of MindSpore again, in any precision, with their backward passes.

MindSpore has no place from which each kernel inside of a function is seen. So the condition of a
call is measured with random errors on its inputs and on the gradients that arrive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from mindspore.ops import GradOperation
from numpy.typing import NDArray

import mindspore
from mindspore import Tensor
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.errors import UsageError
from msprobe.mindspore.replay.functions import function_of, writes_arguments
from msprobe.mindspore.replay.tensors import (
    MAKERS,
    from_mindspore,
    to_mindspore,
    type_named,
)
from msprobe.numerics.number_types import Kind, kind_of
from msprobe.operators.operator import Family
from msprobe.replay.arguments import Rebuilder, converted, readings, result_at
from msprobe.replay.forms import tensor_forms
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import (
    REFERENCE,
    CannotReplayError,
    Noise,
    Reason,
    Replay,
    Setting,
)
from msprobe.replay.tensors import CallTensors

# Types to compute in when there is no kernel for the first.
_FALLBACKS: Final = ("float32", None)
_COMPLEX: Final = {"float64": "complex128", "float32": "complex64"}
# Kernels of a CPU and the compiler behind them raise errors of many classes.
_CALL_ERRORS: Final = (Exception,)
_ACCELERATOR: Final = "Ascend"
# MindSpore's kernels for the CPU have an exponential that is off by up to 72 roundoffs, a softmax
# by 93 (2.10, 20,000 normal numbers); tanh and other gates are made of it.
_CPU_UNITS: Final = dict.fromkeys(
    (Family.EXPONENTIAL, Family.LOGARITHMIC, Family.LIPSCHITZ), 2.0**-16
)
_GRADIENTS: Final = GradOperation(get_all=True, sens_param=True)

Gradients = Mapping[str, Mapping[PartPath, Tensor]]


class MindSporeRunner:
    """Runs calls of MindSpore."""

    # With tensors the documented check judges the recorded results.
    reruns = False

    def device(self, word: str, *, jit_compile: bool = False) -> str:
        """Choose the device of this process, and return its name.

        Args:
            word: ``cpu``, ``npu:1``; a number for one of the accelerator's; empty for the best.
            jit_compile: whether operators may be compiled.

        Raises:
            UsageError: there is no such device.
        """
        target, number = _device(word)
        present = mindspore.get_context("device_target"), mindspore.get_context("device_id")
        try:
            if (target, number) != present:  # a process that has computed keeps its device
                mindspore.set_device(target, number)
            Tensor(np.zeros(1, np.float32)).asnumpy()
        except _CALL_ERRORS as exc:
            problem = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
            raise UsageError(f"device {word or target!r} cannot be used: {problem}") from exc
        if target == _ACCELERATOR:
            mindspore.set_context(jit_config={"jit_level": "O1" if jit_compile else "O0"})
        return "cpu" if target == "CPU" else f"npu:{number}"

    def prepare(self, call: RecordedCall, tensors: CallTensors) -> MindSporeCall:
        """Find the function of a call and rebuild its arguments.

        Raises:
            CannotReplayError: it cannot be run again.
            DumpFormatError: a tensor file is damaged.
        """
        function = function_of(call)
        rebuilder = Rebuilder(tensors, to_mindspore, MAKERS)
        args = [rebuilder.value(tree, ("input", i)) for i, tree in enumerate(call.args)]
        kwargs = {key: rebuilder.value(tree, (key,)) for key, tree in call.kwargs.items()}
        gradients = {
            one.name: {
                place: rebuilder.value(form, ("gradient", one.name, *place))
                for place, form in tensor_forms(one.incoming, ())
            }
            for one in call.passes
        }
        return MindSporeCall(call, function, args, kwargs, gradients)

    def float32_units(self, device: str) -> Mapping[Family, float]:
        """Return the unit roundoff of float32 on a device, of families where it is coarser."""
        return _CPU_UNITS if device == "cpu" else {}

    def share_cores(self, processes: int) -> None:
        """Use only this process's share of the cores, as one of so many."""
        if processes > 1:
            threads = max(1, (os.cpu_count() or 1) // processes)
            mindspore.set_context(runtime_num_threads=threads)


def _device(word: str) -> tuple[str, int]:
    kind, _, number = word.partition(":")
    if kind.isdigit():
        kind, number = "", kind
    if not kind:
        best = str(mindspore.get_context("device_target"))
        return best, int(number or 0) if best != "CPU" else 0
    if kind in ("npu", _ACCELERATOR):
        return _ACCELERATOR, int(number or 0)
    return kind.upper(), int(number or 0)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The place of a tensor among those that gradients are taken of."""

    index: int


class MindSporeCall:
    """A call whose function was found and whose arguments were rebuilt.

    Attributes:
        args: positional arguments, in the recorded types.
        kwargs: keyword arguments.
        gradients: by backward record, the gradients of the results by place.
        draws_again: whether it draws the random numbers that it drew when it was recorded.
    """

    draws_again = False

    def __init__(
        self,
        call: RecordedCall,
        function: Callable[..., Any],
        args: list[Any],
        kwargs: dict[str, Any],
        gradients: Gradients,
    ) -> None:
        self._call = call
        self._function = function
        self._fallback: dict[str | None, str | None] = {}
        self.gradients = gradients
        self.args: Sequence[Any] = args
        self.kwargs: Mapping[str, Any] = kwargs

    def squares(self) -> Replay | None:
        """Return the sums of the squares of the terms, for products of matrices and convolutions.

        They are linear in each of their tensors, and so are their gradients: see
        ``pytorch/replay/squares.py``. None for other functions, and with a factor among arguments.
        """
        numbers = [*self.args, *self.kwargs.values()]
        if not self._call.operator.family.sums_products or any(
            isinstance(one, float) for one in numbers
        ):
            return None
        try:
            run = _Run(self._call, self._function, REFERENCE, squared=True)
            return run.run(self.args, self.kwargs, self.gradients)
        except CannotReplayError:
            return None

    def run(self, setting: Setting = REFERENCE, *, backward: bool = True) -> Replay:
        """Run the call once, and its backward passes.

        Raises:
            CannotReplayError: the function raised an error, or returned something else.
        """
        wanted = self._fallback.get(setting.dtype, setting.dtype)
        error: CannotReplayError | None = None
        for dtype in dict.fromkeys((wanted, *(_FALLBACKS if wanted else ()))):
            for args in readings(self._call, self.args):
                gradients = self.gradients if backward else {}
                one = _Run(self._call, self._function, replace(setting, dtype=dtype))
                try:
                    replay = one.run(args, self.kwargs, gradients)
                except CannotReplayError as exc:
                    error = error or exc
                    continue
                if self._call.has_shapes_of(replay.outputs):
                    self.args = args
                    self._fallback[setting.dtype] = dtype
                    return replay
                error = CannotReplayError(Reason.STRUCTURE, "results of other shapes")
        assert error is not None
        raise error


class _Run:
    """One run of one function."""

    def __init__(
        self,
        call: RecordedCall,
        function: Callable[..., Any],
        setting: Setting,
        *,
        squared: bool = False,
    ) -> None:
        self._call = call
        self._squared = squared
        self._function = function
        self._dtype = setting.dtype
        self._noise = setting.noise
        seed = 0 if setting.noise is None else setting.noise.seed
        self._random = np.random.default_rng(seed)
        self._in_place = False
        self._leaves: list[Tensor] = []
        self._places: dict[PartPath, int] = {}
        self._made: dict[str, Any] = {}

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], gradients: Gradients) -> Replay:
        """Run forward, then each backward pass."""
        self._in_place = writes_arguments(self._call.api, self._function, args, kwargs)
        own_args = converted(list(args), self._argument, ("output",))
        own_kwargs = converted(dict(kwargs), self._argument, ("output_kwargs",))

        def result_of(*leaves: Tensor) -> Any:
            def given(value: Any, _: PartPath) -> Any:
                if not isinstance(value, _Leaf):
                    return value
                leaf = leaves[value.index]
                # An in-place function must not write into a leaf.
                return leaf.copy() if self._in_place else leaf

            again, named = converted(own_args, given), converted(own_kwargs, given)
            result = self._function(*again, **named)
            return again[0] if result is None and again else result

        try:
            result = result_of(*self._leaves)
            outputs = {
                ("output", *place): _stored(result_at(_as_recorded(result), place))
                for place, _ in tensor_forms(self._call.outputs, ())
            }
        except _CALL_ERRORS as exc:
            raise _failed(exc) from exc
        found: dict[str, Mapping[PartPath, StoredTensor]] = {}
        error = None
        for one in self._call.passes if gradients and self._leaves else ():
            try:
                found[one.name] = self._backward(result_of, outputs, gradients[one.name])
            except _CALL_ERRORS as exc:
                error = _line(exc)
        return Replay(
            outputs={place: one for place, one in outputs.items() if one is not None},
            gradients=found,
            by=f"MindSpore's {self._dtype}" if self._dtype else "the recorded types",
            backward_error=error,
        )

    def _backward(
        self,
        result_of: Callable[..., Any],
        outputs: Mapping[PartPath, StoredTensor | None],
        incoming: Mapping[PartPath, Tensor],
    ) -> dict[PartPath, StoredTensor]:
        """Return the gradients of the arguments."""
        types = {
            place: stored.dtype
            for place in incoming
            if (stored := outputs.get(("output", *place))) is not None
            and kind_of(stored.dtype) in (Kind.FLOAT, Kind.COMPLEX)
        }
        if not types:
            raise CannotReplayError(Reason.FAILED, "no result depends on the arguments")
        arrived = [self._as_type(incoming[place], dtype) for place, dtype in types.items()]

        def roots(*leaves: Tensor) -> Any:
            result = _as_recorded(result_of(*leaves))
            found = tuple(result_at(result, place) for place in types)
            return found if len(found) > 1 else found[0]

        sens = tuple(arrived) if len(arrived) > 1 else arrived[0]
        found = _GRADIENTS(roots)(*self._leaves, sens)
        by_leaf = [from_mindspore(gradient) for gradient in found]
        return {place: by_leaf[index] for place, index in self._places.items()}

    def _argument(self, value: Any, place: PartPath) -> Any:
        """Return an argument for this run; a leaf by its number."""
        if isinstance(value, mindspore.Type):
            return type_named(self._raised(normal_dtype(str(value))))
        if not isinstance(value, Tensor):
            return value
        made = self._made.get(self._call.first_place(place))
        if made is None:
            made = self._made[".".join(map(str, place))] = self._tensor(value, place)
        if isinstance(made, _Leaf):
            self._places[place] = made.index
        return made

    def _tensor(self, tensor: Tensor, place: PartPath) -> Any:
        dtype = normal_dtype(str(tensor.dtype))
        own = self._as_type(tensor, self._raised(dtype))
        is_float = kind_of(dtype) in (Kind.FLOAT, Kind.COMPLEX)
        if place not in self._call.wanted_gradients or not is_float:
            return own
        self._leaves.append(own)
        return _Leaf(len(self._leaves) - 1)

    def _as_type(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return a copy in a type, with the random errors of this run; or its squares."""
        values = from_mindspore(tensor).values()
        if self._squared and values.dtype.kind == "f":
            # Twice, as both factors of a term are rounded: the root of two in each.
            values = np.square(values, dtype=np.float64) * 2.0**0.5
        if self._noise is not None and values.dtype.kind in "fc":
            values = _disturbed(values, self._noise, self._random)
        return Tensor(np.array(values), type_named(dtype))

    def _raised(self, dtype: str) -> str:
        kind = kind_of(dtype)
        if self._dtype is None or kind not in (Kind.FLOAT, Kind.COMPLEX):
            return dtype
        return self._dtype if kind is Kind.FLOAT else _COMPLEX.get(self._dtype, dtype)


def _disturbed(values: NDArray[Any], noise: Noise, random: np.random.Generator) -> NDArray[Any]:
    """Return numbers in float64 with relative errors of the size of a unit roundoff."""
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    signs = random.integers(0, 2, wide.shape) * 2.0 - 1.0
    changed: NDArray[Any] = wide * (1.0 + noise.unit * signs)
    if noise.smallest and changed.dtype.kind == "f":
        changed = np.where(wide == 0, wide, changed + signs * (noise.smallest / 2))
    return changed


def _as_recorded(result: Any) -> Any:
    """Return a list of results as the tuple that records have of it."""
    return tuple(result) if isinstance(result, list) else result


def _stored(value: Any) -> StoredTensor | None:
    if isinstance(value, Tensor):
        return from_mindspore(value)
    if isinstance(value, (bool, int)):
        dtype = "bool" if isinstance(value, bool) else "int64"
        return StoredTensor(array=np.asarray(value), dtype=dtype)
    return None


def _failed(exc: Exception) -> CannotReplayError:
    if isinstance(exc, CannotReplayError):
        return exc
    is_memory = isinstance(exc, MemoryError)
    return CannotReplayError(Reason.OUT_OF_MEMORY if is_memory else Reason.FAILED, _line(exc))


def _line(exc: Exception) -> str:
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text.splitlines()[0][:200] if text else ''}"


RUNNER: Final = MindSporeRunner()
