# SPDX-License-Identifier: Apache-2.0
"""`KeptState`: parameters, gradients, buffers, optimizers and random states, to be put back later.

Nothing is replaced: contents are copied back in place, past the counters of writes, so that each
tensor is the same object with the same bits as before.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

_cuda_is_up: Final[Callable[[], bool]] = torch.cuda.is_initialized


@runtime_checkable
class Stateful(Protocol):
    """A scaler, a schedule, or another object that hands out its state."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Take a state."""


class RandomStates:
    """The states of Python's, NumPy's and torch's default generators, of every device in use."""

    __slots__ = ("_cuda", "_numpy", "_python", "_torch")

    def __init__(self) -> None:
        """Read the states."""
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 - the user's
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if _cuda_is_up() else []

    def restore(self) -> None:
        """Put the generators back into these states."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002 - the user's
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


@dataclass(frozen=True, slots=True)
class _Optimizer:
    """Contents of an optimizer: its groups' settings, and its states with copies of them."""

    groups: list[dict[str, Any]]
    states: dict[Tensor, dict[str, Any]]
    contents: dict[Tensor, dict[str, Any]]


class KeptState:
    """The state of models and of what else a training changes, at one moment.

    Costs a copy of all of it.
    """

    def __init__(self, parts: Iterable[object]) -> None:
        """Copy the state.

        Args:
            parts: modules, optimizers, and other objects with ``state_dict``.
        """
        parts = list(parts)
        self._modules = _modules_of(parts)
        self._optimizers = [each for each in parts if isinstance(each, torch.optim.Optimizer)]
        known = (nn.Module, torch.optim.Optimizer)
        others = [each for each in parts if isinstance(each, Stateful)]
        self._others = [
            (each, copy.deepcopy(each.state_dict()))
            for each in others
            if not isinstance(each, known)
        ]
        self._random = RandomStates()
        self._parameters = _parameters_of(self._modules, self._optimizers)
        self._contents = [(each, _copy(each)) for each in self._parameters]
        # The object counts, too: a gradient may be a view of a buffer that others know.
        self._gradients = [(each, each.grad, _copy_or_none(each.grad)) for each in self._parameters]
        self._buffers = [
            (module, name, buffer, _copy_or_none(buffer))
            for module in self._modules
            for name, buffer in module._buffers.items()
        ]
        self._steps = [_optimizer(each) for each in self._optimizers]

    def restore(self) -> None:
        """Put everything back: the same objects with the same bits."""
        self._put_back(own=True)

    def enter(self) -> None:
        """Go back to this state with copies of gradients and optimizer states.

        What is changed in them afterwards leaves the present ones alone; parameters and buffers are
        changed in place: a `KeptState` of before brings all of them back.
        """
        self._put_back(own=False)

    def _put_back(self, *, own: bool) -> None:
        self._random.restore()
        for tensor, bits in self._contents:
            _write(tensor, bits)
        for parameter, gradient, content in self._gradients:
            if own and gradient is not None:
                _write(gradient, content)
            parameter.grad = gradient if own or content is None else content.clone()
        for module, name, buffer, content in self._buffers:
            module._buffers[name] = buffer
            if buffer is not None:
                _write(buffer, content)
        for optimizer, kept in zip(self._optimizers, self._steps, strict=True):
            _restore_optimizer(optimizer, kept, own=own)
        for other, state in self._others:
            other.load_state_dict(copy.deepcopy(state))


def _modules_of(parts: Iterable[object]) -> list[nn.Module]:
    found = (module for each in parts if isinstance(each, nn.Module) for module in each.modules())
    return list({id(module): module for module in found}.values())


def _parameters_of(
    modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> list[nn.Parameter]:
    def all_of() -> Iterator[nn.Parameter]:
        for module in modules:
            yield from (each for each in module._parameters.values() if each is not None)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    return list({id(each): each for each in all_of()}.values())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format)


def _copy_or_none(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _copy(tensor)


def _write(tensor: Tensor, content: Tensor | None) -> None:
    if content is not None:
        tensor.data.copy_(content)  # `data` counts no write: the bits are those of before


def _optimizer(optimizer: torch.optim.Optimizer) -> _Optimizer:
    groups = [
        {key: _copied_value(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    contents = {
        parameter: {key: _copied_value(value) for key, value in state.items()}
        for parameter, state in states.items()
    }
    return _Optimizer(groups, states, contents)


def _restore_optimizer(optimizer: torch.optim.Optimizer, kept: _Optimizer, *, own: bool) -> None:
    for group, values in zip(optimizer.param_groups, kept.groups, strict=True):
        for key, value in values.items():
            present = group.get(key)
            if own and isinstance(present, Tensor) and isinstance(value, Tensor):
                _write(present, value)
            else:
                group[key] = _copied_value(value)
    optimizer.state.clear()
    for parameter, contents in kept.contents.items():
        state = {key: _copied_value(value) for key, value in contents.items()}
        if own:
            state = kept.states[parameter]
            for key, value in contents.items():
                if isinstance(state[key], Tensor):
                    _write(state[key], value)
        optimizer.state[parameter] = state


def _copied_value(value: Any) -> Any:
    return _copy(value) if isinstance(value, Tensor) else copy.copy(value)
