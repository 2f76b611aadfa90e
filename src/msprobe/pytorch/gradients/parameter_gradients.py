# SPDX-License-Identifier: Apache-2.0
"""Record the gradients of parameters: as accumulated, and as reduced over ranks.

A gradient is read right after torch has accumulated it, before any hook of the user's on the same
event (an optimiser stepping in backward would already have used it up).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from msprobe.capture.parameter_gradients import Names, ParameterOwner, ParameterWatch
from msprobe.capture.session import Session
from msprobe.dump.record_names import RecordKind
from msprobe.pytorch.gradients.graph_search import find_edges
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.guard import quietly

_CAST: Final = "ToCopyBackward0"  # autocast makes one for all calls


class ParameterGradients(ParameterWatch):
    """Watches the parameters of the user's models, and optimisers where ranks reduce gradients."""

    def __init__(self, session: Session, names: Names, entry: BackwardEntry | None = None) -> None:
        """Create it for the modules that `names` knows.

        Args:
            session: receives gradients.
            names: the modules.
            entry: where backward passes begin, to say which gradients come from one call alone.
        """
        super().__init__(session, names)
        self._entry = entry
        self._of_one_call: set[int] = set()

    def install(self) -> bool:
        """Put hooks on the parameters that have none yet; return whether no one had any."""
        begins = super().install()
        if begins and self._entry is not None:
            self._entry.open(self._session.step_undo, self._over)
        if begins and _may_reduce():
            handle = register_optimizer_step_pre_hook(self._before_step)
            self._session.step_undo.callback(handle.remove)
        return begins

    def trained(self, module: nn.Module) -> dict[str, Any]:
        """Return the parameters of a module itself that can get a gradient."""
        return {
            key: parameter
            for key, parameter in module._parameters.items()
            if parameter is not None
            and parameter.requires_grad
            and parameter.is_leaf
            and not parameter.is_inference()  # no backward pass reaches it, and it takes no hook
        }

    def watch(self, parameter: Tensor, owner: ParameterOwner) -> Callable[[], None]:
        """Hook a parameter, before the hooks of the user's."""
        handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            partial(self._accumulated, owner)
        )
        make_first(parameter, handle.id)
        remove: Callable[[], None] = handle.remove
        return remove

    @contextmanager
    def _over(self, roots: Sequence[Any], _gradients: Sequence[Any]) -> Iterator[None]:
        """Know the gradients of one call while a backward pass runs from `roots`."""
        self._of_one_call = quietly(self._session, "graph", self._consumed_once, roots) or set()
        try:
            yield
        finally:
            self._of_one_call = set()

    def _consumed_once(self, roots: Sequence[Any]) -> set[int]:
        """Return the parameters without a gradient that one node alone consumes."""
        start = [one.grad_fn if isinstance(one, Tensor) else one[0] for one in roots]
        leaves: dict[int, list[Any]] = {
            number: [number]
            for number, (parameter, _) in self._owners.items()
            if type(parameter) is nn.Parameter
            and parameter.grad is None
            and not parameter._backward_hooks
        }
        hits, _ = find_edges([one for one in start if one is not None], {}, leaves, {}, 0, 0)
        casts: dict[Any, list[Any]] = {
            (node, 0): places for node, _, places in hits if type(node).__name__ == _CAST
        }
        if casts:
            again, _ = find_edges([one for one in start if one is not None], casts, {}, {}, 0, 0)
            hits = [hit for hit in hits if (hit[0], 0) not in casts] + again
        counts = Counter(places[0] for *_, places in hits)
        return {number for number, count in counts.items() if count == 1}

    def _accumulated(self, owner: ParameterOwner, parameter: Tensor) -> None:
        """Take the gradient that was just accumulated."""
        quietly(owner.session, "parameter gradient", self._take, owner, parameter)

    def _take(self, owner: ParameterOwner, parameter: Tensor) -> None:
        if parameter.grad is not None:
            owner.take(parameter.grad, is_of_one_call=id(parameter) in self._of_one_call)

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
            self._session.backward.parameter(
                owner.module,
                owner.parameter,
                parameter.grad,
                of=per_module[owner.module],
                kind=RecordKind.PARAMETERS_GRAD_REDUCED,
            )


def make_first(parameter: Tensor, hook_id: int) -> None:
    """Let a hook on the accumulated gradient run before the others of its parameter.

    Torch calls them in the order in which a plain `dict` has them, which `move_to_end` of an
    `OrderedDict` leaves as it is: the others are put in anew, behind this one.
    """
    hooks: Any = parameter._post_accumulate_grad_hooks
    if len(hooks) > 1:
        for other in [one for one in hooks if one != hook_id]:
            hooks[other] = hooks.pop(other)


def _may_reduce() -> bool:
    """Return whether gradients of this process may be reduced with those of others."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
