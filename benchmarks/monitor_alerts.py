# SPDX-License-Identifier: Apache-2.0
"""Score of the monitor's default alert rules: false incidents, and planted troubles found.

    python benchmarks/monitor_alerts.py                 # all
    python benchmarks/monitor_alerts.py --part healthy  # or tuning, unseen, third … sixth

Healthy runs differ in model, optimizer, schedule, ranks and seed. A trouble counts as caught within
five steps; its place is right if the series that leads is of the planted layer and stream. The
troubles "unseen" were written after the rules.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterable, Iterator

import monitor_fifth_set as fifth
import monitor_fourth_set as fourth
import monitor_sixth_set as sixth
import monitor_third_set as third
import torch
from monitor_runs import MODELS, OPTIMIZERS, SCHEDULES, STEPS, Recipe, Run
from monitor_troubles import START, Trouble, tuning_troubles, unseen_troubles

from msprobe.monitor.alerts.engine import Alerts
from msprobe.monitor.alerts.incidents import Incident

WITHIN = 5
# The later sets add to these.
_FIRST_MODELS, _FIRST_OPTIMIZERS, _FIRST_SCHEDULES = 7, 4, 6


def healthy_recipes() -> Iterator[Recipe]:
    combinations = itertools.product(
        list(MODELS)[:_FIRST_MODELS],
        list(OPTIMIZERS)[:_FIRST_OPTIMIZERS],
        list(SCHEDULES)[:_FIRST_SCHEDULES],
    )
    for number, (model, optimizer, schedule) in enumerate(combinations):
        if number % 13 in (0, 2, 4, 7, 10) or (schedule == "drops" and number % 5 == 0):
            ranks = (1, 1, 2, 1, 4)[number % 5]
            clip = 1.0 if number % 3 == 0 else None
            yield Recipe(model, optimizer, schedule, ranks, number, clip, number % 4 == 1)


def healthy(recipes: Iterable[Recipe]) -> int:
    false, runs = 0, 0
    for recipe in recipes:
        run, alerts = Run(recipe), Alerts()
        for step in range(STEPS):
            run.overflows = recipe.scaled and step in (3, 40, 41, 200)
            for rows in run.step(step):
                alerts.take(rows)
            alerts.end_step(step)
        runs += 1
        false += len(alerts.incidents)
        for incident in alerts.incidents:
            print(
                f"  false: {recipe.name}: step {incident.start}: {incident.sentence()}", flush=True
            )
    print(f"healthy: {runs} runs of {STEPS} steps, {false} false incidents")
    return false


def caught(trouble: Trouble) -> Incident | None:
    run, alerts = Run(trouble.recipe), Alerts()
    for step in range(START + WITHIN):
        if step >= START:
            trouble.act(run, step)
        for rows in run.step(step):
            alerts.take(rows)
        alerts.end_step(step)
    found = [one for one in alerts.incidents if one.found >= START]
    return found[0] if found else None


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
            mark = (
                f"+{incident.found - START} {'right' if right else 'WRONG'} {incident.sentence()}"
            )
        print(f"  {trouble.kind} ({trouble.recipe.name}): {mark}", flush=True)
    print(f"{name}: {len(troubles)} troubles, {found} caught, {placed} at the right place")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("all", "healthy", "tuning", "unseen", "third", "fourth", "fifth", "sixth")
    parser.add_argument("--part", choices=parts, default="all")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    if options.part in ("all", "healthy"):
        healthy(itertools.islice(healthy_recipes(), options.limit))
    if options.part in ("all", "tuning"):
        score("tuning", tuning_troubles()[: options.limit])
    if options.part in ("all", "unseen"):
        score("unseen", unseen_troubles()[: options.limit])
    for name, later in (("third", third), ("fourth", fourth), ("fifth", fifth), ("sixth", sixth)):
        if options.part in ("all", name):
            healthy(later.healthy_recipes()[: options.limit])
            score(name, later.troubles()[: options.limit])
    print(f"{time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
