# SPDX-License-Identifier: Apache-2.0
"""The scale of the losses that a gradient scaler has multiplied, to tell the losses without it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.capture.session import Session
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.traceable_swap import divert_traceably
from msprobe.pytorch.interception.tracing import is_tracing

_MOST: Final = 16
"""Scaled losses of which no backward pass has begun."""


class ScaledLosses:
    """Knows what scalers returned, and by which scale: those of torch, and DeepSpeed's own."""

    def __init__(self, session: Session) -> None:
        """Create it; `install` begins to watch."""
        self._session = session
        self._known: deque[tuple[weakref.ref[Tensor], Tensor]] = deque(maxlen=_MOST)

    def install(self, optimizer: Any) -> None:
        """Watch scalers until the session stops to collect.

        Args:
            optimizer: which is trained; one of DeepSpeed has a scaler.
        """
        own = getattr(type(getattr(optimizer, "loss_scaler", None)), "scale_loss", None)
        for scales in (torch.amp.GradScaler.scale, own):
            if isinstance(scales, FunctionType):
                self._session.step_undo.callback(divert_traceably(scales, self._scaled))

    def of(self, root: Tensor) -> Tensor | None:
        """Return the scale of a loss that was returned by a scaler; None for others."""
        return next((scale for known, scale in reversed(self._known) if known() is root), None)

    def _scaled(self, original: Callable[..., Any], args: tuple[Any, ...], _kwargs: Any) -> Any:
        result = original(*args)
        if not is_tracing():
            quietly(self._session, "scaler", self._note, args[0], result)
        return result

    def _note(self, scaler: Any, result: Any) -> None:
        if isinstance(scaler, torch.amp.GradScaler):
            scale = scaler._scale
        else:
            scale = torch.tensor(float(scaler.loss_scale))
        if scale is not None:  # None: it is not enabled
            for one in result if isinstance(result, list | tuple) else [result]:
                if isinstance(one, Tensor):
                    self._known.append((weakref.ref(one), scale))
