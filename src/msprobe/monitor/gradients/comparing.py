# SPDX-License-Identifier: Apache-2.0
"""Compare the gradients of two runs by their signs, step by step."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from zipfile import BadZipFile

import numpy as np

from msprobe.errors import DumpFormatError, UnsupportedError
from msprobe.files import write_report
from msprobe.json_text import strict_json
from msprobe.monitor.gradients.probe import (
    PARAMETER_COLUMN,
    SKETCHES_NAME,
    read_facts,
    summary_name,
)
from msprobe.monitor.gradients.sketch import Floats, Signs, cosine
from msprobe.monitor.pictures import packed_cells
from msprobe.monitor.rows import MISSING
from msprobe.report.monitor_page import write_monitor_page

SUMMARY: Final = "summary"
LEAST_AT_START: Final = 0.97
"""Similarity below which the first step is suspicious."""
LARGEST_DROP: Final = 0.03
"""Fall of the similarity, from one step to the next, beyond which it is suspicious."""
_SUMMARY_FILE: Final = re.compile(r"grad_summary_(\d+)\.csv")
_RANK_FOLDER: Final = re.compile(r"rank(\d+)")


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One recorded gradient; files of mindstudio-probe have its signs alone."""

    signs: Signs
    nonfinite: int = 0
    norm: float = math.nan
    projections: Floats | None = None


class Suspicion(NamedTuple):
    """Why the gradients of a parameter are suspicious, and from which step."""

    step: int
    reason: str


@dataclass(slots=True)
class ParameterSimilarity:
    """A parameter over the steps; `summary` is all parameters, by their number of elements.

    Attributes:
        similarity: share of equal signs by step, as ``similarities.csv`` has it.
        three_states: the same, with zero as a sign of its own; where known.
        cosines: of the gradients, estimated; where known.
        length_ratios: norm in the target over that in the reference; where known.
        nonfinite: numbers of NaN and Inf in target and reference, where they differ.
    """

    name: str
    similarity: dict[int, float] = field(default_factory=dict)
    three_states: dict[int, float] = field(default_factory=dict)
    cosines: dict[int, float] = field(default_factory=dict)
    length_ratios: dict[int, float] = field(default_factory=dict)
    nonfinite: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def suspicion(self) -> Suspicion | None:
        """The first step with other NaN and Inf, or that the 0.97 and 0.03 rule finds."""
        found = [
            *(_of_counts(step, *counts) for step, counts in self.nonfinite.items()),
            *_of_similarity(self.similarity, "similarity"),
            *_of_similarity(self.three_states, "similarity with zero as a sign"),
        ]
        return min(found, key=lambda one: one.step, default=None)


def _of_counts(step: int, target: int, reference: int) -> Suspicion:
    return Suspicion(step, f"{target} elements are NaN or infinite, {reference} in the reference")


def _of_similarity(values: Mapping[int, float], what: str) -> Iterator[Suspicion]:
    steps = sorted(values)
    if steps and values[steps[0]] < LEAST_AT_START:
        start = values[steps[0]]
        yield Suspicion(steps[0], f"{what} {start:.4g} is below {LEAST_AT_START}")
    for before, step in pairwise(steps):
        drop = values[before] - values[step]
        if drop > LARGEST_DROP:
            yield Suspicion(step, f"{what} falls by {drop:.4g}, over {LARGEST_DROP}")


@dataclass(slots=True)
class RankSimilarity:
    """All parameters of one rank, `summary` last.

    Attributes:
        rank: name of the folder.
        steps: those that were compared.
        missing: gradients that only one run has, and files that cannot be read.
    """

    rank: str
    steps: list[int]
    parameters: list[ParameterSimilarity]
    missing: list[str]

    @property
    def suspicious(self) -> list[ParameterSimilarity]:
        """The parameters that the rule finds."""
        return [one for one in self.parameters if one.suspicion is not None]


