# SPDX-License-Identifier: Apache-2.0
"""Collect the state in which a step starts: settings, random generators, flags, parameters.

Parameters after the step are those of its optimizers; buffers are read again when it ends, and so
are parameters that no optimizer tells though gradients were taken.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec
import torch
from torch import nn

from msprobe.capture.session import Session
from msprobe.dump.facts import ChangedFlags, Modes, Parameters, encode_fact
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.training.model_contents import (
    BUFFER,
    PARAMETER,
    ModelContents,
    NamedModels,
    Prefixed,
)
from msprobe.pytorch.training.torch_settings import generator_states, torch_switches
from msprobe.pytorch.training.training_settings import fixed_settings
from msprobe.pytorch.values.fingerprint import shape_of
from msprobe.pytorch.values.tensor_columns import KnownTensors, Samples, TensorColumns
from msprobe.run_config.random_recording import python_and_numpy_states, undrawn_generators


class StartState:
    """Puts the state at the start of each recorded step into its facts."""

    __slots__ = (
        "_autocast",
        "_begun",
        "_columns",
        "_fixed",
        "_fixed_of",
        "_flags",
        "_known",
        "_models",
        "_modules",
        "_parameters",
        "_parts",
        "_roots",
        "_session",
        "_with_grad",
    )

    def __init__(self, session: Session, known: KnownTensors) -> None:
        """Create it; nothing is read.

        Args:
            session: gets the facts.
            known: of parameters that have not changed since they were read.
        """
        self._session = session
        self._known = known
        self._begun: object = None
        self._models = NamedModels()
        self._modules: list[weakref.ref[nn.Module]] = []
        self._roots: dict[str, bool] = {}  # flags of the models when the step started
        self._parts: dict[str, NamedModels] = {}  # what each of them holds
        self._flags: list[bool] = []
        self._autocast: list[tuple[str, str]] = []
        self._parameters = Parameters()
        self._columns: list[TensorColumns] = []  # of the parameters, by model as found
        self._with_grad = True
        # Environment, packages and the rest are the same for the whole run: encoded once.
        self._fixed: bytes | None = None
        self._fixed_of: list[str] = []  # prefixes of the models whose modules are in it

    def collect(self, models: Sequence[Prefixed]) -> None:
        """Put the state of the step, unless it has begun before."""
        session = self._session
        if not session.facts.is_open or session.account is self._begun:
            return
        self._begun = session.account
        self._parameters, self._columns = Parameters(), []
        self._with_grad = torch.is_grad_enabled()
        quietly(session, "settings", self._put_settings, models)
        quietly(session, "random states", self._put_random_states)
        self._known.next_step()
        if models:
            quietly(session, "state of the model", self._put_model, models)

    def extend(self, models: Sequence[Prefixed]) -> None:
        """Add the models that the step has found since it began; what is there stays."""
        session = self._session
        if session.facts.is_open and session.account is self._begun:
            quietly(session, "settings", self._put_settings, models)
            quietly(session, "state of the model", self._put_model, models)

    def _put_settings(self, models: Sequence[Prefixed]) -> None:
        switches = torch_switches()
        prefixes = [prefix for prefix, _ in models]
        if self._fixed is None or prefixes != self._fixed_of:
            self._fixed_of = prefixes
            known = fixed_settings(models).items()
            self._fixed = encode_fact({name: text for name, text in known if name not in switches})
        encoded = b"%b,%b" % (self._fixed[:-1], encode_fact(switches)[1:])
        self._session.facts.put("settings", msgspec.Raw(encoded))

    def _put_random_states(self) -> None:
        session = self._session
        session.facts.put("random", random_states())
        session.step_undo.callback(session.attempt, "random states", self._put_undrawn)

    def _put_undrawn(self) -> None:
        self._session.facts.put("undrawn", undrawn_generators())

    def _put_model(self, models: Sequence[Prefixed]) -> None:
        found = ModelContents.of(models)
        self._known.names = found.names
        self._session.facts.put("modes", modes_of(found, self._with_grad))
        self._models = NamedModels(models)
        self._roots = {prefix: model.training for prefix, model in models}
        self._parts = {
            prefix: NamedModels(
                [
                    (f"{prefix}{name}.", part)
                    for name, part in model._modules.items()
                    if part is not None
                ]
            )
            for prefix, model in models
        }
        self._modules = [weakref.ref(each) for each in found.modules]
        self._flags = [each.training for each in found.modules]
        self._autocast = list(autocast_types())
        self._put_parameters(found)

    def look_at_flags(self, micro: int) -> None:
        """Put the flags and autocast that the program has set since they were put last.

        Args:
            micro: number of the micro batch whose call of the model begins.
        """
        is_new, autocast = self._has_new_flags(), list(autocast_types())
        if not is_new and autocast == self._autocast:
            return
        self._autocast = autocast
        changed = ChangedFlags(micro=micro, training=self._training(), autocast=dict(autocast))
        self._session.facts.append("flags", changed)

    def _has_new_flags(self) -> bool:
        """Return whether flags have changed since they were asked for; of a lost module, none."""
        flags = [
            last if (module := known()) is None else module.training
            for known, last in zip(self._modules, self._flags, strict=True)
        ]
        is_new = flags != self._flags
        self._flags = flags
        return is_new

    def _training(self) -> dict[str, bool]:
        """Return the flags as `ModelContents` does.

        A list of models that was made for `start` alone is gone: its flag is the last one known.
        """
        alive = dict(self._models)
        lost = [prefix for prefix in self._parts if prefix not in alive]
        parts = [part for prefix in lost for part in self._parts[prefix]]
        roots = {prefix.removesuffix("."): self._roots[prefix] for prefix in lost}
        return {**roots, **ModelContents.of([*alive.items(), *parts]).training}

    def _put_parameters(self, found: ModelContents) -> None:
        session, earlier = self._session, set(self._parameters.name)
        is_first = not earlier
        rows = zip(found.tensors, found.same_as, strict=True)
        new = [(*row, same_as) for row, same_as in rows if row[0] not in earlier]
        tensors = [row[1] for row in new]
        self._columns.append(TensorColumns(tensors, self._known, samples=Samples.NONE))
        for name, tensor, kind, same_as in new:
            self._parameters.name.append(name)
            self._parameters.kind.append(kind)
            self._parameters.shape.append(shape_of(tensor))
            self._parameters.dtype.append(str(tensor.dtype))
            self._parameters.requires_grad.append(tensor.requires_grad)
            self._parameters.same_as.append(same_as)
        if self._columns[-1].is_ready:
            self._put_read()
        else:
            session.step_undo.callback(self._put_read)
        if is_first:
            session.step_undo.callback(quietly, session, "state after the step", self._put_after)

    def _put_read(self) -> None:
        """Put the parameters with their numbers, which are waited for."""
        for columns in self._columns:
            columns.wait()
        self._parameters.checksum[:] = chain.from_iterable(one.checksum for one in self._columns)
        self._parameters.norm[:] = chain.from_iterable(one.norm for one in self._columns)
        self._parameters.projections[:] = chain.from_iterable(
            one.projections for one in self._columns
        )
        self._session.facts.put("parameters", self._parameters)

    def _put_after(self) -> None:
        """Put the buffers that the step has changed, and the parameters that no record tells."""
        told = self._known.told
        is_trained = self._session.current.ending.took_gradients
        found = ModelContents.of(self._models)
        own = {
            name: tensor
            for (name, tensor, kind), first in zip(found.tensors, found.same_as, strict=True)
            if kind == BUFFER
            or (is_trained and tensor.requires_grad and name not in told and first is None)
        }
        if not own:
            return
        columns = TensorColumns(list(own.values()), self._known, samples=Samples.NONE)
        columns.wait()
        after = Parameters()
        known = chain.from_iterable(one.checksum for one in self._columns)
        earlier = dict(zip(self._parameters.name, known, strict=True))
        for place, (name, tensor) in enumerate(own.items()):
            checksum = columns.checksum[place]
            if tensor.requires_grad or checksum is None or checksum != earlier.get(name):
                after.name.append(name)
                after.dtype.append(str(tensor.dtype))
                after.checksum.append(checksum)
                after.norm.append(columns.norm[place])
                after.projections.append(columns.projections[place])
        self._session.facts.put("buffers_after", after)


def random_states() -> dict[str, str]:
    """Return a checksum of the state of each random generator."""
    return dict([*python_and_numpy_states(), *generator_states()])


def modes_of(contents: ModelContents, with_grad: bool) -> Modes:
    """Return the flags of models now.

    Args:
        contents: the models.
        with_grad: whether the program records gradients.
    """
    frozen = [
        name
        for name, tensor, kind in contents.tensors
        if kind == PARAMETER and not tensor.requires_grad
    ]
    return Modes(
        training=contents.training,
        autocast=dict(autocast_types()),
        grad_enabled=with_grad,
        requires_grad_false=frozen,
    )


def autocast_types() -> Iterator[tuple[str, str]]:
    """Yield the devices on which autocast is on, with the type that it computes in."""
    any_enabled = getattr(torch._C, "_is_any_autocast_enabled", None)
    if any_enabled is not None and not any_enabled():
        return
    for device in ("cpu", "cuda", "npu", "xpu"):
        if not hasattr(torch, device):  # quicker than the exception
            continue
        try:
            if torch.is_autocast_enabled(device):
                yield device, str(torch.get_autocast_dtype(device))
        except RuntimeError:  # this torch knows no such device
            continue
