# SPDX-License-Identifier: Apache-2.0
"""The default alert rules: silent on healthy runs, one incident with a name for each trouble."""

from __future__ import annotations

import json
import math
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.monitor_runs import LAYERS, Step, incidents, run_of
from msprobe.errors import ConfigError
from msprobe.monitor.alerts.actions import listeners_of, read_incidents
from msprobe.monitor.alerts.incidents import IncidentCause, Severity
from msprobe.monitor.pictures import Pictures
from msprobe.monitor.reader import open_monitor
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter

BAD = 60


def test_healthy_run_has_no_incident() -> None:
    assert incidents(run_of(steps=200)) == []


def test_healthy_ranks_have_no_incident() -> None:
    assert incidents(run_of(steps=120, ranks=4)) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_is_one_critical_incident_that_names_the_first_layer(bad: float) -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            for number in range(3, 8):
                values["actv"]["norm"][f"layers.{number}.output"] = bad
            values["run"]["value"]["loss"] = bad

    (found,) = incidents(run_of(spoil))
    assert (found.cause, found.severity) == (IncidentCause.NOT_FINITE, Severity.CRITICAL)
    assert (found.start, found.found) == (BAD, BAD)
    assert (found.lead.series.stream, found.lead.series.name) == ("actv", "layers.3.output")


def test_rules_work_on_after_nan() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step == 40:
            values["run"]["value"]["loss"] = math.nan
        if step >= 70:
            values["param_origin"]["norm"][LAYERS[2]] *= 50

    first, second = incidents(run_of(spoil))
    assert first.cause is IncidentCause.NOT_FINITE
    assert (second.cause, second.lead.series.name) == (IncidentCause.EXPLODING, LAYERS[2])
    assert second.start == 70


@pytest.mark.parametrize(("factor", "cause"), [(40, "exploding"), (1e-4, "vanishing")])
def test_gradients_of_some_layers_move_to_either_side(factor: float, cause: str) -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            for name in LAYERS[:4]:
                values["grad_reduced"]["norm"][name] *= factor

    (found,) = incidents(run_of(spoil))
    assert found.cause == cause
    # A backward pass comes from the last layer.
    assert (found.lead.series.stream, found.lead.series.name) == ("grad_reduced", LAYERS[3])


def test_a_bad_batch_while_the_loss_still_falls_is_named() -> None:
    def fall(values: Step, step: int, rank: int) -> None:
        loss = 0.6 + 1.8 * math.exp(-step / 12) + 0.03 * (step % 3)
        values["run"]["value"]["loss"] = 7.2 if step == 33 else loss

    (found,) = incidents(run_of(fall))
    assert (found.start, found.last) == (33, 33)
    assert found.lead.series.name == "loss"


def test_incident_has_one_span_and_ends() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if BAD <= step < BAD + 3:
            values["run"]["value"]["loss"] *= 8

    (found,) = incidents(run_of(spoil))
    assert (found.cause, found.start, found.last) == (IncidentCause.BAD_BATCH, BAD, BAD + 2)
    assert not found.is_open
    assert found.lead.value is not None
    assert found.lead.expected is not None
    assert 4 < found.lead.value / found.lead.expected < 14


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("lr.0", 1e-2, IncidentCause.LEARNING_RATE_ROSE),
        ("lr.0", 0.0, IncidentCause.LEARNING_RATE_ZERO),
        ("betas.1.0", 0.9, IncidentCause.SETTING_CHANGED),
    ],
)
def test_settings_lead(name: str, value: float, cause: IncidentCause) -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["run"]["value"][name] = value
            if cause is IncidentCause.LEARNING_RATE_ROSE:
                for layer in LAYERS:
                    values["update"]["norm"][layer] *= 10

    (found,) = incidents(run_of(spoil))
    assert (found.cause, found.lead.series.name, found.start) == (cause, name, BAD)


