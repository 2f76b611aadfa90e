# SPDX-License-Identifier: Apache-2.0
"""Find the function of MindSpore that a record's name means.

A dump may come from anywhere: names reach functions that are recorded, and classes of operators,
but nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from inspect import signature
from typing import Any, Final

from mindspore.ops import Primitive

from mindspore import Tensor, ops
from msprobe.dump.value_types import rebuild_value
from msprobe.mindspore.api_table import DISTRIBUTED, ApiTable
from msprobe.mindspore.replay.tensors import MAKERS
from msprobe.operators.lookup import is_in_place
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import CannotReplayError, Reason

Function = Callable[..., Any]
_PRIMITIVE: Final = "Primitive"
_FLAG: Final = "inplace"


@cache
def _recorded() -> Mapping[str, Function]:
    """Return the functions that are recorded, by the names of their records."""
    return {api.name: getattr(api.owner, api.attribute) for api in ApiTable().apis()}


def function_of(call: RecordedCall) -> Function:
    """Return the function that made a record.

    Raises:
        CannotReplayError: there is none, or none that can be run alone.
    """
    if call.class_name is not None:
        raise CannotReplayError(Reason.MODULE, call.api)
    if call.prefix in DISTRIBUTED or call.operator.communication is not None:
        raise CannotReplayError(Reason.COMMUNICATION, call.function)
    if call.operator.draws_random:
        raise CannotReplayError(Reason.RANDOM, call.function)
    if call.operator.allocates:
        raise CannotReplayError(Reason.NO_OUTPUT, "memory that nothing was written to")
    found = _primitive(call) if call.prefix == _PRIMITIVE else _recorded().get(call.function)
    if found is None:
        raise CannotReplayError(Reason.UNKNOWN, f"{call.function} is not in this MindSpore")
    return found


def _primitive(call: RecordedCall) -> Function | None:
    """Return the operator object of a record, made again with its recorded attributes."""
    kind = _primitive_class(call.api)
    if kind is None:
        return None
    try:
        made: Function = kind(**attributes_of(call))
    except (TypeError, ValueError) as exc:
        reason = str(exc).splitlines()[0]
        detail = f"{call.function}: its attributes are missing: {reason}"
        raise CannotReplayError(Reason.ARGUMENT, detail) from exc
    return made


def writes_arguments(
    api: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Return whether a call writes arguments: by its name, or by a flag, in its position as well.

    Args:
        api: its name, ``relu``.
        function: what is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if is_in_place(api) or kwargs.get(_FLAG) or kwargs.get("out") is not None:
        return True
    place = _place_of_flag(function) if any(one is True for one in args) else None
    return place is not None and place < len(args) and args[place] is True


@lru_cache(maxsize=1000)
def _place_of_flag(function: Function) -> int | None:
    try:
        names = list(signature(function).parameters)
    except (TypeError, ValueError):  # of C, without a signature
        return None
    return names.index(_FLAG) if _FLAG in names else None


def attributes_of(call: RecordedCall) -> dict[str, Any]:
    """Return what the operator object of a call was made with."""
    values = {key: rebuild_value(tree, MAKERS) for key, tree in call.attributes.items()}
    return {key: tuple(one) if isinstance(one, list) else one for key, one in values.items()}


def _primitive_class(api: str) -> Any:
    """Return the class of an operator; None for no operator.

    Args:
        api: its name; the attribute that holds it may be in front: ``matmul.MatMul``.
    """
    name = api.rpartition(".")[2]
    for home in (ops, ops.operations):
        kind = getattr(home, name, None)
        if isinstance(kind, type) and issubclass(kind, Primitive):
            return kind
    return None


def function_path(call: RecordedCall) -> str:
    """Return the name under which a script finds the function of a call."""
    if call.prefix == _PRIMITIVE:
        given = ", ".join(f"{key}={value!r}" for key, value in attributes_of(call).items())
        return f"mindspore.ops.operations.{call.api.rpartition('.')[2]}({given})"
    owner = next(api.owner for api in ApiTable().apis() if api.name == call.function)
    home = "mindspore.Tensor" if owner is Tensor else owner.__name__
    return f"{home}.{call.api}"
