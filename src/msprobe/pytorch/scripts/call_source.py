# SPDX-License-Identifier: Apache-2.0
"""One recorded call as Python source: what is passed to the function, and what it returns."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from msprobe.dump.values import PartPath
from msprobe.errors import UnsupportedError
from msprobe.operators.lookup import is_in_place
from msprobe.pytorch.replay.functions import function_path
from msprobe.pytorch.replay.modules import ModuleFunction
from msprobe.pytorch.scripts.tensor_source import number_text
from msprobe.replay.recorded_calls import RecordedCall

_SHOWN = (torch.layout, torch.memory_format)


@dataclass(slots=True)
class CallSource:
    """The source of one call.

    Attributes:
        text: the call as an expression of its inputs.
        inputs: tensors, types and devices that it is made with, by name.
        places: where each of these tensors is passed, in the form of gradients' places.
        is_known: whether the function can be named; an `autograd.Function` cannot.
    """

    text: str = ""
    inputs: dict[str, Any] = field(default_factory=dict)
    places: dict[PartPath, str] = field(default_factory=dict)
    is_known: bool = True


def call_source(
    call: RecordedCall, args: Sequence[Any], kwargs: Mapping[str, Any], function: Any
) -> CallSource:
    """Return the source of a call.

    Args:
        call: the call.
        args: its positional arguments, rebuilt.
        kwargs: its keyword arguments.
        function: the function that the record names; None if it is not there.

    Raises:
        UnsupportedError: an argument cannot be written as Python source.
    """
    return _Writer(call, kwargs).written(args, kwargs, function)


def output_text(outputs: Any, place: PartPath) -> str:
    """Return the expression of a result: ``output``, ``output[1]``, ``output.values``.

    Args:
        outputs: the recorded results.
        place: place of one of them, such as ``(0,)``.
    """
    first, *rest = place
    text = "output"
    if isinstance(first, str):
        rest = [first, *rest]
    elif len(outputs) > 1:
        text += f"[{first}]"
    for key in rest:
        text += f"[{key}]" if isinstance(key, int) else f".{_require_identifier(key)}"
    return text


def _require_identifier(name: str) -> str:
    """Return a name that the dump gives, if nothing but a name can be made of it.

    Raises:
        UnsupportedError: it is something else; written into a script, it would be run.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UnsupportedError(f"{name!r} is no name that a script can hold")
    return name


class _Writer:
    def __init__(self, call: RecordedCall, kwargs: Mapping[str, Any]) -> None:
        self._call = call
        self._taken = set(kwargs)
        self._names: dict[int, str] = {}
        self._found = CallSource()

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any], function: Any) -> CallSource:
        texts = [self._value(one, self._positional(i), ("output", i)) for i, one in enumerate(args)]
        changes_first = is_in_place(self._call.api) and bool(texts)
        if changes_first and isinstance(args[0], torch.Tensor):
            texts[0] += ".clone()"  # a leaf must not be written into
        by_name = {
            # Parameters of modules in a module: "out_proj.weight".
            name: self._value(one, name.replace(".", "_"), ("output_kwargs", name))
            for name, one in kwargs.items()
        }
        if isinstance(function, ModuleFunction):
            for part in kwargs.keys() - function.parameters:
                _require_identifier(part)
            if function.source is None:
                raise UnsupportedError(f"{self._call.class_name} cannot be made in a few lines")
            self._found.text = _module_text(function, texts, by_name)
            return self._found
        texts += [f"{name}={text}" for name, text in by_name.items()]
        for part in (*self._call.prefix.split("."), *self._call.api.split("."), *kwargs):
            _require_identifier(part)
        path = function_path(self._call.prefix, self._call.api, function)
        self._found.is_known = path is not None
        self._found.text = f"{path}({', '.join(texts)})"
        if changes_first and isinstance(args[0], list):
            self._found.text += f" or {texts[0]}"  # such functions return None
        return self._found

    def _positional(self, index: int) -> str:
        known = self._call.operator.arguments
        name = known[index] if index < len(known) else f"input{index}"
        fits = name.isidentifier() and not keyword.iskeyword(name) and name not in self._taken
        return name if fits else f"input{index}"

    def _value(self, value: Any, name: str, place: PartPath) -> str:
        if isinstance(value, torch.Tensor):
            name = self._names.setdefault(id(value), name)
            self._found.inputs[name] = value
            self._found.places[place] = name
            return name
        if isinstance(value, (torch.device, torch.dtype)):
            self._found.inputs[name] = value
            return name
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            parts = [
                self._value(one, f"{name}_{key}", (*place, key)) for key, one in enumerate(value)
            ]
            if isinstance(value, list):
                return f"[{', '.join(parts)}]"
            return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
        if isinstance(value, dict):
            parts = [
                f"{key!r}: {self._value(one, f'{name}_{number}', (*place, key))}"
                for number, (key, one) in enumerate(value.items())
            ]
            return f"{{{', '.join(parts)}}}"
        return _plain(value, place)


def _module_text(function: ModuleFunction, texts: Sequence[str], by_name: Mapping[str, str]) -> str:
    """Return the call of a module whose parameters are given."""
    parameters = ", ".join(f"{name!r}: {by_name[name]}" for name in function.parameters)
    others = ", ".join(
        f"{name!r}: {text}" for name, text in by_name.items() if name not in function.parameters
    )
    arguments = f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    ending = f", {{{others}}}" if others else ""
    return f"torch.func.functional_call({function.source}, {{{parameters}}}, {arguments}{ending})"


def _plain(value: Any, place: PartPath) -> str:
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, (int, float, complex)):
        return number_text(value)
    if isinstance(value, torch.Size):
        return str(tuple(value))
    if isinstance(value, _SHOWN):
        return str(value)
    if value is ...:
        return "..."
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    where = ".".join(map(str, place))
    raise UnsupportedError(f"{where} is a {type(value).__name__}, which no script can hold")
