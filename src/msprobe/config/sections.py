# SPDX-License-Identifier: Apache-2.0
"""Build the settings of a task from the typed keys of its section."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import UNSET

from msprobe.api_prefixes import API_PREFIXES
from msprobe.config.choices import (
    DataModeWord,
    FuzzDevice,
    Handler,
    Level,
    OnlineQueue,
    Perturbation,
    PerturbationWord,
    Stage,
)
from msprobe.config.file_keys import (
    DiffCheckKeys,
    ExceptionDumpKeys,
    FreeBenchmarkKeys,
    GradProbeKeys,
    NanCheckKeys,
    NoiseFloorKeys,
    OverflowCheckKeys,
    SectionKeys,
    SignatureKeys,
    SliceKeys,
    StatisticsKeys,
    StructureKeys,
    TensorKeys,
)
from msprobe.config.paths import parse_reference
from msprobe.config.settings import (
    DataMode,
    DiffCheckSection,
    ExceptionDumpSection,
    FreeBenchmarkSection,
    GradProbeSection,
    NanCheckSection,
    NoiseFloorSection,
    OnlineSettings,
    OverflowCheckSection,
    Preheat,
    Section,
    SignatureSection,
    Slice,
    StatisticsSection,
    StructureSection,
    TensorSection,
)
from msprobe.errors import ConfigError

_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "[::1]")
_CLIENT_KEYS: Final = ("client.key", "client.crt", "server.crt")
_MAX_INDEX: Final = 2**63 - 1  # no tensor has more elements
_API: Final = re.compile(r"([^.\s][^.]*)\..+\.[0-9]+\.(?:forward|backward)")
_MODULE: Final = re.compile(r"(?:Module|Cell)\..+\.(?:forward|backward)\.[0-9]+")
# The longest first.
_MINDSPORE_HOMES: Final = {
    "mindspore.mint.nn.functional.": "MintFunctional",
    "mindspore.mint.": "Mint",
    "mindspore.ops.": "Functional",
    "mindspore.Tensor.": "Tensor",
}
_API_RULE: Final = "an API name such as Functional.linear.0.forward"
_MODULE_RULE: Final = "a module name such as Module.fc.Linear.forward.0"


def build_section(
    keys: SectionKeys, level: Level, *, source: str | Path, warnings: list[str]
) -> Section:
    """Return the settings that a section's keys mean at this level.

    Args:
        keys: the section, with every value of the right type.
        level: level of the capture; some keys depend on it.
        source: the file, for error messages.
        warnings: receives a sentence for each key that has no effect.

    Raises:
        ConfigError: values that are not allowed together, or out of range.
    """
    match keys:
        case NoiseFloorKeys():
            return _noise_floor(keys, level, source=source, warnings=warnings)
        case StatisticsKeys():
            return _statistics(keys, level, source=source, warnings=warnings)
        case TensorKeys():
            return _tensor(keys, level, source=source, warnings=warnings)
        case StructureKeys():
            return StructureSection(black_list=tuple(keys.black_list))
        case OverflowCheckKeys():
            return _overflow_check(keys, source=source)
        case NanCheckKeys():
            _warn_empty(keys.tensor_list, "nan_check.tensor_list", warnings)
            return NanCheckSection(
                tensor_list=tuple(keys.tensor_list),
                stop_on=keys.stop_on,
                near_overflow=keys.near_overflow,
                underflow=keys.underflow,
                black_list=tuple(keys.black_list),
            )
        case SignatureKeys():
            return SignatureSection()
        case ExceptionDumpKeys():
            return ExceptionDumpSection(black_list=tuple(keys.black_list))
        case GradProbeKeys():
            return _grad_probe(keys, source=source)
        case DiffCheckKeys():
            return _diff_check(keys, source=source)
        case FreeBenchmarkKeys():
            return _free_benchmark(keys, level, source=source, warnings=warnings)


def _noise_floor(
    keys: NoiseFloorKeys, level: Level, *, source: str | Path, warnings: list[str]
) -> NoiseFloorSection:
    seed = None if keys.seed is UNSET else keys.seed
    if seed is not None and not 0 <= seed <= _MAX_INDEX:
        raise ConfigError("noise_floor.seed", seed, "from 0 to 2**63 - 1", source=source)
    shared = _statistics(keys, level, source=source, warnings=warnings, section="noise_floor")
    values = {field.name: getattr(shared, field.name) for field in fields(shared)}
    return NoiseFloorSection(**values, seed=seed)


def _statistics(
    keys: StatisticsKeys,
    level: Level,
    *,
    source: str | Path,
    warnings: list[str],
    section: str = "statistics",
) -> StatisticsSection:
    scope, names = _selection(keys, section, level, source=source, warnings=warnings)
    tensor_list = tuple(keys.tensor_list)
    if tensor_list and level is Level.DEBUG:
        warnings.append(
            f'"{section}.tensor_list" has no effect at level debug; use the task tensor'
        )
        tensor_list = ()
    _warn_empty(keys.tensor_list, f"{section}.tensor_list", warnings)
    if keys.keep_last and tensor_list:
        warnings.append(f'"{section}.tensor_list" has no effect with keep_last, which keeps none')
        tensor_list = ()
    if keys.replay_step and not keys.keep_last:
        warnings.append(f'"{section}.replay_step" has no effect without "keep_last"')
    return StatisticsSection(
        scope=scope,
        name_filters=names,
        tensor_list=tensor_list,
        data_mode=parse_data_mode(keys.data_mode, f"{section}.data_mode", source=source),
        summary_mode=keys.summary_mode,
        device=keys.device,
        slice=_parse_slices(keys.slice, f"{section}.slice", source=source),
        black_list=tuple(keys.black_list),
        keep_last=0 if level is Level.DEBUG else keys.keep_last,
        replay_step=keys.replay_step and bool(keys.keep_last) and level is not Level.DEBUG,
    )


def _tensor(
    keys: TensorKeys, level: Level, *, source: str | Path, warnings: list[str]
) -> TensorSection:
    section = "tensor"
    scope, names = _selection(keys, section, level, source=source, warnings=warnings)
    return TensorSection(
        scope=scope,
        name_filters=names,
        data_mode=parse_data_mode(keys.data_mode, f"{section}.data_mode", source=source),
        summary_mode=keys.summary_mode,
        file_format=keys.file_format,
        slice=_parse_slices(keys.slice, f"{section}.slice", source=source),
        black_list=tuple(keys.black_list),
        online=_online(keys, source=source) if keys.online_run_ut else None,
    )


def _online(keys: TensorKeys, *, source: str | Path) -> OnlineSettings:
    """Return where calls are sent.

    Raises:
        ConfigError: to no place, to two, or to another machine without keys.
    """
    found = OnlineSettings(
        drops=keys.online_queue is OnlineQueue.DROP, queue_bytes=keys.online_queue_mb << 20
    )
    has_socket = bool(keys.host) or keys.port > 0
    if bool(keys.nfs_path) == has_socket:
        rule = 'either "nfs_path", or "host" and "port", with "online_run_ut"'
        raise ConfigError("tensor.nfs_path", keys.nfs_path, rule, source=source)
    if keys.nfs_path:
        folder = Path(keys.nfs_path).expanduser()
        if not folder.is_dir():
            rule = "a folder that exists"
            raise ConfigError("tensor.nfs_path", keys.nfs_path, rule, source=source)
        return replace(found, nfs_path=folder.absolute())
    if not _HOST.fullmatch(keys.host):
        rule = "the name or number of a machine"
        raise ConfigError("tensor.host", keys.host, rule, source=source)
    if keys.port <= 0:
        raise ConfigError("tensor.port", keys.port, "a number from 1 to 65535", source=source)
    if not keys.tls_path and keys.host not in _THIS_MACHINE:
        hint = "to another machine nothing is sent without encryption"
        rule = "the folder of keys that `msprobe online-keys` makes"
        raise ConfigError("tensor.tls_path", "", rule, source=source, hint=hint)
    tls_path = Path(keys.tls_path).expanduser().absolute() if keys.tls_path else None
    for name in _CLIENT_KEYS if tls_path else ():
        assert tls_path is not None
        if not (tls_path / name).is_file():
            hint = f"it has no {name}; `msprobe online-keys` makes it"
            rule = "a folder of keys"
            raise ConfigError("tensor.tls_path", keys.tls_path, rule, source=source, hint=hint)
    return replace(found, address=f"tcp://{keys.host}:{keys.port}", tls_path=tls_path)


def _overflow_check(keys: OverflowCheckKeys, *, source: str | Path) -> OverflowCheckSection:
    _check_limit(keys.overflow_nums, "overflow_check.overflow_nums", source)
    return OverflowCheckSection(
        overflow_nums=keys.overflow_nums,
        check_mode=keys.check_mode,
        black_list=tuple(keys.black_list),
    )


def _diff_check(keys: DiffCheckKeys, *, source: str | Path) -> DiffCheckSection:
    _check_limit(keys.diff_nums, "diff_check.diff_nums", source)
    return DiffCheckSection(
        reference=parse_reference(keys.reference, source=source),
        diff_nums=keys.diff_nums,
        compare=keys.compare,
        black_list=tuple(keys.black_list),
    )


def _check_limit(number: int, key: str, source: str | Path) -> None:
    if number != -1 and number < 1:
        raise ConfigError(key, number, "a whole number >= 1, or -1 to never stop", source=source)


def _grad_probe(keys: GradProbeKeys, *, source: str | Path) -> GradProbeSection:
    bounds = tuple(keys.bounds)
    is_ascending = all(low < high for low, high in pairwise(bounds))
    if not bounds or not is_ascending or not all(-(2**63) <= one < 2**63 for one in bounds):
        rule = "ascending numbers within 64 bits"
        raise ConfigError("grad_probe.bounds", keys.bounds, rule, source=source)
    return GradProbeSection(
        grad_level=keys.grad_level,
        param_list=tuple(keys.param_list),
        bounds=bounds,
        sign_format=keys.sign_format,
    )


def _free_benchmark(
    keys: FreeBenchmarkKeys, level: Level, *, source: str | Path, warnings: list[str]
) -> FreeBenchmarkSection:
    section = "free_benchmark"
    scope, names = _selection(keys, section, level, source=source, warnings=warnings)
    word = _perturbation(keys, source=source)
    preheats = str(keys.if_preheat).lower() == "true"
    replacing = (Perturbation.HIGH_PRECISION, Perturbation.CPU_REFERENCE)
    if keys.handler_type is Handler.FIX and word.perturbation not in replacing:
        hint = f'with "{word}" there is no better result to go on with'
        rule = f'"check", or "fix" with {" or ".join(replacing)}'
        raise ConfigError(
            f"{section}.handler_type", keys.handler_type.value, rule, source=source, hint=hint
        )
    if preheats and (keys.handler_type is Handler.FIX or keys.fuzz_stage is Stage.BACKWARD):
        rule = 'false, or true with handler_type "check" and fuzz_stage "forward"'
        raise ConfigError(f"{section}.if_preheat", keys.if_preheat, rule, source=source)
    if preheats and word.perturbation in (*replacing, Perturbation.RERUN):
        warnings.append(f'"{section}.if_preheat" has no effect with "{word}", which learns nothing')
        preheats = False
    return FreeBenchmarkSection(
        scope=scope,
        name_filters=tuple(map(_record_name, names)),
        black_list=tuple(keys.black_list),
        word=word,
        handler=keys.handler_type,
        stage=keys.fuzz_stage,
        preheat=Preheat(steps=keys.preheat_step, max_sample=keys.max_sample) if preheats else None,
        every_n=keys.every_n,
        max_calls=keys.max_calls_per_api or None,
        max_bytes=keys.max_bytes or None,
    )


def _record_name(text: str) -> str:
    """Return a part of the record names of MindSpore's function ``mindspore.mint.div``.

    Other texts are parts of names already.
    """
    for home, prefix in _MINDSPORE_HOMES.items():
        if text.startswith(home):
            return f"{prefix}.{text.removeprefix(home)}."
    return text


def _perturbation(keys: FreeBenchmarkKeys, *, source: str | Path) -> PerturbationWord:
    """Return the perturbation, named by one of two keys and borne out by the device."""
    given = [one for one in (keys.mode, keys.pert_mode) if one is not UNSET]
    if len({one.perturbation for one in given}) > 1:
        rule = f'the same as "pert_mode", which is "{keys.pert_mode}"; one of the two is enough'
        raise ConfigError("free_benchmark.mode", str(keys.mode), rule, source=source)
    word = given[-1] if given else PerturbationWord.ULP_NOISE
    if keys.fuzz_device is UNSET:
        return word
    on_cpu = word.perturbation is Perturbation.CPU_REFERENCE
    if on_cpu != (keys.fuzz_device is FuzzDevice.CPU):
        rule = '"cpu"' if on_cpu else '"same" or "npu", the device where the call ran'
        hint = f'the mode is "{word}"; leave fuzz_device out if in doubt'
        raise ConfigError(
            "free_benchmark.fuzz_device", keys.fuzz_device.value, rule, source=source, hint=hint
        )
    return word


def _selection(
    keys: StatisticsKeys | TensorKeys | FreeBenchmarkKeys,
    section: str,
    level: Level,
    *,
    source: str | Path,
    warnings: list[str],
) -> tuple[tuple[str, str] | None, tuple[str, ...]]:
    """Return scope and name filters; none at level debug, which records no calls."""
    if level is Level.DEBUG:
        warnings.extend(
            f'"{section}.{name}" has no effect at level debug, which records only save()'
            for name, value in (("scope", keys.scope), ("list", keys.list))
            if value
        )
        return None, ()
    _warn_empty(keys.list, f"{section}.list", warnings)
    scope = _parse_scope(keys.scope, level, f"{section}.scope", source=source, warnings=warnings)
    return scope, tuple(keys.list)


def _parse_scope(
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


def _warn_empty(names: list[str], key: str, warnings: list[str]) -> None:
    if "" in names:
        warnings.append(f'"{key}" holds an empty string, which matches every record')


def parse_data_mode(words: list[DataModeWord], key: str, *, source: str | Path) -> DataMode:
    """Return the `DataMode` of a combination of `data_mode` words.

    A missing direction means both directions, a missing side both sides.

    Raises:
        ConfigError: `all` together with another word.
    """
    chosen = set(words)
    if DataModeWord.ALL in chosen and len(words) > 1:
        shown = [word.value for word in words]
        raise ConfigError(key, shown, '["all"] alone, or the other words without it', source=source)
    forward, backward = DataModeWord.FORWARD in chosen, DataModeWord.BACKWARD in chosen
    input_, output = DataModeWord.INPUT in chosen, DataModeWord.OUTPUT in chosen
    return DataMode(
        forward=forward or not backward,
        backward=backward or not forward,
        input=input_ or not output,
        output=output or not input_,
    )


def _parse_slices(crops: list[SliceKeys], key: str, *, source: str | Path) -> tuple[Slice, ...]:
    return tuple(
        _parse_slice(crop, f"{key}[{place}]", source=source) for place, crop in enumerate(crops)
    )


def _parse_slice(crop: SliceKeys, key: str, *, source: str | Path) -> Slice:
    size = None if crop.size is UNSET else crop.size
    end = None if crop.end is UNSET else crop.end
    for name, number in (("dim", crop.dim), ("size", size), ("begin", crop.begin), ("end", end)):
        if number is not None and abs(number) > _MAX_INDEX:
            rule = f"a whole number of at most {_MAX_INDEX}"
            raise ConfigError(f"{key}.{name}", number, rule, source=source)
    if end is not None and (crop.begin < 0) == (end < 0) and crop.begin >= end:
        found = {"begin": crop.begin, "end": end}
        raise ConfigError(key, found, "a begin that is smaller than the end", source=source)
    return Slice(dim=crop.dim, size=size, begin=crop.begin, end=end)
