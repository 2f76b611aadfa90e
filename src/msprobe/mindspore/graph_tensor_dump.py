# SPDX-License-Identifier: Apache-2.0
"""Cells inside graphs of an accelerator: MindSpore's own operators write what passes to files.

A graph on Ascend cannot call back into Python, so `graph_hooks` has no way in. There each cell's
`construct` gets `TensorDump` (forward) and `DumpGradient` (backward) operators, and when a step is
over the files are read, handed to the same records as everywhere else, and removed.

The graph form could not be run on an accelerator yet. The operators, the files and the records
are tested on the CPU, where these operators work outside graphs.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Final

import numpy as np

import mindspore
from mindspore import Tensor, ops
from msprobe.mindspore.cell_hooks import CellNames
from msprobe.mindspore.graph_sink import GraphEvents

# Takes the place of a file's name: the runtime counts its steps by it.
_NEXT_STEP: Final = "<tensordump-update-step>"
_MOST_ARGUMENTS: Final = 32
_MOST_WAIT_S: Final = 60.0
_POLL_S: Final = 0.1
_FILE: Final = re.compile(
    r"(?P<cell>Cell\..+)\.(?P<way>forward|backward)\.(?P<side>input|output)\.(?P<index>\d+)"
    r"_(?P<dtype>[a-z0-9]+)_(?P<number>\d+)\.npy"
)


@dataclass(frozen=True, slots=True)
class _Written:
    """One file of the runtime: where the value stood, and the order it was written in."""

    path: Path
    index: int
    number: int


class TensorDumpFiles:
    """Puts the operators into cells, and turns their files into events."""

    def __init__(self, folder: Path) -> None:
        """Let files go to `folder`, which is this module's own."""
        self._folder = folder

    def install(
        self, names: CellNames, undo: ExitStack, *, wants: Callable[[str], bool], backward: bool
    ) -> None:
        """Put the operators into the cells; see `msprobe.mindspore.graph_hooks`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        undo.callback(shutil.rmtree, self._folder, True)
        for cell, name in names.items():
            if wants(name):
                construct = _dumping_construct(f"{self._folder}/{name}", cell.construct, backward)
                cell.construct = MethodType(construct, cell)
                undo.callback(cell.__dict__.pop, "construct", None)

    def end_step(self, events: GraphEvents | None) -> None:
        """Hand the values of the step to `events`, None for nobody, and remove their files."""
        mindspore.runtime.synchronize()
        ops.TensorDump()(_NEXT_STEP, Tensor(np.zeros(1, np.float32)))
        found = self._wait_for_files()
        if events is not None:
            _hand_over(found, events)
        for path in found:
            path.unlink(missing_ok=True)

    def _wait_for_files(self) -> list[Path]:
        """Return the files once none has come or grown for a moment: a thread writes them."""
        before: list[tuple[Path, int]] = []
        end = time.monotonic() + _MOST_WAIT_S
        while True:
            now = sorted((path, path.stat().st_size) for path in self._folder.glob("*.npy"))
            if now == before or time.monotonic() > end:
                return [path for path, _ in now]
            before = now
            time.sleep(_POLL_S)


def _dumping_construct(
    stem: str, original: Callable[..., Any], backward: bool
) -> Callable[..., Any]:
    dump, dump_gradient = ops.TensorDump(), ops.DumpGradient()
    places = tuple(str(index) for index in range(_MOST_ARGUMENTS))
    # Names are constants of the graph, so they are made here.
    received = tuple(f"{stem}.forward.input.{place}" for place in places)
    returned = tuple(f"{stem}.forward.output.{place}" for place in places)
    given = tuple(f"{stem}.backward.input.{place}" for place in places)
    passed_on = tuple(f"{stem}.backward.output.{place}" for place in places)

    # Compiled by MindSpore: plain statements only.
    def construct(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        inputs = ()
        for index, value in enumerate(args):
            if isinstance(value, Tensor) and index < _MOST_ARGUMENTS:
                dump(received[index], value)
                if backward:
                    value = dump_gradient(passed_on[index], value, "out")  # noqa: PLW2901
            inputs = inputs + (value,)  # type: ignore[assignment]  # noqa: RUF005
        output = original(*inputs, **kwargs)
        if isinstance(output, Tensor):
            if backward:
                output = dump_gradient(given[0], output, "out")
            dump(returned[0], output)
            return output
        if not isinstance(output, tuple):
            return output
        outputs = ()
        for index, value in enumerate(output):
            if isinstance(value, Tensor) and index < _MOST_ARGUMENTS:
                if backward:
                    value = dump_gradient(given[index], value, "out")  # noqa: PLW2901
                dump(returned[index], value)
            outputs = outputs + (value,)  # type: ignore[assignment]  # noqa: RUF005
        return outputs

    construct.__jit_function__ = True  # type: ignore[attr-defined]
    return construct


def _hand_over(paths: list[Path], events: GraphEvents) -> None:
    """Turn files into events: calls in the order in which they ended."""
    files: dict[tuple[str, str, str], dict[int, list[_Written]]] = defaultdict(dict)
    for path in paths:
        if found := _FILE.fullmatch(path.name):
            key = (found["cell"], found["way"], found["side"])
            one = _Written(path, int(found["index"]), int(found["number"]))
            files[key].setdefault(one.index, []).append(one)
    for by_index in files.values():
        for written in by_index.values():
            written.sort(key=lambda one: one.number)
    for cell, number in _calls(files, "forward", "output"):
        inputs = _values(files.get((cell, "forward", "input"), {}), number)
        outputs = _values(files[cell, "forward", "output"], number)
        output = outputs[0] if len(outputs) == 1 else tuple(outputs)
        events.forward(cell, (tuple(inputs), {}), output)
    for cell, number in _calls(files, "backward", "input"):
        given = _values(files[cell, "backward", "input"], number)
        events.before_backward(cell, given)
        passed_on = _values(files.get((cell, "backward", "output"), {}), number)
        if passed_on:
            events.backward(cell, passed_on, given)


def _calls(
    files: dict[tuple[str, str, str], dict[int, list[_Written]]], way: str, side: str
) -> list[tuple[str, int]]:
    """Return (cell, which of its calls), in the order in which they were written."""
    found = [
        (written.number, cell, call)
        for (cell, its_way, its_side), by_index in files.items()
        if (its_way, its_side) == (way, side)
        for call, written in enumerate(by_index[min(by_index)])
    ]
    return [(cell, call) for _, cell, call in sorted(found)]


def _values(by_index: dict[int, list[_Written]], call: int) -> list[Any]:
    """Return the values of one call by their places; None where there is none."""
    if not by_index:
        return []
    values: list[Any] = [None] * (max(by_index) + 1)
    for index, written in by_index.items():
        if call < len(written):
            values[index] = Tensor(np.load(written[call].path, allow_pickle=False))
    return values
