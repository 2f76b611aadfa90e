# SPDX-License-Identifier: Apache-2.0
"""Makes signatures of runs from vectors, with faults in chosen steps."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.capture.signature import no_prints
from msprobe.dump.signature_file import ENTRY, FOLDER, HEAD, SUFFIX, SignatureWriter

NAMES = [f"layers.{number}.weight" for number in range(8)]
_SIGNS = np.where(np.random.default_rng(1).random((2, 64)) < 0.5, -1.0, 1.0)

Change = Callable[[int, dict[str, Any]], None]


def entry(values: NDArray[Any]) -> NDArray[Any]:
    """Return what the signature holds of one parameter."""
    made = np.zeros((), ENTRY)
    made["checksum"] = zlib.crc32(values.tobytes())
    made["norm"] = np.linalg.norm(values)
    made["projections"] = _SIGNS @ values
    return made


def write_run(
    folder: Path,
    steps: int = 40,
    change: Change = lambda step, state: None,
    rank: str = "rank",
    first: int = 0,
    noise: int | None = None,
    settings_of: Callable[[int], dict[str, Any]] | None = None,
) -> Path:
    """Train 8 vectors for some steps with plain SGD, and write the signatures.

    Args:
        folder: the dump path.
        steps: how many.
        change: changes the parts of a step: ``data``, ``random``, ``lr``, ``gradients``, ``loss``,
            ``unfelt`` (added to one recorded update alone), ``lacks_projections`` (one parameter),
            ``skipped`` (no optimizer makes a step).
        rank: its folder's name.
        first: number of the first step.
        noise: seeds rounding noise of the gradients.
        settings_of: settings of the optimizers by step, in place of those of SGD.
    """
    generator = np.random.default_rng(0)
    rounding = np.random.default_rng(noise)
    parameters = generator.normal(size=(8, 64))
    writer = SignatureWriter(folder / FOLDER / f"{rank}{SUFFIX}")
    for step in range(first, first + steps):
        state: dict[str, Any] = {
            "data": 7 + step,
            "random": 9 + step,
            "lr": 0.01,
            "loss": float(np.square(parameters).sum()),
            "gradients": 2 * parameters + generator.normal(size=parameters.shape),
            "parameters": parameters,
            "foreach": None,
            "unfelt": 0.0,
            "lacks_projections": False,
            "skipped": False,
        }
        if noise is not None:
            state["gradients"] *= 1 + 1e-7 * rounding.normal(size=parameters.shape)
        change(step, state)
        before = state["parameters"]
        parameters = before - state["lr"] * state["gradients"] * (not state["skipped"])
        entries = np.zeros((3, 8), ENTRY)
        for number in range(8):
            entries[0, number] = entry(before[number])
            entries[1, number] = entry(state["gradients"][number])
            entries[2, number] = entry(
                parameters[number] - before[number] + state["unfelt"] * (number == 5)
            )
        if state["skipped"]:
            entries[1] = no_prints(8)
        if state["lacks_projections"]:
            entries[:, 5]["projections"] = np.nan
            entries[2, 5]["norm"] = np.nan
        head = np.zeros((), HEAD)
        head["step"], head["data"], head["random"] = step, state["data"], state["random"]
        head["loss"] = state["loss"]
        settings = {"lr": state["lr"], "momentum": 0.0, "foreach": state["foreach"]}
        all_settings = {} if state["skipped"] else {"0.SGD": [settings]}
        if settings_of is not None:
            all_settings = settings_of(step)
        writer.append(head, NAMES, entries, all_settings)
    writer.close()
    return folder
