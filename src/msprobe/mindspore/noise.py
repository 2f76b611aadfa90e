# SPDX-License-Identifier: Apache-2.0
"""The task ``noise_floor`` in MindSpore's dynamic graph: results of operators are moved at random.

A dispatch mode (``MsDispatchMode``, MindSpore 2.10) is told of operators as they run: those of the
forward pass, and those of the backward pass that MindSpore runs one by one. Gradients that it
computes in a compiled part (of ``nn.LayerNorm``, of most optimizers) stay as they are.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from mindspore.utils.ms_dispatch import MsDispatchMode
from numpy.typing import NDArray

from mindspore import Tensor
from mindspore import _c_expression as core
from msprobe.capture.noise_floor import declare, step_seed
from msprobe.capture.session import Session
from msprobe.mindspore.adapter import on_host
from msprobe.mindspore.guard import quietly
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import operator_of

# Type of the bits, and the mask of the fraction.
_BITS: Final[dict[str, tuple[Any, int]]] = {
    "float64": (np.int64, (1 << 52) - 1),
    "float32": (np.int32, (1 << 23) - 1),
    "float16": (np.int16, (1 << 10) - 1),
    "bfloat16": (np.int16, (1 << 7) - 1),
}
_GRADIENT: Final = "Grad"
_IN_PLACE: Final = "Inplace"
_modes: Final[Any] = core._DispatchGuardStack


class NoiseMode(MsDispatchMode):  # type: ignore[misc]  # MindSpore has no types
    """Moves the results of operators, between `start` and `stop`."""

    def __init__(self, session: Session, seed: int) -> None:
        """Create it, not yet installed.

        Args:
            session: tells the step, and takes errors.
            seed: of the run; each step has a sequence of moves of its own.
        """
        self._session = session
        self._seed = seed
        self._step: int | None = None
        self._random = np.random.default_rng(0)
        # How many modes there were with this one on top; 0 while it is not installed.
        self._depth = 0
        # MindSpore takes no lock to let go of a mode that is left when Python ends.
        atexit.register(self.suspend)

    def install(self) -> None:
        """Begin to move results; the session's undo stack gets the way back."""
        session = self._session
        declare(session, self._seed)
        if self._step != session.step_number:
            self._step = session.step_number
            self._random = np.random.default_rng(step_seed(self._seed, self._step))
        self.resume()
        session.undo.callback(self.suspend)

    def resume(self) -> None:
        """Put the mode on the stack."""
        if not self._depth or _modes.depth() < self._depth:
            _modes.push(self)
            self._depth = _modes.depth()

    def suspend(self) -> None:
        """Take the mode off the stack; under a mode of the user it stays, and does nothing."""
        if self._depth and _modes.depth() == self._depth:
            _modes.pop()
            self._depth = 0

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run one operator and move what it rounded."""
        result = func(*args) if kwargs is None else func(*args, **kwargs)
        if not self._session.capturing:
            self.suspend()  # left under a mode of the user
        else:
            quietly(self._session, "noise", self._move, func.name, args, result)
        return result

    def _move(self, name: str, args: Sequence[Any], result: Any) -> None:
        given = list(_floats(args))
        if not given:
            return  # made of constants and whole numbers
        made = list(_floats((result,)))
        if not _rounds(name):
            finest = min(map(_epsilon, given))
            made = [each for each in made if _epsilon(each) > finest]
        if not name.startswith(_IN_PLACE):
            places = {each.data_ptr() for each in given}
            made = [each for each in made if each.data_ptr() not in places]
        for each in made:
            values = each.asnumpy()
            move(values, self._random)
            if not on_host():
                each.assign_value(Tensor(values, each.dtype))


def move(values: NDArray[Any], random: np.random.Generator) -> None:
    """Move elements by a unit in the last place, in place and at random.

    One element of eight goes to the next number upwards in size, one downwards. Zeros, powers of
    two, the numbers before them, what is not finite, and a whole number that is alone stay: see
    ``pytorch/values/stochastic_rounding.py`` for the reasons.

    Args:
        values: contiguous floating-point numbers.
        random: draws the moves.
    """
    kind = _BITS.get(str(values.dtype))
    if kind is None or not values.size or (values.size == 1 and np.all(values == np.trunc(values))):
        return
    integer, mask = kind
    bits = values.reshape(-1).view(integer)
    octets = random.integers(-128, 128, bits.size, np.int8)
    steps = np.where(octets & 3 == 0, octets >> 6 | 1, 0).astype(integer)
    bits += steps * ((bits + 1 & mask) > 1)


def _floats(values: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors among values and in sequences of them."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _floats(value)
        elif isinstance(value, Tensor) and _name(value) in _BITS:
            yield value


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).lower()


def _epsilon(tensor: Tensor) -> float:
    return epsilon_of(_name(tensor))


@cache
def _rounds(name: str) -> bool:
    """Return whether an operator, ``MatMulExt``, rounds its results."""
    plain = name.removeprefix(_IN_PLACE).removesuffix(_GRADIENT)
    return operator_of("Primitive", plain, is_mindspore=True).rounds
