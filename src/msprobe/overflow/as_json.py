# SPDX-License-Identifier: Apache-2.0
"""The findings as plain data for strict JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from msprobe.dump.records import JsonTree
from msprobe.overflow.findings import Finding, StepFindings

SCHEMA_VERSION = 1


def findings_json(steps: list[StepFindings]) -> dict[str, JsonTree]:
    """Return the answer for all steps."""
    return {
        "schema_version": SCHEMA_VERSION,
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
        "source": finding.source.value,
        "slots": list(finding.slots),
        "contents": finding.contents,
        "detail": finding.detail,
        "deliberate": finding.is_deliberate,
        "severity": finding.severity and finding.severity.value,
        "received_from": sender and {"rank": sender.rank, "name": sender.name},
        "modules": list(finding.modules),
        "frames": list(finding.frames),
        "layer": finding.layer,
        "position": finding.position,
    }
