# SPDX-License-Identifier: Apache-2.0
"""Two files about the modules of a run: where each is called, and what it receives and returns."""

from __future__ import annotations

import csv
import io
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.errors import ReportWriteError
from msprobe.files import write_report
from msprobe.monitor.collecting.activations import INPUT, OUTPUT, MonitoredModule
from msprobe.monitor.reader import chunked_name
from msprobe.monitor.rows import Rows, Stream

if TYPE_CHECKING:
    from msprobe.capture.stacks import Stack

logger = logging.getLogger(__name__)

_STRUCTURE: Final = "module_struct.json"


class StackInfo:
    """Takes one call stack of each module, for ``stack_info_rank{R}.csv``."""

    def __init__(self) -> None:
        """Create it without any."""
        self._stacks: dict[str, tuple[str, ...]] = {}

    def take(self, module: MonitoredModule, stack: Stack) -> None:
        """Note the stack of a call, the first of its module."""
        self._stacks.setdefault(chunked_name(module.name, module.chunk), stack.frames)

    def write(self, folder: Path, rank: int) -> None:
        """Write the file, if a module was called."""
        if self._stacks:
            text = io.StringIO()
            lines = csv.writer(text, lineterminator="\n")
            lines.writerow(("module_name", "stack_info"))
            lines.writerows((name, "\n".join(frames)) for name, frames in self._stacks.items())
            _write(folder / f"stack_info_rank{rank}.csv", text.getvalue())


def write_structure(rows: list[Rows], folder: Path, rank: int, *, is_first: bool) -> None:
    """Write ``module_struct/rank{R}/module_struct.json`` from the activations of a step.

    Args:
        rows: of the step.
        folder: of the run.
        rank: of this process.
        is_first: whether no lower rank collects; its file is in the folder itself as well.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for block in rows:
        layout = block.layout
        if layout.stream not in (Stream.ACTV, Stream.ACTV_GRAD):
            continue
        suffix = "_grad" if layout.stream == Stream.ACTV_GRAD else ""
        for name, chunk, shape, dtype in zip(
            layout.names, layout.chunks, layout.shapes, layout.dtypes, strict=True
        ):
            module, side, place = _parts(name)
            sides = found.setdefault(f"{chunk}:{module}", {})
            size = f"({shape[1:-1]})"
            sides.setdefault(side + suffix, {})[place] = f"size={size}, dtype={dtype}"
    for sides in found.values():
        for values in sides.values():
            values["config"] = f"tuple[{len(values)}]" if len(values) > 1 else "tensor"
    text = json.dumps(found, indent=4, ensure_ascii=False) + "\n"
    _write(folder / "module_struct" / f"rank{rank}" / _STRUCTURE, text)
    if is_first:
        _write(folder / _STRUCTURE, text)


def _parts(name: str) -> tuple[str, str, str]:
    """Return module, side and place in the name of an activation."""
    module, _, last = name.rpartition(".")
    for side in (INPUT, OUTPUT):
        if last == side or last.startswith(f"{side}_"):
            return module, side, last.removeprefix(side).removeprefix("_") or "0"
    return name, OUTPUT, "0"


def _write(path: Path, text: str) -> None:
    try:
        write_report(path, text, warns=False)
    except ReportWriteError as error:
        logger.warning("%s", error)
