# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the settings file that ``MINDSPORE_DUMP_CONFIG`` names.

    {"common_dump_settings": {"dump_mode": 0, "path": "/data/dump", "net_name": "Net",
                              "iteration": "0|5-8", "saved_data": "tensor", "input_output": 0,
                              "kernels": [], "support_device": [0], "op_debug_mode": 0},
     "e2e_dump_settings": {"enable": true, "trans_flag": true}}

With ``e2e_dump_settings.enable`` the Dump is synchronous; without, asynchronous on Ascend.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from msprobe.errors import ConfigError, ConfigFileError
from msprobe.plain_text import reason

COMMON: Final = "common_dump_settings"
SYNCHRONOUS: Final = "e2e_dump_settings"

CATEGORIES: Final = (
    "max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count",
    "negative inf count", "positive inf count", "zero count", "md5", "l2norm", "hash", "hash:sha1",
    "hash:md5",
)  # fmt: skip
"""Allowed words of ``statistic_category``."""
DEVICE_CATEGORIES: Final = ("max", "min", "avg", "l2norm")
"""Those that a device can compute itself."""

_MAX_BYTES: Final = 16 << 20
_MAX_DEVICE: Final = 1_000_000
_RANGE: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_NET_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_REGEX: Final = re.compile(r"name-regex\((.*)\)", re.DOTALL)


class Select(IntEnum):
    """Which operators are dumped (``dump_mode``)."""

    ALL = 0
    LISTED = 1
    SET_DUMP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSettings:
    """A file without faults.

    Attributes:
        select: which operators are dumped.
        path: folder of the dump; empty for ``$MS_DIAGNOSTIC_DATA_PATH/debug_dump``.
        net_name: name of a folder in it.
        iterations: first and last of each wanted range; None for all.
        saved_data: ``tensor``, ``statistic`` or ``full``.
        input_output: 0 both, 1 inputs, 2 outputs.
        kernels: names, types and ``name-regex(…)`` of operators.
        devices: ranks that dump.
        debug_mode: 0, or which overflows (1, 2, 3) or exceptions (4) are looked for.
        file_format: ``npy`` or ``bin``.
        categories: statistics that are computed.
        initial_iteration: number of the first iteration.
        is_synchronous: whether operators are dumped one by one, through the host.
        names_synchronous: whether the file has that part at all.
        calculates_on_device: whether statistics are computed on the device.
        sample: number of elements of each value, None for all.
    """

    select: Select
    path: str
    net_name: str
    iterations: tuple[tuple[int, int], ...] | None
    saved_data: str
    input_output: int
    kernels: tuple[str, ...]
    devices: tuple[int, ...]
    debug_mode: int
    file_format: str
    categories: tuple[str, ...]
    initial_iteration: int
    is_synchronous: bool
    names_synchronous: bool
    calculates_on_device: bool
    sample: int | None

    @property
    def steps(self) -> int | None:
        """How many iterations are dumped, None for all."""
        if self.iterations is None:
            return None
        return len({n for first, last in self.iterations for n in _few(first, last)})


def _few(first: int, last: int) -> range:
    return range(first, min(last, first + 1_000_000) + 1)


@dataclass(slots=True)
class CheckedSettings:
    """Result of checking a file.

    Attributes:
        settings: its meaning; None if it has faults.
        faults: values that the Dump refuses or that mean nothing.
        warnings: settings without effect, in words.
    """

    settings: DumpSettings | None = None
    faults: list[ConfigError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Key:
    rule: str
    fits: Callable[[Any], bool]
    is_required: bool = False


def _among(*allowed: Any) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(each) and value == each for each in allowed)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


