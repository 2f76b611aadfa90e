# SPDX-License-Identifier: Apache-2.0
"""`Standards`: which precision standard judges an operator, and with which limits.

The numbers are in ``standards.yaml`` beside this module. Files of the user's have the forms of
mindstudio-probe's: ``api_precision_standard.yaml`` (operators of each standard),
``api_precision_threshold.yaml`` (limits by operator and type), ``torch_ut_setting.json`` (which
output's gradient runs backward, by operator), ``checker_support_api.yaml`` (methods of MindSpore's
tensors that are checked).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml

from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.errors import ConfigFileError
from msprobe.numerics.number_types import Kind, kind_of
from msprobe.yaml_nodes import Node, nearest, parse_yaml, read_yaml

STANDARD_FILE: Final = "api_precision_standard.yaml"
THRESHOLD_FILE: Final = "api_precision_threshold.yaml"
GRADIENT_FILE: Final = "torch_ut_setting.json"
SUPPORT_FILE: Final = "checker_support_api.yaml"
_FILES: Final = (STANDARD_FILE, THRESHOLD_FILE, GRADIENT_FILE, SUPPORT_FILE)
_DEFAULT_TYPE: Final = "float32"
_LIMITS: Final = ("rtol", "small_value", "small_value_atol")


class Algorithm(StrEnum):
    """A standard of the second verdict; the value is its name in the documented files."""

    BENCHMARK = "标杆比对法"
    BINARY = "二进制一致法"
    ABSOLUTE = "绝对阈值法"
    ULP = "ULP误差比对法"
    THOUSANDTH = "双千指标法"
    ACCUMULATIVE = "累积误差比对法"


class Generation(StrEnum):
    """Whose rules: those of the documents (to 8.3.3), or of 26.2.0."""

    DOCUMENTED = "documented"
    NEW = "26"


class RatioMetric(StrEnum):
    """A metric of which two devices are compared by ratio."""

    SMALL_VALUE_ERROR = "small_value_error"
    RMSE = "rmse"
    MAX_REL_ERROR = "max_rel_error"
    MEAN_REL_ERROR = "mean_rel_error"
    ERROR_BALANCE = "error_balance"


_LISTS: Final = {
    "AbsoluteThreshStandard": Algorithm.ABSOLUTE,
    "BinaryCompareStandard": Algorithm.BINARY,
    "ULPStandard": Algorithm.ULP,
    "ThousandthStandard": Algorithm.THOUSANDTH,
    "AccumulativeErrorStandard": Algorithm.ACCUMULATIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeLimits:
    """The limits for one element type.

    Attributes:
        absolute_small_value: largest value that is judged by its absolute error.
        absolute_atol: absolute error that such a value may have.
        rtol: relative error that other values may have.
        benchmark_small_value: as `absolute_small_value`, for the standard `BENCHMARK`.
        benchmark_atol: as `absolute_atol`, for the standard `BENCHMARK`.
        ratio_floor: smallest denominator of the ratio of two devices' metrics.
        accumulative_bound: absolute and relative error allowed by `ACCUMULATIVE`.
        accumulative_balance: error balance allowed by `ACCUMULATIVE`.
        ulp_threshold: an error of more units in the last place counts as large.
    """

    absolute_small_value: float
    absolute_atol: float
    rtol: float
    benchmark_small_value: float
    benchmark_atol: float
    ratio_floor: float
    accumulative_bound: float
    accumulative_balance: float
    ulp_threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLimits:
    """The limits of the first verdict, of one device against the reference."""

    cosine: float
    max_abs_error: float
    dropout_zeros: float
    dropout_elements: int
    quantization_max_abs_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UlpRules:
    """When two devices' errors in units in the last place are a pass."""

    low_precision_share: float
    float32_mean: float
    float32_share: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standards:
    """The documented precision standards. Make them with `load`.

    Attributes:
        first: limits of the first verdict.
        ulp: limits of the second verdict for `Algorithm.ULP`.
        thousandth: share of elements that `Algorithm.THOUSANDTH` asks for.
        accumulative_small_value: as `TypeLimits.absolute_small_value`, for `ACCUMULATIVE`.
        grad_index: number of the output whose gradient alone runs backward, by operator; others run
            backward with the gradients of all outputs.
        tensor_methods: methods of MindSpore's tensors that are checked; None for all.
    """

    first: FirstLimits
    ulp: UlpRules
    thousandth: float
    accumulative_small_value: float
    grad_index: Mapping[str, int] = field(default_factory=dict)
    tensor_methods: frozenset[str] | None = None
    _types: Mapping[str, TypeLimits]
    _ratios: Mapping[str, Mapping[str, float]]
    _levels: Mapping[str, str]
    _quantization: frozenset[str]
    _algorithms: Mapping[str, Algorithm]
    _own_limits: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Path | None = None) -> Standards:
        """Return the standards, with the user's files in a folder laid over them.

        Args:
            directory: holds any of the files that the module names.

        Raises:
            ConfigFileError: a file cannot be read, or the folder has none of them.
            ConfigError: an unknown key, or a value that cannot be used; with its line.
        """
        built_in = _built_in()
        if directory is None:
            return built_in
        files = {name: directory / name for name in _FILES if (directory / name).is_file()}
        if not files:
            raise ConfigFileError(directory, f"this folder has none of {', '.join(_FILES)}")
        read = {name: read_yaml(path) for name, path in files.items()}
        if STANDARD_FILE in read:
            built_in = replace(built_in, _algorithms=_algorithms(read[STANDARD_FILE]))
        if THRESHOLD_FILE in read:
            built_in = replace(built_in, _own_limits=_own_limits(read[THRESHOLD_FILE]))
        if GRADIENT_FILE in read:
            built_in = replace(built_in, grad_index=_grad_index(read[GRADIENT_FILE]))
        if SUPPORT_FILE in read:
            built_in = replace(built_in, tensor_methods=_tensor_methods(read[SUPPORT_FILE]))
        return built_in

    def limits(self, api: str, dtype: str) -> TypeLimits:
        """Return the limits of one operator and type; those of float32 for types without own."""
        found = self._types.get(dtype, self._types[_DEFAULT_TYPE])
        own = self._own_limits.get((api, dtype))
        if own is None:
            return found
        return replace(
            found,
            rtol=own.get("rtol", found.rtol),
            absolute_small_value=own.get("small_value", found.absolute_small_value),
            absolute_atol=own.get("small_value_atol", found.absolute_atol),
        )

    def algorithm(self, api: str, dtype: str, generation: Generation) -> Algorithm:
        """Return which standard judges an operator's output of a type."""
        if dtype.startswith("float8"):
            return Algorithm.ULP
        if kind_of(dtype) not in (Kind.FLOAT, Kind.COMPLEX):
            return Algorithm.BINARY
        if generation is Generation.NEW and (api, dtype) not in self._own_limits:
            return Algorithm.BENCHMARK
        return self._algorithms.get(api, Algorithm.BENCHMARK)

    def ratio_limit(self, metric: RatioMetric, api: str, generation: Generation) -> float:
        """Return the ratio of two devices' metrics above which an operator is an error."""
        level = "L0" if generation is Generation.DOCUMENTED else self._levels.get(api, "L0")
        return self._ratios[metric][level]

    def is_quantization(self, api: str) -> bool:
        """Return whether integers of an operator may differ by one."""
        return api in self._quantization


