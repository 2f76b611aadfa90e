# SPDX-License-Identifier: Apache-2.0
"""Collect everything known of a run before it starts: into a pack, or as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msprobe.run_config import pack
from msprobe.run_config.arguments import read_arguments
from msprobe.run_config.environment import collect_environment
from msprobe.run_config.packages import collect_packages
from msprobe.run_config.system import collect_system


def collect_settings() -> dict[str, str]:
    """Return environment, packages and system as one flat table, secrets hidden."""
    return {
        **collect_system(asks_devices=False),
        **{f"package.{name}": version for name, version in collect_packages().items()},
        **{f"env.{name}": value for name, value in collect_environment().items()},
    }


def collect_static(
    writer: pack.PackWriter,
    files: Sequence[Path] = (),
    *,
    extra_system: Mapping[str, str] | None = None,
) -> None:
    """Write environment, packages, system and the arguments in files into a pack.

    Args:
        writer: the pack.
        files: shell scripts, YAML and JSON files with arguments.
        extra_system: further facts about the system, such as the framework's settings.

    Raises:
        ConfigFileError: one of the files cannot be read.
        ReportWriteError: the pack cannot be written.
    """
    arguments = read_arguments(files)
    writer.put_json(pack.ENV, collect_environment())
    writer.put_packages(collect_packages())
    writer.put_json(pack.SYSTEM, collect_system() | dict(extra_system or {}))
    if files:
        writer.put_json(pack.STATIC, arguments)
