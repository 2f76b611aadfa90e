# SPDX-License-Identifier: Apache-2.0
"""Run a task under the debugger, and compare two such runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from builders.recordings import recording
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison

from .models import Task

SEED = 20261122
Summary = dict[str, Any]


def dump(
    folder: Path,
    build: Callable[[], Task],
    *,
    task: str,
    plant: Callable[[Task], object] | None = None,
    level: str = "mix",
    steps: int = 1,
    around: Callable[[], Any] = nullcontext,
    **common: object,
) -> Path:
    """Run a task and record all its steps.

    Args:
        folder: an empty folder.
        build: makes the task; it is seeded.
        task: ``statistics``, ``tensor``, or ``md5`` for statistics with checksums.
        plant: changes the task after it was built.
        level: level of the dump.
        steps: how many steps to run.
        around: context in which each step runs.
        common: further keys at the top of config.json.

    Returns:
        The folder of the dump.
    """
    torch.manual_seed(SEED)
    run = build()
    if plant is not None:
        plant(run)
    # Waiting threads cost more than the whole of such small models.
    section = {"summary_mode": "md5"} if task == "md5" else None
    task = "statistics" if task == "md5" else task
    with threads(1), recording(folder, level, task, section=section, **common) as debugged:
        torch.manual_seed(SEED + 1)
        for _ in range(steps):
            with debugged.step_of(run.model), around():
                _train(run)
    return folder


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(run: Task) -> None:
    run.backward(run.loss(run.model, run.data))
    if run.before_step is not None:
        run.before_step(run.model)
    if run.optimizer is not None:
        run.optimizer.step()
        if run.zero_grad:
            run.optimizer.zero_grad()


def as_statistics(dump: Path, folder: Path, *, is_bare: bool = False) -> Path:
    """Write what the task ``statistics`` would have written beside a dump of task ``tensor``.

    The records are the same but for the names of the files (`test_fault_corpus` checks it), so a
    program need not run twice.

    Args:
        dump: dump path of the tensors.
        folder: where to write.
        is_bare: leave out the facts, and which values are the same: other programs do not write
            them.
    """
    names = ("stack.json", "construct.json", *(() if is_bare else ("facts.json",)))
    for place in dump.glob("step*/rank"):
        target = folder / place.relative_to(dump)
        target.mkdir(parents=True)
        for name in names:
            if (place / name).exists():
                shutil.copyfile(place / name, target / name)
        content = json.loads((place / "dump.json").read_text())
        content |= {"task": "statistics", "dump_data_dir": None}
        _drop(content["data"], ("data_name", *(("value_id",) if is_bare else ())))
        (target / "dump.json").write_text(json.dumps(content))
    return folder


def _drop(tree: Any, keys: Sequence[str]) -> None:
    if isinstance(tree, dict):
        for key in keys:
            tree.pop(key, None)
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            _drop(value, keys)


def compare(target: Path, reference: Path) -> Summary:
    """Compare two dumps and return the summary."""
    return dict(run_comparison(target, reference, CompareOptions()).summary)
