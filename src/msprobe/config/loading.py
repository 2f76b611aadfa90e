# SPDX-License-Identifier: Apache-2.0
"""Merge `config.json` and the arguments of a debugger into one checked `Config`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET

from msprobe.config.checking import convert, parse_choice
from msprobe.config.choices import Level, RiskLevel, Task
from msprobe.config.file_keys import EMPTY_IS_DEFAULT, SECTION_KEYS, CommonKeys, SliceKeys
from msprobe.config.numbers import parse_number_list
from msprobe.config.paths import parse_api_list, parse_config_path, parse_dump_path
from msprobe.config.reading import json_kind, read_config_file
from msprobe.config.sections import build_section
from msprobe.config.settings import Config, Section, StatisticsSection, TensorSection
from msprobe.config.unknown_keys import OTHER_TASKS, warn_unknown
from msprobe.errors import ConfigError, ConfigFileError
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

ARGUMENT: Final = "PrecisionDebugger()"
PACKAGED_DEFAULT: Final = Path(__file__).parents[1] / "config.json"
"""Holds every key of the documented form at its default; users copy it to begin with."""

_LEVELS: Final[dict[Task, tuple[Level, ...]]] = {
    Task.STATISTICS: tuple(Level),
    Task.TENSOR: tuple(Level),
    Task.STRUCTURE: (Level.L0, Level.MIX),
    Task.OVERFLOW_CHECK: (Level.L0, Level.L1, Level.L2, Level.MIX),
    Task.NAN_CHECK: (Level.L0, Level.L1, Level.MIX),
    Task.SIGNATURE: tuple(Level),
    Task.EXCEPTION_DUMP: (Level.L2,),
    Task.GRAD_PROBE: tuple(Level),
    Task.NOISE_FLOOR: (Level.L0, Level.L1, Level.L2, Level.MIX),
    Task.FREE_BENCHMARK: (Level.L1, Level.MIX),
    Task.DIFF_CHECK: (Level.L0, Level.L1, Level.MIX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """Raw values on their way to a `Config`: file and arguments merged, nothing checked yet."""

    values: dict[str, Any]
    file: str | Path
    arguments: frozenset[str]
    section: Mapping[str, Any]
    given_by: str
    dumps_kernels: bool = False
    warnings: list[str] = field(default_factory=list)

    def source(self, key: str) -> str | Path:
        """Return where the value of a top-level key came from, for messages."""
        return self.given_by if key in self.arguments else self.file


def load_config(
    path: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    step: object = None,
    rank: object = None,
    dump_enable: bool | None = None,
    section: Mapping[str, Any] | None = None,
    given_by: str = ARGUMENT,
    default_dump_path: str | None = None,
    dumps_kernels: bool = False,
) -> Config:
    """Read, check and resolve the settings of a run.

    Args:
        path: a `config.json`; None for the packaged default (statistics at L1 into ./dump_path).
        task: wins over the file, as do the following, unless None or empty.
        dump_path: output folder.
        level: level of the capture.
        step: list of steps.
        rank: list of ranks.
        dump_enable: False to record nothing until a running program is asked.
        section: keys of the task's section.
        given_by: names the one who gave these values, in messages.
        default_dump_path: output folder if neither `dump_path` nor the file names one.
        dumps_kernels: whether the framework dumps kernels by itself, which tasks more can use.

    Raises:
        ConfigError: the first thing that cannot be used. Keys without effect are only logged as
            warnings.
    """
    file = parse_config_path(path, source=given_by)
    values, repeated = read_config_file(file or PACKAGED_DEFAULT)
    given = {"task": task, "dump_path": dump_path, "level": level, "step": step, "rank": rank}
    given["dump_enable"] = dump_enable
    if isinstance(step, int) and not isinstance(step, bool):
        given["step"] = [step]
    arguments = {key: value for key, value in given.items() if not _is_empty(value)}
    draft = _Draft(
        values=_present({"dump_path": default_dump_path, **values, **arguments}),
        file=file or "packaged config.json",
        arguments=frozenset(arguments),
        section=section or {},
        given_by=given_by,
        warnings=[_repeated(key) for key in repeated],
        dumps_kernels=dumps_kernels,
    )
    config = _resolve(draft, file)
    for warning in draft.warnings:
        logger.warning("%s: %s", draft.file, warning)
    return config


def _repeated(key: str) -> str:
    return f"the key {json.dumps(key[:100])} occurs twice in one object; the last one counts"


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | tuple | range) and not value)


def _present(values: dict[str, Any]) -> dict[str, Any]:
    """Return the keys without absent values: null, and "" where it means the default."""
    return {
        key: value
        for key, value in values.items()
        if not (value is None and key not in SECTION_KEYS)
        and not (key in EMPTY_IS_DEFAULT and isinstance(value, str) and not value)
    }


def _resolve(draft: _Draft, file: Path | None) -> Config:
    task = _resolve_task(draft)
    level = _resolve_level(draft, task)
    values = {**draft.values, "task": task.value, "level": level.value}
    rank = parse_number_list(values.pop("rank", None), "rank", source=draft.source("rank"))
    step = parse_number_list(values.pop("step", None), "step", source=draft.source("step"))
    dump_path = parse_dump_path(values.pop("dump_path", None), source=draft.source("dump_path"))
    common = convert(values, CommonKeys, prefix="", source=draft.file)
    section = _resolve_section(draft, task, level)
    return Config(
        task=task,
        level=level,
        dump_path=dump_path,
        rank=rank,
        step=step,
        enable_dataloader=common.enable_dataloader,
        async_dump=common.async_dump,
        precision=common.precision,
        extra_info=common.extra_info,
        risk_level=_resolve_risk_level(common.risk_level, section, draft),
        dump_enable=None if common.dump_enable is UNSET else common.dump_enable,
        custom_op_namespaces=_resolve_namespaces(common.custom_op_namespaces, draft),
        api_list=parse_api_list(common.api_list, file=file, source=draft.file),
        record_rng=common.record_rng,
        record_recompute=common.record_recompute,
        facts=(common.facts or task is Task.SIGNATURE) and task is not Task.NAN_CHECK,
        optimizer_apis=common.optimizer_apis,
        overwrite=common.overwrite,
        compile=common.compile,
        source=file,
        section=section,
    )


def _resolve_task(draft: _Draft) -> Task:
    value = draft.values.get("task", Task.STATISTICS.value)
    # Only MindSpore dumps kernels by itself.
    without = (Task.SIGNATURE if draft.dumps_kernels else Task.EXCEPTION_DUMP,)
    known = tuple(task for task in Task if task not in without)
    if isinstance(value, str) and value in OTHER_TASKS and value not in known:
        hint = (
            f'"{value}" is not a capture task: {OTHER_TASKS[value]}; '
            f'a section "{value}" may stay in the file'
        )
        raise ConfigError("task", value, known, source=draft.source("task"), hint=hint)
    if value == Task.SIGNATURE and value not in known:
        hint = f"task {value} is for PyTorch"
        raise ConfigError("task", value, known, source=draft.source("task"), hint=hint)
    return parse_choice(value, Task, "task", source=draft.source("task"), without=without)


def _resolve_level(draft: _Draft, task: Task) -> Level:
    fixed = {Task.GRAD_PROBE: Level.DEBUG, Task.SIGNATURE: Level.L1}  # they see no calls
    if "level" not in draft.values:
        usual = {Task.STRUCTURE: Level.MIX, Task.EXCEPTION_DUMP: Level.L2, **fixed}
        return usual.get(task, Level.L1)
    source = draft.source("level")
    level = parse_choice(draft.values["level"], Level, "level", source=source)
    if task in fixed:
        return fixed[task]
    levels = _LEVELS[task]
    if draft.dumps_kernels and task is Task.NOISE_FLOOR:  # kernels run where nothing is moved
        levels = tuple(one for one in levels if one is not Level.L2)
    if level in levels:
        return level
    if task is Task.STRUCTURE:
        draft.warnings.append(f'"level" is "{level}"; task structure uses mix instead')
        return Level.MIX
    hint = f"task {task} does not work at level {level}"
    raise ConfigError("level", level.value, levels, source=source, hint=hint)


def _resolve_section(draft: _Draft, task: Task, level: Level) -> Section:
    keys = SECTION_KEYS[task]
    top = CommonKeys.__struct_encode_fields__
    inside = keys.__struct_encode_fields__
    in_section = dict.fromkeys(inside, f'in the section "{task}"')
    draft.warnings.extend(warn_unknown(draft.values, top, section="", elsewhere=in_section))
    raw = draft.values.get(task.value, {})
    if not isinstance(raw, dict):
        raise ConfigError(task.value, raw, "an object {…}", source=draft.file)
    raw = {**_without_null(raw), **draft.section}
    draft.warnings.extend(
        warn_unknown(raw, inside, section=task.value, elsewhere=_places_of_keys())
    )
    if "slice" in inside and isinstance(raw.get("slice"), list):
        raw["slice"] = _tidy_crops(raw["slice"], f"{task}.slice", draft.warnings)
    source = draft.given_by if draft.section else draft.file
    typed = convert(raw, keys, prefix=task.value, source=source)
    if draft.dumps_kernels and level is Level.L2 and raw.get("scope"):
        hint = "use list to select the kernels that are recorded"
        raise ConfigError(f"{task}.scope", raw["scope"], "[] here", source=source, hint=hint)
    return build_section(typed, level, source=source, warnings=draft.warnings)


def _tidy_crops(crops: list[Any], key: str, warnings: list[str]) -> list[Any]:
    fields = SliceKeys.__struct_encode_fields__
    for place, crop in enumerate(crops):
        if isinstance(crop, dict):
            path = f"{key}[{place}]"
            warnings.extend(warn_unknown(crop, fields, section=path, elsewhere={}))
    return [_without_null(crop) if isinstance(crop, dict) else crop for crop in crops]


def _without_null(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _places_of_keys() -> dict[str, str]:
    """Return for each key of the file where it has an effect, in words."""
    tasks: dict[str, list[str]] = {}
    for task, keys in SECTION_KEYS.items():
        for name in keys.__struct_encode_fields__:
            tasks.setdefault(name, []).append(task)
    places = {name: f"to task {' or '.join(names)}" for name, names in tasks.items()}
    return places | dict.fromkeys(CommonKeys.__struct_encode_fields__, "at the top of the file")


def _resolve_risk_level(chosen: RiskLevel, section: Section, draft: _Draft) -> RiskLevel:
    has_scope = isinstance(section, StatisticsSection | TensorSection) and section.scope
    if not has_scope or chosen is RiskLevel.ALL:
        return chosen
    draft.warnings.append(f'"risk_level" is "{chosen}"; with a scope every API is recorded')
    return RiskLevel.ALL


def _resolve_namespaces(names: list[str], draft: _Draft) -> tuple[str, ...]:
    for place, name in enumerate(names):
        if not name.isidentifier():
            key = f"custom_op_namespaces[{place}]"
            rule = "a namespace of torch.ops, such as my_ops"
            raise ConfigError(key, name, rule, source=draft.file)
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSwitch:
    """State of the key `dump_enable`, which switches recording on and off while a job runs.

    Attributes:
        enabled: the value when the file was last readable; None when the key is absent.
        stamp: modification time in ns, size and inode of the file read; None before the first.
        problem: why the present file cannot be used, empty when it can; `enabled` is then old.
    """

    enabled: bool | None = None
    stamp: tuple[int, int, int] | None = None
    problem: str = ""

    @property
    def is_on(self) -> bool:
        """Whether to record: only an explicit ``false`` switches off."""
        return self.enabled is not False


def reload_dump_enable(path: Path, last: DumpSwitch) -> DumpSwitch:
    """Return the state of `dump_enable` now; `last` itself when the file has not changed.

    Never raises for anything that a file can hold or lack: a file that is being edited must not
    end a training run. Costs one `stat` when the file has not changed.

    Args:
        path: the `config.json`.
        last: the result of an earlier call, or ``DumpSwitch(enabled=config.dump_enable)``.
    """
    try:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == last.stamp:
            return last
        values, _ = read_config_file(path)
    except ConfigFileError as error:
        return replace(last, stamp=stamp, problem=str(error))
    except OSError as error:
        return replace(last, stamp=None, problem=f"{path}: {reason(error)}")
    value = values.get("dump_enable")
    if value is not None and not isinstance(value, bool):
        problem = f'{path}: "dump_enable" is {json_kind(value)}; use true or false'
        return replace(last, stamp=stamp, problem=problem)
    return DumpSwitch(enabled=value, stamp=stamp)
