# SPDX-License-Identifier: Apache-2.0
"""The task ``noise_floor``, as far as it is the same in each framework."""

from __future__ import annotations

import logging
from typing import Final

from msprobe.capture.session import Session
from msprobe.log import warn_once

logger = logging.getLogger(__name__)

_STRIDE: Final = 0x9E3779B97F4A7C15  # consecutive seeds and steps have nothing in common
_WORDS: Final = (
    "task noise_floor changes the training: each operator's result is moved at random by at most "
    "half a unit in its last place (seed %d)"
)


def declare(session: Session, seed: int) -> None:
    """Say in the log, once, and in the account of the step that the task changes the training.

    Args:
        session: the run.
        seed: of the run.
    """
    warn_once(logger, seed, _WORDS, seed)
    session.account.note(_WORDS % seed)


def step_seed(seed: int, step: int) -> int:
    """Return the seed of the moves of one step, below 2**63.

    Args:
        seed: of the run.
        step: number of the step.
    """
    return (seed + step * _STRIDE) % (1 << 63)
