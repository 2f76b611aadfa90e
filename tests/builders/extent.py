# SPDX-License-Identifier: Apache-2.0
"""How much of large corpora is tried: a part by default, all with MSPROBE_TEST_WHOLE_CORPUS=1."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any, Final

WHOLE: Final = bool(os.environ.get("MSPROBE_TEST_WHOLE_CORPUS"))


def covering(every: int, *axes: Iterable[Any], keep: int = 1) -> list[tuple[Any, ...]]:
    """Return combinations of cases, one of each axis.

    By default `keep` in `every` of them, such that each case of an axis meets its share of the
    cases of each other axis that has at least `every` cases.
    """
    numbered = itertools.product(*map(enumerate, axes))
    return [
        tuple(case for _, case in each)
        for each in numbered
        if WHOLE or sum(number for number, _ in each) % every < keep
    ]
