# SPDX-License-Identifier: Apache-2.0
"""`AnomalyTurbulence`, `AnomalyNan`, ``anomaly.json`` and the order of alarms."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from msprobe.monitor.alerts.actions import listeners_of
from msprobe.monitor.alerts.documented import Anomaly, DocumentedRules, parse_rules
from msprobe.monitor.rows import Layout, Rows

LAYOUT = Layout(
    "grad_reduced", ("norm", "min"), ("fc.weight",), (0,), (0,), ("[4]",), ("torch.float32",)
)


def alarms(rule: dict[str, object], norms: list[float]) -> list[Anomaly]:
    found: list[Anomaly] = []
    rules = DocumentedRules(parse_rules([rule], source="test"), found.append)
    for step, norm in enumerate(norms):
        rules.take(Rows(LAYOUT, 0, step, 0, 0.0, np.array([[norm], [-1.0]])))
        rules.end_step(step)
    return found


TURBULENCE: dict[str, object] = {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}


@pytest.mark.parametrize(("last", "fires"), [(1.6, True), (1.4, False), (0.6, True), (0.7, False)])
def test_turbulence_has_two_sides(last: float, fires: bool) -> None:
    found = alarms(TURBULENCE, [1.0, 1.0, last])
    assert bool(found) is fires
    if fires:
        assert found[0].message == (
            "Rule AnomalyTurbulence reports anomaly signal in "
            f"('0:fc.weight/rank0/post_grad', 'norm') at step 2, current value {last}, "
            "history mean 1.0."
        )


def test_nan_never_enters_the_average() -> None:
    found = alarms(TURBULENCE, [1.0, math.nan, math.inf, 5.0])
    assert [(one.step, one.average) for one in found] == [(3, 1.0)]


def test_nan_rule_judges_all_operations() -> None:
    rule: dict[str, object] = {"rule_name": "AnomalyNan", "args": {"threshold": 100}}
    assert [(one.step, one.op) for one in alarms(rule, [1.0, math.nan, 101.0])] == [
        (1, "norm"),
        (2, "norm"),
    ]
    assert len(alarms({"rule_name": "AnomalyNan"}, [1e9, math.nan])) == 1


def write_alarms(root: Path) -> Path:
    """Write the alarms of two ranks; return the folder of the analysis."""
    layouts = {
        stream: Layout(stream, ("norm", "max"), ("fc.output",), (0,), (0,), ("[4]",), ("x",))
        for stream in ("exp_avg", "actv", "actv_grad")
    }
    alert = {"rules": [{"rule_name": "AnomalyNan"}], "dump": True, "incidents": False}
    for rank in range(2):
        folder = root / "run"
        folder.mkdir(exist_ok=True)
        (listener,) = listeners_of(alert, folder, rank, stop=print)
        for step in (3, 4):
            for stream in ("exp_avg", "actv_grad", "actv"):
                values = np.full((2, 1), math.nan if rank else 1.0)
                listener.take(Rows(layouts[stream], rank, step, 1, 0.0, values))
            listener.end_step(step, 0.0)
        listener.close()
    return root / "anomaly_detected"


def test_file_keeps_every_alarm(tmp_path: Path) -> None:
    folder = write_alarms(tmp_path)
    assert json.loads((folder / "rank0" / "anomaly.json").read_text()) == {}
    records = json.loads((folder / "rank1" / "anomaly.json").read_text())
    assert len(records) == 12
    record = records["0:fc.output:1/rank1/actv_step_3_call_4"]
    assert record.pop("message").startswith("Rule AnomalyNan reports anomaly signal")
    assert record == {
        "rank": 1,
        "step": 3,
        "micro_step": 1,
        "pp_stage": 0,
        "vpp_stage": 0,
        "call_id": 4,
        "tag_name": "0:fc.output:1/rank1/actv",
        "group_mates": [],
        "op": "norm",
        "value": "NaN",
    }


@pytest.mark.parametrize(
    "module", ["msprobe.core.monitor.anomaly_processor", "msprobe.pytorch.monitor.anomaly_analyse"]
)
def test_processor_orders_alarms(module: str, tmp_path: Path) -> None:
    folder = write_alarms(tmp_path)
    arguments = ["-d", str(folder), "-o", str(tmp_path), "-k", "3", "-s", "[4]"]
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)
    found = json.loads((tmp_path / "anomaly_analyse.json").read_text())
    assert [(one["step"], one["tag_name"], one["op"]) for one in found] == [
        (4, "0:fc.output:1/rank1/actv", "norm"),
        (4, "0:fc.output:1/rank1/actv", "max"),
        (4, "0:fc.output:1/rank1/actv_grad", "norm"),
    ]
