# SPDX-License-Identifier: Apache-2.0
"""The rules `AnomalyTurbulence` and `AnomalyNan`, as configurations of mindstudio-probe name them.

They judge every value by itself, so a healthy run has thousands of alarms; the default rules of
`rules.py` are for daily use. Against the documented ones, NaN and Inf never enter the average, both
sides are judged as the documentation says, and no alarm overwrites another one in the file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.errors import ConfigError
from msprobe.files import write_whole
from msprobe.json_text import strict_json
from msprobe.monitor.rows import Rows, Stream, is_missing

logger = logging.getLogger(__name__)

_BETA: Final = 0.99
_DEFAULT_NAN_THRESHOLD: Final = 1e10
_TURBULENT_OPS: Final = ("norm", "mean")
_SUFFIXES: Final = {Stream.GRAD_UNREDUCED: "acc_grad", Stream.GRAD_REDUCED: "post_grad"}
_WITH_MICRO_STEP: Final = frozenset({Stream.ACTV, Stream.ACTV_GRAD})
_SCALARS_LEFT_OUT: Final = frozenset({Stream.RUN})


@dataclass(frozen=True, slots=True)
class Turbulence:
    """`AnomalyTurbulence`: a norm or mean is far from its moving average, to either side."""

    threshold: float
    name = "AnomalyTurbulence"

    def fires(self, op: str, value: float, average: float | None) -> bool:
        """Return whether a value is alarming."""
        if average is None or op not in _TURBULENT_OPS or not math.isfinite(value):
            return False
        size = abs(value)
        return size > (1 + self.threshold) * average or size * (1 + self.threshold) < average


@dataclass(frozen=True, slots=True)
class NotFinite:
    """`AnomalyNan`: a value is NaN, or larger than the threshold."""

    threshold: float
    name = "AnomalyNan"

    def fires(self, op: str, value: float, average: float | None) -> bool:
        """Return whether a value is alarming."""
        return math.isnan(value) or abs(value) > self.threshold


Rule = Turbulence | NotFinite


def parse_rules(rules: Any, *, source: str | Path) -> tuple[Rule, ...]:
    """Return the rules of the key ``alert.rules``.

    Raises:
        ConfigError: a rule is unknown, or its threshold is no positive number.
    """
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        raise ConfigError("alert.rules", rules, "a list of rules", source=source)
    return tuple(
        _parse_rule(rule, f"alert.rules[{place}]", source) for place, rule in enumerate(rules)
    )


def _parse_rule(rule: Any, key: str, source: str | Path) -> Rule:
    if not isinstance(rule, Mapping):
        raise ConfigError(key, rule, '{"rule_name": …, "args": {"threshold": …}}', source=source)
    name, arguments = rule.get("rule_name"), rule.get("args") or {}
    threshold = arguments.get("threshold") if isinstance(arguments, Mapping) else arguments
    if name not in (Turbulence.name, NotFinite.name):
        raise ConfigError(
            f"{key}.rule_name", name, (Turbulence.name, NotFinite.name), source=source
        )
    if name == NotFinite.name and threshold is None:
        return NotFinite(_DEFAULT_NAN_THRESHOLD)
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if threshold is None or not is_number or not 0 <= threshold < math.inf:
        raise ConfigError(f"{key}.args.threshold", threshold, "a number >= 0", source=source)
    return Turbulence(threshold) if name == Turbulence.name else NotFinite(threshold)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One alarm of a documented rule.

    Attributes:
        rule: name of the rule.
        call_id: number of the value within its step, in the order of collection.
        average: moving average of the series' absolute values before.
    """

    rule: str
    rank: int
    step: int
    micro_step: int
    vpp_stage: int
    call_id: int
    stream: str
    tag: str
    op: str
    value: float
    average: float | None

    @property
    def message(self) -> str:
        """The documented sentence."""
        return (
            f"Rule {self.rule} reports anomaly signal in ('{self.tag}', '{self.op}') at step "
            f"{self.step}, current value {self.value}, history mean {self.average}."
        )

    def record(self) -> tuple[str, dict[str, Any]]:
        """Return key and value of the alarm in ``anomaly.json``; `op` and `value` are added."""
        key = f"{self.tag}_step_{self.step}_call_{self.call_id}"
        return key, {
            "rank": self.rank,
            "step": self.step,
            "micro_step": self.micro_step,
            "pp_stage": 0,
            "vpp_stage": self.vpp_stage,
            "call_id": self.call_id,
            "tag_name": self.tag,
            "message": self.message,
            "group_mates": [],
            "op": self.op,
            "value": self.value,
        }


