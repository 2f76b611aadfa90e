# SPDX-License-Identifier: Apache-2.0
"""The configuration of the monitor: its keys as users write them, and the settings made of them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from msprobe.config.checking import convert
from msprobe.config.unknown_keys import warn_unknown
from msprobe.errors import ConfigError
from msprobe.monitor.ops import Op
from msprobe.monitor.rows import Stream
from msprobe.yaml_nodes import nearest, read_yaml

ALWAYS: Final = 10**8

WholeNumber = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Patterns = list[str]


class Format(StrEnum):
    """Words of the key `format`: what is written besides the run's own files, step by step."""

    NONE = "none"
    CSV = "csv"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    API = "api"
    """The same as `none`: values are pulled with `generate_wgrad_metrics` and its like."""


class CommunicationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The object `cc_distribution`."""

    enable: Annotated[bool, Meta(description="Whether collectives are measured.")] = False
    cc_codeline: Annotated[
        Patterns,
        Meta(description="Only calls with a frame `path[line]` that one of these patterns finds."),
    ] = []
    distributed_ops: Annotated[
        Patterns | str,
        Meta(
            description="Names of the collectives that are measured, or the path of a "
            "`distributed_ops.yaml`; empty for all."
        ),
    ] = []
    stack_blacklist: Annotated[
        Patterns | str,
        Meta(
            description="Patterns of frames `path[line]` of call stacks that are not looked at, "
            "nor logged, or the path of a `stack_blacklist.yaml`."
        ),
    ] = []
    cc_pre_hook: Annotated[bool, Meta(description="Also the tensors before the call.")] = False
    cc_log_only: Annotated[
        bool, Meta(description="Log the collectives of the first step with their call stacks.")
    ] = False


class StreamKeys(msgspec.Struct, frozen=True, kw_only=True):
    """One object of `streams`."""

    enabled: Annotated[bool, Meta(description="Whether it is collected.")] = True
    include: Annotated[
        Patterns,
        Meta(
            description="Names to collect: glob patterns, or regular expressions after `re:`; "
            "empty for all."
        ),
    ] = []
    exclude: Annotated[Patterns, Meta(description="Names not to collect.")] = []
    ops: Annotated[list[Op], Meta(description="Operations in place of the common ones.")] = []
    step_interval: Annotated[Positive | None, Meta(description="In place of the common one.")] = (
        None
    )
    ranks: Annotated[list[WholeNumber], Meta(description="Ranks that collect; empty for all.")] = []


class MonitorKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the file."""

    targets: Annotated[
        dict[str, Any],
        Meta(
            description="Modules whose activations are collected (full names), and beginnings of "
            "names of parameters; empty for all. The objects inside are not read."
        ),
    ] = {}
    ops: Annotated[list[Op], Meta(description="What is computed of each tensor.")] = []
    xy_distribution: Annotated[bool, Meta(description="Activations and their gradients.")] = False
    all_xy: Annotated[bool, Meta(description="Of every module, whatever `targets` says.")] = False
    forward_only: Annotated[bool, Meta(description="No gradients of activations.")] = False
    backward_only: Annotated[bool, Meta(description="No activations, only gradients.")] = False
    wg_distribution: Annotated[
        bool, Meta(description="Gradients of parameters, before and after reduction.")
    ] = False
    monitor_mbs_grad: Annotated[
        bool, Meta(description="Gradients before reduction of every micro step.")
    ] = False
    mv_distribution: Annotated[bool, Meta(description="Moments of Adam and its like.")] = False
    param_distribution: Annotated[
        bool, Meta(description="Parameters before and after the update.")
    ] = False
    mg_direction: Annotated[
        bool, Meta(description="Share of elements whose gradient agrees in sign with its mean.")
    ] = False
    ur_distribution: Annotated[
        bool, Meta(description="Updates of parameters: norm, and ratio to the parameter's.")
    ] = False
    run_distribution: Annotated[
        bool, Meta(description="Loss, learning rates, global gradient norms, loss scale.")
    ] = True
    cc_distribution: Annotated[CommunicationKeys, Meta(description="Tensors of collectives.")] = (
        CommunicationKeys()
    )
    recording_l2_features: Annotated[bool, Meta(description="Features of `l2_targets`.")] = False
    l2_targets: Annotated[
        dict[str, list[str]],
        Meta(
            description="For `attention_hook`, `linear_hook`, `moe_router_weight_hook` and "
            "`moe_router_logit_hook`, the modules."
        ),
    ] = {}
    sa_order: Annotated[
        str, Meta(description="Order of dimensions of attention: `s,b,h,d` or `b,s,h,d`.")
    ] = "s,b,h,d"
    stack_info: Annotated[
        bool, Meta(description="One call stack per module, in `stack_info.csv`.")
    ] = False
    print_struct: Annotated[
        bool, Meta(description="Write the structure of the model once, and go on.")
    ] = False
    module_ranks: Annotated[
        list[WholeNumber], Meta(description="Ranks that collect; empty for all.")
    ] = []
    start_step: Annotated[WholeNumber, Meta(description="First step that is collected.")] = 0
    step_interval: Annotated[Positive, Meta(description="Collect every so many steps.")] = 1
    collect_times: Annotated[
        WholeNumber, Meta(description="How many steps are collected; then all hooks go.")
    ] = ALWAYS
    format: Annotated[
        Format,
        Meta(description="Also write `csv`, `tensorboard` or `wandb`; `none` or `api` for none."),
    ] = Format.NONE
    ndigits: Annotated[
        Annotated[int, Meta(ge=1, le=20)], Meta(description="Significant digits in csv files.")
    ] = 6
    eps: Annotated[
        Annotated[float, Meta(ge=0)],
        Meta(description="Magnitude below which an element counts as zero."),
    ] = 1e-8
    step_count_per_record: Annotated[
        Annotated[int, Meta(ge=1, le=10**6)], Meta(description="Steps per csv file.")
    ] = 1
    append_output: Annotated[
        list[str],
        Meta(description="Two times: append to the run of this rank that began between them."),
    ] = []
    squash_name: Annotated[
        bool, Meta(description="Shorten names to what follows the last `layers.` or its like.")
    ] = False
    alert: Annotated[dict[str, Any] | None, Meta(description="Rules that watch the values.")] = None
    dynamic_on: Annotated[
        bool, Meta(description="With `DYNAMIC_MONITOR=True`: collect from the next step on.")
    ] = False
    output_dir: Annotated[
        str | None, Meta(description="Folder of runs; else `MONITOR_OUTPUT_DIR`.")
    ] = None
    run: Annotated[
        str | None, Meta(description="Name of the run's folder, to which every start appends.")
    ] = None
    streams: Annotated[
        dict[str, StreamKeys], Meta(description="Choices for single streams, by name.")
    ] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Settings of one stream.

    Attributes:
        ops: the operations.
        include: names that are collected; empty for all.
        exclude: names that are not.
        interval: collect every so many steps.
        ranks: that collect; empty for all.
    """

    ops: tuple[Op, ...]
    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()
    interval: int = 1
    ranks: frozenset[int] = frozenset()

    def wants(self, name: str) -> bool:
        """Return whether a name is collected."""
        if self.include and not any(one.match(name) for one in self.include):
            return False
        return not any(one.match(name) for one in self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """The checked configuration.

    Attributes:
        keys: as in the file, all of them.
        streams: the streams that are collected.
        source: the file.
        warnings: about keys that have no effect.
    """

    keys: MonitorKeys
    streams: dict[Stream, StreamSettings]
    source: Path | None
    warnings: tuple[str, ...] = ()

    def is_due(self, stream: Stream, step: int) -> bool:
        """Return whether a stream is collected in a step."""
        found = self.streams.get(stream)
        begun = step - self.keys.start_step
        return found is not None and begun >= 0 and begun % found.interval == 0


def make_settings(
    raw: dict[str, Any], *, source: Path | None = None, warnings: list[str] | None = None
) -> MonitorSettings:
    """Return the settings in a decoded configuration.

    Args:
        raw: the keys and values.
        source: the file that they came from.
        warnings: about the file.

    Raises:
        ConfigError: a value cannot be used.
    """
    shown = source or "configure()"
    warned = [*(warnings or []), *_unknown(raw)]
    raw = {key: value for key, value in raw.items() if value is not None}
    keys = convert(raw, MonitorKeys, prefix="", source=shown)
    keys = _with_files(keys, source.parent if source else None)
    if keys.append_output and len(keys.append_output) != 2:
        raise ConfigError("append_output", keys.append_output, "two times", source=shown)
    if keys.sa_order not in ("s,b,h,d", "b,s,h,d"):
        raise ConfigError("sa_order", keys.sa_order, ("s,b,h,d", "b,s,h,d"), source=shown)
    if keys.forward_only and keys.backward_only:
        warned.append('"forward_only" and "backward_only" together leave no activations')
    _check_words(keys, shown)
    return MonitorSettings(
        keys=keys, streams=_streams(keys, shown), source=source, warnings=tuple(warned)
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors."""
    schema = msgspec.json.schema(MonitorKeys)
    for definition in schema["$defs"].values():
        if definition.get("type") == "object":
            definition["additionalProperties"] = False
    schema["$defs"][MonitorKeys.__name__]["properties"]["$schema"] = {"type": "string"}
    return schema


