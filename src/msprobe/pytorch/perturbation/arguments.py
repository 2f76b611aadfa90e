# SPDX-License-Identifier: Apache-2.0
"""`CallCopy`: a call that can be run again, after the program's own run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.checks.perturbation import SkippedError
from msprobe.dump.values import PartPath
from msprobe.operators.operator import Family, Operator
from msprobe.pytorch.values.random_state import RandomReplay
from msprobe.pytorch.values.tensor_search import tensors_in
from msprobe.replay.arguments import converted
from msprobe.replay.references import Golden

PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
FLOATS: Final = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    }
)
RANDOM: Final = "random numbers, which other types and devices draw otherwise"
ARGS: Final = ("args",)
KWARGS: Final = ("kwargs",)
# Functions that choose another kernel where gradients are needed: products fold their batches.
_CHOOSE_KERNELS: Final = (
    *(Family.ATTENTION, Family.BILINEAR, Family.COMPOSITE),
    *(Family.CONVOLUTION, Family.OTHER),
)
_any_autocast: Final = torch._C._is_any_autocast_enabled
Function = Callable[..., Any]


def is_float(tensor: Tensor) -> bool:
    """Return whether a tensor has floating-point or complex elements that can be perturbed."""
    return tensor.dtype in FLOATS


class CallCopy:
    """A function and its arguments, as the call receives them.

    Arguments that the call may write are copied, otherwise they are shared with the program.

    Attributes:
        function: the function.
        operator: facts about it.
        args: positional arguments.
        kwargs: keyword arguments.
        writes: whether the function is known to write some of its arguments.
        size_bytes: of the tensors among them.
        floats: the floating-point and complex ones.
        needs_grad: whether gradients may flow to its arguments.
        drew_random: whether the program's run drew random numbers, if that was noted.
    """

    def __init__(
        self,
        function: Function,
        operator: Operator,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        writes: bool,
        copies: bool,
        with_grad: bool,
        max_bytes: int | None = None,
        draws: bool = True,
        golden: Golden | None = None,
    ) -> None:
        """Take the arguments.

        Args:
            function: the function.
            operator: facts about it.
            args: positional arguments.
            kwargs: keyword arguments.
            writes: whether it is known to write some of its arguments.
            copies: whether it may write or keep them.
            with_grad: whether the program calls it with gradients on.
            max_bytes: of all tensors among them; None for no limit.
            draws: whether it may draw random numbers.
            golden: takes the function's place in plain precision; None for the function itself.

        Raises:
            SkippedError: the call cannot be run again, or is too large.
        """
        tensors = _tensors_of(args, kwargs)
        self.size_bytes = 0
        self.needs_grad = False
        for tensor in tensors:
            if type(tensor) not in PLAIN:
                raise SkippedError("tensors of a class of their own")
            if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
                raise SkippedError("sparse, nested or meta tensors")
            self.size_bytes += tensor.nbytes
            self.needs_grad |= with_grad and tensor.requires_grad
        if max_bytes is not None and self.size_bytes > max_bytes:
            raise SkippedError("larger than max_bytes")
        self.function = self._plain = function
        self.operator = operator
        self.writes = writes
        self._copies = writes or copies
        self.drew_random = False
        self._random = RandomReplay(args, kwargs) if draws else None
        self._autocast = _autocast_of(tensors)
        self._needing: set[PartPath] = set()
        self._fixed: set[PartPath] = set()
        self._tensors: list[Tensor] = []
        self.args: list[Any] = converted(list(args), self._taken, ARGS, PLAIN)
        self.kwargs: dict[str, Any] = converted(dict(kwargs), self._taken, KWARGS, PLAIN)
        # Without their places in the graph, which a hook in the graph must not hold.
        if len(self._tensors) != len(tensors):  # some are in containers of other kinds
            self._tensors = _tensors_of(self.args, self.kwargs)
        self.floats = [one for one in self._tensors if one.dtype in FLOATS]
        if golden is not None:
            self._plain = golden.for_dtype(next((one.dtype for one in self.floats), None))
        self._versions = [] if self._copies else _versions(self._tensors)

    @property
    def autocast_types(self) -> list[torch.dtype]:
        """The types that autocast computed in; empty where it was off."""
        return [dtype for _, dtype in self._autocast]

    def note_random(self) -> None:
        """Note whether the call drew random numbers: the program has just run it."""
        self.drew_random = self._random is not None and self._random.has_moved

    def find_random(self) -> None:
        """Run the call once more to note whether it draws random numbers; these stay drawn."""
        args, kwargs = self.again()
        try:
            self.function(*args, **kwargs)
        except Exception as exc:
            raise SkippedError(f"cannot be run again: {type(exc).__name__}") from exc
        self.note_random()

    def check_unchanged(self) -> None:
        """Make sure that the arguments are what the call received.

        Raises:
            SkippedError: something wrote into a tensor that is shared with the program.
        """
        if self._versions and self._versions != _versions(self._tensors):
            raise SkippedError("an argument was written meanwhile")

    @property
    def parameters(self) -> set[PartPath]:
        """Where parameters of a model are among the arguments; empty without other floats."""
        return self._fixed if len(self._fixed) < len(self.floats) else set()

    def run(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        plain: bool = False,
        same_kernel: bool = False,
        leaves: list[Tensor] | None = None,
    ) -> Any:
        """Return the function's result for other arguments, with the call's random numbers.

        Args:
            args: positional arguments; those that the function writes are copies.
            kwargs: keyword arguments.
            plain: whether to compute in plain precision: without autocast, by a golden function.
            same_kernel: whether it must take the kernel that the program's run took.
            leaves: gets the leaves that gradients are wanted of; None for no gradients.

        Raises:
            SkippedError: the function fails, perhaps for lack of memory.
        """
        with_graph = leaves is not None or (
            self.needs_grad and same_kernel and self.operator.family in _CHOOSE_KERNELS
        )
        function = self._plain if plain else self.function
        try:
            if not (with_graph or self._random or self._autocast):
                result = function(*args, **kwargs)
                return args[0] if result is None and args else result
            with self._as_it_was(plain), _graph(is_on=with_graph):
                if with_graph:
                    take = partial(self._leaf, [] if leaves is None else leaves)
                    args, kwargs = (
                        converted(list(args), take, ARGS, PLAIN),
                        converted(dict(kwargs), take, KWARGS, PLAIN),
                    )
                result = function(*args, **kwargs)
        except Exception as exc:
            raise SkippedError(f"cannot be run again: {type(exc).__name__}") from exc
        return args[0] if result is None and args else result

    def run_as_given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the function's result in plain precision, connected to the arguments' graph."""
        with self._as_it_was(plain=True):
            return self._plain(*args, **kwargs)

    def _taken(self, value: Tensor, place: PartPath) -> Tensor:
        if value.requires_grad:
            self._needing.add(place)
        if type(value) is torch.nn.Parameter:
            self._fixed.add(place)
        own = value.detach().clone() if self._copies else value.detach()
        self._tensors.append(own)
        return own

    def _leaf(self, leaves: list[Tensor], value: Tensor, place: PartPath) -> Tensor:
        """Return an argument that requires a gradient if it does so in the program."""
        if place not in self._needing:
            return value
        leaf = value.detach().requires_grad_()
        leaves.append(leaf)
        # An in-place function must not write into a leaf.
        return leaf.clone() if self._copies else leaf

    def again(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for one more run; the function may write into them."""
        if not self._copies:
            return self.args, self.kwargs
        return (
            converted(self.args, _copied, kinds=PLAIN),
            converted(self.kwargs, _copied, kinds=PLAIN),
        )

    @contextmanager
    def _as_it_was(self, plain: bool) -> Iterator[None]:
        """Have the random state and autocast of the call; the latter's cache is the program's."""
        with ExitStack() as stack:
            if self._random is not None:
                stack.enter_context(self._random.again())
            for device, dtype in self._autocast:
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, enabled=not plain, cache_enabled=False)
                )
            yield


@contextmanager
def _graph(*, is_on: bool) -> Iterator[None]:
    """Build a graph, as the program does, that its hooks on saved tensors do not learn of."""
    if not is_on:
        yield
        return
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_same, _same):
        yield


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    found: list[Any] = []
    tensors_in(args, kwargs, found)
    return [tensor for tensor, _ in found]


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [0 if one.is_inference() else one._version for one in tensors]


def _copied(value: Tensor, _place: Any) -> Tensor:
    return value.detach().clone()


def _autocast_of(tensors: Sequence[Tensor]) -> list[tuple[str, torch.dtype]]:
    """Return the devices for which autocast is on, and its types."""
    if not _any_autocast():
        return []
    devices = {tensor.device.type for tensor in tensors} | {"cpu"}
    found = []
    for device in sorted(devices):
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            found.append((device, torch.get_autocast_dtype(device)))
    return found
