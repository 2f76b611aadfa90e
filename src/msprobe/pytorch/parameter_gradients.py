# SPDX-License-Identifier: Apache-2.0
"""Record the gradients of parameters: as accumulated, and as reduced over ranks.

A gradient is read right after torch has accumulated it, before any hook of the user's on the same
event (an optimiser stepping in backward would already have used it up).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from msprobe.capture.names import PARAMETERS_GRAD, PARAMETERS_GRAD_REDUCED
from msprobe.capture.session import Session
from msprobe.pytorch.module_hooks import ModuleNames
from msprobe.pytorch.quiet import quietly


class _Owner:
    """The module that a parameter is recorded under."""

    __slots__ = ("count", "module", "others", "parameter", "session")

    def __init__(self, session: Session, module: str, parameter: str, count: int) -> None:
        self.session = session
        self.module = module
        self.parameter = parameter
        self.count = count
        # Further modules that share the parameter: it is recorded once, under the first wanted.
        self.others: list[_Owner] = []

    def accumulated(self, parameter: Tensor) -> None:
        """Take the gradient that was just accumulated."""
        quietly(self.session, "parameter gradient", self.take, parameter, PARAMETERS_GRAD)

    def take(self, parameter: Tensor, kind: str) -> None:
        gradient = parameter.grad
        if gradient is None or self.session.dump is None:
            return
        owner = self.wanted()
        if owner is not None:
            self.session.gradients.parameter(
                owner.module, owner.parameter, gradient, of=owner.count, kind=kind
            )

    def wanted(self) -> _Owner | None:
        """Return the owner that the parameter is recorded under now, if it is."""
        wants = self.session.recorder.wants_parameters_of
        return next((one for one in (self, *self.others) if wants(one.module)), None)


class ParameterGradients:
    """Watches the parameters of the user's models, from `install` to the end of the step."""

    __slots__ = ("_installed", "_names", "_owners", "_session")

    def __init__(self, session: Session, names: ModuleNames) -> None:
        """Create it for the modules that `names` knows."""
        self._session = session
        self._names = names
        self._owners: dict[int, tuple[Any, _Owner]] = {}
        self._installed = False

    def install(self) -> None:
        """Put hooks on the parameters; gradients may arrive until the step ends."""
        if self._installed:
            return
        self._installed = True
        undo = self._session.step_undo
        undo.callback(self._removed)
        for module, name in self._names.items():
            self._watch(module, name, undo.callback)
        if _may_reduce():
            handle = register_optimizer_step_pre_hook(self._before_step)
            undo.callback(handle.remove)

    def _watch(
        self, module: nn.Module, name: str, undo: Callable[[Callable[[], None]], object]
    ) -> None:
        trained = {
            key: parameter
            for key, parameter in module._parameters.items()
            if parameter is not None and parameter.requires_grad and parameter.is_leaf
        }
        for key, parameter in trained.items():
            owner = _Owner(self._session, name, key, len(trained))
            if id(parameter) in self._owners:
                self._owners[id(parameter)][1].others.append(owner)
                continue
            with contextlib.suppress(RuntimeError):  # tensors that refuse hooks keep theirs
                handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    owner.accumulated
                )
                _make_first(parameter, handle.id)
                undo(handle.remove)
                self._owners[id(parameter)] = (parameter, owner)

    def _removed(self) -> None:
        self._owners.clear()
        self._installed = False

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        quietly(self._session, "reduced gradient", self._take_reduced, optimizer)

    def _take_reduced(self, optimizer: Optimizer) -> None:
        watched = [
            self._owners[id(parameter)]
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in self._owners and parameter.grad is not None
        ]
        wanted = [(parameter, owner.wanted()) for parameter, owner in watched]
        known = [(parameter, owner) for parameter, owner in wanted if owner is not None]
        per_module = Counter(owner.module for _, owner in known)
        for parameter, owner in known:
            self._session.gradients.parameter(
                owner.module,
                owner.parameter,
                parameter.grad,
                of=per_module[owner.module],
                kind=PARAMETERS_GRAD_REDUCED,
            )


def _make_first(parameter: Tensor, hook_id: int) -> None:
    hooks: Any = parameter._post_accumulate_grad_hooks  # an OrderedDict
    hooks.move_to_end(hook_id, last=False)


def _may_reduce() -> bool:
    """Return whether gradients of this process may be reduced with those of others."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
