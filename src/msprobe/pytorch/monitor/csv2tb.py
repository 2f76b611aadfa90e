# SPDX-License-Identifier: Apache-2.0
"""`csv2tensorboard_by_step`: csv files of a monitor, or its run, as TensorBoard events."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msprobe.monitor.csv_files import is_csv_folder, read_csv
from msprobe.monitor.exports import write_tensorboard
from msprobe.monitor.reader import open_monitor
from msprobe.monitor.rows import Stream

_PARAMETER: Final = "param"
_PARAMETERS: Final = (Stream.PARAM_ORIGIN, Stream.PARAM_UPDATED)


def csv2tensorboard_by_step(
    monitor_path: str | os.PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | os.PathLike[str] | None = None,
) -> Path:
    """Write TensorBoard events of csv files, and return their folder.

    Args:
        monitor_path: the folder that holds a folder with csv files for each rank; or that of runs,
            of which the newest is taken.
        time_start: the earliest of these folders, by the time in its name, ``Dec03_21-34-40``.
        time_end: the latest.
        process_num: accepted for older scripts; one process does it.
        data_type_list: streams, such as ``actv``; ``param`` for parameters before and after the
            step; None for all.
        output_dirpath: gets the folder; by default that of `monitor_path`.

    Raises:
        MonitorFormatError: there is neither.
        UnsupportedError: TensorBoard is not installed.
    """
    del process_num
    source = Path(monitor_path)
    now = datetime.now(UTC).strftime("%b%d_%H-%M-%S")
    folder = Path(output_dirpath or source) / f"{now}_csv2tensorboard_by_step"
    with tempfile.TemporaryDirectory() as temporary:
        if is_csv_folder(source):
            run_path = read_csv(source, Path(temporary), first=time_start, last=time_end)
        else:
            run_path = source
        with open_monitor(run_path) as run:
            streams = None
            if data_type_list is not None:
                wanted = {*data_type_list, *(_PARAMETERS if _PARAMETER in data_type_list else ())}
                streams = [stream for stream in run.streams if stream in wanted]
            write_tensorboard(run, folder, streams=streams)
    return folder
