# SPDX-License-Identifier: Apache-2.0
"""Paths that a user writes: made absolute, so that a later change of folder does not move them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msprobe.errors import ConfigError

REPLICAS: Final = "replicas"
"""The word for the other ranks of a run, in place of the path of a recorded one."""
_FOLDER_RULE: Final = "the path of the output folder"


def parse_config_path(path: object, *, source: str | Path) -> Path | None:
    """Return the path of a `config.json`; None stays None.

    Raises:
        ConfigError: `path` is no path.
    """
    if path is None:
        return None
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str) or not name:
        raise ConfigError("config_path", path, "the path of a .json file", source=source)
    return _absolute(name, "config_path", source)


def parse_dump_path(value: object, *, source: str | Path) -> Path:
    """Return the path of the output folder, which need not exist.

    Raises:
        ConfigError: it is missing, no usable path, or the path of a file.
    """
    if value is None:
        hint = "it is missing: give it in the file or as the argument dump_path"
        raise ConfigError("dump_path", None, _FOLDER_RULE, source=source, hint=hint)
    name = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(name, str) or not name.strip():
        hint = "it is empty" if isinstance(name, str) else ""
        raise ConfigError("dump_path", value, _FOLDER_RULE, source=source, hint=hint)
    path = _absolute(name, "dump_path", source)
    try:
        taken = next((one for one in (path, *path.parents) if one.exists()), path)
        is_taken = taken.exists() and not taken.is_dir()
    except OSError as error:  # too long a name, no permission on the way …
        hint = _reason(error)
        raise ConfigError("dump_path", name, _FOLDER_RULE, source=source, hint=hint) from error
    if is_taken:
        hint = "this is a file" if taken == path else f"{taken} is a file"
        raise ConfigError("dump_path", name, _FOLDER_RULE, source=source, hint=hint)
    return path


def parse_reference(value: str, *, source: str | Path) -> Path | None:
    """Return the path of a recorded run; None for the word `REPLICAS`.

    Raises:
        ConfigError: there is nothing at the path.
    """
    key = "diff_check.reference"
    if value == REPLICAS:
        return None
    path = _absolute(value, key, source) if value.strip() else None
    if path is None or not path.exists():
        hint = "it is missing" if path is None else "there is no such folder"
        rule = f'the path of a recorded run, or "{REPLICAS}"'
        raise ConfigError(key, value, rule, source=source, hint=hint)
    return path


def parse_api_list(value: str, *, file: Path | None, source: str | Path) -> Path | None:
    """Return the path of the user's API table; None for an empty one.

    Args:
        value: as the user wrote it; a relative path starts at the folder of `file`.
        file: the `config.json`, absolute.
        source: the same in words, for error messages.

    Raises:
        ConfigError: there is no such file.
    """
    if not value:
        return None
    path, hint = _absolute(value, "api_list", source), ""
    if file and not Path(value).expanduser().is_absolute():
        path, hint = file.parent / value, f"looked for in {file.parent}"
    try:
        exists = path.is_file()
    except OSError as error:
        exists, hint = False, _reason(error)
    if not exists:
        rule = "the path of an existing YAML file"
        raise ConfigError("api_list", value, rule, source=source, hint=hint)
    return path


def _absolute(value: str, key: str, source: str | Path) -> Path:
    rule = "a path that the system accepts"
    try:
        path = Path(value).expanduser().absolute()
        os.fsencode(path)
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigError(key, value, rule, source=source, hint=_reason(error)) from error
    if "\0" in value:
        hint = "it holds a NUL character"
        raise ConfigError(key, value, rule, source=source, hint=hint)
    return path


def _reason(error: Exception) -> str:
    # Only the reason: the text of an OSError repeats the path, however long it is.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