def _number(text: str) -> float:
    """Return the number that ``0.5`` or ``2^-10`` is.

    Raises:
        ValueError: it is none that can be a limit.
    """
    base, power, exponent = text.partition("^")
    number = float(base) ** int(exponent) if power else float(base)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number


def _built_in() -> Standards:
    def text(name: str) -> str:
        return resources.files(__package__).joinpath(name).read_text("utf-8")

    tree: dict[str, Any] = yaml.safe_load(text("standards.yaml"))
    rules = tree["ulp_rules"]
    return Standards(
        first=FirstLimits(**tree["first"]),
        ulp=UlpRules(
            low_precision_share=rules["low_precision"]["share"],
            float32_mean=rules["float32"]["mean"],
            float32_share=rules["float32"]["share"],
            ratio=rules["ratio"],
        ),
        thousandth=tree["thousandth"],
        accumulative_small_value=tree["accumulative_small_value"],
        _types={name: _type_limits(found) for name, found in tree["types"].items()},
        _ratios=tree["ratios"],
        _levels={api: level for level, apis in tree["levels"].items() for api in apis},
        _quantization=frozenset(tree["quantization"]),
        _algorithms=_algorithms(parse_yaml(text(STANDARD_FILE), Path(STANDARD_FILE))),
    )


def _type_limits(tree: dict[str, Any]) -> TypeLimits:
    def number(*keys: str) -> float:
        found: Any = tree
        for key in keys:
            found = found[key]
        return _number(str(found))

    return TypeLimits(
        absolute_small_value=number("absolute", "small_value"),
        absolute_atol=number("absolute", "small_value_atol"),
        rtol=number("absolute", "rtol"),
        benchmark_small_value=number("benchmark", "small_value"),
        benchmark_atol=number("benchmark", "small_value_atol"),
        ratio_floor=number("ratio_floor"),
        accumulative_bound=number("accumulative", "bound"),
        accumulative_balance=number("accumulative", "error_balance"),
        ulp_threshold=number("ulp", "threshold"),
    )


def _algorithms(file: Node) -> dict[str, Algorithm]:
    found = {}
    for name, place, apis in file.items("lists of operators, by standard"):
        if name not in _LISTS:
            place.refuse(name, _LISTS, hint=nearest(name, _LISTS))
        if apis.kind != "null":
            for api in apis.elements("a list of operators"):
                found[api.text("the name of an operator")] = _LISTS[name]
    return found


def _own_limits(file: Node) -> dict[tuple[str, str], dict[str, float]]:
    found: dict[tuple[str, str], dict[str, float]] = {}
    for api, _, types in file.items("limits, by operator and type"):
        for dtype, _, limits in types.items("limits, by type such as torch.float32"):
            own = found.setdefault((api, normal_dtype(dtype)), {})
            for name, place, value in limits.items(f"any of {', '.join(_LIMITS)}"):
                if name not in _LIMITS:
                    place.refuse(name, _LIMITS, hint=nearest(name, _LIMITS))
                own[name] = _limit(value)
    return found


def _limit(value: Node) -> float:
    text = value.text("a number")
    try:
        return _number(text)
    except ValueError:
        value.refuse(text, "a number of 0 or more")


def _grad_index(file: Node) -> dict[str, int]:
    found = {}
    for api, _, settings in file.items("settings, by operator"):
        for name, place, value in settings.items("grad_index"):
            if name != "grad_index":
                place.refuse(name, ["grad_index"], hint=nearest(name, ["grad_index"]))
            text = value.text("the number of an output")
            if not text.isdecimal():
                value.refuse(text, "the number of an output, from 0")
            found[api] = int(text)
    return found


def _tensor_methods(file: Node) -> frozenset[str]:
    found: set[str] = set()
    for name, place, methods in file.items("tensor: a list of methods"):
        if name != "tensor":
            place.refuse(name, ["tensor"], hint=nearest(name, ["tensor"]))
        found |= {one.text("the name of a method") for one in methods.elements("a list")}
    return frozenset(found)
