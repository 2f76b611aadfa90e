# SPDX-License-Identifier: Apache-2.0
"""`LiveCall`: an operator's call that just ran, made ready to be judged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

import torch

from msprobe.dump.record_names import api_names
from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.pytorch.live.operator_facts import OperatorFacts, tensors_of
from msprobe.pytorch.replay.noise import NoiseMode
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay import references
from msprobe.replay.arguments import converted, result_at
from msprobe.replay.forms import tensor_forms
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import REFERENCE, CannotReplayError, Reason, Replay, Setting

_INDEX: Final = "live_index"
# Types to compute in when the device has no kernel for the first.
_FALLBACKS: Final = ("float32", None)
_COMPLEX: Final = {torch.float64: torch.complex128, torch.float32: torch.complex64}


class LiveTensors:
    """The tensors of one call, in place of those that a dump would have."""

    generated = False

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._stored: dict[int, StoredTensor] = {}

    def form(self, tree: Any) -> JsonTree:
        """Return arguments or results in the form of a record; their tensors are kept."""
        return _as_lists(converted(tree, self._form))

    def _form(self, value: Any, _: PartPath) -> Any:
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            return {
                "type": "torch.Tensor",
                "dtype": str(value.dtype),
                "shape": list(value.shape),
                _INDEX: len(self._tensors) - 1,
            }
        if value is None:
            return None
        return {"type": type(value).__name__, "value": value}

    def read(self, tree: Mapping[str, Any], place: str) -> StoredTensor:
        """Return the elements of a tensor, copied from its device once."""
        index = tree[_INDEX]
        if index not in self._stored:
            self._stored[index] = from_torch(self._tensors[index])
        return self._stored[index]

    def tensor(self, tree: Mapping[str, Any]) -> torch.Tensor:
        """Return a tensor itself."""
        index: int = tree[_INDEX]
        return self._tensors[index]

    def all(self) -> Sequence[torch.Tensor]:
        """Return all tensors."""
        return self._tensors

    def has_values(self, tree: Mapping[str, Any]) -> bool:
        """Return whether a form is that of a tensor."""
        return _INDEX in tree


def _as_lists(tree: Any) -> Any:
    """Return a form with lists in place of tuples, as records have them."""
    if isinstance(tree, (list, tuple)):
        return [_as_lists(item) for item in tree]
    if isinstance(tree, dict) and not isinstance(tree.get("type"), str):
        return {key: _as_lists(item) for key, item in tree.items()}
    return tree


class LiveCall:
    """A call with the arguments that it took.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        draws_again: False: the state before it is not kept.
        tensors: those of arguments and results.
        call: the call in the form of a record.
    """

    def __init__(
        self,
        facts: OperatorFacts,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        results: tuple[Any, ...],
        number: int,
    ) -> None:
        """Take a call.

        Args:
            facts: about its operator.
            function: the operator; a reference of its own takes its place.
            args: as they were before the call.
            kwargs: the same.
            results: all of them, by `OperatorFacts.results`.
            number: of the call, among those of the operator.
        """
        self.args: Sequence[Any] = args
        self.kwargs: Mapping[str, Any] = kwargs
        self.draws_again = False
        self.tensors = LiveTensors()
        self._facts = facts
        self._dtypes: dict[str | None, str | None] = {}
        self._known: dict[Setting, tuple[Mapping[PartPath, torch.Tensor], str]] = {}
        self.call = RecordedCall(
            name=api_names(f"{facts.prefix}.{facts.api}", number)[0],
            prefix=facts.prefix,
            api=facts.api,
            class_name=None,
            framework="pytorch",
            args=self.tensors.form(list(args)),
            kwargs=self.tensors.form(dict(kwargs)),
            parameters={},
            outputs=self.tensors.form(list(results)),
            passes=(),
            random={},
        )
        found = references.find((self.call.function, self.call.api))
        self._function = function if found is None else found.for_dtype(_own_dtype(args, kwargs))

    def run(self, setting: Setting = REFERENCE, *, backward: bool = True) -> Replay:
        """Run the call again on copies of its arguments.

        Raises:
            CannotReplayError: the operator raised an error.
        """
        found, by = self.results(setting)
        return Replay(outputs={place: from_torch(one) for place, one in found.items()}, by=by)

    def results(self, setting: Setting) -> tuple[Mapping[PartPath, torch.Tensor], str]:
        """Return the results of a run by place, and the type that it computed in.

        Runs without random errors are remembered.

        Raises:
            CannotReplayError: the operator raised an error.
        """
        if setting in self._known:
            return self._known[setting]
        error: CannotReplayError | None = None
        wanted = self._dtypes.get(setting.dtype, setting.dtype)
        for dtype in dict.fromkeys((wanted, *(_FALLBACKS if wanted else ()))):
            try:
                tensors = self._run(replace(setting, dtype=dtype))
            except CannotReplayError as exc:
                error = error or exc
                continue
            self._dtypes[setting.dtype] = dtype
            found = tensors, dtype or "the recorded types"
            if setting.noise is None:
                self._known[setting] = found
            return found
        assert error is not None
        raise error

    def squares(self) -> Replay | None:
        """Return None: `sizes_of_terms` was asked before."""
        return None

    def sizes_of_terms(self, setting: Setting) -> Mapping[PartPath, torch.Tensor]:
        """Return the root of the sum of the terms' squares, for results that sum up products.

        Empty for calls with factors that are numbers.

        Raises:
            CannotReplayError: the operator raised an error.
        """
        if self.kwargs:
            return {}
        squares = self._run(setting, squares=True)
        return {place: one.sqrt_() for place, one in squares.items()}

    def _run(self, setting: Setting, *, squares: bool = False) -> dict[PartPath, torch.Tensor]:
        noise = None if setting.noise is None else NoiseMode(setting.noise)
        change = _Raised(setting, noise, squares=squares)
        args = converted(list(self.args), change.value)
        kwargs = converted(dict(self.kwargs), change.value)
        try:
            with (
                _numbers(change.dtype, [*self.args, *self.kwargs.values()]),
                noise or nullcontext(),
            ):
                result = self._function(*args, **kwargs)
        except Exception as exc:
            line = (str(exc).splitlines() or [""])[0][:200]
            raise CannotReplayError(Reason.FAILED, f"{type(exc).__name__}: {line}") from exc
        results = self._facts.results(args, kwargs, result)
        found = {}
        for place, form in self.outputs():
            one = result_at(results, place)
            if not isinstance(one, torch.Tensor):
                continue
            if list(one.shape) != form["shape"]:  # kernels leave out what they do not need
                raise CannotReplayError(Reason.STRUCTURE, "results of other shapes")
            found["output", *place] = one.detach()
        return found

    def outputs(self) -> Iterator[tuple[PartPath, Mapping[str, Any]]]:
        """Yield the form of each result with its place."""
        return tensor_forms(self.call.outputs, ())


class _Raised:
    """Makes the arguments of one run."""

    def __init__(self, setting: Setting, noise: NoiseMode | None, *, squares: bool) -> None:
        self.dtype = None if setting.dtype is None else getattr(torch, setting.dtype)
        self._squares = squares
        self._device = setting.device
        self._noise = noise
        self._made: dict[int, torch.Tensor] = {}

    def value(self, value: Any, _: PartPath) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._made:
                self._made[id(value)] = self._tensor(value)
            return self._made[id(value)]
        if isinstance(value, torch.dtype):
            return self._raised(value)
        if isinstance(value, torch.device):
            return torch.device(self._device)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        own = plain.to(device=self._device, dtype=self._raised(tensor.dtype), copy=True)
        is_float = own.dtype.is_floating_point or own.dtype.is_complex
        if self._squares and is_float:
            own.square_()
        return self._noise.disturbed(own) if self._noise is not None and is_float else own

    def _raised(self, dtype: torch.dtype) -> torch.dtype:
        if self.dtype is None:
            return dtype
        if dtype.is_complex:
            return _COMPLEX.get(self.dtype, dtype)
        found: torch.dtype = self.dtype if dtype.is_floating_point else dtype
        return found


@contextmanager
def _numbers(dtype: torch.dtype | None, arguments: Sequence[Any]) -> Iterator[None]:
    """Context in which integers alone make results of the wanted type.

    The default type belongs to the whole process, so it changes only for calls that need it.
    """
    has_floats = any(
        one.dtype.is_floating_point or one.dtype.is_complex for one in tensors_of(list(arguments))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if has_floats or dtype not in _COMPLEX:
            yield
            return
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(dtype)
            yield
        finally:
            torch.set_default_dtype(before)


def _own_dtype(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    """Return the type of the first floating-point argument."""
    for tensor in tensors_of([*args, *kwargs.values()]):
        if tensor.dtype.is_floating_point:
            return tensor.dtype
    return torch.get_default_dtype()