_FEATURES: Final = (Stream.ATTENTION, Stream.LINEAR, Stream.ROUTER_WEIGHT, Stream.ROUTER_LOGIT)


def _unknown(raw: dict[str, Any]) -> list[str]:
    """Return warnings about keys that nothing reads."""
    found = warn_unknown(raw, _names(MonitorKeys), section="", elsewhere={})
    inner: list[tuple[str, Any, type[msgspec.Struct]]] = [
        ("cc_distribution", raw.get("cc_distribution"), CommunicationKeys)
    ]
    streams = raw.get("streams")
    if isinstance(streams, dict):
        inner += [(f"streams.{name}", one, StreamKeys) for name, one in streams.items()]
    for section, value, kind in inner:
        if isinstance(value, dict):
            found += warn_unknown(value, _names(kind), section=section, elsewhere={})
    return found


def _with_files(keys: MonitorKeys, beside: Path | None) -> MonitorKeys:
    """Return the keys with the content of the files that they name."""
    chosen = keys.cc_distribution
    replaced = msgspec.structs.replace(
        chosen,
        distributed_ops=_listed(chosen.distributed_ops, _OPS_SECTIONS, beside),
        stack_blacklist=_listed(chosen.stack_blacklist, _STACK_SECTIONS, beside),
    )
    return msgspec.structs.replace(keys, cc_distribution=replaced)


