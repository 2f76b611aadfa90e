# SPDX-License-Identifier: Apache-2.0
"""`ModuleFunction`: a module of `torch.nn`, made again from its recorded settings."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

from msprobe.replay.module_settings import ModuleSettings
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import CannotReplayError, Reason

_LIBRARY: Final = "torch.nn.modules."
# Arguments of classes that say where and in which type parameters are made.
_PLACEMENT: Final = ("device", "dtype")
# Classes that are put together from the modules in them, with attributes that settings leave out
# where they are None.
_CONTAINERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Sequential": {},
    "ModuleList": {},
    "ModuleDict": {},
    "Transformer": {},
    "TransformerEncoder": {"norm": None},
    "TransformerDecoder": {"norm": None},
    "TransformerEncoderLayer": {},
    "TransformerDecoderLayer": {},
}
# Functions that layers of transformers hold; settings have their names, which others may have, too.
_ACTIVATIONS: Final = {1: nn.functional.relu, 2: nn.functional.gelu}
# Parameters that are no bias, though their names begin with the word.
_NO_BIAS: Final = ("bias_k", "bias_v")


class ModuleFunction:
    """A module of `torch.nn` as a function of its arguments and its parameters, by their names.

    It has no memory of its own: the recorded parameters take the places of the module's.

    Attributes:
        source: an expression that makes the module; None where no short one does.
        parameters: names of its parameters.
    """

    def __init__(self, call: RecordedCall) -> None:
        """Make the module of a call.

        Raises:
            CannotReplayError: another class, or something of the module was not recorded.
        """
        name = str(call.class_name)
        if call.module is None:
            raise CannotReplayError(Reason.MODULE, name)
        self._module, self.source = _made(name, call.module, call.parameters.keys())
        self.parameters = [name for name, _ in self._module.named_parameters()]
        if set(self.parameters) != call.parameters.keys():
            missing = sorted(set(self.parameters) ^ call.parameters.keys())[0]
            raise CannotReplayError(Reason.MODULE, f"{name}: parameter {missing}")
        if any(True for _ in self._module.buffers()):
            raise CannotReplayError(Reason.MODULE, f"{name}: its buffers were not recorded")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        parameters = {name: kwargs.pop(name) for name in self.parameters}
        return functional_call(self._module, parameters, tuple(map(_packed, args)), kwargs)


def _packed(argument: Any) -> Any:
    """Return a packed sequence where a record has its fields, else the argument."""
    is_packed = isinstance(argument, dict) and argument.keys() == set(PackedSequence._fields)
    return PackedSequence(**argument) if is_packed else argument


def _made(
    name: str, settings: ModuleSettings, parameters: Collection[str]
) -> tuple[nn.Module, str | None]:
    """Return a module and an expression that makes it.

    Args:
        name: of its class.
        settings: of the module.
        parameters: names of its recorded parameters, those of modules in it among them.

    Raises:
        CannotReplayError: it is another class, or something of it was not recorded.
    """
    of_type = getattr(nn, name, None)
    if (
        not settings.is_of_framework
        or not isinstance(of_type, type)
        or not of_type.__module__.startswith(_LIBRARY)
        or not issubclass(of_type, nn.Module)
    ):
        raise CannotReplayError(Reason.MODULE, name)
    if name in _CONTAINERS:
        return _put_together(of_type, settings, parameters)
    given = _given(of_type, settings, parameters)
    try:
        with torch.device("meta"):
            made: nn.Module = of_type(**given)
    except Exception as exc:
        raise CannotReplayError(Reason.MODULE, f"{name}: {exc}") from exc
    if not settings.children.keys() <= {child for child, _ in made.named_children()}:
        raise CannotReplayError(Reason.MODULE, f"{name}: has other modules in it")
    shown = ", ".join(f"{key}={value!r}" for key, value in given.items())
    mode = "" if settings.training else ".eval()"
    return made.train(settings.training), f"torch.nn.{name}({shown}){mode}"


def _given(
    of_type: type[nn.Module], settings: ModuleSettings, parameters: Collection[str]
) -> dict[str, Any]:
    """Return the arguments that make a module."""
    known = _arguments(of_type)
    given = {key: value for key, value in settings.kwargs.items() if key in known}
    if issubclass(of_type, nn.RNN):
        given["nonlinearity"] = "relu" if settings.kwargs.get("mode") == "RNN_RELU" else "tanh"
    if not issubclass(of_type, nn.LSTM):
        given.pop("proj_size", None)
    if not issubclass(of_type, nn.RNNBase):  # its first one is the kind of cell
        given |= dict(zip(known, settings.args, strict=False))
    if "bias" in known and "bias" not in given:
        given["bias"] = any("bias" in one for one in parameters if one not in _NO_BIAS)
    if issubclass(of_type, nn.MultiheadAttention):
        given["add_bias_kv"] = _NO_BIAS[0] in parameters
    if settings.training and "track_running_stats" in known:
        given["track_running_stats"] = False  # these are written, and not read
    return given


def _arguments(of_type: type[nn.Module]) -> list[str]:
    """Return the names of the arguments that make a module."""
    of_base = issubclass(of_type, nn.RNNBase) and of_type is not nn.RNNBase
    names = inspect.signature(nn.RNNBase if of_base else of_type).parameters
    return [one for one in names if one not in (*_PLACEMENT, "mode" if of_base else "")]


def _put_together(
    of_type: type[nn.Module], settings: ModuleSettings, parameters: Collection[str]
) -> tuple[nn.Module, str | None]:
    """Return a module that holds others, made of these.

    Raises:
        CannotReplayError: one of them cannot be made again.
    """
    name = of_type.__name__
    made = of_type.__new__(of_type)
    nn.Module.__init__(made)
    sources = []
    for key, child in settings.children.items():
        own = [one.removeprefix(f"{key}.") for one in parameters if one.startswith(f"{key}.")]
        module, source = _made(child.class_name, child, own)
        made.add_module(key, module)
        sources.append(source)
    attributes = {**_CONTAINERS[name], **settings.kwargs, "training": settings.training}
    if isinstance(attributes.get("activation"), str):
        # Of a decoder's layer only the name is known, which a faster GELU may have as well.
        known = 1 if attributes["activation"] == "relu" else None
        number = attributes.get("activation_relu_or_gelu", known)
        if number not in _ACTIVATIONS:
            raise CannotReplayError(Reason.MODULE, f"{name}: its activation was not recorded")
        attributes["activation"] = _ACTIVATIONS[number]
    for key, value in attributes.items():
        if key not in settings.children and not key.startswith("_"):
            setattr(made, key, value)
    is_plain = of_type is nn.Sequential and settings.training and None not in sources
    return made, f"torch.nn.Sequential({', '.join(map(str, sources))})" if is_plain else None
