# SPDX-License-Identifier: Apache-2.0
"""First differences of ranks, in the files of mindstudio-probe's option ``-da``.

    compare_result_rank0_{time}.json    every operation of a rank: same or not, and its rows
    diff_analyze_{ns}.json              the operations with which it begins, by rank

An operation differs where one of its values does, by our own verdicts. Of ranks that communicate,
only those are named whose difference no other rank's explains (`msprobe.collectives.matching`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from msprobe.collectives.calls import communication_calls
from msprobe.collectives.matching import connect, earliest_faults
from msprobe.compare.legacy.cells import NOTHING
from msprobe.compare.legacy.columns import CHECKSUMS, STACK, STATISTICS, Generation
from msprobe.compare.legacy.tables import legacy_operations
from msprobe.compare.model import Added, Missing, Mode, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.values import Message, Role, Value
from msprobe.files import write_report
from msprobe.json_text import strict, strict_json
from msprobe.operators.lookup import operator_of
from msprobe.report.tables import Cell

_IGNORED: Final = ("fill", "setitem")
_STATES: Final = {
    Role.INPUT: "input",
    Role.PARAMETER: "parameters",
    Role.OUTPUT: "output",
    Role.PARAMETER_GRAD: "parameters_grad",
    Role.SAVED: "debug",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """An operation with which the differences of a step begin.

    Attributes:
        comparison: of which rank.
        name: the target's record.
        rows: its values, in order.
    """

    comparison: RankComparison
    name: str
    rows: tuple[Row, ...]


def first_differences(comparisons: Sequence[RankComparison]) -> list[FirstDifference]:
    """Return where the ranks of one step first differ, the earliest first.

    Args:
        comparisons: the ranks of one step, judged.
    """
    faulty: dict[int, dict[str, int]] = {}
    faulty_inputs: dict[int, set[str]] = {}
    rows_of: dict[tuple[int, str], list[Row]] = {}
    calls = {}
    for number, comparison in enumerate(comparisons):
        # The rank's own number, so that sources and destinations can be found.
        rank = _number(comparison, number)
        side = comparison.target
        names = {name: side.parsed(name) for name in side.names}
        places = {name: place for place, name in enumerate(names)}
        calls[rank] = communication_calls(side.view.records, names, rank)
        faulty[rank], faulty_inputs[rank] = {}, set()
        for name, rows in _by_operation(comparison):
            different = [row for row in rows if is_different(row)]
            if different:
                faulty[rank][name] = places[name]
                rows_of[rank, name] = rows
                if any(row.value.role is not Role.OUTPUT for row in different):
                    faulty_inputs[rank].add(name)
    by_rank = {_number(each, number): each for number, each in enumerate(comparisons)}
    return [
        FirstDifference(
            comparison=by_rank[fault.rank],
            name=fault.name,
            rows=tuple(rows_of[fault.rank, fault.name]),
        )
        for fault in earliest_faults(connect(calls), faulty, faulty_inputs)
    ]


def is_different(row: Row) -> bool:
    """Return whether a row makes its operation differ."""
    name = row.pair.target
    if name is None or isinstance(row, Added) or not row.status.is_difference:
        return False
    prefix, _, rest = name.partition(".")
    operator = operator_of(prefix, rest.partition(".")[0])
    if operator.allocates or operator.name in _IGNORED:
        return False
    return row.value.slot not in [f"output.{place}" for place in operator.generator_outputs]


def write_first_differences(
    comparisons: Sequence[RankComparison], directory: Path, stamp: str
) -> list[Path]:
    """Write the files of the search; return them.

    Where nothing differs there is no ``diff_analyze_{ns}.json``. Several steps have a folder each.

    Args:
        comparisons: all ranks of all steps, judged.
        directory: the folder; made if missing.
        stamp: time as written in names.

    Raises:
        ReportWriteError: a file cannot be written.
    """
    files: list[Path] = []
    by_step: dict[int, list[RankComparison]] = {}
    for comparison in comparisons:
        by_step.setdefault(comparison.step, []).append(comparison)
    for step, ranks in by_step.items():
        folder = directory / f"step{step}" if len(by_step) > 1 else directory
        for comparison in ranks:
            path = folder / f"compare_result_{_label(comparison, '')}_{stamp}.json"
            files.append(write_report(path, _operations_text(comparison)))
        found = first_differences(ranks)
        if found:
            path = folder / f"diff_analyze_{time.time_ns()}.json"
            files.append(write_report(path, strict_json(_analysis(found), indent=2)))
    return files


def _number(comparison: RankComparison, position: int) -> int:
    """Return a rank's number; a process without one counts as the rank of its place."""
    return comparison.rank if isinstance(comparison.rank, int) else position


