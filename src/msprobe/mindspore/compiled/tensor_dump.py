# SPDX-License-Identifier: Apache-2.0
"""Cells inside graphs of an accelerator: MindSpore's own operators write values to files.

A graph on Ascend cannot call back into Python, so `constructs` has no way in. There each cell's
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, Final

import numpy as np

import mindspore
from mindspore import Tensor, nn, ops
from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT
from msprobe.mindspore.compiled.cells import plain_construct
from msprobe.mindspore.compiled.sink import GraphCall, GraphEvents
from msprobe.mindspore.compiled.structure import (
    Look,
    Place,
    Structure,
    Written,
    compiled,
    rewritten,
)
from msprobe.mindspore.compiled.values import graph_value

# Takes the place of a file's name: the runtime counts its steps by it.
_NEXT_STEP: Final = "<tensordump-update-step>"
_DUMP: Final = ops.TensorDump()
_DUMP_GRADIENT: Final = ops.DumpGradient()
_MOST_WAIT_S: Final = 60.0
_POLL_S: Final = 0.1
_FILE: Final = re.compile(
    r"(?P<cell>Cell\..+)\.(?P<way>forward|backward)\.(?P<side>input|output)\.(?P<index>\d+)"
    r"_(?P<dtype>[a-z0-9]+)_(?P<number>\d+)\.npy"
)


@dataclass(frozen=True, slots=True)
class _Written:
    """One file of the runtime: the place of its value, and its number in the order of writing."""

    path: Path
    index: int
    number: int


class TensorDumpFiles:
    """Puts the operators into cells, and turns their files into events."""

    def __init__(self, folder: Path) -> None:
        """Let files go to `folder`, which is this module's own."""
        self._folder = folder

    def open(self) -> None:
        """Make the folder, without the files of an earlier run."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def construct_for(self, name: str, cell: nn.Cell, *, backward: bool) -> MethodType:
        """Return a `construct` with the operators; see `constructs.handing_construct`."""
        construct = _dumping_construct(f"{self._folder}/{name}", plain_construct(cell), backward)
        return MethodType(construct, cell)

    def end_step(self, events: GraphEvents | None) -> None:
        """Hand the values of the step to `events`, if any, and remove their files."""
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
    of_arguments = Look(partial(_dumping, stem, "input", backward))
    of_result = Look(partial(_dumping, stem, "output", backward))

    @compiled
    def construct(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        given = (args, kwargs)
        enter = of_arguments(given)
        args, kwargs = enter(given)
        result = original(*args, **kwargs)
        leave = of_result(result)
        return leave(result)

    return construct


def _dumping(stem: str, side: str, backward: bool, structure: Structure) -> Callable[..., Any]:
    """Return a function that has the tensors of a value, and their gradients, written to files."""
    code = Written("value")
    # The inputs of a call in the forward pass are its outputs in the backward pass.
    back = "output" if side == "input" else "input"

    def dumped(place: Place) -> str:
        file = code.constant(f"{stem}.forward.{side}.{place.number}")
        code.let("_", code.call(_DUMP, file, place.code))
        if not backward:
            return place.code
        file = code.constant(f"{stem}.backward.{back}.{place.number}")
        return code.call(_DUMP_GRADIENT, file, place.code, "'out'")

    return code.returning(rewritten(structure, "value", dumped, brackets=True))


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
        events.forward(GraphCall(cell, tuple(inputs), {}, (), output))
    for cell, number in _calls(files, "backward", "input"):
        for side in (SIDE_INPUT, SIDE_OUTPUT):
            gradients = _values(files.get((cell, "backward", side), {}), number)
            for leaf, gradient in enumerate(gradients):
                if gradient is not None:
                    events.gradient(cell, side, leaf, gradient)


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
            values[index] = graph_value(np.load(written[call].path, allow_pickle=False))
    return values
