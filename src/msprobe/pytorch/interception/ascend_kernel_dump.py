# SPDX-License-Identifier: Apache-2.0
"""The dump of the Ascend device itself, around the kernels of one API call (level L2).

Where torch_npu offers it, and when the task is ``tensor`` and `list` holds exactly one API call,
the device writes the inputs and outputs of its own kernels into the step's folder while that call
runs, or while its backward does. The records of the operators are written all the same. This code
was never run on such a device: it is only entered where the functions that it calls exist.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from msprobe.capture.session import Session
from msprobe.config import Task, TensorSection
from msprobe.dump.layout import step_folder
from msprobe.files import write_whole

logger = logging.getLogger(__name__)

_API: Final = re.compile(r"[^.\s]+\..+\.[0-9]+\.(?:forward|backward)")
_NEEDED: Final = ("init_dump", "set_dump", "finalize_dump")


class KernelDump:
    """Switches the device's dump on before the first kernel of a call and off behind its last."""

    __slots__ = ("_api", "_device", "_done", "_is_on", "_session")

    def __init__(self, session: Session, device: ModuleType, api: str) -> None:
        """Create it, switched off.

        Args:
            session: the run.
            device: ``torch_npu.npu``.
            api: record name of the call.
        """
        self._session = session
        self._device = device
        self._api = api
        self._is_on = False
        self._done = False

    @classmethod
    def for_session(cls, session: Session) -> KernelDump | None:
        """Return the dump that the configuration asks for; None where there is none."""
        section = session.config.section
        if session.config.task is not Task.TENSOR or not isinstance(section, TensorSection):
            return None
        names = section.name_filters
        if len(names) != 1 or not _API.fullmatch(names[0]):
            return None
        device = getattr(sys.modules.get("torch_npu"), "npu", None)
        if device is None or not all(hasattr(device, name) for name in _NEEDED):
            return None
        return cls(session, device, names[0])

    def before_kernel(self, enclosing: tuple[str, ...]) -> None:
        """Switch on or off, before a kernel that runs inside these calls."""
        inside = self._api in enclosing
        if inside and not self._is_on and not self._done:
            self._open()
        elif not inside and self._is_on:
            self.close()

    def _open(self) -> None:
        config = self._write_config()
        self._device.init_dump()
        self._device.set_dump(str(config))
        self._is_on = True

    def close(self) -> None:
        """Switch off, once the device has run everything; one dump a step."""
        if not self._is_on:
            return
        self._is_on = False
        self._done = True
        self._device.synchronize()
        self._device.finalize_dump()
        logger.info("The kernel data of %s is dumped successfully.", self._api)

    def next_step(self) -> None:
        """Dump the call again in the next step."""
        self._done = False

    def _write_config(self) -> Path:
        folder = self._session.config.dump_path / step_folder(self._session.step_number)
        rank = self._session.adapter.current_rank()
        number = os.getpid() if rank is None else self._device.current_device()
        path = folder / f"kernel_config_{number}.json"
        wanted = {
            "dump": {
                "dump_list": [],
                "dump_path": str(folder),
                "dump_mode": "all",
                "dump_op_switch": "on",
            }
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, [json.dumps(wanted).encode()])
        return path
