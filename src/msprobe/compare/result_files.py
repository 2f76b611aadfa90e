# SPDX-License-Identifier: Apache-2.0
"""Names of the files that a comparison writes, as in mindstudio-probe.

compare_result_{time}.xlsx                     one rank
compare_result_rank0_{time}.xlsx               several ranks; in step{n}/ if several steps
compare_result_rank0-rank0_{time}.xlsx         the same, for a compare.json with folders
debug_compare_result[_rank0]_{time}.xlsx       level debug
compare_result_{rank}_{step}_{time}.xlsx       kernel dumps
{graph|pynative}/step{n}/compare_result_…      MindSpore dumps of two halves
worst_ranks_{time}.csv                         several ranks: the worst rank of every value
advisor[_rank0]_{time}.txt                     where it was asked for
data_mapping[_rank0]_{time}.yaml               row names that a layer mapping paired
compare_report_{time}.html                     the report
summary.json
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.kernel_views import KernelView
from msprobe.errors import ReportWriteError
from msprobe.files import TEMPORARY_PREFIX, remove_quietly, write_report
from msprobe.json_text import strict_json
from msprobe.plain_text import reason

if TYPE_CHECKING:
    from msprobe.compare.rank_comparison import RankComparison

SUMMARY_JSON: Final = "summary.json"

_STAMP: Final = "%Y%m%d%H%M%S"
# Where files with a time in their names are, seen from the output folder.
_PLACES: Final = ("", "step*/", "*/step*/")


@contextmanager
def own_stamp(folder: Path) -> Iterator[str]:
    """Context with a time for the names of one call's files, unique in the output folder.

    Where this second is taken, a later one is.

    Raises:
        ReportWriteError: the folder cannot be made or written to.
    """
    moment = time.time()
    while True:
        stamp = time.strftime(_STAMP, time.localtime(moment))
        claim = folder / f"{TEMPORARY_PREFIX}{stamp}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            claim.touch(exist_ok=False)
        except FileExistsError:
            moment += 1
            continue
        except OSError as exc:
            raise ReportWriteError(folder, f"cannot be written: {reason(exc)}") from exc
        try:
            if not any(next(folder.glob(place + f"*_{stamp}*"), None) for place in _PLACES):
                yield stamp
                return
        finally:
            remove_quietly(claim)
        moment += 1


def table_names(
    comparisons: Sequence[RankComparison], stamp: str, *, rank_pairs: bool = False
) -> list[str]:
    """Return the path of each comparison's table inside the output folder, without suffix.

    Args:
        comparisons: all that one call compared.
        stamp: time of the call, as written in names.
        rank_pairs: whether a rank is named with the rank that it was compared with, also where
            there is but one.
    """
    steps = {comparison.step for comparison in comparisons}
    is_alone = len(comparisons) == 1
    return [
        _table_name(
            comparison, stamp, is_alone=is_alone, has_steps=len(steps) > 1, rank_pairs=rank_pairs
        )
        for comparison in comparisons
    ]


def _table_name(
    comparison: RankComparison, stamp: str, *, is_alone: bool, has_steps: bool, rank_pairs: bool
) -> str:
    view = comparison.target.view
    name = f"{view.name}-{comparison.reference.view.name}" if rank_pairs else view.name
    if isinstance(view, KernelView):
        return f"compare_result_{view.rank}_{comparison.step}_{stamp}"
    prefix = "debug_compare_result" if comparison.target.level == "debug" else "compare_result"
    if view.mode is not None:
        return f"{view.mode}/step{comparison.step}/{prefix}_{name}_{stamp}"
    if is_alone and not (rank_pairs and isinstance(comparison.rank, int)):
        return f"{prefix}_{stamp}"
    folder = f"step{comparison.step}/" if has_steps else ""
    return f"{folder}{prefix}_{name}_{stamp}"


def name_beside(table_name: str, what: str, suffix: str) -> str:
    """Return the path of a file that goes with a table, which is named as it is."""
    folder, separator, name = table_name.rpartition("/")
    return folder + separator + name.replace("compare_result", what, 1) + suffix


def write_data_mapping(comparison: RankComparison, path: Path) -> Path:
    """Write which rows were compared, as a data mapping that leads to the same rows.

    Args:
        comparison: one rank.
        path: the file, ``….yaml``.

    Raises:
        ReportWriteError: it cannot be written.
    """
    import yaml

    from msprobe.compare.matching import data_mapping_of

    mapping = data_mapping_of(comparison.rows)
    text = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=10_000)
    return write_report(path, text)


def check_writable(directory: Path) -> None:
    """Make sure before the work that its results can be written; nothing is made.

    Raises:
        ReportWriteError: the folder is a file, lies below one, or may not be written to.
    """
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise ReportWriteError(nearest, "is a file, where a folder for the results is wanted")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ReportWriteError(nearest, "this folder may not be written to")


def write_summary(summary: Mapping[str, Any], directory: Path) -> Path:
    """Write ``summary.json``, replacing one that is there; return its path.

    Raises:
        ReportWriteError: it cannot be written.
    """
    return write_report(directory / SUMMARY_JSON, strict_json(summary), warns=False)
