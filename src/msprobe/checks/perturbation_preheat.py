# SPDX-License-Identifier: Apache-2.0
"""`Preheating`: the first steps of a run, which learn how much each API amplifies when it is sound.

The first step counts the calls of each API. Each step after it takes a few of them, others than the
step before. The amplification of those that agree with a reference on the CPU is what is to be
expected of the API in that type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msprobe.config import Preheat


class Preheating:
    """Decides which calls are learned from, and keeps what was learned.

    Attributes:
        learned: largest amplification of sound calls, by API and type of the result.
    """

    def __init__(self, preheat: Preheat) -> None:
        """Create it, before the first step."""
        self._preheat = preheat
        self._step = -1
        self._calls: Counter[str] = Counter()
        self._wanted: dict[str, frozenset[int]] = {}
        self.learned: dict[tuple[str, str], float] = {}

    @property
    def is_on(self) -> bool:
        """Whether the present step still learns."""
        return self._step < self._preheat.steps

    def begin_step(self) -> None:
        """Begin the next step."""
        self._step += 1
        self._wanted = {name: self._sample(count) for name, count in self._calls.items()}

    def _sample(self, calls: int) -> frozenset[int]:
        """Return the numbers of the calls that this step takes."""
        steps = self._preheat.steps
        count = min(-(-calls // steps), self._preheat.max_sample)
        return frozenset((steps * number + self._step) % calls for number in range(count))

    def takes(self, api: str, number: int) -> bool:
        """Return whether a call is learned from.

        Args:
            api: the API.
            number: of the call among those of the API in this step.
        """
        if self._step == 0:
            self._calls[api] += 1
            return False
        return number in self._wanted.get(api, ())

    def learn(self, api: str, dtype: str, amplification: float) -> None:
        """Take the amplification of a sound call."""
        key = (api, dtype)
        self.learned[key] = max(self.learned.get(key, 0.0), amplification)

    def expected_of(self, api: str) -> Callable[[str], float]:
        """Return what returns the learned amplification of an API in a type."""
        return lambda dtype: self.learned.get((api, dtype), 1.0)