class DocumentedRules:
    """Judges each value of a run by the documented rules; a listener of the monitor's rows."""

    def __init__(self, rules: Sequence[Rule], act: Callable[[Anomaly], None]) -> None:
        """Begin without averages.

        Args:
            rules: the first that fires counts.
            act: called with each alarm.
        """
        self._rules = tuple(rules)
        self._act = act
        self._averages: dict[tuple[int, str, str], float] = {}
        self._calls = 0

    def take(self, rows: Rows) -> None:
        """Judge a block."""
        if rows.layout.stream in _SCALARS_LEFT_OUT:
            return
        missing = is_missing(rows.values)
        for column, op in enumerate(rows.layout.ops):
            for row in range(len(rows.layout.names)):
                if not missing[column, row]:
                    self._judge(rows, row, op, float(rows.values[column, row]))

    def end_step(self, step: int, time: float = 0.0) -> None:
        """End the step; its values have been judged."""
        self._calls = 0

    def close(self) -> None:
        """End the run."""

    def _judge(self, rows: Rows, row: int, op: str, value: float) -> None:
        tag = tag_of(rows, row)
        call_id, self._calls = self._calls, self._calls + 1
        series = (rows.rank, tag, op)
        average = self._averages.get(series)
        fired = next((rule for rule in self._rules if rule.fires(op, value, average)), None)
        if fired is not None:
            layout = rows.layout
            self._act(
                Anomaly(
                    rule=fired.name,
                    rank=rows.rank,
                    step=rows.step,
                    micro_step=rows.micro_step,
                    vpp_stage=layout.chunks[row],
                    call_id=call_id,
                    stream=layout.stream,
                    tag=tag,
                    op=op,
                    value=value,
                    average=average,
                )
            )
        if math.isfinite(value):
            before = abs(value) if average is None else average
            self._averages[series] = _BETA * before + (1 - _BETA) * abs(value)


def tag_of(rows: Rows, row: int) -> str:
    """Return the documented tag of a row: ``0:fc.output:0/rank0/actv``."""
    layout = rows.layout
    micro = f":{rows.micro_step}" if layout.stream in _WITH_MICRO_STEP else ""
    task = _SUFFIXES.get(Stream(layout.stream), layout.stream)
    return f"{layout.chunks[row]}:{layout.names[row]}{micro}/rank{rows.rank}/{task}"


class AnomalyFile:
    """``anomaly.json``: one JSON object, to which alarms are appended in place."""

    def __init__(self, path: Path) -> None:
        """Replace the file of an earlier run; its folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [b"{\n}\n"])
        self._path = path
        self._is_empty = True

    def __call__(self, anomaly: Anomaly) -> None:
        """Append an alarm and log its message."""
        logger.warning("%s", anomaly.message)
        key, record = anomaly.record()
        entry = strict_json({key: record}, indent=None).strip()[1:-1]
        with self._path.open("r+", encoding="utf-8") as file:
            file.seek(0, 2)
            file.seek(file.tell() - 3)  # before the last brace and the line breaks around it
            file.write(("\n" if self._is_empty else ",\n") + entry + "\n}\n")
        self._is_empty = False
