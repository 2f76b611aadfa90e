# SPDX-License-Identifier: Apache-2.0
"""Jumps of a few numbers of each step, such as the loss, by their robust history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from msprobe.monitor.alerts.baselines import Baselines

_Z: Final = 6.0
_DECADES: Final = 0.3
"""A jump is at least twice what was before, however steady that was."""
_TINY: Final = 1e-30


class Spikes:
    """Judges named numbers, step by step; only what grows is a spike."""

    def __init__(self) -> None:
        """Begin without a history."""
        self._baselines = Baselines()
        self._places: dict[str, int] = {}
        self._high: set[str] = set()

    def __call__(self, numbers: Mapping[str, float]) -> str | None:
        """Return the spikes of a step in words; None without one.

        A number that stays high is one spike. One that is not finite is left out.

        Args:
            numbers: name → value.
        """
        said = []
        for name, value in numbers.items():
            if not math.isfinite(value):
                continue
            series = np.array([self._places.setdefault(name, len(self._places))])
            self._baselines.grow(len(self._places))
            self._baselines.follow(series)
            logarithm = np.array([math.log10(abs(value) + _TINY)])
            z, decades = self._baselines.judge(series, logarithm)
            is_high = bool(z[0] > _Z and decades[0] > _DECADES)
            if is_high and name not in self._high:
                usual = 10 ** self._baselines.expected(series)[0]
                said.append(f"{name} {value:.4g}, before {usual:.4g} (z {z[0]:.1f})")
            (self._high.add if is_high else self._high.discard)(name)
            self._baselines.learn(series, logarithm, z, decades)
        return "; ".join(said) or None
