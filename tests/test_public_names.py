# SPDX-License-Identifier: Apache-2.0
"""The names that scripts import are there, and packages show exactly what `__all__` says."""

from __future__ import annotations

import importlib
import inspect
import types

import pytest

PACKAGES = [
    "msprobe",
    pytest.param("msprobe.pytorch", marks=pytest.mark.torch),
]


# Names that only serve annotations, and are no more public than the imports of any module.
TYPING = {"Any", "TYPE_CHECKING", "annotations"}


def load(name: str) -> types.ModuleType:
    if name != "msprobe":
        pytest.importorskip("torch")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_sorted_and_complete(name: str) -> None:
    package = load(name)
    shown = {
        key
        for key in dir(package)
        if not key.startswith("_") and not isinstance(getattr(package, key), types.ModuleType)
    } - TYPING
    assert list(package.__all__) == sorted(package.__all__)
    assert shown == {key for key in package.__all__ if not key.startswith("_")}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_documented(name: str) -> None:
    package = load(name)
    for key in package.__all__:
        value = "" if key == "__version__" else getattr(package, key)
        if callable(value):
            assert value.__doc__, f"{name}.{key}"
            assert value.__module__.startswith("msprobe"), f"{name}.{key}"


@pytest.mark.torch
def test_names_that_existing_scripts_import() -> None:
    adapter = load("msprobe.pytorch")
    for key in ("PrecisionDebugger", "module_dump", "module_dump_end", "seed_all"):
        assert key in adapter.__all__


@pytest.mark.torch
def test_debugger_has_the_documented_methods() -> None:
    debugger = load("msprobe.pytorch").PrecisionDebugger
    methods = {name for name in dir(debugger) if not name.startswith("_")}
    assert methods >= {
        "forward_backward_dump_end",
        "register_custom_api",
        "restore_custom_api",
        "save",
        "set_init_step",
        "start",
        "step",
        "stop",
    }


def test_top_level_reads_dumps_without_a_framework() -> None:
    assert "open_dump" in load("msprobe").__all__


def test_top_level_compares_dumps_without_a_framework() -> None:
    compare_dumps = load("msprobe").compare_dumps
    parameters = list(inspect.signature(compare_dumps).parameters.values())
    assert [each.name for each in parameters[:2]] == ["target", "reference"]
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters[2:])


@pytest.mark.torch
def test_comparisons_keep_the_signatures_that_scripts_use() -> None:
    adapter = load("msprobe.pytorch")
    single = inspect.signature(adapter.compare).parameters
    assert {name: each.default for name, each in single.items()} == {
        "input_param": inspect.Parameter.empty,
        "output_path": inspect.Parameter.empty,
        "stack_mode": False,
        "auto_analyze": True,
        "fuzzy_match": False,
        "highlight": True,
        "data_mapping": None,
        "is_print_compare_log": True,
    }
    distributed = inspect.signature(adapter.compare_distributed).parameters
    assert list(distributed) == ["npu_dump_dir", "bench_dump_dir", "output_path", "kwargs"]
