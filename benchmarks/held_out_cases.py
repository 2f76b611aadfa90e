# SPDX-License-Identifier: Apache-2.0
"""`Cause`: a planted cause of `held_out_verdicts.py`, and which verdicts on it are right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cause:
    """A changed option, and the verdicts that are right.

    Attributes:
        program: a key of `PROGRAMS`.
        change: options of the target.
        classes: classes that are right.
        words: regular expression that the sentence matches.
        modules: classes that are right, too, where only modules are recorded.
        base: options of both.
    """

    program: str
    change: dict[str, Any]
    classes: tuple[str, ...]
    words: str
    modules: tuple[str, ...] = ()
    base: dict[str, Any] = field(default_factory=dict)


L0 = ("unexplained", "gradient")
SETTING = ("optimizer_setting",)
