# SPDX-License-Identifier: Apache-2.0
"""Which random functions a script calls, from where, and how often.

Functions are replaced by ones that note the call and pass it on, arguments and result untouched.
While code is compiled they stay out of the way.
"""

from __future__ import annotations

import functools
import linecache
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np
import torch

from msprobe.dump.records import JsonTree
from msprobe.pytorch.tracing import is_tracing

# Not dropout: `torch.jit.script` compiles it with the functions that use it, and would refuse ours.
_FUNCTIONS: Final = (
    ("random", random, "seed random randint randrange uniform gauss choice choices sample shuffle"),
    ("random", random, "normalvariate getrandbits"),
    ("np.random", np.random, "seed rand randn randint random random_sample uniform normal choice"),
    ("np.random", np.random, "shuffle permutation default_rng"),
    ("torch", torch, "manual_seed seed set_rng_state rand rand_like randn randn_like randint"),
    ("torch", torch, "randint_like randperm normal poisson bernoulli multinomial"),
    ("torch.cuda", torch.cuda, "manual_seed manual_seed_all seed seed_all set_rng_state"),
    ("torch.Tensor", torch.Tensor, "bernoulli_ cauchy_ exponential_ geometric_ log_normal_"),
    ("torch.Tensor", torch.Tensor, "normal_ random_ uniform_ bernoulli multinomial"),
)
_SEEDING: Final = ("seed", "manual_seed", "manual_seed_all", "default_rng")
_MAX_FRAMES: Final = 64
_NOT_THE_USERS: Final = (
    str(PurePath(__file__).parent),
    str(PurePath(torch.__file__).parent),
    "<frozen",
)

_Place = tuple[tuple[CodeType, int], ...]


class RandomCallNotes:
    """The calls of one process."""

    def __init__(self) -> None:
        """Start without any."""
        self._lock = threading.Lock()
        self._counts: dict[str, dict[_Place, int]] = {}
        self._seeds: dict[str, dict[_Place, list[str]]] = {}
        self._is_watching = False

    def watch(self) -> Iterator[Callable[[], None]]:
        """Replace the functions; yield how to put each back. Does nothing while it is watching."""
        if self._is_watching:
            return
        self._is_watching = True
        for prefix, owner, names in _FUNCTIONS:
            for name in names.split():
                original = getattr(owner, name, None)
                if callable(original):
                    yield self._replace(owner, name, f"{prefix}.{name}", original)
        yield self._end

    def clear(self) -> None:
        """Forget all calls."""
        with self._lock:
            self._counts.clear()
            self._seeds.clear()

    def as_json(self) -> dict[str, JsonTree]:
        """Return the calls by function: from which place, how often, with which seeds.

        Stacks begin with the outermost frame; frames of torch and of msprobe are left out.
        """
        with self._lock:
            counts = {name: dict(places) for name, places in self._counts.items()}
            seeds = {name: dict(places) for name, places in self._seeds.items()}
        found: dict[str, JsonTree] = {}
        for name, places in counts.items():
            entries: dict[tuple[str, ...], dict[str, JsonTree]] = {}
            for place, count in places.items():
                # Places that differ inside torch only are one place of the user's.
                frames = tuple(_frames(place))
                entry = entries.setdefault(frames, {"count": 0, "stack": list(frames)})
                entry["count"] += count
                if values := seeds.get(name, {}).get(place):
                    entry["seeds"] = [*entry.get("seeds", ()), *values]
            found[name] = list(entries.values())
        return found

    def _replace(
        self, owner: Any, name: str, label: str, original: Callable[..., Any]
    ) -> Callable[[], None]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            # In this order: the compiler knows the answer to the first question.
            if not torch.compiler.is_compiling() and not is_tracing():
                self._note(label, name, args, kwargs)
            return original(*args, **kwargs)

        functools.update_wrapper(noted, original)
        is_own = name in vars(owner)
        setattr(owner, name, noted)
        forget = _introduce_to_jit(noted, original)

        def undo() -> None:
            forget()
            # Somebody else may have replaced it since.
            if vars(owner).get(name) is not noted:
                return
            if is_own:
                setattr(owner, name, original)
            else:  # inherited
                delattr(owner, name)

        return undo

    def _note(self, label: str, name: str, args: Any, kwargs: Any) -> None:
        place = _place(sys._getframe(2))
        with self._lock:
            places = self._counts.setdefault(label, {})
            places[place] = places.get(place, 0) + 1
            if name in _SEEDING and places[place] <= _MAX_FRAMES:
                text = ", ".join([*map(repr, args), *(f"{key}={kwargs[key]!r}" for key in kwargs)])
                self._seeds.setdefault(label, {}).setdefault(place, []).append(text[:100])

    def _end(self) -> None:
        self._is_watching = False


def _introduce_to_jit(noted: Any, original: Any) -> Callable[[], None]:
    """Let `torch.jit.script` take `noted` for the function it stands for; return the undo."""
    jit: Any = torch.jit._builtins  # without types
    table = jit._get_builtin_table()
    operator = table.get(id(original))
    if operator is not None:
        table[id(noted)] = operator

    def forget() -> None:
        table.pop(id(noted), None)

    return forget


def _place(frame: FrameType | None) -> _Place:
    """Return code and line of each frame, innermost first; cheap, nothing is formatted."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _frames(place: _Place) -> list[str]:
    frames = []
    for code, line in reversed(place):
        path = code.co_filename
        if path.startswith(_NOT_THE_USERS):
            continue
        text = linecache.getline(path, line).strip()
        frames.append(f"File {path}, line {line}, in {code.co_name}, {text}")
    return frames