_FLAG: Final = _Key("true or false", lambda value: isinstance(value, bool))
_COMMON_KEYS: Final[Mapping[str, _Key]] = {
    "dump_mode": _Key(
        "0 (all operators), 1 (those in kernels) or 2 (those chosen by set_dump)",
        _among(0, 1, 2),
        is_required=True,
    ),
    "path": _Key(
        "an absolute path, or an empty text for $MS_DIAGNOSTIC_DATA_PATH/debug_dump",
        lambda value: isinstance(value, str) and (not value or Path(value).is_absolute()),
        is_required=True,
    ),
    "net_name": _Key(
        "the name of a folder: letters, digits, _, - and .",
        lambda value: isinstance(value, str) and _NET_NAME.fullmatch(value) is not None,
        is_required=True,
    ),
    "iteration": _Key(
        '"all", or numbers and ranges from 0, as in "0|5-8|100-120"',
        lambda value: isinstance(value, str) and _is_iteration(value),
        is_required=True,
    ),
    "saved_data": _Key("tensor, statistic or full (both)", _among("tensor", "statistic", "full")),
    "input_output": _Key(
        "0 (inputs and outputs), 1 (inputs) or 2 (outputs)", _among(0, 1, 2), is_required=True
    ),
    "kernels": _Key(
        "a list of full names, types of operators or name-regex(…)",
        _list_of(lambda value: isinstance(value, str) and bool(value)),
        is_required=True,
    ),
    "support_device": _Key(
        "a list of numbers from 0",
        _list_of(lambda value: _whole(value) and value <= _MAX_DEVICE),
        is_required=True,
    ),
    "op_debug_mode": _Key(
        "0 (off), 1, 2 or 3 (overflows), or 4 (operators that fail)", _among(0, 1, 2, 3, 4)
    ),
    "file_format": _Key("npy or bin", _among("npy", "bin")),
    "statistic_category": _Key("a list of " + ", ".join(CATEGORIES), _list_of(_among(*CATEGORIES))),
    "overflow_number": _Key("a whole number from 0", _whole),
    "initial_iteration": _Key("a whole number from 0", _whole),
    "sample_mode": _Key("0 (all elements) or 1 (sample_num of them)", _among(0, 1)),
    "sample_num": _Key("a whole number from 1", lambda value: _whole(value) and value > 0),
}
_SYNCHRONOUS_KEYS: Final[Mapping[str, _Key]] = {
    "enable": _FLAG,
    "trans_flag": _FLAG,
    "stat_calc_mode": _Key("host or device", _among("host", "device")),
    "device_stat_precision_mode": _Key("high or low", _among("high", "low")),
    "save_kernel_args": _FLAG,
}


