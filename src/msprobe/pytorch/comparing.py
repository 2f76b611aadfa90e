# SPDX-License-Identifier: Apache-2.0
"""`compare` and `compare_distributed`, as scripts for mindstudio-probe call them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.errors import UsageError

if TYPE_CHECKING:
    from msprobe.compare.result import CompareResult

PathLike = str | os.PathLike[str]


def compare(
    input_param: Mapping[str, Any] | PathLike,
    output_path: PathLike,
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    highlight: bool = True,
    *,
    data_mapping: Mapping[str, str] | PathLike | None = None,
    is_print_compare_log: bool = True,
) -> CompareResult:
    """Compare the dumps of two ranks and write the tables of mindstudio-probe.

    `msprobe.compare_dumps` does the same with more choices.

    Args:
        input_param: ``{"npu_json_path": target, "bench_json_path": reference}``, or the path of a
            ``compare.json``. With ``stack_json_path`` the tables have call stacks if `stack_mode`
            is true; ``is_print_compare_log`` has no effect.
        output_path: folder of the files; made if missing.
        stack_mode: see `input_param`; without ``stack_json_path`` the tables have call stacks where
            the dump has them.
        auto_analyze: whether to write the advice of mindstudio-probe.
        fuzzy_match: whether calls are aligned by order and similarity even where names agree.
        highlight: whether suspicious rows of the table are coloured.
        data_mapping: names of target rows → names of reference rows, or a YAML file of these.
        is_print_compare_log: no effect: the table has every row.

    Returns:
        The result.

    Raises:
        ConfigError: `input_param` lacks a path or has an unknown key.
        DumpFormatError: there is no dump at a path, or it is damaged.
        UsageError: the two cannot be compared.
    """
    from msprobe.compare.input_file import parse_compare_input, read_compare_input
    from msprobe.compare.result import LegacyChoices
    from msprobe.compare.run import compare_dumps

    if isinstance(input_param, Mapping):
        given = parse_compare_input(input_param, source="input_param")
    else:
        given = read_compare_input(Path(input_param))
    result = compare_dumps(
        given.target,
        given.reference,
        ranks=given.ranks,
        steps=given.steps,
        align="always" if fuzzy_match else "auto",
        data_mapping=data_mapping,
    )
    legacy = LegacyChoices(
        columns="documented",
        generation="8.3.3",
        highlight=highlight,
        stack=stack_mode or not given.names_stacks,
        rank_pairs=given.target.is_dir(),
        advisor=auto_analyze,
    )
    result.write(output_path, legacy=legacy)
    return result


def compare_distributed(
    npu_dump_dir: PathLike, bench_dump_dir: PathLike, output_path: PathLike, **kwargs: Any
) -> CompareResult:
    """Compare all ranks of two step folders and write the tables of mindstudio-probe.

    Args:
        npu_dump_dir: folder with the target's ranks.
        bench_dump_dir: folder with the reference's ranks.
        output_path: folder of the files; made if missing.
        **kwargs: as for `compare`: ``auto_analyze``, ``fuzzy_match``, ``is_print_compare_log`` …

    Returns:
        The result.

    Raises:
        DumpFormatError: there is no dump at a path, or it is damaged.
        UsageError: the two cannot be compared, or ``suffix`` was given: files are named by rank.
    """
    if "suffix" in kwargs:
        raise UsageError("compare_distributed names files by rank; leave suffix out")
    paths = {"npu_path": os.fspath(npu_dump_dir), "bench_path": os.fspath(bench_dump_dir)}
    return compare(paths, output_path, **kwargs)
