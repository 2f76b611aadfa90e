# SPDX-License-Identifier: Apache-2.0
"""`HostDraws`: see draws of Python's `random` and of `numpy.random` while they are recorded.

The functions of both modules are exchanged for ones that report and call them. Draws by a name
that was imported before (``from random import shuffle``) are seen by the generator's state alone.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, Protocol

_READING: Final = frozenset(("getstate", "get_state", "get_bit_generator"))
_SETTING: Final = frozenset(("seed", "setstate", "set_state", "set_bit_generator"))
_OWN: Final = "numpy.random.default_rng"
# Of `numpy.random`, which are no methods of its generator.
_PLAIN_FUNCTIONS: Final = frozenset(("seed", "set_bit_generator", "sample", "ranf"))


class OnDraw(Protocol):
    """Is told of a draw."""

    def __call__(self, name: str, generator: str, before: str, after: str) -> None:
        """Take the function, the generator, and checksums of its state before and after.

        Before is empty for a function that sets the state.
        """


class HostDraws:
    """Watches the global generators of Python and NumPy, in the thread that creates it."""

    def __init__(self, on_draw: OnDraw) -> None:
        """Report draws to `on_draw`; nothing is exchanged before `install`."""
        self._on_draw = on_draw
        self._thread = threading.get_ident()
        self._is_inside = False
        self._states: dict[str, str] = {}
        self._made: list[tuple[Any, dict[str, Any], str]] = []
        self._undo: list[tuple[ModuleType, str, Any, Any]] = []

    def install(self) -> None:
        """Begin to watch."""
        for generator, module, owner in _owners():
            self._states[generator] = state_of(generator)
            for name, function in list(vars(module).items()):
                is_own = callable(function) and _owner_of(function) is owner
                is_plain = generator == "numpy" and name in _PLAIN_FUNCTIONS
                if name in _READING or not (is_own or is_plain):
                    continue
                ours = self._reporting(function, f"{module.__name__}.{name}", generator)
                self._undo.append((module, name, function, ours))
                setattr(module, name, ours)

        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            function, ours = numpy_random.default_rng, self._making(numpy_random.default_rng)
            self._undo.append((numpy_random, "default_rng", function, ours))
            setattr(numpy_random, "default_rng", ours)  # noqa: B010 - a module without types

    def remove(self) -> None:
        """Put the functions back, unless others have replaced them since."""
        for module, name, function, ours in reversed(self._undo):
            if vars(module).get(name) is ours:
                setattr(module, name, function)
        self._undo.clear()

    def look(self) -> None:
        """Report draws that no exchanged function has made since the last look."""
        self.look_at_made()
        for generator, before in list(self._states.items()):
            after = state_of(generator)
            if after != before:
                self._states[generator] = after
                self._on_draw("unseen call", generator, before, after)

    def _reporting(
        self, function: Callable[..., Any], name: str, generator: str
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def reporting(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self.look()
            self._is_inside = True
            try:
                return function(*args, **kwargs)
            finally:
                self._is_inside = False
                self._note(name, generator)

        return reporting

    def look_at_made(self) -> None:
        """Report generators that were made without a seed, once numbers were drawn from them."""
        for entry in self._made[:]:
            generator, before, line = entry
            if generator.state != before:
                self._made.remove(entry)
                after = _checksum(generator.state)
                self._on_draw(f"{_OWN} of {line}", "numpy", _checksum(before), after)

    def _making(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Keep each generator of NumPy that is made without a seed: the system gives it one."""

        @functools.wraps(function)
        def making(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            if not (args or kwargs) and threading.get_ident() == self._thread:
                self._made.append(
                    (made.bit_generator, made.bit_generator.state, _line_of(sys._getframe(1)))
                )
            return made

        return making

    def _note(self, name: str, generator: str) -> None:
        before, after = self._states[generator], state_of(generator)
        if after != before:
            self._states[generator] = after
            sets = name.rpartition(".")[2] in _SETTING
            self._on_draw(name, generator, "" if sets else before, after)


def _owners() -> Iterator[tuple[str, ModuleType, Any]]:
    """Yield each generator's name, its module, and the object whose methods the module shares."""
    yield "python", random, _owner_of(random.random)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        yield "numpy", numpy_random, _owner_of(numpy_random.rand)


def _owner_of(function: Callable[..., Any]) -> Any:
    """Return the object whose method a function is, also where somebody wrapped it."""
    return getattr(inspect.unwrap(function), "__self__", None)


def state_of(generator: str) -> str:
    """Return a checksum of the state of Python's or NumPy's global generator."""
    if generator == "python":
        return f"{zlib.crc32(repr(random.getstate()).encode()):08x}"
    return _checksum(sys.modules["numpy.random"].get_state(legacy=False))


def _line_of(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _checksum(state: Any) -> str:
    return f"{zlib.crc32(repr(_plain(state)).encode()):08x}"


def _plain(value: Any) -> Any:
    """Return a state with its arrays as bytes: their text leaves out the middle."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value.tobytes() if hasattr(value, "tobytes") else value
