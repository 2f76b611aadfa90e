# SPDX-License-Identifier: Apache-2.0
"""`config.json` and the arguments of a debugger, as frozen and checked settings.

Entry point: `load_config`. `file_keys` defines the keys of the file, `settings` the objects that
the rest of the program sees. Every refusal is a `ConfigError` that names file, key, value and what
is allowed; keys without effect are logged as warnings; sections of other tasks are not read.
May import only modules beside the rooms (`errors`, `api_prefixes`).
"""

from __future__ import annotations

from msprobe.config.choices import (
    CheckMode,
    CompileMode,
    Device,
    DiffRule,
    FileFormat,
    Handler,
    Level,
    Perturbation,
    Precision,
    RiskLevel,
    Stage,
    StopOn,
    SummaryMode,
    Task,
)
from msprobe.config.loading import DumpSwitch, load_config, reload_dump_enable
from msprobe.config.numbers import parse_number_list, parse_token_range
from msprobe.config.reading import read_config_file
from msprobe.config.schema import json_schema
from msprobe.config.settings import (
    Config,
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

__all__ = [
    "CheckMode",
    "CompileMode",
    "Config",
    "DataMode",
    "Device",
    "DiffCheckSection",
    "DiffRule",
    "DumpSwitch",
    "ExceptionDumpSection",
    "FileFormat",
    "FreeBenchmarkSection",
    "GradProbeSection",
    "Handler",
    "Level",
    "NanCheckSection",
    "NoiseFloorSection",
    "OnlineSettings",
    "OverflowCheckSection",
    "Perturbation",
    "Precision",
    "Preheat",
    "RiskLevel",
    "Section",
    "SignatureSection",
    "Slice",
    "Stage",
    "StatisticsSection",
    "StopOn",
    "StructureSection",
    "SummaryMode",
    "Task",
    "TensorSection",
    "json_schema",
    "load_config",
    "parse_number_list",
    "parse_token_range",
    "read_config_file",
    "reload_dump_enable",
]
