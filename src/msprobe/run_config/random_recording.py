# SPDX-License-Identifier: Apache-2.0
"""Records the random functions that a script calls: places, counts, and generators' states.

Functions are replaced by ones that note the call and pass it on, arguments and result untouched.
"""

from __future__ import annotations

import ctypes
import functools
import linecache
import random
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np

from msprobe.dump.crc import crc32
from msprobe.dump.records import JsonTree

_SEEDING: Final = ("seed", "set_seed", "manual_seed", "manual_seed_all", "default_rng")
_MAX_FRAMES: Final = 64
_MAX_GIVEN: Final = 64
# Numbers and words given to these say what is drawn; those of others are sizes, which follow from
# the data or other settings.
_DISTRIBUTIONS: Final = (
    *("normal", "normal_", "uniform", "uniform_", "gauss", "normalvariate", "bernoulli_"),
    *("log_normal_", "cauchy_", "exponential_", "geometric_", "randint", "randrange"),
)
_PLAIN: Final = (int, float, str)
# Where a Mersenne twister stands behind its seed; NumPy's own seed at the start leaves it at 623.
_SEEDED_STANDS: Final = (623, 624)
_WORDS: Final = 624  # of its state
# Of an object of Python's, and of the number that tells where its generator stands.
_HEAD: Final = object.__basicsize__
_STAND: Final = 4
_OWN_FOLDER: Final = str(Path(__file__).parents[1])

_Place = tuple[tuple[CodeType, int], ...]


@dataclass(frozen=True, slots=True)
class RandomFunctions:
    """Functions of one module or class.

    Attributes:
        prefix: prefix of their names in the pack, ``torch.cuda``.
        owner: the module or class.
        names: their names; those that it lacks are passed over.
    """

    prefix: str
    owner: Any
    names: tuple[str, ...]


_PYTHON_AND_NUMPY: Final = (
    RandomFunctions(
        "random",
        random,
        (
            *("seed", "random", "randint", "randrange", "uniform", "gauss", "normalvariate"),
            *("choice", "choices", "sample", "shuffle", "getrandbits"),
        ),
    ),
    RandomFunctions(
        "np.random",
        np.random,
        (
            *("seed", "rand", "randn", "randint", "random", "random_sample", "uniform", "normal"),
            *("choice", "shuffle", "permutation", "default_rng"),
        ),
    ),
)


def _never() -> bool:
    return False


def _no_introduction(noted: Any, original: Any) -> Callable[[], None]:
    del noted, original
    return _nothing


def _nothing() -> None:
    """Do nothing."""


class RandomRecorder:
    """Notes the calls of one process."""

    def __init__(
        self,
        functions: Sequence[RandomFunctions],
        *,
        library_path: str,
        keeps_out: Callable[[], bool] = _never,
        introduce: Callable[[Any, Any], Callable[[], None]] = _no_introduction,
    ) -> None:
        """Prepare; nothing is replaced yet.

        Args:
            functions: functions to watch besides those of Python and NumPy.
            library_path: the framework's folder, whose files are not the user's.
            keeps_out: whether a call must not be noted now (code is being compiled).
            introduce: makes a replacement known to the framework; returns the undo.
        """
        self._functions = (*_PYTHON_AND_NUMPY, *functions)
        self._library_paths = (_OWN_FOLDER, library_path, "<frozen")
        self._keeps_out = keeps_out
        self._introduce = introduce
        self._lock = threading.Lock()
        self._counts: dict[str, dict[_Place, int]] = {}
        self._given: dict[str, dict[_Place, list[str]]] = {}  # seeds, or settings of what is drawn
        self._is_watching = False

    def watch(self) -> Iterator[Callable[[], None]]:
        """Replace the functions; yield how to put each back. Does nothing while it is watching."""
        if self._is_watching:
            return
        self._is_watching = True
        for group in self._functions:
            for name in group.names:
                original = getattr(group.owner, name, None)
                if callable(original):
                    yield self._replace(group.owner, name, f"{group.prefix}.{name}", original)
        yield self._end

    def clear(self) -> None:
        """Forget all calls."""
        with self._lock:
            self._counts.clear()
            self._given.clear()

    def as_json(self) -> dict[str, JsonTree]:
        """Return the calls by function: from which place, how often, with which arguments.

        Stacks begin with the outermost frame; frames of libraries are left out.
        """
        with self._lock:
            counts = {name: dict(places) for name, places in self._counts.items()}
            given = {name: dict(places) for name, places in self._given.items()}
        found: dict[str, JsonTree] = {}
        for name, places in counts.items():
            entries: dict[tuple[str, ...], dict[str, JsonTree]] = {}
            for place, count in places.items():
                # Places that differ inside a library only are one place of the user's.
                frames = tuple(self._frames(place))
                entry = entries.setdefault(frames, {"count": 0, "stack": list(frames)})
                entry["count"] += count
                if values := given.get(name, {}).get(place):
                    key = "seeds" if name.rpartition(".")[2] in _SEEDING else "arguments"
                    entry[key] = [*entry.get(key, ()), *values]
            found[name] = list(entries.values())
        return found

    def _replace(
        self, owner: Any, name: str, label: str, original: Callable[..., Any]
    ) -> Callable[[], None]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if not self._keeps_out():
                self._note(label, name, args, kwargs, sys._getframe(1))
            return original(*args, **kwargs)

        functools.update_wrapper(noted, original)
        is_own = name in vars(owner)
        setattr(owner, name, noted)
        forget = self._introduce(noted, original)

        def undo() -> None:
            forget()
            # Another library may have replaced it since.
            if vars(owner).get(name) is not noted:
                return
            if is_own:
                setattr(owner, name, original)
            else:  # inherited
                delattr(owner, name)

        return undo

    def _note(self, label: str, name: str, args: Any, kwargs: Any, frame: FrameType) -> None:
        place = _place(frame)
        with self._lock:
            places = self._counts.setdefault(label, {})
            places[place] = places.get(place, 0) + 1
            if places[place] > _MAX_GIVEN:
                return
            if name in _DISTRIBUTIONS:
                args = [each for each in args if type(each) in _PLAIN]
                kwargs = {key: each for key, each in kwargs.items() if type(each) in _PLAIN}
            if name in _SEEDING or name in _DISTRIBUTIONS:
                text = ", ".join([*map(repr, args), *(f"{key}={kwargs[key]!r}" for key in kwargs)])
                self._given.setdefault(label, {}).setdefault(place, []).append(text[:100])

    def _frames(self, place: _Place) -> list[str]:
        frames = []
        for code, line in reversed(place):
            path = code.co_filename
            if not path.startswith(self._library_paths):
                text = linecache.getline(path, line).strip()
                frames.append(f"File {path}, line {line}, in {code.co_name}, {text}")
        return frames

    def _end(self) -> None:
        self._is_watching = False


