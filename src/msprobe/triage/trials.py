# SPDX-License-Identifier: Apache-2.0
"""`try_out`: what has to be fixed so that two runs of a program are equal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from msprobe.triage.determinism import Determinism, Source, judge_determinism

Record = Callable[[Sequence[str], Mapping[str, str]], tuple[Path, Path]]
"""Records a program twice, with options of `msprobe run` and environment variables."""


class Trial(StrEnum):
    """A source of chance that can be fixed from outside of a program; mildest first.

    Attributes:
        words: how it is fixed.
        source: the source that it confirms.
        options: options of `msprobe run` that fix it.
        environment: variables that fix it.
    """

    words: str
    source: Source
    options: Sequence[str]
    environment: Mapping[str, str]

    def __new__(
        cls,
        value: str,
        words: str,
        source: Source,
        options: Sequence[str] = (),
        environment: tuple[tuple[str, str], ...] = (),
    ) -> Trial:
        """Make a member out of its value and its attributes."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.words = words
        member.source = source
        member.options = options
        member.environment = dict(environment)
        return member

    HASH_SEED = (
        "hash_seed",
        "PYTHONHASHSEED=0, which fixes the order of sets of texts",
        Source.ENVIRONMENT,
        (),
        (("PYTHONHASHSEED", "0"),),
    )
    SEED = "seed", "seeds for Python, NumPy and PyTorch", Source.SEED, ("--seed", "1234")
    KERNELS = "kernels", "deterministic kernels", Source.KERNEL, ("--deterministic",)
    THREADS = (
        "threads",
        "one thread for each operation",
        Source.KERNEL,
        (),
        (("OMP_NUM_THREADS", "1"), ("MKL_NUM_THREADS", "1")),
    )


def try_out(record: Record, found: Determinism) -> Determinism:
    """Fix one source of chance after the other until two runs are equal.

    Each is fixed in addition to those before it.

    Args:
        record: records the program twice.
        found: the first difference without any of them.

    Returns:
        The same difference, with the source that the first success confirms.
    """
    first = found.first
    if first is None:
        return found
    options: list[str] = []
    environment: dict[str, str] = {}
    for trial in Trial:
        if trial is Trial.HASH_SEED and os.environ.get("PYTHONHASHSEED", "random") != "random":
            continue
        options += trial.options
        environment |= trial.environment
        if judge_determinism(*record(options, environment)).is_deterministic:
            found.first = replace(
                first,
                source=trial.source,
                confirmed_by=trial,
                evidence=[*first.evidence, f"both runs are equal with {trial.words}"],
            )
            return found
        found.notes.append(f"the runs still differ with {trial.words}")
    return found
