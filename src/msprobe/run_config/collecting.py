# SPDX-License-Identifier: Apache-2.0
"""Collect everything known of a run before it starts: into a pack, or as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msprobe.run_config import pack
from msprobe.run_config.arguments import read_arguments
from msprobe.run_config.environment import collect_environment
from msprobe.run_config.live_objects import Kinds
from msprobe.run_config.packages import collect_packages
from msprobe.run_config.program_arguments import program_arguments
from msprobe.run_config.system import collect_system
from msprobe.run_config.user_code import launched_code


def collect_settings(objects: Kinds) -> dict[str, str]:
    """Return environment, packages, system and arguments as one flat table, secrets hidden.

    Args:
        objects: what `live_objects` found with `kind_of_arguments`.
    """
    arguments = program_arguments(objects).items()
    return {
        **collect_system(asks_devices=False),
        **{f"argument.{name}": str(value) for name, value in arguments},
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
    found = read_arguments(files)
    writer.put_json(pack.ENV, collect_environment())
    writer.put_packages(collect_packages())
    code = launched_code(found.arguments, files)
    writer.put_json(pack.SYSTEM, {**collect_system(), **code, **(extra_system or {})})
    if files:
        writer.put_json(pack.STATIC, found.arguments)
        if found.unresolved:
            writer.put_json(pack.UNRESOLVED, found.unresolved)
        if found.statements:
            rows = {name: [list(one) for one in each] for name, each in found.statements.items()}
            writer.put_json(pack.STATEMENTS, rows)