# Of `distributed_ops.yaml`, for PyTorch and MindSpore, and of `stack_blacklist.yaml`.
_OPS_SECTIONS: Final = ("distributed", "communication.comm_func")
_STACK_SECTIONS: Final = ("stack",)


def _listed(value: Sequence[str] | str, sections: Sequence[str], beside: Path | None) -> list[str]:
    """Return the entries of a list, or of a file.

    Args:
        value: the list, or the path of a YAML file; a relative one begins at `beside`.
        sections: the keys of the file that are read; a file needs one of them.
        beside: the folder of the configuration; None for the current one.

    Raises:
        ConfigError: the file has another key, or something else than a list of texts.
        ConfigFileError: it cannot be read.
    """
    if not isinstance(value, str):
        return list(value)
    path = Path(value).expanduser()
    top = read_yaml(path if beside is None else beside / path)
    found: list[str] = []
    for key, place, node in top.items(f"lists under {' or '.join(sections)}"):
        if key not in sections:
            place.refuse(key, sections, hint=nearest(key, sections))
        if node.kind != "null":  # a section whose lines were all taken out
            found += [one.text("a text") for one in node.elements("a list of texts")]
    return found


def _names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return kind.__struct_encode_fields__


def _check_words(keys: MonitorKeys, source: Path | str) -> None:
    known = [one.value for one in Stream]
    for name in keys.streams:
        if name not in known:
            raise ConfigError(f"streams.{name}", name, known, source=source)
    for key in ("cc_codeline", "stack_blacklist"):
        for pattern in getattr(keys.cc_distribution, key):
            _compiled(f"cc_distribution.{key}", pattern, source)
    for name in keys.l2_targets:
        if name not in _FEATURES:
            raise ConfigError(f"l2_targets.{name}", name, list(_FEATURES), source=source)