class GradComparator:
    """Compares gradients that the probe recorded in two runs."""

    @staticmethod
    def compare_distributed(
        path1: str | Path, path2: str | Path, output_dir: str | Path, *, pictures: bool = False
    ) -> list[RankSimilarity]:
        """Compare all ranks that both runs have, into ``{output_dir}/rank{R}``.

        The only rank of each is compared whatever its number is: mindstudio-probe names it after
        the process.

        Args:
            path1: `dump_path` of the run under test.
            path2: `dump_path` of the reference.
            output_dir: receives the tables and the page.
            pictures: whether to draw a picture for each parameter as well; needs matplotlib.

        Raises:
            DumpFormatError: a path holds no recording of the probe, or no rank is in both.
        """
        ranks = [_rank_folders(Path(path)) for path in (path1, path2)]
        for path, found_there in zip((path1, path2), ranks, strict=True):
            if not found_there:
                raise DumpFormatError(path, "holds no rank folder of the task grad_probe")
        if len(ranks[0]) == len(ranks[1]) == 1:
            ranks[1] = dict(zip(ranks[0], ranks[1].values(), strict=True))
        both = sorted(set(ranks[0]) & set(ranks[1]))
        if not both:
            raise DumpFormatError(path1, f"has no rank folder that {path2} has as well")
        alone = [f"rank {rank}: in one run only" for rank in sorted(set(ranks[0]) ^ set(ranks[1]))]
        found = []
        for rank in both:
            folders, output = (ranks[0][rank], ranks[1][rank]), Path(output_dir) / f"rank{rank}"
            found.append(_compare_and_write(*folders, output, pictures=pictures, missing=alone))
            alone = []
        return found

    @staticmethod
    def compare(
        path1: str | Path, path2: str | Path, output_dir: str | Path, *, pictures: bool = False
    ) -> RankSimilarity:
        """Compare one rank; arguments as for `compare_distributed`, but folders of a rank.

        Raises:
            DumpFormatError: no step is in both.
        """
        folders = Path(path1), Path(path2)
        return _compare_and_write(*folders, Path(output_dir), pictures=pictures, missing=[])


def _compare_and_write(
    target: Path, reference: Path, output: Path, *, pictures: bool, missing: list[str]
) -> RankSimilarity:
    found = compare_rank(target, reference)
    found.missing[:0] = missing
    _write(found, output, (str(target), str(reference)))
    if pictures:
        _draw(found, output / "similarities_picture")
    return found


def _rank_folders(path: Path) -> dict[int, Path]:
    named = ((_RANK_FOLDER.fullmatch(one.name), one) for one in path.glob("rank*"))
    return {int(match[1]): one for match, one in named if match and one.is_dir()}


def compare_rank(target: Path, reference: Path) -> RankSimilarity:
    """Compare the steps that two folders of a rank have in common.

    Raises:
        DumpFormatError: there is none.
    """
    both = [_steps_of(folder) for folder in (target, reference)]
    steps = sorted(both[0] & both[1])
    if not steps:
        raise DumpFormatError(target, f"has no step of the probe that {reference} has as well")
    missing = [f"step {step}: in one run only" for step in sorted(both[0] ^ both[1])]
    names = _parameter_names(target, steps, missing)
    parameters = {name: ParameterSimilarity(name) for name in names}
    summary = ParameterSimilarity(SUMMARY)
    for step in steps:
        sides = [_read_step(folder / f"step{step}", missing) for folder in (target, reference)]
        _compare_step(step, sides, parameters, summary, missing)
    found = [one for one in parameters.values() if one.similarity]
    return RankSimilarity(target.name, steps, [*found, summary], missing)


def _steps_of(folder: Path) -> set[int]:
    named = (_SUMMARY_FILE.fullmatch(one.name) for one in folder.glob("grad_summary_*.csv"))
    return {int(match[1]) for match in named if match}


