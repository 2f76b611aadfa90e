# SPDX-License-Identifier: Apache-2.0
"""Read a hand-written JSON file, with precise errors."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any, Final

from msprobe.errors import ConfigFileError
from msprobe.plain_text import reason

# A list may hold a million step numbers (about 8 MB); nothing sensible is larger than this.
MAX_FILE_BYTES: Final = 64 << 20

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")

JsonObject = dict[str, Any]  # any JSON value: nothing is known about it before it is checked


def read_config_file(path: Path) -> tuple[JsonObject, list[str]]:
    """Return the object in a JSON file, and the keys that occur twice in one object.

    A byte order mark is accepted.

    Raises:
        ConfigFileError: no such regular `.json` file, not readable, not UTF-8, not one JSON object.
    """
    text = _read_text(path)
    repeated: list[str] = []

    def to_object(pairs: list[tuple[str, Any]]) -> JsonObject:
        result = dict(pairs)
        if len(result) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen and key not in repeated:
                    repeated.append(key)
                seen.add(key)
        return result

    try:
        document = json.loads(text, object_pairs_hook=to_object)
    except json.JSONDecodeError as error:
        raise ConfigFileError(
            path, f"this is not JSON: {error.msg}", line=error.lineno, column=error.colno
        ) from error
    except RecursionError as error:
        raise ConfigFileError(path, "the JSON is nested too deeply") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise ConfigFileError(path, f"this JSON cannot be used: {reason(error)}") from error
    if not isinstance(document, dict):
        kind = json_kind(document)
        raise ConfigFileError(path, f"the file holds {kind}; it must hold one JSON object {{…}}")
    if _SURROGATE_ESCAPE.search(text):
        _refuse_lone_surrogates(path, document)
    return document, repeated


def json_kind(value: object) -> str:
    """Return JSON's name for the type of a value, with its article."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, dict) else "a list"


def _read_text(path: Path) -> str:
    if path.suffix != ".json":
        raise ConfigFileError(path, 'the name of a configuration file must end in ".json"')
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ConfigFileError(path, "this is a folder; a JSON file is needed")
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            raise ConfigFileError(path, "this is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            limit = MAX_FILE_BYTES >> 20
            raise ConfigFileError(path, f"the file is larger than {limit} MiB")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigFileError(path, "there is no such file") from error
    except PermissionError as error:
        raise ConfigFileError(path, "no permission to read this file") from error
    except OSError as error:
        raise ConfigFileError(path, f"cannot be read: {reason(error)}") from error
    except ValueError as error:  # a NUL or an unencodable character in the path
        raise ConfigFileError(path, f"not a usable path: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise ConfigFileError(
            path, "the file is not UTF-8 text", line=line, column=column
        ) from error


def _refuse_lone_surrogates(path: Path, document: JsonObject) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ConfigFileError(path, "the JSON is nested too deeply") from error
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise ConfigFileError(
            path, f"the escape \\u{code:04x} is half of a surrogate pair, not a character"
        ) from error
