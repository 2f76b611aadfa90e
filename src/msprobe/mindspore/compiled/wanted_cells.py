# SPDX-License-Identifier: Apache-2.0
"""Choose the cells that hand over values: those that `list` and `scope` may keep records of.

The code of the others is left alone, so that a narrow choice costs little.
"""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import nn
from msprobe.capture.selection import Selection
from msprobe.dump.record_names import parse_record_name

Named = tuple[nn.Cell, str]


def wanted_cells(cells: Iterable[Named], selection: Selection) -> tuple[list[Named], str]:
    """Return the cells to record, and the path of the cell that `scope` lies in.

    Args:
        cells: all cells with their names.
        selection: the cells and APIs to keep.

    Returns:
        Between two calls inside one cell only cells inside it are called, so the others are left
        out; the path is empty where nothing is left out for the scope.
    """
    around = "" if selection.scope is None else _common_path(*selection.scope.bounds)
    inside = f"{around}." if around else ""
    found = [
        (cell, name)
        for cell, name in cells
        if selection.may_match(name) and f"{path_of(name)}.".startswith(inside)
    ]
    return found, around


def _common_path(start: str, end: str) -> str:
    """Return the path of the innermost cell around the first calls of two cells; "" for none."""
    first, last = parse_record_name(start), parse_record_name(end)
    is_one_way = first.kind is last.kind and first.index == last.index == 0
    if not (first.is_module and last.is_module and is_one_way):
        return ""
    common = []
    for one, other in zip(first.path.split("."), last.path.split("."), strict=False):
        if one != other:
            break
        common.append(one)
    return ".".join(common)


def path_of(name: str) -> str:
    """Return the path in ``Cell.{path}.{Class}``."""
    return name.rpartition(".")[0].partition(".")[2]
