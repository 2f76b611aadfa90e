# SPDX-License-Identifier: Apache-2.0
"""`compare_random_logs`: the first draw of random numbers in which two runs differ."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from msprobe.errors import DumpFormatError
from msprobe.files import reading

_NEEDED: Final = ("api_name", "stack", "number", "generator", "before", "after", "line")
_LATER: Final = ("step", "recorded", "own")  # columns that older files lack
_OF_HOST: Final = ("python", "numpy")

Draw = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDifference:
    """The first draw in which two runs differ.

    Attributes:
        number: its number among all rows, from 0.
        words: the difference in a sentence.
        target: the target's row; None if it has no further one.
        reference: the reference's row; None if it has no further one.
        is_order: whether both go on to draw from equal states of generators of the program's own:
            the same samples in another order.
    """

    number: int
    words: str
    target: Draw | None
    reference: Draw | None
    is_order: bool = False


def is_random_log(path: Path) -> bool:
    """Return whether a path is called like a file of `record_random`."""
    return path.name.startswith("random_") and path.suffix == ".csv" and path.is_file()


def compare_random_logs(target: Path, reference: Path) -> tuple[RandomDifference | None, int]:
    """Compare two files of `msprobe.pytorch.reproducibility.record_random`.

    Returns:
        The first draw that differs, None if none does; and the number of equal draws before it.

    Raises:
        DumpFormatError: a file is no such file.
    """
    draws = _read(target)
    found = _first(draws, _read(reference))
    return found, len(draws) if found is None else found.number


def _first(*sides: Sequence[Draw]) -> RandomDifference | None:
    for number, (draw, other) in enumerate(zip_longest(*sides)):
        words = _difference(draw, other)
        if words:
            states = [
                {row["before"] for row in side[number:] if row["own"] == "1"} for side in sides
            ]
            return RandomDifference(
                number=number,
                words=words,
                target=draw,
                reference=other,
                is_order=draw is not None
                and draw["own"] == "1"
                and bool(set.intersection(*states)),
            )
    return None


def first_other_draw(
    target: Path, reference: Path, step: int, *, while_recorded: bool
) -> RandomDifference | None:
    """Return the first draw that differs before a step, or before a recorded call of it.

    Args:
        target: the file of one run.
        reference: the file of the other.
        step: number of the step.
        while_recorded: whether it is to explain a recorded call of the step: only draws of the
            framework do, but also those of the step's recorded part.

    Raises:
        DumpFormatError: a file is no file of `record_random`.
    """

    def matters(draw: Draw) -> bool:
        if not draw["step"]:
            return False
        now = int(draw["step"])
        if while_recorded:
            return now <= step and draw["generator"] not in _OF_HOST
        return now < step or (now == step and draw["recorded"] == "0")

    sides = [[draw for draw in _read(path) if matters(draw)] for path in (target, reference)]
    return _first(*sides)


def _difference(target: Draw | None, reference: Draw | None) -> str:
    if target is None or reference is None:
        side, draw = ("target", target) if reference is None else ("reference", reference)
        assert draw is not None
        return f"only the {side} goes on to draw: {draw['api_name']} at {draw['line']}"
    name = f"{target['api_name']} at {target['line']}"
    if target["api_name"] != reference["api_name"] or target["generator"] != reference["generator"]:
        return f"{name} draws instead of {reference['api_name']} at {reference['line']}"
    if target["before"] != reference["before"] and target["own"] == "1":
        return (
            f"{name} draws from a generator that the program has made itself, in another state: "
            "seeds differ, or the order of the samples"
        )
    if target["before"] != reference["before"]:
        return (
            f"{name} draws from another state of the generator {target['generator']}: seeds "
            "differ, or the state was set between the draws"
        )
    if target["after"] != reference["after"] and not target["before"]:
        return f"{name} sets another state of the generator {target['generator']}: no fixed seed"
    if target["after"] != reference["after"]:
        return f"{name} draws more or fewer numbers than {reference['line']}"
    return ""


def _read(path: Path) -> list[Draw]:
    with (
        reading(path, DumpFormatError, UnicodeDecodeError, csv.Error),
        path.open(encoding="utf-8", newline="") as file,
    ):
        rows = csv.DictReader(file, restval="")
        lacking = [name for name in _NEEDED if name not in (rows.fieldnames or ())]
        if lacking:
            raise DumpFormatError(path, f"is no record of random calls: it lacks {lacking[0]}")
        return [dict.fromkeys(_LATER, "") | row for row in rows]
