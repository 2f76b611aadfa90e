# SPDX-License-Identifier: Apache-2.0
"""The task ``noise_floor``: every operator's result is moved by its rounding, at random.

A torch dispatch mode is given each operator of the forward pass, of the backward pass and of the
optimizer, below autograd. Which results were rounded is told by the operator's schema: those that
are views are not, nor those of factories and of communications. Results of operators that only
hand on numbers (`Operator.rounds`) are not either, unless their type became a coarser one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.capture.noise_floor import declare, step_seed
from msprobe.capture.session import Session
from msprobe.operators.lookup import operator_of
from msprobe.pytorch.apis.api_rules import written_arguments
from msprobe.pytorch.interception import dispatch_stack
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.kernels import PLUMBING, UNFINISHED, argument_of, is_traced
from msprobe.pytorch.interception.left_modes import LeftMode
from msprobe.pytorch.values.adapter import TENSOR_TYPES
from msprobe.pytorch.values.stochastic_rounding import Mover

_DisableTorchFunction: Final = torch._C.DisableTorchFunction
_is_alias: Final = torch._C._is_alias_of  # type: ignore[attr-defined]  # undeclared
_graph_task: Final = torch._C._current_graph_task_id
_SILENT: Final = PLUMBING | UNFINISHED
# Of the arguments that a factory takes to say what memory it makes.
_MEMORY: Final = "pin_memory"
# A copy of a tensor takes them, too, and has one more.
_COPY: Final = "non_blocking"


@dataclass(frozen=True, slots=True)
class _Rounded:
    """Results of an operator that may be rounded.

    Attributes:
        fresh: positions of results in new memory.
        written: positions and names of the arguments that it writes.
        by_type: whether they are rounded only where their type is coarser than that of the inputs.
    """

    fresh: tuple[int, ...]
    written: tuple[tuple[int, str], ...]
    by_type: bool


class NoiseMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Moves the results of operators, between `start` and `stop`."""

    supports_higher_order_operators = True

    def __init__(self, session: Session, seed: int) -> None:
        """Create it, not yet installed.

        Args:
            session: tells the step, and takes errors.
            seed: of the run; each step has a sequence of moves of its own.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._session = session
        self._seed = seed
        self._mover = Mover()
        self._step: int | None = None
        self._known: dict[OpOverload[Any, Any], _Rounded | None] = {}
        self._left = LeftMode(
            partial(dispatch_stack.is_installed, self), partial(dispatch_stack.remove, self)
        )

    def install(self) -> None:
        """Begin to move results; the session's undo stack gets the way back."""
        session = self._session
        declare(session, self._seed)
        if self._step != session.step_number:
            self._step = session.step_number
            self._mover.seed(step_seed(self._seed, self._step))
        # The engine restores the mode stack after each node: inside it nothing may change.
        if _graph_task() == -1:
            self._left.keep()
            dispatch_stack.install_lowest(self)
            session.undo.callback(self._left.remove_from, session.thread)

    def suspend(self) -> None:
        """Take the mode off this thread's stack for a while."""
        dispatch_stack.remove(self)

    def resume(self) -> None:
        """Put the mode back."""
        dispatch_stack.install_lowest(self)

    def next_step(self) -> None:
        """Take away what a `stop` inside a backward pass left behind."""
        if _graph_task() == -1:
            dispatch_stack.remove(self)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one operator and move what it rounded."""
        if kwargs is None:
            kwargs = {}
        session, left = self._session, self._left
        is_left = left.threads and left.is_left_here()
        if is_left or not session.capturing or not isinstance(func, OpOverload) or is_traced(types):
            return func(*args, **kwargs)
        if any(kind not in TENSOR_TYPES for kind in types):
            return NotImplemented  # it takes itself apart into operators of plain tensors
        with _DisableTorchFunction():  # in a backward pass the mode that records APIs is on
            result = func(*args, **kwargs)
        try:
            rounded = self._known[func]
        except KeyError:
            rounded = self._known[func] = _describe(func)
        if rounded is not None:
            quietly(session, "noise", self._move, rounded, args, kwargs, result)
        return result

    def _move(
        self, rounded: _Rounded, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = [*_floats(args), *_floats(tuple(kwargs.values()))]
        if not given:
            return  # made of constants and whole numbers
        results = result if isinstance(result, tuple) else (result,)
        made = [each for index in rounded.fresh for each in _floats((results[index],))]
        # Some return memory that they were given, and their schemas do not say so.
        made = [each for each in made if not any(_is_alias(each, other) for other in given)]
        if rounded.written:
            given = [each for each in given if not _is_among(each, rounded.written, args, kwargs)]
            written = [argument_of(args, kwargs, *place) for place in rounded.written]
            made += _floats(tuple(written))
        if rounded.by_type:
            finest = min((torch.finfo(each.dtype).eps for each in given), default=1.0)
            made = [each for each in made if torch.finfo(each.dtype).eps > finest]
        for each in made:
            self._mover.move(each)


def _floats(values: Sequence[Any]) -> list[Tensor]:
    """Return the floating tensors among values and in lists of them."""
    return [
        each
        for value in values
        for each in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex())
    ]


def _is_among(
    tensor: Tensor,
    places: Sequence[tuple[int, str]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> bool:
    return any(
        tensor is each for place in places for each in _floats((argument_of(args, kwargs, *place),))
    )


def _describe(func: OpOverload[Any, Any]) -> _Rounded | None:
    """Return the results of an operator that are moved; None where there is none."""
    schema = func._schema
    if func.namespace in _SILENT or torch.Tag.inplace_view in func.tags:
        return None
    names = {argument.name for argument in schema.arguments}
    if _MEMORY in names and _COPY not in names:
        return None
    written = written_arguments([func])
    if written and torch.Tag.nondeterministic_seeded in func.tags:
        return None  # it fills memory with random numbers
    fresh = tuple(_positions_of_fresh(schema.returns))
    if not (fresh or written):
        return None
    name = schema.name.rpartition("::")[2].removesuffix("_backward")
    operator = operator_of("Aten", name)
    return _Rounded(fresh, written, by_type=_COPY in names or not operator.rounds)


def _positions_of_fresh(returns: Sequence[Any]) -> Iterator[int]:
    for index, result in enumerate(returns):
        if result.alias_info is None:
            yield index
