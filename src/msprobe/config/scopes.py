# SPDX-License-Identifier: Apache-2.0
"""The rule for `scope`: two full record names that the level can record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from msprobe.api_prefixes import API_PREFIXES
from msprobe.config.choices import Level
from msprobe.errors import ConfigError

_API: Final = re.compile(r"([^.\s][^.]*)\..+\.[0-9]+\.(?:forward|backward)")
_MODULE: Final = re.compile(r"(?:Module|Cell)\..+\.(?:forward|backward)\.[0-9]+")
_API_RULE: Final = "an API name such as Functional.linear.0.forward"
_MODULE_RULE: Final = "a module name such as Module.fc.Linear.forward.0"


def parse_scope(
    names: list[str], level: Level, key: str, *, source: str | Path, warnings: list[str]
) -> tuple[str, str] | None:
    """Return the first and the last name of a `scope`, None for an empty one.

    An API prefix that is not built in gets a warning only: custom operators and
    `register_custom_api` may have any.

    Raises:
        ConfigError: not two names, or one that no record of this level can have.
    """
    if not names:
        return None
    if level is Level.L2:
        hint = "use list to select the calls whose kernels are recorded"
        raise ConfigError(key, names, "[] with level L2", source=source, hint=hint)
    if len(names) != 2:
        rule = "an empty list or exactly two record names [first, last]"
        raise ConfigError(key, names, rule, source=source)
    for place, name in enumerate(names):
        _check_name(name, level, f"{key}[{place}]", source=source, warnings=warnings)
    return names[0], names[1]


def _check_name(
    name: str, level: Level, key: str, *, source: str | Path, warnings: list[str]
) -> None:
    is_module = _MODULE.fullmatch(name) is not None
    api = None if name.startswith(("Module.", "Cell.")) else _API.fullmatch(name)
    if level is Level.L0 and not is_module:
        hint = "API names need level L1 or mix" if api else ""
        raise ConfigError(key, name, _MODULE_RULE, source=source, hint=hint)
    if level is Level.L1 and not api:
        hint = "module names need level L0 or mix" if is_module else ""
        raise ConfigError(key, name, _API_RULE, source=source, hint=hint)
    if not (is_module or api):
        raise ConfigError(key, name, f"{_API_RULE} or {_MODULE_RULE}", source=source)
    if api and api[1] not in API_PREFIXES:
        warnings.append(
            f'"{key}" is {name!r}: "{api[1]}" is no built-in prefix ({", ".join(API_PREFIXES)}); '
            "it matches only custom operators and APIs that you register under this prefix"
        )