def python_and_numpy_states() -> Iterator[tuple[str, str]]:
    """Yield the generators of Python and NumPy with a checksum of their state; draws nothing."""
    yield "python", state_checksum(_python_state())
    yield "numpy", state_checksum(_numpy_state())


def _python_state() -> bytes:
    """Return the state of Python's shared generator: its words, where it stands, what it keeps."""
    generator: Any = random._inst
    if not _is_python_readable():
        version, words, gauss = random.getstate()
        return array("I", words).tobytes() + repr((version, gauss)).encode()
    words = _python_words(generator)
    return words + repr((generator.VERSION, generator.gauss_next)).encode()


@functools.cache
def _is_python_readable() -> bool:
    """Whether a generator of Python lies in memory as its stand and its words.

    Python makes a number of each word.
    """
    generator = random.Random(7)
    generator.random()
    if type(generator).__basicsize__ < _HEAD + _STAND + 4 * _WORDS:
        return False
    return _python_words(generator) == array("I", generator.getstate()[1]).tobytes()


def _python_words(generator: random.Random) -> bytes:
    memory = ctypes.string_at(id(generator) + _HEAD, _STAND + 4 * _WORDS)
    return memory[_STAND:] + memory[:_STAND]


def _numpy_state() -> bytes:
    """Return the state of NumPy's shared generator: its words, and where it stands among them."""
    generator = _numpy_generator()
    if not isinstance(generator, np.random.MT19937):  # the user's choice
        return repr(generator.state).encode()
    return b"%b%d" % _words_and_stand(generator)


def _numpy_generator() -> Any:
    return np.random.get_bit_generator()  # type: ignore[attr-defined]


def _words_and_stand(generator: np.random.MT19937) -> tuple[bytes, int]:
    return _read_state(generator) if _is_readable() else _state_of_words(generator)


@functools.cache
def _is_readable() -> bool:
    """Whether a Mersenne twister lies in memory as its words and its stand.

    NumPy takes 0.1 ms to hand these out one by one.
    """
    generator = np.random.MT19937(0)
    generator.random_raw(7)
    return _read_state(generator) == _state_of_words(generator)


def _read_state(generator: np.random.MT19937) -> tuple[bytes, int]:
    """Return the words, and where it stands among them."""
    memory = ctypes.string_at(generator.ctypes.state_address, 4 * _WORDS + 4)
    return memory[:-4], int.from_bytes(memory[-4:], sys.byteorder)


def _state_of_words(generator: np.random.MT19937) -> tuple[bytes, int]:
    state: Any = generator.state["state"]
    return np.asarray(state["key"]).tobytes(), state["pos"]


def undrawn_generators() -> list[str]:
    """Return those of Python's and NumPy's generators that nothing was drawn from since their seed.

    Both are Mersenne twisters, which make 624 words at once: where they stand tells it, but for one
    in 624 of those that were drawn from.
    """
    stands = {"python": random.getstate()[1][-1], "numpy": _numpy_stand()}
    return [name for name, stand in stands.items() if stand in _SEEDED_STANDS]


def _numpy_stand() -> int | None:
    generator = _numpy_generator()
    if not isinstance(generator, np.random.MT19937):
        return None
    return _words_and_stand(generator)[1]


def state_checksum(content: bytes) -> str:
    """Return eight hexadecimal digits for the state of a generator."""
    return f"{crc32(content):08x}"


def _place(frame: FrameType | None) -> _Place:
    """Return code and line of each frame, innermost first; cheap, nothing is formatted."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)
