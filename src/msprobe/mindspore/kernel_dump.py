# SPDX-License-Identifier: Apache-2.0
"""Level L2: MindSpore's own Dump of kernels, switched on, steered, and brought into shape.

The settings are written and the variable set when the debugger is constructed, since the Dump reads
them with the first graph. After each step, its files are normalised: `normalising`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mindspore import nn
from msprobe.capture.session import Session
from msprobe.config import Config, OverflowCheckSection, StatisticsSection, SummaryMode, Task
from msprobe.dump.kernel_code import CodeMap
from msprobe.dump.kernel_files import KernelFolder, find_kernel_folders
from msprobe.dump.record_index import read_json_object
from msprobe.errors import ConfigError, DumpFormatError, DumpWriteError, UsageError
from msprobe.kernels.normalising import (
    Normalised,
    Wanted,
    clear_kernel_dump,
    normalise,
    read_code,
)
from msprobe.kernels.overflow_info import overflowed_parts
from msprobe.mindspore import native_dump
from msprobe.mindspore.adapter import TENSOR_TYPES, MindSporeAdapter
from msprobe.mindspore.kernel_settings import NET_NAME, SETTINGS_FILE, dump_settings, write_settings
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

_RANK_VARIABLES: Final = ("RANK_ID", "MS_NODE_ID")
_SIZE_VARIABLES: Final = ("RANK_SIZE", "MS_WORKER_NUM")
_CPU: Final = "CPU"


class KernelRun:
    """A run at level L2.

    Attributes:
        config: the settings.
        session: the state of the run; it makes no records of its own.
        custom_apis: refuses functions that the user registers.
        models: none: the Dump does not ask for them.
    """

    models: tuple[nn.Cell, ...] = ()
    finds_steps = False

    def __init__(self, config: Config) -> None:
        """Write the settings and point the Dump to them.

        Raises:
            UsageError: a graph has run, so that the Dump has begun without us.
            DumpWriteError: the settings cannot be written.
        """
        if native_dump.has_run_graphs():
            raise UsageError(
                "PrecisionDebugger(): a graph was compiled already, and MindSpore reads the "
                "settings of its Dump with the first one; construct the debugger before the model"
            )
        self.config = config
        self.session = Session(config, MindSporeAdapter(config), TENSOR_TYPES)
        self.custom_apis = _NoCustomApis()
        self._steps = native_dump.IterationCounter()
        self._is_cpu = native_dump.device_target() == _CPU
        # MindSpore will name its folder by it; groups are made later.
        self._rank = _first_number(_RANK_VARIABLES) or 0
        self._parts: list[tuple[int, int]] = []
        self._since: int | None = None
        self._done: set[Path] = set()
        self._code: dict[str, CodeMap | None] = {}
        self._overflows = 0
        self._is_wanted = config.wants_rank(self._rank)
        if self._is_wanted:
            self._set_up()

    def _set_up(self) -> None:
        config = self.config
        if not self._steps.is_available:
            logger.warning(
                "this MindSpore cannot be told the step: iterations of the kernel dump are counted "
                "by graphs that ran"
            )
        if config.task in (Task.OVERFLOW_CHECK, Task.EXCEPTION_DUMP):
            self._warn_of_overflow_mode()
        settings = dump_settings(
            config, computes_statistics=not self._is_cpu, ranks=_first_number(_SIZE_VARIABLES) or 1
        )
        if os.environ.get(native_dump.SETTINGS_VARIABLE):
            logger.warning("%s was set; level L2 replaces it", native_dump.SETTINGS_VARIABLE)
        try:
            if (config.dump_path / SETTINGS_FILE).exists():
                clear_kernel_dump(config.dump_path / f"rank_{self._rank}")
            path = write_settings(settings, config.dump_path)
        except OSError as exc:
            raise DumpWriteError(config.dump_path, f"cannot be written: {reason(exc)}") from exc
        self._steps.take_over(self.session.step_number)
        self.session.run_undo.callback(self._finish)
        self.session.run_undo.callback(native_dump.set_variable(path))
        logger.info("recording kernels to %s, by the settings in %s", config.dump_path, path.name)

    def _warn_of_overflow_mode(self) -> None:
        if self._is_cpu:
            if self.config.task is Task.EXCEPTION_DUMP:
                logger.warning("on the CPU, exception_dump keeps parameters only")
        elif os.environ.get("MS_ASCEND_CHECK_OVERFLOW_MODE") != "INFNAN_MODE":
            logger.warning(
                "overflows are found with INF_NAN_MODE_ENABLE=1 and "
                "MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE only; these variables are not set so"
            )

    def start(
        self, models: Sequence[nn.Cell], token_range: tuple[int, int] | None, rank: int | None
    ) -> None:
        """Begin to record; models are not needed.

        Raises:
            ConfigError: a token range was given.
        """
        if token_range is not None:
            rule = "None at level L2, which sees kernels and no calls of the model"
            raise ConfigError("token_range", list(token_range), rule, source="start()")
        del models, rank  # the Dump names ranks by itself
        if self._is_wanted and self._since is None:
            self._steps.begin(self.session.step_number)
            self._since = _now()

    def end_forward_backward(self) -> None:
        """Record no more until the next `start`."""
        self.stop()

    def stop(self) -> None:
        """Record no more until the next `start`."""
        if self._since is not None:
            native_dump.wait_for_device()
            self._parts.append((self._since, _now()))
            self._since = None
            self._steps.pause()

    def step(self) -> None:
        """Normalise the files of the step, and go on to the next step."""
        self.stop()
        step = self.session.step_number
        if self._is_wanted:
            native_dump.wait_for_device()
            self._steps.end_step()
            if self._steps.is_available and self.config.wants_step(step):
                self._normalise_all(self._folders_of(step), tuple(self._parts))
        self._parts.clear()
        self.session.step()

    def _finish(self) -> None:
        """Normalise the remaining files, when the run ends."""
        self.stop()
        parts = tuple(self._parts) if self._steps.is_available else None
        remaining = [
            folder
            for folder in find_kernel_folders(self.config.dump_path)
            if folder.rank == self._rank and folder.directory not in self._done
        ]
        self._normalise_all(remaining, parts)

    def _folders_of(self, step: int) -> list[KernelFolder]:
        """Return the folders of a step, without a look at those of all others."""
        net = self.config.dump_path / f"rank_{self._rank}" / NET_NAME
        return [
            folder for path in sorted(net.glob(f"*/{step}")) for folder in find_kernel_folders(path)
        ]

    def _normalise_all(
        self, folders: Sequence[KernelFolder], parts: tuple[tuple[int, int], ...] | None
    ) -> None:
        """Normalise folders; errors are noted in the record, and the training goes on."""
        for folder in folders:
            try:
                self._note(folder, normalise(folder, self._wanted(parts), self._code_of(folder)))
            except (DumpFormatError, OSError) as error:
                self.session.failed("the kernel dump", error)
            self._done.add(folder.directory)

    def _wanted(self, parts: tuple[tuple[int, int], ...] | None) -> Wanted:
        # Devices heed the pause themselves, and their clock is another one.
        wanted = Wanted(times=parts if self._is_cpu else None)
        section = self.config.section
        if not self._is_cpu:
            return wanted
        if isinstance(section, StatisticsSection):
            md5 = section.summary_mode is SummaryMode.MD5
            return replace(wanted, statistics=True, checksums=md5)
        if isinstance(section, OverflowCheckSection):
            limit = section.overflow_nums
            most = None if limit < 0 else max(0, limit - self._overflows)
            return replace(wanted, overflows=True, most=most)
        return wanted

    def _code_of(self, folder: KernelFolder) -> CodeMap | None:
        if folder.graph not in self._code:
            self._code[folder.graph] = read_code(folder)
        return self._code[folder.graph]

    def _note(self, folder: KernelFolder, done: Normalised) -> None:
        self._overflows += len(done.overflowing)
        for name in done.overflowing:
            logger.warning("step %d: %s puts out a NaN or an infinity", folder.step, name)
        for path in done.notes:
            for part in overflowed_parts(read_json_object(path)):
                logger.warning("step %d: overflow in %s (%s)", folder.step, part, path.name)
        logger.info(
            "step %d, graph %s: %d kernels with %d inputs and outputs",
            folder.step,
            folder.graph,
            done.kernels,
            done.values,
        )


class _NoCustomApis:
    """Level L2 sees kernels, whichever function started them."""

    def register(self, owner: Any, attribute: str, prefix: str | None) -> None:
        """Refuse to record a function.

        Raises:
            UsageError: always.
        """
        del owner, prefix
        raise UsageError(
            f"register_custom_api(): level L2 records kernels and cannot record {attribute}"
        )

    def restore(self, owner: Any, attribute: str) -> None:
        """Refuse to restore a function: none was registered.

        Raises:
            UsageError: always.
        """
        del owner
        raise UsageError(f"restore_custom_api(): {attribute} is not registered")


def _now() -> int:
    """Return the time as names of files have it, in microseconds."""
    return time.time_ns() // 1000


def _first_number(variables: Sequence[str]) -> int | None:
    for name in variables:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None
