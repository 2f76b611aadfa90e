# SPDX-License-Identifier: Apache-2.0
"""The closed sets of words that `config.json` may use."""

from __future__ import annotations

from enum import StrEnum


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
