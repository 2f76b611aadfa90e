# SPDX-License-Identifier: Apache-2.0
"""Order the alarms of all ranks by where they occurred first: ``anomaly_analyse.json``."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msprobe.errors import MonitorFormatError
from msprobe.files import write_report
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json, strict_json
from msprobe.monitor.rows import Stream

logger = logging.getLogger(__name__)

DEFAULT_COUNT: Final = 8
RESULT_NAME: Final = "anomaly_analyse.json"
_FORWARD, _BACKWARD, _OPTIMIZER, _LAST = range(4)
_STAGES: Final = {
    "actv": _FORWARD,
    "actv_grad": _BACKWARD,
    "pre_grad": _BACKWARD,
    "post_grad": _BACKWARD,
    "acc_grad": _BACKWARD,
    "exp_avg": _OPTIMIZER,
    "exp_avg_sq": _OPTIMIZER,
    Stream.PARAM_ORIGIN: _OPTIMIZER,
    Stream.PARAM_UPDATED: _LAST,
}


def read_anomalies(folder: Path) -> list[dict[str, Any]]:
    """Return the alarms in all ``rank*/anomaly.json`` of a folder.

    Raises:
        MonitorFormatError: the folder has none, or one cannot be read.
    """
    files = sorted(folder.glob("rank*/anomaly.json"))
    if not files:
        raise MonitorFormatError(folder, "holds no rank*/anomaly.json")
    return [record for path in files for record in _records(path)]


def _records(path: Path) -> Iterable[dict[str, Any]]:
    try:
        tree = parse_json(path.read_bytes())
    except JSON_ERRORS as exc:
        raise MonitorFormatError(path, json_problem(exc)) from exc
    if not isinstance(tree, dict):
        raise MonitorFormatError(path, "is no JSON object")
    return [record for record in tree.values() if isinstance(record, dict)]


def earliest(
    anomalies: Iterable[dict[str, Any]], *, count: int = DEFAULT_COUNT, steps: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Return the alarms that occurred first, the first one at the head.

    Args:
        anomalies: records of ``anomaly.json``.
        count: how many to return.
        steps: steps to take; empty for all.
    """
    wanted = [one for one in anomalies if not steps or one.get("step") in steps]
    return sorted(wanted, key=_order)[:count]


def _order(record: dict[str, Any]) -> tuple[int, ...]:
    stage = _STAGES.get(str(record.get("tag_name", "")).rpartition("/")[2], _LAST)
    vpp, pp = _whole(record, "vpp_stage"), _whole(record, "pp_stage")
    if stage != _FORWARD:
        vpp, pp = -vpp, -pp
    step, micro = _whole(record, "step"), _whole(record, "micro_step")
    return step, micro, stage, vpp, pp, _whole(record, "call_id")


def _whole(record: dict[str, Any], key: str) -> int:
    value = record.get(key, 0)
    return value if isinstance(value, int) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m msprobe.core.monitor.anomaly_processor``; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-d", "--data_path", type=Path, required=True, help="folder of rank*/")
    parser.add_argument("-o", "--out_path", type=Path, help="folder of the result; default: data")
    parser.add_argument("-k", "--topk", type=int, default=DEFAULT_COUNT, help="alarms to keep")
    parser.add_argument("-s", "--step", "--step_list", default="[]", help='steps, as "[1, 2]"')
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\[\s*(\d+\s*(,\s*\d+\s*)*)?\]", options.step):
        parser.error(f'--step is {options.step!r}; use a list such as "[1, 2]"')
    if options.topk < 1:
        parser.error(f"--topk is {options.topk}; use a number >= 1")
    found = earliest(
        read_anomalies(options.data_path), count=options.topk, steps=json.loads(options.step)
    )
    folder = options.out_path or options.data_path
    path = write_report(folder / RESULT_NAME, strict_json(found))
    logger.info("%d alarms written to %s", len(found), path)
    return 0