def _streams(keys: MonitorKeys, source: Path | str) -> dict[Stream, StreamSettings]:
    """Return the streams that are switched on, by their own keys or by the common ones."""
    ops = tuple(keys.ops) or (Op.NORM,)
    found: dict[Stream, StreamSettings] = {}
    for stream in _switched_on(keys) | {Stream(name) for name in keys.streams}:
        own = keys.streams.get(stream.value, StreamKeys())
        if own.enabled:
            found[stream] = StreamSettings(
                ops=tuple(own.ops) or ops,
                include=_patterns(own.include, f"streams.{stream}.include", source)
                or _targets(keys, stream),
                exclude=_patterns(own.exclude, f"streams.{stream}.exclude", source),
                interval=own.step_interval or keys.step_interval,
                ranks=frozenset(own.ranks or keys.module_ranks),
            )
    return found


def _switched_on(keys: MonitorKeys) -> set[Stream]:
    groups = [
        (keys.xy_distribution and not keys.backward_only, (Stream.ACTV,)),
        (keys.xy_distribution and not keys.forward_only, (Stream.ACTV_GRAD,)),
        (keys.wg_distribution, (Stream.GRAD_UNREDUCED, Stream.GRAD_REDUCED)),
        (keys.mv_distribution, (Stream.EXP_AVG, Stream.EXP_AVG_SQ)),
        (keys.param_distribution, (Stream.PARAM_ORIGIN, Stream.PARAM_UPDATED)),
        (keys.mg_direction or keys.cc_distribution.enable, (Stream.OTHER,)),
        (keys.ur_distribution, (Stream.UPDATE,)),
        (keys.run_distribution, (Stream.RUN,)),
        (keys.recording_l2_features, tuple(one for one in _FEATURES if one in keys.l2_targets)),
    ]
    return {stream for is_on, streams in groups if is_on for stream in streams}


_ACTIVATIONS: Final = (Stream.ACTV, Stream.ACTV_GRAD)
CHUNK: Final = re.compile(r"^\d+:")
"""The number of a model in front of a name."""
NOT_OF_TENSORS: Final = (Stream.RUN, Stream.OTHER, *_FEATURES)


def _targets(keys: MonitorKeys, stream: Stream) -> tuple[re.Pattern[str], ...]:
    if stream in NOT_OF_TENSORS or (stream in _ACTIVATIONS and keys.all_xy):
        return ()
    end = r"\Z" if stream in _ACTIVATIONS else ""
    names = [CHUNK.sub("", name) for name in keys.targets]
    return tuple(re.compile(re.escape(name) + end) for name in names)


def _patterns(texts: list[str], key: str, source: Path | str) -> tuple[re.Pattern[str], ...]:
    return tuple(
        _compiled(key, text[3:] if text.startswith("re:") else fnmatch.translate(text), source)
        for text in texts
    )


def _compiled(key: str, text: str, source: Path | str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(key, text, f"a regular expression: {error}", source=source) from error


_SQUASHED: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"layers?\.",
        r"embeddings?\.",
        r"final",
        r"output",
        r"norm",
    )
)


def squashed(name: str) -> str:
    """Return a short name: from the last ``layers.``, ``embedding.``, ``final`` … of it on."""
    for pattern in _SQUASHED:
        found = list(pattern.finditer(name))
        if found:
            return name[found[-1].start() :]
    return name


def short_name(name: str, taken: dict[str, str]) -> str:
    """Return a short name, or the whole one where another has the short one."""
    short = squashed(name)
    return short if taken.setdefault(short, name) == name else name
