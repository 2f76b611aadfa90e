# SPDX-License-Identifier: Apache-2.0
"""Removes the kernel dump of an earlier run: only files that the Dump or msprobe wrote."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from msprobe.dump.kernel_files import MAPPING_CSV, STATISTIC_CSV
from msprobe.dump.kernel_names import parse_kernel_file_name

_OWN: Final = (STATISTIC_CSV, MAPPING_CSV, "kernel_index.csv")
_OTHERS: Final = re.compile(
    r"ms_(?:global_)?execution_order_graph_\d+\.csv|ms_output_trace_code_graph_\d+\.(?:ir|pb)|\d{32}\.npy"
)


def clear_kernel_dump(rank_folder: Path) -> int:
    """Remove the files of a kernel dump below the folder of a rank; folders with others stay.

    Returns:
        The number of files removed.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = 0
    if rank_folder.is_symlink():
        return 0
    for directory, _, names in os.walk(rank_folder, topdown=False):
        for name in names:
            if name in _OWN or _OTHERS.fullmatch(name) or parse_kernel_file_name(name):
                (Path(directory) / name).unlink()
                removed += 1
        if not any(Path(directory).iterdir()):
            Path(directory).rmdir()
    return removed
