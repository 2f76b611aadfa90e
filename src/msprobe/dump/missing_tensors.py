# SPDX-License-Identifier: Apache-2.0
"""Tensor files that records name and that are not there.

Records reach the journal at once, tensor files wait in the writer's queue: a kill leaves records
whose files were never written.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msprobe.dump.record_views import Record
from msprobe.errors import DumpFormatError


def missing_tensor_files(records: Iterable[Record], folder: Path) -> list[str]:
    """Return the files that records name as `data_name` and that `folder` does not hold.

    Each file once, in the order of the records. A record that is damaged names none.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    missing: dict[str, None] = {}
    for record in records:
        try:
            names = [tensor.data_name for _, tensor in record.tensors() if tensor.data_name]
        except DumpFormatError:
            continue
        missing |= dict.fromkeys(name for name in names if name not in there)
    return list(missing)