def _label(comparison: RankComparison, separator: str) -> str:
    rank = comparison.rank
    return f"rank{separator}{rank}" if isinstance(rank, int) else str(rank)


def _by_operation(comparison: RankComparison) -> Iterator[tuple[str, list[Row]]]:
    for _, group in groupby(comparison.rows, key=lambda row: id(row.pair)):
        rows = list(group)
        name = rows[0].pair.target
        if name is not None:
            yield name, rows


def _operations_text(comparison: RankComparison) -> Iterator[str]:
    """Yield the JSON of all operations of a rank, one per line."""
    columns, operations = legacy_operations(comparison, Generation.V26_2_0)
    separator = "{\n"
    for rows, lines in operations:
        name = rows[0].pair.name
        items = [
            _item(columns, cells, row, comparison)
            for row, (cells, _) in zip(rows, lines, strict=True)
        ]
        is_same = not any(map(is_different, rows))
        entry = {"is_same": is_same, "op_items": items}
        yield f"{separator}{json.dumps(name)}: {json.dumps(strict(entry), ensure_ascii=False)}"
        separator = ",\n"
    yield "{}\n" if separator == "{\n" else "\n}\n"


def _item(
    columns: Sequence[str], cells: Sequence[Cell], row: Row, comparison: RankComparison
) -> dict[str, Any]:
    item: dict[str, Any] = dict(zip(columns, cells, strict=True))
    if item.get(STACK, NOTHING) != NOTHING and row.pair.target is not None:
        item[STACK] = comparison.target.frames(row.pair.target)
    item["state"] = _STATES[row.value.role]
    item["api_origin_name"] = row.pair.name
    sides = {"NPU": _message(row.target), "Bench": _message(row.reference)}
    item |= {f"{side} P2POp op": _fact(message.operation) for side, message in sides.items()}
    return item | {f"{side} P2POp peer": _fact(message.peer) for side, message in sides.items()}


def _message(value: Value | None) -> Message:
    return (None if value is None else value.message) or Message()


def _fact(found: str | int | None) -> str | int:
    return "None" if found is None else found


def _analysis(found: Sequence[FirstDifference]) -> dict[str, Any]:
    result: dict[str, list[dict[str, Any]]] = {}
    for each in found:
        result.setdefault(_label(each.comparison, "_"), []).append(_entry(each))
    return result


def _entry(found: FirstDifference) -> dict[str, Any]:
    comparison = found.comparison
    data: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
    for row, values in _values(found):
        state = "output" if row.value.role is Role.OUTPUT else "input"
        data[state][row.name] = values
    return {
        "op_name": found.name,
        "data_info": data,
        "stack_info": comparison.target.frames(found.name),
        "differs": [
            {
                "name": row.name,
                "status": row.status.value,
                "origin": None if row.origin is None else row.origin.value,
                "error": row.error,
                "reason": row.reason,
            }
            for row in found.rows
            if is_different(row)
        ],
    }


def _values(found: FirstDifference) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    """Yield each value of the target with its cells in the table."""
    comparison = found.comparison
    rows = [row for row in found.rows if not isinstance(row, Missing)]
    only = RankComparison(
        step=comparison.step,
        rank=comparison.rank,
        target=comparison.target,
        reference=comparison.reference,
        mode=comparison.mode,
        pairs=[rows[0].pair],
        rows=rows,
    )
    columns, operations = legacy_operations(only, Generation.V26_2_0)
    wanted = CHECKSUMS[:1] if comparison.mode is Mode.MD5 else STATISTICS[:4]
    for members, lines in operations:
        for row, (cells, _) in zip(members, lines, strict=True):
            by_title = dict(zip(columns, cells, strict=True))
            values = {title: by_title[title] for title in wanted}
            yield row, {**values, "NPU P2POp peer": _fact(_message(row.target).peer)}
