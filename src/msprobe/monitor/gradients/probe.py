# SPDX-License-Identifier: Apache-2.0
"""Files of the gradient probe: one summary a step, signs and projections of each gradient.

```
{dump_path}/rank{R}/grad_summary_{step}.csv      as documented, by level
{dump_path}/rank{R}/step{step}/gradients.npz     packed signs and projections (L1, L2)
{dump_path}/rank{R}/step{step}/{name}.npy        instead of packed signs, where asked for
```
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from msprobe.config.choices import GradLevel, SignFormat
from msprobe.config.settings import GradProbeSection
from msprobe.files import write_report, write_whole
from msprobe.json_text import strict_json
from msprobe.monitor.gradients.sketch import Floats, Signs, sketch

SKETCHES_NAME: Final = "gradients.npz"
PARAMETER_COLUMN: Final = "param_name"
_HASH_BYTES: Final = 16


def summary_name(step: int) -> str:
    """Return the name of the summary of a step."""
    return f"grad_summary_{step}.csv"


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient as the optimizer gets it.

    Attributes:
        name: of the parameter.
        values: as float32; the own part of this process where it is sharded.
        shard: which part of the whole this is; empty for all of it.
    """

    name: str
    values: Floats
    shard: str = ""


class ProbeWriter:
    """Writes the files of one process.

    Attributes:
        section: the settings.
    """

    def __init__(self, folder: Path, section: GradProbeSection) -> None:
        """Begin; nothing is written before the first step.

        Args:
            folder: of the rank.
            section: the settings.
        """
        self.section = section
        self._folder = folder
        self._written: dict[int, list[list[Any]]] = {}

    def write(self, step: int, gradients: Sequence[Gradient]) -> None:
        """Write the gradients of a step; further ones of the same step are added to its files.

        Raises:
            ReportWriteError: the files cannot be written.
        """
        rows = [self._row(one) for one in gradients]
        # Several optimizers step once each: only the current step can get more rows.
        goes_on = step in self._written
        self._written = {step: self._written.get(step, []) + rows}
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self._header(), *self._written[step]])
        write_report(self._folder / summary_name(step), text.getvalue(), warns=False)
        if self.section.grad_level is not GradLevel.L0:
            self._write_signs(self._folder / f"step{step}", gradients, goes_on=goes_on)

    def _header(self) -> list[str]:
        statistics = ["max", "min", "norm", "shape"]
        match self.section.grad_level:
            case GradLevel.L0:
                return [PARAMETER_COLUMN, "MD5", *statistics]
            case GradLevel.L1:
                return [PARAMETER_COLUMN, *statistics]
            case GradLevel.L2:
                return [PARAMETER_COLUMN, *interval_names(self.section.bounds), *statistics]

    def _row(self, gradient: Gradient) -> list[Any]:
        values = gradient.values
        row: list[Any] = [gradient.name]
        if self.section.grad_level is GradLevel.L0:
            row.append(f"{zlib.crc32(values.tobytes()):08x}")
        if self.section.grad_level is GradLevel.L2:
            row += interval_shares(values, self.section.bounds)
        ends = [float(values.max()), float(values.min())] if values.size else ["N/A", "N/A"]
        return [*row, *ends, _norm(values), str(list(values.shape))]

    def _write_signs(self, folder: Path, gradients: Sequence[Gradient], *, goes_on: bool) -> None:
        if folder.exists() and not goes_on:  # of an earlier run
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / SKETCHES_NAME
        arrays = dict(np.load(path)) if goes_on else {}
        for gradient in gradients:
            arrays.update(_arrays_of(gradient))
            if self.section.sign_format is SignFormat.NPY:
                np.save(folder / f"{gradient.name}.npy", gradient.values > 0)
        packed = io.BytesIO()
        np.savez(packed, **arrays)
        write_whole(path, [packed.getvalue()])


def _arrays_of(gradient: Gradient) -> dict[str, Any]:
    values = gradient.values
    signs = Signs.of(values)
    facts = {
        "shape": list(values.shape),
        "norm": _norm(values),
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
        "blake2b": hashlib.blake2b(values.tobytes(), digest_size=_HASH_BYTES).hexdigest(),
        "shard": gradient.shard,
    }
    text = strict_json(facts, indent=None).encode()
    return {
        f"{gradient.name}/facts": np.frombuffer(text, np.uint8),
        f"{gradient.name}/positive": signs.positive,
        f"{gradient.name}/zero": signs.zero,
        f"{gradient.name}/projections": sketch(values),
    }


def _norm(values: Floats) -> float:
    flat = values.reshape(-1).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.dot(flat, flat)))


def interval_names(bounds: Sequence[float]) -> list[str]:
    """Return the titles of the intervals between bounds, and of zero."""
    ends = ["-inf", *map(str, bounds)]
    names = [f"({low}, {high}]" for low, high in pairwise(ends)]
    return [*names, f"({ends[-1]}, inf)", "=0"]


def interval_shares(values: Floats, bounds: Sequence[float]) -> list[float]:
    """Return the share of elements in each interval, and of zeros; NaN is in none."""
    flat = values.reshape(-1)
    if not flat.size:
        return [0.0] * (len(bounds) + 2)
    places = np.searchsorted(np.array(bounds, np.float64), flat, side="left")
    counts = np.bincount(places[~np.isnan(flat)], minlength=len(bounds) + 1)
    return [*(counts / flat.size).tolist(), float((flat == 0).mean())]


def read_facts(array: Any) -> dict[str, Any]:
    """Return the facts of a gradient in `SKETCHES_NAME`."""
    found: dict[str, Any] = json.loads(bytes(array))
    return found