def _parameter_names(folder: Path, steps: Sequence[int], missing: list[str]) -> list[str]:
    """Return the names in the first summary that can be read; others are added to `missing`."""
    for path in (folder / summary_name(step) for step in steps):
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = csv.DictReader(file)
                columns = [one for one in rows.fieldnames or () if one.lower() == PARAMETER_COLUMN]
                if columns:
                    return [row[columns[0]] for row in rows]
            missing.append(f"{path}: has no column {PARAMETER_COLUMN}")
        except (OSError, UnicodeError, csv.Error) as exc:
            missing.append(f"{path}: {exc}")
    return []


def _compare_step(
    step: int,
    sides: list[dict[str, _Recorded]],
    parameters: dict[str, ParameterSimilarity],
    summary: ParameterSimilarity,
    missing: list[str],
) -> None:
    weighted = elements = 0.0
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        if name not in sides[0] or name not in sides[1]:
            missing.append(f"step {step}: {name} is in one run only")
            continue
        a, b = sides[0][name], sides[1][name]
        if a.signs.count != b.signs.count:
            missing.append(f"step {step}: {name} has {a.signs.count} and {b.signs.count} elements")
            continue
        one = parameters.setdefault(name, ParameterSimilarity(name))
        one.similarity[step] = a.signs.similarity(b.signs)
        if a.nonfinite != b.nonfinite:
            one.nonfinite[step] = a.nonfinite, b.nonfinite
        states = a.signs.three_state_similarity(b.signs)
        if states is not None:
            one.three_states[step] = states
        if a.projections is not None and b.projections is not None:
            one.cosines[step] = cosine(a.projections, b.projections, a.norm, b.norm)
            one.length_ratios[step] = a.norm / b.norm if b.norm else math.nan
        weighted += one.similarity[step] * a.signs.count
        elements += a.signs.count
    if elements:
        summary.similarity[step] = weighted / elements


def _read_step(folder: Path, missing: list[str]) -> dict[str, _Recorded]:
    """Return the gradients of a step; what cannot be read is added to `missing`."""
    path = folder / SKETCHES_NAME
    found: dict[str, _Recorded] = {}
    try:
        if path.exists():
            found = _read_sketches(path)
    except (OSError, ValueError, LookupError, TypeError, BadZipFile) as exc:
        missing.append(f"{path}: {exc}")
    for file in sorted(folder.glob("*.npy")):
        if file.stem in found:
            continue
        try:
            positive = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as exc:
            missing.append(f"{file}: {exc}")
            continue
        packed = np.packbits(positive.reshape(-1).astype(np.bool_))
        found[file.stem] = _Recorded(Signs(packed, None, positive.size))
    if not found and not path.exists():
        missing.append(f"{folder}: holds no signs; level L0 records none")
    return found


