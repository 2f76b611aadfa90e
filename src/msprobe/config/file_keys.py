# SPDX-License-Identifier: Apache-2.0
"""The keys of `config.json` with their types and descriptions, exactly as users write them.

Everything that is known about a key is here, once: checking, the JSON schema for editors and
the reference page are made from these types.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from msprobe.config.choices import (
    CheckMode,
    CompileMode,
    DataModeWord,
    Device,
    DiffRule,
    FileFormat,
    FuzzDevice,
    FuzzLevel,
    GradLevel,
    Handler,
    Level,
    OnlineQueue,
    PerturbationWord,
    Precision,
    RiskLevel,
    SignFormat,
    Stage,
    StopOn,
    SummaryMode,
    Task,
)
from msprobe.config.numbers import MAX_NUMBER

# `parse_number_list` judges these, with better words; the limits are here for the schema.
Numbers = list[
    Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    | Annotated[str, Meta(pattern=r"^\s*[0-9]+\s*(-\s*[0-9]+\s*)?$")]
]
Names = list[str]

Scope = Annotated[
    Names,
    Meta(
        description="Record only from the first to the second of two full record names, both "
        "included; empty for everything. At L1 API names (`Functional.linear.0.forward`), at L0 "
        "module names (`Module.fc.Linear.forward.0`), at mix either. At L2 either, for the kernels "
        "inside; not in MindSpore.",
        extra_json_schema={"anyOf": [{"maxItems": 0}, {"minItems": 2, "maxItems": 2}]},
    ),
]
NameFilters = Annotated[
    Names,
    Meta(
        description="Record only calls whose name contains one of these strings; empty for all. At "
        "level mix a matching module is expanded: everything that runs inside it is recorded."
    ),
]
DataModeWords = Annotated[
    list[DataModeWord],
    Meta(
        description='What to keep of a call: `["all"]`, or any of `forward`, `backward`, `input`, '
        "`output`. Without a direction both are kept, without a side both are kept: "
        '`["backward"]` keeps gradients in and out, `["forward", "input"]` only forward inputs.'
    ),
]
Summary = Annotated[
    SummaryMode,
    Meta(
        description="`statistics`: maximum, minimum, mean and norm. `md5`: also a CRC-32 of the "
        "bytes, to see at once whether two values are bit-identical."
    ),
]
BlackList = Annotated[
    Names,
    Meta(
        description="APIs that are never recorded, as `relu` (under every prefix) or "
        "`Functional.relu`."
    ),
]


class SliceKeys(msgspec.Struct, frozen=True, kw_only=True):
    """One crop of `slice`."""

    dim: Annotated[int, Meta(ge=0, description="Dimension to crop.")] = 0
    size: (
        Annotated[
            int, Meta(ge=0, description="Only tensors with this size in `dim`; absent for any.")
        ]
        | UnsetType
    ) = UNSET
    begin: Annotated[
        int, Meta(description="First index to keep; negative counts from the end.")
    ] = 0
    end: (
        Annotated[int, Meta(description="Index after the last one to keep; absent for the end.")]
        | UnsetType
    ) = UNSET


Slices = Annotated[
    list[SliceKeys],
    Meta(
        description="Crop matching dimensions before a value is summarised or saved, for example "
        '`[{"dim": 0, "size": 4096, "begin": 0, "end": 16}]`.'
    ),
]


class StatisticsKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `statistics`: four numbers for every value."""

    scope: Scope = []
    list: NameFilters = []
    tensor_list: Annotated[
        Names,
        Meta(
            description="Calls whose name contains one of these strings also get their tensors "
            "saved, as in the task `tensor`. Ignored at level debug."
        ),
    ] = []
    data_mode: DataModeWords = msgspec.field(default_factory=lambda: [DataModeWord.ALL])
    summary_mode: Summary = SummaryMode.STATISTICS
    device: Annotated[
        Device,
        Meta(description="Where statistics are computed; only MindSpore graph mode heeds it."),
    ] = Device.HOST
    slice: Slices = []
    black_list: BlackList = []
    keep_last: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Keep the records of so many last steps in memory, and write them only "
            "when something happens: NaN or Inf, a jump of the loss or of the gradient norm, an "
            "exception, SIGUSR1, `dump_enable` becoming true, `msprobe attach`, or a call of "
            "`debugger.flush()`. 0: every step is written.",
        ),
    ] = 0
    replay_step: Annotated[
        bool,
        Meta(
            description="With `keep_last`, in PyTorch: run the step that made it write again, from "
            "the saved random state, parameters and inputs, and save the tensors of the calls in "
            "which the trouble begins. Needs a step function, `debugger.replay_with()`, or a "
            "callback of a trainer."
        ),
    ] = False


class TensorKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `tensor`: every value itself, and its statistics."""

    scope: Scope = []
    list: NameFilters = []
    data_mode: DataModeWords = msgspec.field(default_factory=lambda: [DataModeWord.ALL])
    summary_mode: Summary = SummaryMode.STATISTICS
    file_format: Annotated[
        FileFormat,
        Meta(description="Format of tensor files; only MindSpore graph mode at L2 heeds it."),
    ] = FileFormat.NPY
    slice: Slices = []
    black_list: BlackList = []
    online_run_ut: Annotated[
        bool,
        Meta(
            description="Send the calls to a process that checks them while the training runs, "
            "through `nfs_path`, or to `host` and `port`."
        ),
    ] = False
    online_run_ut_recompute: Annotated[
        bool,
        Meta(description="No effect: calls that activation checkpointing repeats are not checked."),
    ] = False
    nfs_path: Annotated[
        str, Meta(description="With `online_run_ut`: a folder that the other machine sees, too.")
    ] = ""
    host: Annotated[
        str, Meta(description="With `online_run_ut`: name or number of the other machine.")
    ] = ""
    port: Annotated[
        int,
        Meta(description="With `online_run_ut`: the port that it listens at.", ge=-1, le=65535),
    ] = -1
    tls_path: Annotated[
        str,
        Meta(
            description="With `online_run_ut`: the folder with `client.key`, `client.crt` and "
            "`server.crt`, made by `msprobe online-keys`. Needed unless `host` is this machine."
        ),
    ] = ""
    online_queue: Annotated[
        OnlineQueue,
        Meta(
            description="With `online_run_ut`, while too much waits to be sent: `wait` lets the "
            "training wait at the end of its step, `drop` leaves calls out and counts them."
        ),
    ] = OnlineQueue.WAIT
    online_queue_mb: Annotated[
        int, Meta(description="With `online_run_ut`: megabytes that may wait to be sent.", ge=1)
    ] = 1024


class StructureKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `structure`: which calls ran, from where and inside what; no values."""

    black_list: BlackList = []


class OverflowCheckKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `overflow_check`: only calls in which a NaN or an infinity shows up, with tensors."""

    overflow_nums: Annotated[
        int,
        Meta(
            description="Stop after this many overflowing calls; -1 never stops; not 0.",
            extra_json_schema={"anyOf": [{"const": -1}, {"minimum": 1}]},
        ),
    ] = 1
    check_mode: Annotated[
        CheckMode,
        Meta(
            description="Overflows to look for: of the AI Core, of atomic additions, or all; only "
            "MindSpore at level L2 heeds it."
        ),
    ] = CheckMode.ALL
    black_list: BlackList = []


class NanCheckKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `nan_check`: where NaN and infinities begin, found as cheaply as possible."""

    tensor_list: Annotated[
        Names,
        Meta(
            description="Calls whose name contains one of these strings are always recorded, with "
            "their tensors."
        ),
    ] = []
    stop_on: Annotated[
        StopOn,
        Meta(
            description="`first_source`: the search ends with the step in which a NaN or an "
            "infinity begins. `never`: it goes on."
        ),
    ] = StopOn.FIRST_SOURCE
    near_overflow: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Finite numbers from this share of the largest one of their type on are "
            "reported, too; 0 for none.",
        ),
    ] = 0.9
    underflow: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Results with at least this share of subnormal numbers, and casts that "
            "turn this share of their elements to zero, are reported, too; 0 for none. PyTorch. "
            "Every result is read once more.",
        ),
    ] = 0.0
    black_list: BlackList = []


class SignatureKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `signature`: a few numbers of each parameter and step, for `msprobe bisect`; no keys."""


class ExceptionDumpKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `exception_dump`: the inputs of kernels that fail; MindSpore at level L2 only."""

    black_list: BlackList = []


class GradProbeKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `grad_probe`: summaries and signs of gradients at each optimizer step."""

    grad_level: Annotated[
        GradLevel,
        Meta(
            description="`L0`: maximum, minimum, norm and a CRC-32. `L1`: statistics, signs and "
            "projections. `L2`: also the share of elements between `bounds`."
        ),
    ] = GradLevel.L1
    param_list: Annotated[
        Names,
        Meta(description="Parameters to record, as names or patterns (`*.bias`); empty for all."),
    ] = []
    bounds: Annotated[
        list[int | float], Meta(description="Ascending bounds of the intervals at level L2.")
    ] = msgspec.field(default_factory=lambda: [-1, 0, 1])
    sign_format: Annotated[
        SignFormat,
        Meta(
            description="`packed`: one file a step, two bits an element. `npy`: also a boolean "
            "array for each parameter, as mindstudio-probe writes it."
        ),
    ] = SignFormat.PACKED


class NoiseFloorKeys(StatisticsKeys, frozen=True, kw_only=True):
    """Task `noise_floor`: as `statistics`, of a training whose operators are moved by rounding."""

    seed: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="Seed of the moves; absent to take one from `dump_path`. Recordings "
                "that are compared with each other need different ones.",
            ),
        ]
        | UnsetType
    ) = UNSET


class FreeBenchmarkKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `free_benchmark`: run operators again, slightly changed, and see what becomes of it."""

    scope: Scope = []
    list: NameFilters = []
    black_list: BlackList = []
    mode: (
        Annotated[
            PerturbationWord,
            Meta(
                description="What is changed when a call runs again: `high_precision`, `ulp_noise` "
                "(the default), `relative_noise`, `permute`, `rerun`, `cpu_reference`."
            ),
        ]
        | UnsetType
    ) = UNSET
    pert_mode: (
        Annotated[
            PerturbationWord,
            Meta(
                description="Same as `mode`, as mindstudio-probe spells it: `improve_precision`, "
                "`bit_noise`, `add_noise`, `change_value`, `no_change`, `to_cpu`. Both keys take "
                "the names of either."
            ),
        ]
        | UnsetType
    ) = UNSET
    handler_type: Annotated[
        Handler,
        Meta(
            description="`check` compares and leaves the training bit-identical. `fix` goes on "
            "with the result of `high_precision` or `cpu_reference`: this changes the training."
        ),
    ] = Handler.CHECK
    fuzz_stage: Annotated[
        Stage, Meta(description="`forward`: results are compared; `backward`: input gradients.")
    ] = Stage.FORWARD
    fuzz_level: Annotated[FuzzLevel, Meta(description="Only `L1`: calls of APIs.")] = FuzzLevel.L1
    fuzz_device: (
        Annotated[
            FuzzDevice,
            Meta(
                description="`cpu` with `cpu_reference`; `npu` or `same` with the other modes: the "
                "device where the call ran, whatever it is."
            ),
        ]
        | UnsetType
    ) = UNSET
    if_preheat: Annotated[
        bool | Annotated[str, Meta(pattern="^(?i:true|false)$")],
        Meta(
            description="Begin with steps that only learn, from a sample of the calls, how much "
            "each API amplifies while it agrees with a CPU reference; only with `check`, `forward`."
        ),
    ] = False
    preheat_step: Annotated[int, Meta(ge=1, description="Number of the steps that learn.")] = 15
    max_sample: Annotated[
        int, Meta(ge=1, description="Calls of one API that a step of these learns from, at most.")
    ] = 20
    every_n: Annotated[
        int, Meta(ge=1, description="Perturb every n-th selected call of an API.")
    ] = 1
    max_calls_per_api: Annotated[
        int, Meta(ge=0, description="Perturb at most this many calls of an API a step; 0: all.")
    ] = 0
    max_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Leave out calls whose inputs are larger; at stage `backward` also those "
            "for which inputs of more bytes would be kept at a time. 0: no limit.",
        ),
    ] = 4 << 30


class DiffCheckKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Task `diff_check`: the run is compared with a recorded one while it goes."""

    reference: Annotated[
        str,
        Meta(
            description="Path of the recorded run: a dump of the same steps and level. Or "
            "`replicas`: the data-parallel ranks of this run are compared with one another."
        ),
    ] = ""
    diff_nums: Annotated[
        int,
        Meta(
            description="Stop after this many calls that begin a difference; -1 never stops; not "
            "0.",
            extra_json_schema={"anyOf": [{"const": -1}, {"minimum": 1}]},
        ),
    ] = 1
    compare: Annotated[
        DiffRule,
        Meta(
            description="`checksum`: to the bit, for a reference with `summary_mode` md5. "
            "`statistics`: within the tolerance of each type."
        ),
    ] = DiffRule.CHECKSUM
    black_list: BlackList = []


class CommonKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys at the top of the file, for every task."""

    task: Annotated[Task, Meta(description="What to keep.")] = Task.STATISTICS
    dump_path: Annotated[
        str,
        Meta(
            description="Output folder, created when missing. Any characters; `~` is your home "
            "folder; a relative path starts at the working directory. Required here or as an "
            "argument of `PrecisionDebugger`."
        ),
    ] = ""
    rank: Annotated[
        Numbers,
        Meta(
            description='Ranks to record, such as `[0, "4-7"]`; empty for all. '
            "Numbers from 0 to 1000000."
        ),
    ] = []
    step: Annotated[
        Numbers,
        Meta(
            description='Steps to record, such as `[0, "10-12"]`; empty for all. '
            "Numbers from 0 to 1000000; of a range either end may come first."
        ),
    ] = []
    level: Annotated[
        Level,
        Meta(
            description="Which calls to see: `L0` modules, `L1` APIs, `mix` both, `L2` the "
            "kernels that run beneath, `debug` only what you pass to `save()`. The task "
            "`structure` works at L0 and mix, `overflow_check` at all but debug, `nan_check` "
            "and `diff_check` at L0, L1 and mix, `free_benchmark` at L1 and mix; `signature` "
            "records no calls, and the level does not matter."
        ),
    ] = Level.L1
    enable_dataloader: Annotated[
        bool,
        Meta(
            description="Let each iteration of a PyTorch `DataLoader` do stop, step and start by "
            "itself (single process)."
        ),
    ] = False
    async_dump: Annotated[
        bool,
        Meta(
            description="Copy values at once and do the rest of the work at `stop()` and "
            "`step()`: less time in each call, more memory until then."
        ),
    ] = False
    precision: Annotated[
        Precision,
        Meta(
            description="How statistics are accumulated: `low` in float32 or wider, `high` in "
            "float64."
        ),
    ] = Precision.LOW
    extra_info: Annotated[
        bool, Meta(description="Also write `stack.json` and `construct.json`.")
    ] = True
    risk_level: Annotated[
        RiskLevel,
        Meta(
            description="Which APIs to record: `CORE` few, `FOCUS` without those that only move "
            "or reshape data, `ALL` every one. With a `scope` always `ALL`."
        ),
    ] = RiskLevel.ALL
    dump_enable: (
        Annotated[
            bool,
            Meta(
                description="Present: the file is watched, and changing this value switches "
                "recording on or off while the job runs. Absent: recording is on and the file is "
                "read once."
            ),
        ]
        | UnsetType
    ) = UNSET
    custom_op_namespaces: Annotated[
        Names,
        Meta(
            description="Namespaces of `torch.ops` whose operators are recorded even when an "
            "`api_list` leaves them out; without an `api_list` all custom operators are."
        ),
    ] = []
    api_list: Annotated[
        str,
        Meta(
            description="A YAML file with your own table of APIs to record; a relative path "
            "starts at the folder of this file."
        ),
    ] = ""
    record_rng: Annotated[
        bool,
        Meta(description="Save the generator state of each call that uses random numbers."),
    ] = False
    record_recompute: Annotated[
        bool,
        Meta(
            description="Also record what activation checkpointing computes a second time, as "
            "`….forward.recompute`."
        ),
    ] = False
    facts: Annotated[
        bool,
        Meta(
            description="Also write `facts.json`: the training around the calls, such as settings, "
            "data, optimizer steps. The task `signature` always does, `nan_check` never."
        ),
    ] = True
    optimizer_apis: Annotated[
        bool,
        Meta(
            description="Also record each API that optimizers and gradient clipping call. Without, "
            "`facts.json` has one entry for each of their steps. No effect where `facts` is false: "
            "then each API is recorded, but in the task `nan_check`, which heeds it."
        ),
    ] = False
    overwrite: Annotated[
        bool,
        Meta(
            description="Whether a recording that `dump_path` holds is replaced. With `false` the "
            "debugger refuses to be made. Folders marked by `msprobe keep` are refused always."
        ),
    ] = True
    compile: Annotated[
        CompileMode,
        Meta(
            description="`torch.compile`d code: `eager` runs it uncompiled while recording, "
            "`modules_only` leaves it compiled and sees the boundaries of modules only."
        ),
    ] = CompileMode.EAGER


SectionKeys = (
    StatisticsKeys
    | TensorKeys
    | StructureKeys
    | OverflowCheckKeys
    | NanCheckKeys
    | SignatureKeys
    | ExceptionDumpKeys
    | GradProbeKeys
    | NoiseFloorKeys
    | FreeBenchmarkKeys
    | DiffCheckKeys
)

EMPTY_IS_DEFAULT: Final = ("task", "level")
"""Keys whose empty string means the default."""
SECTION_KEYS: Final[dict[Task, type[SectionKeys]]] = {
    Task.STATISTICS: StatisticsKeys,
    Task.TENSOR: TensorKeys,
    Task.STRUCTURE: StructureKeys,
    Task.OVERFLOW_CHECK: OverflowCheckKeys,
    Task.NAN_CHECK: NanCheckKeys,
    Task.SIGNATURE: SignatureKeys,
    Task.EXCEPTION_DUMP: ExceptionDumpKeys,
    Task.GRAD_PROBE: GradProbeKeys,
    Task.NOISE_FLOOR: NoiseFloorKeys,
    Task.FREE_BENCHMARK: FreeBenchmarkKeys,
    Task.DIFF_CHECK: DiffCheckKeys,
}
