# SPDX-License-Identifier: Apache-2.0
"""Lists about collectives that may be files: ``distributed_ops.yaml``, ``stack_blacklist.yaml``.

The first has names of functions under `distributed` (of `torch.distributed`) or
`communication.comm_func` (of MindSpore), the second patterns of frames under `stack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msprobe.yaml_nodes import nearest, read_yaml

OPS_SECTIONS: Final = ("distributed", "communication.comm_func")
STACK_SECTIONS: Final = ("stack",)


def listed(value: Sequence[str] | str, sections: Sequence[str], beside: Path | None) -> list[str]:
    """Return the entries of a list, or of a file.

    Args:
        value: the list, or the path of a YAML file; a relative one begins at `beside`.
        sections: the keys of the file that are read; a file needs one of them.
        beside: the folder of the configuration; None for the current one.

    Raises:
        ConfigError: the file has another key, or something else than a list of texts.
        ConfigFileError: it cannot be read.
    """
    if not isinstance(value, str):
        return list(value)
    path = Path(value).expanduser()
    top = read_yaml(path if beside is None else beside / path)
    found: list[str] = []
    for key, place, node in top.items(f"lists under {' or '.join(sections)}"):
        if key not in sections:
            place.refuse(key, sections, hint=nearest(key, sections))
        if node.kind != "null":  # a section whose lines were all taken out
            found += [one.text("a text") for one in node.elements("a list of texts")]
    return found