def read_dump_settings(path: str | os.PathLike[str]) -> CheckedSettings:
    """Read and check a file.

    Raises:
        ConfigFileError: it cannot be read, or is no JSON object.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigFileError(path, "is too large for settings")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigFileError(path, f"cannot be read: {reason(exc)}") from exc
    except json.JSONDecodeError as exc:
        problem = f"is not JSON: {exc.msg}"
        raise ConfigFileError(path, problem, line=exc.lineno, column=exc.colno) from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigFileError(path, f"is not JSON: {reason(exc)}") from exc
    if not isinstance(raw, dict):
        raise ConfigFileError(path, "is not a JSON object {…}")
    return check_dump_settings(raw, source=path)


def check_dump_settings(raw: Mapping[str, Any], *, source: str | Path) -> CheckedSettings:
    """Check the contents of a file.

    Args:
        raw: the JSON object.
        source: the file, for messages.
    """
    done = CheckedSettings()
    for key in raw:
        if key not in (COMMON, SYNCHRONOUS):
            hint = _suggestion(key, (COMMON, SYNCHRONOUS))
            done.warnings.append(f"{_shown(key)} is not a known key and ignored{hint}")
    common = _section(raw, COMMON, _COMMON_KEYS, done, source, is_required=True)
    synchronous = _section(raw, SYNCHRONOUS, _SYNCHRONOUS_KEYS, done, source, is_required=False)
    _check_kernels(common.get("kernels", ()), done, source)
    is_listed = common.get("dump_mode") == Select.LISTED and not common.get("op_debug_mode")
    if is_listed and common.get("kernels") == []:
        done.warnings.append(
            f'"{COMMON}.kernels" is empty, so "dump_mode": 1 has no effect: all operators are meant'
        )
    if isinstance(raw.get(SYNCHRONOUS), dict):
        done.warnings += [
            f'"{SYNCHRONOUS}.{key}" is missing; some versions need it'
            for key in ("enable", "trans_flag")
            if key not in raw[SYNCHRONOUS]
        ]
    if not done.faults:
        done.settings = _settings(common, synchronous)
    return done


def _section(
    raw: Mapping[str, Any],
    name: str,
    keys: Mapping[str, _Key],
    done: CheckedSettings,
    source: str | Path,
    *,
    is_required: bool,
) -> dict[str, Any]:
    """Return the values of a section that fit; note those that do not."""
    section = raw.get(name)
    if section is None and not is_required:
        return {}
    if not isinstance(section, dict):
        done.faults.append(ConfigError(name, section, "an object {…}", source=source))
        return {}
    for key in section:
        if key not in keys:
            hint = _suggestion(key, tuple(keys))
            done.warnings.append(f"{_shown(f'{name}.{key}')} is not a known key and ignored{hint}")
    found = {}
    for key, about in keys.items():
        if key in section and about.fits(section[key]):
            found[key] = section[key]
        elif key in section:
            done.faults.append(_fault(f"{name}.{key}", section[key], about, source))
        elif about.is_required:
            hint = "the key is missing and required"
            fault = ConfigError(f"{name}.{key}", None, about.rule, source=source, hint=hint)
            done.faults.append(fault)
    return found


def _fault(key: str, value: Any, about: _Key, source: str | Path) -> ConfigError:
    hint = ""
    if key.endswith("statistic_category") and isinstance(value, list):
        wrong = [each for each in value if each not in CATEGORIES]
        hint = f"wrong: {', '.join(map(_shown, wrong))}" if wrong else ""
        if wrong and isinstance(wrong[0], str):
            hint += _suggestion(wrong[0], CATEGORIES)
    return ConfigError(key, value, about.rule, source=source, hint=hint)


def _check_kernels(kernels: Sequence[str], done: CheckedSettings, source: str | Path) -> None:
    for place, name in enumerate(kernels):
        if not name.startswith("name-regex"):
            continue
        found = _REGEX.fullmatch(name)
        try:
            problem = "" if found else "the bracket is missing"
            if found:
                re.compile(found[1])
        except re.error as exc:
            problem = str(exc)
        if problem:
            key, rule = f"{COMMON}.kernels[{place}]", "name-regex(…) with a regular expression"
            done.faults.append(ConfigError(key, name, rule, source=source, hint=problem))


def _settings(common: Mapping[str, Any], synchronous: Mapping[str, Any]) -> DumpSettings:
    debug_mode = common.get("op_debug_mode", 0)
    is_synchronous = bool(synchronous.get("enable", False))
    return DumpSettings(
        select=Select(common["dump_mode"]),
        path=common["path"],
        net_name=common["net_name"],
        iterations=_iterations(common["iteration"]),
        saved_data=common.get("saved_data", "tensor"),
        input_output=common["input_output"],
        kernels=tuple(common["kernels"]),
        devices=tuple(common["support_device"]),
        # Since overflows of both kinds are found alike, 1 and 2 mean 3.
        debug_mode=3 if debug_mode in (1, 2) else debug_mode,
        file_format="npy" if is_synchronous else common.get("file_format", "bin"),
        categories=tuple(common.get("statistic_category", ())),
        initial_iteration=common.get("initial_iteration", 0),
        is_synchronous=is_synchronous,
        names_synchronous=bool(synchronous),
        calculates_on_device=synchronous.get("stat_calc_mode") == "device",
        sample=common.get("sample_num") if common.get("sample_mode") == 1 else None,
    )


def _is_iteration(text: str) -> bool:
    if text == "all":
        return True
    ranges = [_RANGE.fullmatch(part) for part in text.split("|")]
    return all(each and (each[2] is None or int(each[1]) <= int(each[2])) for each in ranges)


def _iterations(text: str) -> tuple[tuple[int, int], ...] | None:
    if text == "all":
        return None
    found = (part.partition("-") for part in text.split("|"))
    return tuple((int(first), int(last or first)) for first, _, last in found)


def _suggestion(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key.lower()[:100], known, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 100 else text[:100] + "…"
