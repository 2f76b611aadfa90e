# SPDX-License-Identifier: Apache-2.0
"""`RUNNER`: runs recorded calls of PyTorch again, in any precision, with their backward passes."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.operators.lookup import is_in_place
from msprobe.operators.operator import Family
from msprobe.pytorch.replay.devices import find_device
from msprobe.pytorch.replay.functions import functions_named
from msprobe.pytorch.replay.modules import ModuleFunction
from msprobe.pytorch.replay.noise import NoiseMode
from msprobe.pytorch.replay.rebuilding import from_torch, to_torch
from msprobe.pytorch.replay.squares import Squares, squares_of
from msprobe.pytorch.values.describing import MAKERS
from msprobe.replay import references
from msprobe.replay.arguments import Rebuilder, converted, readings, result_at
from msprobe.replay.forms import tensor_forms
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.reduced_precision import float32_units
from msprobe.replay.runner import (
    REFERENCE,
    CannotReplayError,
    Reason,
    Replay,
    Setting,
)
from msprobe.replay.tensors import CallTensors

_DEVICE: Final = re.compile(r"(cpu|cuda|npu|xpu|mps|hpu|mlu|meta)(:\d+)?")
_TENSOR_TYPE: Final = re.compile(r"torch\.(?:cuda|npu|xpu|mps|hpu|mlu)\.(\w+Tensor)")
# Types to compute in when the CPU has no kernel for the first.
_FALLBACKS: Final = ("float32", None)
_COMPLEX: Final = {torch.float64: torch.complex128, torch.float32: torch.complex64}
# Errors of functions: those of PyTorch, of Python's arithmetic, of a reference's own code.
_CALL_ERRORS: Final = (Exception,)
# Text of the `RuntimeError` by which PyTorch's allocator of the CPU says that there is none left.
_NO_MEMORY: Final = "DefaultCPUAllocator"
# For sums of squares, whose size alone matters.
_SQUARES: Final = Setting(dtype="float32")
Function = Callable[..., Any]


class TorchRunner:
    """Runs calls of PyTorch."""

    reruns = True

    def device(self, word: str, *, jit_compile: bool = False) -> str:
        """Return the device that a word names; see `find_device`.

        Raises:
            UsageError: there is no such device.
        """
        return find_device(word, jit_compile=jit_compile)

    def prepare(self, call: RecordedCall, tensors: CallTensors) -> TorchCall:
        """Find the function of a call and rebuild its arguments.

        Raises:
            CannotReplayError: it cannot be run again.
            DumpFormatError: a tensor file is damaged.
        """
        functions = _functions(call)
        rebuilder = Rebuilder(tensors, to_torch, MAKERS)
        args = [rebuilder.value(tree, ("input", i)) for i, tree in enumerate(call.args)]
        # The reference of a module takes its own parameters by name.
        is_made = isinstance(functions[0], ModuleFunction)
        parameters = {k: v for k, v in call.parameters.items() if is_made or "." not in k}
        named = {**call.kwargs, **parameters}
        kwargs = {key: rebuilder.value(tree, (key,)) for key, tree in named.items()}
        gradients = {
            one.name: {
                place: rebuilder.value(form, ("gradient", one.name, *place))
                for place, form in tensor_forms(one.incoming, ())
            }
            for one in call.passes
        }
        prepared = TorchCall(call, functions, args, kwargs, gradients, _random_state(call, tensors))
        if len(functions) > 1:
            prepared.choose(_recorded_outputs(call, tensors))
        return prepared

    def float32_units(self, device: str) -> Mapping[Family, float]:
        """Return the unit roundoff of float32 on a device, of families where it is coarser."""
        return float32_units(
            on_accelerator=device.startswith(("cuda", "npu")),
            matmul_precision=torch.get_float32_matmul_precision(),
            cudnn_tf32=torch.backends.cudnn.allow_tf32,
        )

    def share_cores(self, processes: int) -> None:
        """Use only this process's share of the cores, as one of so many."""
        if processes > 1:
            torch.set_num_threads(max(1, torch.get_num_threads() // processes))


class TorchCall:
    """A call whose function was found and whose arguments were rebuilt.

    Attributes:
        args: positional arguments, in the recorded types.
        kwargs: keyword arguments.
        gradients: by backward record, the gradients of the results by place.
        draws_again: whether it draws the random numbers that it drew when it was recorded.
    """

    def __init__(
        self,
        call: RecordedCall,
        functions: Sequence[Function],
        args: list[Any],
        kwargs: dict[str, Any],
        gradients: Mapping[str, Mapping[PartPath, torch.Tensor]],
        random_state: torch.Tensor | None = None,
    ) -> None:
        self._call = call
        self._functions = list(functions)
        self._own: list[Function] = []
        self.gradients = gradients
        self._random_state = random_state
        self.draws_again = random_state is not None
        self._fallback: dict[tuple[str | None, bool], str | None] = {}
        self.args: Sequence[Any] = args
        self.kwargs: Mapping[str, Any] = kwargs

    def choose(self, recorded: Mapping[PartPath, StoredTensor]) -> None:
        """Keep the function of this name whose results are nearest to the recorded ones."""
        distances: list[tuple[float, int, Function]] = []
        functions = self._functions
        for function in functions:
            self._functions = [function]
            try:
                replay = self.run(REFERENCE, backward=False)
            except CannotReplayError:
                continue
            distances.append((_distance(replay, recorded), len(distances), function))
        self._functions = [min(distances)[2]] if distances else functions
        self._fallback.clear()

    @property
    def function(self) -> Function:
        """The function that runs; after the first run the one that took the arguments."""
        return self._functions[0]

    @property
    def own_function(self) -> Function:
        """The operator itself, where `function` is its reference."""
        return self._functions_for(replace(REFERENCE, judged=True))[0]

    def run(self, setting: Setting = REFERENCE, *, backward: bool = True) -> Replay:
        """Run the call once, and its backward passes.

        Raises:
            CannotReplayError: the function raised an error, or returned something else.
        """
        key = (setting.dtype, setting.judged)
        if key in self._fallback:
            setting = _with_dtype(setting, self._fallback[key])
        error: CannotReplayError | None = None
        for dtype in dict.fromkeys((setting.dtype, *(_FALLBACKS if setting.dtype else ()))):
            try:
                replay = self._run_candidates(_with_dtype(setting, dtype), backward)
            except CannotReplayError as exc:
                if exc.reason is Reason.OUT_OF_MEMORY:
                    raise  # a narrower type is for kernels that are missing
                error = error or exc
                continue
            self._fallback[key] = dtype
            return replay
        assert error is not None
        raise error

    def squares(self) -> Replay | None:
        """Run the call once for the sums of the squares of its terms, and those of its gradients.

        Squares count as often as a term is rounded. None for functions of which they are not known.
        """
        squares = squares_of(self._call, self.function)
        if squares is None:
            return None
        try:
            return _Run(self._call, squares.function, _SQUARES, squares=squares).run(
                self.args, self.kwargs, self.gradients if squares.has_gradients else {}
            )
        except CannotReplayError:
            return None  # probes measure the same

    def _run_candidates(self, setting: Setting, backward: bool) -> Replay:
        """Run the first function that takes the arguments; keep to it from then on."""
        error: CannotReplayError | None = None
        functions = self._functions_for(setting)
        for function in functions:
            for args in readings(self._call, self.args):
                try:
                    replay = _Run(self._call, function, setting, self._random_state).run(
                        args, self.kwargs, self.gradients if backward else {}
                    )
                except CannotReplayError as exc:
                    error = error or exc
                    continue
                if not self._call.has_shapes_of(replay.outputs):
                    error = CannotReplayError(Reason.STRUCTURE, "results of other shapes")
                    continue
                functions[:], self.args = [function], args
                return replay
        assert error is not None
        raise error

    def _functions_for(self, setting: Setting) -> list[Function]:
        """Return the candidates: for results in question the operator, not its reference."""
        if not setting.judged or _golden(self._call) is None:
            return self._functions
        self._own = self._own or list(_own_functions(self._call))
        return self._own


class _Run:
    """One run of one function."""

    def __init__(
        self,
        call: RecordedCall,
        function: Function,
        setting: Setting,
        random_state: torch.Tensor | None = None,
        squares: Squares | None = None,
    ) -> None:
        self._call = call
        self._function = function
        self._setting = setting
        self._has_squares = squares is not None and squares.of_inputs
        self._roundings = 1 if squares is None else squares.roundings
        self._random_state = random_state
        self._dtype = None if setting.dtype is None else getattr(torch, setting.dtype)
        self._noise = None if setting.noise is None else NoiseMode(setting.noise)
        self._in_place = is_in_place(call.api) or bool(
            (call.kwargs.get("inplace") or {}).get("value")
            or (call.module and call.module.changes_inputs)
        )
        self._wanted = call.wanted_gradients
        self._leaves: dict[PartPath, torch.Tensor] = {}
        self._made: dict[str, torch.Tensor] = {}

    def run(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        gradients: Mapping[str, Mapping[PartPath, torch.Tensor]],
    ) -> Replay:
        """Run forward, then each backward pass."""
        has_backward = bool(gradients) and bool(self._wanted)
        own_args = converted(list(args), self._argument, ("input",))
        own_kwargs = converted(dict(kwargs), self._argument, ("kwargs",))
        with _running(self._setting), self._noise or nullcontext():
            try:
                with torch.set_grad_enabled(has_backward):
                    result = self._result(own_args, own_kwargs)
            except _CALL_ERRORS as exc:
                raise _failed(exc) from exc
            if result is None and own_args:
                result = own_args[0]
            if isinstance(result, list) and self._returned_a_tuple():
                result = tuple(result)
            outputs = {
                ("output", *place): _stored(self._weighed(result_at(result, place)))
                for place, _ in tensor_forms(self._call.outputs, ())
            }
            found: dict[str, Mapping[PartPath, StoredTensor]] = {}
            error = None
            if has_backward:
                try:
                    for one in self._call.passes:
                        found[one.name] = self._backward(result, gradients[one.name])
                except (CannotReplayError, *_CALL_ERRORS) as exc:
                    if _failed(exc).reason is Reason.OUT_OF_MEMORY:
                        raise _failed(exc) from exc
                    error = _line(exc)
        by = self._setting.dtype or "the recorded types"
        return Replay(
            outputs={place: one for place, one in outputs.items() if one is not None},
            gradients=found,
            by=by,
            backward_error=error,
        )

    def _result(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the function returns; under autocast if that alone gives the recorded type.

        Records do not tell whether autocast was on, but the types do: those of its results are not
        those of its arguments.
        """
        self._seed()
        autocast = None if self._dtype or self._in_place else _autocast_type(self._call)
        if autocast is None:
            return self._function(*args, **kwargs)
        with suppress(*_CALL_ERRORS):  # of two types, which only autocast brings together
            result = self._function(*args, **kwargs)
            if _has_recorded_type(self._call, result):
                return result
        self._seed()
        with torch.autocast(torch.device(self._setting.device).type, autocast):
            return self._function(*args, **kwargs)

    def _returned_a_tuple(self) -> bool:
        """Return whether the record has a tuple: functions return lists that they were given."""
        forms = self._call.outputs
        return isinstance(forms, list) and bool(forms) and not isinstance(forms[0], list)

    def _seed(self) -> None:
        # `torch.manual_seed` notes a stack for each kind of accelerator: a third of a tiny call.
        on_cpu = self._setting.device == "cpu"
        (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(self._setting.seed)
        if self._random_state is not None:
            torch.set_rng_state(self._random_state)

    def _backward(
        self, result: Any, incoming: Mapping[PartPath, torch.Tensor]
    ) -> dict[PartPath, StoredTensor]:
        """Return the gradients of the arguments."""
        roots, grads = [], []
        for place, gradient in incoming.items():
            output = result_at(result, place)
            if isinstance(output, torch.Tensor) and output.requires_grad:
                roots.append(output)
                grads.append(self._gradient(gradient, output))
        leaves = list(dict.fromkeys(self._leaves.values()))
        if not roots or not leaves:
            raise CannotReplayError(Reason.FAILED, "no result depends on the arguments")
        end = _Arriving.apply(grads, *roots)  # type: ignore[no-untyped-call]  # not annotated
        found = torch.autograd.grad(end, leaves, retain_graph=True, allow_unused=True)
        by_leaf = dict(zip(map(id, leaves), found, strict=True))
        return {
            place: from_torch(self._weighed(gradient))
            for place, leaf in self._leaves.items()
            if (gradient := by_leaf[id(leaf)]) is not None
        }

    def _weighed(self, value: Any) -> Any:
        """Return a part of the result; a sum of squares as often as its terms are rounded."""
        is_tensor = isinstance(value, torch.Tensor)
        return value * self._roundings if is_tensor and self._roundings > 1 else value

    def _gradient(self, gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        own = gradient.to(device=output.device, dtype=output.dtype).reshape(output.shape)
        own = own.square() if self._has_squares else own
        return own if self._noise is None else self._noise.disturbed(own)

    def _argument(self, value: Any, place: PartPath) -> Any:
        """Return an argument for this run."""
        if isinstance(value, torch.Tensor):
            own = self._gradient_place(place)
            # Equal values without a word are separate for gradients: x and x.detach().
            first = self._made.get(self._call.first_place(own))
            if first is not None:
                return first
            made = self._made[".".join(map(str, own))] = self._tensor(value, own)
            return made
        if isinstance(value, torch.dtype):
            return self._raised(value)
        if isinstance(value, torch.device) or (isinstance(value, str) and _DEVICE.fullmatch(value)):
            return torch.device(self._setting.device)
        if isinstance(value, str):
            # Names of types of tensors, which `Tensor.type` takes.
            return _TENSOR_TYPE.sub(r"torch.\1", value)
        return value

    def _tensor(self, tensor: torch.Tensor, place: PartPath) -> torch.Tensor:
        """Return an argument; if its gradient is wanted, its leaf is remembered."""
        own = tensor.to(device=self._setting.device, dtype=self._raised(tensor.dtype), copy=True)
        is_float = own.dtype.is_floating_point or own.dtype.is_complex
        if self._noise is not None and is_float:
            own = self._noise.disturbed(own)
        if self._has_squares and is_float:
            own = own.square_()
        if place not in self._wanted or not is_float:
            return own
        leaf = own.requires_grad_()
        self._leaves[place] = leaf
        # An in-place function must not write into a leaf.
        return leaf.clone() if self._in_place else leaf

    def _raised(self, dtype: torch.dtype) -> torch.dtype:
        if self._dtype is None:
            return dtype
        if dtype.is_complex:
            return _COMPLEX.get(self._dtype, dtype)
        found: torch.dtype = self._dtype if dtype.is_floating_point else dtype
        return found

    @staticmethod
    def _gradient_place(place: PartPath) -> PartPath:
        """Return where the gradient of an argument is recorded."""
        first, *rest = place
        return ("output" if first == "input" else "output_kwargs", *rest)


class _Arriving(torch.autograd.Function):
    """The end of a graph from which given gradients go back.

    `torch.autograd.grad` takes them, too, but imports sympy to look at them: half a second.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[torch.Tensor], *roots: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *ctx.gradients)


def _functions(call: RecordedCall) -> Sequence[Function]:
    """Return the reference of a call's operator; without one the functions that may have made it.

    Raises:
        CannotReplayError: there is none, or none that can be run alone.
    """
    golden = _golden(call)
    return _own_functions(call) if golden is None else (golden.for_dtype(_recorded_dtype(call)),)


def _golden(call: RecordedCall) -> references.Golden | None:
    names = (call.function, call.api) if call.class_name is None else (call.class_name,)
    return references.find(names)


def _own_functions(call: RecordedCall) -> Sequence[Function]:
    """Return the functions that may have made a record.

    Raises:
        CannotReplayError: there is none, or none that can be run alone.
    """
    if call.class_name is not None:
        return (ModuleFunction(call),)
    if call.operator.communication is not None or call.prefix == "Distributed":
        raise CannotReplayError(Reason.COMMUNICATION, call.function)
    if call.api.startswith("as_strided"):
        raise CannotReplayError(Reason.MEMORY, "the storage around its input")
    if call.operator.allocates:
        raise CannotReplayError(Reason.NO_OUTPUT, "memory that nothing was written to")
    functions = functions_named(call.prefix, call.api)
    if not functions and call.operator.draws_random and _golden(call) is None:
        raise CannotReplayError(Reason.RANDOM, call.function)
    if not functions and not any(tensor_forms(call.outputs, ())):
        raise CannotReplayError(Reason.NO_OUTPUT, call.function)
    if not functions:
        detail = f"{call.function}; --import names the module that defines it"
        raise CannotReplayError(Reason.UNKNOWN, detail)
    return functions


def _random_state(call: RecordedCall, tensors: CallTensors) -> torch.Tensor | None:
    """Return the state of the CPU's generator before the call; None where it was not recorded."""
    form = call.random.get("cpu")
    if not isinstance(form, dict) or len(call.random) > 1:
        return None
    return to_torch(tensors.read(form, "rng")).clone()


def _autocast_type(call: RecordedCall) -> torch.dtype | None:
    """Return the type that autocast may have computed in; None where types do not speak of it."""
    taken = _float_types([*call.args, *call.kwargs.values(), *call.parameters.values()])
    returned = _float_types(call.outputs)[:1]
    halves = {*taken, *returned} & {torch.float16, torch.bfloat16}
    differ = bool(taken and returned) and {*taken} != {*returned}
    return halves.pop() if differ and len(halves) == 1 else None


def _float_types(tree: JsonTree) -> list[torch.dtype]:
    names = (str(form.get("dtype")).removeprefix("torch.") for _, form in tensor_forms(tree, ()))
    found = (getattr(torch, name, None) for name in names)
    return [one for one in found if isinstance(one, torch.dtype) and one.is_floating_point]


def _has_recorded_type(call: RecordedCall, result: Any) -> bool:
    """Return whether the first floating-point result has the type of the recorded one."""
    (wanted, *_) = _float_types(call.outputs)
    for place, _ in tensor_forms(call.outputs, ()):
        found = result_at(result, place)
        if isinstance(found, torch.Tensor) and found.is_floating_point():
            return found.dtype is wanted
    return False


def _recorded_outputs(call: RecordedCall, tensors: CallTensors) -> dict[PartPath, StoredTensor]:
    return {
        place: tensors.read(form, ".".join(map(str, place)))
        for place, form in tensor_forms(call.outputs, ("output",))
        if tensors.has_values(form)
    }


def _distance(replay: Replay, recorded: Mapping[PartPath, StoredTensor]) -> float:
    """Return how far results are from the recorded ones."""
    total = 0.0
    for place, one in recorded.items():
        found = replay.outputs.get(place)
        if found is None or found.array.shape != one.array.shape:
            return math.inf
        kind = np.complex128 if one.array.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            difference = np.abs(found.values().astype(kind) - one.values().astype(kind))
            total += float(np.nansum(difference))
    return total


def _recorded_dtype(call: RecordedCall) -> torch.dtype:
    """Return the type of the first floating-point argument."""
    found = _float_types([*call.args, *call.kwargs.values()])
    return found[0] if found else torch.get_default_dtype()


@contextmanager
def _running(setting: Setting) -> Iterator[None]:
    """Context in which numbers have the wanted type by default, and nothing is cast behind us."""
    default = torch.get_default_dtype()
    wanted = None if setting.dtype is None else getattr(torch, setting.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if wanted in _COMPLEX:
                torch.set_default_dtype(wanted)
            yield
        finally:
            torch.set_default_dtype(default)


def _stored(value: Any) -> StoredTensor | None:
    if isinstance(value, torch.Tensor):
        return from_torch(value)
    if isinstance(value, (bool, int)):
        return from_torch(torch.tensor(value))
    return None


def _with_dtype(setting: Setting, dtype: str | None) -> Setting:
    return replace(setting, dtype=dtype)


def _failed(exc: BaseException) -> CannotReplayError:
    """Return why a call cannot be replayed whose function raised an error."""
    if isinstance(exc, references.NoReferenceError):
        return CannotReplayError(Reason.NO_REFERENCE, str(exc))
    is_memory = isinstance(exc, (MemoryError, torch.OutOfMemoryError)) or _NO_MEMORY in str(exc)
    return CannotReplayError(Reason.OUT_OF_MEMORY if is_memory else Reason.FAILED, _line(exc))


def _line(exc: BaseException) -> str:
    text = str(exc).strip()
    first = text.splitlines()[0][:200] if text else ""
    return f"{type(exc).__name__}: {first}"


RUNNER: Final = TorchRunner()
