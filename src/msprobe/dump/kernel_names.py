# SPDX-License-Identifier: Apache-2.0
"""Names of the files that MindSpore's Dump writes, in every grammar it has had.

    MatMul.Default_fc1-Dense_MatMul-op0.0.0.1795182233644492.input.0.DefaultFormat.Float32.npy
    MatMul.Default_fc1-Dense_MatMul-op0.0.0.1795182233644492.output.0.2.DefaultFormat.npy
    MatMul.Default_fc1-Dense_MatMul-op0.3.1.1795182233644492.output.0.ND.DT_BF16
    MatMul.Default_fc1-Dense_MatMul-op0.3.1.1795182233644492
    Opdebug.Node_OpDebug.3.1.1795182233644492.output.0.json

Older files lack the type at the end; newer ones may have two numbers; values of types that ``.npy``
cannot hold keep no suffix; the last-but-one form is a binary file with all values of a kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

OVERFLOW_TYPE: Final = "Opdebug"
"""First part of the names of files about overflows."""

# The limit of file systems, and more than any full name in a mapping.csv.
_MAX_LENGTH: Final = 4096
_ENDING: Final = (
    r"(?:\.(?P<io>input|output)\.(?P<index>\d{1,9})(?:\.(?P<slot>\d{1,9}))?(?:\.(?P<rest>[^/]*?))??)?"
    r"(?P<suffix>\.npy|\.json|\.bin|\.pt)?"
)
# A time of day has 13 digits at least. It may lack the stream before it, and have up to four
# numbers of threads behind it, which only its length tells from the others.
_NAME: Final = re.compile(
    r"(?P<type>[^.]+)\.(?P<name>.+?)\.(?P<task>\d{1,12})(?:\.(?P<stream>\d{1,12}))?"
    r"\.(?P<time>\d{13,19})(?:\.\d{1,9}){0,4}" + _ENDING
)
_SHORT_TIME: Final = re.compile(
    r"(?P<type>[^.]+)\.(?P<name>.+?)\.(?P<task>\d{1,19})\.(?P<stream>\d{1,19})\.(?P<time>\d{1,12})"
    + _ENDING
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFileName:
    """The parts of a file's name.

    Attributes:
        op_type: ``MatMul``; ``Parameter`` for values that no kernel made.
        op_name: full name of the kernel with ``_`` for ``/``; its last part alone in older files.
        task: number of the task; `stream`: of the stream.
        time: when it was written, in microseconds.
        io: ``input`` or ``output``; empty where the file holds all values of the kernel.
        index: which input or output: ``2``, or ``2.0`` where there are two numbers.
        layout: order of the elements, such as ``DefaultFormat`` or ``NC1HWC0``, and the type
            behind it where the name tells both; empty if it tells neither.
        suffix: with its dot; empty for binary files.
    """

    op_type: str
    op_name: str
    task: int
    stream: int
    time: int
    io: str
    index: str
    layout: str
    suffix: str

    @property
    def is_binary(self) -> bool:
        """Return whether the file holds all values of a kernel in the binary form."""
        return not self.io and self.suffix in ("", ".bin")


def parse_kernel_file_name(name: str) -> KernelFileName | None:
    """Return the parts of a file's name, None for files of other kinds."""
    if len(name) > _MAX_LENGTH:
        return None
    found = _NAME.fullmatch(name) or _SHORT_TIME.fullmatch(name)
    if found is None or (not found["io"] and found["suffix"] in (".npy", ".pt", ".json")):
        return None
    index = found["index"] or ""
    return KernelFileName(
        op_type=found["type"],
        op_name=found["name"],
        task=int(found["task"]),
        stream=int(found["stream"] or 0),
        time=int(found["time"]),
        io=found["io"] or "",
        index=index if found["slot"] is None else f"{index}.{found['slot']}",
        layout=found["rest"] or "",
        suffix=found["suffix"] or "",
    )
