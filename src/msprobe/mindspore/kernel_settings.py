# SPDX-License-Identifier: Apache-2.0
"""From the configuration of a run to the settings of MindSpore's own Dump, for level L2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from msprobe.config import (
    CheckMode,
    Config,
    DataMode,
    ExceptionDumpSection,
    OverflowCheckSection,
    Precision,
    StatisticsSection,
    SummaryMode,
    TensorSection,
)
from msprobe.files import write_whole
from msprobe.plain_text import number_ranges

SETTINGS_FILE: Final = "kernel_kbyk_dump.json"
"""Name of the file of settings, in the folder of the dump."""
NET_NAME: Final = "Net"

_CATEGORIES: Final = ("max", "min", "avg", "l2norm")
_OVERFLOW_MODES: Final = {CheckMode.AICORE: 1, CheckMode.ATOMIC: 2, CheckMode.ALL: 3}
_EXCEPTIONS: Final = 4
_DEVICES: Final = 8


def dump_settings(config: Config, *, computes_statistics: bool, ranks: int = 1) -> dict[str, Any]:
    """Return the settings, as the file of settings has them.

    Args:
        config: the settings of the run.
        computes_statistics: whether the device's Dump can: CPUs write tensors only, and everything
            while they look for overflows.
        ranks: number of processes.
    """
    section = config.section
    common: dict[str, Any] = {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": str(config.dump_path),
        "net_name": NET_NAME,
        "iteration": _iterations(config.step),
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": [],
        "support_device": list(config.rank) or list(range(max(_DEVICES, ranks))),
    }
    synchronous: dict[str, Any] = {"enable": not config.async_dump, "trans_flag": True}
    match section:
        case StatisticsSection():
            if computes_statistics:
                common["saved_data"] = "statistic"
                common["statistic_category"] = [*_CATEGORIES]
                if section.summary_mode is SummaryMode.MD5:
                    common["statistic_category"].append("hash:md5")
                synchronous["stat_calc_mode"] = str(section.device)
                low = config.precision is Precision.LOW
                synchronous["device_stat_precision_mode"] = "low" if low else "high"
            common |= _selection(section.name_filters, section.data_mode)
        case TensorSection():
            common["file_format"] = str(section.file_format)
            common |= _selection(section.name_filters, section.data_mode)
        case OverflowCheckSection() if computes_statistics:
            common["op_debug_mode"] = _OVERFLOW_MODES[section.check_mode]
            if section.overflow_nums > 0:
                common["overflow_number"] = section.overflow_nums
        case ExceptionDumpSection():
            common |= {"op_debug_mode": _EXCEPTIONS, "file_format": "npy", "iteration": "all"}
        case _:
            pass
    if config.async_dump and common["saved_data"] != "tensor":
        common["file_format"] = "npy"  # else no statistics are written
    return {"common_dump_settings": common, "e2e_dump_settings": synchronous}


def _iterations(steps: tuple[int, ...]) -> str:
    """Return sorted numbers as ranges: ``0|5-8``."""
    if not steps:
        return "all"
    return "|".join(f"{a}" if a == b else f"{a}-{b}" for a, b in number_ranges(steps))


def _selection(names: tuple[str, ...], mode: DataMode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if names:
        found |= {"dump_mode": 1, "kernels": list(names)}
    if not (mode.input and mode.output):
        found["input_output"] = 1 if mode.input else 2
    return found


def write_settings(settings: dict[str, Any], folder: Path) -> Path:
    """Write the file of settings; several ranks may write the same one.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SETTINGS_FILE
    write_whole(path, [json.dumps(settings, indent=4).encode()])
    return path
