# SPDX-License-Identifier: Apache-2.0
"""Record the calls that limit the gradients of a step: MindSpore has a function for a list of them.

What limits one tensor alone may be of the model, and is recorded like any other call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Final, NamedTuple

from mindspore import Tensor
from msprobe.capture.session import Session
from msprobe.dump.facts import Clip, Number
from msprobe.mindspore.adapter import host_values
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.start_state import print_of

_EUCLIDEAN: Final = 2.0
Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]


class _Limit(NamedTuple):
    """What a call was given: the gradients, the limit, and the order of the norm."""

    gradients: Sequence[Any]
    max: Any
    norm_type: Any


def _by_global_norm(x: Any, clip_norm: Any = 1.0, use_norm: Any = None) -> _Limit:
    del use_norm  # MindSpore allows None alone
    return _Limit(x, clip_norm, _EUCLIDEAN)


def _by_norm(
    x: Any, max_norm: Any, norm_type: Any = _EUCLIDEAN, error_if_nonfinite: Any = False
) -> _Limit:
    del error_if_nonfinite
    return _Limit(x, max_norm, norm_type)


def _by_value(x: Any, clip_value_min: Any = None, clip_value_max: Any = None) -> _Limit:
    low, high = _number(clip_value_min), _number(clip_value_max)
    return _Limit(x, high if low is not None and high == -low else None, None)


# The arguments are those of MindSpore's functions.
_FUNCTIONS: Final[Mapping[str, Callable[..., _Limit]]] = {
    "Functional.clip_by_global_norm": _by_global_norm,
    "Functional.clip_by_norm": _by_norm,
    "Functional.clip_by_value": _by_value,
}


class GradientLimits:
    """Puts such calls into the facts of the step.

    Attributes:
        are_recorded: whether they make records, too.
    """

    def __init__(self, session: Session) -> None:
        """Create it.

        Args:
            session: gets the facts, and learns of exceptions.
        """
        self._session = session
        self.are_recorded = session.config.optimizer_apis

    def takes(self, name: str, args: Arguments, kwargs: Keywords) -> bool:
        """Return whether a call is one of them.

        Args:
            name: of the function, without its number.
            args: of the call.
            kwargs: of the call.
        """
        if name not in _FUNCTIONS or not self._session.facts.is_open:
            return False
        given = args[0] if args else kwargs.get("x")
        return isinstance(given, tuple | list) and all(isinstance(one, Tensor) for one in given)

    def put(self, name: str, args: Arguments, kwargs: Keywords) -> None:
        """Put a call that has returned; it left its arguments as they were."""
        quietly(self._session, "clipping", self._put, name, args, kwargs)

    def _put(self, name: str, args: Arguments, kwargs: Keywords) -> None:
        gradients, limit, norm_type = _FUNCTIONS[name](*args, **kwargs)
        order = _number(norm_type)
        clip = Clip(
            function=name.rpartition(".")[2],
            max=_number(limit),
            norm_type=order,
            total_norm=_total_norm(gradients) if order == _EUCLIDEAN else None,
            parameters=len(gradients),
        )
        self._session.facts.append("events", clip)


def _total_norm(gradients: Sequence[Any]) -> Number:
    norms = [print_of(host_values(one))[1] for one in gradients]
    known = [norm for norm in norms if norm is not None]
    return math.hypot(*known) if len(known) == len(norms) else None


def _number(value: Any) -> Number:
    if isinstance(value, Real):
        return float(value)
    values = host_values(value) if isinstance(value, Tensor) and value.size == 1 else None
    return None if values is None else float(values.reshape(-1)[0])
