# SPDX-License-Identifier: Apache-2.0
"""Recognise calls repeated by `Cell.recompute` and `mindspore.recompute`, by their frames."""

from __future__ import annotations

from pathlib import Path
from types import FrameType
from typing import Any, Final

import mindspore
from msprobe.capture.recomputation import Owner, Recomputations, Surroundings
from msprobe.capture.session import Session

RECOMPUTE_FILE: Final = str(Path(mindspore.__file__).parent / "common" / "recompute.py")
# A handle (not reentrant) is made for each execution of a region.
_ONCE: Final = 0


def recomputations(session: Session) -> Recomputations:
    """Return the map of repeated calls to their originals, for the calls of `session`."""
    return Recomputations(session, _regions_around, _only_pass)


def _only_pass() -> int:
    """Return the number of the backward pass: a graph of MindSpore is walked once."""
    return 0


def _regions_around(frame: FrameType | None) -> Surroundings:
    entered: list[Owner] = []
    while frame is not None:
        if frame.f_code.co_filename == RECOMPUTE_FILE:
            names = frame.f_locals
            match frame.f_code.co_name:
                case "bprop":
                    return Surroundings(entered, _execution(names["self"]), is_reentrant=True)
                case "recompute" if "recompute_key" in names:
                    return Surroundings(entered, (names["self"], _ONCE), is_reentrant=False)
                case "construct" if hasattr(names["self"], "args"):
                    entered.append(_execution(names["self"], running=1))
                case "recompute_without_reentrant" if "handle" in names:
                    entered.append((names["handle"], _ONCE))
        frame = frame.f_back
    return Surroundings(entered)


def _execution(cell: Any, running: int = 0) -> Owner:
    """Return the running execution of MindSpore's own cell: its arguments wait on a stack."""
    return cell, len(cell.args) - running
