# SPDX-License-Identifier: Apache-2.0
"""The settings of one run, checked and resolved, for the rest of the program."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from msprobe.config.choices import (
    CheckMode,
    CompileMode,
    Device,
    DiffRule,
    FileFormat,
    GradLevel,
    Handler,
    Level,
    Perturbation,
    PerturbationWord,
    Precision,
    RiskLevel,
    SignFormat,
    Stage,
    StopOn,
    SummaryMode,
    Task,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMode:
    """Which directions and which sides of a call are kept (the resolved `data_mode`)."""

    forward: bool = True
    backward: bool = True
    input: bool = True
    output: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Crop one dimension to `[begin:end]` before a value is summarised or saved.

    Applies to tensors that have the dimension and, when `size` is given, that size in it.
    """

    dim: int = 0
    size: int | None = None
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSection:
    """Settings of the task `statistics`.

    Attributes:
        scope: first and last record name of the recorded range, both included.
        name_filters: parts of names; a record is kept when its name contains one (key `list`).
        tensor_list: parts of names; matching records get their tensors saved too.
        data_mode: directions and sides of a call to keep.
        summary_mode: statistics, or statistics and a CRC-32.
        device: where statistics are computed in MindSpore graph mode.
        slice: crops made before a value is summarised.
        black_list: API names that are never recorded.
        keep_last: so many last steps are kept in memory, and written when something happens; 0:
            every step is written.
        replay_step: whether the step that made it write is run again, with tensors.
    """

    scope: tuple[str, str] | None = None
    name_filters: tuple[str, ...] = ()
    tensor_list: tuple[str, ...] = ()
    data_mode: DataMode = field(default_factory=DataMode)
    summary_mode: SummaryMode = SummaryMode.STATISTICS
    device: Device = Device.HOST
    slice: tuple[Slice, ...] = ()
    black_list: tuple[str, ...] = ()
    keep_last: int = 0
    replay_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSettings:
    """Where the calls of a running training are sent: to an address, or into a folder.

    Attributes:
        nfs_path: a folder that the receiver sees; None for a socket.
        address: ``tcp://host:port`` of the receiver; None for a folder.
        tls_path: folder of the keys; None for a connection without encryption.
        drops: whether calls are left out while the queue is full; else the training waits.
        queue_bytes: recorded bytes that may wait to be sent.
    """

    nfs_path: Path | None = None
    address: str | None = None
    tls_path: Path | None = None
    drops: bool = False
    queue_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSection:
    """Settings of the task `tensor`; see `StatisticsSection` for the shared ones.

    Attributes:
        file_format: only MindSpore graph mode at L2 heeds it.
        online: where calls are sent while the training runs; None for nowhere.
    """

    scope: tuple[str, str] | None = None
    name_filters: tuple[str, ...] = ()
    data_mode: DataMode = field(default_factory=DataMode)
    summary_mode: SummaryMode = SummaryMode.STATISTICS
    file_format: FileFormat = FileFormat.NPY
    slice: tuple[Slice, ...] = ()
    black_list: tuple[str, ...] = ()
    online: OnlineSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureSection:
    """Settings of the task `structure`."""

    black_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowCheckSection:
    """Settings of the task `overflow_check`.

    Attributes:
        overflow_nums: stop after this many overflowing calls; -1 never stops.
        check_mode: only MindSpore at level L2 heeds it.
        black_list: API names that are never recorded.
    """

    overflow_nums: int = 1
    check_mode: CheckMode = CheckMode.ALL
    black_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NanCheckSection:
    """Settings of the task `nan_check`.

    Attributes:
        tensor_list: parts of names; matching calls are always recorded, with their tensors.
        stop_on: when the search ends.
        near_overflow: share of the largest number of a type from which a value is near it; 0: none.
        underflow: share of elements that must underflow for a finding; 0: none is looked for.
        black_list: API names that are never looked at.
    """

    tensor_list: tuple[str, ...] = ()
    stop_on: StopOn = StopOn.FIRST_SOURCE
    near_overflow: float = 0.9
    underflow: float = 0.0
    black_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureSection:
    """Settings of the task `signature`: no keys.

    Attributes:
        black_list: empty, as no calls are recorded.
    """

    black_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionDumpSection:
    """Settings of the task `exception_dump`."""

    black_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GradProbeSection:
    """Settings of the task `grad_probe`.

    Attributes:
        grad_level: what is kept.
        param_list: names or patterns of parameters; empty for all.
        bounds: ascending ends of the intervals at level L2.
        sign_format: form of the signs.
        black_list: empty, as no calls are recorded.
    """

    grad_level: GradLevel = GradLevel.L1
    param_list: tuple[str, ...] = ()
    bounds: tuple[float, ...] = (-1, 0, 1)
    sign_format: SignFormat = SignFormat.PACKED
    black_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloorSection(StatisticsSection):
    """Settings of the task `noise_floor`; see `StatisticsSection` for the others.

    Attributes:
        seed: of the moves; None takes it from the output folder.
    """

    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preheat:
    """Steps that learn how much each API amplifies in a sound training.

    Attributes:
        steps: how many.
        max_sample: calls of one API that a step learns from, at most.
    """

    steps: int = 15
    max_sample: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeBenchmarkSection:
    """Settings of the task `free_benchmark`.

    Attributes:
        scope: see `StatisticsSection`.
        name_filters: see `StatisticsSection`.
        black_list: API names that are never perturbed.
        word: the perturbation as the file names it.
        handler: compare, or go on with the better result.
        stage: results or input gradients.
        preheat: None to judge from the first step on.
        every_n: perturb every n-th call of an API.
        max_calls: of an API in one step; None for all.
        max_bytes: of inputs; None for no limit.
    """

    scope: tuple[str, str] | None = None
    name_filters: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    word: PerturbationWord = PerturbationWord.ULP_NOISE
    handler: Handler = Handler.CHECK
    stage: Stage = Stage.FORWARD
    preheat: Preheat | None = None
    every_n: int = 1
    max_calls: int | None = None
    max_bytes: int | None = 4 << 30

    @property
    def mode(self) -> Perturbation:
        """The perturbation."""
        return self.word.perturbation


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffCheckSection:
    """Settings of the task `diff_check`.

    Attributes:
        reference: path of the recorded run; None to compare the ranks with one another.
        diff_nums: stop after this many calls that begin a difference; -1 never stops.
        compare: how values are compared.
        black_list: API names that are never recorded.
    """

    reference: Path | None
    diff_nums: int = 1
    compare: DiffRule = DiffRule.CHECKSUM
    black_list: tuple[str, ...] = ()


