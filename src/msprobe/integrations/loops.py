# SPDX-License-Identifier: Apache-2.0
"""`record_training` for loops of the user's own: plain ones, Accelerate, DeepSpeed, FSDP …"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from msprobe.integrations.trainer_steps import Settings, make_debugger
from msprobe.pytorch.debugger import follow_loop


@contextmanager
def record_training(
    config_path: str | Path | None = None, **settings: Unpack[Settings]
) -> Iterator[None]:
    """Record the training steps in the body of a ``with`` statement, as `msprobe run` finds them.

    The models are the modules that the body calls outermost. A step begins with the first call of
    one and ends with the optimizers' ``step()``; so gradient accumulation makes one step. Where
    there is no optimizer, each call is a step. Further bodies are counted on.

    Args:
        config_path: a ``config.json``.
        **settings: ``task``, ``dump_path``, ``level``, ``step``, which override the file; see
            `msprobe.integrations.trainer_steps.Settings`.

    Raises:
        ConfigError: a value cannot be used.
    """
    make_debugger(config_path, **settings)
    follower = follow_loop()
    try:
        yield
    finally:
        follower.pause()
