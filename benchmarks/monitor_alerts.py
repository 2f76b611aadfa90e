# SPDX-License-Identifier: Apache-2.0
"""Score of the monitor's default alert rules: false incidents, and planted troubles found.

    python benchmarks/monitor_alerts.py                 # all
    python benchmarks/monitor_alerts.py --part second   # first … sixth

Healthy runs differ in model, optimizer, schedule, ranks and seed. A trouble counts as caught within
five steps; its place is right if the series that leads is of the planted layer and stream.
"""

from __future__ import annotations

import argparse
import time

import torch
from monitor_optimizers import STEPS
from monitor_runs import Recipe, Run
from monitor_sets import START, Trouble, sets

from msprobe.monitor.alerts.engine import Alerts
from msprobe.monitor.alerts.incidents import Incident

WITHIN = 5


def healthy(name: str, recipes: list[Recipe]) -> None:
    false = 0
    for recipe in recipes:
        run, alerts = Run(recipe), Alerts()
        for step in range(STEPS):
            run.overflows = recipe.scaled and step in (3, 40, 41, 200)
            for rows in run.step(step):
                alerts.take(rows)
            alerts.end_step(step)
        false += len(alerts.incidents)
        for incident in alerts.incidents:
            told = f"step {incident.start}: {incident.sentence()}"
            print(f"  false: {recipe.name}: {told}", flush=True)
    print(f"{name}, healthy: {len(recipes)} runs of {STEPS} steps, {false} false incidents")


def caught(trouble: Trouble) -> Incident | None:
    run, alerts = Run(trouble.recipe), Alerts()
    for step in range(START + WITHIN):
        if step >= START:
            trouble.act(run, step)
        for rows in run.step(step):
            alerts.take(rows)
        alerts.end_step(step)
    return next((one for one in alerts.incidents if one.found >= START), None)


def score(name: str, troubles: list[Trouble]) -> None:
    found = placed = 0
    for trouble in troubles:
        incident = caught(trouble)
        mark = "missed"
        if incident is not None:
            lead = incident.lead.series
            right = lead.stream in trouble.streams and any(
                part in lead.name for part in trouble.layer
            )
            found += 1
            placed += right
            place = "right" if right else "WRONG"
            mark = f"+{incident.found - START} {place} {incident.sentence()}"
        print(f"  {trouble.kind} ({trouble.recipe.name}): {mark}", flush=True)
    print(f"{name}: {len(troubles)} troubles, {found} caught, {placed} at the right place")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("all", *sets()), default="all")
    parser.add_argument("--limit", type=int, help="of the runs of each kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    for name, one in sets().items():
        if options.part in ("all", name):
            healthy(name, one.healthy[: options.limit])
            score(name, one.troubles[: options.limit])
    print(f"{time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
