# SPDX-License-Identifier: Apache-2.0
"""The closed sets of words that `config.json` may use."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Task(StrEnum):
    """Data that a capture keeps."""

    STATISTICS = "statistics"
    TENSOR = "tensor"
    STRUCTURE = "structure"
    OVERFLOW_CHECK = "overflow_check"
    NAN_CHECK = "nan_check"
    SIGNATURE = "signature"
    EXCEPTION_DUMP = "exception_dump"
    GRAD_PROBE = "grad_probe"
    NOISE_FLOOR = "noise_floor"
    FREE_BENCHMARK = "free_benchmark"
    DIFF_CHECK = "diff_check"


class Level(StrEnum):
    """Which calls a capture sees: modules, APIs, both, device kernels, or `save()` only."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    MIX = "mix"
    DEBUG = "debug"


class SummaryMode(StrEnum):
    """Summary of a value: four statistics, or those and a CRC-32."""

    STATISTICS = "statistics"
    MD5 = "md5"


class Precision(StrEnum):
    """How statistics are accumulated: at least float32, or float64."""

    LOW = "low"
    HIGH = "high"


class RiskLevel(StrEnum):
    """Which APIs are recorded: the few that compute, the usual ones, or every one."""

    CORE = "CORE"
    FOCUS = "FOCUS"
    ALL = "ALL"


class CompileMode(StrEnum):
    """How compiled code is captured: run eagerly, or seen at its module boundaries only."""

    EAGER = "eager"
    MODULES_ONLY = "modules_only"


class Device(StrEnum):
    """Where statistics are computed in MindSpore graph mode (O0, O1)."""

    HOST = "host"
    DEVICE = "device"


class FileFormat(StrEnum):
    """File format of saved tensors in MindSpore graph mode at L2."""

    NPY = "npy"
    BIN = "bin"


class OnlineQueue(StrEnum):
    """Behaviour while too many recorded bytes wait to be sent to another process."""

    WAIT = "wait"
    DROP = "drop"


class CheckMode(StrEnum):
    """Which overflows of the device an overflow check of kernels looks for (MindSpore at L2)."""

    ALL = "all"
    AICORE = "aicore"
    ATOMIC = "atomic"


class StopOn(StrEnum):
    """When a search ends: with the step that has the first source, or never."""

    FIRST_SOURCE = "first_source"
    NEVER = "never"


class DataModeWord(StrEnum):
    """A word of `data_mode`; their combination is a `DataMode`."""

    ALL = "all"
    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT = "input"
    OUTPUT = "output"


class GradLevel(StrEnum):
    """Levels of the gradient probe: statistics and a checksum, signs, or signs and intervals."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"


class SignFormat(StrEnum):
    """Files of the gradient probe for signs: packed bits, or a boolean array for each parameter."""

    PACKED = "packed"
    NPY = "npy"


class Perturbation(StrEnum):
    """How a call is run again: in which precision, or with what change of its inputs."""

    HIGH_PRECISION = "high_precision"
    ULP_NOISE = "ulp_noise"
    RELATIVE_NOISE = "relative_noise"
    PERMUTE = "permute"
    RERUN = "rerun"
    CPU_REFERENCE = "cpu_reference"


class PerturbationWord(StrEnum):
    """Names of the perturbations in `config.json`: first ours, then those of mindstudio-probe."""

    HIGH_PRECISION = "high_precision"
    ULP_NOISE = "ulp_noise"
    RELATIVE_NOISE = "relative_noise"
    PERMUTE = "permute"
    RERUN = "rerun"
    CPU_REFERENCE = "cpu_reference"
    IMPROVE_PRECISION = "improve_precision"
    BIT_NOISE = "bit_noise"
    ADD_NOISE = "add_noise"
    CHANGE_VALUE = "change_value"
    NO_CHANGE = "no_change"
    TO_CPU = "to_cpu"

    @property
    def perturbation(self) -> Perturbation:
        """The perturbation that is meant."""
        return _MEANT[self]


_MEANT: Final[dict[PerturbationWord, Perturbation]] = dict(
    zip(PerturbationWord, (*Perturbation, *Perturbation), strict=True)
)


class Handler(StrEnum):
    """Treatment of a perturbed call: compare the two results, or go on with the better one."""

    CHECK = "check"
    FIX = "fix"


class Stage(StrEnum):
    """Part of a call that is perturbed."""

    FORWARD = "forward"
    BACKWARD = "backward"


class FuzzDevice(StrEnum):
    """Where perturbed calls run: `cpu` for the reference on the CPU, else where the call ran."""

    NPU = "npu"
    CPU = "cpu"
    SAME = "same"


class FuzzLevel(StrEnum):
    """Which calls are perturbed: APIs."""

    L1 = "L1"


class DiffRule(StrEnum):
    """How `diff_check` compares values: to the bit, or by statistics within the tolerance."""

    CHECKSUM = "checksum"
    STATISTICS = "statistics"
