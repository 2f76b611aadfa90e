# SPDX-License-Identifier: Apache-2.0
"""Tell the user of incidents: a file, the log, a webhook, the end of the training."""

from __future__ import annotations

import difflib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from msprobe.config.checking import convert
from msprobe.errors import ConfigError
from msprobe.json_text import strict_json
from msprobe.log import warn_once
from msprobe.monitor.alerts.documented import AnomalyFile, DocumentedRules, parse_rules
from msprobe.monitor.alerts.engine import Action, Alerts
from msprobe.monitor.alerts.incidents import Incident, Severity
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

_KEYS: Final = ("rules", "dump", "incidents", "webhook", "stop_on")
_WEBHOOK_SECONDS: Final = 5.0
_BEGINS: Final = "begins"
_SCHEMES: Final = ("http://", "https://")


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The key ``alert`` of the monitor's configuration.

    Attributes:
        rules: documented rules, as `parse_rules` reads them.
        dump: whether their alarms are written to ``anomaly.json``.
        incidents: whether the default rules run.
        webhook: address to which each incident is posted as JSON; empty for none.
        stop_on: severity of an incident that ends the training; None for none.
    """

    rules: list[Any] = []
    dump: bool = False
    incidents: bool = True
    webhook: str = ""
    stop_on: Severity | None = None


def parse_alert(alert: Any, *, source: str | Path) -> AlertSettings:
    """Return the settings of the key ``alert``; None means the defaults.

    Raises:
        ConfigError: a key is unknown, or has a value that cannot be used.
    """
    if alert is None:
        return AlertSettings()
    if not isinstance(alert, Mapping):
        raise ConfigError("alert", alert, "an object", source=source)
    for key in alert:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f'did you mean "{near[0]}"?' if near else "known keys: " + ", ".join(_KEYS)
            raise ConfigError(f"alert.{key}", alert[key], source=source, hint=hint)
    settings = convert(dict(alert), AlertSettings, prefix="alert", source=source)
    if settings.webhook and not settings.webhook.startswith(_SCHEMES):
        raise ConfigError("alert.webhook", settings.webhook, "an http(s) address", source=source)
    parse_rules(settings.rules, source=source)
    return settings


def listeners_of(
    alert: Any,
    folder: Path,
    rank: int,
    *,
    stop: Callable[[str], None],
    begins: int = 0,
) -> list[Alerts | DocumentedRules]:
    """Return the listeners that the key ``alert`` asks for.

    Args:
        alert: the value of the key; None without it.
        folder: of the run; receives ``incidents_rank{R}.jsonl``, its parent ``anomaly_detected``.
        rank: of the process.
        stop: ends the training; takes the reason.
        begins: the first step that they see.

    Raises:
        ConfigError: as for `parse_alert`.
    """
    settings = parse_alert(alert, source="alert")
    listeners: list[Alerts | DocumentedRules] = []
    if settings.rules:
        path = folder.parent / "anomaly_detected" / f"rank{rank}" / "anomaly.json"
        act = AnomalyFile(path) if settings.dump else _log_anomaly
        listeners.append(DocumentedRules(parse_rules(settings.rules, source="alert"), act))
    if settings.incidents:
        file = IncidentFile(folder / incidents_name(rank), begins)
        listeners.append(Alerts(_actions(settings, file, stop)))
    return listeners


def incidents_name(rank: int) -> str:
    """Return the name of the file with the incidents of a rank."""
    return f"incidents_rank{rank}.jsonl"


def _actions(
    settings: AlertSettings, file: IncidentFile, stop: Callable[[str], None]
) -> list[Action]:
    actions: list[Action] = [log_incident, file]
    if settings.webhook:
        actions.append(Webhook(settings.webhook))
    if settings.stop_on is not None:
        actions.append(Stop(settings.stop_on, stop))
    return actions


def _log_anomaly(anomaly: Any) -> None:
    logger.warning("%s", anomaly.message)


def log_incident(incident: Incident) -> None:
    """Log an incident when it opens, and again when its cause is found to be another one."""
    if incident.is_open:
        logger.warning("step %d: %s: %s", incident.start, incident.severity, incident.sentence())


class IncidentFile:
    """JSON lines: an incident when it opens, when it is found to be another one, when it closes.

    The last line of an incident's number counts. Where a file goes on, a line ``{"begins": step}``
    comes first: numbers begin again, and incidents from that step on count no longer.
    """

    def __init__(self, path: Path, begins: int = 0) -> None:
        self._path = path
        if path.exists():
            self._append({_BEGINS: begins})

    def __call__(self, incident: Incident) -> None:
        """Append the incident as it is now; a failure is logged once, and other actions follow."""
        self._append(incident.as_json())

    def _append(self, record: Mapping[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(strict_json(record, indent=None))
        except OSError as exc:
            warn_once(logger, self._path, "%s: %s", self._path, reason(exc))


class Webhook:
    """Posts incidents to an address, as JSON, from a thread of its own."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, incident: Incident) -> None:
        """Post the incident as it is now; a failure is logged once."""
        body = strict_json(incident.as_json(), indent=None).encode()
        threading.Thread(target=self._post, args=(body,), daemon=True).start()

    def _post(self, body: bytes) -> None:
        import urllib.request  # costs 20 ms, and few runs have a webhook

        request = urllib.request.Request(self._address, body, {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=_WEBHOOK_SECONDS).close()
        except (OSError, ValueError) as exc:
            warn_once(logger, self._address, "webhook %s: %s", self._address, exc)


class Stop:
    """Ends the training at an incident of some severity."""

    def __init__(self, severity: Severity, stop: Callable[[str], None]) -> None:
        self._wanted = (severity, Severity.CRITICAL)
        self._stop = stop

    def __call__(self, incident: Incident) -> None:
        """End the training if the incident is grave enough."""
        if incident.is_open and incident.severity in self._wanted:
            self._stop(f"step {incident.start}: {incident.sentence()}")


def read_incidents(folder: Path) -> list[dict[str, Any]]:
    """Return the incidents that all ranks of a run have written, the last state of each.

    A last line that is not complete, of a process that was killed, is left out.
    """
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("incidents_rank*.jsonl")):
        part = 0
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if _BEGINS in record:
                part += 1
                undone = [
                    key
                    for key, one in found.items()
                    if key[0] == path.name and one["start"] >= record[_BEGINS]
                ]
                for key in undone:
                    del found[key]
            else:
                found[path.name, part, record["incident"]] = record
    return [*found.values()]
