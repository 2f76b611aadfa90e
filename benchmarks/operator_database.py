# SPDX-License-Identifier: Apache-2.0
"""`msprobe verify` on PyTorch's own samples of all its operators: false alarms, and damage found.

    python benchmarks/operator_database.py alarms float16 [--part 2/4]
    python benchmarks/operator_database.py modules float16
    python benchmarks/operator_database.py damage bfloat16

Tests under `tests/checks` do a part of this; tables in `docs/tasks/verify.md` are its output.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Final

import torch

_TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "checks")]

from damaged_results import detection  # noqa: E402

from builders.operator_calls import (  # noqa: E402
    module_database,
    operator_database,
    record_modules,
    record_samples,
)
from msprobe import open_dump  # noqa: E402
from msprobe.checks.verify_dump import verify_dump  # noqa: E402

SAMPLES: Final = 4
DAMAGED: Final = (
    *("add", "mul", "sub", "true_divide", "matmul", "bmm", "addmm", "nn.functional.linear"),
    *("softmax", "log_softmax", "sum", "mean", "var", "exp", "log", "tanh", "cumsum"),
    *("nn.functional.gelu", "nn.functional.silu", "nn.functional.layer_norm"),
    *("nn.functional.cross_entropy", "nn.functional.conv2d"),
)


def alarms(dtype: torch.dtype, part: tuple[int, int]) -> None:
    """Print how many calls are judged, and each that is called wrong or suspicious."""
    operators = operator_database()[part[0] - 1 :: part[1]]
    with tempfile.TemporaryDirectory() as folder:
        dump = record_samples(Path(folder), operators, dtype, most=SAMPLES)
        show(f"{dtype}, part {part[0]}/{part[1]}: {len(operators)} entries", dump)


def modules(dtype: torch.dtype, part: tuple[int, int]) -> None:
    """Print the same of modules, recorded at both levels."""
    entries = module_database()[part[0] - 1 :: part[1]]
    for level in ("L0", "L1"):
        with tempfile.TemporaryDirectory() as folder:
            dump = record_modules(Path(folder), entries, dtype, level, most=SAMPLES)
            show(f"{dtype}, {level}: {len(entries)} modules", dump)


def show(title: str, dump: Path) -> None:
    """Print what `verify_dump` says of a dump."""
    found = verify_dump(open_dump(dump), workers=0)
    faults = [call for call in found.calls if call.is_fault]
    print(f"{title}, {len(found.calls)} calls, {found.judged} judged, {len(faults)} faults")
    for call in faults:
        row = call.worst
        assert row is not None
        assert row.judgement is not None
        print(f"  {call.report.name} {row.slot}: {row.judgement.verdict}, "
              f"{row.judgement.ratio:.3g} times the allowed error")  # fmt: skip
    print(f"  not judged: {dict(found.not_judged)}")


def damage(dtype: torch.dtype, part: tuple[int, int]) -> None:
    """Print how many damaged results are found, by kind of damage."""
    operators = [one for one in operator_database() if one.name in DAMAGED]
    operators = operators[part[0] - 1 :: part[1]]
    with tempfile.TemporaryDirectory() as folder:
        dump = record_samples(Path(folder), operators, dtype, most=2)
        kinds: Counter[str] = Counter()
        for view in open_dump(dump).rank_views():
            for kind, counts in detection(view).items():
                kinds.update({f"{kind}|{key}": number for key, number in counts.items()})
    for name, number in kinds.items():
        kind, _, key = name.partition("|")
        if key == "damaged":
            print(f"{dtype}, {kind}: {kinds[f'{kind}|found']} / {number}")
        elif key.startswith("missed"):
            print(f"  {kind}: {key}")


KINDS: Final = {"alarms": alarms, "modules": modules, "damage": damage}


def main() -> None:
    """Run one of the three for a type."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--part", default="1/1", help="every so many-th entry: 2/4")
    options = parser.parse_args()
    first, _, every = options.part.partition("/")
    warnings.simplefilter("ignore")
    begun = time.process_time()
    KINDS[options.kind](getattr(torch, options.dtype), (int(first), int(every)))
    print(f"  {time.process_time() - begun:.0f} CPU s")


if __name__ == "__main__":
    main()