Section = (
    StatisticsSection
    | TensorSection
    | StructureSection
    | OverflowCheckSection
    | NanCheckSection
    | SignatureSection
    | ExceptionDumpSection
    | GradProbeSection
    | NoiseFloorSection
    | FreeBenchmarkSection
    | DiffCheckSection
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one run; `docs/reference/config.md` explains each key.

    Attributes:
        rank: sorted rank numbers to record; empty for all.
        step: sorted step numbers to record; empty for all.
        dump_path: absolute output folder (`~` expanded); created when capture starts.
        dump_enable: None when the key is absent, and the file is then not polled.
        api_list: absolute path of the user's API table.
        source: the file the settings came from; None for the packaged default.
        section: the settings of `task`.
    """

    task: Task = Task.STATISTICS
    level: Level = Level.L1
    dump_path: Path
    rank: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    enable_dataloader: bool = False
    async_dump: bool = False
    precision: Precision = Precision.LOW
    extra_info: bool = True
    risk_level: RiskLevel = RiskLevel.ALL
    dump_enable: bool | None = None
    custom_op_namespaces: tuple[str, ...] = ()
    api_list: Path | None = None
    record_rng: bool = False
    record_recompute: bool = False
    facts: bool = True
    optimizer_apis: bool = False
    overwrite: bool = True
    compile: CompileMode = CompileMode.EAGER
    source: Path | None = None
    section: Section = field(default_factory=StatisticsSection)

    def wants_step(self, step: int) -> bool:
        """Return whether this step is to be recorded."""
        return not self.step or _contains(self.step, step)

    def wanted_after(self, step: int) -> tuple[int, ...]:
        """Return the listed steps that come after one; none when there is no end."""
        return self.step[bisect_right(self.step, step) :]

    def wants_rank(self, rank: int) -> bool:
        """Return whether this rank is to be recorded."""
        return not self.rank or _contains(self.rank, rank)

    @property
    def last_step(self) -> int | None:
        """The last step to record, None when there is no end."""
        return self.step[-1] if self.step else None

    @property
    def takes_signals(self) -> bool:
        """Whether SIGUSR1 asks for something."""
        section = self.section
        is_flight = isinstance(section, StatisticsSection) and section.keep_last > 0
        return is_flight or self.dump_enable is not None


def _contains(sorted_numbers: tuple[int, ...], number: int) -> bool:
    # Bisection: a list may hold a million steps, and this is asked on the training thread.
    place = bisect_left(sorted_numbers, number)
    return place < len(sorted_numbers) and sorted_numbers[place] == number