def test_smaller_learning_rate_and_its_updates_are_healthy() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["run"]["value"]["lr.0"] *= 0.1
            for layer in LAYERS:
                values["update"]["norm"][layer] *= 0.1

    assert incidents(run_of(spoil)) == []


def test_steps_of_the_same_length_are_healthy() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:  # those of an optimizer that goes by signs
            values["update"]["norm"] = dict.fromkeys(LAYERS, 1e-3)

    assert incidents(run_of(spoil)) == []


def test_a_parameter_that_shrinks_leads_the_loss_that_it_raises() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["param_origin"]["norm"][LAYERS[3]] *= 1e-3
            values["run"]["value"]["loss"] *= 3

    (found,) = incidents(run_of(spoil))
    assert (found.cause, found.lead.series.name) == (IncidentCause.VANISHING, LAYERS[3])


def test_one_of_many_series_that_is_as_far_as_others_were_is_healthy() -> None:
    names = tuple(f"layers.{number}.weight" for number in range(1000))
    zeros, empty = (0,) * len(names), ("",) * len(names)
    layout = Layout("grad_reduced", ("norm",), names, zeros, zeros, empty, empty)
    noise = np.random.default_rng(1).standard_t(4, size=(150, 1, len(names)))
    blocks = [Rows(layout, 0, step, 0, 0.0, 10 ** (0.1 * one)) for step, one in enumerate(noise)]
    assert incidents(blocks) == []


def test_stale_parameter_is_named() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["update"]["norm"][LAYERS[5]] = 0.0
            values["param_updated"]["norm"][LAYERS[5]] = 3.0
        if step > BAD:
            values["param_origin"]["norm"][LAYERS[5]] = 3.0

    (found,) = incidents(run_of(spoil))
    assert (found.cause, found.lead.series.name) == (IncidentCause.STALE, LAYERS[5])
    assert (found.start, found.found <= BAD + 5) == (BAD, True)


def test_lost_optimizer_state_is_told_from_vanishing_gradients() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            for name in LAYERS:
                values["exp_avg_sq"]["norm"][name] *= 1e-3

    (found,) = incidents(run_of(spoil))
    assert found.cause is IncidentCause.STATE_RESET


def test_units_that_die_are_named() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["actv"]["zeros"]["layers.6.output"] = 1.0

    (found,) = incidents(run_of(spoil))
    assert (found.cause, found.lead.series.name) == (IncidentCause.DEAD_UNITS, "layers.6.output")


def test_second_moment_in_bfloat16_is_named() -> None:
    (found,) = incidents(run_of(dtype_from=(BAD, "torch.bfloat16")))
    assert found.cause is IncidentCause.LOW_PRECISION
    assert "bfloat16" in found.sentence()


def test_rank_with_other_data_is_named() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD and rank == 2:
            values["run"]["value"]["loss"] *= 2.5
            for name in values["actv"]["norm"]:
                values["actv"]["norm"][name] *= 2

    (found,) = incidents(run_of(spoil, ranks=4))
    assert found.cause is IncidentCause.RANK_DIFFERS
    assert found.lead.series.rank == 2


def test_gradients_that_are_no_longer_reduced_are_named() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            for name in LAYERS:
                values["grad_reduced"]["norm"][name] *= 1 + 0.2 * rank

    (found,) = incidents(run_of(spoil, ranks=2))
    assert (found.cause, found.lead.series.stream) == (IncidentCause.RANKS_PART, "grad_reduced")
    assert (found.start, found.severity) == (BAD, Severity.CRITICAL)


def test_loss_scale_may_fall_once_but_not_collapse() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        skips = {30} | set(range(BAD, 200))
        scale = 2.0 ** (16 - sum(step >= one for one in skips))
        values["run"]["value"] |= {"loss_scale": scale, "skipped": float(step in skips)}
        if step in skips:
            values["grad_reduced"]["norm"][LAYERS[0]] = math.inf

    (found,) = incidents(run_of(spoil, steps=BAD + 5))
    assert (found.cause, found.start) == (IncidentCause.LOSS_SCALE, BAD)


