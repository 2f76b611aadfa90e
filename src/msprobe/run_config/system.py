# SPDX-License-Identifier: Apache-2.0
"""Python, operating system, processors, drivers, and the commit of the code that runs."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msprobe.run_config.levels import Aspect, Difference, Item, ItemResult, Level, listed
from msprobe.run_config.user_code import collect_user_code, output_of

_COLUMNS: Final = ("name", "bench_value", "cmp_value", "level")
_MAX_TEXT: Final = 4000
_FILES: Final = {
    "driver.nvidia": Path("/proc/driver/nvidia/version"),
    "driver.ascend": Path("/usr/local/Ascend/driver/version.info"),
    "firmware.ascend": Path("/usr/local/Ascend/firmware/version.info"),
    "cann": Path("/usr/local/Ascend/ascend-toolkit/latest/version.cfg"),
}
_LEVELS: Final = (
    (
        re.compile(
            r"code\..*|git\.commit|git\.diff|devices|cpu\.instructions|(torch|mindspore)\..*"
        ),
        Level.ERROR,
    ),
    (re.compile(r"python|driver\..*|firmware\..*|cann|git\.changes|cpu|cpu\.count"), Level.WARNING),
)


def collect_system(directory: Path | None = None, *, asks_devices: bool = True) -> dict[str, str]:
    """Return facts about the machine and the code.

    Runs ``git`` and ``nvidia-smi`` or ``npu-smi`` where there are any, each for 10 s at most.

    Args:
        directory: where the training's code lies; None for the folder of the script that runs.
        asks_devices: whether to run the latter two, which may take seconds.
    """
    found = {
        "python": platform.python_version(),
        "python.implementation": platform.python_implementation(),
        "python.optimize": str(sys.flags.optimize),
        "os": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cpu.count": str(os.cpu_count()),
        "cpu.instructions": _cpu_instructions(),
        **{name: _text_of(path) for name, path in _FILES.items()},
        "devices": _devices() if asks_devices else "",
        **collect_user_code(directory),
    }
    return {name: text for name, text in found.items() if text}


def compare_systems(bench: Mapping[str, str], cmp: Mapping[str, str]) -> ItemResult:
    """Compare two machines and the code on them."""
    names = list(dict.fromkeys((*bench, *cmp)))
    differences = [
        Difference(
            item=Item.SYSTEM,
            name=name,
            bench=bench.get(name),
            cmp=cmp.get(name),
            level=next((level for form, level in _LEVELS if form.fullmatch(name)), Level.INFO),
            aspect=Aspect.CODE if name.startswith(("code.", "git.")) else Aspect.VALUE,
        )
        for name in names
        if bench.get(name) != cmp.get(name)
    ]
    differences.sort(key=lambda each: -each.level.weight)
    return listed(Item.SYSTEM, _COLUMNS, differences, compared=len(names))


@functools.cache
def _cpu_name() -> str:
    for line in _text_of(Path("/proc/cpuinfo"), 20_000).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "CPU implementer"):
            return value.strip()
    return platform.processor()


@functools.cache
def _cpu_instructions() -> str:
    """Return the vector instructions, which change the order of additions in sums."""
    for line in _text_of(Path("/proc/cpuinfo"), 20_000).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            wanted = re.compile(r"avx.*|amx.*|fma|sse4_2|asimd.*|sve.*|bf16|i8mm")
            return " ".join(sorted(flag for flag in value.split() if wanted.fullmatch(flag)))
    return ""


def _devices() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return output_of(query) or output_of(["npu-smi", "info", "-m"])


def _text_of(path: Path, limit: int = _MAX_TEXT) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(limit).strip()
    except OSError:
        return ""
