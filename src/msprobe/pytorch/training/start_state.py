# SPDX-License-Identifier: Apache-2.0
"""Collect the state in which a step starts: settings, random generators, flags, parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from msprobe.capture.facts import FactCollector
from msprobe.capture.session import Session
from msprobe.dump.facts import Modes, Parameters, encode_fact
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.training.torch_settings import (
    generator_states,
    torch_settings,
    torch_switches,
)
from msprobe.pytorch.values.fingerprint import KnownPrints, start_norms
from msprobe.pytorch.values.readable import PLAIN
from msprobe.run_config.collecting import collect_settings
from msprobe.run_config.random_recording import python_and_numpy_states

_COMPILED_PART: Final = "_orig_mod"  # under which torch.compile keeps the module it was given
_PARAMETER, _BUFFER = "parameter", "buffer"


class StartState:
    """Puts the state at the start of each recorded step into its facts.

    Attributes:
        prints: of parameters that have not changed since they were read.
    """

    __slots__ = ("_dump", "_fixed", "_session", "_settings", "_switches", "prints")

    def __init__(self, session: Session) -> None:
        """Create it; nothing is read.

        Args:
            session: gets the facts.
        """
        self._session = session
        self.prints = KnownPrints()
        self._dump: object = None
        # Environment, packages and the rest are the same for the whole run.
        self._fixed: dict[str, str] | None = None
        self._switches: dict[str, str] = {}
        self._settings = msgspec.Raw()

    def collect(self, models: Sequence[nn.Module]) -> None:
        """Put the state of the step, unless it has begun before."""
        session = self._session
        if not session.facts.is_open or session.dump is self._dump:
            return
        self._dump = session.dump
        with_grad = torch.is_grad_enabled()
        quietly(session, "settings", self._put_settings)
        quietly(session, "random states", self._put_random_states)
        if models:
            quietly(session, "state of the model", self._put_model, models, with_grad)

    def _put_settings(self) -> None:
        if self._fixed is None:
            self._fixed = {**torch_settings(), **collect_settings()}
        switches = torch_switches()
        if switches != self._switches:
            self._switches = switches
            self._settings = msgspec.Raw(encode_fact({**self._fixed, **switches}))
        self._session.facts.put("settings", self._settings)

    def _put_random_states(self) -> None:
        states = dict([*python_and_numpy_states(), *generator_states()])
        self._session.facts.put("random", states)

    def _put_model(self, models: Sequence[nn.Module], with_grad: bool) -> None:
        found = _Contents()
        for index, model in enumerate(models):
            found.add(model, f"{index}." if len(models) > 1 else "")
        frozen = [
            name
            for name, tensor, kind in found.tensors
            if kind is _PARAMETER and not tensor.requires_grad
        ]
        modes = Modes(
            training=found.training,
            autocast=dict(_autocast()),
            grad_enabled=with_grad,
            requires_grad_false=frozen,
        )
        self._session.facts.put("modes", modes)
        self._put_parameters(found)

    def _put_parameters(self, found: _Contents) -> None:
        columns = Parameters(same_as=found.same_as)
        names, kinds, shapes, dtypes = columns.name, columns.kind, columns.shape, columns.dtype
        trained, prints = columns.requires_grad, []
        for name, tensor, kind in found.tensors:
            names.append(name)
            kinds.append(kind)
            shapes.append(_shape(tensor))
            dtypes.append(str(tensor.dtype))
            trained.append(tensor.requires_grad)
            prints.append(self.prints.read(tensor))
        columns.checksum.extend([one.checksum for one in prints])
        columns.norm.extend([one.norm for one in prints])
        columns.projections.extend([one.projections for one in prints])
        self.prints.drop_dead()
        waiting = _device_norms([tensor for _, tensor, _ in found.tensors], columns.norm)
        facts = self._session.facts
        if waiting is None:
            facts.put("parameters", _encoded(columns))
        else:
            self._session.step_undo.callback(_put_waiting, facts, columns, waiting)


class _Contents:
    """Modules, parameters and buffers of models, in the order of ``named_modules``.

    Attributes:
        tensors: name, tensor and kind of each.
        same_as: name of the one before that is the same tensor, or None.
        training: flags of the models, and of modules that differ from the one around them.
    """

    __slots__ = ("_names", "_open", "same_as", "tensors", "training")

    def __init__(self) -> None:
        self.tensors: list[tuple[str, Tensor, str]] = []
        self.same_as: list[str | None] = []
        self.training: dict[str, bool] = {}
        self._names: dict[int, str] = {}
        self._open: set[int] = set()

    def add(self, module: nn.Module, path: str, around: bool | None = None) -> None:
        """Add a module and everything inside.

        Args:
            module: the module.
            path: its name, with a dot at the end unless it is empty.
            around: the training flag of the module around it; None for a model.
        """
        is_training = module.training
        if is_training is not around:
            self.training[path[:-1]] = is_training
        self._add_tensors(path, module._parameters, _PARAMETER)
        self._add_tensors(path, module._buffers, _BUFFER)
        self._open.add(id(module))
        for name, inner in module._modules.items():
            if inner is not None and id(inner) not in self._open:  # a module may hold one around it
                self.add(inner, path if name == _COMPILED_PART else f"{path}{name}.", is_training)
        self._open.discard(id(module))

    def _add_tensors(self, path: str, tensors: Mapping[str, Tensor | None], kind: str) -> None:
        for key, tensor in tensors.items():
            if tensor is not None:
                name = path + key
                first = self._names.setdefault(id(tensor), name)
                self.tensors.append((name, tensor, kind))
                self.same_as.append(None if first is name else first)


def _shape(tensor: Tensor) -> list[int]:
    if isinstance(tensor, UninitializedTensorMixin):
        return []
    if type(tensor).__name__ == "DTensor":
        return list(tensor._local_tensor.shape)  # type: ignore[attr-defined]
    return list(tensor.shape)


def _autocast() -> Iterator[tuple[str, str]]:
    for device in ("cpu", "cuda", "npu", "xpu"):
        try:
            if torch.is_autocast_enabled(device):
                yield device, str(torch.get_autocast_dtype(device))
        except RuntimeError:  # this torch knows no such device
            continue


def _device_norms(
    tensors: Sequence[Tensor], norms: list[float | None]
) -> Callable[[], None] | None:
    """Start computing the norms of tensors on accelerators.

    Args:
        tensors: all tensors.
        norms: gets the norms at the positions of their tensors.

    Returns:
        A function that waits for them and fills them in; None where there are none.
    """
    groups: dict[tuple[torch.device, bool], list[int]] = {}
    for position, tensor in enumerate(tensors):
        if (
            type(tensor) in PLAIN
            and tensor.is_floating_point()
            and tensor.device.type
            not in (
                "cpu",
                "meta",
            )
        ):
            key = (tensor.device, tensor.dtype is torch.float64)
            groups.setdefault(key, []).append(position)
    if not groups:
        return None
    started = [
        (positions, start_norms([tensors[position] for position in positions]))
        for positions in groups.values()
    ]

    def fill() -> None:
        for positions, collect in started:
            for position, norm in zip(positions, collect(), strict=True):
                norms[position] = norm

    return fill


def _put_waiting(facts: FactCollector, columns: Parameters, fill: Callable[[], None]) -> None:
    fill()
    facts.put("parameters", _encoded(columns))


def _encoded(columns: Parameters) -> Parameters | msgspec.Raw:
    """Return the columns as JSON, by the quick encoder unless it would change something."""
    numbers = [norm for norm in columns.norm if norm is not None]
    for pair in columns.projections:
        numbers += [number for number in pair or () if number is not None]
    if all(map(math.isfinite, numbers)):
        with suppress(UnicodeEncodeError):  # a name with lone surrogates
            return msgspec.Raw(msgspec.json.encode(columns))
    return columns
