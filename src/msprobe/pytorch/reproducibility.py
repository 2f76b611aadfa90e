# SPDX-License-Identifier: Apache-2.0
"""`record_random`: write down every call that draws random numbers; two such files can be compared.

    with record_random("random_logs", seed=1234):
        train()

``msprobe compare NEW.csv OLD.csv`` then names the first draw that differs.
"""

from __future__ import annotations

import csv
import os
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from msprobe.capture import host_draws
from msprobe.capture.session import current_session
from msprobe.pytorch.interception.guard import guard
from msprobe.pytorch.training.seed import fix_chance
from msprobe.pytorch.values.random_state import generators_of

__all__ = ["record_random"]

# Frames of torch, and of this package's own wrappers, are none of the program's.
_LIBRARIES: Final = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(__file__).parents[1]}{os.sep}",
)
_COLUMNS: Final = (
    *("api_name", "stack", "number", "call", "generator", "before", "after", "line"),
    *("step", "recorded", "own"),
)


@contextmanager
def record_random(
    folder: str | os.PathLike[str],
    *,
    seed: int | None = None,
    deterministic: bool = False,
    isolate: Sequence[str] = (),
) -> Iterator[Path]:
    """Record each call of PyTorch, Python and NumPy that draws random numbers, in this thread.

    The file is ``random_{rank}_{time}.csv``, or ``random_proc{id}_{time}.csv`` without a process
    group. It has a row for each generator that a call moved: name and stack of the call, its number
    among all draws and among the draws of this name, the generator, checksums of its state before
    and after (before is empty for a call that sets the state), the line of the program, the step of
    the debugger, whether its recording had begun, and whether the program has made the generator
    itself. Rows are flushed at once.

    Args:
        folder: where to; made if missing.
        seed: seeds Python, NumPy and PyTorch first; None leaves them.
        deterministic: prefer deterministic kernels from now on.
        isolate: parts of names. A call whose name contains one draws from a stream of its own,
            given by its name and number, and leaves the generators as they were: calls
            added or left out elsewhere do not change its numbers, nor it those of others.

    Yields:
        The file.

    Raises:
        ConfigError: the seed is out of range.
        OSError: the file cannot be written.
    """
    fix_chance(seed, deterministic=deterministic)
    path = _file_in(Path(folder))
    with path.open("w", encoding="utf-8", newline="") as file:
        log = _RandomLog(file, isolate, seed or 0)
        log.host.install()
        try:
            with _RandomMode(log):
                yield path
        finally:
            log.host.remove()
            log.host.look()


def _file_in(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    distributed = torch.distributed
    has_rank = distributed.is_available() and distributed.is_initialized()
    who = str(distributed.get_rank()) if has_rank else f"proc{os.getpid()}"
    stamp = time.strftime("%Y%m%d%H%M%S")
    return folder / f"random_{who}_{stamp}_{time.monotonic_ns() % 10**6:06}.csv"


class _RandomLog:
    """Writes the rows.

    Attributes:
        host: sees draws of Python and NumPy.
    """

    def __init__(self, file: IO[str], isolate: Sequence[str], seed: int) -> None:
        self.host = host_draws.HostDraws(self.note_host)
        self._file = file
        self._rows = csv.writer(file)
        self._isolate = tuple(isolate)
        self._seed = seed
        self._number = 0
        self._process = os.getpid()
        self._calls: Counter[str] = Counter()
        self._rows.writerow(_COLUMNS)
        file.flush()

    def run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a call, and write a row if it drew random numbers."""
        self.host.look_at_made()
        generators = generators_of(args, kwargs)
        before = [generator.get_state() for generator in generators]
        name = _name_of(function)
        is_isolated = any(part in name for part in self._isolate)
        if is_isolated:
            stream = zlib.crc32(f"{name} {self._calls[name]} {self._seed}".encode())
            for generator in generators:
                generator.manual_seed(stream)
        began = [generator.get_state() for generator in generators] if is_isolated else before
        try:
            return function(*args, **kwargs)
        finally:
            self._note(name, generators, began)
            if is_isolated:
                for generator, state in zip(generators, before, strict=True):
                    generator.set_state(state)

    def _note(self, name: str, generators: Sequence[Generator], began: Sequence[Tensor]) -> None:
        states = [
            (one, before, one.get_state()) for one, before in zip(generators, began, strict=True)
        ]
        with guard():  # a debugger that records must not see our reads
            moved = [found for found in states if not torch.equal(found[1], found[2])]
        if not moved:
            return
        self.host.look()
        for generator, before, after in moved:
            sums = _checksum(before), _checksum(after)
            self._write(name, str(generator.device), *sums, is_own=_is_own(generator))
        self._count(name)

    def note_host(self, name: str, generator: str, before: str, after: str) -> None:
        """Write a row for a draw of Python or NumPy."""
        self._write(name, generator, before, after)
        self._count(name)

    def _write(
        self, name: str, generator: str, before: str, after: str, *, is_own: bool = False
    ) -> None:
        if os.getpid() != self._process:  # the worker of a data loader shares the file
            return
        session = current_session()
        now = ("", 0) if session is None else (session.step_number, int(session.calls.any_began))
        stack, line = _stack()
        number, call = self._number, self._calls[name]
        row = (name, stack, number, call, generator, before, after, line, *now, int(is_own))
        self._rows.writerow(row)

    def _count(self, name: str) -> None:
        self._number += 1
        self._calls[name] += 1
        self._file.flush()


class _RandomMode(TorchFunctionMode):
    """Hands every call of PyTorch to a log; calls inside of a call are part of it."""

    def __init__(self, log: _RandomLog) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._log.run(func, args, kwargs or {})


def _name_of(function: Callable[..., Any]) -> str:
    name = str(resolve_name(function) or getattr(function, "__name__", function))
    return name.removeprefix("torch.")


def _is_own(generator: Generator) -> bool:
    """Return whether the program has made a generator itself."""
    shared = (torch.default_generator, *torch.cuda.default_generators)
    return not any(generator is one for one in shared)


def _checksum(state: Tensor) -> str:
    return f"{zlib.crc32(state.numpy().tobytes()):08x}"


def _stack() -> tuple[str, str]:
    """Return the frames of the program, innermost first, and the innermost one's line."""
    frames = [
        frame
        for frame in reversed(traceback.extract_stack())
        if not frame.filename.startswith(_LIBRARIES)
    ]
    texts = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    line = f"{Path(frames[0].filename).name}:{frames[0].lineno}" if frames else ""
    return " | ".join(texts), line
