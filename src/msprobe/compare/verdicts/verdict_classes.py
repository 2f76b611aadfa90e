# SPDX-License-Identifier: Apache-2.0
"""`VerdictClass`: the classes of causes for which two runs differ, and their words."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class VerdictClass(StrEnum):
    """Class of the cause of a difference; docs/reference/summary.md describes each.

    Attributes:
        words: the class as the sentence of a verdict begins with it.
    """

    words: str

    def __new__(cls, value: str, words: str = "") -> Self:
        """Make a member out of its value and its words."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.words = words or value.replace("_", " ")
        return member

    EQUAL = "equal"
    ARGUMENT = "argument"
    CALL = "call"
    ORDER = "order", "order of calls"
    PRECISION = "precision"
    PARAMETERS = "parameters"
    DATA = "data"
    RANDOM = "random", "random numbers"
    MODE = "mode"
    GRADIENT = "gradient"
    CLIPPING = "clipping"
    OPTIMIZER_SETTING = "optimizer_setting"
    SCHEDULE = "schedule"
    OPTIMIZER_STATE = "optimizer_state"
    UPDATE = "update"
    COMMUNICATION = "communication"
    KERNEL = "kernel"
    NONDETERMINISTIC = "nondeterministic", "not deterministic"
    ROUNDING = "rounding"
    INCOMPLETE = "incomplete", "recording incomplete"
    DIFFERENT_PROGRAMS = "different_programs"
    SETTINGS = "settings"
    UNEXPLAINED = "unexplained", "not explained"


class Confidence(StrEnum):
    """How well a verdict is founded.

    `PROVED`: the recordings show the cause and its effect. `LIKELY`: they show the cause, and
    nothing that comes before it. `POSSIBLE`: they exclude nothing better.
    """

    PROVED = "proved"
    LIKELY = "likely"
    POSSIBLE = "possible"
