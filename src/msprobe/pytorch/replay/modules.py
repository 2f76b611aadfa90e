# SPDX-License-Identifier: Apache-2.0
"""`ModuleFunction`: a module of `torch.nn`, made again from its recorded settings."""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch import nn
from torch.func import functional_call

from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import CannotReplayError, Reason

_LIBRARY: Final = "torch.nn.modules."
# Arguments of classes that say where and in which type parameters are made.
_PLACEMENT: Final = ("device", "dtype")


class ModuleFunction:
    """A module of `torch.nn` as a function of its arguments and its parameters, by their names.

    It has no memory of its own: the recorded parameters take the places of the module's.

    Attributes:
        source: an expression that makes the module.
        parameters: names of its parameters.
    """

    def __init__(self, call: RecordedCall) -> None:
        """Make the module of a call.

        Raises:
            CannotReplayError: another class, or something of the module was not recorded.
        """
        self._module, self.source = _made(call)
        self.parameters = [name for name, _ in self._module.named_parameters()]
        if set(self.parameters) != call.parameters.keys():
            missing = sorted(set(self.parameters) ^ call.parameters.keys())[0]
            raise CannotReplayError(Reason.MODULE, f"{call.class_name}: parameter {missing}")
        if any(True for _ in self._module.buffers()):
            detail = f"{call.class_name}: its buffers were not recorded"
            raise CannotReplayError(Reason.MODULE, detail)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        parameters = {name: kwargs.pop(name) for name in self.parameters}
        return functional_call(self._module, parameters, args, kwargs)


def _arguments(of_type: type[nn.Module]) -> list[str]:
    """Return the names of the arguments that make a module."""
    of_base = issubclass(of_type, nn.RNNBase) and of_type is not nn.RNNBase
    names = inspect.signature(nn.RNNBase if of_base else of_type).parameters
    return [one for one in names if one not in (*_PLACEMENT, "mode" if of_base else "")]


def _made(call: RecordedCall) -> tuple[nn.Module, str]:
    settings, name = call.module, str(call.class_name)
    of_type = getattr(nn, name, None)
    if (
        settings is None
        or not settings.is_of_framework
        or not isinstance(of_type, type)
        or not of_type.__module__.startswith(_LIBRARY)
        or not issubclass(of_type, nn.Module)
    ):
        raise CannotReplayError(Reason.MODULE, name)
    known = _arguments(of_type)
    given = {key: value for key, value in settings.kwargs.items() if key in known}
    if issubclass(of_type, nn.RNN):
        given["nonlinearity"] = "relu" if settings.kwargs.get("mode") == "RNN_RELU" else "tanh"
    if not issubclass(of_type, nn.LSTM):
        given.pop("proj_size", None)
    if not issubclass(of_type, nn.RNNBase):  # its first one is the kind of cell
        given |= dict(zip(known, settings.args, strict=False))
    if "bias" in known and "bias" not in given:
        given["bias"] = any("bias" in one for one in call.parameters)
    if settings.training and "track_running_stats" in known:
        given["track_running_stats"] = False  # these are written, and not read
    try:
        with torch.device("meta"):
            made: nn.Module = of_type(**given)
    except Exception as exc:
        raise CannotReplayError(Reason.MODULE, f"{name}: {exc}") from exc
    if not settings.children <= {child for child, _ in made.named_children()}:
        raise CannotReplayError(Reason.MODULE, f"{name}: has other modules in it")
    shown = ", ".join(f"{key}={value!r}" for key, value in given.items())
    mode = "" if settings.training else ".eval()"
    return made.train(settings.training), f"torch.nn.{name}({shown}){mode}"
