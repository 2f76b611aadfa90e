# SPDX-License-Identifier: Apache-2.0
"""Under which module the gradient of a parameter is recorded, and from when to when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msprobe.capture.session import Session
from msprobe.dump.record_names import RecordKind


class Names(Protocol):
    """The modules of the user's models."""

    def items(self) -> Iterable[tuple[Any, str]]:
        """Return the modules that are alive with their names."""


class ParameterOwner:
    """The module that a parameter is recorded under."""

    __slots__ = ("count", "module", "others", "parameter", "session")

    def __init__(self, session: Session, module: str, parameter: str, count: int) -> None:
        """Make the owner of a parameter.

        Args:
            session: receives gradients.
            module: the module's name.
            parameter: the parameter's name in it.
            count: how many parameters of the module can get a gradient.
        """
        self.session = session
        self.module = module
        self.parameter = parameter
        self.count = count
        # Further modules that share the parameter: it is recorded once, under the first wanted.
        self.others: list[ParameterOwner] = []

    def take(
        self, gradient: Any, kind: str = RecordKind.PARAMETERS_GRAD, *, is_of_one_call: bool = False
    ) -> None:
        """Record a gradient of the parameter, if it is wanted and the step is recorded."""
        owner = self.wanted() if self.session.dump is not None else None
        if owner is not None:
            self.session.backward.parameter(
                owner.module,
                owner.parameter,
                gradient,
                of=owner.count,
                kind=kind,
                is_of_one_call=is_of_one_call and not self.others,
            )

    def wanted(self) -> ParameterOwner | None:
        """Return the owner that the parameter is recorded under now, if it is."""
        wants = self.session.calls.wants_parameters_of
        if wants(self.module):
            return self
        return next((one for one in self.others if wants(one.module)), None)


def owners_of(
    session: Session, names: Names, trained: Callable[[Any], dict[str, Any]]
) -> list[tuple[Any, ParameterOwner]]:
    """Return the parameters of all modules that can get a gradient, each once, with its owner.

    Args:
        session: receives gradients.
        names: the modules.
        trained: returns such parameters of one module itself, by name.
    """
    found: dict[int, tuple[Any, ParameterOwner]] = {}
    for module, name in names.items():
        parameters = trained(module)
        for key, parameter in parameters.items():
            owner = ParameterOwner(session, name, key, len(parameters))
            if id(parameter) in found:
                found[id(parameter)][1].others.append(owner)
            else:
                found[id(parameter)] = (parameter, owner)
    return list(found.values())


class ParameterWatch(ABC):
    """Watches the parameters of the user's models, from `install` to the end of the step.

    Attributes:
        names: the modules whose parameters the next `install` finds.
    """

    def __init__(self, session: Session, names: Names) -> None:
        """Create it for the modules that `names` knows."""
        self._session = session
        self.names = names
        # Holds each parameter, so that its identity stays its own.
        self._owners: dict[int, tuple[Any, ParameterOwner]] = {}
        self._ends: list[Callable[[], None]] = []
        self._installed = False

    def install(self) -> bool:
        """Put hooks on the parameters that have none yet; return whether no one had any.

        Gradients may arrive until the step ends, so they are removed with `Session.step_undo`.
        """
        begins = not self._installed
        if begins:
            self._installed = True
            self._session.step_undo.callback(self._removed)
        for parameter, owner in owners_of(self._session, self.names, self.trained):
            if id(parameter) not in self._owners and self._hook(parameter, owner):
                self._owners[id(parameter)] = (parameter, owner)
        return begins

    @abstractmethod
    def trained(self, module: Any) -> dict[str, Any]:
        """Return the parameters of the module itself that can get a gradient, by name."""

    @abstractmethod
    def watch(self, parameter: Any, owner: ParameterOwner) -> Callable[[], None] | None:
        """Have `owner` take each gradient of a parameter.

        Returns:
            How to end that; None for a parameter that cannot be watched.
        """

    def suspend(self) -> None:
        """Take the hooks off the parameters for a while."""
        for end in self._ends:
            end()
        self._ends.clear()

    def resume(self) -> None:
        """Put the hooks back, if any were there."""
        for parameter, owner in self._owners.values():
            self._hook(parameter, owner)

    def _hook(self, parameter: Any, owner: ParameterOwner) -> bool:
        end = self._session.attempt("watching a parameter", self.watch, parameter, owner)
        if end is None:
            return False
        self._ends.append(end)
        return True

    def _removed(self) -> None:
        self.suspend()
        self._owners.clear()
        self._installed = False
