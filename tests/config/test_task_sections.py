# SPDX-License-Identifier: Apache-2.0
"""Keys of the four tasks, at the levels where they work."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from msprobe.config import (
    CheckMode,
    CompileMode,
    DataMode,
    Device,
    ExceptionDumpSection,
    FileFormat,
    FreeBenchmarkSection,
    Level,
    OverflowCheckSection,
    Perturbation,
    Precision,
    Preheat,
    RiskLevel,
    Slice,
    StatisticsSection,
    StructureSection,
    SummaryMode,
    Task,
    TensorSection,
    load_config,
)
from msprobe.errors import ConfigError

LINEAR = "Functional.linear.0.forward"
BACKWARD = "Functional.linear.2.backward"
MODULE = "Module.blk.0.Linear.forward.0"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_defaults_of_the_common_keys(load, caplog):
    config = load({})
    assert (config.task, config.level) == (Task.STATISTICS, Level.L1)
    assert (config.rank, config.step) == ((), ())
    assert (config.precision, config.risk_level) == (Precision.LOW, RiskLevel.ALL)
    assert config.extra_info is True
    assert config.dump_enable is None
    assert (config.custom_op_namespaces, config.api_list) == ((), None)
    assert config.compile is CompileMode.EAGER
    flags = ("enable_dataloader", "async_dump", "record_rng", "record_recompute")
    assert [getattr(config, flag) for flag in flags] == [False] * 4
    assert warnings_of(caplog) == []


def test_every_common_key_reaches_the_settings(load, tmp_path, caplog):
    (tmp_path / "apis.yaml").write_text("torch: [matmul]\n")
    config = load(
        {
            "task": "tensor",
            "dump_path": str(tmp_path),
            "rank": [1],
            "step": ["2-3"],
            "level": "mix",
            "enable_dataloader": True,
            "async_dump": True,
            "precision": "high",
            "extra_info": False,
            "risk_level": "CORE",
            "dump_enable": False,
            "custom_op_namespaces": ["my_ops", "_C_ascend", "my_ops"],
            "api_list": "apis.yaml",
            "record_rng": True,
            "record_recompute": True,
            "compile": "modules_only",
        },
        dump_path=None,
    )
    assert (config.task, config.level) == (Task.TENSOR, Level.MIX)
    assert (config.dump_path, config.rank, config.step) == (tmp_path, (1,), (2, 3))
    assert (config.precision, config.risk_level) == (Precision.HIGH, RiskLevel.CORE)
    assert config.extra_info is False
    assert config.dump_enable is False
    assert config.custom_op_namespaces == ("my_ops", "_C_ascend")
    assert config.api_list == tmp_path / "apis.yaml"
    assert config.compile is CompileMode.MODULES_ONLY
    flags = ("enable_dataloader", "async_dump", "record_rng", "record_recompute")
    assert [getattr(config, flag) for flag in flags] == [True] * 4
    assert warnings_of(caplog) == []


def test_every_key_of_the_statistics_section_reaches_the_settings(load, caplog):
    config = load(
        {
            "statistics": {
                "scope": [LINEAR, BACKWARD],
                "list": ["linear"],
                "tensor_list": ["softmax"],
                "data_mode": ["forward"],
                "summary_mode": "md5",
                "device": "device",
                "slice": [{"dim": 1, "size": 8, "begin": 2, "end": 4}, {"begin": -3}],
                "black_list": ["relu"],
            }
        }
    )
    assert config.section == StatisticsSection(
        scope=(LINEAR, BACKWARD),
        name_filters=("linear",),
        tensor_list=("softmax",),
        data_mode=DataMode(backward=False),
        summary_mode=SummaryMode.MD5,
        device=Device.DEVICE,
        slice=(Slice(dim=1, size=8, begin=2, end=4), Slice(begin=-3)),
        black_list=("relu",),
    )
    assert warnings_of(caplog) == []


def test_every_key_of_the_tensor_section_reaches_the_settings(load, caplog):
    section = {
        "scope": [LINEAR, BACKWARD],
        "list": ["linear"],
        "data_mode": ["output"],
        "summary_mode": "md5",
        "file_format": "bin",
        "slice": [{"end": 1}],
        "black_list": ["relu"],
    }
    config = load({"task": "tensor", "tensor": section})
    assert config.section == TensorSection(
        scope=(LINEAR, BACKWARD),
        name_filters=("linear",),
        data_mode=DataMode(input=False),
        summary_mode=SummaryMode.MD5,
        file_format=FileFormat.BIN,
        slice=(Slice(end=1),),
        black_list=("relu",),
    )
    assert warnings_of(caplog) == []


def test_every_key_of_the_other_sections_reaches_the_settings(load):
    structure = load({"task": "structure", "structure": {"black_list": ["relu"]}})
    assert structure.section == StructureSection(black_list=("relu",))
    keys = {"overflow_nums": 3, "check_mode": "aicore", "black_list": ["relu"]}
    overflow = load({"task": "overflow_check", "overflow_check": keys})
    assert overflow.section == OverflowCheckSection(
        overflow_nums=3, check_mode=CheckMode.AICORE, black_list=("relu",)
    )


@pytest.mark.parametrize(
    ("task", "section"),
    [
        ("statistics", StatisticsSection()),
        ("tensor", TensorSection()),
        ("structure", StructureSection()),
        ("overflow_check", OverflowCheckSection()),
    ],
)
@pytest.mark.parametrize("written", [{}, None], ids=["empty", "absent"])
def test_sections_may_be_empty_or_absent(load, task, section, written):
    content = {"task": task} if written is None else {"task": task, task: written}
    assert load(content).section == section


def test_null_counts_as_absent(load):
    common = ("rank", "step", "level", "task", "async_dump", "precision", "extra_info", "compile")
    keys = ("scope", "list", "tensor_list", "data_mode", "summary_mode", "slice", "black_list")
    config = load({**dict.fromkeys(common), "statistics": dict.fromkeys(keys)})
    assert config == load({})


def test_empty_task_and_level_are_the_defaults(load):
    config = load({"task": "", "level": ""})
    assert (config.task, config.level) == (Task.STATISTICS, Level.L1)


def test_sections_of_other_tasks_are_not_read(load, caplog):
    others = ("tensor", "structure", "overflow_check", "run_ut", "acc_check", "free_benchmark")
    others += ("exception_dump", "diff_check")
    config = load({**dict.fromkeys(others, 5), "tensor": {"scope": 7, "lst": []}, "level": "L0"})
    assert config.section == StatisticsSection()
    assert warnings_of(caplog) == []


EVERY_WORD = {"forward", "backward", "input", "output"}


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([], EVERY_WORD),
        (["all"], EVERY_WORD),
        (["forward"], {"forward", "input", "output"}),
        (["backward"], {"backward", "input", "output"}),
        (["input"], {"forward", "backward", "input"}),
        (["output"], {"forward", "backward", "output"}),
        (["forward", "backward"], EVERY_WORD),
        (["input", "output"], EVERY_WORD),
        (["forward", "input"], {"forward", "input"}),
        (["forward", "output"], {"forward", "output"}),
        (["backward", "input"], {"backward", "input"}),
        (["backward", "output"], {"backward", "output"}),
        (["forward", "backward", "input"], {"forward", "backward", "input"}),
        (["forward", "backward", "output"], {"forward", "backward", "output"}),
        (["forward", "input", "output"], {"forward", "input", "output"}),
        (["backward", "input", "output"], {"backward", "input", "output"}),
        (sorted(EVERY_WORD), EVERY_WORD),
        (["forward", "forward"], {"forward", "input", "output"}),
    ],
)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_data_mode(load, task, words, kept):
    section = load({"task": task, task: {"data_mode": words}}).section
    for order in itertools.permutations(words):
        again = load({"task": task, task: {"data_mode": order}}).section
        assert again == section
    assert {word for word in EVERY_WORD if getattr(section.data_mode, word)} == kept


@pytest.mark.parametrize(
    ("level", "names"),
    [
        ("L1", [LINEAR, BACKWARD]),
        ("L1", ["Tensor.__add__.3.backward", "VF.lstm.0.forward"]),
        ("L1", ["Primitive.matmul.MatMul.0.forward", "MintFunctional.linear.0.forward"]),
        ("L1", ["NPU.npu_fusion.0.forward", "Distributed.all_reduce.12.forward"]),
        ("L0", [MODULE, "Module.blk.0.Linear.backward.0"]),
        ("L0", ["Module.Net.forward.0", "Cell.fc1.Dense.forward.3"]),
        ("mix", [MODULE, BACKWARD]),
        ("mix", [LINEAR, "Cell.fc1.Dense.forward.3"]),
        ("L2", []),
        ("L2", [MODULE, "Aten.mm.0.forward"]),
    ],
)
def test_scope_names_that_the_level_records(load, caplog, level, names):
    config = load({"level": level, "statistics": {"scope": names}})
    assert isinstance(config.section, StatisticsSection)
    assert config.section.scope == (tuple(names) if names else None)
    assert warnings_of(caplog) == []


def test_scope_with_a_registered_prefix_is_accepted_with_a_warning(load, caplog):
    names = ["my_ops.rope.0.forward", "Functionl.linear.0.forward"]
    config = load({"statistics": {"scope": names}})
    assert isinstance(config.section, StatisticsSection)
    assert config.section.scope == tuple(names)
    first, second = warnings_of(caplog)
    assert '"statistics.scope[0]" is \'my_ops.rope.0.forward\': "my_ops" is no built-in' in first
    assert '"Functionl" is no built-in prefix' in second


def test_scope_switches_the_risk_filter_off(load, caplog):
    config = load({"risk_level": "FOCUS", "statistics": {"scope": [LINEAR, BACKWARD]}})
    assert config.risk_level is RiskLevel.ALL
    (warning,) = warnings_of(caplog)
    assert '"risk_level" is "FOCUS"; with a scope every API is recorded' in warning
    assert load({"risk_level": "FOCUS"}).risk_level is RiskLevel.FOCUS


@pytest.mark.parametrize("level", ["L1", "L2", "debug", ""])
def test_structure_at_another_level_warns_and_uses_mix(load, caplog, level):
    config = load({"task": "structure", "level": level})
    assert config.level is Level.MIX
    expected = 1 if level else 0  # a level that nobody chose is no mistake
    assert len(warnings_of(caplog)) == expected


@pytest.mark.parametrize(
    ("task", "levels"),
    [
        ("statistics", ["L0", "L1", "L2", "mix", "debug"]),
        ("tensor", ["L0", "L1", "L2", "mix", "debug"]),
        ("structure", ["L0", "mix"]),
        ("overflow_check", ["L0", "L1", "mix"]),
    ],
)
def test_levels_of_each_task(load, caplog, task, levels):
    for level in levels:
        assert load({"task": task, "level": level}).level == level
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_selection_has_no_effect_at_level_debug(load, caplog, task):
    selection = {"scope": ["anything"], "list": ["a"]}
    if task == "statistics":
        selection["tensor_list"] = ["b"]
    config = load({"task": task, "level": "debug", task: selection})
    assert isinstance(config.section, StatisticsSection | TensorSection)
    assert (config.section.scope, config.section.name_filters) == (None, ())
    assert getattr(config.section, "tensor_list", ()) == ()
    warnings = warnings_of(caplog)
    assert len(warnings) == len(selection)
    for key in selection:
        assert any(f'"{task}.{key}" has no effect at level debug' in text for text in warnings)


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
def test_async_dump_needs_no_list_and_takes_md5(load, caplog, level):
    content = {"task": "tensor", "level": level, "async_dump": True}
    config = load({**content, "tensor": {"summary_mode": "md5"}})
    assert config.async_dump
    assert isinstance(config.section, TensorSection)
    assert config.section.summary_mode is SummaryMode.MD5
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("names", [[], ["Functional.linear.0.forward"], ["a", "b"]])
def test_l2_takes_any_list(load, task, names):
    config = load({"task": task, "level": "L2", task: {"list": names}})
    assert isinstance(config.section, StatisticsSection | TensorSection)
    assert config.section.name_filters == tuple(names)


def test_an_empty_string_in_a_filter_warns_that_it_matches_everything(load, caplog):
    config = load({"statistics": {"list": [""], "tensor_list": ["", "a"]}})
    assert isinstance(config.section, StatisticsSection)
    assert (config.section.name_filters, config.section.tensor_list) == (("",), ("", "a"))
    first, second = warnings_of(caplog)
    assert '"statistics.list" holds an empty string, which matches every record' in first
    assert '"statistics.tensor_list" holds an empty string' in second


@pytest.mark.parametrize("number", [1, 2, 10**9, -1])
def test_overflow_nums(load, number):
    config = load({"task": "overflow_check", "overflow_check": {"overflow_nums": number}})
    assert config.section == OverflowCheckSection(overflow_nums=number)


@pytest.mark.parametrize(
    ("crop", "parsed"),
    [
        ({}, Slice()),
        ({"dim": 2}, Slice(dim=2)),
        ({"dim": None, "size": None, "begin": None, "end": None}, Slice()),
        ({"size": 0}, Slice(size=0)),
        ({"begin": 1, "end": 2}, Slice(begin=1, end=2)),
        ({"begin": -2, "end": -1}, Slice(begin=-2, end=-1)),
        ({"begin": 1, "end": -1}, Slice(begin=1, end=-1)),
        ({"begin": -4, "end": 3}, Slice(begin=-4, end=3)),
    ],
)
def test_slices(load, crop, parsed):
    config = load({"statistics": {"slice": [crop]}})
    assert isinstance(config.section, StatisticsSection)
    assert config.section.slice == (parsed,)


def test_api_list_is_found_beside_the_file_and_by_absolute_path(load, tmp_path, monkeypatch):
    (tmp_path / "lists").mkdir()
    table = tmp_path / "lists" / "my apis.yml"
    table.write_text("torch: []\n")
    monkeypatch.chdir(Path(tmp_path.anchor))
    assert load({"api_list": "lists/my apis.yml"}).api_list == table
    assert load({"api_list": str(table)}).api_list == table
    assert load({"api_list": ""}).api_list is None


def test_kernel_tasks_are_for_frameworks_that_dump_kernels(config_file, tmp_path):
    path = config_file({"task": "exception_dump", "dump_path": str(tmp_path)})
    config = load_config(path, dumps_kernels=True)
    assert (config.task, config.level) == (Task.EXCEPTION_DUMP, Level.L2)
    assert config.section == ExceptionDumpSection()
    with pytest.raises(ConfigError, match=r'"task" is "exception_dump".*it is for MindSpore'):
        load_config(path)
    with pytest.raises(ConfigError, match=r'"level" is "L1".*use one of L2'):
        load_config(path, level="L1", dumps_kernels=True)
    config = load_config(path, task="overflow_check", level="L2", dumps_kernels=True)
    assert (config.task, config.level) == (Task.OVERFLOW_CHECK, Level.L2)
    assert load_config(path, task="overflow_check", level="L2").level is Level.L2
    with pytest.raises(ConfigError, match=r'"statistics.scope" is .*use list to select'):
        load_config(
            path, task="statistics", level="L2", section={"scope": [LINEAR] * 2}, dumps_kernels=True
        )


@pytest.mark.parametrize(
    ("keys", "mode"),
    [
        ({}, Perturbation.ULP_NOISE),
        ({"mode": "rerun"}, Perturbation.RERUN),
        ({"pert_mode": "no_change", "fuzz_device": "npu"}, Perturbation.RERUN),
        ({"mode": "improve_precision"}, Perturbation.HIGH_PRECISION),
        ({"pert_mode": "high_precision", "fuzz_device": "same"}, Perturbation.HIGH_PRECISION),
        ({"mode": "cpu_reference", "pert_mode": "to_cpu"}, Perturbation.CPU_REFERENCE),
        ({"pert_mode": "to_cpu", "fuzz_device": "cpu"}, Perturbation.CPU_REFERENCE),
        ({"pert_mode": "bit_noise"}, Perturbation.ULP_NOISE),
        ({"pert_mode": "add_noise"}, Perturbation.RELATIVE_NOISE),
        ({"pert_mode": "change_value"}, Perturbation.PERMUTE),
    ],
)
def test_a_perturbation_has_two_names_under_two_keys(load, keys, mode):
    section = load({"task": "free_benchmark", "free_benchmark": keys}).section
    assert isinstance(section, FreeBenchmarkSection)
    assert section.mode is mode


def test_preheat_may_be_a_word_and_limits_of_zero_are_none(load):
    keys = {"if_preheat": "True", "preheat_step": 3, "max_sample": 2, "max_bytes": 0}
    section = load({"task": "free_benchmark", "free_benchmark": keys}).section
    assert section.preheat == Preheat(steps=3, max_sample=2)
    assert (section.max_bytes, section.max_calls, section.every_n) == (None, None, 1)


def test_a_level_that_grad_probe_does_not_use_is_a_level_all_the_same(load):
    assert load({"task": "grad_probe", "level": "L1"}).level is Level.DEBUG
    with pytest.raises(ConfigError, match='"level" is 0'):
        load({"task": "grad_probe", "level": 0})