def test_skipped_step_does_not_excuse_the_forward_pass() -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        values["run"]["value"] |= {"loss_scale": 1024.0, "skipped": float(step == BAD)}
        if step == BAD:
            values["actv"]["nans"]["layers.4.output"] = 3.0

    (found,) = incidents(run_of(spoil))
    assert (found.cause, found.lead.series.name) == (IncidentCause.NOT_FINITE, "layers.4.output")


def test_incidents_are_written_told_and_end_the_training(tmp_path: Path) -> None:
    bodies: list[dict[str, object]] = []
    arrived = threading.Event()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: object) -> None: ...

    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["run"]["value"]["loss"] = math.nan

    reasons: list[str] = []
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        alert = {"webhook": f"http://127.0.0.1:{server.server_port}/", "stop_on": "critical"}
        (listener,) = listeners_of(alert, tmp_path, 0, stop=reasons.append)
        step = 0
        for rows in run_of(spoil, steps=BAD + 2):
            if rows.step != step:
                listener.end_step(step, 0.0)
                step = rows.step
            listener.take(rows)
        listener.end_step(step, 0.0)
        assert arrived.wait(5)
        server.shutdown()
        thread.join()
    listener.close()
    (written,) = read_incidents(tmp_path)
    assert (written["cause"], written["start"], written["state"]) == ("not_finite", BAD, "closed")
    assert bodies[0]["sentence"] == written["sentence"]
    assert len(reasons) == 1
    assert "NaN or Inf: run loss" in reasons[0]


def test_a_file_that_cannot_be_written_keeps_no_incident_from_ending_the_training(
    tmp_path: Path,
) -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["run"]["value"]["loss"] = math.nan

    reasons: list[str] = []
    gone = tmp_path / "gone"
    (listener,) = listeners_of({"stop_on": "critical"}, gone, 0, stop=reasons.append)
    for step, blocks in groupby(run_of(spoil, steps=BAD + 2), key=lambda rows: rows.step):
        for rows in blocks:
            listener.take(rows)
        listener.end_step(step, 0.0)
    assert len(reasons) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_stored_run_is_judged_as_a_live_one_also_while_it_grows(tmp_path: Path, ranks: int) -> None:
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["param_origin"]["norm"][LAYERS[2]] *= 50

    def facts(found: list[Any]) -> list[Any]:
        return [{**one, "state": "", "words": ""} for one in found]

    blocks = list(run_of(spoil, ranks=ranks))
    found = []
    with ExitStack() as stack:
        writers = [stack.enter_context(RunWriter(tmp_path, rank, {})) for rank in range(ranks)]
        run = stack.enter_context(open_monitor(tmp_path))
        findings = Pictures([run]).findings
        for place, rows in enumerate(blocks):
            writers[rows.rank].append(rows)
            if place % 97 == 0:  # in the middle of a step
                writers[rows.rank].flush()
                found.append(findings.find()["incidents"])
        for writer in writers:
            writer.flush()
        found += [findings.find()["incidents"] for _ in range(2)]
        assert found[0] == []
        assert found[-1] == Pictures([run]).findings.find()["incidents"]
    live = [one.as_json() for one in incidents(iter(blocks))]
    assert facts(found[-1]) == facts(live)
    assert [len(one) for one in found] == sorted(len(one) for one in found)


@pytest.mark.parametrize(
    ("alert", "words"),
    [
        ([], '"alert" is \\[\\]; use an object'),
        ({"ruls": []}, 'did you mean "rules"'),
        ({"rules": [{"rule_name": "Anomaly"}]}, "AnomalyTurbulence, AnomalyNan"),
        ({"rules": [{"rule_name": "AnomalyTurbulence"}]}, "threshold.*a number >= 0"),
        ({"webhook": "file:///etc"}, "an http"),
        ({"stop_on": "never"}, "stop_on"),
    ],
)
def test_alert_settings_are_checked(alert: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        listeners_of(alert, tmp_path, 0, stop=print)
