# SPDX-License-Identifier: Apache-2.0
"""``anomaly_analyze_{ns}.json``: findings with their records, in a documented form.

    {"rank_0": [{"op_name", "data_info": {"input_args", "input_kwargs", "output"},
                 "construct_info": [path to it], "stack_info": [frames], …}]}

These keys are those of mindstudio-probe. Each entry also says ``step``, ``source``, ``slots``,
``contents``, ``detail``, ``severity``, ``deliberate``, and, where another rank sent the values,
``received_from``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from msprobe.dump.dump_steps import DumpStep, RankKey
from msprobe.dump.records import JsonTree
from msprobe.files import write_report
from msprobe.json_text import strict_json
from msprobe.overflow.findings import Finding, StepFindings

_SCHEMA_VERSION: Final = 1
_PARTS: Final = ("input_args", "input_kwargs", "input", "output", "output_kwargs", "parameters")


def write_anomalies(directory: Path, step: DumpStep, found: StepFindings) -> Path:
    """Write the findings of one step and return the file.

    Args:
        directory: folder, made if missing.
        step: the step, for the records' contents.
        found: its findings, at least one.

    Raises:
        ReportWriteError: the file cannot be written.
        DumpFormatError: the step's files are damaged.
    """
    tree: dict[str, list[dict[str, JsonTree]]] = {}
    for finding in found.findings:
        view = step.rank(finding.place.rank)
        name = finding.place.name
        data = view.records[name].parts if name in view.records else {}  # none of an update
        entry = _entry(finding, data) | {"step": found.step}
        tree.setdefault(rank_title(finding.place.rank, step.ranks), []).append(entry)
    path = directory / f"anomaly_analyze_{time.time_ns()}.json"
    return write_report(path, strict_json(tree, indent=4))


def rank_title(rank: RankKey, ranks: Mapping[RankKey, Any]) -> str:
    """Return the key of a rank: ``rank_3``; a single process without a number is ``rank_0``."""
    if isinstance(rank, int):
        return f"rank_{rank}"
    return "rank_0" if len(ranks) == 1 else rank


def _entry(finding: Finding, data: Mapping[str, JsonTree]) -> dict[str, JsonTree]:
    entry: dict[str, JsonTree] = {
        "op_name": finding.place.name,
        "data_info": {part: data[part] for part in _PARTS if part in data} or dict(data),
        "construct_info": [*reversed(finding.modules), finding.place.name],
        "stack_info": list(finding.frames),
        **_facts(finding),
    }
    if finding.sender is not None:
        entry["received_from"] = {"rank": finding.sender.rank, "op_name": finding.sender.name}
    return entry


def _facts(finding: Finding) -> dict[str, JsonTree]:
    return {
        "source": finding.source.value,
        "slots": list(finding.slots),
        "contents": finding.contents,
        "detail": finding.detail,
        "severity": finding.severity and finding.severity.value,
        "deliberate": finding.is_deliberate,
    }


def findings_json(steps: list[StepFindings]) -> dict[str, JsonTree]:
    """Return the answer for all steps, as the command prints it for programs."""
    return {
        "schema_version": _SCHEMA_VERSION,
        "finite": not any(step.findings or step.unseen for step in steps),
        "steps": [_step_json(step) for step in steps],
    }


def _step_json(found: StepFindings) -> dict[str, Any]:
    return {
        "step": found.step,
        "records": found.records,
        "affected": {str(rank): count for rank, count in found.affected.items()},
        "first": [_finding_json(finding) for finding in found.first],
        "findings": [_finding_json(finding) for finding in found.findings],
        "notes": list(found.notes),
        "unseen": [str(rank) for rank in found.unseen],
        "near": found.near and asdict(found.near),
        "growth": found.growth and asdict(found.growth),
        "loss_growth": found.loss_growth and asdict(found.loss_growth),
        "scaler_skip": found.skip and asdict(found.skip),
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    sender = finding.sender
    return {
        "rank": finding.place.rank,
        "name": finding.place.name,
        **_facts(finding),
        "received_from": sender and {"rank": sender.rank, "name": sender.name},
        "modules": list(finding.modules),
        "frames": list(finding.frames),
        "layer": finding.layer,
        "position": finding.position,
    }
