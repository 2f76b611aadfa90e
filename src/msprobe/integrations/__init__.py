# SPDX-License-Identifier: Apache-2.0
"""Recording from within trainers: a callback, an accelerator, or a `with` statement.

Begin at `trainer_steps.py`, which turns the events of a trainer into steps of a debugger; a module
for each trainer translates its events. `record_training` serves loops of the user's own, also those
of DeepSpeed, FSDP and Megatron-core: it finds models and steps as `msprobe run` does.
A module imports its trainer, and is imported by the user only.
`pytest_plugin.py` holds trainings of tests against golden recordings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msprobe.integrations.loops import record_training

__all__ = ["record_training"]


def __getattr__(name: str) -> Any:
    # pytest imports the plugin in this room for every test run: PyTorch comes with the first use.
    if name == "record_training":
        from msprobe.integrations.loops import record_training

        return record_training
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
