# SPDX-License-Identifier: Apache-2.0
"""Tell once what was asked for and is not there: names without a tensor, streams without rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from msprobe.log import warn_once
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import CHUNK, NOT_OF_TENSORS, MonitorSettings

logger = logging.getLogger(__name__)

OF_MODULES: Final = frozenset(
    {Stream.ACTV, Stream.ACTV_GRAD, Stream.ATTENTION, Stream.LINEAR}
    | {Stream.ROUTER_WEIGHT, Stream.ROUTER_LOGIT}
)
OF_PARAMETERS: Final = frozenset(
    {Stream.GRAD_UNREDUCED, Stream.GRAD_REDUCED, Stream.EXP_AVG, Stream.EXP_AVG_SQ, Stream.STATE}
    | {Stream.PARAM_ORIGIN, Stream.PARAM_UPDATED, Stream.UPDATE}
)
_STEPS: Final = 2
"""Before the first step optimizers have no states yet."""

_STATES: Final = 'the optimizer has no state of this name; others are in the stream "state"'
_GRADIENTS: Final = "none of the chosen parameters got a gradient"
_REASONS: Final[Mapping[Stream, str]] = {
    Stream.ACTV: "none of the chosen modules ran, in training mode, with tensors",
    Stream.ACTV_GRAD: "no gradient went through the chosen modules",
    Stream.GRAD_UNREDUCED: _GRADIENTS,
    Stream.GRAD_REDUCED: _GRADIENTS,
    Stream.EXP_AVG: _STATES,
    Stream.EXP_AVG_SQ: _STATES,
    Stream.STATE: "the optimizer has no other states",
    Stream.PARAM_ORIGIN: "no parameter is chosen",
    Stream.PARAM_UPDATED: "no parameter is chosen",
    Stream.UPDATE: "no parameter that is trained is chosen",
    Stream.ATTENTION: "it needs modules whose first two inputs, q and k, have 4 dimensions",
    Stream.LINEAR: "none of the modules has a weight of 2 dimensions",
    Stream.ROUTER_WEIGHT: "none of the modules has a weight of 2 dimensions",
    Stream.ROUTER_LOGIT: "none of the modules ran and returned a tensor",
}


def tell_unmatched(
    settings: MonitorSettings, modules: Collection[str], parameters: Collection[str]
) -> None:
    """Log targets and patterns that fit no name.

    Args:
        settings: with the targets and patterns.
        modules: names of all modules of this process.
        parameters: names of all parameters.
    """
    targets = {target: CHUNK.sub("", target) for target in settings.keys.targets}
    absent = [
        target
        for target, name in targets.items()
        if name not in modules and not any(one.startswith(name) for one in parameters)
    ]
    if absent:
        text = ", ".join(absent)
        warn_once(logger, text, "targets: no module or parameter here is named %s", text)
    for stream, chosen in settings.streams.items():
        own = settings.keys.streams.get(stream)
        if own is None or stream in NOT_OF_TENSORS:
            continue
        names = modules if stream in OF_MODULES else parameters
        for text, pattern in zip(own.include, chosen.include, strict=False):
            if not any(map(pattern.match, names)):
                key = f"streams.{stream}.include"
                warn_once(logger, (key, text), '%s: no name here fits "%s"', key, text)


class EmptyStreams:
    """Tells of streams that had no row in the first steps that were collected."""

    def __init__(self) -> None:
        """Begin; nothing was collected."""
        self._seen: set[Stream] = set()
        self._steps = 0

    def leave_out(self, streams: Collection[Stream]) -> None:
        """Expect nothing of streams that other ranks measure for this one."""
        self._seen.update(streams)

    def take(self, due: Collection[Stream], filled: Collection[Stream]) -> None:
        """Take a step: the streams that it collects, and those that have rows."""
        self._steps += 1
        if self._steps > _STEPS:
            return
        self._seen.update(filled)
        if self._steps == _STEPS:
            for stream, why in _REASONS.items():
                if stream in due and stream not in self._seen:
                    logger.warning("nothing is collected of %s so far: %s", stream, why)
