# SPDX-License-Identifier: Apache-2.0
"""`record_training` for loops of the user's own: plain ones, Accelerate, DeepSpeed, FSDP …"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msprobe.integrations.trainer_steps import Steps, make_debugger
from msprobe.pytorch.debugger import follow_loop


@contextmanager
def record_training(
    config_path: str | Path | None = None,
    *,
    task: str | None = None,
    dump_path: str | Path | None = None,
    level: str | None = None,
    step: Steps = None,
) -> Iterator[None]:
    """Record the training steps in the body of a ``with`` statement, as `msprobe run` finds them.

    The models are the modules that the body calls outermost. A step begins with the first call of
    one and ends with the optimizers' ``step()``; so gradient accumulation makes one step. Where
    there is no optimizer, each call is a step. Further bodies are counted on.

    Args:
        config_path: a ``config.json``; the arguments behind it override it.
        task: as in the file; statistics if there is none.
        dump_path: as in the file; ``./msprobe_dump`` if there is none.
        level: as in the file; mix if there is none.
        step: as in the file; steps 0 and 1 if there is none.

    Raises:
        ConfigError: a value cannot be used.
    """
    make_debugger(config_path, task=task, dump_path=dump_path, level=level, step=step)
    follower = follow_loop()
    try:
        yield
    finally:
        follower.pause()