def _read_sketches(path: Path) -> dict[str, _Recorded]:
    found = {}
    # NumPy does not close a file that it cannot read.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, _, part = key.rpartition("/")
            if part != "facts":
                continue
            facts = read_facts(arrays[key])
            count = math.prod(facts["shape"])
            positive, zero = arrays[f"{name}/positive"], arrays[f"{name}/zero"]
            if {positive.size, zero.size} != {-(-count // 8)}:
                raise ValueError(f"{name} has signs of another size")
            found[name] = _Recorded(
                Signs(positive, zero, count),
                facts["nan"] + facts["inf"],
                float(facts["norm"]),
                arrays[f"{name}/projections"],
            )
    return found


def _write(found: RankSimilarity, folder: Path, paths: tuple[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header = ["step", *found.steps]
    rows = [[one.name, *_by_step(one.similarity, found.steps)] for one in found.parameters]
    _write_csv(folder / "similarities.csv", [header, *rows])
    titles = ["parameter", "verdict", "reason", "least", "three_states", "cosine", "length_ratio"]
    _write_csv(folder / "verdict.csv", [titles, *map(_verdict_row, found.parameters)])
    write_report(folder / "missing.json", strict_json(found.missing), warns=False)
    write_monitor_page(folder / "similarities.html", *_page_of(found, paths))


def _by_step(values: Mapping[int, float], steps: list[int]) -> list[Any]:
    return [values.get(step, "") for step in steps]


def _verdict_row(one: ParameterSimilarity) -> list[Any]:
    found = one.suspicion
    verdict = "pass" if found is None else "suspicious"
    reason = "" if found is None else f"step {found.step}: {found.reason}"
    least = min(one.similarity.values(), default="")
    parts = (one.three_states, one.cosines)
    worst = [min(part.values(), default="") for part in parts]
    far = max(one.length_ratios.values(), key=lambda ratio: abs(math.log(ratio or 1)), default="")
    return [one.name, verdict, reason, least, *worst, far]


def _write_csv(path: Path, rows: list[list[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_report(path, text.getvalue(), warns=False)


def _page_of(
    found: RankSimilarity, paths: tuple[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return overview and answers of the page, in the form of the monitor's."""
    ops = {"similarity": "similarity", "three_states": "three_states", "cosine": "cosines"}
    steps, parameters = found.steps, found.parameters[:-1]
    named = _RANK_FOLDER.fullmatch(found.rank)
    rank = int(named[1]) if named else 0
    span = {"first": steps[0], "last": steps[-1], "count": len(steps)}
    stream = {"name": "signs", "ops": list(ops), "op": "similarity"}
    summary = _series_answer(found.parameters[-1], "similarity", "similarity", rank)
    overview = {
        "runs": [{"path": " against ".join(paths), "ranks": [rank], **span}],
        "streams": [stream],
        "stream": "signs",
        "scalars": [summary],
        "incidents": [
            _incident(one.name, one.suspicion, place, rank)
            for place, one in enumerate(found.parameters)
            if one.suspicion is not None
        ],
        "parting": None,
    }
    answers: dict[str, Any] = {}
    for op, attribute in ops.items():
        series = [getattr(one, attribute) for one in parameters]
        values = np.array([[each.get(step, MISSING) for step in steps] for each in series])
        values[~np.isfinite(values)] = MISSING
        answers[f"heat?axis=layer&op={op}&run=0&stream=signs"] = {
            "rows": [one.name for one in parameters],
            "of_rows": len(parameters),
            "columns": steps,
            "of_columns": len(steps),
            **packed_cells(values),
        }
        for one in parameters:
            key = f"series?{urlencode({'name': one.name, 'op': op, 'stream': 'signs'})}"
            answers[key] = _series_answer(one, op, attribute, rank)
    return overview, answers


def _series_answer(one: ParameterSimilarity, op: str, attribute: str, rank: int) -> dict[str, Any]:
    values: dict[int, float] = getattr(one, attribute)
    line = {
        "run": 0,
        "rank": rank,
        "steps": list(values),
        "values": [value if math.isfinite(value) else None for value in values.values()],
    }
    return {"stream": "signs", "name": one.name, "op": op, "lines": [line]}


def _incident(name: str, found: Suspicion, number: int, rank: int) -> dict[str, Any]:
    lead = {"stream": "signs", "name": name, "op": "similarity", "rank": rank, "deviations": 0}
    return {
        "incident": number,
        "severity": "warning",
        "cause": "gradients differ",
        "sentence": f"{name}: {found.reason}",
        "start": found.step,
        "last": found.step,
        "series": 1,
        "ranks": [rank],
        "lead": lead,
    }


def _draw(found: RankSimilarity, folder: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise UnsupportedError("pictures need matplotlib: pip install matplotlib") from exc
    folder.mkdir(parents=True, exist_ok=True)
    for one in found.parameters:
        figure = Figure()
        axes = figure.subplots()
        axes.plot(list(one.similarity), list(one.similarity.values()))
        axes.set(xlabel="step", ylabel="similarity", title=f"{one.name} similarity")
        figure.savefig(folder / f"{one.name}_similarities.png")
